//! What a backend gives the suite, and short ways to say a delivery.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use makbuz::clock::{Clock, SystemClock};
use makbuz::model::filter::Filter;
use makbuz::model::id::{PayloadId, ReceiptId};
use makbuz::model::receipt::{Coverage, Mode, Origin, VerifiedBy};
use makbuz::model::retry::RetryPolicy;
use makbuz::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use makbuz::random::{Random, SeededRandom};
use makbuz::store::{DeliveryVerdict, EventVerdict, NewDelivery, NewEvent, Store, StoreError};
use sha2::{Digest, Sha256};

/// How the suite reaches a backend beside the store's own doors.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The store's clock.
    fn now(&self) -> i64;
    /// Lets time pass for the store.
    async fn pass(&self, span: Duration);
    /// The one number that a query gives.
    async fn number(&self, sql: &'static str) -> i64;
    /// How many bodies are stored, wherever.
    async fn bodies(&self) -> i64 {
        self.number("SELECT count(*) FROM payloads").await
    }
    /// Runs a statement behind the store's back.
    async fn execute(&self, sql: &'static str) -> Result<(), String>;
    /// Closes the store and opens it again on the same data.
    async fn restart(&self) -> Arc<dyn Store>;
    /// Removes what the test left behind, where it is not a folder of its own.
    async fn finish(&self) {}
}

/// A backend with ids for the test.
pub struct Harness {
    pub backend: Box<dyn Backend>,
    pub random: Arc<SeededRandom>,
}

/// The test run's seed; printed, so that a failure can be run again.
pub fn seed() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "tests have no config")]
    let given = std::env::var("MAKBUZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| SystemClock.now().unsigned_abs());
    #[expect(clippy::print_stderr, reason = "shown by the runner on failure")]
    {
        eprintln!("MAKBUZ_SEED={seed}");
    }
    seed
}

impl Harness {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self { backend, random: Arc::new(SeededRandom::new(seed() ^ 0x5eed)) }
    }

    pub fn now(&self) -> i64 {
        self.backend.now()
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        self.backend.number(sql).await
    }

    pub async fn finish(&self) {
        self.backend.finish().await;
    }

    /// An event with this id, whose content is `body`.
    pub fn event(&self, id: &str, body: &str) -> NewEvent {
        NewEvent {
            receipt_id: ReceiptId::new(self.now(), &*self.random),
            account: "acct_1".to_owned(),
            event_id: id.to_owned(),
            provider_ref: id.to_owned(),
            mode: Mode::Live,
            event_type: "invoice.paid".to_owned(),
            occurred_at: Some(self.now() - 1_000_000),
            resource_key: Some("in_1".to_owned()),
            resource_version: None,
            pointer: None,
            part: None,
            item_sha256: Sha256::digest(body.as_bytes()).into(),
            flags: Vec::new(),
            hold: None,
            proof: None,
        }
    }

    /// A delivery of one event through source `web`, to all of `subscriptions`.
    pub fn delivery(&self, id: &str, body: &str, subscriptions: &Arc<SubscriptionSet>) -> NewDelivery {
        self.batch(vec![self.event(id, body)], body.as_bytes(), subscriptions)
    }

    /// A delivery of several events.
    pub fn batch(&self, events: Vec<NewEvent>, body: &[u8], subscriptions: &Arc<SubscriptionSet>) -> NewDelivery {
        let mut signed = [0; 32];
        self.random.fill(&mut signed);
        NewDelivery {
            source: "web".into(),
            provider: "acme".into(),
            received_at: self.now(),
            payload_id: PayloadId::new(self.now(), &*self.random),
            body: Bytes::copy_from_slice(body),
            headers: vec![("content-type".to_owned(), Bytes::from_static(b"application/json"))],
            dropped_headers: vec!["cookie".to_owned()],
            content_type: "application/json".to_owned(),
            url: "/in/web?a=1".to_owned(),
            peer: "192.0.2.7".to_owned(),
            retry_headers: vec![("x-retry".to_owned(), "2".to_owned())],
            verified_by: VerifiedBy {
                mechanism: "hmac-sha256".to_owned(),
                secret: "s1".to_owned(),
                signed_at: Some(self.now()),
                coverage: Coverage::Body,
            },
            signed_sha256: signed,
            replay_guard: false,
            guard_sources: Arc::new(["web".into()]),
            every_delivery: false,
            origin: Origin::Delivery,
            events,
            subscriptions: subscriptions.clone(),
        }
    }
}

/// Submits and waits for the commit.
pub async fn deliver(store: &Arc<dyn Store>, delivery: NewDelivery) -> Result<DeliveryVerdict, StoreError> {
    store.submit(delivery)?.await.expect("the writer answers")
}

/// The verdict on a delivery of one event.
pub async fn deliver_one(store: &Arc<dyn Store>, delivery: NewDelivery) -> EventVerdict {
    let mut verdict = deliver(store, delivery).await.expect("it is committed");
    assert_eq!(verdict.events.len(), 1);
    verdict.events.remove(0)
}

/// Submits all at once, in this order, and waits for all.
pub async fn deliver_all(
    store: &Arc<dyn Store>,
    deliveries: Vec<NewDelivery>,
) -> Vec<Result<DeliveryVerdict, StoreError>> {
    let waiting: Vec<_> =
        deliveries.into_iter().map(|delivery| store.submit(delivery).expect("there is room")).collect();
    let mut verdicts = Vec::new();
    for heard in waiting {
        verdicts.push(heard.await.expect("the writer answers"));
    }
    verdicts
}

pub fn subscription(name: &str, target: Target) -> Subscription {
    Subscription {
        name: name.to_owned(),
        filter: Filter::default(),
        target,
        retry: RetryPolicy::preset("standard").expect("a preset"),
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

/// A subscription that takes events only through these sources.
pub fn from_sources(name: &str, target: Target, sources: &[&str]) -> Subscription {
    let mut subscription = subscription(name, target);
    subscription.filter.sources = sources.iter().map(|source| (*source).to_owned()).collect();
    subscription
}

pub fn set(all: Vec<Subscription>) -> Arc<SubscriptionSet> {
    Arc::new(SubscriptionSet::new(all))
}

/// `billing` by the broker and `audit` by claim; both take everything.
pub fn both() -> Arc<SubscriptionSet> {
    set(vec![subscription("billing", Target::Amqp), subscription("audit", Target::Pull)])
}

/// `billing` by the broker alone.
pub fn billing() -> Arc<SubscriptionSet> {
    set(vec![subscription("billing", Target::Amqp)])
}
