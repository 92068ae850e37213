//! The store: receipts, jobs, attempts and the outbox, on SQLite or PostgreSQL. One method is one transaction is one
//! crash boundary. Leases take durations, and the database's clock decides. Two backends, one conformance suite.

pub mod committer;
pub mod error;
pub mod intake;
pub mod jobs;
pub mod migrate;
pub mod outbox;
pub mod postgres;
pub mod sqlite;
pub mod tx;

pub(crate) mod headers;
pub(crate) mod intake_flow;
pub(crate) mod job_flow;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, Lane};
use crate::model::subscription::SubscriptionSet;

pub use error::StoreError;
pub use intake::{DeliveryVerdict, EventVerdict, NewDelivery, NewEvent, Verdict};
pub use jobs::*;
pub use outbox::*;

/// What the stages meet in; each stage takes only the part that it needs, so that its tests can stand in for it.
pub trait Store: Intake + Outbox + Jobs + Archive + Upkeep {}

impl<T: Intake + Outbox + Jobs + Archive + Upkeep> Store for T {}

/// For the edge.
#[async_trait]
pub trait Intake: Send + Sync + 'static {
    /// Queues one delivery for the next group commit. The answer comes after COMMIT, or as an error; dropping the
    /// receiver changes nothing for the commit. Fails at once with [`StoreError::Busy`] when the queue is full.
    fn submit(
        &self,
        delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError>;

    /// Writes refused requests to the quarantine and trims it to its bounds; outside every request's path.
    async fn record_rejections(
        &self,
        rejections: Vec<NewRejection>,
        bounds: QuarantineBounds,
    ) -> Result<(), StoreError>;

    /// What `/readyz` says: an error means that intake answers 503 now.
    async fn ready(&self) -> Result<(), StoreError>;
}

/// For the relay.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// From now on, writers of this process hand fresh rows over in memory. Without it the relay finds them by its looks.
    fn attach(&self, fresh: Arc<dyn FreshRows>) {
        drop(fresh);
    }

    /// Makes the relay known for `lease` and returns how many are alive, itself included.
    async fn announce_relay(&self, relay: &str, lease: Duration) -> Result<u32, StoreError>;

    /// Renews what the relay holds and takes free or expired shards until it holds `share`; returns all it holds.
    async fn hold_shards(&self, relay: &str, share: u32, lease: Duration) -> Result<Vec<u8>, StoreError>;

    /// Gives shards back.
    async fn release_shards(&self, relay: &str, shards: &[u8]) -> Result<(), StoreError>;

    /// Due rows of the given shards that are still there, oldest first, with their messages; rows of paused
    /// subscriptions stay. Never "id greater than the last".
    async fn read_outbox(&self, query: OutboxQuery) -> Result<OutboxLook, StoreError>;

    /// Removes rows whose own confirm came, and completes jobs of `completes_on = "confirm"` subscriptions.
    async fn delete_outbox(&self, confirmed: &[ConfirmedRow]) -> Result<(), StoreError>;

    /// Puts hand-overs that no queue took back into the outbox, due after `delay`; commit this before acking the
    /// broker's message. A job that has moved on is left alone.
    async fn return_to_outbox(&self, returned: &[HandOver], delay: Duration) -> Result<(), StoreError>;

    /// Takes a hand-over out of the outbox and puts its job in review.
    async fn give_up_outbox(&self, rows: &[OutboxId], reason: JobReason, note: &str) -> Result<u64, StoreError>;

    /// Depth and age of the outbox, for gauges; cheap at any depth.
    async fn outbox_status(&self) -> Result<OutboxStatus, StoreError>;
}

