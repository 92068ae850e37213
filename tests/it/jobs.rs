//! Jobs on every backend.
