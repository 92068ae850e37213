//! A fresh embedded store in a folder of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use makbuz::clock::{Clock, MockClock};
use makbuz::random::SeededRandom;
use makbuz::store::Store;
use makbuz::store::sqlite::{SqliteConfig, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::store::harness::{Backend, Harness};

/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600_000_000;

/// The factory of the conformance suite.
pub async fn fresh_store() -> (Arc<dyn Store>, Harness) {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let backend = Sqlite {
        path: dir.path().join("makbuz.db"),
        clock: Arc::new(MockClock::at(START)),
        random: Arc::new(SeededRandom::new(crate::store::harness::seed())),
        open: Mutex::default(),
        _dir: dir,
    };
    let store = backend.open().await;
    (store, Harness::new(Box::new(backend)))
}

struct Sqlite {
    path: PathBuf,
    clock: Arc<MockClock>,
    random: Arc<SeededRandom>,
    open: Mutex<Option<Arc<SqliteStore>>>,
    _dir: tempfile::TempDir,
}

impl Sqlite {
    async fn open(&self) -> Arc<SqliteStore> {
        let config = SqliteConfig::at(&self.path);
        let store = SqliteStore::open(config, self.clock.clone(), self.random.clone()).await.expect("the store opens");
        let store = Arc::new(store);
        *self.open.lock().expect("not poisoned") = Some(store.clone());
        store
    }

    async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(&self.path).busy_timeout(Duration::from_secs(5));
        options.disable_statement_logging().connect().await.expect("a connection beside the store")
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn now(&self) -> i64 {
        self.clock.now()
    }

    async fn pass(&self, span: Duration) {
        self.clock.advance(span);
    }

    async fn number(&self, sql: &'static str) -> i64 {
        let mut conn = self.connection().await;
        let number = sqlx::query_scalar(sql).fetch_one(&mut conn).await.expect("a number");
        conn.close().await.expect("closes");
        number
    }

    async fn execute(&self, sql: &'static str) -> Result<(), String> {
        let mut conn = self.connection().await;
        let done = sqlx::raw_sql(sql).execute(&mut conn).await.map(|_| ()).map_err(|error| error.to_string());
        conn.close().await.expect("closes");
        done
    }

    async fn restart(&self) -> Arc<dyn Store> {
        use makbuz::store::Upkeep;
        let open = self.open.lock().expect("not poisoned").take();
        if let Some(store) = open {
            store.close().await;
        }
        self.open().await
    }
}
