//! Keeps the two connections: makes them, watches them, makes them again with growing, jittered waits, and says how they
//! are. Topology is declared on the consuming connection, which an alarm never blocks; publishing begins after it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{AmqpConfig, AmqpError, Link, TopologyProblem, apply_topology, connect};
use crate::metrics;

/// A connection that lived shorter than this counts as one more failure.
const SETTLED: Duration = Duration::from_secs(10);

/// Draws a fraction in `0.0..1.0`, for jitter.
pub type Jitter = Arc<dyn Fn() -> f64 + Send + Sync>;

/// Which connections a process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// The relay: publishes, and consumes `unrouted` and `dead`.
    PublishAndConsume,
    /// Processing alone: consumes outcomes.
    Consume,
}

/// How one connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Not needed by this process's roles.
    Unused,
    Connecting,
    Connected,
    /// Connected, but the broker takes no publishes; the broker's reason.
    Blocked(String),
    /// Why not, and it will be tried again.
    Down(String),
}

/// What `/readyz`, the metrics and the relay look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerState {
    pub publish: LinkState,
    pub consume: LinkState,
    /// `None` until the topology was declared or looked at for the first time.
    pub topology: Option<Vec<TopologyProblem>>,
}

impl BrokerState {
    /// Whether messages may be handed over now.
    pub fn takes_publishes(&self) -> bool {
        self.publish == LinkState::Connected
    }

    /// Stable code for `/readyz`: `ok`, `degraded` (topology), `blocked`, `down`.
    pub fn code(&self) -> &'static str {
        match (&self.publish, &self.consume) {
            (LinkState::Down(_) | LinkState::Connecting, _) | (_, LinkState::Down(_) | LinkState::Connecting) => "down",
            (LinkState::Blocked(_), _) => "blocked",
            _ if self.topology.as_ref().is_none_or(|problems| !problems.is_empty()) => "degraded",
            _ => "ok",
        }
    }
}

/// The broker as the stages see it.
pub struct Broker {
    config: AmqpConfig,
    subscriptions: Vec<String>,
    jitter: Jitter,
    state: watch::Sender<BrokerState>,
    publish: watch::Sender<Option<Arc<Link>>>,
    consume: watch::Sender<Option<Arc<Link>>>,
    roles: Roles,
}

impl Broker {
    /// `subscriptions`: those whose target is `amqp`.
    pub fn new(config: AmqpConfig, subscriptions: Vec<String>, roles: Roles, jitter: Jitter) -> Arc<Self> {
        let publish = if roles == Roles::Consume { LinkState::Unused } else { LinkState::Connecting };
        let state = BrokerState { publish, consume: LinkState::Connecting, topology: None };
        Arc::new(Self {
            config,
            subscriptions,
            jitter,
            state: watch::Sender::new(state),
            publish: watch::Sender::new(None),
            consume: watch::Sender::new(None),
            roles,
        })
    }

