//! makbuz is a webhook receiver gateway: each authentic event is kept as a *receipt*, handed on as *jobs*, and seen to
//! its end. ARCHITECTURE.md is the map; a module's first lines say what it owns.

pub mod clock;
pub mod model;
pub mod random;

#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod provider;
#[cfg(feature = "server")]
pub mod store;
