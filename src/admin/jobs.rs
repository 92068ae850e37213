//! Jobs: their state and history, and what an operator may do about them.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::receipts::{page, query_refused, receipt_id, storable, view_only};
use super::view::{JobDetailJson, JobJson};
use super::{Admin, ApiError};
use crate::model::access::Caller;
use crate::model::attempt::Trigger;
use crate::model::id::ReceiptId;
use crate::model::job::{JobKey, JobReason, JobState};
use crate::store::{JobQuery, ReplayRequest, ReplayVerdict};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filters {
    subscription: Option<String>,
    state: Option<String>,
    reason: Option<String>,
    before: Option<String>,
    limit: Option<u32>,
}

/// `{"jobs":[…],"next":ID|null}`, newest receipt first.
pub(super) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(filters) = filters.map_err(|error| query_refused(&error))?;
    let state = filters.state.as_deref().map(state).transpose()?;
    find(&admin, &caller, filters, state).await
}

/// The jobs that wait for a person.
pub(super) async fn review(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(filters) = filters.map_err(|error| query_refused(&error))?;
    if filters.state.is_some() {
        return Err(ApiError::bad_request("query_invalid", "`state` is review here"));
    }
    find(&admin, &caller, filters, Some(JobState::Review)).await
}

/// A page never ends between two jobs of one receipt, since `before` is a receipt: this many more rows are looked at.
const JOBS_OF_A_RECEIPT_MAX: u32 = 256;

async fn find(
    admin: &Admin,
    caller: &Caller,
    filters: Filters,
    state: Option<JobState>,
) -> Result<Json<Value>, ApiError> {
    view_only(caller)?;
    let limit = page(filters.limit)?;
    storable(&[&filters.subscription])?;
    let query = JobQuery {
        subscription: filters.subscription,
        state,
        reason: filters.reason.as_deref().map(reason).transpose()?,
        before: filters.before.as_deref().map(receipt_id).transpose()?,
        limit: limit + JOBS_OF_A_RECEIPT_MAX,
    };
    let mut found = admin.archive.jobs(query).await?;
    let receipts: Vec<ReceiptId> = found.iter().map(|job| job.key.receipt).collect();
    let end = end_of_page(&receipts, limit as usize);
    let next = if end < found.len() { found.get(end - 1).map(|job| job.key.receipt) } else { None };
    found.truncate(end);
    let jobs: Vec<JobJson> = found.iter().map(JobJson::from).collect();
    Ok(Json(json!({ "jobs": jobs, "next": next })))
}

/// `limit` rows, and those that belong to the last one's receipt.
pub(super) fn end_of_page(receipts: &[ReceiptId], limit: usize) -> usize {
    let Some(last) = receipts.get(limit - 1) else { return receipts.len() };
    limit + receipts[limit..].iter().take_while(|receipt| *receipt == last).count()
}

/// One job with its attempts.
pub(super) async fn show(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
) -> Result<Json<JobDetailJson>, ApiError> {
    view_only(&caller)?;
    let key = JobKey { receipt: receipt_id(&receipt)?, subscription };
    let found = admin.archive.job(&key).await?.ok_or_else(no_such_job)?;
    Ok(Json(JobDetailJson::from(&found)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    why: Option<String>,
}

/// Runs a job again under the rules of today: `{"verdict":"armed"}`, or `"released"` with the subscriptions that a held
/// receipt was let go to.
pub(super) async fn replay(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Option<Json<Why>>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let key = operate(&caller, &receipt, subscription)?;
    let why = why(body)?;
    let request = ReplayRequest { trigger: Trigger::Replay, actor: caller.name, why };
    let verdicts = admin.jobs.replay(std::slice::from_ref(&key), request, Arc::clone(&admin.subscriptions)).await?;
    match verdicts.into_iter().next() {
        Some(ReplayVerdict::Armed) => Ok(Json(json!({ "verdict": "armed" }))),
        Some(ReplayVerdict::Released(subscriptions)) => {
            Ok(Json(json!({ "verdict": "released", "subscriptions": subscriptions })))
        }
        Some(ReplayVerdict::Refused(code)) => Err(ApiError::refused(code)),
        Some(ReplayVerdict::NoSuchJob) | None => Err(no_such_job()),
    }
}

/// Closes a job in review unprocessed; `why` is required.
pub(super) async fn dismiss(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Option<Json<Why>>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let key = operate(&caller, &receipt, subscription)?;
    let why = why(body)?.ok_or_else(|| ApiError::bad_request("why_missing", "say why, in `why`"))?;
    admin.jobs.dismiss(&key, &caller.name, &why).await?;
    Ok(Json(json!({ "verdict": "dismissed" })))
}

fn operate(caller: &Caller, receipt: &str, subscription: String) -> Result<JobKey, ApiError> {
    if !caller.may_operate() {
        return Err(ApiError::forbidden("this needs the role operator or admin"));
    }
    Ok(JobKey { receipt: receipt_id(receipt)?, subscription })
}

/// Longest reason that a person may give.
const WHY_BYTES_MAX: usize = 2048;

/// No body at all is no reason; a body must be right.
fn why(body: Result<Option<Json<Why>>, JsonRejection>) -> Result<Option<String>, ApiError> {
    let body = body.map_err(|error| ApiError::bad_request("body_invalid", error.body_text()))?;
    let why = body.and_then(|Json(body)| body.why);
    let why = why.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if why.as_ref().is_some_and(|text| text.len() > WHY_BYTES_MAX) {
        return Err(ApiError::bad_request("why_invalid", format!("`why` has at most {WHY_BYTES_MAX} bytes")));
    }
    Ok(why)
}

fn no_such_job() -> ApiError {
    ApiError::not_found("no such job")
}

fn state(text: &str) -> Result<JobState, ApiError> {
    JobState::parse(text).ok_or_else(|| {
        let all = JobState::ALL.map(JobState::as_str).join(", ");
        ApiError::bad_request("state_invalid", format!("`state` is one of {all}"))
    })
}

fn reason(text: &str) -> Result<JobReason, ApiError> {
    JobReason::parse(text).ok_or_else(|| {
        let all = JobReason::ALL.map(JobReason::code).join(", ");
        ApiError::bad_request("reason_invalid", format!("`reason` is one of {all}"))
    })
}
