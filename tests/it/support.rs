//! What tests stand on.
