//! Connections that break, brokers that block, messages that are refused, stops at the worst moment.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use makbuz::amqp::LinkState;
use makbuz::clock::{Clock, SystemClock};
use makbuz::model::job::{JobReason, JobState};
use makbuz::random::{Random, SeededRandom};
use secrecy::SecretString;

use super::memory::Memory;
use super::stage::{LIMIT, QUIET, Stage, eventually, quick, two};
use crate::support::proxy::{Network, Proxy};
use crate::support::rabbit::{Rabbit, control, control_node};

fn ids(all: &[makbuz::model::id::ReceiptId]) -> HashSet<String> {
    all.iter().map(ToString::to_string).collect()
}

/// W-133, W-137: what is in flight when the broker closes every connection stays, and goes out again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_connections_lose_nothing() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = Memory::new();
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(store.add_many("billing", 3_000));
        let (vhost, _) = ("--vhost", ());
        let name = rabbit.url.rsplit('/').next().expect("a vhost").to_owned();
        control_node(&["close_all_connections", vhost, &name, "test"]).await;
    }
    eventually("all published in the end", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(all.len(), LIMIT, QUIET).await;
    assert_eq!(taker.taken.keys().map(|(id, _)| id.clone()).collect::<HashSet<_>>(), ids(&all));
    stage.end().await;
}

/// Cuts at random places in the stream towards the broker; the list of faults is the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_cuts_lose_nothing_and_delete_nothing_early() {
    let seed = SystemClock.now().unsigned_abs();
    use std::io::Write;
    writeln!(std::io::stderr(), "seed={seed}").expect("stderr takes a line");
    let random = SeededRandom::new(seed);
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    // Made before the network is bad.
    Stage::start(&rabbit, &store, quick("maker")).end_when_connected().await;
    let proxy = Proxy::before(&rabbit.address()).await;
    let mut amqp = rabbit.config();
    amqp.url = SecretString::from(rabbit.url_at(&proxy.address.to_string()));
    let mut config = quick("a");
    config.publisher.confirm_timeout = Duration::from_secs(2);
    let stage = Stage::start_with(amqp, &store, config, two());
    let mut all = Vec::new();
    for _ in 0..12 {
        match random.next_u64() % 4 {
            0 => proxy.set(Network::Reset),
            1 => proxy.set(Network::Down),
            _ => proxy.cut_after(u32::try_from(random.next_u64() % 60_000).expect("small")),
        }
        all.extend(store.add_many("billing", usize::try_from(random.next_u64() % 300).expect("small")));
        tokio::time::sleep(Duration::from_millis(random.next_u64() % 200)).await;
        proxy.set(Network::Up);
        tokio::time::sleep(Duration::from_millis(random.next_u64() % 300)).await;
    }
    eventually("all published in the end", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(all.len(), LIMIT, QUIET).await;
    assert_eq!(taker.taken.keys().map(|(id, _)| id.clone()).collect::<HashSet<_>>(), ids(&all), "seed={seed}");
    stage.end().await;
}

/// W-118: stopped between the publish and its confirm, a row is neither deleted nor stranded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_between_publish_and_confirm_deletes_nothing() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    Stage::start(&rabbit, &store, quick("maker")).end_when_connected().await;
    let proxy = Proxy::before(&rabbit.address()).await;
    let mut amqp = rabbit.config();
    amqp.url = SecretString::from(rabbit.url_at(&proxy.address.to_string()));
    amqp.operation_timeout = Duration::from_millis(500);
    let stage = Stage::start_with(amqp.clone(), &store, quick("a"), two());
    stage.connected().await;
    store.add_many("billing", 1);
    eventually("the channel is open", || store.depth() == 0).await;
    proxy.set(Network::Silent);
    let all = store.add_many("billing", 50);
    tokio::time::sleep(Duration::from_millis(300)).await;
    stage.end_hard().await;
    assert_eq!(store.waiting("billing"), all.iter().copied().collect(), "no confirm came, so every row is there");
    // The next one publishes them.
    let stage = Stage::start(&rabbit, &store, quick("b"));
    eventually("published", || store.depth() == 0).await;
    // A soft stop instead waits for what is in flight.
    let all = store.add_many("billing", 200);
    stage.end().await;
    let left = store.waiting("billing");
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.quiet(QUIET).await;
    let came: HashSet<String> = taker.taken.keys().map(|(id, _)| id.clone()).collect();
    for id in all {
        assert!(left.contains(&id) || came.contains(&id.to_string()), "{id} is neither in the outbox nor in the queue");
    }
}

