//! The edge over real sockets, before a store that does what each test says. Limits are set small; nothing sleeps to wait.

mod answers;
mod browser;
mod handshakes;
mod limits;
mod load;
mod paths;
mod refusals;
mod rig;
mod shares;
pub mod sources;
mod stopping;
mod witness;
