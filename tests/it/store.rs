//! The conformance suite of the store.
