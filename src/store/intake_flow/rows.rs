//! The rows of events that may be new: receipt, body, jobs and hand-overs.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::IntakeContext;
use super::plan::{Event, Plan};
use crate::model::attempt::Trigger;
use crate::model::filter::EventFacts;
use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{INTAKE, Job, JobKey, JobReason, JobState, Lane};
use crate::model::receipt::{Flag, HoldReason, Origin, Receipt, flags_text};
use crate::model::subscription::{BROADCAST, Subscription, Target};
use crate::store::tx::{IntakeRows, OutboxRow, PayloadRow};
use crate::store::{NewDelivery, SHARDS, headers};

/// The id as the provider prints it is kept up to here, in bytes; it is for people, the key has its digest.
const PROVIDER_REF_MAX: usize = 4096;

/// Rows for `insert_intake`, and where each event's receipt stands in them.
pub(super) struct Planned {
    pub rows: IntakeRows,
    /// Position in `rows.receipts` by the id that the receipt has if it is new.
    pub position: HashMap<ReceiptId, usize>,
    /// Position in `Plan::events`, by position in `rows.receipts`.
    pub event: Vec<usize>,
}

impl Planned {
    /// The receipt that `id` would be.
    pub fn receipt(&self, id: ReceiptId) -> &Receipt {
        &self.rows.receipts[self.position[&id]]
    }
}

/// Makes the rows of the first event of each key, in key order.
pub(super) fn build(plan: &Plan<'_>, suspects: &HashSet<ReceiptId>, now: i64, context: &IntakeContext<'_>) -> Planned {
    let mut rows = IntakeRows::default();
    let mut position = HashMap::new();
    let mut event_of = Vec::new();
    let mut with_body = BTreeSet::new();
    for positions in plan.by_key.values() {
        let event = plan.first(positions);
        let mut receipt = receipt_row(event, suspects.contains(&event.new.receipt_id));
        if receipt.origin != Origin::Imported {
            with_body.insert(event.delivery);
            let jobs = jobs_of(event, &receipt, now);
            if jobs.is_empty() {
                let mut flags = flags_of(event);
                flags.push(Flag::Unmatched);
                receipt.flags = flags_text(&flags);
            }
            rows.outbox.extend(jobs.iter().filter_map(|job| hand_over(job, now, context)));
            rows.jobs.extend(jobs);
        }
        position.insert(receipt.id, rows.receipts.len());
        event_of.push(positions[0]);
        rows.replay_guard
            .push(event.from.replay_guard && !event.from.every_delivery && receipt.signed_sha256.is_some());
        rows.receipts.push(receipt);
    }
    rows.payloads = with_body.into_iter().map(|delivery| payload_row(plan.deliveries[delivery])).collect();
    Planned { rows, position, event: event_of }
}

/// The body with its headers, as the delivery brought it.
pub(super) fn payload_row(delivery: &NewDelivery) -> PayloadRow {
    PayloadRow {
        id: delivery.payload_id,
        body: delivery.body.clone(),
        headers: headers::to_json(&delivery.headers, &delivery.dropped_headers),
        content_type: storable(&delivery.content_type),
        url: storable(&delivery.url),
    }
}

/// A job that is to be handed out now: `queued` with its first attempt for the broker, `pending` for a claim.
pub(super) fn fresh_job(receipt: &Receipt, subscription: &Subscription, source: &str, now: i64) -> Job {
    let job = Job::first(receipt, &subscription.name, source, now);
    match subscription.target {
        Target::Amqp => Job {
            state: JobState::Queued,
            attempt: 1,
            series_attempts: 1,
            first_attempt_at: Some(now),
            handed_at: Some(now),
            ..job
        },
        Target::Pull => Job { next_attempt_at: Some(now), ..job },
    }
}

/// A job that waits for a person from the start.
pub(super) fn review_job(receipt: &Receipt, subscription: &str, source: &str, reason: JobReason, now: i64) -> Job {
    Job { state: JobState::Review, reason: Some(reason), ..Job::first(receipt, subscription, source, now) }
}

/// The outbox row of a job that is queued.
pub(super) fn hand_over(job: &Job, now: i64, context: &IntakeContext<'_>) -> Option<OutboxRow> {
    (job.state == JobState::Queued).then(|| first_row(job.key.clone(), now, context))
}

/// The outbox row of a receipt for whoever listens.
pub(super) fn broadcast(receipt: ReceiptId, now: i64, context: &IntakeContext<'_>) -> OutboxRow {
    first_row(JobKey { receipt, subscription: BROADCAST.to_owned() }, now, context)
}

fn first_row(key: JobKey, now: i64, context: &IntakeContext<'_>) -> OutboxRow {
    OutboxRow {
        id: OutboxId::new(now, context.random),
        attempt: 1,
        lane: Lane::Fresh,
        trigger: Trigger::First,
        shard: match &context.fresh {
            Some(fresh) => fresh.shard(key.receipt) % SHARDS,
            None => hashed_shard(key.receipt),
        },
        due_in: 0,
        key,
    }
}

/// A shard by the random end of the id.
pub(super) fn hashed_shard(receipt: ReceiptId) -> u8 {
    receipt.0.as_bytes()[15] % SHARDS
}

/// Text that both databases take: PostgreSQL's has no NUL.
pub(super) fn storable(text: &str) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_owned() }
}

fn receipt_row(event: &Event<'_>, suspect: bool) -> Receipt {
    let (from, new) = (event.from, event.new);
    let imported = from.origin == Origin::Imported;
    Receipt {
        id: new.receipt_id,
        key: event.key.clone(),
        provider_ref: clipped(&storable(&new.provider_ref), PROVIDER_REF_MAX),
        mode: new.mode,
        source: from.source.to_string(),
        event_type: storable(&new.event_type),
        occurred_at: new.occurred_at,
        received_at: from.received_at,
        resource_key: new.resource_key.as_deref().map(storable),
        resource_version: new.resource_version.as_deref().map(storable),
        payload_id: (!imported).then_some(from.payload_id),
        pointer: new.pointer.as_deref().map(storable),
        part: if imported { None } else { new.part },
        item_sha256: (!imported).then_some(new.item_sha256),
        signed_sha256: (from.origin == Origin::Delivery).then_some(event.signed_sha256()),
        verified_by: (!imported)
            .then(|| new.proof.as_ref().map_or(&from.verified_by, |proof| &proof.verified_by).clone()),
        origin: from.origin,
        flags: flags_text(&flags_of(event)),
        // Malformed says more than suspect: its id is the body's own digest, and a person looks at it anyway.
        hold_reason: new.hold.or(suspect.then_some(HoldReason::Suspect)),
        duplicates: 0,
        last_delivered_at: None,
    }
}

fn flags_of(event: &Event<'_>) -> Vec<Flag> {
    let mut flags = event.new.flags.clone();
    if event.digested {
        flags.push(Flag::IdDigested);
    }
    if event.from.every_delivery {
        flags.push(Flag::EveryDelivery);
    }
    flags
}

fn jobs_of(event: &Event<'_>, receipt: &Receipt, now: i64) -> Vec<Job> {
    if let Some(hold) = receipt.hold_reason {
        let reason = if hold == HoldReason::Suspect { JobReason::Suspect } else { JobReason::Held };
        return vec![review_job(receipt, INTAKE, &receipt.source, reason, now)];
    }
    let facts = EventFacts::of(receipt, &receipt.source);
    let taking = event.from.subscriptions.matching(&facts);
    taking.map(|subscription| fresh_job(receipt, subscription, &receipt.source, now)).collect()
}

fn clipped(text: &str, bytes_max: usize) -> String {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
