//! Tries the store for real: what it stands on, what it can do, and what will be too small.

use sqlx::{PgConnection, Row};
use tokio::time::timeout;

use super::connect::Purpose;
use super::error::store_error;
use super::{Shared, Sql, migration, unavailable};
use crate::store::migrate;
use crate::store::{CheckFinding, Severity, StoreError};

/// Findings in the order of their weight for a reader: connection, durability, schema, a trial, then sizes.
pub(super) async fn run(shared: &Shared) -> Result<Vec<CheckFinding>, StoreError> {
    // Past the limit the future is dropped together with the connection that it owns.
    let done = timeout(shared.config.command_limit, async {
        let mut connection = shared.connector.open(Purpose::Command).await?;
        let mut findings = settings(&mut connection).await.map_err(|error| store_error(&error))?;
        findings.extend(schema(&mut connection).await);
        findings.push(trial(&mut connection).await);
        Ok(findings)
    });
    done.await.map_err(|_| unavailable("check: no answer"))?
}

async fn settings(connection: &mut PgConnection) -> Sql<Vec<CheckFinding>> {
    let row = sqlx::query(
        "-- check_settings
         SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
             current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
             current_setting('synchronous_commit') AS synchronous_commit,
             current_setting('synchronous_standby_names') AS standbys, current_setting('wal_compression') AS wal_compression,
             (SELECT setting::bigint FROM pg_settings WHERE name = 'max_wal_size') AS max_wal_mib,
             (SELECT setting::bigint FROM pg_settings WHERE name = 'checkpoint_timeout') AS checkpoint_s,
             current_setting('max_connections')::int AS connections",
    )
    .fetch_one(connection)
    .await?;
    let text = |name: &str| row.try_get::<String, _>(name);
    let mut findings = vec![version(&text("version")?, row.try_get("number")?)];
    findings.push(must_be_on("fsync", &text("fsync")?, "a power failure loses or corrupts what was acknowledged"));
    findings.push(must_be_on(
        "full_page_writes",
        &text("full_page_writes")?,
        "a power failure can tear pages for good",
    ));
    findings.push(synchronous_commit(&text("synchronous_commit")?));
    if text("standbys")?.is_empty() {
        let text = "no synchronous standby: a 200 survives this server's crash, not its loss".to_owned();
        findings.push(CheckFinding { severity: Severity::Ok, code: "store_durability", text });
    }
    if text("wal_compression")? == "off" {
        findings.push(warning("wal_compression is off: full pages after each checkpoint double the WAL".to_owned()));
    }
    let wal: i64 = row.try_get("max_wal_mib")?;
    if wal < 4096 {
        let text = format!(
            "max_wal_size is {wal} MiB: at some thousands of events a second it forces a checkpoint every few seconds"
        );
        findings.push(warning(text));
    }
    let checkpoint: i64 = row.try_get("checkpoint_s")?;
    if checkpoint < 900 {
        let text = format!("checkpoint_timeout is {checkpoint} s: under 15 min each page is written whole too often");
        findings.push(warning(text));
    }
    let connections: i32 = row.try_get("connections")?;
    if connections < 50 {
        let text = format!("max_connections is {connections}: each process takes up to 15 during an outage");
        findings.push(warning(text));
    }
    Ok(findings)
}

fn version(text: &str, number: i32) -> CheckFinding {
    let severity = if number < 140_000 { Severity::Error } else { Severity::Ok };
    CheckFinding { severity, code: "store_version", text: format!("PostgreSQL {text} (14 or newer is needed)") }
}

fn must_be_on(name: &str, value: &str, otherwise: &str) -> CheckFinding {
    let code = "store_durability";
    match value {
        "on" => CheckFinding { severity: Severity::Ok, code, text: format!("{name} is on") },
        _ => CheckFinding { severity: Severity::Error, code, text: format!("{name} is {value}: {otherwise}") },
    }
}

fn synchronous_commit(value: &str) -> CheckFinding {
    let code = "store_durability";
    match value {
        "on" | "remote_apply" => CheckFinding {
            severity: Severity::Ok,
            code,
            text: format!("synchronous_commit is {value} for our sessions"),
        },
        _ => CheckFinding {
            severity: Severity::Error,
            code,
            text: format!("synchronous_commit is {value}: a 200 could be forgotten"),
        },
    }
}

async fn schema(connection: &mut PgConnection) -> Vec<CheckFinding> {
    let state = match migration::applied(connection).await {
        Ok(applied) => {
            migrate::complete(&applied, &migration::MIGRATIONS, migrate::BINARY_SCHEMA).map(|()| applied.len())
        }
        Err(error) => Err(error),
    };
    let finding = match state {
        Ok(steps) => CheckFinding {
            severity: Severity::Ok,
            code: "store_schema",
            text: format!("schema is complete ({steps} steps)"),
        },
        Err(error) => CheckFinding { severity: Severity::Error, code: "store_schema", text: error.to_string() },
    };
    vec![finding]
}

/// Writes a row, commits, reads it back, removes it.
async fn trial(connection: &mut PgConnection) -> CheckFinding {
    let done = async {
        sqlx::raw_sql("BEGIN").execute(&mut *connection).await?;
        sqlx::query(
            "-- check_write
             INSERT INTO settings (name, value) VALUES ('check', '\\x6d616b62757a')
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )
        .execute(&mut *connection)
        .await?;
        sqlx::raw_sql("COMMIT").execute(&mut *connection).await?;
        let back: Option<Vec<u8>> = sqlx::query("-- check_read\nSELECT value FROM settings WHERE name = 'check'")
            .fetch_optional(&mut *connection)
            .await?
            .map(|row| row.try_get("value"))
            .transpose()?;
        sqlx::query("-- check_remove\nDELETE FROM settings WHERE name = 'check'").execute(&mut *connection).await?;
        Sql::Ok(back.as_deref() == Some(b"makbuz"))
    };
    match done.await {
        Ok(true) => CheckFinding {
            severity: Severity::Ok,
            code: "store_writes",
            text: "wrote a row and read it back".to_owned(),
        },
        Ok(false) => CheckFinding {
            severity: Severity::Error,
            code: "store_writes",
            text: "a committed row was not there".to_owned(),
        },
        Err(error) => CheckFinding {
            severity: Severity::Error,
            code: "store_writes",
            text: format!("a row could not be written: {error}"),
        },
    }
}

fn warning(text: String) -> CheckFinding {
    CheckFinding { severity: Severity::Warning, code: "store_sizes", text }
}
