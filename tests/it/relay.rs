//! The relay against a real broker, on a store in memory and on both real ones.

mod broadcast;
mod broken;
mod faults;
mod healthy;
mod memory;
mod missing;
pub mod stage;
mod stores;
mod stray;
