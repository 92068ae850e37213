//! What is known of an accepted event, apart from whatever happens to it later.

use serde::{Deserialize, Serialize};

use super::id::{PayloadId, ReceiptId};

/// The unique key of an event, compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKey {
    /// Provider's name, at most 40 bytes.
    pub provider: String,
    /// Whose event it is, at most 128 bytes; longer ones are their digest.
    pub account: String,
    /// What the identity recipe made, at most 255 bytes; longer ones are their digest.
    pub event_id: String,
}

/// Live or test traffic, where the provider says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Live,
    Test,
    Unknown,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Test => "test",
            Self::Unknown => "unknown",
        }
    }

    /// The mode that `text` names; anything else is unknown.
    pub fn parse(text: &str) -> Self {
        match text {
            "live" => Self::Live,
            "test" => Self::Test,
            _ => Self::Unknown,
        }
    }
}

/// How the signature covers what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coverage {
    /// Every byte of the body.
    Body,
    /// Only named fields: the consumer should fetch the rest.
    Fields,
    /// Nothing of the body (a token, basic auth, or no proof at all).
    None,
}

impl Coverage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Fields => "fields",
            Self::None => "none",
        }
    }
}

/// How a receipt came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A signed request at the edge.
    Delivery,
    /// Read from the provider's own list.
    Reconcile,
    /// A divergent variant that a person admitted.
    Admitted,
    /// A key without a body, from the receiver that was here before.
    Imported,
}

impl Origin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Reconcile => "reconcile",
            Self::Admitted => "admitted",
            Self::Imported => "imported",
        }
    }
}

/// Why a receipt is kept from consumers until a person looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// The body does not parse as what the provider sends.
    Unparsable,
    /// It parses, but has no id where the recipe looks.
    NoId,
    /// An identity field stands there twice.
    IdTwice,
    /// A field has the wrong kind (an object where an id belongs).
    WrongShape,
    /// More events in one delivery than may be split.
    BatchTooLarge,
    /// The same signed content came before under another, unsigned id.
    Suspect,
    /// The account in the body is not the one that the path or the secret names.
    AccountMismatch,
}

impl HoldReason {
    pub const ALL: [Self; 7] = [
        Self::Unparsable,
        Self::NoId,
        Self::IdTwice,
        Self::WrongShape,
        Self::BatchTooLarge,
        Self::Suspect,
        Self::AccountMismatch,
    ];

    /// Stable name in the column, the metric label and the API.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unparsable => "unparsable",
            Self::NoId => "no_id",
            Self::IdTwice => "id_twice",
            Self::WrongShape => "wrong_shape",
            Self::BatchTooLarge => "batch_too_large",
            Self::Suspect => "suspect",
            Self::AccountMismatch => "account_mismatch",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == text)
    }
}

/// Marks on a receipt; stored as a comma-separated list of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// The provider proves nothing about the body.
    Unsigned,
    /// Accepted with a signed time more than five minutes away.
    OutsideWindow,
    /// Each delivery of this source is its own receipt.
    EveryDelivery,
    /// No subscription's filter took it.
    Unmatched,
    /// The account comes from an unsigned header.
    AccountUnsigned,
    /// The id was too long for the key and is its digest.
    IdDigested,
}

impl Flag {
    pub const ALL: [Self; 6] = [
        Self::Unsigned,
        Self::OutsideWindow,
        Self::EveryDelivery,
        Self::Unmatched,
        Self::AccountUnsigned,
        Self::IdDigested,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::OutsideWindow => "outside_window",
            Self::EveryDelivery => "every_delivery",
            Self::Unmatched => "unmatched",
            Self::AccountUnsigned => "account_unsigned",
            Self::IdDigested => "id_digested",
        }
    }
}

/// The flags as they stand in the column: names in a fixed order, joined with commas; empty for none.
pub fn flags_text(flags: &[Flag]) -> String {
    let mut sorted = flags.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.iter().map(|flag| flag.as_str()).collect::<Vec<_>>().join(",")
}

/// What proved the delivery; kept as JSON in `receipts.verified_by`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedBy {
    /// Name of the mechanism (`hmac-sha256`, `ed25519`, `basic`, `none` …).
    pub mechanism: String,
    /// Label of the secret that matched; empty where none is used.
    pub secret: String,
    /// The signed timestamp in UTC microseconds, where there is one.
    pub signed_at: Option<i64>,
    pub coverage: Coverage,
}

/// What proved one item of a batch whose items are signed one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemProof {
    pub verified_by: VerifiedBy,
    /// SHA-256 of what was signed.
    pub signed_sha256: [u8; 32],
}

/// A receipt as stored, without its body.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    pub id: ReceiptId,
    pub key: EventKey,
    /// The id as the provider prints it.
    pub provider_ref: String,
    pub mode: Mode,
    pub source: String,
    pub event_type: String,
    /// The provider's own time of the event, UTC microseconds.
    pub occurred_at: Option<i64>,
    /// When the request had arrived whole, UTC microseconds.
    pub received_at: i64,
    pub resource_key: Option<String>,
    pub resource_version: Option<String>,
    /// None for imported receipts.
    pub payload_id: Option<PayloadId>,
    /// JSON pointer of the item in a batch.
    pub pointer: Option<String>,
    /// Byte range of the item in the body, `None` for the whole body.
    pub part: Option<(u64, u64)>,
    pub item_sha256: Option<[u8; 32]>,
    pub signed_sha256: Option<[u8; 32]>,
    pub verified_by: Option<VerifiedBy>,
    pub origin: Origin,
    /// See [`flags_text`].
    pub flags: String,
    pub hold_reason: Option<HoldReason>,
    pub duplicates: i64,
    pub last_delivered_at: Option<i64>,
}
