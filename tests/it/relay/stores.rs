//! The relay on the real stores: rows come by memory and by the table, what goes astray comes home, and what a full queue
//! refuses waits.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lapin::options::QueueBindOptions;
use lapin::types::FieldTable;
use makbuz::clock::{Clock, SystemClock};
use makbuz::model::id::{PayloadId, ReceiptId};
use makbuz::model::receipt::{Coverage, Mode, Origin, VerifiedBy};
use makbuz::model::subscription::{CompletesOn, SubscriptionSet};
use makbuz::random::SystemRandom;
use makbuz::store::postgres::PostgresStore;
use makbuz::store::sqlite::{SqliteConfig, SqliteStore};
use makbuz::store::{Intake, NewDelivery, NewEvent, Store};

use super::stage::{LIMIT, QUIET, Stage, quick, two};
use crate::support::eventually;
use crate::support::postgres::TestDatabase;
use crate::support::rabbit::{Rabbit, Taker};

/// Events for each case.
const EVENTS: usize = 200;

pub async fn sqlite(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
    let config = SqliteConfig::at(folder.path().join("makbuz.db"));
    let opened = SqliteStore::open(config, Arc::new(SystemClock), Arc::new(SystemRandom::new())).await;
    Arc::new(opened.expect("the store opens"))
}

pub async fn postgres(database: &TestDatabase) -> Arc<PostgresStore> {
    let store = PostgresStore::open(database.config(), Arc::new(SystemRandom::new()));
    eventually("the store is ready", LIMIT, async || store.ready().await.ok()).await;
    store
}

// W-134
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receipt_reaches_both_queues_with_its_bytes_though_one_was_unbound_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    one_queue_is_unbound(sqlite(&folder).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receipt_reaches_both_queues_with_its_bytes_though_one_was_unbound_on_postgres() {
    let database = TestDatabase::create().await;
    one_queue_is_unbound(postgres(&database).await).await;
}

// The issue's other half: a nack leaves the row where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receipt_reaches_both_queues_with_its_bytes_though_one_was_full_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    one_queue_is_full(sqlite(&folder).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receipt_reaches_both_queues_with_its_bytes_though_one_was_full_on_postgres() {
    let database = TestDatabase::create().await;
    one_queue_is_full(postgres(&database).await).await;
}

async fn one_queue_is_unbound<S: Store>(store: Arc<S>) {
    let rabbit = Rabbit::new().await;
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("mail"), rabbit.names().jobs());
    let (queue_name, exchange_name) = (queue.as_str(), exchange.as_str());
    let unbind = async || {
        let unbound =
            channel.queue_unbind(queue_name.into(), exchange_name.into(), "mail".into(), FieldTable::default());
        unbound.await.expect("unbound");
    };
    let bind = async || {
        let options = QueueBindOptions::default();
        let bound =
            channel.queue_bind(queue_name.into(), exchange_name.into(), "mail".into(), options, FieldTable::default());
        bound.await.expect("bound");
    };
    healthy_goes_on_and_the_other_arrives(&rabbit, &store, unbind, bind).await;
    store.close().await;
}

async fn one_queue_is_full<S: Store>(store: Arc<S>) {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let fill = async || {
        let policy = ["full", "^makbuz\\.mail$", r#"{"max-length":3}"#, "--apply-to", "queues"];
        rabbit.control("set_policy", &policy).await;
    };
    let empty = async || {
        rabbit.control("clear_policy", &["full"]).await;
    };
    healthy_goes_on_and_the_other_arrives(&rabbit, &store, fill, empty).await;
    store.close().await;
}

/// `billing` is healthy and gets each job once; `mail` is broken, its jobs wait and all arrive after the repair.
async fn healthy_goes_on_and_the_other_arrives<S: Store>(
    rabbit: &Rabbit,
    store: &Arc<S>,
    breaks: impl AsyncFnOnce(),
    repair: impl AsyncFnOnce(),
) {
    let mut known = two();
    known[1].completes_on = CompletesOn::Confirm;
    let known = Arc::new(SubscriptionSet::new(known));
    store.sync_subscriptions(Arc::clone(&known)).await.expect("known");
    let stage = Stage::start_on(rabbit.config(), store, quick("a"), Arc::clone(&known));
    store.attach(stage.held.clone());
    stage.connected().await;
    breaks().await;

    let random = SystemRandom::new();
    let mut sent = HashMap::new();
    for n in 0..EVENTS {
        let body = format!("{{\"n\":{n}, \"bytes\": \"é\"}}\r\n");
        let heard = store.submit(delivery(&body, &random, &known)).expect("there is room");
        let verdict = heard.await.expect("answered").expect("committed");
        sent.insert(verdict.events[0].receipt_id.to_string(), body);
    }
    let mut billing = rabbit.consume(&rabbit.names().queue("billing")).await;
    assert_eq!(take(&mut billing, sent.len()).await, sent);
    billing.quiet(QUIET).await;
    assert!(billing.taken.values().all(|times| *times == 1), "once each");
    let waiting = store.outbox_status().await.expect("a status").depth;
    assert!(waiting > 0, "the others wait in the outbox");

    repair().await;
    let mut mail = rabbit.consume(&rabbit.names().queue("mail")).await;
    assert_eq!(take(&mut mail, sent.len()).await, sent);
    eventually("the outbox is empty", LIMIT, async || {
        (store.outbox_status().await.expect("a status").depth == 0).then_some(())
    })
    .await;
    billing.quiet(QUIET).await;
    assert!(billing.taken.values().all(|times| *times == 1), "the repair brings the healthy queue nothing twice");
    stage.end().await;
}

/// Takes until `distinct` messages have come: id → bytes.
pub async fn take(taker: &mut Taker, distinct: usize) -> HashMap<String, String> {
    let mut came = HashMap::new();
    while came.len() < distinct {
        let message = taker.next(LIMIT).await;
        let id = message.properties.message_id().as_ref().expect("an id").to_string();
        came.insert(id, String::from_utf8(message.data).expect("as it was"));
    }
    came
}

pub fn delivery(body: &str, random: &SystemRandom, known: &Arc<SubscriptionSet>) -> NewDelivery {
    let now = SystemClock.now();
    let receipt_id = ReceiptId::new(now, random);
    let event = NewEvent {
        receipt_id,
        account: "acct_1".to_owned(),
        event_id: receipt_id.to_string(),
        provider_ref: receipt_id.to_string(),
        mode: Mode::Live,
        event_type: "invoice.paid".to_owned(),
        occurred_at: None,
        resource_key: None,
        resource_version: None,
        pointer: None,
        part: None,
        item_sha256: [1; 32],
        flags: Vec::new(),
        hold: None,
        proof: None,
    };
    NewDelivery {
        source: "stripe-eu".into(),
        provider: "stripe".into(),
        received_at: now,
        payload_id: PayloadId::new(now, random),
        body: Bytes::copy_from_slice(body.as_bytes()),
        headers: Vec::new(),
        dropped_headers: Vec::new(),
        content_type: "application/json".to_owned(),
        url: "/in/stripe-eu".to_owned(),
        peer: "127.0.0.1".to_owned(),
        retry_headers: Vec::new(),
        verified_by: VerifiedBy {
            mechanism: "hmac-sha256".to_owned(),
            secret: "a".to_owned(),
            signed_at: None,
            coverage: Coverage::Body,
        },
        signed_sha256: [2; 32],
        replay_guard: false,
        guard_sources: Arc::new(["stripe-eu".into()]),
        every_delivery: false,
        origin: Origin::Delivery,
        events: vec![event],
        subscriptions: Arc::clone(known),
    }
}
