//! Tries the store for real: a row written and read back, the durability settings, the schema.

use sqlx::SqliteConnection;

use super::connection::{durability, failure};
use super::migrations;
use crate::store::{CheckFinding, Severity, StoreError};

/// Leaves a row behind, for [`read_back`] on another connection after COMMIT.
pub(super) async fn write(conn: &mut SqliteConnection, mark: Vec<u8>) -> Result<(), StoreError> {
    sqlx::query(
        "-- check_write
         INSERT INTO settings (name, value) VALUES ('check', ?1) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(mark)
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}

/// Whether the row is there as it was written.
pub(super) async fn read_back(conn: &mut SqliteConnection, mark: &[u8]) -> Result<CheckFinding, StoreError> {
    let kept: Option<Vec<u8>> = sqlx::query_scalar("-- check_read\nSELECT value FROM settings WHERE name = 'check'")
        .fetch_optional(conn)
        .await
        .map_err(failure)?;
    Ok(if kept.as_deref() == Some(mark) {
        finding(Severity::Ok, "store_writes", "a row was written and read back")
    } else {
        finding(Severity::Error, "store_writes", "a row that was written did not come back as it was")
    })
}

/// The writer's settings and the schema.
pub(super) async fn settings(conn: &mut SqliteConnection) -> Result<Vec<CheckFinding>, StoreError> {
    let mut findings = Vec::new();
    for setting in durability(conn).await? {
        let severity = if setting.is_held() { Severity::Ok } else { Severity::Error };
        let text = format!("PRAGMA {} is {}, must be {}", setting.name, setting.value, setting.wanted);
        findings.push(CheckFinding { severity, code: "store_durability", text });
    }
    let newest = migrations::applied(conn).await?.iter().map(|step| step.number).max().unwrap_or(0);
    findings.push(CheckFinding { severity: Severity::Ok, code: "store_schema", text: format!("schema {newest}") });
    Ok(findings)
}

fn finding(severity: Severity, code: &'static str, text: &str) -> CheckFinding {
    CheckFinding { severity, code, text: text.to_owned() }
}
