//! The job flows, written once for both backends. Each runs in one transaction that the backend opens and commits, and may
//! be run again from its start when the database asks for that: nothing outside the transaction is touched but metrics of
//! attempts that no caller hears of, and those may then count one too many.

mod armed;
mod claim;
mod desk;
mod hand_over;
mod outcomes;
mod release;
mod replay;
mod schedule;

use super::tx::{JobWrites, OutboxRow, Tx};
use super::{SHARDS, StoreError};
use crate::model::attempt::Trigger;
use crate::model::id::OutboxId;
use crate::model::job::{Job, Lane};
use crate::random::Random;

pub(crate) use claim::{claim_jobs, extend_lease};
pub(crate) use hand_over::{complete_confirmed, give_up_outbox, return_to_outbox};
pub(crate) use outcomes::record_outcomes;
pub(crate) use replay::{dismiss, rearm_on_redelivery, replay};
pub(crate) use schedule::{hand_out_due, republish_lost, rescue_expired};

/// Applies a flow's writes, and the counters last.
async fn apply(tx: &mut dyn Tx, writes: &JobWrites) -> Result<(), StoreError> {
    let JobWrites { insert, update, attempts, outbox, withdraw } = writes;
    if insert.is_empty() && update.is_empty() && attempts.is_empty() && outbox.is_empty() && withdraw.is_empty() {
        return Ok(());
    }
    let written = tx.write_jobs(writes).await?;
    let counts = writes.counts(&written);
    if !counts.is_empty() {
        tx.add_counts(&counts).await?;
    }
    Ok(())
}

/// The hand-over of the attempt that `job` is at, due `due_in` microseconds from now.
fn outbox_row(job: &Job, lane: Lane, trigger: Trigger, due_in: i64, now: i64, random: &dyn Random) -> OutboxRow {
    let shard = u8::try_from(random.next_u64() % u64::from(SHARDS)).unwrap_or(0);
    OutboxRow {
        id: OutboxId::new(now, random),
        key: job.key.clone(),
        attempt: job.attempt,
        lane,
        trigger,
        shard,
        due_in,
    }
}

#[cfg(test)]
mod tests;
