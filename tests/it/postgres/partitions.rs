//! Days of bodies: made ahead, made on the spot, and removed without losing what a job still needs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use makbuz::clock::{Clock, SystemClock};
use makbuz::model::id::ReceiptId;
use makbuz::store::postgres::{PostgresConfig, PostgresStore};
use makbuz::store::{Archive, Intake, Jobs, QuarantineBounds, Retention, StoreError, Upkeep};

use super::deliveries::{answer, delivery, delivery_at, store, subscriptions};
use crate::support::postgres::{TestDatabase, number, run};

const DAY: i64 = 86_400_000_000;

const DAYS: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'payloads'::regclass AND NOT inhdetachpending";

fn retention(days: u64) -> Retention {
    let quarantine = QuarantineBounds { count: 100, bytes: 1 << 20, age: Duration::from_secs(86_400) };
    Retention { bodies: Duration::from_secs(days * 86_400), quarantine }
}

async fn put(store: &PostgresStore, id: &str, now: i64) -> ReceiptId {
    answer(store.submit(delivery_at(id, now))).await.expect("a commit").events[0].receipt_id
}

#[tokio::test]
async fn two_weeks_are_there_from_the_start_and_two_instances_may_race() {
    let database = TestDatabase::create().await;
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, DAYS).await, 0, "the template has none");
    let (one, two) = tokio::join!(store(database.config()), store(database.config()));
    let (first, second) = tokio::join!(one.upkeep(retention(30)), two.upkeep(retention(30)));
    assert!(first.expect("upkeep").partition_days_ahead >= Some(14));
    assert!(second.expect("upkeep").partition_days_ahead >= Some(14));
    assert_eq!(number(&mut other, DAYS).await, 17, "yesterday, today and fifteen ahead");
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn a_missing_day_is_made_on_the_spot_in_the_past_too() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let now = SystemClock.now();
    for days in [-400, -31, 40, 400] {
        let id = put(&store, &format!("evt_{days}"), now + days * DAY).await;
        assert!(!store.body(id, true).await.expect("a body").body.is_empty());
    }
    let mut other = database.connect().await;
    // Those four, and yesterday to tomorrow, for which a first commit waits; nobody has done upkeep.
    assert_eq!(number(&mut other, DAYS).await, 7);
    assert_eq!(number(&mut other, "SELECT count(*) FROM payloads").await, 4);
    store.close().await;
}

/// A store at whose clock one hundred days have passed since a done and an open job were received.
async fn a_hundred_days_later(
    database: &TestDatabase,
) -> (std::sync::Arc<PostgresStore>, PostgresConfig, ReceiptId, ReceiptId) {
    let config = database.config();
    let store = store(config.clone()).await;
    let now = SystemClock.now();
    let done = put(&store, "evt_done", now).await;
    let open = put(&store, "evt_open", now).await;
    let mut other = database.connect().await;
    run(
        &mut other,
        format!(
            "UPDATE jobs SET state = 'completed', finished_at = 1, leased_until = NULL WHERE receipt_id = '{done}'"
        ),
    )
    .await;
    config.clock_offset.store(100 * DAY, Ordering::SeqCst);
    (store, config, done, open)
}

async fn expire_all(store: &PostgresStore) -> u64 {
    let mut gone = 0;
    for _ in 0..5 {
        gone += store.upkeep(retention(30)).await.expect("upkeep").bodies_expired;
    }
    gone
}

#[tokio::test]
async fn a_body_that_a_job_needs_outlives_its_day_and_others_are_gone() {
    let database = TestDatabase::create().await;
    let (store, _, done, open) = a_hundred_days_later(&database).await;
    assert_eq!(expire_all(&store).await, 1);
    assert!(matches!(store.body(done, true).await, Err(StoreError::BodyGone)));
    assert_eq!(store.body(open, true).await.expect("kept").body, delivery("evt_open").body);
    let view = store.receipt(open).await.expect("a read").expect("a receipt");
    assert_eq!(view.content_type.as_deref(), Some("application/json"));
    let gone = store.receipt(done).await.expect("a read").expect("receipts stay");
    assert_eq!(gone.content_type, None);
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM payloads_kept").await, 1);
    store.close().await;
}

