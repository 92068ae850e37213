//! The PostgreSQL store under faults, and what only PostgreSQL has. What every store must do is in the conformance suite.

mod away;
mod cancel;
mod copies;
mod deliveries;
mod late;
mod lines;
mod partitions;
mod refused;
