//! The broker: connections, topology, reconnect; no publish, no consume.
