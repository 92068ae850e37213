//! The edge over real sockets, before a store that does what each test says. Limits are set small; nothing sleeps to wait.

mod answers;
mod browser;
mod limits;
mod load;
mod paths;
mod rig;
mod shares;
pub mod sources;
mod stopping;
