//! The broker: connection, topology, reconnect. Nothing is published and nothing consumed here: `outbox` and `process`
//! take a [`Link`] and do that. Publishing and consuming use two connections, so that a broker that blocks publishers
//! does not stop acks. lapin's own recovery stays off: what is lost is rebuilt whole by [`Broker`].

mod link;
mod names;
mod supervisor;
mod topology;

use std::time::Duration;

use secrecy::SecretString;

pub use link::{Link, connect};
pub use names::{Names, slow_key};
pub use supervisor::{Broker, BrokerState, Jitter, LinkState, Roles};
pub use topology::{TopologyProblem, apply_topology, queue_arguments, ready_count};

/// Directives for the log filter. lapin prints returned messages whole, body and properties, at `warn`; and what it says of
/// broken connections at `error`, each of them several times, [`Broker`] says once.
pub const LOG_FILTER: &str = "lapin::returned_messages=off,lapin=off,amq_protocol=warn,async_rs=warn";

/// What the broker part of the configuration says.
#[derive(Debug, Clone)]
pub struct AmqpConfig {
    /// `amqp://` or `amqps://`, with user and password: never printed.
    pub url: SecretString,
    /// Begins every broker name, so that several installations can share a vhost. Default `makbuz`.
    pub prefix: String,
    /// Whether queues and bindings are made or only looked at. Default `declare`.
    pub topology: TopologyMode,
    /// Also publish every event to the topic exchange `{prefix}.events`. Default off.
    pub broadcast: bool,
    /// Larger bodies travel as an address only. Default 256 KiB.
    pub inline_max: usize,
    /// For one whole connect, handshake included. Default 10 s.
    pub connect_timeout: Duration,
    /// For one answer of the broker to a declare, an open or a close. Default 10 s.
    pub operation_timeout: Duration,
    /// Both sides' heartbeat, whole seconds. Default 30 s.
    pub heartbeat: Duration,
    /// How often the topology is declared (or looked at) again. Default 30 s.
    pub topology_every: Duration,
    /// First wait before a reconnect; doubles, with jitter. Default 1 s.
    pub reconnect_min: Duration,
    /// Longest wait before a reconnect. Default 30 s.
    pub reconnect_max: Duration,
}

impl AmqpConfig {
    /// The defaults for `url`.
    pub fn new(url: SecretString) -> Self {
        Self {
            url,
            prefix: "makbuz".to_owned(),
            topology: TopologyMode::Declare,
            broadcast: false,
            inline_max: 256 * 1024,
            connect_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(30),
            topology_every: Duration::from_secs(30),
            reconnect_min: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(30),
        }
    }

    /// All names under this prefix.
    pub fn names(&self) -> Names {
        Names::new(&self.prefix)
    }
}

/// Who makes exchanges, queues and bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyMode {
    /// We do, at connect and again and again.
    Declare,
    /// Somebody else does (the shipped definitions); we look whether they are there.
    Check,
}

/// What went wrong with the broker. `code()` is stable; the text is for the log and holds no credentials.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AmqpError {
    #[error("not a usable amqp:// or amqps:// address")]
    Url,
    #[error("the broker did not answer in time: {0}")]
    Timeout(&'static str),
    #[error("no connection: {0}")]
    Connect(String),
    /// The broker closed the channel: 403, 404, 406 …
    #[error("the broker refused ({reply}): {text}")]
    Channel { reply: u16, text: String },
    #[error("the connection is gone: {0}")]
    Lost(String),
}

impl AmqpError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Url => "broker_url",
            Self::Timeout(_) => "broker_timeout",
            Self::Connect(_) => "broker_unreachable",
            Self::Channel { reply: 403, .. } => "broker_forbidden",
            Self::Channel { reply: 404, .. } => "broker_not_found",
            Self::Channel { reply: 406, .. } => "broker_mismatch",
            Self::Channel { .. } => "broker_refused",
            Self::Lost(_) => "broker_lost",
        }
    }
}

impl From<lapin::Error> for AmqpError {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            lapin::ErrorKind::ProtocolError(amqp) if error.is_amqp_soft_error() => {
                Self::Channel { reply: amqp.get_id(), text: amqp.get_message().to_string() }
            }
            _ => Self::Lost(error.to_string()),
        }
    }
}
