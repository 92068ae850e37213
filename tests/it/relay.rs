//! The relay against a real broker, and a store in memory.

mod broken;
mod faults;
mod healthy;
mod memory;
mod stage;
mod stray;
