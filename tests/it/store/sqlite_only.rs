//! What only the embedded store promises: its lock, its writer's recovery, and durability against a kill.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use makbuz::clock::SystemClock;
use makbuz::model::id::{OutboxId, ReceiptId};
use makbuz::random::{Random, SeededRandom, SystemRandom};
use makbuz::store::sqlite::{SqliteConfig, SqliteStore};
use makbuz::store::{FreshRows, OutboxMessage, ReceiptQuery, Store, Verdict};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::harness::{Backend, Harness, billing, both, deliver, deliver_one, seed, set};

/// Tells the child of the kill test where to write; unset, it does nothing.
const CHILD: &str = "MAKBUZ_TEST_KILL_PATH";

async fn open(config: SqliteConfig) -> Result<Arc<dyn Store>, makbuz::store::StoreError> {
    let store = SqliteStore::open(config, Arc::new(SystemClock), Arc::new(SystemRandom::new())).await?;
    Ok(Arc::new(store))
}

async fn beside(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(5)).connect().await.unwrap()
}

/// A harness by the machine's clock.
fn harness() -> Harness {
    struct Real;
    #[async_trait::async_trait]
    impl Backend for Real {
        fn now(&self) -> i64 {
            makbuz::clock::Clock::now(&SystemClock)
        }
        async fn pass(&self, _: Duration) {}
        async fn number(&self, _: &'static str) -> i64 {
            0
        }
        async fn execute(&self, _: &'static str) -> Result<(), String> {
            Err("no statements here".to_owned())
        }
        async fn restart(&self) -> Arc<dyn Store> {
            unreachable!("tests of this file open their stores themselves")
        }
    }
    Harness::new(Box::new(Real))
}

#[tokio::test]
async fn a_second_instance_is_refused_until_the_first_has_closed() {
    let dir = tempfile::tempdir().unwrap();
    let config = SqliteConfig::at(dir.path().join("makbuz.db"));
    let first = open(config.clone()).await.unwrap();
    let error = open(config.clone()).await.err().expect("two would share a file");
    assert_eq!(error.code(), "store_in_use");
    assert!(error.to_string().contains("another running makbuz"), "{error}");
    first.close().await;
    assert_eq!(first.submit(harness().delivery("e", "", &both())).err().unwrap().code(), "store_unavailable");
    open(config).await.expect("the lock went with the first").close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_from_outside_is_answered_503_and_got_over_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("makbuz.db");
    let h = harness();
    let store =
        open(SqliteConfig { busy_timeout: Duration::from_millis(50), ..SqliteConfig::at(&path) }).await.unwrap();
    deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    let mut other = beside(&path).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    for n in 0..3 {
        let error = deliver(&store, h.delivery(&format!("locked{n}"), "{}", &both())).await.unwrap_err();
        assert_eq!(error.code(), "store_unavailable");
    }
    assert_eq!(store.ready().await.unwrap_err().code(), "store_unavailable");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    // W-085: what was answered 503 is a first delivery now.
    store.ready().await.expect("back by itself, without traffic");
    assert_eq!(deliver_one(&store, h.delivery("locked1", "{}", &both())).await.verdict, Verdict::Stored);
    assert_eq!(store.receipts(ReceiptQuery { limit: 9, ..ReceiptQuery::default() }).await.unwrap().len(), 2);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_is_answered_503_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("makbuz.db");
    let h = harness();
    let store = open(SqliteConfig { bytes_max: Some(2 << 20), ..SqliteConfig::at(&path) }).await.unwrap();
    let body = "x".repeat(64 * 1024);
    let mut stored = Vec::new();
    let full = loop {
        match deliver(&store, h.delivery(&format!("e{}", stored.len()), &body, &both())).await {
            Ok(verdict) => stored.push(verdict.events[0].receipt_id),
            Err(error) => break error,
        }
        assert!(stored.len() < 1000, "the bound does not hold");
    };
    assert_eq!(full.code(), "store_unavailable");
    assert!(!stored.is_empty());
    for id in &stored {
        assert_eq!(store.body(*id, false).await.unwrap().body.len(), body.len());
    }
    // A small one may still fit; the large one does, once there is room.
    let mut other = beside(&path).await;
    sqlx::query("DELETE FROM payloads").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let late = deliver_one(&store, h.delivery(&format!("e{}", stored.len()), &body, &both())).await;
    assert_eq!(late.verdict, Verdict::Stored);
    store.ready().await.unwrap();
    store.close().await;
}

