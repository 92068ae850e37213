//! The way in, whole, under a clock that the test moves: a signed request at a socket, through the edge and a shipped
//! definition, into a real store.
#![expect(clippy::unwrap_used, reason = "these functions are tests, though only macros call them so")]

mod window;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use makbuz::clock::{Clock, MICROS_PER_SECOND, MockClock};
use makbuz::edge::{Edge, EdgeConfig};
use makbuz::lifecycle::Stop;
use makbuz::model::id::ReceiptId;
use makbuz::model::subscription::SubscriptionSet;
use makbuz::random::SystemRandom;
use makbuz::store::{Intake, ReceiptView, Store, Verdict};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::edge::sources::{shipped, source};
use crate::store::harness::{Harness, both};
use crate::support::client::{self, Answer};
use crate::support::sign;

const SECRET: &str = "whsec_receive_0123456789";

on_every_backend! {
    the_same_event_one_second_apart_is_a_duplicate,
    the_same_happening_under_a_new_id_is_another_event,
}

/// An edge with one source of Stripe's, `/in/pay`.
struct Door {
    address: SocketAddr,
    clock: Arc<MockClock>,
    stop: Stop,
    task: JoinHandle<()>,
}

impl Door {
    /// Opens at `now` (UTC microseconds), or rather at its second: signed times are whole ones.
    async fn open(intake: Arc<dyn Intake>, now: i64, subscriptions: Arc<SubscriptionSet>) -> Self {
        let clock = Arc::new(MockClock::at(now - now % MICROS_PER_SECOND));
        let sources = vec![Arc::new(source("pay", shipped("stripe", SECRET.as_bytes())))];
        let random = Arc::new(SystemRandom::new());
        let edge = Edge::new(EdgeConfig::default(), sources, subscriptions, intake, clock.clone(), random);
        let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Stop::new());
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(Arc::new(edge).serve(listener, stop.clone()));
        Self { address, clock, stop, task }
    }

    fn seconds(&self) -> i64 {
        self.clock.now() / MICROS_PER_SECOND
    }

    /// Posts `body` as Stripe signs it at `at`, in seconds.
    async fn post(&self, body: &[u8], at: i64) -> Answer {
        let headers = sign::headers_at(SECRET, body, at);
        client::send(self.address, "POST", "/in/pay", &headers, body).await.expect("an answer")
    }

    /// The same, signed now; it must be accepted.
    async fn accepted(&self, body: &[u8]) -> ReceiptId {
        accepted(&self.post(body, self.seconds()).await)
    }

    async fn close(self) {
        self.stop.ask();
        self.task.await.expect("the edge ends without a panic");
    }
}

fn accepted(answer: &Answer) -> ReceiptId {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.receipt().expect("C1: a 200 names its receipt").parse().expect("an id")
}

/// Lets time pass for the edge and for the store.
async fn pass(door: &Door, h: &Harness, span: Duration) {
    door.clock.advance(span);
    h.backend.pass(span).await;
}

/// The body of an event that happened at `created`, in seconds.
fn event(id: &str, created: i64) -> Vec<u8> {
    let text = format!(
        r#"{{"id":"{id}","object":"event","type":"invoice.paid","created":{created},"livemode":true,"data":{{"object":{{"id":"in_1"}}}}}}"#
    );
    text.into_bytes()
}

async fn view(store: &Arc<dyn Store>, receipt: ReceiptId) -> ReceiptView {
    store.receipt(receipt).await.unwrap().expect("the receipt")
}

/// W-091: the key is made of what does not change, not of the arrival. Stripe signs each resend anew.
async fn the_same_event_one_second_apart_is_a_duplicate(store: Arc<dyn Store>, h: &Harness) {
    let door = Door::open(store.clone(), h.now(), both()).await;
    let body = event("evt_1", door.seconds());
    let first = door.accepted(&body).await;
    pass(&door, h, Duration::from_secs(1)).await;
    assert_eq!(door.accepted(&body).await, first);
    let seen = view(&store, first).await;
    assert_eq!((seen.receipt.duplicates, seen.receipt.last_delivered_at), (1, Some(door.clock.now())));
    let verdicts: Vec<_> = seen.deliveries.iter().map(|delivery| delivery.verdict.as_str()).collect();
    assert_eq!(verdicts, [Verdict::Duplicate.as_str()]);
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 1);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
    door.close().await;
}

/// W-094: what the provider calls two events is two events; what they are about is the consumer's to see.
async fn the_same_happening_under_a_new_id_is_another_event(store: Arc<dyn Store>, h: &Harness) {
    let door = Door::open(store.clone(), h.now(), both()).await;
    let first = door.accepted(&event("evt_1", door.seconds())).await;
    pass(&door, h, Duration::from_secs(2)).await;
    let second = door.accepted(&event("evt_2", door.seconds())).await;
    assert_ne!(first, second);
    for receipt in [first, second] {
        let seen = view(&store, receipt).await;
        assert_eq!((seen.receipt.duplicates, seen.receipt.hold_reason, seen.jobs.len()), (0, None, 2));
    }
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 2, "a message each");
    door.close().await;
}
