//! Jobs that are run again: by a person, by routing that came back, by the provider's resend.

use std::collections::HashMap;

use super::super::tx::{OutboxRow, SubscriptionState, Tx};
use super::apply;
use super::armed::arm;
use super::desk::{Desk, Folder};
use super::release::release;
use crate::model::attempt::{Attempt, Trigger};
use crate::model::filter::EventFacts;
use crate::model::id::ReceiptId;
use crate::model::job::{INTAKE, JobKey, JobState};
use crate::model::outcome::{OutcomeKind, TEXT_BYTES_MAX, bounded};
use crate::model::receipt::{Origin, Receipt};
use crate::model::subscription::{Subscription, SubscriptionSet};
use crate::random::Random;
use crate::store::{ReplayRequest, ReplayVerdict, StoreError};

/// Redelivery attempts that may have begun within [`REARM_WINDOW`] (contract C9).
const REARMS_MAX: usize = 3;
/// 24 hours, in microseconds.
const REARM_WINDOW: i64 = 24 * 3600 * 1_000_000;

/// How an attempt ended that a person did not wait for any longer.
const REPLAYED: &str = "replayed";

/// What the rules of today are asked with.
pub(super) struct Authority<'a> {
    pub subscriptions: &'a SubscriptionSet,
    held_back: Vec<(String, SubscriptionState)>,
    receipts: HashMap<ReceiptId, (Receipt, bool)>,
}

/// Arms jobs again under the rules that their first run had (contract C8): never under the operator's. A job of `~intake` is
/// released instead. Each key gets its own verdict; a refused one changes nothing.
pub(crate) async fn replay(
    tx: &mut dyn Tx,
    jobs: &[JobKey],
    replay: &ReplayRequest,
    subscriptions: &SubscriptionSet,
    random: &dyn Random,
) -> Result<Vec<ReplayVerdict>, StoreError> {
    let mut desk = Desk::lock(tx, jobs).await?;
    let authority = Authority::read(tx, jobs, subscriptions).await?;
    let now = tx.now().await?;
    let (mut verdicts, mut rows, mut inserts) = (Vec::new(), Vec::new(), Vec::new());
    for key in jobs {
        let Some(folder) = desk.folder(key) else {
            verdicts.push(ReplayVerdict::NoSuchJob);
            continue;
        };
        let verdict = if key.subscription == INTAKE {
            match release(tx, folder, &authority, replay, now, random).await? {
                Ok(released) => {
                    rows.extend(released.outbox);
                    let names = released.jobs.iter().map(|job| job.key.subscription.clone()).collect();
                    inserts.push((released.jobs, released.attempts));
                    ReplayVerdict::Released(names)
                }
                Err(code) => ReplayVerdict::Refused(code),
            }
        } else {
            match replay_one(folder, &authority, replay, now, random)? {
                Ok(row) => {
                    rows.extend(row);
                    ReplayVerdict::Armed
                }
                Err(code) => ReplayVerdict::Refused(code),
            }
        };
        if !matches!(verdict, ReplayVerdict::Refused(_)) {
            let detail = bounded(replay.why.as_deref().unwrap_or(""), TEXT_BYTES_MAX);
            tx.audit(&replay.actor, replay.trigger.as_str(), &subject(key), &detail).await?;
        }
        verdicts.push(verdict);
    }
    let mut writes = desk.into_writes();
    writes.outbox = rows;
    for (jobs, attempts) in inserts {
        writes.insert.extend(jobs);
        writes.attempts.extend(attempts);
    }
    apply(tx, &writes).await?;
    Ok(verdicts)
}

type Verdict<T> = Result<T, &'static str>;

fn replay_one(
    folder: &mut Folder,
    authority: &Authority<'_>,
    replay: &ReplayRequest,
    now: i64,
    random: &dyn Random,
) -> Result<Verdict<Option<OutboxRow>>, StoreError> {
    let subscription = match may_replay(folder, authority, replay) {
        Ok(subscription) => subscription,
        Err(code) => return Ok(Err(code)),
    };
    // An earlier hand-over that is still there would speak of an attempt that is over.
    folder.withdraw();
    if matches!(folder.job.state, JobState::Queued | JobState::Running) {
        let open = folder.current();
        folder.keep(Attempt {
            ended_at: Some(now),
            outcome: Some(OutcomeKind::Failed),
            error_class: Some(REPLAYED.to_owned()),
            error_text: replay.why.as_deref().map(|why| bounded(why, TEXT_BYTES_MAX)),
            ..open
        });
    }
    arm(folder, subscription.target, replay.trigger, now, random).map(Ok)
}

fn may_replay<'a>(folder: &Folder, authority: &Authority<'a>, replay: &ReplayRequest) -> Verdict<&'a Subscription> {
    let job = &folder.job;
    match job.state {
        JobState::Review | JobState::Superseded => {}
        // A lease has an end of its own, and whoever holds it is at work.
        JobState::Running if job.leased_until.is_some() => return Err("not_replayable"),
        JobState::Pending | JobState::Retrying => return Err("not_replayable"),
        // With a queue, or begun with no time limit: only the consumer could say more, and it may never.
        JobState::Completed | JobState::Dismissed | JobState::Queued | JobState::Running
            if has_words(replay.why.as_deref()) => {}
        JobState::Completed | JobState::Dismissed | JobState::Queued | JobState::Running => return Err("why_missing"),
    }
    let subscription = authority.active(&job.key.subscription).ok_or("subscription_retired")?;
    let receipt = authority.receipt_with_body(job.key.receipt)?;
    // By the source through which the job came to be: that is what its first run was allowed by.
    let facts = EventFacts::of(receipt, &job.source);
    if subscription.filter.takes(&facts) { Ok(subscription) } else { Err("filter_no_longer_takes") }
}

