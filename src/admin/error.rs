//! The one map from causes to the API's refusals.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::store::StoreError;

/// A refusal: `{"error":{"code","message"}}`. The code is stable; the message is for people and holds no internals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// The request itself is wrong.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// No token, or one that nobody has.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "send `Authorization: Bearer` with a configured token")
    }

    /// The token's role or scope does not reach that far.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route takes another method")
    }

    /// The job or receipt is not where this may be done.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// The store's rules say no; `code` is one of theirs.
    pub fn refused(code: &'static str) -> Self {
        let message = match code {
            "why_missing" => "say why: this needs a reason",
            "not_replayable" => "it is still under way: what waits or runs goes on by itself",
            "not_in_review" => "only what waits in review can be dismissed",
            "already_released" => "it has been released before",
            "body_gone" => "the body's retention is over",
            "imported" => "an imported receipt has no event to hand on",
            "filter_no_longer_takes" => "the subscription's filter no longer takes this event",
            "subscription_retired" => "the configuration no longer has this subscription",
            "subscription_unknown" => "there is no such subscription",
            "subscription_not_pull" => "this subscription is not claimed: its target is another",
            "not_running" => "this attempt does not run, or no longer",
            "no_lease" => "this attempt runs without a lease",
            _ => "not possible in this state",
        };
        Self::conflict(code, message)
    }

    /// Our own load or fault: try again.
    pub fn unavailable(code: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, "not possible now: try again")
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = error.code();
        match error {
            StoreError::NotFound => Self::not_found("not there"),
            StoreError::BodyGone => Self::new(StatusCode::GONE, code, "the body's retention is over"),
            StoreError::Refused(code) => Self::refused(code),
            StoreError::Row(_) => Self::bad_request(code, "the store refuses these values"),
            StoreError::Busy
            | StoreError::Unavailable(_)
            | StoreError::UnknownOutcome(_)
            | StoreError::Schema(_)
            | StoreError::InUse(_) => {
                tracing::warn!(error.code = code, error = %error, "the store could not serve an operator");
                Self::unavailable(code)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": { "code": self.code, "message": self.message } }));
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            StatusCode::SERVICE_UNAVAILABLE => headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2")),
            _ => None,
        };
        response
    }
}
