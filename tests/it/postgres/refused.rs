//! Rows that the database refuses, and transactions that it wants run again.

use std::time::Duration;

use makbuz::model::attempt::Trigger;
use makbuz::model::id::{OutboxId, ReceiptId};
use makbuz::model::job::{JobKey, Lane};
use makbuz::random::SeededRandom;
use makbuz::store::{ConfirmedRow, HandOver, Intake, Outbox, StoreError, Upkeep, Verdict};
use sqlx::Connection as _;

use super::deliveries::{answer, delivery, store};
use crate::support::postgres::{TestDatabase, number, run};

/// One writer, held up by a lock until everything of the test is queued: all of it is one batch then.
async fn in_one_batch(database: &TestDatabase, ids: &[String], held: &str) -> Vec<Result<Verdict, StoreError>> {
    let mut config = database.config();
    config.writers = 1;
    let store = store(config).await;
    let mut other = database.connect().await;
    run(&mut other, "BEGIN; LOCK TABLE payloads IN ACCESS EXCLUSIVE MODE").await;
    let first = store.submit(delivery("evt_first"));
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'makbuz write%' AND wait_event_type = 'Lock'
                 AND datname = current_database()";
    let mut watcher = database.connect().await;
    super::deliveries::until("the writer waits", async || number(&mut watcher, waits).await == 1).await;
    let waiting: Vec<_> = ids.iter().map(|id| store.submit(delivery(id))).collect();
    run(&mut watcher, held).await;
    run(&mut other, "COMMIT").await;
    answer(first).await.expect("the first one");
    let mut verdicts = Vec::new();
    for one in waiting {
        verdicts.push(answer(one).await.map(|verdict| verdict.events[0].verdict));
    }
    // Before the session that holds the lock goes.
    store.close().await;
    watcher.close().await.expect("closed");
    verdicts
}

/// A lock is no fault of a row: who reports would throw the report away, and an operator would be told 4xx.
#[tokio::test]
async fn a_command_that_meets_a_lock_is_told_that_the_store_is_away() {
    let database = TestDatabase::create().await;
    let mut config = database.config();
    config.lock_timeout = Duration::from_millis(100);
    let store = store(config).await;
    let mut other = database.connect().await;
    run(&mut other, "BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").await;
    let refused = store.delete_outbox(&[confirmed()]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    run(&mut other, "COMMIT").await;
    store.delete_outbox(&[confirmed()]).await.expect("nothing is in the way any more");
    store.close().await;
}

/// What waits is bounded, and a large batch needs no empty queue: a provider with few resends would lose it under load.
#[tokio::test]
async fn a_full_queue_refuses_and_a_large_delivery_needs_room_for_one() {
    let database = TestDatabase::create().await;
    let mut config = database.config();
    config.writers = 1;
    config.committer.queue_events_max = 2;
    let store = store(config).await;
    let mut other = database.connect().await;
    run(&mut other, "BEGIN; LOCK TABLE payloads IN ACCESS EXCLUSIVE MODE").await;
    let first = store.submit(delivery("evt_first"));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'makbuz write%'
                 AND wait_event_type = 'Lock' AND datname = current_database()";
    let mut watcher = database.connect().await;
    super::deliveries::until("the writer waits", async || number(&mut watcher, waits).await == 1).await;
    let mut large = delivery("evt_0");
    large.events.extend((1..5).flat_map(|n| delivery(&format!("evt_{n}")).events));
    let waiting = [store.submit(delivery("evt_waits")), store.submit(large)];
    assert!(matches!(store.submit(delivery("evt_late")), Err(StoreError::Busy)));
    run(&mut other, "COMMIT").await;
    answer(first).await.expect("the first one");
    let mut stored = Vec::new();
    for one in waiting {
        stored.push(answer(one).await.expect("there was room").events.len());
    }
    assert_eq!(stored, [1, 5]);
    store.close().await;
}

fn confirmed() -> ConfirmedRow {
    let random = SeededRandom::new(1);
    let key = JobKey { receipt: ReceiptId::new(7, &random), subscription: "all".to_owned() };
    let hand_over = HandOver { key, attempt: 1, lane: Lane::Fresh, trigger: Trigger::First };
    ConfirmedRow { id: OutboxId::new(7, &random), hand_over, completes: false }
}

fn ids(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("evt_{n:03}")).collect()
}

