//! A PostgreSQL database for each test, made from a template that holds the schema, and dropped with the test.

mod conformance;
pub mod proxy;

pub use conformance::fresh_store;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use makbuz::random::SystemRandom;
use makbuz::store::postgres::{self, PostgresConfig, PostgresUrl};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};
use tokio::sync::OnceCell;

/// The server: `DATABASE_URL`, or the standard port on this machine. Its role must be allowed to make databases.
fn server() -> String {
    #[expect(clippy::disallowed_methods, reason = "tests have no configuration file")]
    std::env::var("DATABASE_URL").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned())
}

/// A connection to the server's own database, for what is no test's.
pub async fn admin() -> PgConnection {
    let options: PgConnectOptions = server().parse().expect("DATABASE_URL is a URL");
    options.connect().await.expect("a PostgreSQL server for the tests")
}

/// Runs statements whose text is made here.
pub async fn run(connection: &mut PgConnection, sql: impl Into<String>) {
    let sql = sql.into();
    sqlx::raw_sql(AssertSqlSafe(sql.clone()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// One number.
pub async fn number(connection: &mut PgConnection, sql: impl Into<String>) -> i64 {
    let sql = sql.into();
    let row = sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_one(connection).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error}")).try_get(0).expect("a bigint")
}

/// A database of one test.
pub struct TestDatabase {
    pub name: String,
}

impl TestDatabase {
    /// A database with the schema.
    pub async fn create() -> Self {
        let template = template().await;
        let database = Self::named();
        let mut admin = admin().await;
        run(&mut admin, format!("CREATE DATABASE {} TEMPLATE {template}", database.name)).await;
        database
    }

    /// A name of its own, and no database yet.
    pub fn named() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::SeqCst);
        Self { name: format!("makbuz_t_{}_{next}", std::process::id()) }
    }

    /// Its address.
    pub fn url(&self) -> PostgresUrl {
        self.text().parse().expect("a URL")
    }

    /// Its address on another port of this machine, for a proxy.
    pub fn url_at(&self, port: u16) -> PostgresUrl {
        let options: PgConnectOptions = self.text().parse().expect("a URL");
        let user = options.get_username().to_owned();
        format!("postgres://{user}@127.0.0.1:{port}/{}", self.name).parse().expect("a URL")
    }

    /// Host and port of the server.
    pub fn address() -> (String, u16) {
        let options: PgConnectOptions = server().parse().expect("DATABASE_URL is a URL");
        (options.get_host().to_owned(), options.get_port())
    }

    /// Settings for a store on it, with short limits.
    pub fn config(&self) -> PostgresConfig {
        Self::config_for(self.url())
    }

    /// The same for any address.
    pub fn config_for(url: PostgresUrl) -> PostgresConfig {
        PostgresConfig { backoff: (Duration::from_millis(100), Duration::from_millis(400)), ..PostgresConfig::at(url) }
    }

    /// A connection that the store does not know of.
    pub async fn connect(&self) -> PgConnection {
        let options: PgConnectOptions = self.text().parse().expect("a URL");
        options.connect().await.expect("the test's database")
    }

    fn text(&self) -> String {
        let server = server();
        let (path, rest) = server.split_once('?').map_or((server.as_str(), None), |(path, rest)| (path, Some(rest)));
        let base = path.rsplit_once('/').map_or(path, |(base, _)| base);
        let rest = rest.map(|rest| format!("?{rest}")).unwrap_or_default();
        format!("{base}/{}{rest}", self.name)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A runtime of its own: the test's may be about to end.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut admin = admin().await;
                run(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
            });
        });
        if dropping.join().is_err() && !std::thread::panicking() {
            panic!("the database {} was not dropped", self.name);
        }
    }
}

/// The template's name; made once per schema, whichever process comes first, and kept.
async fn template() -> &'static str {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    TEMPLATE.get_or_init(make_template).await
}

async fn make_template() -> String {
    let digest = makbuz_schema_digest();
    let name = format!("makbuz_template_{digest}");
    let mut admin = admin().await;
    run(&mut admin, "SELECT pg_advisory_lock(7310)").await;
    sweep(&mut admin).await;
    let ready = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}' AND datistemplate");
    if number(&mut admin, ready).await == 0 {
        run(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        run(&mut admin, format!("CREATE DATABASE {name}")).await;
        let made = TestDatabase { name: name.clone() };
        let url = made.url();
        // It is no test's: nothing drops it.
        std::mem::forget(made);
        postgres::migrate(&url, &SystemRandom::new()).await.expect("the schema");
        run(&mut admin, format!("ALTER DATABASE {name} IS_TEMPLATE true")).await;
    }
    run(&mut admin, "SELECT pg_advisory_unlock(7310)").await;
    admin.close().await.expect("closed");
    name
}

/// The text of all migrations, as a short number.
fn makbuz_schema_digest() -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    include_str!("../../../migrations/postgres/0001_schema.sql").hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Drops what killed test processes have left behind.
async fn sweep(admin: &mut PgConnection) {
    let left = sqlx::raw_sql("SELECT datname::text FROM pg_database WHERE datname LIKE 'makbuz\\_t\\_%'")
        .fetch_all(&mut *admin)
        .await;
    for row in left.expect("the list of databases") {
        let name: String = row.try_get(0).expect("a name");
        let process = name.split('_').nth(2).unwrap_or_default();
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            run(admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        }
    }
}
