//! The edge over real sockets.
