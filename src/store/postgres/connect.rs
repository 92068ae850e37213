//! One connection of our own: opened, set for durability, and refused if it cannot be trusted with a 200.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, Row};

use super::config::{PostgresConfig, PostgresUrl};
use super::error::store_error;
use crate::store::StoreError;

/// What a connection is for; `pg_stat_activity` shows it as the application's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Write,
    Command,
    /// DDL and copying: nothing but a lock has a time limit.
    Upkeep,
}

/// Opens connections that are alike.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    url: PostgresUrl,
    /// Tells the sessions of this process from those of others.
    instance: String,
    lock_timeout: Duration,
    statement_timeout: Duration,
}

impl Connector {
    pub(super) fn new(config: &PostgresConfig, instance: String) -> Self {
        Self {
            url: config.url.clone(),
            instance,
            lock_timeout: config.lock_timeout,
            // A little less than the limit after which nobody listens any more.
            statement_timeout: config.answer_limit.mul_f64(0.9),
        }
    }

    /// The application name of sessions for `purpose`.
    pub(super) fn application_name(&self, purpose: Purpose) -> String {
        let what = match purpose {
            Purpose::Write => "write",
            Purpose::Command => "command",
            Purpose::Upkeep => "upkeep",
        };
        format!("makbuz {what} {}", self.instance)
    }

    /// Opens a connection; one that leads to a read-only server, or is not durable, is closed and refused.
    pub(super) async fn open(&self, purpose: Purpose) -> Result<PgConnection, StoreError> {
        let mut connection = self.options(purpose).connect().await.map_err(|error| store_error(&error))?;
        match examine(&mut connection).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                // The refusal is the answer; how the closing went changes nothing.
                let _ = connection.close().await;
                Err(error)
            }
        }
    }

    fn options(&self, purpose: Purpose) -> PgConnectOptions {
        let statement_timeout = match purpose {
            Purpose::Upkeep => Duration::ZERO,
            Purpose::Write | Purpose::Command => self.statement_timeout,
        };
        self.url
            .options()
            .application_name(&self.application_name(purpose))
            .options([
                ("synchronous_commit", "on".to_owned()),
                ("client_encoding", "UTF8".to_owned()),
                ("TimeZone", "UTC".to_owned()),
                // Every statement is short; compiling one costs more than running it a hundred times.
                ("jit", "off".to_owned()),
                ("lock_timeout", in_ms(self.lock_timeout)),
                ("statement_timeout", in_ms(statement_timeout)),
                ("idle_in_transaction_session_timeout", in_ms(Duration::from_secs(5))),
                // The server's side of a dead line: its locks must not outlive us for hours.
                ("tcp_keepalives_idle", "10".to_owned()),
                ("tcp_keepalives_interval", "5".to_owned()),
                ("tcp_keepalives_count", "3".to_owned()),
                ("tcp_user_timeout", in_ms(Duration::from_secs(20))),
            ])
            .disable_statement_logging()
    }
}

fn in_ms(span: Duration) -> String {
    span.as_millis().to_string()
}

/// Reads back what a 200 stands on.
pub(super) async fn examine(connection: &mut PgConnection) -> Result<(), StoreError> {
    let row = sqlx::query(
        "-- examine_session
         SELECT pg_is_in_recovery() AS standby, current_setting('transaction_read_only') AS read_only,
                current_setting('synchronous_commit') AS synchronous_commit, current_setting('server_version_num')::int AS version",
    )
    .fetch_one(connection)
    .await
    .map_err(|error| store_error(&error))?;
    let text = |name: &str| row.try_get::<String, _>(name).map_err(|error| store_error(&error));
    if row.try_get("standby").map_err(|error| store_error(&error))? {
        return Err(StoreError::Unavailable("the database is a standby".to_owned()));
    }
    if text("read_only")? == "on" {
        return Err(StoreError::Unavailable("the database is read-only".to_owned()));
    }
    let synchronous_commit = text("synchronous_commit")?;
    if !matches!(&*synchronous_commit, "on" | "remote_apply") {
        return Err(StoreError::Unavailable(format!("synchronous_commit is {synchronous_commit}, not on")));
    }
    let version: i32 = row.try_get("version").map_err(|error| store_error(&error))?;
    if version < 140_000 {
        return Err(StoreError::Unavailable(format!("PostgreSQL 14 or newer is needed, this is {}", version / 10_000)));
    }
    Ok(())
}
