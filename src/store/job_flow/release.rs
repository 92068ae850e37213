//! Letting a held receipt go: its ordinary jobs come to be, and its `~intake` job ends, in one transaction and once.

use super::super::tx::{OutboxRow, Tx};
use super::armed::set_off;
use super::desk::Folder;
use super::outbox_row;
use super::replay::{Authority, has_words};
use crate::model::attempt::{Attempt, Trigger};
use crate::model::filter::EventFacts;
use crate::model::job::{Job, JobState, Lane};
use crate::model::receipt::Receipt;
use crate::model::subscription::BROADCAST;
use crate::random::Random;
use crate::store::{ReplayRequest, StoreError};

/// What a release writes beside the `~intake` job.
#[derive(Default)]
pub(super) struct Released {
    pub jobs: Vec<Job>,
    pub attempts: Vec<Attempt>,
    pub outbox: Vec<OutboxRow>,
}

/// Releases the receipt of an `~intake` job to the subscriptions whose filters take it today.
pub(super) async fn release(
    tx: &mut dyn Tx,
    folder: &mut Folder,
    authority: &Authority<'_>,
    replay: &ReplayRequest,
    now: i64,
    random: &dyn Random,
) -> Result<Result<Released, &'static str>, StoreError> {
    match folder.job.state {
        JobState::Review => {}
        JobState::Dismissed if has_words(replay.why.as_deref()) => {}
        JobState::Dismissed => return Ok(Err("why_missing")),
        JobState::Completed => return Ok(Err("already_released")),
        _ => return Ok(Err("not_replayable")),
    }
    let receipt = match authority.receipt_with_body(folder.job.key.receipt) {
        Ok(receipt) => receipt,
        Err(code) => return Ok(Err(code)),
    };
    let there = tx.lock_jobs_of(&[receipt.id]).await?;
    let mut released = Released::default();
    for subscription in authority.subscriptions.matching(&EventFacts::of(receipt, &receipt.source)) {
        let known = there.iter().any(|job| job.key.subscription == subscription.name);
        if known || authority.active(&subscription.name).is_none() {
            continue;
        }
        let mut fresh = Folder::of(waiting(receipt, &subscription.name, now));
        released.outbox.extend(set_off(&mut fresh, subscription.target, Trigger::Release, now, random)?);
        released.attempts.extend(fresh.history().cloned());
        released.jobs.push(fresh.job);
    }
    if authority.subscriptions.broadcasts() {
        let mut event = waiting(receipt, BROADCAST, now);
        event.attempt = 1;
        released.outbox.push(outbox_row(&event, Lane::Fresh, Trigger::Release, 0, now, random));
    }
    let was = receipt.hold_reason.map(|reason| format!("was held: {}", reason.code()));
    tx.release_hold(receipt.id).await?;
    folder.job = Job { note: was.or_else(|| folder.job.note.clone()), ..folder.job.released(now) };
    Ok(Ok(released))
}

/// A job that is due at once.
fn waiting(receipt: &Receipt, subscription: &str, now: i64) -> Job {
    Job { next_attempt_at: Some(now), ..Job::first(receipt, subscription, &receipt.source, now) }
}
