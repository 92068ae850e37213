//! The whole relay stage, started and stopped by a test.

use std::sync::Arc;
use std::time::Duration;

use makbuz::amqp::{AmqpConfig, Broker, BrokerState, LOG_FILTER, Roles};
use makbuz::clock::SystemClock;
use makbuz::model::filter::Filter;
use makbuz::model::job::JobKey;
use makbuz::model::retry::RetryPolicy;
use makbuz::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use makbuz::outbox::{self, Held, HeldConfig, MessageConfig, Parts, RelayConfig, Stop};
use makbuz::store::{Archive, Jobs, Outbox};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use crate::support::rabbit::Rabbit;

pub const LIMIT: Duration = Duration::from_secs(30);
pub const QUIET: Duration = Duration::from_millis(500);

/// A running relay with its broker connections.
pub struct Stage {
    pub broker: Arc<Broker>,
    pub held: Arc<Held>,
    pub stop: Stop,
    relay: JoinHandle<()>,
    connections: JoinHandle<()>,
    connections_stop: CancellationToken,
}

/// Times short enough for a test.
pub fn quick(name: &str) -> RelayConfig {
    let mut config = RelayConfig::new(name.to_owned());
    config.probe_every = Duration::from_millis(300);
    config.quiet = Duration::from_millis(100);
    config.rearm_every = Duration::from_millis(200);
    config.look_idle = Duration::from_millis(50);
    config
}

pub fn subscription(name: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        filter: Filter::default(),
        target: Target::Amqp,
        retry: RetryPolicy {
            waits: vec![Duration::from_secs(5); 6],
            jitter_min: 0.0,
            jitter_max: 0.0,
            jitter_both: false,
            total_max: Duration::from_secs(3600),
            retry_after_max: Duration::from_secs(3600),
        },
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

pub fn two() -> Vec<Subscription> {
    vec![subscription("billing"), subscription("mail")]
}

impl Stage {
    pub fn start(rabbit: &Rabbit, store: &Arc<Memory>, config: RelayConfig) -> Self {
        Self::start_with(rabbit.config(), store, config, two())
    }

    pub fn start_with(amqp: AmqpConfig, store: &Arc<Memory>, config: RelayConfig, known: Vec<Subscription>) -> Self {
        Self::start_on(amqp, store, config, Arc::new(SubscriptionSet::new(known)))
    }

    /// On any store that has the relay's parts.
    pub fn start_on<S>(amqp: AmqpConfig, store: &Arc<S>, config: RelayConfig, known: Arc<SubscriptionSet>) -> Self
    where
        S: Outbox + Jobs + Archive,
    {
        log();
        let message = MessageConfig {
            names: amqp.names(),
            inline_max: amqp.inline_max,
            public_url: "https://hooks.example.com".to_owned(),
            token: Arc::new(|key: &JobKey, attempt| format!("{}|{}|{attempt}", key.receipt, key.subscription)),
        };
        let names = known.iter().map(|known| known.name.clone()).collect();
        let broker = Broker::new(amqp, names, Roles::PublishAndConsume, Arc::new(|| 0.5));
        let connections_stop = CancellationToken::new();
        let connections = tokio::spawn(Arc::clone(&broker).run(connections_stop.clone()));
        let held = Arc::new(Held::new(HeldConfig::default()));
        let parts = Parts {
            outbox: Arc::clone(store) as _,
            jobs: Arc::clone(store) as _,
            archive: Arc::clone(store) as _,
            subscriptions: known,
            clock: Arc::new(SystemClock),
            held: Arc::clone(&held),
        };
        let stop = Stop::default();
        let relay = tokio::spawn(outbox::run(config, message, parts, Arc::clone(&broker), stop.clone()));
        Self { broker, held, stop, relay, connections, connections_stop }
    }

    /// Waits until the broker's state is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&BrokerState) -> bool) {
        let mut state = self.broker.state();
        let reached = tokio::time::timeout(LIMIT, state.wait_for(|state| wanted(state))).await;
        assert!(reached.is_ok(), "not reached: {what}; the state is {:?}", self.broker.state().borrow());
    }

    pub async fn connected(&self) {
        self.until("connected", BrokerState::takes_publishes).await;
    }

    /// Ends softly: what is in flight is finished.
    pub async fn end(self) {
        self.stop.soft.cancel();
        tokio::time::timeout(LIMIT, self.relay).await.expect("the relay ends").expect("it did not panic");
        self.connections_stop.cancel();
        self.connections.await.expect("the connections end");
    }

    /// Ends at once.
    pub async fn end_hard(self) {
        self.stop.hard.cancel();
        tokio::time::timeout(LIMIT, self.relay).await.expect("the relay ends").expect("it did not panic");
        self.connections_stop.cancel();
        self.connections.await.expect("the connections end");
    }

    /// Dies: nothing is finished and nothing given back.
    pub fn die(self) {
        self.relay.abort();
        self.connections.abort();
    }
}

/// The program's own log, shown with a test that fails.
fn log() {
    let filter = tracing_subscriber::EnvFilter::new(format!("info,{LOG_FILTER}"));
    drop(tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init());
}

/// Looks again and again until it is so.
pub async fn eventually(what: &str, so: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < until, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Stage {
    /// Stays just long enough to make the topology.
    pub async fn end_when_connected(self) {
        self.connected().await;
        self.end().await;
    }
}
