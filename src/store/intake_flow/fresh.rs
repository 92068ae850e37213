//! Fresh rows on their way to the relay of the same process, held from before COMMIT until its outcome is known.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::plan::Plan;
use super::rows::Planned;
use crate::model::id::{OutboxId, ReceiptId};
use crate::store::tx::Tx;
use crate::store::{FreshRows, HandOver, OutboxMessage, StoreError};

/// Rows that the relay holds while their COMMIT is on its way. Dropped without [`HeldRows::committed`] (an error, a writer
/// that is let go), they are abandoned: the relay's looks at the table decide.
pub(crate) struct HeldRows {
    fresh: Option<Arc<dyn FreshRows>>,
    rows: Vec<OutboxMessage>,
}

impl HeldRows {
    /// Tells the relay of rows that are about to be committed.
    pub fn hold(fresh: Option<Arc<dyn FreshRows>>, rows: Vec<OutboxMessage>) -> Self {
        if let Some(fresh) = fresh.as_ref().filter(|_| !rows.is_empty()) {
            fresh.before_commit(&rows.iter().map(|row| (row.id, row.shard)).collect::<Vec<_>>());
        }
        Self { fresh, rows }
    }

    /// COMMIT has returned: the relay publishes them.
    pub fn committed(mut self) {
        let rows = std::mem::take(&mut self.rows);
        if let Some(fresh) = self.fresh.as_ref().filter(|_| !rows.is_empty()) {
            fresh.committed(rows);
        }
    }
}

impl Drop for HeldRows {
    fn drop(&mut self) {
        if let Some(fresh) = self.fresh.as_ref().filter(|_| !self.rows.is_empty()) {
            fresh.abandoned(&self.rows.iter().map(|row| row.id).collect::<Vec<OutboxId>>());
        }
    }
}

/// The messages of the batch's own new rows; those of subscriptions that are held back wait in the table.
pub(super) async fn messages(
    tx: &mut dyn Tx,
    plan: &Plan<'_>,
    planned: &Planned,
    inserted: &HashSet<ReceiptId>,
    now: i64,
) -> Result<Vec<OutboxMessage>, StoreError> {
    let rows: Vec<_> = planned.rows.outbox.iter().filter(|row| inserted.contains(&row.key.receipt)).collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let held_back: HashSet<String> = tx.held_back_subscriptions().await?.into_iter().map(|(name, _)| name).collect();
    let mut shared = HashMap::new();
    let mut messages = Vec::with_capacity(rows.len());
    for row in rows.into_iter().filter(|row| !held_back.contains(&row.key.subscription)) {
        let position = planned.position[&row.key.receipt];
        let event = &plan.events[planned.event[position]];
        let receipt = shared.entry(row.key.receipt).or_insert_with(|| Arc::new(planned.rows.receipts[position].clone()));
        messages.push(OutboxMessage {
            id: row.id,
            shard: row.shard,
            queued_at: now,
            hand_over: HandOver { key: row.key.clone(), attempt: row.attempt, lane: row.lane, trigger: row.trigger },
            receipt: receipt.clone(),
            content_type: event.from.content_type.clone(),
            body: Some(crate::store::part_of(&event.from.body, receipt.part)),
        });
    }
    Ok(messages)
}
