//! What tests stand on.

pub mod proxy;
pub mod rabbit;
pub mod sqlite;
