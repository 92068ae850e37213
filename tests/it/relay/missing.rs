//! What a relay publishes into is gone, its lease is gone, or the table never comes to rest.

use std::time::Duration;

use lapin::options::ExchangeDeleteOptions;
use makbuz::amqp::{LinkState, apply_topology, connect};
use makbuz::model::job::Lane;
use makbuz::store::FreshRows;
use secrecy::SecretString;

use super::memory::Memory;
use super::stage::{LIMIT, QUIET, Stage, eventually, quick, two};
use crate::support::proxy::{Network, Proxy};
use crate::support::rabbit::Rabbit;

/// W-133: nothing is confirmed by an exchange that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_confirms_nothing_and_all_arrive_once_it_is_declared_again() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut amqp = rabbit.config();
    // It comes back when the test says so.
    amqp.topology_every = Duration::from_secs(3600);
    let stage = Stage::start_with(amqp.clone(), &store, quick("a"), two());
    stage.connected().await;
    let (_connection, channel) = rabbit.channel().await;
    let deleted = channel.exchange_delete(rabbit.names().jobs().into(), ExchangeDeleteOptions::default());
    deleted.await.expect("deleted");
    let all = store.add_many("billing", 50);
    // Several tries, each of which costs its connection.
    for _ in 0..3 {
        stage.until("a try has failed", |state| matches!(state.publish, LinkState::Down(_))).await;
        assert_eq!(store.depth(), all.len(), "a row went without a confirm");
        stage.until("and the next begins", |state| state.publish == LinkState::Connected).await;
    }
    assert_eq!((store.depth(), store.returned()), (all.len(), 0));

    let link = connect(&amqp, "test").await.expect("connected");
    let problems = apply_topology(&link, &amqp, &["billing".to_owned(), "mail".to_owned()]).await.expect("declared");
    assert!(problems.is_empty(), "{problems:?}");
    link.close().await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(all.len(), LIMIT, QUIET).await;
    assert_eq!(taker.taken.len(), all.len());
    assert!(all.iter().all(|id| taker.taken.contains_key(&(id.to_string(), 1))), "all of them arrive");
    eventually("the outbox is empty", || store.depth() == 0).await;
    stage.end().await;
}

/// Under steady load no look is ever empty. The hand-over in memory begins all the same, and nothing goes out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hand_over_in_memory_begins_though_no_look_is_empty() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    *store.fed.lock().unwrap() = Some("mail".to_owned());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let mut rows = Vec::new();
    crate::support::eventually("rows that no look has seen are published", LIMIT, async || {
        let mut row = store.message("billing", b"{}", Lane::Fresh);
        row.shard = stage.held.shard(row.receipt.id);
        rows.push((row.id, row.receipt.id.to_string()));
        stage.held.before_commit(&[(row.id, row.shard)]);
        store.add_row(row.clone());
        stage.held.committed(vec![row]);
        let published = rows.iter().filter(|(id, _)| !store.has(*id) && !store.saw(*id)).count();
        (published >= 20).then_some(())
    })
    .await;
    *store.fed.lock().unwrap() = None;
    eventually("the outbox is empty", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(rows.len(), LIMIT, QUIET).await;
    assert!(rows.iter().all(|(_, id)| taker.taken.get(&(id.clone(), 1)) == Some(&1)), "each row exactly once");
    assert_eq!(taker.taken.len(), rows.len());
    let mut mail = rabbit.consume(&rabbit.names().queue("mail")).await;
    mail.quiet(QUIET).await;
    assert!(!mail.taken.is_empty() && mail.taken.values().all(|times| *times == 1), "and those of the looks");
    stage.end().await;
}

/// W-142: a relay that was held up for longer than its lease makes duplicates that can be told as such, and no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lost_while_a_publish_is_held_makes_duplicates_with_the_same_id() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    Stage::start(&rabbit, &store, quick("maker")).end_when_connected().await;
    let proxy = Proxy::before(&rabbit.address()).await;
    let mut amqp = rabbit.config();
    amqp.url = SecretString::from(rabbit.url_at(&proxy.address.to_string()));
    let config = |name| {
        let mut config = quick(name);
        (config.lease, config.renew_every) = (Duration::from_millis(1500), Duration::from_millis(300));
        config.publisher.confirm_timeout = LIMIT;
        config
    };
    let a = Stage::start_with(amqp, &store, config("a"), two());
    a.connected().await;
    store.add("billing", b"{}");
    eventually("the channel is open", || store.depth() == 0).await;
    proxy.set(Network::Silent);
    let rows: Vec<_> = (0..50).map(|_| store.message("billing", b"{}", Lane::Fresh)).collect();
    for row in &rows {
        store.add_row(row.clone());
    }
    eventually("`a` has them in hand", || rows.iter().all(|row| store.saw(row.id))).await;
    *store.cut_off.lock().unwrap() = Some("a".to_owned());

    let b = Stage::start(&rabbit, &store, config("b"));
    eventually("`b` has adopted the shards", || store.shards_of("b") == 32).await;
    eventually("and published their rows", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(51, LIMIT, QUIET).await;
    assert!(taker.taken.values().all(|times| *times == 1), "`a` is still held up");

    *store.cut_off.lock().unwrap() = None;
    proxy.set(Network::Up);
    let twice = |taken: &std::collections::HashMap<(String, i64), u32>| taken.values().filter(|n| **n == 2).count();
    while twice(&taker.taken) < rows.len() {
        taker.next(LIMIT).await;
    }
    taker.quiet(QUIET).await;
    assert_eq!(taker.taken.len(), 51, "what `a` had sent is told by its id");
    assert!(rows.iter().all(|row| taker.taken.get(&(row.receipt.id.to_string(), 1)) == Some(&2)));
    assert_eq!(store.depth(), 0);
    a.end().await;
    b.end().await;
    assert_eq!((store.depth(), store.returned()), (0, 0));
}
