//! Callers that leave (hyper drops a handler when its client hangs up): their connection must not lie to the next one.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use makbuz::store::{Archive, Intake, NewRejection, Outbox, QuarantineBounds, Upkeep};

use super::deliveries::{answer, delivery, store, subscriptions};
use crate::support::postgres::{TestDatabase, number};

const BOUNDS: QuarantineBounds = QuarantineBounds { count: 10_000, bytes: 1 << 30, age: Duration::from_secs(86_400) };

fn rejection(n: usize) -> NewRejection {
    NewRejection {
        at: makbuz::clock::Clock::now(&makbuz::clock::SystemClock),
        source: "shop".to_owned(),
        code: "signature".to_owned(),
        detail: n.to_string(),
        peer: "192.0.2.7".to_owned(),
        method: "POST".to_owned(),
        path: "/in/shop\0".to_owned(),
        headers: vec![("x-sig".to_owned(), bytes::Bytes::from_static(b"\xff"))],
        body: bytes::Bytes::from_static(b"{"),
    }
}

/// Polls once, then lets go.
fn abandon(future: impl Future) {
    let mut future = pin!(future);
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "it was not under way");
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_poisons_no_connection() {
    let database = TestDatabase::create().await;
    let mut config = database.config();
    config.commands_max = 1;
    let store = store(config).await;
    let mut other = database.connect().await;
    for n in 0..40 {
        abandon(store.announce_relay("gone", Duration::from_secs(5)));
        // Let the abandoned one get anywhere between nothing and its end.
        tokio::time::sleep(Duration::from_micros(n * 97)).await;
        let n = usize::try_from(n).unwrap();
        store.record_rejections(vec![rejection(n)], BOUNDS).await.expect("a commit");
        let seen = number(&mut other, "SELECT count(*) FROM rejections").await;
        assert_eq!(seen, i64::try_from(n + 1).unwrap(), "a commit was reported and nobody else sees its row");
    }
    let kept = store.rejections(1).await.expect("a read");
    assert_eq!((kept[0].path.as_str(), &kept[0].headers), ("/in/shop\u{fffd}", &rejection(0).headers));
    store.close().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM rejections").await, 40, "rows went when the connection closed");
}

#[tokio::test]
async fn a_waiter_that_leaves_changes_nothing_for_its_commit() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    for n in 0..20 {
        drop(store.submit(delivery(&format!("evt_{n}"))).expect("queued"));
    }
    answer(store.submit(delivery("evt_last"))).await.expect("a commit");
    store.close().await;
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 21);
}

#[tokio::test]
async fn commands_wait_for_a_connection_no_longer_than_they_may() {
    let database = TestDatabase::create().await;
    let mut config = database.config();
    config.commands_max = 1;
    config.acquire_timeout = Duration::from_millis(300);
    let store = store(config).await;
    store.sync_subscriptions(subscriptions()).await.expect("a first command");
    let mut other = database.connect().await;
    crate::support::postgres::run(&mut other, "BEGIN; LOCK TABLE rejections").await;
    let blocked = tokio::spawn({
        let store = store.clone();
        async move { store.record_rejections(vec![rejection(0)], BOUNDS).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'makbuz command%' AND wait_event_type = 'Lock'
                 AND datname = current_database()";
    super::deliveries::until("the command waits for the lock", async || number(&mut other, waits).await == 1).await;
    let error = store.token_key().await.expect_err("no connection is free");
    assert_eq!(error.code(), "store_unavailable");
    // Intake has connections of its own.
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    let refused = blocked.await.expect("a task").expect_err("the lock is held for longer than 2 s");
    assert_eq!(refused.code(), "store_unavailable");
    crate::support::postgres::run(&mut other, "ROLLBACK").await;
    store.token_key().await.expect("the connection is free again");
    store.close().await;
}
