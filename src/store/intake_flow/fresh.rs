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
        let receipt =
            shared.entry(row.key.receipt).or_insert_with(|| Arc::new(planned.rows.receipts[position].clone()));
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::model::attempt::Trigger;
    use crate::model::job::{JobKey, Lane};
    use crate::model::receipt::{EventKey, Mode, Origin, Receipt};
    use crate::random::SeededRandom;

    #[derive(Default)]
    struct Relay(Mutex<Vec<(&'static str, usize)>>);

    impl FreshRows for Relay {
        fn shard(&self, _: ReceiptId) -> u8 {
            0
        }
        fn before_commit(&self, rows: &[(OutboxId, u8)]) {
            self.0.lock().unwrap().push(("before", rows.len()));
        }
        fn committed(&self, rows: Vec<OutboxMessage>) {
            self.0.lock().unwrap().push(("committed", rows.len()));
        }
        fn abandoned(&self, rows: &[OutboxId]) {
            self.0.lock().unwrap().push(("abandoned", rows.len()));
        }
    }

    fn message() -> OutboxMessage {
        let random = SeededRandom::new(3);
        let id = ReceiptId::new(7, &random);
        let receipt = Receipt {
            id,
            key: EventKey { provider: "p".to_owned(), account: String::new(), event_id: "e".to_owned() },
            provider_ref: "e".to_owned(),
            mode: Mode::Live,
            source: "web".to_owned(),
            event_type: String::new(),
            occurred_at: None,
            received_at: 7,
            resource_key: None,
            resource_version: None,
            payload_id: None,
            pointer: None,
            part: None,
            item_sha256: None,
            signed_sha256: None,
            verified_by: None,
            origin: Origin::Imported,
            flags: String::new(),
            hold_reason: None,
            duplicates: 0,
            last_delivered_at: None,
        };
        OutboxMessage {
            id: OutboxId::new(7, &random),
            shard: 0,
            queued_at: 7,
            hand_over: HandOver {
                key: JobKey { receipt: id, subscription: "billing".to_owned() },
                attempt: 1,
                lane: Lane::Fresh,
                trigger: Trigger::First,
            },
            receipt: Arc::new(receipt),
            content_type: String::new(),
            body: Some(Bytes::new()),
        }
    }

    #[test]
    fn rows_whose_commit_failed_or_is_unknown_are_given_up() {
        let relay = Arc::new(Relay::default());
        drop(HeldRows::hold(Some(relay.clone()), vec![message()]));
        HeldRows::hold(Some(relay.clone()), vec![message()]).committed();
        HeldRows::hold(Some(relay.clone()), Vec::new()).committed();
        assert_eq!(*relay.0.lock().unwrap(), [("before", 1), ("abandoned", 1), ("before", 1), ("committed", 1)]);
    }
}
