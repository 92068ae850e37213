//! What tests stand on.

pub mod sqlite;
pub mod proxy;
pub mod rabbit;
