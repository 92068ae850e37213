//! Plain facts and pure decisions: ids, receipts, jobs and their legal moves, retry policies, filters. No I/O, no clock.

pub mod access;
pub mod attempt;
pub mod filter;
pub mod id;
pub mod job;
pub mod outcome;
pub mod receipt;
pub mod retry;
pub mod subscription;
#[cfg(feature = "server")]
pub mod token;
