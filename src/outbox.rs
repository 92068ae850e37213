//! Empties the outbox into the broker, and takes back what no queue took. The relay reads rows, the publisher sends them
//! and waits for their confirms, the consumers of `unrouted` and `dead` bring home what went astray.

mod consume;
mod dead;
mod held;
mod lanes;
mod message;
mod publisher;
mod relay;
mod shards;
mod unrouted;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use held::{Held, HeldConfig};
pub use message::{MessageConfig, TokenOf, VERSION};
pub use publisher::PublisherConfig;
pub use relay::Relay;

use crate::amqp::Broker;
use crate::clock::Clock;
use crate::model::subscription::SubscriptionSet;
use crate::store::{Archive, Jobs, Outbox};

/// How the relay works.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// This relay's name, not shared with any other that is alive.
    pub name: String,
    /// For how long shards and the announcement are taken. Default 5 s.
    pub lease: Duration,
    /// How often both are renewed. Default 1.5 s.
    pub renew_every: Duration,
    /// Wait between two looks at the table while they find something. Default 25 ms.
    pub look_busy: Duration,
    /// Wait between two looks that find nothing. Default 250 ms.
    pub look_idle: Duration,
    /// Rows in one batch. Default 256.
    pub batch_rows_max: usize,
    /// Bytes of bodies in one batch (the first row may be larger). Default 4 MiB.
    pub batch_bytes_max: usize,
    /// Batches handed to the publisher and not yet back. Default 2.
    pub batches_in_flight: usize,
    /// How long a confirmed row may wait for others before it is deleted. Default 50 ms.
    pub delete_within: Duration,
    /// Confirmed rows that may wait for a store that is away before publishing pauses. Default 4,096.
    pub undeleted_max: usize,
    /// How often a subscription in trouble lets one row out. Default 30 s.
    pub probe_every: Duration,
    /// How long a confirm must stay unanswered by the `unrouted` queue to count as routed. Default 1 s.
    pub quiet: Duration,
    /// How long a job may wait for a queue before it goes to review as `unroutable`. Default 1 h.
    pub unroutable_after: Duration,
    /// How often jobs in review as `unroutable` are looked at. Default 30 s.
    pub rearm_every: Duration,
    /// How often depth and age are read for the gauges. Default 5 s.
    pub status_every: Duration,
    pub publisher: PublisherConfig,
}

impl RelayConfig {
    /// The defaults under `name`.
    pub fn new(name: String) -> Self {
        Self {
            name,
            lease: Duration::from_secs(5),
            renew_every: Duration::from_millis(1500),
            look_busy: Duration::from_millis(25),
            look_idle: Duration::from_millis(250),
            batch_rows_max: 256,
            batch_bytes_max: 4 * 1024 * 1024,
            batches_in_flight: 2,
            delete_within: Duration::from_millis(50),
            undeleted_max: 4096,
            probe_every: Duration::from_secs(30),
            quiet: Duration::from_secs(1),
            unroutable_after: Duration::from_secs(3600),
            rearm_every: Duration::from_secs(30),
            status_every: Duration::from_secs(5),
            publisher: PublisherConfig::default(),
        }
    }
}

/// What the relay and its consumers work on.
#[derive(Clone)]
pub struct Parts {
    pub outbox: Arc<dyn Outbox>,
    pub jobs: Arc<dyn Jobs>,
    pub archive: Arc<dyn Archive>,
    pub subscriptions: Arc<SubscriptionSet>,
    pub clock: Arc<dyn Clock>,
    /// Shared with the store's writers of this process, as their `FreshRows`.
    pub held: Arc<Held>,
}

/// Two ways to stop. Soft: what is in flight is finished and the shards are given back. Hard: at once, after the store
/// call that is under way; rows stay and are published again.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    pub soft: CancellationToken,
    pub hard: CancellationToken,
}

/// Runs the relay and both consumers until they are stopped. Keep the broker's connections until this has returned.
/// Run it on a task that is never aborted: store calls must not be dropped half way. It also returns when one of the parts
/// ended by itself, the publisher's task too: whoever runs the stage has to see to it that this is noticed.
pub async fn run(config: RelayConfig, message: MessageConfig, parts: Parts, broker: Arc<Broker>, stop: Stop) {
    let relay = Relay::new(config.clone(), message, parts.clone(), &broker);
    run_around(relay, &config, parts, &broker, &stop).await;
}

async fn run_around(relay: Relay, config: &RelayConfig, parts: Parts, broker: &Broker, stop: &Stop) {
    let stage = Stop { soft: stop.soft.child_token(), hard: stop.hard.child_token() };
    let told = relay.unrouted();
    let unrouted = unrouted::run(config, parts.clone(), broker, told, stage.clone());
    let dead = dead::run(config, parts, broker, stage.clone());
    tokio::join!(
        // Boxed: its future is the large one.
        takes_along(Box::pin(relay.run(stage.clone())), &stage),
        takes_along(unrouted, &stage),
        takes_along(dead, &stage)
    );
}

/// None of the parts is of use without the others: the first that ends asks the rest to finish.
async fn takes_along(part: impl Future<Output = ()>, stage: &Stop) {
    part.await;
    stage.soft.cancel();
}
