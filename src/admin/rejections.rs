//! Recent refused requests, for whoever asks why a provider's deliveries do not come in.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::receipts::{page, query_refused, view_only};
use super::view::RejectionJson;
use super::{Admin, ApiError};
use crate::model::access::Caller;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filters {
    limit: Option<u32>,
}

/// `{"rejections":[…]}`, newest first, without their bodies.
pub(super) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    view_only(&caller)?;
    let Query(filters) = filters.map_err(|error| query_refused(&error))?;
    let found = admin.archive.rejections(page(filters.limit)?).await?;
    let rejections: Vec<RejectionJson> = found.iter().map(RejectionJson::from).collect();
    Ok(Json(json!({ "rejections": rejections })))
}
