//! Providers: a TOML file becomes a compiled definition, a definition bound to a source's secrets becomes an [`Inlet`],
//! and an inlet turns the raw bytes of a delivery into a handshake's answer, verified events, or a rejection.
//! The engine knows mechanisms, never names of providers.

mod carrier;
mod catalog;
mod compile;
mod context;
mod definition;
mod describe;
mod digest;
mod early;
mod expr;
mod extract;
mod form;
mod inlet;
pub mod json;
mod key;
mod receive;
mod sign;
mod spec;
mod time;
mod vector;
mod verify;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use secrecy::SecretSlice;

pub use catalog::Catalog;
pub use definition::{BATCH_MAX, Definition, WINDOW};
pub use inlet::Inlet;
pub use sign::{SignError, SignRequest, SignedRequest, TestSecret};
pub use spec::SpecError;
pub use vector::run_vector;

use crate::model::receipt::{Flag, HoldReason, ItemProof, Mode, VerifiedBy};

/// Params of a source or a secret, by name.
pub type ParamValues = BTreeMap<String, SecretSlice<u8>>;

/// One secret of a source. Times are UTC microseconds.
pub struct SourceSecret {
    pub label: String,
    /// As configured, one trailing newline already cut; the definition says how it is decoded.
    pub value: SecretSlice<u8>,
    pub not_before: Option<i64>,
    pub not_after: Option<i64>,
    /// Overrides of the source's `params` for this secret.
    pub params: ParamValues,
}

/// What a definition needs to know of the source it is bound to.
pub struct SourceSettings {
    pub name: String,
    pub secrets: Vec<SourceSecret>,
    /// What the scheme needs beside the secret (merchant id, salt …).
    pub params: ParamValues,
    /// Account of events that name none; `@{source}` if absent.
    pub account: Option<String>,
    pub account_in_path: bool,
    /// Narrows or widens the file's window.
    pub tolerance: Option<Duration>,
    /// `[edge] window = "strict"`: nothing wider than five minutes.
    pub window_strict: bool,
    /// The public URL that URL-signed schemes sign, without a query.
    pub url: Option<String>,
    /// `malformed = "hold"`; false means deliver all the same.
    pub hold_malformed: bool,
    /// Overrides the file's replay guard.
    pub replay_guard: Option<bool>,
}

/// One inbound request, its body read whole.
pub struct Inbound<'a> {
    pub method: &'a Method,
    /// The public URL as the provider was told it, with the query as received.
    pub url: &'a str,
    pub query: Option<&'a str>,
    /// The `{account}` part of the path, for sources that have one.
    pub path_account: Option<&'a str>,
    /// The rest of the path, for definitions that declare a suffix.
    pub suffix: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub body: &'a Bytes,
    /// When the headers had arrived, UTC microseconds: the window is checked against it.
    pub arrived_at: i64,
}

/// What a request turned out to be.
pub enum Received {
    /// A declared handshake: answer it, make no receipt.
    Handshake(Reply),
    Events(Verified),
}

/// An authentic delivery and what it carries.
pub struct Verified {
    pub verified_by: VerifiedBy,
    /// SHA-256 of the signed content.
    pub signed_sha256: [u8; 32],
    /// Identical signed content under a new unsigned id is `suspect`.
    pub replay_guard: bool,
    /// Each delivery is a receipt; the store makes `event_id` `{ref}@{receipt id}`.
    pub every_delivery: bool,
    /// Outside five minutes, though inside the source's own window.
    pub outside_window: bool,
    pub events: Vec<ExtractedEvent>,
    /// Items of a mixed batch that did not verify; with any, the answer is a refusal although the good are committed.
    pub refused_items: usize,
    /// Names of the headers to keep beside the generic ones are [`Inlet::kept_headers`].
    pub retry_headers: Vec<(String, String)>,
}

/// One event of a delivery.
#[derive(Debug, Clone)]
pub struct ExtractedEvent {
    pub account: String,
    pub event_id: String,
    pub provider_ref: String,
    pub mode: Mode,
    pub event_type: String,
    /// UTC microseconds.
    pub occurred_at: Option<i64>,
    pub resource_key: Option<String>,
    pub resource_version: Option<String>,
    /// JSON pointer of the item, in a batch.
    pub pointer: Option<String>,
    /// The item's bytes in the body; `None` for the whole.
    pub part: Option<Range<usize>>,
    /// Hash of the item minus the volatile fields.
    pub item_sha256: [u8; 32],
    pub flags: Vec<Flag>,
    pub hold: Option<HoldReason>,
    /// What proved the item, where each item of a batch is signed by itself.
    pub proof: Option<ItemProof>,
}

/// Why a request was refused before a receipt exists.
#[derive(Debug, Clone)]
pub struct Rejection {
    pub code: RejectionCode,
    /// For the log and the quarantine; never for the caller, never with the right signature in it.
    pub detail: String,
}

impl Rejection {
    /// A refusal with its detail.
    pub fn new(code: RejectionCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// Stable codes of refusals: metric label, log field and quarantine column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectionCode {
    MissingSignature,
    DuplicateHeader,
    MalformedSignature,
    BadSignature,
    BadTimestamp,
    /// Authentic, but its signed time is too old.
    Stale,
    /// Authentic, but its signed time is too far ahead.
    Future,
    BodyMismatch,
    UnknownAccount,
    Method,
    Suffix,
    /// No live secret: our fault, answered 503.
    NoSecret,
}

impl RejectionCode {
    pub const ALL: [Self; 12] = [
        Self::MissingSignature,
        Self::DuplicateHeader,
        Self::MalformedSignature,
        Self::BadSignature,
        Self::BadTimestamp,
        Self::Stale,
        Self::Future,
        Self::BodyMismatch,
        Self::UnknownAccount,
        Self::Method,
        Self::Suffix,
        Self::NoSecret,
    ];

    pub fn code(self) -> &'static str {
        match self {
            Self::MissingSignature => "missing_signature",
            Self::DuplicateHeader => "duplicate_header",
            Self::MalformedSignature => "malformed_signature",
            Self::BadSignature => "bad_signature",
            Self::BadTimestamp => "bad_timestamp",
            Self::Stale => "stale",
            Self::Future => "future",
            Self::BodyMismatch => "body_mismatch",
            Self::UnknownAccount => "unknown_account",
            Self::Method => "method",
            Self::Suffix => "suffix",
            Self::NoSecret => "no_secret",
        }
    }
}

/// An exact answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: StatusCode,
    pub content_type: Option<String>,
    pub body: Bytes,
}
