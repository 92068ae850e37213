//! The edge: accept loop, limits, verification, and the answer after COMMIT.
