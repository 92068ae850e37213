//! Receipts: what was accepted, and what became of it.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::view::{self, ReceiptJson};
use super::{Admin, ApiError};
use crate::model::access::Caller;
use crate::model::id::ReceiptId;
use crate::model::receipt::Mode;
use crate::store::ReceiptQuery;

/// Rows of a page where nothing is asked for, and the most.
pub(super) const PAGE_DEFAULT: u32 = 50;
pub(super) const PAGE_MAX: u32 = 500;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filters {
    source: Option<String>,
    provider: Option<String>,
    account: Option<String>,
    event_id: Option<String>,
    event_type: Option<String>,
    mode: Option<String>,
    held: Option<bool>,
    before: Option<String>,
    limit: Option<u32>,
}

/// `{"receipts":[…],"next":ID|null}`, newest first; `next` goes into `before` for the following page.
pub(super) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    view_only(&caller)?;
    let Query(filters) = filters.map_err(|error| query_refused(&error))?;
    let limit = page(filters.limit)?;
    storable(&[&filters.source, &filters.provider, &filters.account, &filters.event_id, &filters.event_type])?;
    let query = ReceiptQuery {
        source: filters.source,
        provider: filters.provider,
        account: filters.account,
        event_id: filters.event_id,
        event_type: filters.event_type,
        mode: filters.mode.map(|text| mode(&text)).transpose()?,
        held: filters.held,
        before: filters.before.map(|text| receipt_id(&text)).transpose()?,
        // One more than asked for tells whether there is a next page.
        limit: limit + 1,
    };
    let mut found = admin.archive.receipts(query).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = if more { found.last().map(|view| view.receipt.id) } else { None };
    let receipts: Vec<ReceiptJson> = found.iter().map(ReceiptJson::from).collect();
    Ok(Json(json!({ "receipts": receipts, "next": next })))
}

/// One receipt with its jobs, redeliveries, divergences and kept headers.
pub(super) async fn show(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<ReceiptJson>, ApiError> {
    view_only(&caller)?;
    let found = admin.archive.receipt(receipt_id(&id)?).await?.ok_or_else(|| ApiError::not_found("no such receipt"))?;
    Ok(Json(view::ReceiptJson::from(&found)))
}

pub(super) fn view_only(caller: &Caller) -> Result<(), ApiError> {
    if caller.may_view() { Ok(()) } else { Err(ApiError::forbidden("this needs the role viewer, operator or admin")) }
}

/// Texts that both stores can look for: nothing that is stored holds a NUL.
pub(super) fn storable(texts: &[&Option<String>]) -> Result<(), ApiError> {
    if texts.iter().any(|text| text.as_ref().is_some_and(|text| text.contains('\0'))) {
        return Err(ApiError::bad_request("query_invalid", "no filter holds a NUL"));
    }
    Ok(())
}

pub(super) fn receipt_id(text: &str) -> Result<ReceiptId, ApiError> {
    text.parse().map_err(|_| ApiError::bad_request("receipt_invalid", "a receipt's id is a UUID"))
}

pub(super) fn page(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(ApiError::bad_request("limit_invalid", format!("`limit` is from 1 to {PAGE_MAX}"))),
    }
}

pub(super) fn query_refused(error: &QueryRejection) -> ApiError {
    ApiError::bad_request("query_invalid", error.body_text())
}

fn mode(text: &str) -> Result<Mode, ApiError> {
    match text {
        "live" | "test" | "unknown" => Ok(Mode::parse(text)),
        _ => Err(ApiError::bad_request("mode_invalid", "`mode` is live, test or unknown")),
    }
}
