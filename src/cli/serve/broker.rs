//! The broker and the relay, where `[amqp]` is configured.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Parts, Role};
use crate::admin::{BrokerHealth, BrokerLook};
use crate::amqp::{AmqpConfig, Broker, Link, Roles, TopologyMode, ready_count};
use crate::config::{AmqpSection, Config};
use crate::model::job::JobKey;
use crate::model::subscription::Target;
use crate::outbox::{self, Held, HeldConfig, MessageConfig, PublisherConfig, RelayConfig};
use crate::process::{Feed, FeedConfig, Feeds, QueueLook, open_feed};

/// The broker of this process. It is dropped once every stage has been started.
pub(super) struct Started {
    broker: Arc<Broker>,
    hold: Hold,
}

/// Keeps the connections open after the soft stop, as long as it is not dropped.
pub(super) type Hold = mpsc::Sender<Infallible>;

/// Connects in the background, and starts the relay if this process has that role.
pub(super) fn start(parts: &Parts) -> Option<Started> {
    let section = parts.config.amqp.as_ref()?;
    let relays = parts.has(Role::Relay);
    if !relays && !parts.has(Role::Process) {
        return None;
    }
    let roles = if relays { Roles::PublishAndConsume } else { Roles::Consume };
    let random = Arc::clone(&parts.random);
    let jitter = Arc::new(move || random.next_fraction());
    let broker = Broker::new(config(section), queues(&parts.config), roles, jitter);
    let (hold, in_use) = mpsc::channel(1);
    parts.lifecycle.spawn("broker", broker_keeper(Arc::clone(&broker), in_use, parts.lifecycle.stop()));
    let started = Started { broker, hold };
    if relays {
        start_relay(parts, section, &started);
    }
    Some(started)
}

/// After the soft stop the connections stay until the last stage that uses them has ended: the relay hears its confirms,
/// and reports are acked.
async fn broker_keeper(broker: Arc<Broker>, mut in_use: mpsc::Receiver<Infallible>, stop: crate::lifecycle::Stop) {
    let closing = CancellationToken::new();
    let lingering = async {
        stop.soft.cancelled().await;
        tokio::select! {
            // Nothing is ever sent: it ends when the last sender is dropped.
            _ = in_use.recv() => {}
            () = stop.hard.cancelled() => {}
        }
        closing.cancel();
    };
    tokio::join!(broker.run(closing.clone()), lingering);
}

fn start_relay(parts: &Parts, section: &AmqpSection, started: &Started) {
    let held = Arc::new(Held::new(HeldConfig::default()));
    parts.store.attach(held.clone());
    let mut relay = RelayConfig::new(format!("{}-{:016x}", std::process::id(), parts.random.next_u64()));
    relay.batch_rows_max = section.batch as usize;
    relay.unroutable_after = section.unroutable_after;
    relay.publisher = PublisherConfig { confirm_timeout: section.confirm_max, ..PublisherConfig::default() };
    let work = outbox::Parts {
        outbox: parts.store.clone(),
        jobs: parts.store.clone(),
        archive: parts.store.clone(),
        subscriptions: Arc::clone(&parts.subscriptions),
        clock: Arc::clone(&parts.clock),
        held,
    };
    let (names, inline_max, public_url) =
        (started.broker.config().names(), section.inline_max, bodies_url(&parts.config));
    let (broker, hold) = (Arc::clone(&started.broker), started.hold());
    let (key, stop) = (parts.key.clone(), parts.lifecycle.stop());
    parts.lifecycle.spawn("relay", async move {
        let _hold = hold;
        let Some(key) = key.wait(&stop.soft).await else { return };
        let token = Arc::new(move |job: &JobKey, attempt: i32| key.token(job, attempt));
        let message = MessageConfig { names, inline_max, public_url, token };
        let stop = outbox::Stop { soft: stop.soft, hard: stop.hard };
        outbox::run(relay, message, work, broker, stop).await;
    });
}

/// What `[amqp]` says, in the broker's own terms.
pub(crate) fn config(section: &AmqpSection) -> AmqpConfig {
    // Unwrap safety: the configuration begins with amqp:// and came as text; bytes that are no UTF-8 make no address.
    let url = String::from_utf8_lossy(section.url.expose()).into_owned();
    AmqpConfig {
        prefix: section.prefix.clone(),
        topology: if section.declare { TopologyMode::Declare } else { TopologyMode::Check },
        broadcast: section.broadcast,
        inline_max: section.inline_max,
        ..AmqpConfig::new(SecretString::from(url))
    }
}

/// The subscriptions that have queues.
pub(crate) fn queues(config: &Config) -> Vec<String> {
    let all = config.subscriptions.iter().map(|entry| &entry.subscription);
    all.filter(|subscription| subscription.target == Target::Amqp)
        .map(|subscription| subscription.name.clone())
        .collect()
}

/// Where consumers find bodies that are too large for a message.
fn bodies_url(config: &Config) -> String {
    config
        .consume
        .public_url
        .clone()
        .unwrap_or_else(|| format!("http://{}", config.consume.listen.unwrap_or(config.admin.listen)))
}

impl Started {
    /// For a stage that uses the connections.
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// For `/readyz`.
    pub fn look(&self) -> BrokerLook {
        let state = self.broker.state();
        Arc::new(move || match state.borrow().code() {
            "ok" => BrokerHealth::Up,
            "blocked" => BrokerHealth::Blocked,
            "degraded" => BrokerHealth::Topology,
            _ => BrokerHealth::Away,
        })
    }

    /// The queue of outcomes, on whichever connection there is.
    pub fn feeds(&self) -> Box<dyn Feeds> {
        Box::new(OutcomeFeeds {
            link: self.broker.consume_link(),
            config: FeedConfig::new(self.broker.config().names().outcomes()),
        })
    }

    /// Looks into the subscriptions' queues.
    pub fn queue_look(&self) -> Arc<dyn QueueLook> {
        Arc::new(Queues(Arc::clone(&self.broker)))
    }
}

struct OutcomeFeeds {
    link: watch::Receiver<Option<Arc<Link>>>,
    config: FeedConfig,
}

/// After a channel that could not be opened, a moment for the connection to be seen as lost.
const FEED_PAUSE: Duration = Duration::from_secs(1);

#[async_trait]
impl Feeds for OutcomeFeeds {
    async fn next(&mut self) -> Box<dyn Feed> {
        loop {
            // Cloned at once: what `wait_for` gives is a lock.
            let found = self.link.wait_for(Option::is_some).await.map(|found| found.clone()).ok();
            let Some(link) = found.flatten() else {
                // The broker's keeper has ended, and so does the process.
                return std::future::pending().await;
            };
            match link.channel().await {
                Ok(channel) => match open_feed(channel, &self.config).await {
                    Ok(feed) => return Box::new(feed),
                    Err(error) => tracing::warn!(%error, "the queue of outcomes cannot be consumed"),
                },
                Err(error) => tracing::warn!(error.code = error.code(), "no channel for outcomes"),
            }
            tokio::time::sleep(FEED_PAUSE).await;
        }
    }
}

struct Queues(Arc<Broker>);

#[async_trait]
impl QueueLook for Queues {
    async fn ready(&self, subscription: &str) -> Option<u64> {
        let link = self.0.consume_link().borrow().clone()?;
        let names = self.0.config().names();
        let fresh = ready_count(&link, &names.queue(subscription)).await.ok()?;
        let slow = ready_count(&link, &names.slow_queue(subscription)).await.ok()?;
        Some(u64::from(fresh) + u64::from(slow))
    }
}
