//! What the edge counts and logs beside the answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, info};

use super::EdgeSource;
use super::ending::{CLIENT_SHARE, Kept, MIXED_BATCH};
use crate::metrics::{self, DeliveryResult};
use crate::model::receipt::HoldReason;
use crate::provider::RejectionCode;
use crate::store::Verdict;

/// Codes of refusals that the edge itself gives; a definition's are [`RejectionCode`]'s.
pub const REJECTION_CODES: [&str; 7] = [
    "content_encoding",
    "body_too_large",
    "body_timeout",
    "body_broken",
    "method_not_allowed",
    MIXED_BATCH,
    CLIENT_SHARE,
];

/// The label of what belongs to no source.
const UNKNOWN: &str = "unknown";

/// Sets the counters of the sources to 0.
pub(super) fn start(sources: &[Arc<EdgeSource>]) {
    let codes: Vec<&str> = RejectionCode::ALL.into_iter().map(RejectionCode::code).chain(REJECTION_CODES).collect();
    let holds = HoldReason::ALL.map(HoldReason::code);
    for source in sources {
        let labels: Vec<String> = source.inlet.secret_labels().map(str::to_owned).collect();
        metrics::start_source(&source.name, &labels, &codes, &holds);
    }
    metrics::start_source(UNKNOWN, &[], &["unknown_path", "head_too_large", "head_broken", "connection_limit"], &[]);
}

/// A committed delivery.
pub(super) fn kept(source: &EdgeSource, kept: &Kept, result: DeliveryResult, took: Duration) {
    let name = &*source.name;
    metrics::delivery(name, result, took);
    metrics::secret_match(name, &kept.secret);
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    metrics::source_last_delivery(name, kept.received_at as f64 / 1e6);
    for occurred_at in &kept.occurred_at {
        let lag = u64::try_from(kept.received_at - occurred_at).unwrap_or(0);
        metrics::occurred_lag(name, Duration::from_micros(lag));
    }
    for event in &kept.verdict.events {
        if kept.outside_window {
            metrics::outside_window(name);
        }
        if event.unmatched {
            metrics::unmatched(name);
        }
        if let Some(reason) = event.held {
            metrics::held(name, reason.code());
            info!(source = name, receipt.id = %event.receipt_id, code = reason.code(), "an event is held for a person");
        }
        match event.verdict {
            Verdict::Stored | Verdict::Suspect => {}
            Verdict::Duplicate => metrics::duplicate(name),
            Verdict::Divergent => {
                metrics::divergence(name);
                info!(source = name, receipt.id = %event.receipt_id, code = "divergent", "an event came again with other content");
            }
        }
        debug!(source = name, receipt.id = %event.receipt_id, verdict = event.verdict.as_str(), "kept");
    }
}

/// A path that leads to no source. At debug: strangers knock all day, and the operator has the list of paths.
pub(super) fn unknown_path(first_byte: Instant) {
    metrics::delivery(UNKNOWN, DeliveryResult::Rejected, Instant::now() - first_byte);
    metrics::rejection(UNKNOWN, "unknown_path");
    debug!("a request led to no source");
}

/// A connection that ended in an error before it was a request.
pub(super) fn connection_failed(error: &hyper::Error) {
    if error.is_parse_too_large() {
        metrics::rejection(UNKNOWN, "head_too_large");
    } else if error.is_parse() {
        metrics::rejection(UNKNOWN, "head_broken");
    }
    debug!(%error, "a connection ended in an error");
}

/// A connection past the caps.
pub(super) fn connection_refused() {
    metrics::rejection(UNKNOWN, "connection_limit");
    debug!("a connection was refused: the caps are reached");
}

/// A bug: the panic hook has logged its place.
pub(super) fn panicked() {
    error!("a request panicked and was answered 503");
}
