//! The outbox: the relay that empties it, the publisher, and the message.