/// For process and for operators.
#[async_trait]
pub trait Jobs: Send + Sync + 'static {
    /// Applies reports in order; each gets its own verdict. Tokens are checked by the caller.
    async fn record_outcomes(
        &self,
        reports: Vec<OutcomeReport>,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<OutcomeVerdict>, StoreError>;

    /// Leases due `pull` jobs of one subscription, oldest first: begins their attempts.
    async fn claim_jobs(
        &self,
        claim: ClaimRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ClaimedJob>, StoreError>;

    /// Moves a running attempt's lease to now + `lease`; refused when it is no longer the one that runs.
    async fn extend_lease(&self, job: &JobKey, attempt: i32, lease: Duration) -> Result<(), StoreError>;

    /// Hands out retrying and pending `amqp` jobs that are due (a new attempt and an outbox row); returns how many.
    async fn hand_out_due(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError>;

    /// Ends attempts whose lease ran out as failed (`no_outcome`) and schedules what follows; returns how many.
    async fn rescue_expired(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError>;

    /// Publishes again, with the same attempt number, jobs of `subscription` that are with a queue or begun without a lease,
    /// have no outbox row and are old enough to be lost by `rule`; after `rule.times` the job goes to review `no_outcome`.
    async fn republish_lost(&self, subscription: &str, rule: LostRule) -> Result<u32, StoreError>;

    /// Arms jobs again that a person, or routing that came back, wants run; each gets its verdict.
    async fn replay(
        &self,
        jobs: &[JobKey],
        replay: ReplayRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ReplayVerdict>, StoreError>;

    /// Closes a job in review unprocessed.
    async fn dismiss(&self, job: &JobKey, actor: &str, why: &str) -> Result<(), StoreError>;

    /// Depth by subscription and state from the counters, and the oldest live and oldest review ages.
    async fn job_status(&self) -> Result<JobStatus, StoreError>;
}

/// What is known, for operators, consumers and tests.
#[async_trait]
pub trait Archive: Send + Sync + 'static {
    async fn receipt(&self, id: ReceiptId) -> Result<Option<ReceiptView>, StoreError>;
    async fn receipts(&self, query: ReceiptQuery) -> Result<Vec<ReceiptView>, StoreError>;
    /// The stored body of a receipt: the item's bytes, or the whole delivery's.
    async fn body(&self, id: ReceiptId, whole: bool) -> Result<StoredBody, StoreError>;
    async fn job(&self, key: &JobKey) -> Result<Option<JobView>, StoreError>;
    async fn jobs(&self, query: JobQuery) -> Result<Vec<Job>, StoreError>;
    async fn rejections(&self, limit: u32) -> Result<Vec<NewRejection>, StoreError>;
}

/// For `serve`, `check` and `migrate`.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Takes note of the configured subscriptions; those that went are `retired`. Returns retired names.
    async fn sync_subscriptions(&self, subscriptions: Arc<SubscriptionSet>) -> Result<Vec<String>, StoreError>;

    /// Partitions ahead, expiry, counter correction: small steps, called every minute. Returns days of partitions ahead.
    async fn upkeep(&self, retention: Retention) -> Result<UpkeepReport, StoreError>;

    /// The key from which lease tokens are made.
    async fn token_key(&self) -> Result<[u8; 32], StoreError>;

    /// Tries the store for real: writes, reads back, checks durability settings and the schema's version.
    async fn check(&self) -> Result<Vec<CheckFinding>, StoreError>;

    /// Commits what is queued and closes; nothing is accepted afterwards.
    async fn close(&self);
}

/// Lane of the attempt that begins the `retry`-th retry (1 = the second try).
pub fn lane_of_retry(retry: i32) -> Lane {
    if retry >= 3 { Lane::Slow } else { Lane::Fresh }
}

/// The bytes of an item in its delivery's body; the whole body where `part` is `None` or does not fit. An item of less than
/// half of the body is a copy: a reference to it would hold the whole for as long as the item waits.
pub(crate) fn part_of(body: &Bytes, part: Option<(u64, u64)>) -> Bytes {
    let range = part.and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
    match range {
        Some(range) if range.start <= range.end && range.end <= body.len() => {
            if range.len() < body.len() / 2 {
                Bytes::copy_from_slice(&body[range])
            } else {
                body.slice(range)
            }
        }
        _ => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_item_does_not_hold_the_body_it_came_in() {
        let body = Bytes::from(vec![7; 1000]);
        let (small, large) = (part_of(&body, Some((10, 20))), part_of(&body, Some((0, 900))));
        assert_eq!((small.len(), large.len()), (10, 900));
        assert!(small.is_unique(), "a copy");
        assert!(!large.is_unique(), "most of the body: shared with it");
        assert_eq!(part_of(&body, Some((990, 1001))), body, "what does not fit is the whole");
    }
}
