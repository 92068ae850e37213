//! The statements that both backends speak. Flows (intake, jobs) are written once over this trait; a backend gives only
//! the SQL. All of one flow's calls run in one transaction, opened and committed by the backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::{HandOver, OutboxLook, Redelivery, StoreError};
use crate::model::attempt::Attempt;
use crate::model::id::{OutboxId, PayloadId, ReceiptId};
use crate::model::job::{FAILING_COUNT, Job, JobKey, OUTBOX_COUNT};
use crate::model::receipt::{EventKey, Receipt};

/// Redeliveries of one receipt that are kept; later ones are only counted.
pub const REDELIVERIES_MAX: i64 = 32;

/// Variants of one receipt's content that are kept; later ones are only counted.
pub const DIVERGENCES_MAX: i64 = 16;

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

impl IntakeRows {
    /// What the rows add to `job_counts` if all of them are new.
    pub fn counts(&self) -> Vec<(String, String, i64)> {
        self.counts_of(|_| true).into_rows()
    }

    /// The same for the receipts that `is_new` picks.
    pub fn counts_of(&self, is_new: impl Fn(ReceiptId) -> bool) -> Counts {
        let mut counts = Counts::default();
        for job in self.jobs.iter().filter(|job| is_new(job.key.receipt)) {
            counts.add_job(job, 1);
        }
        for row in self.outbox.iter().filter(|row| is_new(row.key.receipt)) {
            counts.add(&row.key.subscription, OUTBOX_COUNT, 1);
        }
        counts
    }
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
    /// Jobs of a subscription without an outbox row and without a lease: queued ones handed out before the one moment, begun
    /// ones handed out before the other (database's clock).
    Lost { subscription: String, handed_before: i64, begun_before: i64 },
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
    /// Every outbox row of these jobs is withdrawn, before `outbox` is written.
    pub withdraw: Vec<JobKey>,
}

/// What [`Tx::write_jobs`] found when it wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Those of `insert` that were not there before.
    pub inserted: Vec<JobKey>,
    /// Outbox rows that `withdraw` removed, by subscription.
    pub withdrawn: Vec<(String, u64)>,
}

impl JobWrites {
    /// What the writes change in `job_counts`, summed, in key order, for [`Tx::add_counts`].
    pub fn counts(&self, written: &Written) -> Vec<(String, String, i64)> {
        let mut counts = Counts::default();
        for job in self.insert.iter().filter(|job| written.inserted.contains(&job.key)) {
            counts.add_job(job, 1);
        }
        for (before, after) in &self.update {
            counts.add_job(before, -1);
            counts.add_job(after, 1);
        }
        for row in &self.outbox {
            counts.add(&row.key.subscription, OUTBOX_COUNT, 1);
        }
        for (subscription, rows) in &written.withdrawn {
            counts.add(subscription, OUTBOX_COUNT, -i64::try_from(*rows).unwrap_or(i64::MAX));
        }
        counts.into_rows()
    }
}

/// Differences for `job_counts`, summed by subscription and state.
#[derive(Debug, Clone, Default)]
pub struct Counts(BTreeMap<(String, String), i64>);

impl Counts {
    pub fn add(&mut self, subscription: &str, state: &str, n: i64) {
        *self.0.entry((subscription.to_owned(), state.to_owned())).or_default() += n;
    }

    /// Counts a job in its state, and among those that keep failing.
    pub fn add_job(&mut self, job: &Job, n: i64) {
        self.add(&job.key.subscription, job.state.as_str(), n);
        if job.keeps_failing() {
            self.add(&job.key.subscription, FAILING_COUNT, n);
        }
    }

