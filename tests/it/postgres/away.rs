//! A database that is away, killed, or read-only.

use std::sync::Arc;
use std::time::Duration;

use makbuz::random::SystemRandom;
use makbuz::store::postgres::PostgresStore;
use makbuz::store::{Intake, StoreError, Upkeep, Verdict};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::deliveries::{answer, delivery, store, until, until_ready};
use crate::support::postgres::{TestDatabase, admin, number, run};

#[tokio::test]
async fn a_database_that_is_missing_at_start_stops_nothing_and_is_used_once_it_is_there() {
    let database = TestDatabase::named();
    let store = PostgresStore::open(database.config(), Arc::new(SystemRandom::new()));
    until("the reason is known", async || {
        store.ready().await.is_err_and(|error| error.to_string().contains(&database.name))
    })
    .await;
    assert!(matches!(store.submit(delivery("evt_1")), Err(StoreError::Unavailable(_))));

    run(&mut admin().await, format!("CREATE DATABASE {}", database.name)).await;
    until_ready(&store).await;
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 1);
    store.close().await;
}

#[tokio::test]
async fn without_leave_to_migrate_a_database_without_schema_keeps_intake_closed() {
    let database = TestDatabase::named();
    run(&mut admin().await, format!("CREATE DATABASE {}", database.name)).await;
    let mut config = database.config();
    config.migrate = false;
    let store = PostgresStore::open(config, Arc::new(SystemRandom::new()));
    until("the reason is known", async || store.ready().await.is_err_and(|error| error.code() == "schema")).await;
    makbuz::store::postgres::migrate(&database.url(), &SystemRandom::new()).await.expect("a schema");
    until_ready(&store).await;
    store.close().await;
}

#[tokio::test]
async fn every_2xx_is_a_row_though_sessions_are_killed_under_load() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let mut other = database.connect().await;
    let mut senders = JoinSet::new();
    let enough = CancellationToken::new();
    for sender in 0..16 {
        let (store, enough) = (store.clone(), enough.clone());
        senders.spawn(async move {
            let mut told = Vec::new();
            for n in (0..).take_while(|n| *n < 60 || !enough.is_cancelled()) {
                let id = format!("evt_{sender}_{n}");
                let verdict = answer(store.submit(delivery(&id))).await;
                told.push((id, verdict.map(|verdict| verdict.events[0].verdict)));
            }
            told
        });
    }
    let mut killed = 0;
    let mut told = Vec::new();
    while !senders.is_empty() {
        killed += number(
            &mut other,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'makbuz %' AND random() < 0.3",
        )
        .await;
        if killed > 6 {
            enough.cancel();
        }
        while let Some(done) = senders.try_join_next() {
            told.extend(done.expect("a sender"));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let stored = told.iter().filter(|(_, verdict)| matches!(verdict, Ok(Verdict::Stored))).count();
    let unknown = told.iter().filter(|(_, verdict)| matches!(verdict, Err(StoreError::UnknownOutcome(_)))).count();
    assert!(told.len() >= 960);
    for (id, verdict) in &told {
        if verdict.is_ok() {
            let row = number(&mut other, format!("SELECT count(*) FROM receipts WHERE event_id = '{id}'")).await;
            assert_eq!(row, 1, "{id} was acknowledged and is not there");
        }
    }
    let rows = number(&mut other, "SELECT count(*) FROM receipts").await;
    assert!(
        rows >= i64::try_from(stored).unwrap() && rows <= i64::try_from(stored + unknown).unwrap(),
        "{rows} {stored} {unknown}"
    );
    for table in
        ["SELECT count(DISTINCT id) FROM payloads", "SELECT count(*) / 2 FROM jobs", "SELECT count(*) FROM outbox"]
    {
        assert_eq!(number(&mut other, table).await, rows, "{table}");
    }
    until_ready(&store).await;
    answer(store.submit(delivery("evt_after"))).await.expect("a commit after all that");
    store.close().await;
}

#[tokio::test]
async fn a_database_set_read_only_is_refused_and_used_again_once_it_is_writable() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let mut other = admin().await;
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'makbuz %' AND datname";
    run(&mut other, format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name)).await;
    number(&mut other, format!("{kill} = '{}'", database.name)).await;
    let refused = answer(store.submit(delivery("evt_1"))).await.expect_err("no commit is possible");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    until("health tells it", async || store.ready().await.is_err_and(|error| error.to_string().contains("read-only")))
        .await;

    run(&mut other, format!("ALTER DATABASE {} RESET default_transaction_read_only", database.name)).await;
    until_ready(&store).await;
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    store.close().await;
}

// W-068: a refusal that leaves the connection sound (a missing table, a right, no space) is told by health all the same.
#[tokio::test]
async fn a_database_that_refuses_commits_is_not_ready_until_it_takes_them_again() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let mut other = database.connect().await;
    run(&mut other, "ALTER TABLE receipts RENAME TO receipts_away").await;
    let refused = answer(store.submit(delivery("evt_1"))).await.expect_err("no commit is possible");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    let told = store.ready().await.expect_err("health tells it");
    assert!(told.to_string().contains("receipts"), "{told}");

    run(&mut other, "ALTER TABLE receipts_away RENAME TO receipts").await;
    // No delivery comes: it is found out all the same.
    until_ready(&store).await;
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    assert!(store.ready().await.is_ok());
    store.close().await;
}

#[tokio::test]
async fn closing_commits_what_is_queued_and_takes_nothing_more() {
    let database = TestDatabase::create().await;
    let store = store(database.config()).await;
    let waiting: Vec<_> = (0..40).map(|n| store.submit(delivery(&format!("evt_{n}")))).collect();
    store.close().await;
    for one in waiting {
        answer(one).await.expect("committed before the end");
    }
    assert!(matches!(store.submit(delivery("evt_late")), Err(StoreError::Unavailable(_))));
    let mut other = database.connect().await;
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 40);
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'makbuz %'";
    until("its sessions are gone", async || number(&mut other, sessions).await == 0).await;
}