#[tokio::test]
async fn a_key_that_is_locked_elsewhere_fails_alone() {
    let database = TestDatabase::create().await;
    let held = "BEGIN; INSERT INTO receipts (id, provider, account, event_id, provider_ref, mode, source, event_type, received_at,
                payload_id, origin) VALUES (gen_random_uuid(), 'acme', 'acct', 'evt_005', '', 'live', 'shop', '', 0,
                gen_random_uuid(), 'delivery')";
    let verdicts = in_one_batch(&database, &ids(20), held).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        match n {
            5 => assert!(matches!(verdict, Err(StoreError::Row(_))), "{verdict:?}"),
            _ => assert!(matches!(verdict, Ok(Verdict::Stored)), "{n}: {verdict:?}"),
        }
    }
}

#[tokio::test]
async fn a_value_that_the_database_refuses_fails_alone() {
    let database = TestDatabase::create().await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                  BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '22000'; END $$;
                  CREATE TRIGGER refuse BEFORE INSERT ON receipts FOR EACH ROW WHEN (NEW.event_id IN ('evt_000', 'evt_017'))
                  EXECUTE FUNCTION refuse()";
    let mut other = database.connect().await;
    run(&mut other, refuse).await;
    let verdicts = in_one_batch(&database, &ids(18), "SELECT 1").await;
    for (n, verdict) in verdicts.iter().enumerate() {
        match n {
            0 | 17 => assert!(matches!(verdict, Err(StoreError::Row(_))), "{verdict:?}"),
            _ => assert!(matches!(verdict, Ok(Verdict::Stored)), "{n}: {verdict:?}"),
        }
    }
    // Nothing of a refused delivery stays, and the counters tell the truth.
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 17);
    assert_eq!(number(&mut other, "SELECT count(*) FROM payloads").await, 17);
    assert_eq!(number(&mut other, "SELECT sum(n)::bigint FROM job_counts WHERE state = 'queued'").await, 17);
}

/// W-020 and its kin: what is legal at the provider must be storable here.
#[tokio::test]
async fn bytes_that_the_database_dislikes_cost_no_event() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let mut odd = delivery("evt_nul");
    odd.body = bytes::Bytes::from_static(b"{\"a\":\"\\u0000\",\"a\":\"\xed\xa0\x80\0\"}");
    odd.headers = vec![("x-odd".to_owned(), bytes::Bytes::from_static(b"\xff\x00"))];
    let body = odd.body.clone();
    let id = answer(store.submit(odd)).await.expect("stored").events[0].receipt_id;
    let stored = makbuz::store::Archive::body(&*store, id, true).await.expect("a body");
    assert_eq!(stored.body, body);
    store.close().await;
}

#[tokio::test]
async fn serialization_failures_and_deadlocks_are_run_again() {
    for code in ["40001", "40P01"] {
        let database = TestDatabase::create().await;
        let mut other = database.connect().await;
        run(
            &mut other,
            format!(
                "CREATE SEQUENCE failures;
                 CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN IF nextval('failures') <= 2 THEN RAISE EXCEPTION 'again' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$;
                 CREATE TRIGGER fail_twice BEFORE INSERT ON receipts FOR EACH ROW EXECUTE FUNCTION fail_twice();
                 CREATE SEQUENCE relay_failures;
                 CREATE FUNCTION fail_relay() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN IF nextval('relay_failures') <= 2 THEN RAISE EXCEPTION 'again' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$;
                 CREATE TRIGGER fail_relay BEFORE INSERT ON relays FOR EACH ROW EXECUTE FUNCTION fail_relay()"
            ),
        )
        .await;
        let store = store(database.config()).await;
        answer(store.submit(delivery("evt_1"))).await.expect("a commit at the third try");
        assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 1);
        let alive =
            makbuz::store::Outbox::announce_relay(&*store, "one", Duration::from_secs(5)).await.expect("the third try");
        assert_eq!(alive, 1);
        store.close().await;
    }
}

#[tokio::test]
async fn writers_that_meet_in_the_same_keys_never_deadlock() {
    let database = TestDatabase::create().await;
    let one = store(database.config()).await;
    let two = store(database.config()).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        for n in 0..150 {
            waiting.push(one.submit(delivery(&format!("evt_{n}"))));
            waiting.push(two.submit(delivery(&format!("evt_{}", 149 - n))));
        }
        tokio::task::yield_now().await;
    }
    let mut stored = 0;
    for one in waiting {
        stored += u32::from(answer(one).await.expect("a verdict").events[0].verdict == Verdict::Stored);
    }
    assert_eq!(stored, 150, "each key is new once");
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 150);
    assert_eq!(number(&mut other, "SELECT sum(duplicates)::bigint FROM receipts").await, 1050);
    run(&mut other, "SELECT pg_stat_force_next_flush()").await;
    let deadlocks =
        number(&mut other, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await;
    assert_eq!(deadlocks, 0);
    one.close().await;
    two.close().await;
}
