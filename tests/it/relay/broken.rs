//! One queue is gone, full or refused, while another's is fine.

use std::collections::HashSet;
use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use makbuz::amqp::TopologyMode;
use makbuz::model::job::{JobReason, JobState};
use makbuz::model::subscription::CompletesOn;

use super::memory::Memory;
use super::stage::{LIMIT, QUIET, Stage, eventually, quick, two};
use crate::support::rabbit::{Rabbit, control_node};

/// What the issue asks of all three faults: the healthy queue gets each job once, the other's wait and arrive after
/// repair, and none is lost.
async fn healthy_goes_on_and_the_other_arrives(
    rabbit: &Rabbit,
    store: &std::sync::Arc<Memory>,
    repair: impl AsyncFnOnce(),
) {
    let mail = store.add_many("mail", 300);
    let billing: HashSet<_> = store.add_many("billing", 300).into_iter().collect();
    let mut taker = rabbit.consume(&rabbit.names().queue("mail")).await;
    taker.until(mail.len(), LIMIT, QUIET).await;
    assert!(taker.taken.values().all(|times| *times == 1), "the healthy queue gets each job once");
    // Several probes go out and come back.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!store.waiting("billing").is_empty(), "the others wait in the outbox");
    repair().await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(billing.len(), LIMIT, QUIET).await;
    let came: HashSet<String> = taker.taken.keys().map(|(id, _)| id.clone()).collect();
    assert_eq!(came, billing.iter().map(ToString::to_string).collect(), "all arrive, and none is lost");
    eventually("the outbox is empty", || store.depth() == 0).await;
    assert!(billing.iter().all(|id| store.job(*id, "billing") == (JobState::Queued, 1, None)), "waiting is no attempt");
}

/// W-134: the broker acks what no queue received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_binding_loses_nothing_and_holds_up_nobody() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("billing"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "billing".into(), FieldTable::default());
    unbound.await.expect("unbound");
    healthy_goes_on_and_the_other_arrives(&rabbit, &store, async || {
        assert!(store.returned() > 0, "it came home through `unrouted`");
        assert!(store.returned() < 600, "a flood of probes: {}", store.returned());
        let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
        let bound =
            channel.queue_bind(queue, exchange, "billing".into(), QueueBindOptions::default(), FieldTable::default());
        bound.await.expect("bound");
    })
    .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue_is_made_again_and_its_jobs_arrive() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut amqp = rabbit.config();
    amqp.topology_every = Duration::from_secs(4);
    let stage = Stage::start_with(amqp, &store, quick("a"), two());
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let queue = rabbit.names().queue("billing");
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    healthy_goes_on_and_the_other_arrives(&rabbit, &store, async || {
        // Nobody repairs it but the next declaration.
        eventually("routed again", || store.waiting("billing").is_empty()).await;
    })
    .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_nacks_and_holds_up_nobody() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = Memory::new();
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    rabbit.control("set_policy", &["full", "^makbuz\\.billing$", r#"{"max-length":3}"#, "--apply-to", "queues"]).await;
    healthy_goes_on_and_the_other_arrives(&rabbit, &store, async || {
        assert_eq!(store.returned(), 0, "a nack leaves the row where it is");
        rabbit.control("clear_policy", &["full"]).await;
    })
    .await;
    stage.end().await;
}

/// RELIABILITY 0.2: lapin hangs a return on another message's confirm. Without an alternate exchange every stray is
/// returned; none of their rows may go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_row_goes_by_a_confirm_that_was_not_its_own() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let (_connection, channel) = rabbit.channel().await;
    let names = rabbit.names();
    // The exchange is there already, and not as we would make it.
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared =
        channel.exchange_declare(names.jobs().into(), lapin::ExchangeKind::Direct, durable, FieldTable::default());
    declared.await.expect("declared");
    let mut amqp = rabbit.config();
    amqp.topology = TopologyMode::Check;
    let mut mail_queue = FieldTable::default();
    mail_queue.insert("x-queue-type".into(), lapin::types::AMQPValue::LongString("quorum".into()));
    channel
        .queue_declare(names.queue("mail").into(), QueueDeclareOptions::durable(), mail_queue)
        .await
        .expect("declared");
    let (queue, exchange) = (names.queue("mail").as_str().into(), names.jobs().as_str().into());
    let bound = channel.queue_bind(queue, exchange, "mail".into(), QueueBindOptions::default(), FieldTable::default());
    bound.await.expect("bound");

    let mut strays = HashSet::new();
    let mut routed = 0;
    for n in 0..2_000 {
        if n % 7 == 0 {
            strays.insert(store.add("billing", b"{}"));
        } else {
            store.add("mail", b"{}");
            routed += 1;
        }
    }
    assert!(strays.len() >= 280);
    // Many per batch and probes without end, so that the trap has every chance.
    let mut config = quick("a");
    (config.probe_every, config.quiet) = (Duration::from_millis(50), Duration::from_millis(1));
    let stage = Stage::start_with(amqp, &store, config, two());
    let mut taker = rabbit.consume(&names.queue("mail")).await;
    taker.until(routed, LIMIT, QUIET).await;
    eventually("the routed are deleted", || store.waiting("mail").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.waiting("billing"), strays, "a row of an unroutable message is gone");
    assert_eq!(taker.taken.len(), routed);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_queue_takes_goes_to_review_in_time_and_comes_back_with_the_route() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut config = quick("a");
    config.unroutable_after = Duration::from_secs(2);
    let stage = Stage::start(&rabbit, &store, config);
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("billing"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "billing".into(), FieldTable::default());
    unbound.await.expect("unbound");
    let all = store.add_many("billing", 20);
    let in_review = || {
        let states = all.iter().map(|id| store.job(*id, "billing"));
        states.filter(|job| (job.0, job.2) == (JobState::Review, Some(JobReason::Unroutable))).count()
    };
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(in_review(), 0, "too early");
    // One of them may be out as the probe.
    eventually("in review", || in_review() >= 19).await;
    let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
    let bound =
        channel.queue_bind(queue, exchange, "billing".into(), QueueBindOptions::default(), FieldTable::default());
    bound.await.expect("bound");
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    let mut came = HashSet::new();
    while came.len() < all.len() {
        came.insert(taker.next(LIMIT).await.properties.message_id().clone());
    }
    eventually("none in review", || in_review() == 0).await;
    stage.end().await;
}

