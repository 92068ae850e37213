//! Roundtrips.
