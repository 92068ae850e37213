use secrecy::SecretString;
use tokio::time::timeout;

use super::*;
use crate::amqp::{AmqpConfig, Roles};
use crate::clock::MockClock;
use crate::model::subscription::SubscriptionSet;
use crate::outbox::{Held, HeldConfig, run_around};
use crate::random::SeededRandom;
use crate::store::Store;
use crate::store::sqlite::{SqliteConfig, SqliteStore};

/// Longer than any test may wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The stage's parts over a store of its own, and a broker that nobody connects to.
async fn parts(folder: &std::path::Path) -> (Parts, Arc<Broker>) {
    let clock = Arc::new(MockClock::at(0));
    let config = SqliteConfig::at(folder.join("makbuz.db"));
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(config, clock.clone(), Arc::new(SeededRandom::new(1))).await.unwrap());
    let broker = AmqpConfig::new(SecretString::from("amqp://nowhere.invalid"));
    let parts = Parts {
        outbox: store.clone(),
        jobs: store.clone(),
        archive: store,
        subscriptions: Arc::new(SubscriptionSet::default()),
        clock,
        held: Arc::new(Held::new(HeldConfig::default())),
    };
    (parts, Broker::new(broker, Vec::new(), Roles::PublishAndConsume, Arc::new(|| 0.0)))
}

#[tokio::test]
async fn the_stage_ends_when_its_publisher_has_died_with_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let (parts, broker) = parts(folder.path()).await;
    let message = MessageConfig {
        names: broker.config().names(),
        inline_max: 1024,
        public_url: String::new(),
        token: Arc::new(|_, _| String::new()),
    };
    let config = RelayConfig::new("relay".to_owned());
    let mut relay = Relay::new(config.clone(), message, parts.clone(), &broker);
    let (batches, taken) = mpsc::channel(1);
    let (finished, done) = mpsc::channel(1);
    relay.publisher = PublisherHandle { batches, done };
    relay.in_flight = 1;
    // As a panic leaves it.
    let dies = async move { drop((taken, finished)) };
    let stop = Stop::default();
    let ran = timeout(PATIENCE, async { tokio::join!(run_around(relay, &config, parts, &broker, &stop), dies) });
    ran.await.expect("nobody asked for a stop, and still it ends: the process learns of it");
    assert!(!stop.soft.is_cancelled() && !stop.hard.is_cancelled());
}