/// A confirm that does not come costs the connection, not the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_is_given_up_and_the_rows_stay() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    Stage::start(&rabbit, &store, quick("maker")).end_when_connected().await;
    let proxy = Proxy::before(&rabbit.address()).await;
    let mut amqp = rabbit.config();
    amqp.url = SecretString::from(rabbit.url_at(&proxy.address.to_string()));
    amqp.connect_timeout = Duration::from_millis(500);
    let mut config = quick("a");
    config.publisher.confirm_timeout = Duration::from_millis(500);
    let stage = Stage::start_with(amqp, &store, config, two());
    stage.connected().await;
    store.add_many("billing", 1);
    eventually("the channel is open", || store.depth() == 0).await;
    proxy.set(Network::Silent);
    store.add_many("billing", 50);
    stage.until("given up", |state| matches!(state.publish, LinkState::Down(_))).await;
    assert_eq!(store.waiting("billing").len(), 50);
    proxy.set(Network::Up);
    eventually("published in the end", || store.depth() == 0).await;
    stage.end().await;
}

/// A store that is away after the confirms: the rows stay in hand, and are not published twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_does_not_make_the_relay_publish_twice() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    for _ in 0..5 {
        store.add_many("billing", 100);
        tokio::time::sleep(Duration::from_millis(20)).await;
        store.away.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.away.store(false, Ordering::SeqCst);
    }
    taker.until(500, LIMIT, QUIET).await;
    assert!(taker.taken.values().all(|times| *times == 1));
    eventually("all deleted", || store.depth() == 0).await;
    stage.end().await;
}

/// W-139: a message that the broker will not have, in the middle of small ones. The broker's limit is lowered to that
/// of RabbitMQ 4 for the test; nobody else sends anything near it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_message_is_set_apart_and_takes_no_neighbour_along() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let _limit = MessageLimit::of(16 * 1024 * 1024).await;
    let store = Memory::new();
    let mut amqp = rabbit.config();
    amqp.inline_max = 64 * 1024 * 1024;
    let mut config = quick("a");
    config.batch_bytes_max = 128 * 1024 * 1024;
    let mut small = store.add_many("billing", 50);
    let large = [store.add("billing", &vec![1; 17 * 1024 * 1024]), store.add("billing", &vec![2; 18 * 1024 * 1024])];
    small.extend(store.add_many("billing", 50));
    let stage = Stage::start_with(amqp, &store, config, two());
    eventually("all settled", || store.depth() == 0).await;
    for id in large {
        assert_eq!(store.job(id, "billing"), (JobState::Review, 1, Some(JobReason::TooLarge)));
    }
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(100, LIMIT, QUIET).await;
    assert_eq!(taker.taken.keys().map(|(id, _)| id.clone()).collect::<HashSet<_>>(), ids(&small));
    stage.until("the connection stands", |state| state.publish == LinkState::Connected).await;
    stage.end().await;
}

/// W-136. The one real alarm of the suite: short, and taken back whatever happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_broker_is_blocked_nothing_is_handed_to_it() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = Memory::new();
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    store.add_many("billing", 10);
    eventually("published", || store.depth() == 0).await;
    let alarm = Alarm::raise();
    // The broker tells a connection that it is blocked when it publishes.
    store.add_many("billing", 300);
    let blocked = tokio::time::timeout(Duration::from_secs(2), async {
        stage.until("blocked", |state| matches!(state.publish, LinkState::Blocked(_))).await;
    });
    let blocked = blocked.await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (waiting, code) = (store.depth(), stage.broker.state().borrow().code());
    // Its own task: the drop calls a tool that takes a second.
    tokio::task::spawn_blocking(move || drop(alarm)).await.expect("taken back");
    assert!(blocked.is_ok(), "never told that it is blocked");
    assert_eq!(code, "blocked");
    assert!(waiting > 0, "what is not confirmed is in the outbox");
    eventually("drained by itself", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(310, LIMIT, QUIET).await;
    assert!(taker.taken.values().all(|times| *times == 1), "an alarm is no reason to publish twice");
    stage.end().await;
}

struct Alarm;

impl Alarm {
    fn raise() -> Self {
        let alarm = Self;
        drop(control(&["set_vm_memory_high_watermark", "0.00001"]));
        alarm
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        drop(control(&["set_vm_memory_high_watermark", "0.4"]));
    }
}

/// The broker's largest message, set for a while.
struct MessageLimit;

impl MessageLimit {
    async fn of(bytes: u32) -> Self {
        let limit = Self;
        control_node(&["eval", &format!("application:set_env(rabbit, max_message_size, {bytes}).")]).await;
        limit
    }
}

impl Drop for MessageLimit {
    fn drop(&mut self) {
        drop(control(&["eval", "application:set_env(rabbit, max_message_size, 134217728)."]));
    }
}
