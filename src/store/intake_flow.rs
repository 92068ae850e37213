//! One batch of deliveries in one open transaction: who is first, who is a duplicate, and what follows for jobs. Written
//! once for both backends; they give the statements ([`Tx`]), the transaction and the splitting after a refused row.

mod duplicates;
mod fresh;
mod plan;
mod rows;

use std::collections::HashSet;
use std::sync::Arc;

use super::tx::{Counts, JobWrites, Tx};
use super::{DeliveryVerdict, EventVerdict, FreshRows, NewDelivery, OutboxMessage, StoreError, Verdict, job_flow};
use crate::model::id::ReceiptId;
use crate::model::job::OUTBOX_COUNT;
use crate::model::receipt::{Flag, HoldReason, Origin};
use crate::model::subscription::BROADCAST;
use crate::random::Random;

pub(crate) use fresh::HeldRows;
use plan::Plan;
use rows::Planned;

/// What the flow needs beside the transaction.
pub(crate) struct IntakeContext<'a> {
    pub random: &'a dyn Random,
    /// The relay of this process, if it has one: it picks the shards.
    pub fresh: Option<Arc<dyn FreshRows>>,
}

/// What a batch came to; true only once the backend's COMMIT has returned.
pub(crate) struct CommittedBatch {
    /// One for each delivery, in their order.
    pub verdicts: Vec<DeliveryVerdict>,
    /// Rows that the relay of this process may publish without a look at the table. The backend wraps them in
    /// [`HeldRows::hold`] *before* COMMIT and calls [`HeldRows::committed`] after it; dropping the guard instead tells the
    /// relay that they are abandoned.
    pub fresh: Vec<OutboxMessage>,
}

/// Stores a batch. On [`StoreError::Row`] the backend undoes the statements and runs each delivery as a batch of its own,
/// so that one bad row fails no neighbour.
pub(crate) async fn commit_batch(
    tx: &mut dyn Tx,
    batch: &[&NewDelivery],
    context: &IntakeContext<'_>,
) -> Result<CommittedBatch, StoreError> {
    let now = tx.now().await?;
    let plan = Plan::of(batch);
    let suspects = plan::suspects(tx, &plan).await?;
    let planned = rows::build(&plan, &suspects, now, context);
    let inserted: HashSet<ReceiptId> = tx.insert_intake(&planned.rows).await?.into_iter().collect();

    let mut counts = planned.rows.counts_of(|receipt| inserted.contains(&receipt));
    let mut verdicts = first_verdicts(&plan, &planned, &inserted);
    duplicates::record(tx, &plan, &planned, &inserted, context, &mut verdicts, &mut counts).await?;
    let fresh = match &context.fresh {
        Some(_) => fresh::messages(tx, &plan, &planned, &inserted, now).await?,
        None => Vec::new(),
    };
    broadcast(tx, &plan, &planned, &inserted, context, &mut counts).await?;
    let counts = counts.into_rows();
    if !counts.is_empty() {
        tx.add_counts(&counts).await?;
    }
    Ok(CommittedBatch { verdicts: plan.by_delivery(verdicts), fresh })
}

/// Hands new events that are not held to whoever listens, where the configuration says so.
async fn broadcast(
    tx: &mut dyn Tx,
    plan: &Plan<'_>,
    planned: &Planned,
    inserted: &HashSet<ReceiptId>,
    context: &IntakeContext<'_>,
    counts: &mut Counts,
) -> Result<(), StoreError> {
    let now = tx.now().await?;
    let receipts = planned.rows.receipts.iter().zip(&planned.event).filter(|(receipt, event)| {
        inserted.contains(&receipt.id)
            && receipt.hold_reason.is_none()
            && receipt.origin != Origin::Imported
            && plan.events[**event].from.subscriptions.broadcasts()
    });
    let outbox: Vec<_> = receipts.map(|(receipt, _)| rows::broadcast(receipt.id, now, context)).collect();
    if outbox.is_empty() {
        return Ok(());
    }
    counts.add(BROADCAST, OUTBOX_COUNT, i64::try_from(outbox.len()).unwrap_or(i64::MAX));
    tx.write_jobs(&JobWrites { outbox, ..JobWrites::default() }).await.map(drop)
}

/// Verdicts of the events that became receipts; those of all others are filled in by [`duplicates::record`].
fn first_verdicts(plan: &Plan<'_>, planned: &Planned, inserted: &HashSet<ReceiptId>) -> Vec<EventVerdict> {
    let verdict = |event: &plan::Event<'_>| {
        let id = event.new.receipt_id;
        let receipt =
            planned.position.get(&id).map(|at| &planned.rows.receipts[*at]).filter(|_| inserted.contains(&id));
        let held = receipt.and_then(|receipt| receipt.hold_reason);
        EventVerdict {
            receipt_id: id,
            verdict: if held == Some(HoldReason::Suspect) { Verdict::Suspect } else { Verdict::Stored },
            held,
            unmatched: receipt
                .is_some_and(|receipt| receipt.flags.split(',').any(|flag| flag == Flag::Unmatched.as_str())),
            rearmed: 0,
        }
    };
    plan.events.iter().map(verdict).collect()
}
