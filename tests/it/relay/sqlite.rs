//! The relay on the embedded store: rows come by memory and by the table, and what goes astray comes home.

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
use makbuz::store::sqlite::{SqliteConfig, SqliteStore};
use makbuz::store::{Intake, NewDelivery, NewEvent, Outbox, Upkeep};

use super::stage::{LIMIT, QUIET, Stage, quick, two};
use crate::support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receipt_reaches_both_queues_with_its_bytes_though_one_was_unbound() {
    let dir = tempfile::tempdir().expect("a folder");
    let random = Arc::new(SystemRandom::new());
    let config = SqliteConfig::at(dir.path().join("makbuz.db"));
    let store = SqliteStore::open(config, Arc::new(SystemClock), random.clone()).await.expect("the store opens");
    let store = Arc::new(store);
    let mut known = two();
    known[1].completes_on = CompletesOn::Confirm;
    let known = Arc::new(SubscriptionSet::new(known));
    store.sync_subscriptions(Arc::clone(&known)).await.expect("known");
    let rabbit = Rabbit::new().await;
    let stage = Stage::start_on(rabbit.config(), &store, quick("a"), Arc::clone(&known));
    store.attach(stage.held.clone());
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("mail"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "mail".into(), FieldTable::default());
    unbound.await.expect("unbound");

    let mut sent = HashMap::new();
    for n in 0..200 {
        let body = format!("{{\"n\":{n}, \"bytes\": \"é\"}}\r\n");
        let heard = store.submit(delivery(&body, &random, &known)).expect("there is room");
        let verdict = heard.await.expect("answered").expect("committed");
        sent.insert(verdict.events[0].receipt_id.to_string(), body);
    }
    let mut billing = rabbit.consume(&rabbit.names().queue("billing")).await;
    let mut came = HashMap::new();
    while came.len() < sent.len() {
        let message = billing.next(LIMIT).await;
        let id = message.properties.message_id().as_ref().expect("an id").to_string();
        came.insert(id, String::from_utf8(message.data).expect("as it was"));
    }
    assert_eq!(came, sent);
    billing.quiet(QUIET).await;
    assert!(billing.taken.values().all(|times| *times == 1), "once each");

    let (queue_name, exchange) = (queue.as_str().into(), exchange.as_str().into());
    let bound =
        channel.queue_bind(queue_name, exchange, "mail".into(), QueueBindOptions::default(), FieldTable::default());
    bound.await.expect("bound");
    let mut mail = rabbit.consume(&queue).await;
    let mut came = HashMap::new();
    while came.len() < sent.len() {
        let message = mail.next(LIMIT).await;
        let id = message.properties.message_id().as_ref().expect("an id").to_string();
        came.insert(id, String::from_utf8(message.data).expect("as it was"));
    }
    assert_eq!(came, sent);
    let until = tokio::time::Instant::now() + LIMIT;
    while store.outbox_status().await.expect("a status").depth > 0 {
        assert!(tokio::time::Instant::now() < until, "the outbox does not get empty");
        tokio::time::sleep(QUIET / 10).await;
    }
    stage.end().await;
    store.close().await;
}

fn delivery(body: &str, random: &SystemRandom, known: &Arc<SubscriptionSet>) -> NewDelivery {
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
        every_delivery: false,
        origin: Origin::Delivery,
        events: vec![event],
        subscriptions: Arc::clone(known),
    }
}
