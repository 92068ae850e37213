//! What the edge hands over for one delivery, and what it hears after COMMIT.

use std::sync::Arc;

use bytes::Bytes;

use crate::model::id::{PayloadId, ReceiptId};
use crate::model::receipt::{HoldReason, ItemProof, Mode, Origin, VerifiedBy};
use crate::model::subscription::SubscriptionSet;

/// One verified delivery: commits whole or not at all.
pub struct NewDelivery {
    pub source: Arc<str>,
    pub provider: Arc<str>,
    /// UTC microseconds.
    pub received_at: i64,
    pub payload_id: PayloadId,
    pub body: Bytes,
    /// Kept headers as they came (name, bytes), and the bare names of all others.
    pub headers: Vec<(String, Bytes)>,
    pub dropped_headers: Vec<String>,
    pub content_type: String,
    /// Path and query as received, credentials cut.
    pub url: String,
    pub peer: String,
    /// `X-Slack-Retry-Num` and its like, kept with each redelivery.
    pub retry_headers: Vec<(String, String)>,
    pub verified_by: VerifiedBy,
    pub signed_sha256: [u8; 32],
    /// Identical signed content under a new id is `suspect`, among the receipts of `guard_sources`.
    pub replay_guard: bool,
    /// The sources that one captured request would pass at: this one, and those of the provider that share a secret with it.
    pub guard_sources: Arc<[Arc<str>]>,
    /// `event_id` is made as `{provider_ref}@{receipt id}`, never a duplicate, never suspect.
    pub every_delivery: bool,
    pub origin: Origin,
    pub events: Vec<NewEvent>,
    /// The configuration under which it was received.
    pub subscriptions: Arc<SubscriptionSet>,
}

/// One event of a delivery.
pub struct NewEvent {
    /// The id that the receipt gets if the event is new.
    pub receipt_id: ReceiptId,
    pub account: String,
    pub event_id: String,
    pub provider_ref: String,
    pub mode: Mode,
    pub event_type: String,
    pub occurred_at: Option<i64>,
    pub resource_key: Option<String>,
    pub resource_version: Option<String>,
    pub pointer: Option<String>,
    pub part: Option<(u64, u64)>,
    pub item_sha256: [u8; 32],
    /// See [`crate::model::receipt::flags_text`]; the store adds `unmatched`.
    pub flags: Vec<crate::model::receipt::Flag>,
    pub hold: Option<HoldReason>,
    /// What proved it, where that is not what proved the delivery.
    pub proof: Option<ItemProof>,
}

/// What became of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Stored,
    Duplicate,
    /// Same key, other content: kept beside, answered like a duplicate.
    Divergent,
    /// Stored, but held: the same signed content came before under another unsigned id.
    Suspect,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Duplicate => "duplicate",
            Self::Divergent => "divergent",
            Self::Suspect => "suspect",
        }
    }
}

/// One event's verdict, true once COMMIT has returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventVerdict {
    pub receipt_id: ReceiptId,
    pub verdict: Verdict,
    /// Why it is held, if it was stored held.
    pub held: Option<HoldReason>,
    /// No subscription took it.
    pub unmatched: bool,
    /// Jobs that this delivery armed again (C9).
    pub rearmed: u32,
}

/// A delivery's verdicts, in the order of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryVerdict {
    pub events: Vec<EventVerdict>,
}