    /// Those that are not zero, in key order.
    pub fn into_rows(self) -> Vec<(String, String, i64)> {
        self.0.into_iter().filter(|(_, n)| *n != 0).map(|((subscription, state), n)| (subscription, state, n)).collect()
    }
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
    /// Guarded receipts of `provider` with one of these signed contents, oldest first, at least one for each content that
    /// is known and at most 2. Where several writers run at once, the contents (they come sorted, no one twice) are locked
    /// until the transaction ends, so that two new ids for one content cannot both be taken for the first.
    async fn receipts_by_signed(
        &mut self,
        provider: &str,
        sources: &[Arc<str>],
        signed: &[[u8; 32]],
    ) -> Result<Vec<Receipt>, StoreError>;
    /// Bodies kept beside their receipts; an id that is there already is left alone.
    async fn insert_payloads(&mut self, payloads: &[PayloadRow]) -> Result<(), StoreError>;
    /// Adds redeliveries in this order: at most [`REDELIVERIES_MAX`] kept for each receipt, all counted in `duplicates`;
    /// `last_delivered_at` becomes the latest.
    async fn add_redeliveries(&mut self, rows: &[(ReceiptId, Redelivery)]) -> Result<(), StoreError>;
    /// Adds variants not yet known (at most [`DIVERGENCES_MAX`] for each receipt); returns by position which were new.
    async fn add_divergences(&mut self, rows: &[DivergenceRow]) -> Result<Vec<bool>, StoreError>;

    /// Jobs by key, locked, in key order; missing ones are absent.
    async fn lock_jobs(&mut self, keys: &[JobKey]) -> Result<Vec<Job>, StoreError>;
    /// Every job of these receipts, locked, in key order.
    async fn lock_jobs_of(&mut self, receipts: &[ReceiptId]) -> Result<Vec<Job>, StoreError>;
    async fn lock_due(&mut self, due: &Due, limit: u32) -> Result<Vec<Job>, StoreError>;
    async fn attempts_of(&mut self, keys: &[JobKey]) -> Result<Vec<Attempt>, StoreError>;
    async fn receipts_by_id(&mut self, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError>;
    /// The events' own bytes (the item of a batch, else the whole body) with their content type; `None` where retention took it.
    async fn bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<Option<(String, bytes::Bytes)>>, StoreError>;
    /// By position: whether the receipt's stored body is still there; cheaper than [`Tx::bodies`].
    async fn have_bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<bool>, StoreError>;
    /// Applies the writes. `job_counts` is not touched: the flow adds [`JobWrites::counts`] with `add_counts`.
    async fn write_jobs(&mut self, writes: &JobWrites) -> Result<Written, StoreError>;
    /// Adds to `job_counts` (subscription, state or `~outbox`, difference), in key order, as the transaction's last statement.
    async fn add_counts(&mut self, counts: &[(String, String, i64)]) -> Result<(), StoreError>;
    /// Names of subscriptions that are paused or retired.
    async fn held_back_subscriptions(&mut self) -> Result<Vec<(String, SubscriptionState)>, StoreError>;
    /// Notes that a subscription has sent a report (only the first changes anything).
    async fn note_report(&mut self, subscription: &str) -> Result<(), StoreError>;
    /// Whether the subscription has ever sent a report ([`Tx::note_report`]).
    async fn has_reported(&mut self, subscription: &str) -> Result<bool, StoreError>;
    async fn audit(&mut self, actor: &str, action: &str, subject: &str, detail: &str) -> Result<(), StoreError>;
    /// The receipt is held no longer.
    async fn release_hold(&mut self, receipt: ReceiptId) -> Result<(), StoreError>;
    /// Due outbox rows with their messages.
    async fn read_outbox(&mut self, query: &super::OutboxQuery) -> Result<OutboxLook, StoreError>;
    /// The hand-overs of these rows; rows that are gone are absent.
    async fn outbox_by_id(&mut self, ids: &[OutboxId]) -> Result<Vec<(OutboxId, HandOver)>, StoreError>;
    /// Removes rows by id; returns how many were there, by subscription, for the counters.
    async fn delete_outbox(&mut self, ids: &[OutboxId]) -> Result<Vec<(String, u64)>, StoreError>;
}

/// Whether a subscription's jobs go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionState {
    Active,
    Paused,
    Retired,
}
