//! The relay against a real broker, on a store in memory and on the embedded one.

mod broken;
mod faults;
mod healthy;
mod memory;
mod sqlite;
mod stage;
mod stray;
