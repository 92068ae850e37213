//! Rows as the model's types. What the database holds and the model does not know is a decode error, never a guess.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Sql;
use crate::model::attempt::{Attempt, Trigger};
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, JobState, Lane};
use crate::model::outcome::OutcomeKind;
use crate::model::receipt::{EventKey, HoldReason, Mode, Origin, Receipt};

/// A receipt from a row with the columns of `receipts`, `id` named `receipt_id`.
pub(super) fn receipt(row: &PgRow) -> Sql<Receipt> {
    Ok(Receipt {
        id: ReceiptId(row.try_get("receipt_id")?),
        key: EventKey {
            provider: row.try_get("provider")?,
            account: row.try_get("account")?,
            event_id: row.try_get("event_id")?,
        },
        provider_ref: row.try_get("provider_ref")?,
        mode: Mode::parse(row.try_get("mode")?),
        source: row.try_get("source")?,
        event_type: row.try_get("event_type")?,
        occurred_at: row.try_get("occurred_at")?,
        received_at: row.try_get("received_at")?,
        resource_key: row.try_get("resource_key")?,
        resource_version: row.try_get("resource_version")?,
        payload_id: row.try_get::<Option<_>, _>("payload_id")?.map(PayloadId),
        pointer: row.try_get("pointer")?,
        part: part(row)?,
        item_sha256: digest(row, "item_sha256")?,
        signed_sha256: digest(row, "signed_sha256")?,
        verified_by: row
            .try_get::<Option<&str>, _>("verified_by")?
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| sqlx::Error::Decode(error.into()))?,
        origin: origin(row.try_get("origin")?)?,
        flags: row.try_get("flags")?,
        hold_reason: named(row, "hold_reason", HoldReason::parse)?,
        duplicates: row.try_get("duplicates")?,
        last_delivered_at: row.try_get("last_delivered_at")?,
    })
}

/// A job from a row with the columns of `jobs`.
pub(super) fn job(row: &PgRow) -> Sql<Job> {
    Ok(Job {
        key: job_key(row)?,
        source: row.try_get("source")?,
        state: must(JobState::parse(row.try_get("state")?), "jobs.state")?,
        attempt: row.try_get("attempt")?,
        series: row.try_get("series")?,
        series_attempts: row.try_get("series_attempts")?,
        first_attempt_at: row.try_get("first_attempt_at")?,
        next_attempt_at: row.try_get("next_attempt_at")?,
        leased_until: row.try_get("leased_until")?,
        handed_at: row.try_get("handed_at")?,
        lane: Lane::parse(row.try_get("lane")?),
        resource_key: row.try_get("resource_key")?,
        turn_key: row.try_get("turn_key")?,
        reason: named(row, "reason", JobReason::parse)?,
        fingerprint: row.try_get("fingerprint")?,
        assignee: row.try_get("assignee")?,
        note: row.try_get("note")?,
        rearms: row.try_get("rearms")?,
        created_at: row.try_get("created_at")?,
        finished_at: row.try_get("finished_at")?,
    })
}

/// The key of a row with `receipt_id` and `subscription`.
pub(super) fn job_key(row: &PgRow) -> Sql<JobKey> {
    Ok(JobKey { receipt: ReceiptId(row.try_get("receipt_id")?), subscription: row.try_get("subscription")? })
}

/// An attempt from a row with the columns of `attempts`.
pub(super) fn attempt(row: &PgRow) -> Sql<Attempt> {
    Ok(Attempt {
        key: job_key(row)?,
        attempt: row.try_get("attempt")?,
        series: row.try_get("series")?,
        trigger: trigger(row)?,
        target: row.try_get("target")?,
        started_at: row.try_get("started_at")?,
        ended_at: row.try_get("ended_at")?,
        outcome: named(row, "outcome", OutcomeKind::parse)?,
        error_class: row.try_get("error_class")?,
        error_text: row.try_get("error_text")?,
        consumer: row.try_get("consumer")?,
        late: row.try_get("late")?,
        next_at: row.try_get("next_at")?,
    })
}

/// The row's `trigger`.
pub(super) fn trigger(row: &PgRow) -> Sql<Trigger> {
    must(Trigger::parse(row.try_get("trigger")?), "trigger")
}

/// A range of bytes as it stands in two columns.
pub(super) fn part_columns(part: Option<(u64, u64)>) -> (Option<i64>, Option<i64>) {
    let column = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    (part.map(|(start, _)| column(start)), part.map(|(_, end)| column(end)))
}

/// A limit as SQL takes it.
pub(super) fn limit(n: u32) -> i64 {
    i64::from(n)
}

fn part(row: &PgRow) -> Sql<Option<(u64, u64)>> {
    let range = (row.try_get::<Option<i64>, _>("part_start")?, row.try_get::<Option<i64>, _>("part_end")?);
    let (Some(start), Some(end)) = range else { return Ok(None) };
    match (u64::try_from(start), u64::try_from(end)) {
        (Ok(start), Ok(end)) => Ok(Some((start, end))),
        _ => Err(unknown("part")),
    }
}

/// A digest column.
pub(super) fn digest(row: &PgRow, column: &str) -> Sql<Option<[u8; 32]>> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    bytes.map(|bytes| bytes.try_into().map_err(|_| unknown("a digest of 32 bytes"))).transpose()
}

fn origin(text: &str) -> Sql<Origin> {
    let all = [Origin::Delivery, Origin::Reconcile, Origin::Admitted, Origin::Imported];
    must(all.into_iter().find(|origin| origin.as_str() == text), "receipts.origin")
}

fn named<T>(row: &PgRow, column: &str, parse: fn(&str) -> Option<T>) -> Sql<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| must(parse(text), "a name")).transpose()
}

pub(super) fn must<T>(value: Option<T>, what: &'static str) -> Sql<T> {
    value.ok_or_else(|| unknown(what))
}

fn unknown(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the database holds a value that this binary does not know: {what}").into())
}
