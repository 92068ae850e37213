//! The JSON shapes of the API, the same that the CLI's `--json` prints. Times are RFC 3339 in UTC with microseconds; what is
//! unknown is `null`; fields are added and never renamed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::model::attempt::Attempt;
use crate::model::job::Job;
use crate::model::receipt::Receipt;
use crate::store::{JobView, NewRejection, ReceiptView, Redelivery};

/// `GET /v1/receipts/{id}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReceiptJson {
    pub id: String,
    pub provider: String,
    pub account: String,
    pub event_id: String,
    pub provider_ref: String,
    pub mode: String,
    pub source: String,
    pub event_type: String,
    pub occurred_at: Option<String>,
    pub received_at: String,
    pub resource_key: Option<String>,
    pub resource_version: Option<String>,
    pub pointer: Option<String>,
    /// First and one past the last byte of the event in the delivery's body.
    pub part: Option<(u64, u64)>,
    pub item_sha256: Option<String>,
    pub signed_sha256: Option<String>,
    pub verified_by: Option<VerifiedByJson>,
    pub origin: String,
    pub flags: Vec<String>,
    pub hold_reason: Option<String>,
    pub duplicates: i64,
    pub last_delivered_at: Option<String>,
    pub content_type: Option<String>,
    pub url: Option<String>,
    pub headers: Vec<HeaderJson>,
    pub jobs: Vec<JobJson>,
    pub deliveries: Vec<DeliveryJson>,
    /// SHA-256 of each other content that came under this key.
    pub divergences: Vec<String>,
}

/// What proved the delivery.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VerifiedByJson {
    pub mechanism: String,
    /// Label of the secret that matched.
    pub secret: String,
    pub signed_at: Option<String>,
    pub coverage: String,
}

/// A kept header; `value_base64` instead of `value` where it is not UTF-8.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeaderJson {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// The provider sent the event again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeliveryJson {
    pub at: String,
    pub source: String,
    pub secret: String,
    pub peer: String,
    pub retry_headers: Vec<(String, String)>,
    pub verdict: String,
}

/// A job as lists show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobJson {
    pub receipt: String,
    pub subscription: String,
    pub source: String,
    pub state: String,
    pub attempt: i32,
    pub series: i32,
    pub series_attempts: i32,
    pub first_attempt_at: Option<String>,
    pub next_attempt_at: Option<String>,
    pub leased_until: Option<String>,
    pub handed_at: Option<String>,
    pub lane: String,
    pub resource_key: Option<String>,
    pub reason: Option<String>,
    pub fingerprint: Option<String>,
    pub assignee: Option<String>,
    pub note: Option<String>,
    pub rearms: i32,
    pub created_at: String,
    pub finished_at: Option<String>,
}

/// `GET /v1/jobs/{receipt}/{subscription}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobDetailJson {
    pub job: JobJson,
    pub attempts: Vec<AttemptJson>,
}

/// One run at a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttemptJson {
    pub attempt: i32,
    pub series: i32,
    pub trigger: String,
    pub target: String,
    pub started_at: String,
    pub ended_at: Option<String>,
    pub outcome: Option<String>,
    pub error_class: Option<String>,
    pub error_text: Option<String>,
    pub consumer: Option<String>,
    pub late: bool,
    pub next_at: Option<String>,
}

/// A refused request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RejectionJson {
    pub at: String,
    pub source: String,
    pub code: String,
    pub detail: String,
    pub peer: String,
    pub method: String,
    pub path: String,
    pub headers: Vec<HeaderJson>,
    /// How much of the body was kept.
    pub body_bytes: usize,
}

