//! Events for whoever listens, beside the jobs: once each, on the real stores.

use std::collections::HashSet;
use std::sync::Arc;

use lapin::options::{QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use makbuz::amqp::AmqpConfig;
use makbuz::model::attempt::Trigger;
use makbuz::model::job::{INTAKE, JobKey};
use makbuz::model::receipt::HoldReason;
use makbuz::model::subscription::SubscriptionSet;
use makbuz::random::SystemRandom;
use makbuz::store::{NewDelivery, ReplayRequest, Store};

use super::stage::{LIMIT, QUIET, Stage, quick, two};
use super::stores::{delivery, postgres, sqlite, take};
use crate::support::eventually;
use crate::support::postgres::TestDatabase;
use crate::support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_hear_each_event_once_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    listeners_hear_each_event_once(sqlite(&folder).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_hear_each_event_once_on_postgres() {
    let database = TestDatabase::create().await;
    listeners_hear_each_event_once(postgres(&database).await).await;
}

async fn listeners_hear_each_event_once<S: Store>(store: Arc<S>) {
    let rabbit = Rabbit::new().await;
    let known = Arc::new(SubscriptionSet::new(two()).with_broadcast(true));
    store.sync_subscriptions(Arc::clone(&known)).await.expect("known");
    let config = AmqpConfig { broadcast: true, ..rabbit.config() };
    let stage = Stage::start_on(config, &store, quick("a"), Arc::clone(&known));
    store.attach(stage.held.clone());
    stage.connected().await;
    let queue = listener(&rabbit).await;
    let mut heard = rabbit.consume(&queue).await;

    let random = SystemRandom::new();
    let submit = async |delivery: NewDelivery| {
        let verdict = store.submit(delivery).expect("there is room").await.expect("answered").expect("committed");
        verdict.events[0].receipt_id
    };
    let mut sent = HashSet::new();
    for n in 0..20 {
        sent.insert(submit(delivery(&format!("{{\"n\":{n}}}"), &random, &known)).await.to_string());
    }
    let mut copy = delivery("{\"copy\":1}", &random, &known);
    copy.events[0].event_id = "evt_copied".into();
    let twice = |mut again: NewDelivery| {
        again.events[0].event_id = "evt_copied".into();
        again
    };
    sent.insert(submit(copy).await.to_string());
    submit(twice(delivery("{\"copy\":1}", &random, &known))).await;
    let mut held = delivery("{\"held\":1}", &random, &known);
    held.events[0].hold = Some(HoldReason::NoId);
    let held = submit(held).await;

    let came: HashSet<String> = take(&mut heard, sent.len()).await.into_keys().collect();
    assert_eq!(came, sent, "a duplicate is nothing new, and what is held is kept from listeners too");
    let key = JobKey { receipt: held, subscription: INTAKE.to_owned() };
    let request = ReplayRequest { trigger: Trigger::Release, actor: "ada".to_owned(), why: None };
    store.replay(&[key], request, Arc::clone(&known)).await.expect("released");
    assert!(take(&mut heard, 1).await.contains_key(&held.to_string()), "let go by a person");
    heard.quiet(QUIET).await;
    assert!(heard.taken.values().all(|times| *times == 1), "once each");
    eventually("the outbox is empty", LIMIT, async || {
        (store.outbox_status().await.expect("a status").depth == 0).then_some(())
    })
    .await;
    stage.end().await;
    store.close().await;
}

/// A queue of somebody's own, bound to all invoices of Stripe.
async fn listener(rabbit: &Rabbit) -> String {
    let queue = format!("{}.listener", rabbit.names().events());
    let (_connection, channel) = rabbit.channel().await;
    let declared = channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default());
    declared.await.expect("declared");
    let (exchange, options) = (rabbit.names().events(), QueueBindOptions::default());
    let key = "stripe.invoice.#".into();
    let bound =
        channel.queue_bind(queue.as_str().into(), exchange.as_str().into(), key, options, FieldTable::default());
    bound.await.expect("bound");
    queue
}
