//! Deliveries and stores for these tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use makbuz::clock::{Clock, SystemClock};
use makbuz::model::filter::Filter;
use makbuz::model::id::{PayloadId, ReceiptId};
use makbuz::model::receipt::{Coverage, Mode, Origin, VerifiedBy};
use makbuz::model::retry::RetryPolicy;
use makbuz::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use makbuz::random::{Random, SystemRandom};
use makbuz::store::postgres::{PostgresConfig, PostgresStore};
use makbuz::store::{DeliveryVerdict, Intake, NewDelivery, NewEvent, StoreError};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// Longer than any wait in these tests should take.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub type Answer = oneshot::Receiver<Result<DeliveryVerdict, StoreError>>;

/// A store that is open.
pub async fn store(config: PostgresConfig) -> Arc<PostgresStore> {
    let store = PostgresStore::open(config, Arc::new(SystemRandom::new()));
    until_ready(&store).await;
    store
}

/// Waits until intake is open.
pub async fn until_ready(store: &PostgresStore) {
    until("the store is ready", async || store.ready().await.is_ok()).await;
}

/// Waits for something that happens outside of this process' reach.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(Instant::now().duration_since(started) < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The answer to a delivery.
pub async fn answer(answer: Result<Answer, StoreError>) -> Result<DeliveryVerdict, StoreError> {
    timeout(PATIENCE, answer?).await.expect("an answer in time").expect("an answer")
}

/// A delivery of one event to one subscription of each kind.
pub fn delivery(event_id: &str) -> NewDelivery {
    delivery_at(event_id, SystemClock.now())
}

/// The same, its ids made at `now`.
pub fn delivery_at(event_id: &str, now: i64) -> NewDelivery {
    let random = SystemRandom::new();
    let mut digest = [0; 32];
    random.fill(&mut digest);
    NewDelivery {
        source: "shop".into(),
        provider: "acme".into(),
        received_at: now,
        payload_id: PayloadId::new(now, &random),
        body: Bytes::from(format!("{{\"id\":\"{event_id}\"}}")),
        headers: vec![("content-type".to_owned(), Bytes::from_static(b"application/json"))],
        dropped_headers: vec!["cookie".to_owned()],
        content_type: "application/json".to_owned(),
        url: "/in/shop".to_owned(),
        peer: "192.0.2.7".to_owned(),
        retry_headers: Vec::new(),
        verified_by: VerifiedBy {
            mechanism: "hmac-sha256".to_owned(),
            secret: "a".to_owned(),
            signed_at: Some(now),
            coverage: Coverage::Body,
        },
        signed_sha256: digest,
        replay_guard: false,
        guard_sources: Arc::new(["shop".into()]),
        every_delivery: false,
        origin: Origin::Delivery,
        events: vec![event(event_id, now, &random)],
        subscriptions: subscriptions(),
    }
}

fn event(event_id: &str, now: i64, random: &dyn Random) -> NewEvent {
    NewEvent {
        receipt_id: ReceiptId::new(now, random),
        account: "acct".to_owned(),
        event_id: event_id.to_owned(),
        provider_ref: event_id.to_owned(),
        mode: Mode::Live,
        event_type: "order.paid".to_owned(),
        occurred_at: Some(now),
        resource_key: None,
        resource_version: None,
        pointer: None,
        part: None,
        item_sha256: [7; 32],
        flags: Vec::new(),
        hold: None,
        proof: None,
    }
}

/// `ledger` over the broker, `stock` by claim.
pub fn subscriptions() -> Arc<SubscriptionSet> {
    Arc::new(SubscriptionSet::new(vec![subscription("ledger", Target::Amqp), subscription("stock", Target::Pull)]))
}

fn subscription(name: &str, target: Target) -> Subscription {
    Subscription {
        name: name.to_owned(),
        filter: Filter::default(),
        target,
        retry: RetryPolicy {
            waits: vec![Duration::from_secs(5)],
            jitter_min: 0.0,
            jitter_max: 0.0,
            jitter_both: false,
            total_max: Duration::from_secs(86_400),
            retry_after_max: Duration::from_secs(3600),
        },
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}
