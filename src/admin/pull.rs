//! Claim, extend, outcome: what a consumer does over HTTP. The rules are `process`'s, behind [`PullApi`]; here are the
//! shapes, the scope and the answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::receipts::receipt_id;
use super::view::{flags, moment};
use super::{Admin, ApiError};
use crate::model::access::Caller;
use crate::model::job::JobKey;
use crate::model::outcome::{OutcomeBody, OutcomeError};
use crate::store::{ClaimedJob, OutcomeVerdict, StoreError};

/// What `process` does for consumers that come by HTTP.
#[async_trait]
pub trait PullApi: Send + Sync + 'static {
    /// Leases due jobs; waits for some when there are none, until `gone`.
    async fn claim(&self, claim: Claim, gone: CancellationToken) -> Result<Vec<Work>, Refusal>;
    /// Moves the lease of a running attempt to now + `lease`, or its subscription's time limit; returns that span.
    async fn extend(&self, job: &JobKey, attempt: i32, token: &str, lease: Option<Duration>) -> Result<Duration, Refusal>;
    /// Takes a report.
    async fn report(&self, body: OutcomeBody, consumer: &str) -> Result<OutcomeVerdict, Refusal>;
}

/// What a consumer asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    pub subscription: String,
    pub max: u32,
    pub wait: Duration,
    /// The token's name.
    pub consumer: String,
}

/// A leased job and the token with which its outcome is reported.
pub struct Work {
    pub claimed: ClaimedJob,
    pub token: String,
}

/// Why a consumer's request is not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The report is wrong in itself.
    #[error(transparent)]
    Outcome(#[from] OutcomeError),
    /// There is no such `pull` subscription.
    #[error("no such subscription")]
    NoSuchSubscription,
    /// As many claims wait as may.
    #[error("too many claims wait")]
    Busy,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Outcome(error @ OutcomeError::Token) => Self::new(StatusCode::FORBIDDEN, error.code(), error.to_string()),
            Refusal::Outcome(error) => Self::bad_request(error.code(), error.to_string()),
            Refusal::NoSuchSubscription => Self::not_found("no such subscription is served here"),
            Refusal::Busy => Self::unavailable("busy"),
            Refusal::Store(error) => Self::from(error),
        }
    }
}

/// Cancelled when the client has left.
#[derive(Debug, Clone)]
pub struct ClientGone(pub CancellationToken);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimBody {
    /// Jobs at most; default 1.
    max: Option<u32>,
    /// Seconds to wait for work when there is none; default 0.
    wait_s: Option<f64>,
}

/// One leased job as the consumer gets it; the same facts as in the headers of a broker's message.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkJson {
    pub receipt: String,
    pub subscription: String,
    pub attempt: i32,
    pub series: i32,
    pub trigger: String,
    /// Goes back with `extend` and `outcome`.
    pub token: String,
    pub leased_until: String,
    pub provider: String,
    pub account: String,
    pub event_id: String,
    pub event_type: String,
    pub source: String,
    pub mode: String,
    pub occurred_at: Option<String>,
    pub received_at: String,
    pub resource_key: Option<String>,
    pub resource_version: Option<String>,
    pub duplicates: i64,
    pub flags: Vec<String>,
    /// How much of the body the signature covered: `body`, `fields`, `none`.
    pub coverage: Option<String>,
    pub content_type: String,
    /// The event's exact bytes.
    pub body_base64: String,
}

impl From<&Work> for WorkJson {
    fn from(Work { claimed, token }: &Work) -> Self {
        let (job, receipt) = (&claimed.job, &claimed.receipt);
        Self {
            receipt: receipt.id.to_string(),
            subscription: job.key.subscription.clone(),
            attempt: job.attempt,
            series: job.series,
            trigger: claimed.trigger.as_str().to_owned(),
            token: token.clone(),
            leased_until: moment(claimed.leased_until),
            provider: receipt.key.provider.clone(),
            account: receipt.key.account.clone(),
            event_id: receipt.key.event_id.clone(),
            event_type: receipt.event_type.clone(),
            source: receipt.source.clone(),
            mode: receipt.mode.as_str().to_owned(),
            occurred_at: receipt.occurred_at.map(moment),
            received_at: moment(receipt.received_at),
            resource_key: receipt.resource_key.clone(),
            resource_version: receipt.resource_version.clone(),
            duplicates: receipt.duplicates,
            flags: flags(&receipt.flags),
            coverage: receipt.verified_by.as_ref().map(|by| by.coverage.as_str().to_owned()),
            content_type: claimed.content_type.clone(),
            body_base64: STANDARD.encode(&claimed.body),
        }
    }
}

