//! The integration tests: one binary, a file per subject. `support` gives each test its own database and vhost.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends where it is")]

#[macro_use]
mod support;

mod edge;
mod jobs;
mod peers;
mod postgres;
mod providers;
mod receive;
mod relay;
mod store;
mod tree;
mod whole;
