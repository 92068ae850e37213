//! Beginning attempts: by the outbox at once, or by a consumer's claim later.

use super::super::lane_of_retry;
use super::super::tx::OutboxRow;
use super::desk::Folder;
use super::outbox_row;
use crate::model::attempt::{Attempt, NO_OUTCOME, Trigger, queue_target};
use crate::model::subscription::Target;
use crate::random::Random;
use crate::store::StoreError;

/// What sets the next attempt off.
pub(super) fn next_trigger(folder: &Folder) -> Trigger {
    let job = &folder.job;
    if let Some(armed) = folder.row(job.attempt + 1) {
        return armed.trigger;
    }
    if job.series_attempts == 0 {
        return if job.series == 1 { Trigger::First } else { Trigger::Replay };
    }
    match folder.row(job.attempt) {
        Some(last) if last.error_class.as_deref() == Some(NO_OUTCOME) => Trigger::Rescue,
        _ => Trigger::Retry,
    }
}

/// Begins the next attempt with a row in the outbox.
pub(super) fn hand_out(
    folder: &mut Folder,
    trigger: Trigger,
    now: i64,
    random: &dyn Random,
) -> Result<OutboxRow, StoreError> {
    // The number of the retry that begins: 0 for a series' first try.
    let lane = lane_of_retry(folder.job.series_attempts);
    let job = folder.job.handed_out(lane, now).ok_or(StoreError::Refused("not_due"))?;
    let target = queue_target(&job.key.subscription, lane);
    // A first hand-over is known from the job alone; every other one has to remember what set it off.
    if trigger != Trigger::First || job.attempt > 1 {
        folder.keep(Attempt::begun(&job, trigger, target, now));
    }
    let row = outbox_row(&job, lane, trigger, 0, now, random);
    folder.job = job;
    Ok(row)
}

/// Begins a new series: handed out at once, or left to be claimed.
pub(super) fn arm(
    folder: &mut Folder,
    target: Target,
    trigger: Trigger,
    now: i64,
    random: &dyn Random,
) -> Result<Option<OutboxRow>, StoreError> {
    folder.job = folder.job.armed(now).ok_or(StoreError::Refused("not_replayable"))?;
    set_off(folder, target, trigger, now, random)
}

/// Sets a pending job off: handed out at once, or left to be claimed.
pub(super) fn set_off(
    folder: &mut Folder,
    target: Target,
    trigger: Trigger,
    now: i64,
    random: &dyn Random,
) -> Result<Option<OutboxRow>, StoreError> {
    match target {
        Target::Amqp => hand_out(folder, trigger, now, random).map(Some),
        Target::Pull => {
            let armed = Attempt::armed(&folder.job, trigger, Target::Pull.as_str().to_owned(), now);
            folder.keep(armed);
            Ok(None)
        }
    }
}
