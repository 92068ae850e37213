//! What tests stand on.

pub mod postgres;
pub mod sqlite;
