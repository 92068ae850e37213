//! Work for consumers that ask for it.

use std::collections::HashMap;
use std::time::Duration;

use super::super::tx::{Due, SubscriptionState, Tx};
use super::apply;
use super::armed::next_trigger;
use super::desk::{Desk, Folder};
use crate::clock::micros;
use crate::model::attempt::Attempt;
use crate::model::id::ReceiptId;
use crate::model::job::{JobKey, JobReason, JobState};
use crate::model::outcome::OutcomeKind;
use crate::model::receipt::Receipt;
use crate::model::subscription::{SubscriptionSet, Target};
use crate::random::Random;
use crate::store::{ClaimRequest, ClaimedJob, StoreError};

/// Bodies in one answer (soft: the one that passes it is still given). What does not fit stays due.
const CLAIM_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bodies read with one statement.
const BODIES_AT_ONCE: usize = 8;

/// Leases due jobs of one `pull` subscription, oldest first, and begins their attempts. A job whose body is gone goes to
/// review instead. Nothing is given while the subscription is paused.
pub(crate) async fn claim_jobs(
    tx: &mut dyn Tx,
    claim: &ClaimRequest,
    subscriptions: &SubscriptionSet,
    _random: &dyn Random,
) -> Result<Vec<ClaimedJob>, StoreError> {
    let subscription = subscriptions.find(&claim.subscription).ok_or(StoreError::Refused("subscription_unknown"))?;
    if subscription.target != Target::Pull {
        return Err(StoreError::Refused("subscription_not_pull"));
    }
    let held_back = tx.held_back_subscriptions().await?;
    match held_back.into_iter().find(|(name, _)| *name == claim.subscription) {
        Some((_, SubscriptionState::Retired)) => return Err(StoreError::Refused("subscription_retired")),
        Some((_, SubscriptionState::Paused)) => return Ok(Vec::new()),
        Some((_, SubscriptionState::Active)) | None => {}
    }
    let due = Due::Claimable { subscription: claim.subscription.clone() };
    let jobs = tx.lock_due(&due, claim.max).await?;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<JobKey> = jobs.iter().map(|job| job.key.clone()).collect();
    let mut desk = Desk::with(tx, jobs).await?;
    let claimed = lease_with_bodies(tx, &mut desk, &keys, claim).await?;
    apply(tx, &desk.into_writes()).await?;
    Ok(claimed)
}

async fn lease_with_bodies(
    tx: &mut dyn Tx,
    desk: &mut Desk,
    keys: &[JobKey],
    claim: &ClaimRequest,
) -> Result<Vec<ClaimedJob>, StoreError> {
    let ids: Vec<ReceiptId> = keys.iter().map(|key| key.receipt).collect();
    let mut receipts: HashMap<ReceiptId, Receipt> =
        tx.receipts_by_id(&ids).await?.into_iter().map(|receipt| (receipt.id, receipt)).collect();
    let now = tx.now().await?;
    let mut claimed = Vec::new();
    let mut bytes = 0;
    for some in keys.chunks(BODIES_AT_ONCE) {
        let asked: Vec<Receipt> = some.iter().filter_map(|key| receipts.remove(&key.receipt)).collect();
        let bodies = tx.bodies(&asked).await?;
        for (receipt, body) in asked.into_iter().zip(bodies) {
            if bytes >= CLAIM_BYTES_MAX {
                return Ok(claimed);
            }
            let key = JobKey { receipt: receipt.id, subscription: claim.subscription.clone() };
            let Some(folder) = desk.folder(&key) else { continue };
            let Some((content_type, body)) = body else {
                if let Some(job) = folder.job.in_review(JobReason::BodyGone, None, None) {
                    folder.job = job;
                }
                continue;
            };
            bytes += body.len();
            claimed.extend(lease(folder, claim, now).map(|leased| leased.with(receipt, content_type, body)));
        }
    }
    Ok(claimed)
}

struct Leased {
    job: crate::model::job::Job,
    trigger: crate::model::attempt::Trigger,
    until: i64,
}

impl Leased {
    fn with(self, receipt: Receipt, content_type: String, body: bytes::Bytes) -> ClaimedJob {
        ClaimedJob { job: self.job, trigger: self.trigger, receipt, content_type, body, leased_until: self.until }
    }
}

fn lease(folder: &mut Folder, claim: &ClaimRequest, now: i64) -> Option<Leased> {
    let until = now.saturating_add(micros(claim.lease));
    let trigger = next_trigger(folder);
    let job = folder.job.leased(now, until)?;
    let begun = Attempt::begun(&job, trigger, Target::Pull.as_str().to_owned(), now);
    folder.keep(Attempt { outcome: Some(OutcomeKind::Started), consumer: Some(claim.consumer.clone()), ..begun });
    folder.job = job.clone();
    Some(Leased { job, trigger, until })
}

/// Moves the lease of a running attempt to now + `lease`. Refused with `not_running` when another attempt runs or none, and
/// with `no_lease` when it runs without one.
pub(crate) async fn extend_lease(
    tx: &mut dyn Tx,
    job: &JobKey,
    attempt: i32,
    lease: Duration,
) -> Result<(), StoreError> {
    let now = tx.now().await?;
    let mut desk = Desk::lock(tx, std::slice::from_ref(job)).await?;
    let folder = desk.folder(job).ok_or(StoreError::NotFound)?;
    if folder.job.state != JobState::Running || folder.job.attempt != attempt {
        return Err(StoreError::Refused("not_running"));
    }
    if folder.job.leased_until.is_none() {
        return Err(StoreError::Refused("no_lease"));
    }
    folder.job.leased_until = Some(now.saturating_add(micros(lease)));
    apply(tx, &desk.into_writes()).await
}