/// Panics once, in the middle of an intake transaction.
struct Faulty(AtomicBool);

impl FreshRows for Faulty {
    fn shard(&self, _: ReceiptId) -> u8 {
        assert!(self.0.swap(true, Ordering::SeqCst), "as the test wants");
        3
    }
    fn before_commit(&self, _: &[(OutboxId, u8)]) {}
    fn committed(&self, _: Vec<OutboxMessage>) {}
    fn abandoned(&self, _: &[OutboxId]) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_dies_takes_no_neighbour_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let h = harness();
    let store = open(SqliteConfig::at(dir.path().join("makbuz.db"))).await.unwrap();
    deliver_one(&store, h.delivery("before", "{}", &set(Vec::new()))).await;
    store.attach(Arc::new(Faulty(AtomicBool::new(false))));
    let heard = store.submit(h.delivery("e1", "{}", &billing())).unwrap().await;
    assert!(heard.is_err(), "nobody answers what was not committed");
    let after = deliver_one(&store, h.delivery("after", "{}", &billing())).await;
    assert_eq!(after.verdict, Verdict::Stored);
    assert_eq!(deliver_one(&store, h.delivery("e1", "{}", &billing())).await.verdict, Verdict::Stored);
    assert_eq!(deliver_one(&store, h.delivery("before", "{}", &billing())).await.verdict, Verdict::Duplicate);
    store.ready().await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lane_waits_for_another_to_be_empty() {
    let dir = tempfile::tempdir().unwrap();
    let h = harness();
    let config = SqliteConfig::at(dir.path().join("makbuz.db"));
    let store = open(config).await.unwrap();
    let answers: Vec<_> =
        (0..4000).map(|n| store.submit(h.delivery(&format!("e{n}"), "{}", &both())).unwrap()).collect();
    // Queued behind sixteen full batches, both are served by one of the next commits.
    store.announce_relay("r", Duration::from_secs(5)).await.unwrap();
    let bounds = makbuz::store::QuarantineBounds { count: 1, bytes: 1, age: Duration::from_secs(1) };
    let retention = makbuz::store::Retention { bodies: Duration::from_secs(86_400), quarantine: bounds };
    store.upkeep(retention).await.unwrap();
    let mut answers = answers;
    let waiting = answers.iter_mut().map(|heard| heard.try_recv()).filter(Result::is_err).count();
    assert!(waiting > 1000, "they waited until intake was nearly empty: {waiting} of 4000 left");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_takes_too_long_is_broken_off() {
    let dir = tempfile::tempdir().unwrap();
    let h = harness();
    let config = SqliteConfig { read_max: Duration::ZERO, ..SqliteConfig::at(dir.path().join("makbuz.db")) };
    let store = open(config).await.unwrap();
    let events = (0..3000).map(|n| h.event(&format!("e{n}"), "{}")).collect();
    let first = deliver(&store, h.batch(events, b"[]", &set(Vec::new()))).await.unwrap().events[0].receipt_id;
    let all = ReceiptQuery { event_type: Some("no.such".to_owned()), limit: 1, ..ReceiptQuery::default() };
    assert_eq!(store.receipts(all).await.unwrap_err().code(), "store_unavailable");
    assert!(store.receipt(first).await.unwrap().is_some(), "short reads go on");
    store.close().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_durable_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("makbuz.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut other = options.connect().await.unwrap();
    sqlx::query("CREATE TABLE somebody (elses INTEGER)").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let error = open(SqliteConfig::at(&path)).await.err().expect("its pages could never be given back");
    assert!(error.code() == "schema" && error.to_string().contains("auto_vacuum"), "{error}");
}

#[tokio::test]
async fn a_url_names_a_file() {
    let path = |url| SqliteConfig::from_url(url).map(|config| config.path.display().to_string());
    assert_eq!(path("sqlite://makbuz.db").as_deref(), Some("makbuz.db"));
    assert_eq!(path("sqlite:///var/lib/makbuz/a.db").as_deref(), Some("/var/lib/makbuz/a.db"));
    assert_eq!(path("postgres://x"), None);
    assert_eq!(path("sqlite://"), None);
}

/// C1, and crash consistency: a process is killed in the middle of its commits, again and again on the same file. What it
/// had answered is there, whole; what it had not may be there or not, but never by halves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_has_kept_what_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("makbuz.db");
    let random = SeededRandom::new(seed());
    for round in 0..5 {
        let wanted = 20 + usize::try_from(random.next_u64() % 400).unwrap();
        let answered = run_and_kill(&path, round, wanted);
        assert!(answered.len() >= wanted);
        let store = open(SqliteConfig::at(&path)).await.unwrap();
        for (event, receipt) in &answered {
            let view = store.receipt(receipt.parse().unwrap()).await.unwrap().expect("answered, so it is kept");
            assert_eq!(&view.receipt.key.event_id, event);
            assert_eq!(view.jobs.len(), 2, "{event}");
            assert_eq!(&store.body(view.receipt.id, false).await.unwrap().body[..], event.as_bytes());
        }
        let again = deliver_one(&store, harness().delivery(&answered[0].0, &answered[0].0, &both())).await;
        assert_eq!((again.verdict, again.receipt_id.to_string()), (Verdict::Duplicate, answered[0].1.clone()));
        store.close().await;
        assert_whole(&path).await;
    }
}

/// Nothing stands by halves, and the counters agree.
async fn assert_whole(path: &Path) {
    let mut conn = beside(path).await;
    let sound: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut conn).await.unwrap();
    assert_eq!(sound, "ok");
    for sql in [
        "SELECT count(*) FROM receipts r WHERE NOT EXISTS (SELECT 1 FROM payloads p WHERE p.id = r.payload_id)",
        "SELECT count(*) FROM receipts r WHERE (SELECT count(*) FROM jobs j WHERE j.receipt_id = r.id) <> 2",
        "SELECT count(*) FROM receipts r WHERE (SELECT count(*) FROM outbox o WHERE o.receipt_id = r.id) <> 1",
        "SELECT (SELECT count(*) FROM outbox) - (SELECT sum(n) FROM job_counts WHERE state = '~outbox')",
        "SELECT (SELECT count(*) FROM jobs) - (SELECT sum(n) FROM job_counts WHERE state IN ('queued', 'pending'))",
    ] {
        let odd: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
        assert_eq!(odd, 0, "{sql}");
    }
    conn.close().await.unwrap();
}

/// Starts this very test binary as a writer and kills it once it has answered `wanted` deliveries.
fn run_and_kill(path: &Path, round: usize, wanted: usize) -> Vec<(String, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::sqlite_only::the_child_of_the_kill_test", "--ignored", "--nocapture"])
        .env(CHILD, format!("{round}:{}", path.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut answered = Vec::new();
    let mut killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap_or_default();
        if let Some((event, receipt)) = line.strip_prefix("answered ").and_then(|rest| rest.split_once(' ')) {
            answered.push((event.to_owned(), receipt.to_owned()));
        }
        if answered.len() >= wanted && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself after {} answers", answered.len());
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by a_killed_writer_has_kept_what_it_answered"]
async fn the_child_of_the_kill_test() {
    #[expect(clippy::disallowed_methods, reason = "a test that starts itself has no other way to say where")]
    let Ok(told) = std::env::var(CHILD) else { return };
    let (round, path) = told.split_once(':').unwrap();
    let store = open(SqliteConfig::at(path)).await.unwrap();
    let h = Arc::new(harness());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (store, h, round) = (store.clone(), h.clone(), round.to_owned());
        writers.spawn(async move {
            for n in 0..20_000 {
                let event = format!("{round}-{writer}-{n}");
                let verdict = deliver_one(&store, h.delivery(&event, &event, &both())).await;
                let line = format!("answered {event} {}\n", verdict.receipt_id);
                // One write for one line, so that a kill leaves no half of it but the last.
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
        });
    }
    writers.join_all().await;
}