    pub fn config(&self) -> &AmqpConfig {
        &self.config
    }

    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.state.subscribe()
    }

    /// The present publishing connection; changes with each reconnect.
    pub fn publish_link(&self) -> watch::Receiver<Option<Arc<Link>>> {
        self.publish.subscribe()
    }

    /// The present consuming connection.
    pub fn consume_link(&self) -> watch::Receiver<Option<Arc<Link>>> {
        self.consume.subscribe()
    }

    /// Keeps both connections until `stop`, then closes them.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let consume = self.keep_consume(&stop);
        if self.roles == Roles::Consume {
            consume.await;
        } else {
            tokio::join!(consume, self.keep_publish(&stop));
        }
    }

    async fn keep_consume(&self, stop: &CancellationToken) {
        let mut backoff = Backoff::new(&self.config, &self.jitter);
        while !stop.is_cancelled() {
            let began = Instant::now();
            match self.consume_once(stop).await {
                Ok(()) => return,
                Err(why) => self.down(&why, |state, down| state.consume = down),
            }
            self.consume.send_replace(None);
            backoff.wait(began, stop).await;
        }
    }

    /// One connection's life; `Ok` when asked to stop.
    async fn consume_once(&self, stop: &CancellationToken) -> Result<(), AmqpError> {
        let link = tokio::select! {
            link = connect(&self.config, "consume") => Arc::new(link?),
            () = stop.cancelled() => return Ok(()),
        };
        loop {
            let problems = apply_topology(&link, &self.config, &self.subscriptions).await?;
            self.note_topology(problems);
            if self.consume.borrow().is_none() {
                self.state.send_modify(|state| state.consume = LinkState::Connected);
                self.consume.send_replace(Some(Arc::clone(&link)));
            }
            tokio::select! {
                () = link.gone() => return Err(AmqpError::Lost(link.why())),
                () = sleep(self.config.topology_every) => {}
                () = stop.cancelled() => {
                    self.consume.send_replace(None);
                    link.close().await;
                    return Ok(());
                }
            }
        }
    }

    async fn keep_publish(&self, stop: &CancellationToken) {
        let mut backoff = Backoff::new(&self.config, &self.jitter);
        let mut state = self.state.subscribe();
        // Publishing to an exchange that nobody has made yet would only close channels.
        tokio::select! {
            _ = state.wait_for(|state| state.topology.is_some()) => {}
            () = stop.cancelled() => return,
        }
        while !stop.is_cancelled() {
            let began = Instant::now();
            match self.publish_once(stop).await {
                Ok(()) => return,
                Err(why) => self.down(&why, |state, down| state.publish = down),
            }
            self.publish.send_replace(None);
            metrics::broker_blocked(false);
            backoff.wait(began, stop).await;
        }
    }

    async fn publish_once(&self, stop: &CancellationToken) -> Result<(), AmqpError> {
        let link = tokio::select! {
            link = connect(&self.config, "publish") => Arc::new(link?),
            () = stop.cancelled() => return Ok(()),
        };
        let mut blocked = link.blocked_changes();
        self.publish.send_replace(Some(Arc::clone(&link)));
        loop {
            let why = blocked.borrow_and_update().clone();
            metrics::broker_blocked(why.is_some());
            self.state.send_modify(|state| state.publish = why.map_or(LinkState::Connected, LinkState::Blocked));
            tokio::select! {
                () = link.gone() => return Err(AmqpError::Lost(link.why())),
                _ = blocked.changed() => {}
                () = stop.cancelled() => {
                    self.publish.send_replace(None);
                    link.close().await;
                    return Ok(());
                }
            }
        }
    }

    fn down(&self, why: &AmqpError, set: impl Fn(&mut BrokerState, LinkState)) {
        tracing::warn!(error.code = why.code(), error = %why, "the broker is away");
        self.state.send_modify(|state| set(state, LinkState::Down(why.to_string())));
    }

    fn note_topology(&self, problems: Vec<TopologyProblem>) {
        let known = self.state.borrow().topology.clone();
        if known.as_ref() == Some(&problems) {
            return;
        }
        for problem in &problems {
            tracing::warn!(
                name = problem.name,
                error.code = problem.code,
                error = problem.text,
                "the broker's topology differs"
            );
        }
        self.state.send_modify(|state| state.topology = Some(problems));
    }
}

/// Waits that double from `min` to `max`, each shortened by up to half at random.
struct Backoff<'a> {
    config: &'a AmqpConfig,
    jitter: &'a Jitter,
    next: Duration,
}

impl<'a> Backoff<'a> {
    fn new(config: &'a AmqpConfig, jitter: &'a Jitter) -> Self {
        Self { config, jitter, next: config.reconnect_min }
    }

    async fn wait(&mut self, began: Instant, stop: &CancellationToken) {
        if began + SETTLED < Instant::now() {
            self.next = self.config.reconnect_min;
        }
        let wait = self.next.mul_f64(1.0 - (self.jitter)() / 2.0);
        self.next = (self.next * 2).min(self.config.reconnect_max);
        tokio::select! {
            () = sleep(wait) => {}
            () = stop.cancelled() => {}
        }
    }
}
