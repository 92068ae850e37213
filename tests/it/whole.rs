//! The real binary from the wire to the queue.