impl<'a> Authority<'a> {
    async fn read(tx: &mut dyn Tx, jobs: &[JobKey], subscriptions: &'a SubscriptionSet) -> Result<Self, StoreError> {
        let held_back = tx.held_back_subscriptions().await?;
        let mut ids: Vec<ReceiptId> = jobs.iter().map(|key| key.receipt).collect();
        ids.sort_unstable();
        ids.dedup();
        let receipts = if ids.is_empty() { Vec::new() } else { tx.receipts_by_id(&ids).await? };
        let bodies = if receipts.is_empty() { Vec::new() } else { tx.have_bodies(&receipts).await? };
        let receipts = receipts.into_iter().zip(bodies).map(|(receipt, body)| (receipt.id, (receipt, body))).collect();
        Ok(Self { subscriptions, held_back, receipts })
    }

    /// The subscription, unless it left the configuration.
    pub fn active(&self, name: &str) -> Option<&'a Subscription> {
        let retired = self.held_back.iter().any(|(held, state)| held == name && *state == SubscriptionState::Retired);
        self.subscriptions.find(name).filter(|_| !retired).map(AsRef::as_ref)
    }

    /// The receipt, if there is still something to hand on.
    pub fn receipt_with_body(&self, id: ReceiptId) -> Verdict<&Receipt> {
        let (receipt, body) = self.receipts.get(&id).ok_or("body_gone")?;
        if receipt.origin == Origin::Imported {
            return Err("imported");
        }
        if *body { Ok(receipt) } else { Err("body_gone") }
    }
}

/// Closes a job in review unprocessed. Refused with `not_in_review` elsewhere, and with `why_missing` without a reason.
pub(crate) async fn dismiss(tx: &mut dyn Tx, job: &JobKey, actor: &str, why: &str) -> Result<(), StoreError> {
    if !has_words(Some(why)) {
        return Err(StoreError::Refused("why_missing"));
    }
    let now = tx.now().await?;
    let mut desk = Desk::lock(tx, std::slice::from_ref(job)).await?;
    let folder = desk.folder(job).ok_or(StoreError::NotFound)?;
    let was = folder.job.reason.map_or("", |reason| reason.code());
    let why = bounded(why, TEXT_BYTES_MAX);
    let detail = format!("was {was}: {why}");
    folder.job = folder.job.dismissed(now, why).ok_or(StoreError::Refused("not_in_review"))?;
    tx.audit(actor, "dismiss", &subject(job), &detail).await?;
    apply(tx, &desk.into_writes()).await
}

/// The provider sent the event of these jobs again: arms those in review that C9 lets a resend arm, and returns them.
/// Everything else is the caller's to count.
pub(crate) async fn rearm_on_redelivery(
    tx: &mut dyn Tx,
    keys: &[JobKey],
    subscriptions: &SubscriptionSet,
    random: &dyn Random,
) -> Result<Vec<JobKey>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut desk = Desk::lock(tx, keys).await?;
    if !desk.folders().any(|folder| waits_for_resend(folder)) {
        return Ok(Vec::new());
    }
    let held_back = tx.held_back_subscriptions().await?;
    let now = tx.now().await?;
    let (mut rows, mut armed) = (Vec::new(), Vec::new());
    for folder in desk.folders().filter(|folder| waits_for_resend(folder)) {
        let name = &folder.job.key.subscription;
        let held = held_back.iter().any(|(held, state)| held == name && *state != SubscriptionState::Active);
        let Some(subscription) = subscriptions.find(name).filter(|found| found.rearm && !held) else { continue };
        if redeliveries_begun(folder, now) >= REARMS_MAX {
            continue;
        }
        folder.withdraw();
        rows.extend(arm(folder, subscription.target, Trigger::Redelivery, now, random)?);
        folder.job.rearms += 1;
        armed.push(folder.job.key.clone());
    }
    let mut writes = desk.into_writes();
    writes.outbox = rows;
    apply(tx, &writes).await?;
    Ok(armed)
}

fn waits_for_resend(folder: &Folder) -> bool {
    let job = &folder.job;
    job.state == JobState::Review && job.key.subscription != INTAKE && job.reason.is_some_and(|reason| reason.rearms())
}

fn redeliveries_begun(folder: &Folder, now: i64) -> usize {
    let begun = |attempt: i32, at: i64| attempt <= folder.job.attempt && at > now.saturating_sub(REARM_WINDOW);
    folder.history().filter(|row| row.trigger == Trigger::Redelivery && begun(row.attempt, row.started_at)).count()
}

pub(super) fn has_words(text: Option<&str>) -> bool {
    text.is_some_and(|text| !text.trim().is_empty())
}

fn subject(key: &JobKey) -> String {
    format!("{}/{}", key.receipt, key.subscription)
}
