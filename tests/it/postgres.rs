//! The PostgreSQL store under faults, and what only PostgreSQL has. What every store must do is in the conformance suite.

mod away;
mod cancel;
mod deliveries;
mod lines;
mod partitions;
mod refused;
