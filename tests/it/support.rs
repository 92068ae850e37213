//! What tests stand on.

pub mod sqlite;