impl From<&ReceiptView> for ReceiptJson {
    fn from(view: &ReceiptView) -> Self {
        let Receipt { id, key, provider_ref, mode, source, event_type, .. } = view.receipt.clone();
        let receipt = &view.receipt;
        let verified_by = receipt.verified_by.as_ref().map(|by| VerifiedByJson {
            mechanism: by.mechanism.clone(),
            secret: by.secret.clone(),
            signed_at: by.signed_at.map(moment),
            coverage: by.coverage.as_str().to_owned(),
        });
        Self {
            id: id.to_string(),
            provider: key.provider,
            account: key.account,
            event_id: key.event_id,
            provider_ref,
            mode: mode.as_str().to_owned(),
            source,
            event_type,
            occurred_at: receipt.occurred_at.map(moment),
            received_at: moment(receipt.received_at),
            resource_key: receipt.resource_key.clone(),
            resource_version: receipt.resource_version.clone(),
            pointer: receipt.pointer.clone(),
            part: receipt.part,
            item_sha256: receipt.item_sha256.map(hex::encode),
            signed_sha256: receipt.signed_sha256.map(hex::encode),
            verified_by,
            origin: receipt.origin.as_str().to_owned(),
            flags: flags(&receipt.flags),
            hold_reason: receipt.hold_reason.map(|reason| reason.code().to_owned()),
            duplicates: receipt.duplicates,
            last_delivered_at: receipt.last_delivered_at.map(moment),
            content_type: view.content_type.clone(),
            url: view.url.clone(),
            headers: view.headers.iter().map(HeaderJson::from).collect(),
            jobs: view.jobs.iter().map(JobJson::from).collect(),
            deliveries: view.deliveries.iter().map(DeliveryJson::from).collect(),
            divergences: view.divergences.iter().map(hex::encode).collect(),
        }
    }
}

impl From<&(String, Bytes)> for HeaderJson {
    fn from((name, value): &(String, Bytes)) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) => Self { name: name.clone(), value: Some(text.to_owned()), value_base64: None },
            Err(_) => Self { name: name.clone(), value: None, value_base64: Some(STANDARD.encode(value)) },
        }
    }
}

impl From<&Redelivery> for DeliveryJson {
    fn from(delivery: &Redelivery) -> Self {
        let Redelivery { at, source, secret, peer, retry_headers, verdict } = delivery.clone();
        Self { at: moment(at), source, secret, peer, retry_headers, verdict }
    }
}

impl From<&Job> for JobJson {
    fn from(job: &Job) -> Self {
        Self {
            receipt: job.key.receipt.to_string(),
            subscription: job.key.subscription.clone(),
            source: job.source.clone(),
            state: job.state.as_str().to_owned(),
            attempt: job.attempt,
            series: job.series,
            series_attempts: job.series_attempts,
            first_attempt_at: job.first_attempt_at.map(moment),
            next_attempt_at: job.next_attempt_at.map(moment),
            leased_until: job.leased_until.map(moment),
            handed_at: job.handed_at.map(moment),
            lane: job.lane.as_str().to_owned(),
            resource_key: job.resource_key.clone(),
            reason: job.reason.map(|reason| reason.code().to_owned()),
            fingerprint: job.fingerprint.clone(),
            assignee: job.assignee.clone(),
            note: job.note.clone(),
            rearms: job.rearms,
            created_at: moment(job.created_at),
            finished_at: job.finished_at.map(moment),
        }
    }
}

impl From<&JobView> for JobDetailJson {
    fn from(view: &JobView) -> Self {
        Self { job: JobJson::from(&view.job), attempts: view.attempts.iter().map(AttemptJson::from).collect() }
    }
}

impl From<&Attempt> for AttemptJson {
    fn from(attempt: &Attempt) -> Self {
        Self {
            attempt: attempt.attempt,
            series: attempt.series,
            trigger: attempt.trigger.as_str().to_owned(),
            target: attempt.target.clone(),
            started_at: moment(attempt.started_at),
            ended_at: attempt.ended_at.map(moment),
            outcome: attempt.outcome.map(|kind| kind.as_str().to_owned()),
            error_class: attempt.error_class.clone(),
            error_text: attempt.error_text.clone(),
            consumer: attempt.consumer.clone(),
            late: attempt.late,
            next_at: attempt.next_at.map(moment),
        }
    }
}

impl From<&NewRejection> for RejectionJson {
    fn from(rejection: &NewRejection) -> Self {
        Self {
            at: moment(rejection.at),
            source: rejection.source.clone(),
            code: rejection.code.clone(),
            detail: rejection.detail.clone(),
            peer: rejection.peer.clone(),
            method: rejection.method.clone(),
            path: rejection.path.clone(),
            headers: rejection.headers.iter().map(HeaderJson::from).collect(),
            body_bytes: rejection.body.len(),
        }
    }
}

/// UTC microseconds as `2026-12-01T10:00:00.000000Z`; always as long, so that texts sort like times.
pub fn moment(micros: i64) -> String {
    let Ok(at) = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000) else {
        return micros.to_string();
    };
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second, micros) = (at.hour(), at.minute(), at.second(), at.microsecond());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The column's list as one.
pub(super) fn flags(text: &str) -> Vec<String> {
    text.split(',').filter(|flag| !flag.is_empty()).map(str::to_owned).collect()
}