/// `{"jobs":[…]}`, empty when nothing came in time.
pub(super) async fn claim(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Extension(ClientGone(gone)): Extension<ClientGone>,
    Path(subscription): Path<String>,
    body: Result<Option<Json<ClaimBody>>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    let body = body.map_err(|error| body_refused(&error))?;
    let ClaimBody { max, wait_s } = body.map(|Json(body)| body).unwrap_or_default();
    let max = max.unwrap_or(1);
    if max == 0 {
        return Err(ApiError::bad_request("max_invalid", "`max` is 1 or more"));
    }
    let wait = wait_s.map_or(Ok(Duration::ZERO), |seconds| span("wait_s", seconds))?;
    let work = pull.claim(Claim { subscription, max, wait, consumer: caller.name }, gone).await?;
    let jobs: Vec<WorkJson> = work.iter().map(WorkJson::from).collect();
    Ok(Json(json!({ "jobs": jobs })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    attempt: i32,
    token: String,
    /// Seconds from now; default the subscription's time limit.
    lease_s: Option<f64>,
}

/// `{"lease_s":…}`: so long from now; 409 when the attempt no longer runs.
pub(super) async fn extend(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Json<ExtendBody>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    let Json(ExtendBody { attempt, token, lease_s }) = body.map_err(|error| body_refused(&error))?;
    let lease = lease_s.map(|seconds| span("lease_s", seconds)).transpose()?;
    let job = JobKey { receipt: receipt_id(&receipt)?, subscription };
    let lease = pull.extend(&job, attempt, &token, lease).await?;
    Ok(Json(json!({ "lease_s": lease.as_secs_f64() })))
}

/// Takes the same body as `makbuz.outcomes`: `{"verdict":"applied","state":…}`, `"recorded"` or `"already"`.
pub(super) async fn outcome(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Json<OutcomeBody>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    let Json(body) = body.map_err(|error| body_refused(&error))?;
    if receipt_id(&body.receipt).ok() != Some(receipt_id(&receipt)?) || body.subscription != subscription {
        return Err(ApiError::bad_request("job_differs", "`receipt` and `subscription` are not those of the path"));
    }
    match pull.report(body, &caller.name).await? {
        OutcomeVerdict::Applied(state) => Ok(Json(json!({ "verdict": "applied", "state": state.as_str() }))),
        OutcomeVerdict::Recorded => Ok(Json(json!({ "verdict": "recorded" }))),
        OutcomeVerdict::Already => Ok(Json(json!({ "verdict": "already" }))),
        OutcomeVerdict::NoSuchJob => Err(ApiError::not_found("no such job")),
        OutcomeVerdict::NoSuchAttempt => Err(ApiError::conflict("no_such_attempt", "the job has had no such attempt")),
    }
}

/// The scope is checked before anything is looked up, so that a token tells nothing of other subscriptions.
fn served(admin: &Admin, caller: &Caller, subscription: &str) -> Result<Arc<dyn PullApi>, ApiError> {
    if !caller.may_consume(subscription) {
        return Err(ApiError::forbidden("this token is not for that subscription"));
    }
    admin.pull.clone().ok_or_else(|| ApiError::not_found("this process does not have the role `process`"))
}

fn body_refused(error: &JsonRejection) -> ApiError {
    ApiError::bad_request("body_invalid", error.body_text())
}

/// A day is more than any wait or lease.
const SPAN_SECONDS_MAX: f64 = 86_400.0;

fn span(name: &str, seconds: f64) -> Result<Duration, ApiError> {
    if (0.0..=SPAN_SECONDS_MAX).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(ApiError::bad_request("seconds_invalid", format!("`{name}` is from 0 to {SPAN_SECONDS_MAX} seconds")))
}
