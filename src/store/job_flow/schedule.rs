//! What happens to jobs by time alone.

use super::super::tx::{Due, Tx};
use super::armed::{hand_out, next_trigger};
use super::desk::Desk;
use super::{apply, outbox_row};
use crate::clock::micros;
use crate::metrics;
use crate::model::attempt::{Attempt, NO_OUTCOME};
use crate::model::job::{Ending, JobReason, end_failed};
use crate::model::outcome::OutcomeKind;
use crate::model::subscription::{SubscriptionSet, Target};
use crate::random::Random;
use crate::store::{LostRule, StoreError};

/// Hands out pending and retrying `amqp` jobs that are due; those of paused and retired subscriptions stay.
pub(crate) async fn hand_out_due(
    tx: &mut dyn Tx,
    limit: u32,
    subscriptions: &SubscriptionSet,
    random: &dyn Random,
) -> Result<u32, StoreError> {
    let held_back = tx.held_back_subscriptions().await?;
    let names: Vec<String> = subscriptions
        .iter()
        .filter(|subscription| subscription.target == Target::Amqp)
        .map(|subscription| subscription.name.clone())
        .filter(|name| !held_back.iter().any(|(held, _)| held == name))
        .collect();
    if names.is_empty() {
        return Ok(0);
    }
    let jobs = tx.lock_due(&Due::HandOut { subscriptions: names }, limit).await?;
    if jobs.is_empty() {
        return Ok(0);
    }
    let now = tx.now().await?;
    let mut desk = Desk::with(tx, jobs).await?;
    let mut rows = Vec::new();
    for folder in desk.folders() {
        let trigger = next_trigger(folder);
        rows.push(hand_out(folder, trigger, now, random)?);
    }
    let mut writes = desk.into_writes();
    let handed = count(rows.len());
    writes.outbox = rows;
    apply(tx, &writes).await?;
    Ok(handed)
}

/// Ends attempts whose lease ran out as failed (`no_outcome`); what follows is the schedule's.
pub(crate) async fn rescue_expired(
    tx: &mut dyn Tx,
    limit: u32,
    subscriptions: &SubscriptionSet,
    random: &dyn Random,
) -> Result<u32, StoreError> {
    let jobs = tx.lock_due(&Due::Expired, limit).await?;
    if jobs.is_empty() {
        return Ok(0);
    }
    let now = tx.now().await?;
    let mut desk = Desk::with(tx, jobs).await?;
    let mut rescued = Vec::new();
    for folder in desk.folders() {
        let name = folder.job.key.subscription.clone();
        let subscription = subscriptions.find(&name).map(AsRef::as_ref);
        let ending = Ending { class: NO_OUTCOME, cause: None, retry_after: None };
        let row = folder.current();
        let ended = end_failed(&folder.job, row, &ending, subscription, now, random.next_fraction());
        let Some((job, attempt)) = ended else { continue };
        folder.job = job;
        folder.keep(attempt);
        rescued.push(name);
    }
    apply(tx, &desk.into_writes()).await?;
    for name in &rescued {
        count_no_outcome(name);
    }
    Ok(count(rescued.len()))
}

/// Publishes jobs again that their queue has lost, with the same attempt number; what was lost `rule.times` times already
/// goes to review `no_outcome`. A subscription that has never reported anything is left alone: nothing of it is ever lost,
/// it only never says so. So is a paused or retired one.
pub(crate) async fn republish_lost(
    tx: &mut dyn Tx,
    subscription: &str,
    rule: LostRule,
    random: &dyn Random,
) -> Result<u32, StoreError> {
    let held_back = tx.held_back_subscriptions().await?;
    if held_back.iter().any(|(held, _)| held == subscription) || !tx.has_reported(subscription).await? {
        return Ok(0);
    }
    let now = tx.now().await?;
    let LostRule { older_than, begun_older_than, times, limit } = rule;
    let due = Due::Lost {
        subscription: subscription.to_owned(),
        handed_before: now.saturating_sub(micros(older_than)),
        begun_before: now.saturating_sub(micros(begun_older_than.max(older_than))),
    };
    let jobs = tx.lock_due(&due, limit).await?;
    if jobs.is_empty() {
        return Ok(0);
    }
    let found = count(jobs.len());
    let mut desk = Desk::with(tx, jobs).await?;
    let (mut rows, mut given_up) = (Vec::new(), 0);
    for folder in desk.folders() {
        let mut row = folder.current();
        if row.times_lost() < times {
            row.lost_again();
            folder.job = folder.job.taken_back().unwrap_or_else(|| folder.job.clone());
            folder.job.handed_at = Some(now);
            rows.push(outbox_row(&folder.job, folder.job.lane, row.trigger, 0, now, random));
            folder.keep(row);
        } else if let Some(job) = folder.job.in_review(JobReason::NoOutcome, None, None) {
            folder.job = job;
            folder.keep(Attempt {
                ended_at: Some(now),
                outcome: Some(OutcomeKind::Failed),
                error_class: Some(NO_OUTCOME.to_owned()),
                error_text: Some(format!("published again {times} times and never heard of")),
                ..row
            });
            given_up += 1;
        }
    }
    let mut writes = desk.into_writes();
    writes.outbox = rows;
    apply(tx, &writes).await?;
    for _ in 0..given_up {
        count_no_outcome(subscription);
    }
    Ok(found)
}

fn count_no_outcome(subscription: &str) {
    metrics::attempt(subscription, OutcomeKind::Failed.as_str());
    metrics::attempt_failure(subscription, NO_OUTCOME);
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
