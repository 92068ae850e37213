//! Lines between the store and its server that are cut, slow, or dead without saying so.

use std::time::Duration;

use makbuz::store::{Intake, StoreError, Upkeep};
use tokio::time::Instant;

use super::deliveries::{answer, delivery, store, until, until_ready};
use crate::support::postgres::proxy::{Behaviour, Proxy};
use crate::support::postgres::{TestDatabase, number};

async fn proxied(database: &TestDatabase) -> (Proxy, makbuz::store::postgres::PostgresConfig) {
    let (host, port) = TestDatabase::address();
    let proxy = Proxy::to(&host, port).await;
    let mut config = TestDatabase::config_for(database.url_at(proxy.port));
    config.answer_limit = Duration::from_millis(1500);
    (proxy, config)
}

#[tokio::test]
async fn a_dead_line_answers_within_the_limit_and_is_left_behind() {
    let database = TestDatabase::create().await;
    let (proxy, config) = proxied(&database).await;
    let store = store(config).await;
    answer(store.submit(delivery("evt_before"))).await.expect("a commit");

    proxy.set(Behaviour::Silent);
    let began = Instant::now();
    let waiting: Vec<_> = (0..20).map(|n| store.submit(delivery(&format!("evt_{n}")))).collect();
    for one in waiting {
        let error = answer(one).await.expect_err("nothing gets through");
        assert!(matches!(error, StoreError::UnknownOutcome(_) | StoreError::Unavailable(_)), "{error}");
    }
    assert!(Instant::now().duration_since(began) < Duration::from_secs(4), "the waiters waited too long");
    until("intake is closed", async || store.ready().await.is_err()).await;
    let began = Instant::now();
    assert!(matches!(store.submit(delivery("evt_x")), Err(StoreError::Unavailable(_))));
    assert!(Instant::now().duration_since(began) < Duration::from_millis(100), "a closed intake answers at once");

    proxy.set(Behaviour::Pass);
    until_ready(&store).await;
    answer(store.submit(delivery("evt_after"))).await.expect("a commit without a restart");
    store.close().await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_a_resend_settles_it() {
    let database = TestDatabase::create().await;
    let (proxy, config) = proxied(&database).await;
    let store = store(config).await;
    let mut other = database.connect().await;
    // The statements get their answers slowly, and the line goes deaf under way: whatever was sent stands or falls alone.
    let mut unknown = 0;
    for n in 0..6_u64 {
        let id = format!("evt_{n}");
        let waiting = store.submit(delivery(&id));
        tokio::time::sleep(Duration::from_millis(n)).await;
        proxy.set(Behaviour::Deaf);
        let told = answer(waiting).await;
        unknown += u32::from(matches!(told, Err(StoreError::UnknownOutcome(_))));
        proxy.set(Behaviour::Pass);
        until("intake is open", async || answer(store.submit(delivery(&id))).await.is_ok()).await;
        assert_eq!(number(&mut other, format!("SELECT count(*) FROM receipts WHERE event_id = '{id}'")).await, 1);
    }
    assert!(unknown > 0, "no commit was ever caught");
    assert_eq!(number(&mut other, "SELECT count(*) FROM receipts").await, 6);
    store.close().await;
}

#[tokio::test]
async fn a_line_that_is_cut_is_mended_without_anyone_noticing() {
    let database = TestDatabase::create().await;
    let (proxy, config) = proxied(&database).await;
    let store = store(config).await;
    for n in 0..10 {
        proxy.cut();
        answer(store.submit(delivery(&format!("evt_{n}")))).await.expect("the batch went to a new connection");
        store.token_key().await.expect("the command went to a new connection");
    }
    store.close().await;
}

#[tokio::test]
async fn a_server_that_refuses_connections_closes_intake_until_it_takes_them() {
    let database = TestDatabase::create().await;
    let (proxy, config) = proxied(&database).await;
    let store = store(config).await;
    proxy.set(Behaviour::Refuse);
    proxy.cut();
    answer(store.submit(delivery("evt_1"))).await.expect_err("no server");
    until("intake is closed", async || store.ready().await.is_err()).await;
    assert!(store.token_key().await.is_err());
    proxy.set(Behaviour::Pass);
    until_ready(&store).await;
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    store.token_key().await.expect("a command");
    store.close().await;
}

#[tokio::test]
async fn a_slow_line_is_only_slow() {
    let database = TestDatabase::create().await;
    let (proxy, mut config) = proxied(&database).await;
    config.answer_limit = Duration::from_secs(10);
    let store = store(config).await;
    proxy.set(Behaviour::Delay(Duration::from_millis(20)));
    answer(store.submit(delivery("evt_1"))).await.expect("a commit");
    store.close().await;
}

#[tokio::test]
async fn abandoned_sessions_do_not_pile_up_in_the_server() {
    let database = TestDatabase::create().await;
    let (proxy, mut config) = proxied(&database).await;
    config.answer_limit = Duration::from_millis(300);
    config.writers = 1;
    let store = store(config).await;
    let mut other = database.connect().await;
    // The server hears us and we do not hear it: each new session is left hanging in it.
    proxy.set(Behaviour::Deaf);
    let _ = answer(store.submit(delivery("evt_1"))).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'makbuz write%'";
    let left = number(&mut other, sessions).await;
    assert!(left <= 3, "{left} sessions of one writer");
    proxy.set(Behaviour::Pass);
    until_ready(&store).await;
    store.close().await;
}
