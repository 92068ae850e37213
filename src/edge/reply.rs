//! The one map from a cause to a response. The caller learns a status and no detail; the log has the rest.

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use http_body_util::Full;

use super::body::BodyError;
use super::ending::{Failure, Kept};
use super::{EdgeSource, browser};
use crate::provider::{RejectionCode, Reply};

pub(super) type Answer = Response<Full<Bytes>>;

/// Id of the (first) receipt.
const MAKBUZ_RECEIPT: HeaderName = HeaderName::from_static("makbuz-receipt");
/// How many receipts a batch has.
const MAKBUZ_RECEIPTS: HeaderName = HeaderName::from_static("makbuz-receipts");

/// Committed, new or known: the definition's exact success, and the receipt.
pub(super) fn kept(source: &EdgeSource, kept: &Kept) -> Answer {
    let events = &kept.verdict.events;
    let first = events.first().map(|event| event.receipt_id.to_string());
    let mut answer = match source.browser() {
        Some(redirects) => browser::accepted(redirects, first.as_deref().unwrap_or_default()),
        None => exact(&source.inlet.reply_accepted()),
    };
    if let Some(value) = first.and_then(|id| HeaderValue::from_str(&id).ok()) {
        answer.headers_mut().insert(MAKBUZ_RECEIPT, value);
    }
    if events.len() > 1 {
        answer.headers_mut().insert(MAKBUZ_RECEIPTS, HeaderValue::from(events.len()));
    }
    answer
}

/// Did not verify: the definition's own refusal, else 401, in any case without a detail.
pub(super) fn refused(source: &EdgeSource, code: RejectionCode) -> Answer {
    match source.browser() {
        Some(redirects) => browser::refused(redirects),
        None => closing(exact(&source.inlet.reply_refused(code))),
    }
}

/// What the sender could not have succeeded with.
pub(super) fn failed(source: &EdgeSource, failure: &Failure) -> Answer {
    match failure {
        Failure::Rejected(rejection) => refused(source, rejection.code),
        Failure::Method => method_not_allowed(source.inlet.methods()),
        Failure::Encoding => empty(StatusCode::UNSUPPORTED_MEDIA_TYPE),
        Failure::Body(BodyError::TooLarge) => empty(StatusCode::PAYLOAD_TOO_LARGE),
        Failure::Body(BodyError::Timeout) => empty(StatusCode::REQUEST_TIMEOUT),
        Failure::Body(BodyError::Broken) => empty(StatusCode::BAD_REQUEST),
        Failure::Body(BodyError::Budget | BodyError::ClientShare)
        | Failure::Overloaded(_)
        | Failure::ClientShare
        | Failure::Late
        | Failure::Store(_)
        | Failure::Panicked => unavailable(1),
    }
}

/// Our own fault or load: try again in `seconds`.
pub(super) fn unavailable(seconds: u64) -> Answer {
    let mut answer = empty(StatusCode::SERVICE_UNAVAILABLE);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

/// No source there.
pub(super) fn not_found() -> Answer {
    empty(StatusCode::NOT_FOUND)
}

/// A path of ours, but not by this method.
fn method_not_allowed(allowed: &[Method]) -> Answer {
    let mut answer = empty(StatusCode::METHOD_NOT_ALLOWED);
    let allowed = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    if let Ok(value) = HeaderValue::from_str(&allowed) {
        answer.headers_mut().insert(ALLOW, value);
    }
    answer
}

/// For load balancers: the process accepts connections. Says nothing of the store; `/readyz` on the admin listener does.
pub(super) fn health(method: &Method) -> Answer {
    if method != Method::GET && method != Method::HEAD {
        return method_not_allowed(&[Method::GET, Method::HEAD]);
    }
    let content_type = Some("text/plain".to_owned());
    exact(&Reply { status: StatusCode::OK, content_type, body: Bytes::from_static(b"ok\n") })
}

/// Byte for byte what a definition says.
pub(super) fn exact(reply: &Reply) -> Answer {
    let mut answer = Response::new(Full::new(reply.body.clone()));
    *answer.status_mut() = reply.status;
    if let Some(value) = reply.content_type.as_deref().and_then(|text| HeaderValue::from_str(text).ok()) {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    answer
}

/// An answer without a body that ends its connection: what the sender still had to say was not read, and after an
/// error nobody should guess where the next request begins.
fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    closing(answer)
}

fn closing(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
