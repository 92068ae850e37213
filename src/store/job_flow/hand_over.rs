//! What the relay says of hand-overs: confirmed, returned, given up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::super::tx::{Counts, Tx};
use super::desk::{Desk, Folder};
use super::{apply, outbox_row};
use crate::clock::micros;
use crate::metrics;
use crate::model::attempt::{Attempt, BY_CONFIRM};
use crate::model::id::OutboxId;
use crate::model::job::{JobKey, JobReason, JobState, OUTBOX_COUNT};
use crate::model::outcome::{OutcomeKind, TEXT_BYTES_MAX, bounded};
use crate::random::Random;
use crate::store::{ConfirmedRow, HandOver, StoreError};

/// Completes jobs of subscriptions that complete on the broker's confirm. The rows themselves are the backend's to delete.
pub(crate) async fn complete_confirmed(tx: &mut dyn Tx, confirmed: &[ConfirmedRow]) -> Result<(), StoreError> {
    let completes: Vec<&HandOver> = confirmed.iter().filter(|row| row.completes).map(|row| &row.hand_over).collect();
    if completes.is_empty() {
        return Ok(());
    }
    let keys: Vec<JobKey> = completes.iter().map(|hand_over| hand_over.key.clone()).collect();
    let now = tx.now().await?;
    let mut desk = Desk::lock(tx, &keys).await?;
    // Read under the jobs' locks: a row that is gone was taken back, because no queue took the message after all, and
    // another waits in its place. The confirm was the alternate exchange's.
    let rows: Vec<OutboxId> = confirmed.iter().filter(|row| row.completes).map(|row| row.id).collect();
    let there: HashSet<JobKey> =
        tx.outbox_by_id(&rows).await?.into_iter().map(|(_, hand_over)| hand_over.key).collect();
    let mut done = Vec::new();
    for hand_over in completes.into_iter().filter(|hand_over| there.contains(&hand_over.key)) {
        let Some(folder) = desk.folder(&hand_over.key).filter(|folder| is_under_way(folder, hand_over.attempt)) else {
            continue;
        };
        let Some(job) = folder.job.completed(now) else { continue };
        let row = folder.current();
        folder.job = job;
        folder.keep(Attempt {
            ended_at: Some(now),
            outcome: Some(OutcomeKind::Completed),
            error_class: None,
            consumer: Some(BY_CONFIRM.to_owned()),
            ..row
        });
        done.push(&hand_over.key);
    }
    apply(tx, &desk.into_writes()).await?;
    for key in done {
        metrics::attempt(&key.subscription, OutcomeKind::Completed.as_str());
        let lag = u64::try_from(now.saturating_sub(key.receipt.created_at())).unwrap_or(0);
        metrics::processing_lag(&key.subscription, Duration::from_micros(lag));
    }
    Ok(())
}

/// Puts hand-overs that no queue took into the outbox again, in the same attempt and due after `delay`; one row each,
/// whatever was there. A job that has moved on is left alone, save one that only its confirm had completed.
pub(crate) async fn return_to_outbox(
    tx: &mut dyn Tx,
    returned: &[HandOver],
    delay: Duration,
    random: &dyn Random,
) -> Result<(), StoreError> {
    let by_key: HashMap<&JobKey, &HandOver> = returned.iter().map(|hand_over| (&hand_over.key, hand_over)).collect();
    let keys: Vec<JobKey> = by_key.keys().map(|key| (*key).clone()).collect();
    let now = tx.now().await?;
    let mut desk = Desk::lock(tx, &keys).await?;
    let mut rows = Vec::new();
    for folder in desk.folders() {
        // Several messages of one job may come back; the last attempt of them decides.
        let same = returned.iter().filter(|hand_over| hand_over.key == folder.job.key);
        let Some(hand_over) = same.max_by_key(|hand_over| hand_over.attempt) else { continue };
        take_back_confirmed(folder, hand_over.attempt);
        take_back_started(folder, hand_over.attempt);
        if folder.job.state == JobState::Queued && folder.job.attempt == hand_over.attempt {
            folder.withdraw();
            rows.push(outbox_row(&folder.job, hand_over.lane, hand_over.trigger, micros(delay), now, random));
        }
    }
    let mut writes = desk.into_writes();
    writes.outbox = rows;
    apply(tx, &writes).await
}

/// The alternate exchange confirms what no queue took, so a job that completes on its confirm may have done so too early.
fn take_back_confirmed(folder: &mut Folder, attempt: i32) {
    let row = folder.current();
    let by_confirm = row.attempt == attempt && row.consumer.as_deref() == Some(BY_CONFIRM);
    if let Some(job) = folder.job.taken_back().filter(|_| by_confirm) {
        folder.job = job;
        folder.keep(Attempt { ended_at: None, outcome: None, consumer: None, ..row });
    }
}

/// A consumer had begun, and the queue has given the message up since: expired, dropped, or its queue is gone. Without a time
/// limit nothing else would ever bring the job back.
fn take_back_started(folder: &mut Folder, attempt: i32) {
    let begun = folder.job.state == JobState::Running && folder.job.attempt == attempt;
    if let Some(job) = folder.job.taken_back().filter(|_| begun) {
        folder.job = job;
    }
}

/// Takes hand-overs out of the outbox and puts their jobs in review; returns how many rows went. The row of a job that has
/// moved on goes too, and nothing else happens to it.
pub(crate) async fn give_up_outbox(
    tx: &mut dyn Tx,
    rows: &[OutboxId],
    reason: JobReason,
    note: &str,
) -> Result<u64, StoreError> {
    let waiting = tx.outbox_by_id(rows).await?;
    if waiting.is_empty() {
        return Ok(0);
    }
    let keys: Vec<JobKey> = waiting.iter().map(|(_, hand_over)| hand_over.key.clone()).collect();
    let now = tx.now().await?;
    let mut desk = Desk::lock(tx, &keys).await?;
    let note = bounded(note, TEXT_BYTES_MAX);
    let mut ended = Vec::new();
    for (_, hand_over) in &waiting {
        let Some(folder) = desk.folder(&hand_over.key).filter(|folder| is_under_way(folder, hand_over.attempt)) else {
            continue;
        };
        let Some(job) = folder.job.in_review(reason, None, Some(note.clone())) else { continue };
        let attempt = folder.current();
        folder.job = job;
        folder.keep(Attempt {
            ended_at: Some(now),
            outcome: Some(OutcomeKind::Failed),
            error_class: Some(reason.code().to_owned()),
            error_text: Some(note.clone()),
            ..attempt
        });
        ended.push(&hand_over.key.subscription);
    }
    let writes = desk.into_writes();
    let written = tx.write_jobs(&writes).await?;
    let mut counts = Counts::default();
    for (subscription, state, n) in writes.counts(&written) {
        counts.add(&subscription, &state, n);
    }
    let mut gone = 0;
    for (subscription, deleted) in tx.delete_outbox(rows).await? {
        counts.add(&subscription, OUTBOX_COUNT, -i64::try_from(deleted).unwrap_or(i64::MAX));
        gone += deleted;
    }
    let counts = counts.into_rows();
    if !counts.is_empty() {
        tx.add_counts(&counts).await?;
    }
    for subscription in ended {
        metrics::attempt(subscription, OutcomeKind::Failed.as_str());
        metrics::attempt_failure(subscription, reason.code());
    }
    Ok(gone)
}

fn is_under_way(folder: &Folder, attempt: i32) -> bool {
    folder.job.state == JobState::Queued && folder.job.attempt == attempt
}