/// Its confirm ended the job before the message came home.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrouted_message_of_a_job_that_completes_on_the_confirm_is_not_lost() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut known = two();
    known[0].completes_on = CompletesOn::Confirm;
    let stage = Stage::start_with(rabbit.config(), &store, quick("a"), known);
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("billing"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "billing".into(), FieldTable::default());
    unbound.await.expect("unbound");
    let all: HashSet<String> = store.add_many("billing", 20).iter().map(ToString::to_string).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
    let bound =
        channel.queue_bind(queue, exchange, "billing".into(), QueueBindOptions::default(), FieldTable::default());
    bound.await.expect("bound");
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    let mut came = HashSet::new();
    while came.len() < all.len() {
        came.insert(taker.next(LIMIT).await.properties.message_id().as_ref().map(ToString::to_string).expect("an id"));
    }
    assert_eq!(came, all);
    stage.end().await;
}

/// A queue of the right name and other arguments: said, and published to all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_other_arguments_degrades_and_is_published_to() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let (_connection, channel) = rabbit.channel().await;
    let queue = rabbit.names().queue("billing");
    let declared = channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default());
    declared.await.expect("declared");
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let state = stage.broker.state().borrow().clone();
    assert_eq!(state.code(), "degraded");
    let problems = state.topology.expect("looked at");
    assert_eq!(
        problems.iter().map(|problem| (problem.name.as_str(), problem.code)).collect::<Vec<_>>(),
        [(queue.as_str(), "broker_mismatch")]
    );
    store.add_many("billing", 10);
    let mut taker = rabbit.consume(&queue).await;
    taker.until(10, LIMIT, QUIET).await;
    stage.end().await;
}

/// The shipped rights: with the topology made by somebody else, the gateway needs no right to configure anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_rights_are_enough_and_no_more() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = Memory::new();
    Stage::start(&rabbit, &store, quick("maker")).end_when_connected().await;
    let (user, password) =
        rabbit.add_user("^$", r"^makbuz\.(jobs|events)$", r"^makbuz\.(unrouted|dead|outcomes)$").await;
    let mut amqp = rabbit.config();
    amqp.url = secrecy::SecretString::from(rabbit.url_as(&user, &password));
    amqp.topology = TopologyMode::Check;
    let stage = Stage::start_with(amqp.clone(), &store, quick("a"), two());
    stage.connected().await;
    assert_eq!(stage.broker.state().borrow().code(), "ok");
    store.add_many("billing", 10);
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(10, LIMIT, QUIET).await;
    // A stray comes home with these rights too.
    let (_connection, channel) = rabbit.channel().await;
    let (queue, exchange) = (rabbit.names().queue("mail"), rabbit.names().jobs());
    let unbound =
        channel.queue_unbind(queue.as_str().into(), exchange.as_str().into(), "mail".into(), FieldTable::default());
    unbound.await.expect("unbound");
    store.add("mail", b"{}");
    eventually("it came home", || store.returned() > 0).await;
    stage.end().await;
    // And declaring with them is refused, said, and stops nothing.
    amqp.topology = TopologyMode::Declare;
    let stage = Stage::start_with(amqp, &store, quick("b"), two());
    stage.connected().await;
    let problems = stage.broker.state().borrow().topology.clone().expect("looked at");
    assert!(problems.iter().any(|problem| problem.code == "broker_forbidden"), "{problems:?}");
    store.add_many("billing", 10);
    taker.until(20, LIMIT, QUIET).await;
    stage.end().await;
    assert!(control_node(&["list_users"]).await.contains(&user));
}
