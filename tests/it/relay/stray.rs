//! Dead letters and what else comes back.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicNackOptions, BasicPublishOptions};
use lapin::types::FieldTable;
use makbuz::model::job::JobState;
use makbuz::model::outcome::OutcomeKind;
use std::sync::atomic::Ordering;

use super::memory::Memory;
use super::stage::{LIMIT, QUIET, Stage, eventually, quick};
use crate::support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_consumer_threw_away_is_a_failed_attempt() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let id = store.add("billing", b"{}");
    let (_connection, channel) = rabbit.channel().await;
    let queue = rabbit.names().queue("billing");
    let consumer =
        channel.basic_consume(queue.as_str().into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = consumer.await.expect("a consumer");
    // A store that is away for a moment loses no dead letter.
    let delivery = consumer.next().await.expect("a message").expect("a delivery");
    eventually("handed over", || store.depth() == 0).await;
    store.away.store(true, Ordering::SeqCst);
    delivery.nack(BasicNackOptions { requeue: false, multiple: false }).await.expect("nacked");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(store.reports().is_empty());
    store.away.store(false, Ordering::SeqCst);
    eventually("reported", || store.reports().len() == 1).await;
    let report = &store.reports()[0];
    assert_eq!((report.key.receipt, report.attempt, report.kind), (id, 1, OutcomeKind::Failed));
    assert_eq!(report.message.as_deref(), Some(format!("rejected from {queue}").as_str()));
    assert_eq!(store.job(id, "billing").0, JobState::Retrying);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_merely_expired_is_published_again_without_an_attempt() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = Memory::new();
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    rabbit
        .control("set_policy", &["short", "^makbuz\\.billing$", r#"{"message-ttl":200}"#, "--apply-to", "queues"])
        .await;
    let id = store.add("billing", b"{}");
    eventually("it expired and came home", || store.returned() > 0).await;
    rabbit.control("clear_policy", &["short"]).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(1, LIMIT, QUIET).await;
    assert_eq!(taker.taken.keys().collect::<Vec<_>>(), [&(id.to_string(), 1)], "the same attempt");
    assert!(store.reports().is_empty());
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_in_our_queues_are_taken_out_and_hold_up_nobody() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    for exchange in [rabbit.names().unrouted(), rabbit.names().dead()] {
        for properties in [BasicProperties::default(), BasicProperties::default().with_message_id("no id".into())] {
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish(exchange.as_str().into(), "x".into(), options, b"?", properties);
            sent.await.expect("sent").await.expect("taken");
        }
    }
    let id = store.add("billing", b"{}");
    let (queue, exchange) = (rabbit.names().queue("billing"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "billing".into(), FieldTable::default());
    unbound.await.expect("unbound");
    store.add("billing", b"{}");
    eventually("the one behind the strangers came home", || store.returned() > 0).await;
    assert_eq!(store.job(id, "billing").0, JobState::Queued);
    let names = rabbit.names();
    let link = makbuz::amqp::connect(&rabbit.config(), "test").await.expect("connected");
    for queue in [names.unrouted(), names.dead()] {
        let mut ready = 1;
        for _ in 0..50 {
            ready = makbuz::amqp::ready_count(&link, &queue).await.expect("a count");
            if ready == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(ready, 0, "{queue}");
    }
    link.close().await;
    stage.end().await;
}
