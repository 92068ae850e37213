//! What the batch itself says: the events in order of arrival, their keys, and which come first for their key.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::model::id::ReceiptId;
use crate::model::receipt::{EventKey, Origin};
use crate::store::tx::Tx;
use crate::store::{DeliveryVerdict, EventVerdict, NewDelivery, NewEvent, StoreError};

/// Bounds of the key's parts in bytes; what is longer becomes its digest.
const ACCOUNT_MAX: usize = 128;
const EVENT_ID_MAX: usize = 255;

/// One event of the batch with its key.
pub(super) struct Event<'a> {
    pub delivery: usize,
    pub from: &'a NewDelivery,
    pub new: &'a NewEvent,
    pub key: EventKey,
    /// The id was too long, or not storable as text, and is its digest.
    pub digested: bool,
}

impl Event<'_> {
    /// Of what proved it: its own content, or the delivery's.
    pub fn signed_sha256(&self) -> [u8; 32] {
        self.new.proof.as_ref().map_or(self.from.signed_sha256, |proof| proof.signed_sha256)
    }
}

/// The batch, read once.
pub(super) struct Plan<'a> {
    pub deliveries: &'a [&'a NewDelivery],
    /// In order of arrival.
    pub events: Vec<Event<'a>>,
    /// By key, positions in `events`, the first arrival first: sorted, so that two batches never wait for each other.
    pub by_key: BTreeMap<EventKey, Vec<usize>>,
}

impl<'a> Plan<'a> {
    pub fn of(deliveries: &'a [&'a NewDelivery]) -> Self {
        let mut events = Vec::new();
        let mut by_key = BTreeMap::<EventKey, Vec<usize>>::new();
        for (delivery, from) in deliveries.iter().enumerate() {
            for new in &from.events {
                let (key, digested) = key_of(from, new);
                by_key.entry(key.clone()).or_default().push(events.len());
                events.push(Event { delivery, from, new, key, digested });
            }
        }
        Self { deliveries, events, by_key }
    }

    /// The verdicts of all events, in order of arrival, dealt out to their deliveries.
    pub fn by_delivery(&self, verdicts: Vec<EventVerdict>) -> Vec<DeliveryVerdict> {
        let mut dealt: Vec<_> = self.deliveries.iter().map(|_| DeliveryVerdict { events: Vec::new() }).collect();
        for (event, verdict) in self.events.iter().zip(verdicts) {
            dealt[event.delivery].events.push(verdict);
        }
        dealt
    }

    /// The event that is stored if its key is free.
    pub fn first(&self, positions: &[usize]) -> &Event<'a> {
        &self.events[positions[0]]
    }
}

/// Receipts to be held because their signed content is known under another id: from the store, or from an earlier delivery
/// or item of this batch. An event whose key turns out to be taken is a duplicate all the same.
pub(super) async fn suspects(tx: &mut dyn Tx, plan: &Plan<'_>) -> Result<HashSet<ReceiptId>, StoreError> {
    let mut asked = BTreeMap::<Scope<'_>, Vec<[u8; 32]>>::new();
    for event in plan.events.iter().filter(|event| is_guarded(event.from)) {
        asked.entry(scope(event.from)).or_default().push(event.signed_sha256());
    }
    let mut known = HashSet::new();
    for (scope, mut signed) in asked {
        signed.sort_unstable();
        signed.dedup();
        for receipt in tx.receipts_by_signed(scope.0, scope.1, &signed).await? {
            known.extend(receipt.signed_sha256.map(|signed| (scope, signed)));
        }
    }
    let mut carried_by = HashMap::new();
    let mut suspects = HashSet::new();
    for (position, event) in plan.events.iter().enumerate().filter(|(_, event)| is_guarded(event.from)) {
        let content = (scope(event.from), event.signed_sha256());
        // The events of a delivery share its proof; an item with a proof of its own shares it with nothing.
        let carrier = (event.delivery, event.new.proof.is_some().then_some(position));
        let first = *carried_by.entry(content).or_insert(carrier);
        let is_first = plan.by_key[&event.key][0] == position;
        if is_first && (known.contains(&content) || first != carrier) {
            suspects.insert(event.new.receipt_id);
        }
    }
    Ok(suspects)
}

/// Provider and sources among which the same signed content is the same request.
type Scope<'a> = (&'a str, &'a [Arc<str>]);

fn scope(delivery: &NewDelivery) -> Scope<'_> {
    (&delivery.provider, &delivery.guard_sources)
}

fn is_guarded(delivery: &NewDelivery) -> bool {
    delivery.replay_guard && !delivery.every_delivery && delivery.origin == Origin::Delivery
}

fn key_of(from: &NewDelivery, new: &NewEvent) -> (EventKey, bool) {
    let (account, _) = bounded(&new.account, ACCOUNT_MAX);
    let (event_id, digested) = if from.every_delivery {
        let (reference, digested) = bounded(&new.provider_ref, EVENT_ID_MAX);
        (format!("{reference}@{}", new.receipt_id), digested)
    } else {
        bounded(&new.event_id, EVENT_ID_MAX)
    };
    (EventKey { provider: from.provider.to_string(), account, event_id }, digested)
}

/// `text`, or its digest where it is too long for an index or holds a NUL, which PostgreSQL's text does not take.
fn bounded(text: &str, bytes_max: usize) -> (String, bool) {
    if text.len() <= bytes_max && !text.contains('\0') {
        return (text.to_owned(), false);
    }
    (format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes()))), true)
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn long_or_nul_ids_become_their_digest() {
        assert_eq!(bounded("evt_1", 255), ("evt_1".to_owned(), false));
        assert_eq!(bounded(&"x".repeat(255), 255), ("x".repeat(255), false));
        let (long, digested) = bounded(&"x".repeat(256), 255);
        assert!(digested && long.starts_with("sha256:") && long.len() == 71);
        assert_ne!(bounded("a\0b", 255).0, bounded("a\0c", 255).0);
    }
}
