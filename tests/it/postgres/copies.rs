//! Copies that come while the first one's COMMIT is held up, and a COMMIT that fails: nobody is told of what is not there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use makbuz::model::id::{OutboxId, ReceiptId};
use makbuz::store::{FreshRows, Intake, Outbox, OutboxMessage, StoreError, Upkeep, Verdict};
use tokio::sync::oneshot::error::TryRecvError;

use super::deliveries::{answer, delivery, store, until};
use crate::support::postgres::{TestDatabase, number, run};

/// Sessions of stores that wait for a lock of this kind.
fn waits_for(locktype: &str) -> String {
    format!(
        "SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
         WHERE a.datname = current_database() AND a.application_name LIKE 'makbuz %'
           AND l.locktype = '{locktype}' AND NOT l.granted"
    )
}

/// What runs in COMMIT for each new receipt.
async fn at_commit(database: &TestDatabase, body: &str) {
    let sql = format!(
        "CREATE SEQUENCE failures;
         CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON receipts DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION at_commit()"
    );
    run(&mut database.connect().await, sql).await;
}

/// W-107, W-085: over two instances, none of two hundred copies is answered before the one COMMIT, and all alike after it.
#[tokio::test]
async fn copies_wait_for_the_commit_of_the_first_over_two_instances() {
    let database = TestDatabase::create().await;
    at_commit(&database, "PERFORM pg_advisory_xact_lock(42);").await;
    let (one, two) = (store(database.config()).await, store(database.config()).await);
    let (mut holder, mut other) = (database.connect().await, database.connect().await);
    run(&mut holder, "SELECT pg_advisory_lock(42)").await;
    let mut waiting = vec![one.submit(delivery("e1")).expect("queued")];
    until("the first COMMIT waits", async || number(&mut other, waits_for("advisory")).await == 1).await;
    for n in 1..200 {
        let instance = if n % 2 == 0 { &one } else { &two };
        waiting.push(instance.submit(delivery("e1")).expect("queued"));
        tokio::task::yield_now().await;
        let heard = waiting.iter_mut().position(|one| !matches!(one.try_recv(), Err(TryRecvError::Empty)));
        assert_eq!(heard, None, "answered before the COMMIT");
    }
    // One of each instance at least; before any of them has waited for `lock_timeout`.
    until("copies wait for the first", async || number(&mut other, waits_for("transactionid")).await >= 2).await;
    assert_eq!(number(&mut other, waits_for("advisory")).await, 1, "the first is still held up");
    let heard = waiting.iter_mut().position(|one| !matches!(one.try_recv(), Err(TryRecvError::Empty)));
    assert_eq!(heard, None, "answered before the COMMIT");
    run(&mut holder, "SELECT pg_advisory_unlock(42)").await;

    let (mut receipts, mut stored) = (BTreeSet::new(), 0);
    for one in waiting {
        let verdict = answer(Ok(one)).await.expect("committed").events.remove(0);
        receipts.insert(verdict.receipt_id);
        stored += u32::from(verdict.verdict == Verdict::Stored);
        assert!(matches!(verdict.verdict, Verdict::Stored | Verdict::Duplicate), "{:?}", verdict.verdict);
    }
    assert_eq!((receipts.len(), stored), (1, 1), "one receipt for all, stored once");
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 1);
    assert_eq!(number(&mut other, "SELECT sum(duplicates)::bigint FROM receipts").await, 199);
    assert_eq!(number(&mut other, "SELECT count(*) FROM outbox").await, 1);
    one.close().await;
    two.close().await;
}

/// What the store says to the relay in its process.
#[derive(Default)]
struct Spy {
    announced: Mutex<BTreeSet<OutboxId>>,
    committed: Mutex<BTreeSet<OutboxId>>,
    abandoned: Mutex<BTreeSet<OutboxId>>,
}

impl FreshRows for Spy {
    fn shard(&self, _receipt: ReceiptId) -> u8 {
        3
    }

    fn before_commit(&self, rows: &[(OutboxId, u8)]) {
        self.announced.lock().unwrap().extend(rows.iter().map(|(id, _)| *id));
    }

    fn committed(&self, rows: Vec<OutboxMessage>) {
        self.committed.lock().unwrap().extend(rows.iter().map(|row| row.id));
    }

    fn abandoned(&self, rows: &[OutboxId]) {
        self.abandoned.lock().unwrap().extend(rows);
    }
}

/// W-085: everyone in the batch hears that its outcome is unknown, the relay gets none of its rows, and a resend is stored.
#[tokio::test]
async fn a_commit_that_fails_is_told_to_everyone_in_its_batch_and_leaves_nothing() {
    let database = TestDatabase::create().await;
    let once = "IF NEW.event_id = 'evt_bad' AND nextval('failures') = 1 THEN RAISE EXCEPTION 'at COMMIT' USING ERRCODE = '23514'; END IF;";
    at_commit(&database, once).await;
    let mut config = database.config();
    config.writers = 1;
    let store = store(config).await;
    let spy = Arc::new(Spy::default());
    store.attach(spy.clone());
    let events = ["evt_0", "evt_1", "evt_bad", "evt_3", "evt_4"];
    // One thread: they are all queued before the writer's task runs again, and become one batch.
    let waiting: Vec<_> = events.iter().map(|id| store.submit(delivery(id))).collect();
    for one in waiting {
        let error = answer(one).await.expect_err("the COMMIT failed");
        assert!(matches!(&error, StoreError::UnknownOutcome(why) if why.contains("at COMMIT")), "{error}");
    }
    let mut other = database.connect().await;
    for table in ["receipts", "payloads", "jobs", "outbox"] {
        assert_eq!(number(&mut other, format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    let announced = spy.announced.lock().unwrap().clone();
    assert_eq!(announced.len(), events.len(), "one row each");
    assert_eq!(*spy.abandoned.lock().unwrap(), announced);
    assert!(spy.committed.lock().unwrap().is_empty());

    for id in events {
        let verdict = answer(store.submit(delivery(id))).await.expect("a commit").events.remove(0);
        assert_eq!(verdict.verdict, Verdict::Stored, "{id}");
    }
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 5);
    until("the relay hears of the rows", async || spy.committed.lock().unwrap().len() == events.len()).await;
    store.close().await;
}
