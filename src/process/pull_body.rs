//! What a `pull` consumer sends and gets, as JSON. Times are UTC microseconds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::model::receipt::{Coverage, Mode};
use crate::model::subscription::Subscription;
use crate::store::ClaimedJob;

/// `POST /v1/subscriptions/{name}/claim`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaimBody {
    /// Most jobs to be given; 1 if absent.
    pub max: Option<u32>,
    /// How long to wait for the first one; not at all if absent.
    pub wait_s: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimAnswer {
    pub jobs: Vec<ClaimedBody>,
}

/// A leased job with its event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimedBody {
    pub receipt: String,
    pub subscription: String,
    pub attempt: i32,
    /// Tries in this series at most, and which of them this is.
    pub attempts_max: usize,
    pub series_attempt: i32,
    pub trigger: &'static str,
    /// Goes with every extension and outcome of this attempt.
    pub token: String,
    pub leased_until: i64,
    /// The same in every attempt and replay: what to remember an effect by.
    pub operation_key: String,
    pub source: String,
    pub provider: String,
    pub account: String,
    pub event_id: String,
    pub provider_ref: String,
    pub event_type: String,
    pub mode: Mode,
    pub occurred_at: Option<i64>,
    pub received_at: i64,
    pub resource: Option<String>,
    pub duplicates: i64,
    pub flags: String,
    pub coverage: Option<Coverage>,
    /// The event is an item of a batch: the body is the item alone.
    pub part: bool,
    pub content_type: String,
    /// The exact bytes of the event.
    pub body_base64: String,
}

impl ClaimedBody {
    pub(super) fn new(claimed: ClaimedJob, subscription: &Subscription, token: String) -> Self {
        let ClaimedJob { job, trigger, receipt, content_type, body, leased_until } = claimed;
        Self {
            receipt: receipt.id.to_string(),
            subscription: job.key.subscription,
            attempt: job.attempt,
            attempts_max: subscription.retry.attempts(),
            series_attempt: job.series_attempts,
            trigger: trigger.as_str(),
            token,
            leased_until,
            operation_key: receipt.id.to_string(),
            source: job.source,
            provider: receipt.key.provider,
            account: receipt.key.account,
            event_id: receipt.key.event_id,
            provider_ref: receipt.provider_ref,
            event_type: receipt.event_type,
            mode: receipt.mode,
            occurred_at: receipt.occurred_at,
            received_at: receipt.received_at,
            resource: receipt.resource_key,
            duplicates: receipt.duplicates,
            flags: receipt.flags,
            coverage: receipt.verified_by.map(|verified| verified.coverage),
            part: receipt.part.is_some(),
            content_type,
            body_base64: STANDARD.encode(&body),
        }
    }
}

/// `POST /v1/jobs/{receipt}/{subscription}/extend`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtendBody {
    pub attempt: i32,
    pub token: String,
    /// From now; the subscription's time limit if absent.
    #[serde(default)]
    pub lease_s: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExtendAnswer {
    /// The lease ends this long from now.
    pub lease_s: u64,
}

/// Answer to `POST /v1/jobs/{receipt}/{subscription}/outcome`, whose body is the outcome contract's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutcomeAnswer {
    /// `applied`, `recorded` (kept in the history, moved nothing) or `already` (said before).
    pub verdict: &'static str,
    /// The job's state after an applied report.
    pub state: Option<&'static str>,
}
