//! What tests stand on.

pub mod postgres;
pub mod proxy;
pub mod rabbit;
pub mod sqlite;
