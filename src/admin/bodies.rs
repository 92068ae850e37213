//! The stored bytes.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, Response, header};
use serde::Deserialize;

use super::{Admin, ApiError};
use crate::model::access::{Caller, Role};
use crate::model::id::ReceiptId;

#[derive(Deserialize)]
pub(super) struct Which {
    /// The whole delivery instead of the event's own part.
    #[serde(default)]
    whole: bool,
}

/// The exact bytes, as something to be saved and never as something to be shown: what a stranger wrote must not run in an
/// operator's browser. `Makbuz-Content-Type` says what it was sent as.
pub(super) async fn body(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    which: Result<Query<Which>, axum::extract::rejection::QueryRejection>,
) -> Result<Response<Body>, ApiError> {
    let id = super::receipts::receipt_id(&id)?;
    let Query(which) = which.map_err(|_| ApiError::bad_request("query_invalid", "`whole` is true or false"))?;
    if caller.role == Role::Consumer {
        let scoped = is_in_scope(&admin, &caller, id).await?;
        // The same answer as for a receipt that is not there: ids of others are none of its business.
        if !scoped {
            return Err(ApiError::not_found("no such receipt"));
        }
    } else if !caller.may_operate() {
        return Err(ApiError::forbidden("bodies need the role operator"));
    }
    let stored = admin.archive.body(id, which.whole).await?;
    let mut response = Response::new(Body::from(stored.body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let name = format!("attachment; filename=\"{id}.bin\"");
    if let Ok(value) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    if let Ok(value) = HeaderValue::from_bytes(stored.content_type.as_bytes()) {
        headers.insert("makbuz-content-type", value);
    }
    Ok(response)
}

/// A consumer's scope is the receipts that have a job for one of its subscriptions.
async fn is_in_scope(admin: &Admin, caller: &Caller, id: ReceiptId) -> Result<bool, ApiError> {
    let Some(view) = admin.archive.receipt(id).await? else { return Ok(false) };
    Ok(view.jobs.iter().any(|job| caller.may_consume(&job.key.subscription)))
}
