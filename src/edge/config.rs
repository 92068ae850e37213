//! Every limit of the edge, with its default.

use std::net::IpAddr;
use std::time::Duration;

use super::peer::TrustedProxies;
use crate::store::QuarantineBounds;

/// Limits of the edge. All of them are bounds on what strangers can make us hold or wait for.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// Scheme and host under which providers reach us, without a path.
    pub public_url: Option<String>,
    /// Whose `X-Forwarded-For` is believed. Default: nobody's.
    pub trusted_proxies: TrustedProxies,
    /// Open connections; past it a connection is answered 503 and closed. Default 2,048.
    pub connections_max: usize,
    /// Open connections of one address (IPv6: one /64), trusted proxies apart. Default 512.
    pub connections_per_peer_max: usize,
    /// Requests at work at once; past it 503. Default 1,024.
    pub requests_max: usize,
    /// How much of `requests_max` and `bytes_max` one client may have at once, in per cent; past it 503. The client is the
    /// address that a trusted proxy names, or the peer. Half: a burst of one provider, who posts from few addresses, has
    /// ample room, and a client that sends slowly on purpose leaves as much to all others. Default 50.
    pub client_share_percent: u32,
    /// From the connection to its first byte. Default 10 s.
    pub first_byte_limit: Duration,
    /// From the first byte of a head to its end. Default 10 s.
    pub header_limit: Duration,
    /// From the end of a head to the end of the body. Default 30 s.
    pub body_limit: Duration,
    /// For the other end to take more of an answer. Default 30 s.
    pub write_limit: Duration,
    /// How long a connection may stay without a request. Longer than the 60 s of common load balancers, which would
    /// otherwise send into a connection that we are closing. Default 75 s.
    pub keep_alive_limit: Duration,
    /// Requests on one connection. Default 10,000.
    pub keep_alive_requests_max: u64,
    /// Bytes of a head. Default 16 KiB.
    pub header_bytes_max: usize,
    /// Headers of a request. Default 100.
    pub headers_max: usize,
    /// Bytes of a body, where neither the source nor the provider's definition needs more. Default 5 MiB.
    pub body_max: u64,
    /// Bytes of all bodies that are not yet committed; past it 503. Default 128 MiB.
    pub bytes_max: u64,
    /// From the head to the answer; past it 503 while the commit goes on. Default 8 s.
    pub answer_max: Duration,
    /// Bodies from this size on are verified on the blocking pool. Default 256 KiB.
    pub heavy_body_bytes: usize,
    /// Verifications on the blocking pool at once. Default: the number of processors.
    pub heavy_max: usize,
    /// At a stop, connections without a request stay this long for what is already on its way. Default 250 ms.
    pub stop_idle: Duration,
    /// After our last answer on a connection, what the sender still sends is read this long, so that it can read the
    /// answer instead of a reset. Default 1 s.
    pub linger_limit: Duration,
    /// And so many bytes of it. Default 1 MiB.
    pub linger_bytes_max: usize,
    /// Rejections that wait to be written to the quarantine; past it they are dropped and counted. Default 1,024.
    pub quarantine_queue_max: usize,
    /// And their bytes. Default 4 MiB.
    pub quarantine_queue_bytes_max: usize,
    /// Bytes of a refused body that are kept. Default 16 KiB.
    pub quarantine_body_max: usize,
    /// The least time between two writes to the quarantine. Default 250 ms.
    pub quarantine_pause: Duration,
    /// What the quarantine holds. Default 10,000 rejections, 64 MiB, seven days.
    pub quarantine: QuarantineBounds,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            public_url: None,
            trusted_proxies: TrustedProxies::default(),
            connections_max: 2048,
            connections_per_peer_max: 512,
            requests_max: 1024,
            client_share_percent: 50,
            first_byte_limit: Duration::from_secs(10),
            header_limit: Duration::from_secs(10),
            body_limit: Duration::from_secs(30),
            write_limit: Duration::from_secs(30),
            keep_alive_limit: Duration::from_secs(75),
            keep_alive_requests_max: 10_000,
            header_bytes_max: 16 * 1024,
            headers_max: 100,
            body_max: 5 * 1024 * 1024,
            bytes_max: 128 * 1024 * 1024,
            answer_max: Duration::from_secs(8),
            heavy_body_bytes: 256 * 1024,
            heavy_max: std::thread::available_parallelism().map_or(2, usize::from),
            stop_idle: Duration::from_millis(250),
            linger_limit: Duration::from_secs(1),
            linger_bytes_max: 1024 * 1024,
            quarantine_queue_max: 1024,
            quarantine_queue_bytes_max: 4 * 1024 * 1024,
            quarantine_body_max: 16 * 1024,
            quarantine_pause: Duration::from_millis(250),
            quarantine: QuarantineBounds {
                count: 10_000,
                bytes: 64 * 1024 * 1024,
                age: Duration::from_secs(7 * 24 * 60 * 60),
            },
        }
    }
}

impl EdgeConfig {
    /// How much of `all` this client may have at once. A proxy that names nobody speaks for many, and is not held to it.
    pub(super) fn share_of(&self, client: IpAddr, all: usize) -> usize {
        if self.trusted_proxies.trusts(client) {
            return usize::MAX;
        }
        (all.saturating_mul(self.client_share_percent as usize) / 100).max(1)
    }
}
