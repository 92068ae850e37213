//! Claim, extend, outcome: what a consumer does over HTTP. The rules and the JSON are `process`'s, behind [`PullApi`]; here
//! are the scope, and the way in and out.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::receipts::receipt_id;
use super::{Admin, ApiError};
use crate::model::access::Caller;
use crate::model::job::JobKey;

/// What `process` does for consumers that come by HTTP; the composition root joins the two.
#[async_trait]
pub trait PullApi: Send + Sync + 'static {
    /// Leases due jobs; may wait for some, but no longer than until `gone`.
    async fn claim(
        &self,
        subscription: &str,
        body: &[u8],
        consumer: &str,
        gone: CancellationToken,
    ) -> Result<Value, ApiError>;
    /// Moves the lease of a running attempt.
    async fn extend(&self, job: &JobKey, body: &[u8]) -> Result<Value, ApiError>;
    /// Takes a report.
    async fn outcome(&self, job: &JobKey, body: &[u8], consumer: &str) -> Result<Value, ApiError>;
}

/// Cancelled when the client has left.
#[derive(Debug, Clone)]
pub struct ClientGone(pub CancellationToken);

/// Body `{"max":1,"wait_s":20}`, both optional; answer `{"jobs":[…]}`, empty when nothing came in time.
pub(super) async fn claim(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Extension(ClientGone(gone)): Extension<ClientGone>,
    Path(subscription): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    pull.claim(&subscription, &read(body)?, &caller.name, gone).await.map(Json)
}

/// Body `{"attempt","token","lease_s"}`; answer `{"lease_s"}`: so long from now. 409 when the attempt no longer runs.
pub(super) async fn extend(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    let job = JobKey { receipt: receipt_id(&receipt)?, subscription };
    pull.extend(&job, &read(body)?).await.map(Json)
}

/// Takes the same body as `makbuz.outcomes`; answer `{"verdict":"applied|recorded|already","state"}`.
pub(super) async fn outcome(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((receipt, subscription)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let pull = served(&admin, &caller, &subscription)?;
    let job = JobKey { receipt: receipt_id(&receipt)?, subscription };
    pull.outcome(&job, &read(body)?, &caller.name).await.map(Json)
}

/// The scope is checked before anything is looked up, so that a token tells nothing of other subscriptions.
fn served(admin: &Admin, caller: &Caller, subscription: &str) -> Result<Arc<dyn PullApi>, ApiError> {
    if !caller.may_consume(subscription) {
        return Err(ApiError::forbidden("this token is not for that subscription"));
    }
    admin.pull.clone().ok_or_else(|| ApiError::not_found("this process does not have the role `process`"))
}

fn read(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "the request's body is too large")
        }
        _ => ApiError::bad_request("body_invalid", "the request's body did not come whole"),
    })
}
