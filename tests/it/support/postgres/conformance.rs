//! PostgreSQL as a backend of the conformance suite.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use makbuz::clock::{Clock, SystemClock, micros};
use makbuz::random::SeededRandom;
use makbuz::store::postgres::PostgresStore;
use makbuz::store::{Intake, Store, Upkeep};
use sqlx::{AssertSqlSafe, Row};
use tokio::time::{Instant, sleep};

use super::TestDatabase;
use crate::store::harness::{Backend, Harness, seed};

/// The factory of the conformance suite.
pub async fn fresh_store() -> (Arc<dyn Store>, Harness) {
    let backend = Postgres {
        database: TestDatabase::create().await,
        offset: Arc::default(),
        began_at: SystemClock.now(),
        random: Arc::new(SeededRandom::new(seed())),
        open: Mutex::default(),
    };
    let store = backend.open().await;
    (store, Harness::new(Box::new(backend)))
}

struct Postgres {
    database: TestDatabase,
    /// What has passed for the store beside the server's own time.
    offset: Arc<AtomicI64>,
    /// The suite's clock stands still but for what it lets pass; the server's goes on, a few milliseconds ahead.
    began_at: i64,
    random: Arc<SeededRandom>,
    open: Mutex<Option<Arc<PostgresStore>>>,
}

impl Postgres {
    async fn open(&self) -> Arc<PostgresStore> {
        let mut config = self.database.config();
        config.clock_offset = self.offset.clone();
        let store = PostgresStore::open(config, self.random.clone());
        let started = Instant::now();
        while let Err(error) = store.ready().await {
            assert!(
                Instant::now().duration_since(started) < Duration::from_secs(20),
                "the store does not open: {error}"
            );
            sleep(Duration::from_millis(5)).await;
        }
        *self.open.lock().expect("not poisoned") = Some(store.clone());
        store
    }

    async fn close(&self) {
        let open = self.open.lock().expect("not poisoned").take();
        if let Some(store) = open {
            store.close().await;
        }
    }
}

#[async_trait]
impl Backend for Postgres {
    fn now(&self) -> i64 {
        self.began_at + self.offset.load(Ordering::SeqCst)
    }

    async fn pass(&self, span: Duration) {
        self.offset.fetch_add(micros(span), Ordering::SeqCst);
    }

    async fn number(&self, sql: &'static str) -> i64 {
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut self.database.connect().await).await;
        // As text, whatever kind of number it is.
        row.unwrap_or_else(|error| panic!("{sql}: {error}")).try_get_unchecked(0).expect("a number")
    }

    async fn bodies(&self) -> i64 {
        self.number("SELECT (SELECT count(*) FROM payloads) + (SELECT count(*) FROM payloads_kept)").await
    }

    async fn execute(&self, sql: &'static str) -> Result<(), String> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.database.connect().await).await;
        done.map(|_| ()).map_err(|error| error.to_string())
    }

    async fn restart(&self) -> Arc<dyn Store> {
        self.close().await;
        self.open().await
    }

    async fn finish(&self) {
        self.close().await;
    }
}
