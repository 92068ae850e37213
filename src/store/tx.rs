//! The statements that both backends speak. Flows (intake, jobs) are written once over this trait; a backend gives only
//! the SQL. All of one flow's calls run in one transaction, opened and committed by the backend.

use async_trait::async_trait;

use super::{OutboxMessage, Redelivery, StoreError};
use crate::model::attempt::Attempt;
use crate::model::id::{OutboxId, PayloadId, ReceiptId};
use crate::model::job::{Job, JobKey};
use crate::model::receipt::{EventKey, Receipt};

/// A body to be stored.
#[derive(Debug, Clone)]
pub struct PayloadRow {
    pub id: PayloadId,
    pub body: bytes::Bytes,
    /// JSON: `[["name","base64 of the value"],…]` for kept ones, `[["name"],…]` for those of which only the name is kept.
    pub headers: String,
    pub content_type: String,
    pub url: String,
}

/// All rows of an intake batch whose receipts may be new.
#[derive(Debug, Clone, Default)]
pub struct IntakeRows {
    pub receipts: Vec<Receipt>,
    /// By position: whether the replay guard looks at the receipt.
    pub replay_guard: Vec<bool>,
    /// One for each delivery; stored if any of its receipts is.
    pub payloads: Vec<PayloadRow>,
    pub jobs: Vec<Job>,
    pub outbox: Vec<OutboxRow>,
}

/// A hand-over to be written.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    pub id: OutboxId,
    pub key: JobKey,
    pub attempt: i32,
    pub lane: crate::model::job::Lane,
    pub trigger: crate::model::attempt::Trigger,
    pub shard: u8,
    /// Microseconds from the database's now.
    pub due_in: i64,
}

/// A kept variant of a receipt's content.
#[derive(Debug, Clone)]
pub struct DivergenceRow {
    pub receipt: ReceiptId,
    pub item_sha256: [u8; 32],
    pub at: i64,
    pub source: String,
    pub payload: PayloadId,
    pub part: Option<(u64, u64)>,
}

/// Which jobs to lock, oldest receipt first; rows that another transaction holds are passed over.
#[derive(Debug, Clone)]
pub enum Due {
    /// Pending or retrying jobs of a `pull` subscription whose time has come.
    Claimable { subscription: String },
    /// Pending or retrying jobs of these `amqp` subscriptions whose time has come, not paused.
    HandOut { subscriptions: Vec<String> },
    /// Running jobs whose lease ran out.
    Expired,
    /// Queued jobs of a subscription without an outbox row, handed out before this moment (database's clock).
    Lost { subscription: String, handed_before: i64 },
}

/// All writes of one job flow, applied together.
#[derive(Debug, Clone, Default)]
pub struct JobWrites {
    /// New rows; a job that is there already is left alone.
    pub insert: Vec<Job>,
    /// (before, after): updated where state, attempt and series are still those of `before`; exactly one row each.
    pub update: Vec<(Job, Job)>,
    /// New or replaced by (receipt, subscription, attempt).
    pub attempts: Vec<Attempt>,
    pub outbox: Vec<OutboxRow>,
    /// Outbox rows of these jobs that have not been handed out are withdrawn.
    pub withdraw: Vec<JobKey>,
}

/// One open transaction.
#[async_trait]
pub trait Tx: Send {
    /// The database's clock, UTC microseconds.
    async fn now(&mut self) -> Result<i64, StoreError>;

    /// Inserts the receipts whose keys are free and, for those alone, their payload, jobs and outbox rows; one statement
    /// where the backend can. Returns the ids that were inserted. Receipts come sorted by key, no key twice.
    async fn insert_intake(&mut self, rows: &IntakeRows) -> Result<Vec<ReceiptId>, StoreError>;
    /// A second statement, with its own snapshot: the receipts of these keys, locked for the counters.
    async fn receipts_by_key(&mut self, keys: &[EventKey]) -> Result<Vec<Receipt>, StoreError>;
    /// Guarded receipts of `provider` with this signed content, oldest first, at most 2.
    async fn receipts_by_signed(&mut self, provider: &str, signed: &[[u8; 32]]) -> Result<Vec<Receipt>, StoreError>;
    async fn insert_payloads(&mut self, payloads: &[PayloadRow]) -> Result<(), StoreError>;
    /// Adds redeliveries (at most 32 kept for each receipt, all counted).
    async fn add_redeliveries(&mut self, rows: &[(ReceiptId, Redelivery)]) -> Result<(), StoreError>;
    /// Adds variants not yet known (at most 16 for each receipt); returns which were new.
    async fn add_divergences(&mut self, rows: &[DivergenceRow]) -> Result<Vec<bool>, StoreError>;

    /// Jobs by key, locked, in key order; missing ones are absent.
    async fn lock_jobs(&mut self, keys: &[JobKey]) -> Result<Vec<Job>, StoreError>;
    /// Every job of these receipts, locked, in key order.
    async fn lock_jobs_of(&mut self, receipts: &[ReceiptId]) -> Result<Vec<Job>, StoreError>;
    async fn lock_due(&mut self, due: &Due, limit: u32) -> Result<Vec<Job>, StoreError>;
    async fn attempts_of(&mut self, keys: &[JobKey]) -> Result<Vec<Attempt>, StoreError>;
    async fn receipts_by_id(&mut self, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError>;
    /// Bodies with their content type; `None` where retention took it.
    async fn bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<Option<(String, bytes::Bytes)>>, StoreError>;
    /// Applies the writes. `job_counts` is not touched: the flow adds [`JobWrites::counts`] with `add_counts`.
    async fn write_jobs(&mut self, writes: &JobWrites) -> Result<(), StoreError>;
    /// Adds to `job_counts` (subscription, state or `~outbox`, difference), in key order, as the transaction's last statement.
    async fn add_counts(&mut self, counts: &[(String, String, i64)]) -> Result<(), StoreError>;
    /// Names of subscriptions that are paused or retired.
    async fn held_back_subscriptions(&mut self) -> Result<Vec<(String, SubscriptionState)>, StoreError>;
    /// Notes that a subscription has sent a report (only the first changes anything).
    async fn note_report(&mut self, subscription: &str) -> Result<(), StoreError>;
    async fn audit(&mut self, actor: &str, action: &str, subject: &str, detail: &str) -> Result<(), StoreError>;
    /// Due outbox rows with their messages.
    async fn read_outbox(&mut self, query: &super::OutboxQuery) -> Result<Vec<OutboxMessage>, StoreError>;
    /// Removes rows by id; returns how many were there.
    async fn delete_outbox(&mut self, ids: &[OutboxId]) -> Result<u64, StoreError>;
}

/// Whether a subscription's jobs go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionState {
    Active,
    Paused,
    Retired,
}
