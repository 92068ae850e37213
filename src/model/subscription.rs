//! A named interest in events, as configured, and the set of all of them.

use std::sync::Arc;
use std::time::Duration;

use super::filter::{EventFacts, Filter};
use super::retry::RetryPolicy;

/// How a subscription's jobs reach their consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// A message in the broker's queue `makbuz.{name}`.
    Amqp,
    /// Claimed over HTTP by the consumer.
    Pull,
}

impl Target {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Pull => "pull",
        }
    }
}

/// When an `amqp` job counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletesOn {
    /// The consumer reports it.
    Report,
    /// The broker's confirm: handed over, effect unknown.
    Confirm,
}

/// One `[[subscription]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    pub name: String,
    pub filter: Filter,
    pub target: Target,
    pub retry: RetryPolicy,
    /// Longest time from the claim (`pull`) or from `started` (`amqp`) to the outcome.
    pub time_limit: Option<Duration>,
    pub completes_on: CompletesOn,
    /// A resend of the provider arms a job in review again (C9).
    pub rearm: bool,
}

/// The reserved subscription of hand-overs that belong to no job: each event once, for whoever listens.
pub const BROADCAST: &str = "~events";

/// All subscriptions of one configuration, in the order of the file.
#[derive(Debug, Default)]
pub struct SubscriptionSet {
    all: Vec<Arc<Subscription>>,
    broadcast: bool,
}

impl SubscriptionSet {
    pub fn new(all: Vec<Subscription>) -> Self {
        Self { all: all.into_iter().map(Arc::new).collect(), broadcast: false }
    }

    /// The same, with each event handed on to listeners as well that no job waits for.
    #[must_use]
    pub fn with_broadcast(self, broadcast: bool) -> Self {
        Self { broadcast, ..self }
    }

    /// Whether each event gets a hand-over of [`BROADCAST`].
    pub fn broadcasts(&self) -> bool {
        self.broadcast
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Subscription>> {
        self.all.iter()
    }

    /// The subscription called `name`.
    pub fn find(&self, name: &str) -> Option<&Arc<Subscription>> {
        self.all.iter().find(|subscription| subscription.name == name)
    }

    /// Those whose filter takes the event.
    pub fn matching<'a>(&'a self, facts: &'a EventFacts<'a>) -> impl Iterator<Item = &'a Arc<Subscription>> {
        self.all.iter().filter(move |subscription| subscription.filter.takes(facts))
    }
}
