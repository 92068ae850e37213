//! Rows to values and values to JSON: many rows travel as one JSON parameter, so that a batch costs a handful of statements.
//! The hot ones read the parameter through `WITH e (value) AS MATERIALIZED (SELECT jsonb(value) …)`: each row is parsed once, and
//! not once for each column.

use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::connection::failure;
use crate::model::attempt::{Attempt, Trigger};
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, JobState, Lane};
use crate::model::outcome::OutcomeKind;
use crate::model::receipt::{EventKey, HoldReason, Mode, Origin, Receipt};
use crate::store::StoreError;

/// The columns of [`receipt`], from `receipts r`.
macro_rules! receipt_columns {
    () => {
        "r.id, r.provider, r.account, r.event_id, r.provider_ref, r.mode, r.source, r.event_type, r.occurred_at, r.received_at,
         r.resource_key, r.resource_version, r.payload_id, r.pointer, r.part_start, r.part_end, r.item_sha256, r.signed_sha256,
         r.verified_by, r.origin, r.flags, r.hold_reason, r.duplicates, r.last_delivered_at"
    };
}

/// The columns of [`job`], from `jobs j`.
macro_rules! job_columns {
    () => {
        "j.receipt_id, j.subscription, j.source, j.state, j.attempt, j.series, j.series_attempts, j.first_attempt_at,
         j.next_attempt_at, j.leased_until, j.handed_at, j.lane, j.resource_key, j.turn_key, j.reason, j.fingerprint, j.assignee,
         j.note, j.rearms, j.created_at, j.finished_at"
    };
}

pub(super) use job_columns;
pub(super) use receipt_columns;

/// Rows as one parameter for `json_each`.
pub(super) fn json<T: Serialize + ?Sized>(rows: &T) -> String {
    // Unwrap safety: rows are strings and numbers in structs and lists, which always serialise.
    serde_json::to_string(rows).expect("rows are JSON")
}

/// An id for `unhex`.
pub(super) fn hexed(id: Uuid) -> String {
    id.simple().to_string()
}

/// Reads one column.
pub(super) fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(failure)
}

/// A receipt from [`receipt_columns`].
pub(super) fn receipt(row: &SqliteRow) -> Result<Receipt, StoreError> {
    let verified_by: Option<String> = get(row, "verified_by")?;
    Ok(Receipt {
        id: ReceiptId(get(row, "id")?),
        key: EventKey {
            provider: get(row, "provider")?,
            account: get(row, "account")?,
            event_id: get(row, "event_id")?,
        },
        provider_ref: get(row, "provider_ref")?,
        mode: Mode::parse(get(row, "mode")?),
        source: get(row, "source")?,
        event_type: get(row, "event_type")?,
        occurred_at: get(row, "occurred_at")?,
        received_at: get(row, "received_at")?,
        resource_key: get(row, "resource_key")?,
        resource_version: get(row, "resource_version")?,
        payload_id: get::<Option<Uuid>>(row, "payload_id")?.map(PayloadId),
        pointer: get(row, "pointer")?,
        part: part(get(row, "part_start")?, get(row, "part_end")?),
        item_sha256: digest(get(row, "item_sha256")?)?,
        signed_sha256: digest(get(row, "signed_sha256")?)?,
        verified_by: verified_by.map(|text| serde_json::from_str(&text)).transpose().map_err(|_| odd("verified_by"))?,
        origin: origin(get(row, "origin")?)?,
        flags: get(row, "flags")?,
        hold_reason: parsed(get(row, "hold_reason")?, HoldReason::parse, "hold_reason")?,
        duplicates: get(row, "duplicates")?,
        last_delivered_at: get(row, "last_delivered_at")?,
    })
}

/// A job from [`job_columns`].
pub(super) fn job(row: &SqliteRow) -> Result<Job, StoreError> {
    Ok(Job {
        key: JobKey { receipt: ReceiptId(get(row, "receipt_id")?), subscription: get(row, "subscription")? },
        source: get(row, "source")?,
        state: JobState::parse(get(row, "state")?).ok_or_else(|| odd("state"))?,
        attempt: get(row, "attempt")?,
        series: get(row, "series")?,
        series_attempts: get(row, "series_attempts")?,
        first_attempt_at: get(row, "first_attempt_at")?,
        next_attempt_at: get(row, "next_attempt_at")?,
        leased_until: get(row, "leased_until")?,
        handed_at: get(row, "handed_at")?,
        lane: Lane::parse(get(row, "lane")?),
        resource_key: get(row, "resource_key")?,
        turn_key: get(row, "turn_key")?,
        reason: parsed(get(row, "reason")?, JobReason::parse, "reason")?,
        fingerprint: get(row, "fingerprint")?,
        assignee: get(row, "assignee")?,
        note: get(row, "note")?,
        rearms: get(row, "rearms")?,
        created_at: get(row, "created_at")?,
        finished_at: get(row, "finished_at")?,
    })
}

/// An attempt from `attempts`.
pub(super) fn attempt(row: &SqliteRow) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        key: JobKey { receipt: ReceiptId(get(row, "receipt_id")?), subscription: get(row, "subscription")? },
        attempt: get(row, "attempt")?,
        series: get(row, "series")?,
        trigger: Trigger::parse(get(row, "trigger")?).ok_or_else(|| odd("trigger"))?,
        target: get(row, "target")?,
        started_at: get(row, "started_at")?,
        ended_at: get(row, "ended_at")?,
        outcome: parsed(get(row, "outcome")?, OutcomeKind::parse, "outcome")?,
        error_class: get(row, "error_class")?,
        error_text: get(row, "error_text")?,
        consumer: get(row, "consumer")?,
        late: get(row, "late")?,
        next_at: get(row, "next_at")?,
    })
}

