//! What the relay takes from the store and gives back, and the seam by which fresh rows reach it in memory.

use bytes::Bytes;
use std::collections::HashSet;

use crate::model::attempt::Trigger;
use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{JobKey, Lane};
use crate::model::receipt::Receipt;

/// The fixed set of shards.
pub const SHARDS: u8 = 32;

/// One hand-over of one attempt of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    pub key: JobKey,
    pub attempt: i32,
    pub lane: Lane,
    pub trigger: Trigger,
}

/// A row of the outbox with all that its message needs.
#[derive(Debug, Clone)]
pub struct OutboxMessage {
    pub id: OutboxId,
    pub shard: u8,
    /// UTC microseconds, the store's clock: when the row was written.
    pub queued_at: i64,
    pub hand_over: HandOver,
    /// Shared by all rows of one receipt.
    pub receipt: std::sync::Arc<Receipt>,
    pub content_type: String,
    /// The event's exact bytes; `None` when the stored body is gone.
    pub body: Option<Bytes>,
}

/// Which rows the relay wants.
#[derive(Debug, Clone, Default)]
pub struct OutboxQuery {
    pub shards: Vec<u8>,
    pub limit: u32,
    pub bytes_max: usize,
    /// Rows it already holds.
    pub skip: HashSet<OutboxId>,
    /// (shard, subscription) pairs that back off.
    pub skip_lanes: Vec<(u8, String)>,
}

/// What a look at the outbox found.
#[derive(Debug, Clone, Default)]
pub struct OutboxLook {
    pub messages: Vec<OutboxMessage>,
    /// Nothing else was due of what was asked for: no bound cut the look short.
    pub whole: bool,
}

/// A row whose own confirm came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmedRow {
    pub id: OutboxId,
    pub hand_over: HandOver,
    /// The subscription completes on the confirm: end its job in the same transaction.
    pub completes: bool,
}

/// Depth and age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    pub depth: u64,
    /// Age of the oldest due row by the store's clock.
    pub oldest: Option<std::time::Duration>,
}

/// How a writer in the same process hands fresh rows to the relay without a look at the table.
///
/// A row is held *before* COMMIT, so that no look publishes it a second time, and given up when COMMIT fails or is unknown.
pub trait FreshRows: Send + Sync + 'static {
    /// A shard that the relay holds, or any shard if it holds none.
    fn shard(&self, receipt: ReceiptId) -> u8;
    /// Rows about to be committed. Rows the relay has no room for are left out of its held set and found by its next look.
    fn before_commit(&self, rows: &[(OutboxId, u8)]);
    /// They are committed: publish.
    fn committed(&self, rows: Vec<OutboxMessage>);
    /// They are not, or nobody knows.
    fn abandoned(&self, rows: &[OutboxId]);
}
