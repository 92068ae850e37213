//! What tests stand on.

pub mod sqlite;
pub mod postgres;
