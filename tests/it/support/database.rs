//! A PostgreSQL database of a test's own, and looks into either store past the program under test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

static CREATED: AtomicU32 = AtomicU32::new(0);

/// A fresh database; dropped with this value.
pub struct Database {
    pub url: String,
    pub name: String,
    server: String,
}

impl Database {
    /// Makes one on the server of `DATABASE_URL`; `None`, said by `skip`, without a server.
    pub async fn create() -> Option<Self> {
        let Some(server) = super::variable("DATABASE_URL") else {
            super::skip("no PostgreSQL: DATABASE_URL is not set");
            return None;
        };
        let name = format!("makbuz_it_{}_{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&server).await.expect("DATABASE_URL answers");
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&mut connection)
            .await
            .expect("a new database");
        Some(Self { url: with_database(&server, &name), name, server })
    }

    /// The same database through another address, such as a proxy's.
    pub fn url_at(&self, address: &str) -> String {
        let (credentials, _, rest) = split(&self.url);
        format!("postgres://{credentials}{address}{rest}")
    }

    /// `host:port` of the server.
    pub fn address(&self) -> String {
        let (_, host, _) = split(&self.url);
        if host.contains(':') { host } else { format!("{host}:5432") }
    }

    /// Runs a statement as another session of the server.
    pub async fn execute(&self, statement: &str) {
        let mut connection = PgConnection::connect(&self.server).await.expect("the server answers");
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.expect("the statement runs");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A test's own runtime may be ending; the drop must not wait for it.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&server).await.map_err(std::io::Error::other)?;
                let statement = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
                sqlx::query(statement).execute(&mut connection).await.map_err(std::io::Error::other)
            })
        });
        drop(dropped.join());
    }
}

/// What a store holds, read past the program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The provider's id of each event → the receipt's id.
    pub receipts: BTreeMap<String, String>,
    pub jobs: i64,
    pub outbox: i64,
}

/// Where to look.
#[derive(Debug, Clone)]
pub enum Store {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Store {
    pub fn sqlite(folder: &Path) -> Self {
        Self::Sqlite(folder.join("makbuz.db"))
    }

    /// Reads it all in one snapshot.
    pub async fn read(&self) -> Kept {
        let (rows, jobs, outbox): (Vec<(String, String)>, i64, i64) = match self {
            Self::Sqlite(path) => {
                let mut connection = open(path).await;
                let mut snapshot = connection.begin().await.expect("a snapshot");
                let rows =
                    sqlx::query_as("SELECT provider_ref, lower(hex(id)) FROM receipts").fetch_all(&mut *snapshot).await;
                let counts = sqlx::query_as("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM outbox)")
                    .fetch_one(&mut *snapshot)
                    .await;
                let (jobs, outbox) = counts.expect("jobs and outbox");
                (rows.expect("receipts"), jobs, outbox)
            }
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.expect("the database");
                let mut snapshot = connection.begin().await.expect("a snapshot");
                sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    .execute(&mut *snapshot)
                    .await
                    .expect("one snapshot");
                let rows = sqlx::query_as("SELECT provider_ref, replace(id::text, '-', '') FROM receipts")
                    .fetch_all(&mut *snapshot)
                    .await;
                let counts = sqlx::query_as("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM outbox)")
                    .fetch_one(&mut *snapshot)
                    .await;
                let (jobs, outbox) = counts.expect("jobs and outbox");
                (rows.expect("receipts"), jobs, outbox)
            }
        };
        Kept { receipts: rows.into_iter().map(|(event, id)| (event, plain_id(&id))).collect(), jobs, outbox }
    }
}

/// Every table that an authentic event may leave something in; `rejections` is where the others are kept.
const TABLES: [&str; 8] =
    ["receipts", "payloads", "deliveries", "divergences", "jobs", "attempts", "outbox", "operations"];

impl Store {
    /// How many rows each table has.
    pub async fn rows(&self) -> BTreeMap<&'static str, i64> {
        let mut rows = BTreeMap::new();
        for table in TABLES {
            let statement = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
            let counted = match self {
                Self::Sqlite(path) => sqlx::query_scalar(statement).fetch_one(&mut open(path).await).await,
                Self::Postgres(url) => {
                    let mut connection = PgConnection::connect(url).await.expect("the database");
                    sqlx::query_scalar(statement).fetch_one(&mut connection).await
                }
            };
            rows.insert(table, counted.expect("a table of the schema"));
        }
        rows
    }

    /// The receipts, as 32 hex digits, with the bodies in which they came.
    pub async fn bodies(&self) -> BTreeMap<String, Vec<u8>> {
        const JOINED: &str = "FROM receipts r JOIN payloads p ON p.id = r.payload_id";
        let rows: Vec<(String, Vec<u8>)> = match self {
            Self::Sqlite(path) => {
                let statement = AssertSqlSafe(format!("SELECT hex(r.id), p.body {JOINED}"));
                sqlx::query_as(statement).fetch_all(&mut open(path).await).await.expect("bodies")
            }
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.expect("the database");
                let statement = AssertSqlSafe(format!("SELECT r.id::text, p.body {JOINED}"));
                sqlx::query_as(statement).fetch_all(&mut connection).await.expect("bodies")
            }
        };
        rows.into_iter().map(|(id, body)| (plain_id(&id), body)).collect()
    }
}

async fn open(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(false);
    SqliteConnection::connect_with(&options).await.expect("the database file")
}

/// An id as 32 hex digits, however it was written.
pub fn plain_id(id: &str) -> String {
    id.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase()
}

fn with_database(server: &str, name: &str) -> String {
    let (credentials, host, rest) = split(server);
    let options = rest.split_once('?').map(|(_, options)| format!("?{options}")).unwrap_or_default();
    format!("postgres://{credentials}{host}/{name}{options}")
}

/// `user:password@`, `host:port`, and what follows, of a URL.
fn split(url: &str) -> (String, String, String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let slash = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let (credentials, host) =
        authority.rsplit_once('@').map_or(("", authority), |(credentials, host)| (credentials, host));
    let credentials = if credentials.is_empty() { String::new() } else { format!("{credentials}@") };
    (credentials, host.to_owned(), path.to_owned())
}

#[test]
fn urls_are_taken_apart_and_put_together() {
    assert_eq!(with_database("postgres://u:p@h:1/x?sslmode=disable", "y"), "postgres://u:p@h:1/y?sslmode=disable");
    assert_eq!(with_database("postgresql://h", "y"), "postgres://h/y");
    let database =
        Database { url: "postgres://u@h/y".into(), name: String::new(), server: "postgres://127.0.0.1:1/x".into() };
    assert_eq!(database.address(), "h:5432");
    assert_eq!(database.url_at("127.0.0.1:9"), "postgres://u@127.0.0.1:9/y");
}
