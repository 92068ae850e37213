//! What tests stand on.

pub mod sqlite;
pub mod postgres;
pub mod proxy;
pub mod rabbit;
