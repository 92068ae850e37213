//! Settings of the PostgreSQL store, and the address that is never printed.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::store::StoreError;
use crate::store::committer::CommitterConfig;

/// Settings of [`super::PostgresStore`].
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    pub url: PostgresUrl,
    /// Writers of the intake, each with a connection of its own. Default 2: while one waits for its flush, the other runs, and batches stay large.
    pub writers: u32,
    /// Connections for reads and all other commands. Default 6.
    pub commands_max: u32,
    /// Longest wait for one of them; past it the command fails. Default 2 s.
    pub acquire_timeout: Duration,
    /// Longest wait for the answer to one intake transaction; past it its waiters hear that the outcome is unknown, and
    /// the connection is dropped. Default 10 s.
    pub answer_limit: Duration,
    /// The same for one command. Default 30 s.
    pub command_limit: Duration,
    /// Longest wait for a row lock. Default 2 s.
    pub lock_timeout: Duration,
    /// Wait between two attempts at a first writer: from … to. Default 1 s to 30 s.
    pub backoff: (Duration, Duration),
    /// Bounds of the intake queue and of one transaction.
    pub committer: CommitterConfig,
    /// Bring the schema up to date before the first commit, one process at a time. Without it a schema that is not
    /// complete keeps intake closed until `makbuz migrate` has run. Default true.
    pub migrate: bool,
    /// Days of partitions that are made ahead. Default 15, so that 14 are there between two looks.
    pub days_ahead: u32,
    /// Added to the database's clock everywhere, in microseconds. For tests only.
    pub clock_offset: Arc<AtomicI64>,
}

impl PostgresConfig {
    /// The defaults, for the database at `url`.
    pub fn at(url: PostgresUrl) -> Self {
        Self {
            url,
            writers: 2,
            commands_max: 6,
            acquire_timeout: Duration::from_secs(2),
            answer_limit: Duration::from_secs(10),
            command_limit: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(2),
            backoff: (Duration::from_secs(1), Duration::from_secs(30)),
            committer: CommitterConfig::default(),
            migrate: true,
            days_ahead: 15,
            clock_offset: Arc::default(),
        }
    }
}

/// `postgres://…`, perhaps with a password in it: shown only as host, port and database.
#[derive(Clone)]
pub struct PostgresUrl(PgConnectOptions);

impl PostgresUrl {
    pub(super) fn options(&self) -> PgConnectOptions {
        self.0.clone()
    }
}

impl FromStr for PostgresUrl {
    type Err = StoreError;

    /// The error does not repeat the text: it may hold a password.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let known = text.starts_with("postgres://") || text.starts_with("postgresql://");
        match text.parse() {
            Ok(options) if known => Ok(Self(without_vain_tls(options, text))),
            _ => Err(StoreError::Unavailable(
                "the store's URL is not one of the form postgres://user@host/database".to_owned(),
            )),
        }
    }
}

/// TLS to this very machine guards nothing, and its records, each smaller than a loopback segment, wait for one another's
/// acknowledgement: about 40 ms for a batch. Only a URL that asks for it has it.
fn without_vain_tls(options: PgConnectOptions, text: &str) -> PgConnectOptions {
    let host = options.get_host();
    let is_loopback = host == "localhost"
        || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let asked = text.contains("sslmode=") || text.contains("ssl-mode=");
    if is_loopback && !asked && matches!(options.get_ssl_mode(), PgSslMode::Prefer) {
        options.ssl_mode(PgSslMode::Disable)
    } else {
        options
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.0.get_database().unwrap_or("(user's own)");
        match self.0.get_socket() {
            Some(socket) => write!(f, "postgres://{}/{database}", socket.display()),
            None => write!(f, "postgres://{}:{}/{database}", self.0.get_host(), self.0.get_port()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_to_this_machine_is_left_out_unless_the_url_asks_for_it() {
        let mode = |text: &str| text.parse::<PostgresUrl>().expect("a URL").options().get_ssl_mode();
        for text in ["postgres://root@127.0.0.1/x", "postgres://root@localhost:5433/x", "postgres://root@[::1]/x"] {
            assert!(matches!(mode(text), PgSslMode::Disable), "{text}");
        }
        assert!(matches!(mode("postgres://root@db.example/x"), PgSslMode::Prefer));
        assert!(matches!(mode("postgres://root@127.0.0.1/x?sslmode=prefer"), PgSslMode::Prefer));
        assert!(matches!(mode("postgres://root@127.0.0.1/x?sslmode=require"), PgSslMode::Require));
    }

    #[test]
    fn a_password_is_never_printed() {
        let url: PostgresUrl = "postgres://gate:s3cret-canary@db.example:6432/makbuz".parse().expect("a URL");
        let config = PostgresConfig::at(url.clone());
        for text in [format!("{url}"), format!("{url:?}"), format!("{config:?}")] {
            assert!(text.contains("db.example:6432/makbuz"), "{text}");
            assert!(!text.contains("s3cret-canary") && !text.contains("gate"), "{text}");
        }
        let wrong = "mysql://gate:s3cret-canary@db/makbuz".parse::<PostgresUrl>().expect_err("another database");
        assert!(!wrong.to_string().contains("s3cret-canary"), "{wrong}");
    }
}
