//! How a request can end, before it is an answer.

use super::body::BodyError;
use super::ticket::NoVerdict;
use crate::metrics::DeliveryResult;
use crate::provider::{Rejection, RejectionCode, Reply};
use crate::store::{DeliveryVerdict, StoreError, Verdict};

/// Code of what one client was refused so that others have their share.
pub(super) const CLIENT_SHARE: &str = "client_share";

/// Code of a batch of which a part did not verify.
pub(super) const MIXED_BATCH: &str = "mixed_batch";

/// How a request ended well.
pub(super) enum Ending {
    Handshake(Reply),
    Kept(Kept),
}

/// A committed delivery, and what the metrics want to know of it.
pub(super) struct Kept {
    pub verdict: DeliveryVerdict,
    /// Items of the batch that did not verify.
    pub refused_items: usize,
    pub outside_window: bool,
    /// Label of the secret that matched.
    pub secret: String,
    pub received_at: i64,
    pub occurred_at: Vec<i64>,
}

impl Kept {
    /// A duplicate if nothing in it was new.
    pub fn result(&self) -> DeliveryResult {
        let new = |verdict| matches!(verdict, Verdict::Stored | Verdict::Suspect);
        let known = !self.verdict.events.is_empty() && !self.verdict.events.iter().any(|event| new(event.verdict));
        if known { DeliveryResult::Duplicate } else { DeliveryResult::Accepted }
    }
}

/// How it did not.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}", .0.detail)]
    Rejected(Rejection),
    #[error("the source takes other methods")]
    Method,
    #[error("the content is encoded")]
    Encoding,
    #[error("the body was not read whole: {0:?}")]
    Body(BodyError),
    #[error("too many {0} at once")]
    Overloaded(&'static str),
    #[error("too many requests of one client at once")]
    ClientShare,
    #[error("no verdict in time, the commit goes on")]
    Late,
    #[error("{0}")]
    Store(StoreError),
    #[error("the request panicked")]
    Panicked,
}

impl Failure {
    /// Stable: metric label, log field and quarantine column.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Rejected(rejection) => rejection.code.code(),
            Self::Method => "method_not_allowed",
            Self::Encoding => "content_encoding",
            Self::Body(BodyError::TooLarge) => "body_too_large",
            Self::Body(BodyError::Timeout) => "body_timeout",
            Self::Body(BodyError::Broken) => "body_broken",
            Self::Body(BodyError::Budget) | Self::Overloaded(_) => "overloaded",
            Self::Body(BodyError::ClientShare) | Self::ClientShare => CLIENT_SHARE,
            Self::Late => "answer_limit",
            Self::Store(error) => error.code(),
            Self::Panicked => "panicked",
        }
    }

    /// Whether it is counted by its code: what the sender did wrong, and of what is ours what it alone meets.
    pub fn is_rejection(&self) -> bool {
        let of_client = matches!(self, Self::ClientShare | Self::Body(BodyError::ClientShare));
        of_client || matches!(self, Self::Rejected(_)) || !self.is_ours()
    }

    /// Our own fault or load: 503, never 4xx, for some providers never send again after that.
    pub fn is_ours(&self) -> bool {
        match self {
            Self::Rejected(rejection) => rejection.code == RejectionCode::NoSecret,
            Self::Body(error) => matches!(error, BodyError::Budget | BodyError::ClientShare),
            Self::Method | Self::Encoding => false,
            Self::Overloaded(_) | Self::ClientShare | Self::Late | Self::Store(_) | Self::Panicked => true,
        }
    }
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

impl From<NoVerdict> for Failure {
    fn from(no: NoVerdict) -> Self {
        match no {
            NoVerdict::Late => Self::Late,
            NoVerdict::Store(error) => Self::Store(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // W-068: the one line that parts 503 from 4xx, for every way a request can fail.
    #[test]
    fn what_is_our_own_fault_or_load_is_never_the_senders() {
        let rejected = |code| Failure::Rejected(Rejection::new(code, "why"));
        let ours = [
            rejected(RejectionCode::NoSecret),
            Failure::Body(BodyError::Budget),
            Failure::Body(BodyError::ClientShare),
            Failure::Overloaded("requests"),
            Failure::ClientShare,
            Failure::Late,
            Failure::Store(StoreError::Busy),
            Failure::Store(StoreError::Unavailable("gone".to_owned())),
            Failure::Store(StoreError::UnknownOutcome("gone".to_owned())),
            Failure::Store(StoreError::Row("refused".to_owned())),
            Failure::Panicked,
        ];
        for failure in &ours {
            assert!(failure.is_ours(), "{failure:?}");
        }
        let body = [BodyError::TooLarge, BodyError::Timeout, BodyError::Broken].map(Failure::Body);
        for failure in body.iter().chain(&[Failure::Method, Failure::Encoding]) {
            assert!(!failure.is_ours(), "{failure:?}");
        }
        for code in RejectionCode::ALL.into_iter().filter(|code| *code != RejectionCode::NoSecret) {
            assert!(!rejected(code).is_ours(), "{code:?}");
        }
    }
}