/// A column that holds what this binary does not know: the schema's check should have refused us.
pub(super) fn odd(column: &str) -> StoreError {
    StoreError::Unavailable(format!("the column {column} holds a value that this binary does not know"))
}

pub(super) fn digest(bytes: Option<Vec<u8>>) -> Result<Option<[u8; 32]>, StoreError> {
    bytes.map(|bytes| bytes.try_into().map_err(|_| odd("sha256"))).transpose()
}

pub(super) fn part(start: Option<i64>, end: Option<i64>) -> Option<(u64, u64)> {
    Some((u64::try_from(start?).ok()?, u64::try_from(end?).ok()?))
}

fn origin(text: &str) -> Result<Origin, StoreError> {
    let all = [Origin::Delivery, Origin::Reconcile, Origin::Admitted, Origin::Imported];
    all.into_iter().find(|origin| origin.as_str() == text).ok_or_else(|| odd("origin"))
}

fn parsed<T>(text: Option<&str>, parse: impl Fn(&str) -> Option<T>, column: &str) -> Result<Option<T>, StoreError> {
    text.map(|text| parse(text).ok_or_else(|| odd(column))).transpose()
}

/// A receipt on its way in.
#[derive(Serialize)]
pub(super) struct ReceiptIn<'a> {
    id: String,
    provider: &'a str,
    account: &'a str,
    event_id: &'a str,
    provider_ref: &'a str,
    mode: &'a str,
    source: &'a str,
    event_type: &'a str,
    occurred_at: Option<i64>,
    received_at: i64,
    resource_key: Option<&'a str>,
    resource_version: Option<&'a str>,
    payload_id: Option<String>,
    pointer: Option<&'a str>,
    part_start: Option<u64>,
    part_end: Option<u64>,
    item: Option<String>,
    signed: Option<String>,
    guard: u8,
    verified_by: Option<String>,
    origin: &'a str,
    flags: &'a str,
    hold: Option<&'static str>,
}

impl<'a> ReceiptIn<'a> {
    pub fn of(receipt: &'a Receipt, replay_guard: bool) -> Self {
        Self {
            id: hexed(receipt.id.0),
            provider: &receipt.key.provider,
            account: &receipt.key.account,
            event_id: &receipt.key.event_id,
            provider_ref: &receipt.provider_ref,
            mode: receipt.mode.as_str(),
            source: &receipt.source,
            event_type: &receipt.event_type,
            occurred_at: receipt.occurred_at,
            received_at: receipt.received_at,
            resource_key: receipt.resource_key.as_deref(),
            resource_version: receipt.resource_version.as_deref(),
            payload_id: receipt.payload_id.map(|id| hexed(id.0)),
            pointer: receipt.pointer.as_deref(),
            part_start: receipt.part.map(|part| part.0),
            part_end: receipt.part.map(|part| part.1),
            item: receipt.item_sha256.map(hex::encode),
            signed: receipt.signed_sha256.map(hex::encode),
            guard: u8::from(replay_guard),
            verified_by: receipt.verified_by.as_ref().map(json),
            origin: receipt.origin.as_str(),
            flags: &receipt.flags,
            hold: receipt.hold_reason.map(HoldReason::code),
        }
    }
}

/// A job on its way in.
#[derive(Serialize)]
pub(super) struct JobIn<'a> {
    pub receipt: String,
    pub subscription: &'a str,
    source: &'a str,
    state: &'static str,
    attempt: i32,
    series: i32,
    series_attempts: i32,
    first_attempt_at: Option<i64>,
    next_attempt_at: Option<i64>,
    leased_until: Option<i64>,
    handed_at: Option<i64>,
    lane: &'static str,
    resource_key: Option<&'a str>,
    turn_key: Option<&'a str>,
    reason: Option<&'static str>,
    fingerprint: Option<&'a str>,
    assignee: Option<&'a str>,
    note: Option<&'a str>,
    rearms: i32,
    created_at: i64,
    finished_at: Option<i64>,
    /// What it must still be, for an update.
    was_state: &'static str,
    was_attempt: i32,
    was_series: i32,
}

impl<'a> JobIn<'a> {
    pub fn of(job: &'a Job) -> Self {
        Self::update(job, job)
    }

    pub fn update(before: &Job, after: &'a Job) -> Self {
        Self {
            receipt: hexed(after.key.receipt.0),
            subscription: &after.key.subscription,
            source: &after.source,
            state: after.state.as_str(),
            attempt: after.attempt,
            series: after.series,
            series_attempts: after.series_attempts,
            first_attempt_at: after.first_attempt_at,
            next_attempt_at: after.next_attempt_at,
            leased_until: after.leased_until,
            handed_at: after.handed_at,
            lane: after.lane.as_str(),
            resource_key: after.resource_key.as_deref(),
            turn_key: after.turn_key.as_deref(),
            reason: after.reason.map(JobReason::code),
            fingerprint: after.fingerprint.as_deref(),
            assignee: after.assignee.as_deref(),
            note: after.note.as_deref(),
            rearms: after.rearms,
            created_at: after.created_at,
            finished_at: after.finished_at,
            was_state: before.state.as_str(),
            was_attempt: before.attempt,
            was_series: before.series,
        }
    }
}

/// Job keys for `json_each`.
pub(super) fn keys_json<'a>(keys: impl IntoIterator<Item = &'a JobKey>) -> String {
    json(&keys.into_iter().map(|key| (hexed(key.receipt.0), key.subscription.as_str())).collect::<Vec<_>>())
}

/// Receipt ids for `json_each`.
pub(super) fn ids_json(ids: impl IntoIterator<Item = Uuid>) -> String {
    json(&ids.into_iter().map(hexed).collect::<Vec<_>>())
}