#[tokio::test]
async fn a_removal_that_stopped_half_way_is_finished_and_loses_nothing() {
    let database = TestDatabase::create().await;
    let (store, config, done, open) = a_hundred_days_later(&database).await;
    // Stopped between detaching and dropping: the table is no partition, and nothing was kept of it yet.
    let mut other = database.connect().await;
    let table = format!("payloads_{}", day_text(&mut other).await);
    run(&mut other, format!("ALTER TABLE payloads DETACH PARTITION {table}")).await;
    for id in [done, open] {
        assert!(!store.body(id, true).await.expect("found beside its day").body.is_empty());
    }
    assert!(expire_all(&store).await >= 1);
    assert!(matches!(store.body(done, true).await, Err(StoreError::BodyGone)));
    assert!(!store.body(open, true).await.expect("kept").body.is_empty());
    assert_eq!(config.clock_offset.load(Ordering::SeqCst), 100 * DAY);
    store.close().await;
}

#[tokio::test]
async fn a_detachment_left_pending_is_finished() {
    let database = TestDatabase::create().await;
    let (store, _, done, open) = a_hundred_days_later(&database).await;
    let mut other = database.connect().await;
    let table = format!("payloads_{}", day_text(&mut other).await);
    // A reader of the day holds the detachment up until its time is over: it stays pending.
    let mut reader = database.connect().await;
    run(
        &mut reader,
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {table}; SELECT count(*) FROM payloads"),
    )
    .await;
    run(&mut other, "SET lock_timeout = '200ms'").await;
    let sql = sqlx::AssertSqlSafe(format!("ALTER TABLE payloads DETACH PARTITION {table} CONCURRENTLY"));
    sqlx::raw_sql(sql).execute(&mut other).await.expect_err("held up");
    let pending = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'payloads'::regclass AND inhdetachpending";
    assert_eq!(number(&mut other, pending).await, 1);
    run(&mut reader, "COMMIT").await;
    assert!(!store.body(done, true).await.expect("found beside its day").body.is_empty());
    expire_all(&store).await;
    assert_eq!(number(&mut other, pending).await, 0);
    assert!(matches!(store.body(done, true).await, Err(StoreError::BodyGone)));
    assert!(!store.body(open, true).await.expect("kept").body.is_empty());
    store.close().await;
}

#[tokio::test]
async fn counters_that_went_wrong_are_set_right() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    store.sync_subscriptions(subscriptions()).await.expect("known");
    for n in 0..5 {
        put(&store, &format!("evt_{n}"), SystemClock.now()).await;
    }
    let mut other = database.connect().await;
    run(
        &mut other,
        "UPDATE job_counts SET n = n + 3 WHERE state = 'queued'; DELETE FROM job_counts WHERE state = '~outbox'",
    )
    .await;
    let report = store.upkeep(retention(30)).await.expect("upkeep");
    assert_eq!(report.counts_corrected, 2);
    let status = store.job_status().await.expect("a status");
    let queued = status.counts.iter().filter(|((_, state), _)| state.as_str() == "queued").map(|(_, n)| n).sum::<i64>();
    assert_eq!(queued, 5);
    let outbox = makbuz::store::Outbox::outbox_status(&*store).await.expect("a status");
    assert_eq!(outbox.depth, 5);
    assert!(outbox.oldest.is_some());
    store.close().await;
}

async fn day_text(connection: &mut sqlx::PgConnection) -> String {
    let row = sqlx::raw_sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").fetch_one(connection).await;
    sqlx::Row::try_get(&row.expect("a date"), 0).expect("text")
}
