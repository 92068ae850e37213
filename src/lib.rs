//! makbuz is a webhook receiver gateway: each authentic event is kept as a *receipt*, handed on as *jobs*, and seen to
//! its end. ARCHITECTURE.md is the map; a module's first lines say what it owns.

pub mod clock;
pub mod model;
pub mod random;

#[cfg(feature = "server")]
pub mod admin;
#[cfg(feature = "server")]
pub mod amqp;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod edge;
#[cfg(feature = "server")]
pub mod lifecycle;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod outbox;
#[cfg(feature = "server")]
pub mod process;
#[cfg(feature = "server")]
pub mod provider;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
