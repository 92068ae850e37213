//! The relay against a real broker.
