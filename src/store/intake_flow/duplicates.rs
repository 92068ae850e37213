//! Events whose key is taken, by an earlier batch or earlier in this one: counted, kept where they differ, and what a new
//! source or a provider's resend means for jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::plan::{Event, Plan};
use super::rows::{self, Planned};
use super::{IntakeContext, job_flow};
use crate::model::filter::EventFacts;
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, JobState};
use crate::model::receipt::{EventKey, Origin, Receipt};
use crate::store::tx::{Counts, DivergenceRow, JobWrites, Tx};
use crate::store::{EventVerdict, Redelivery, StoreError, Verdict};

/// One event that came too late for its key, with the receipt that has it.
struct Late<'a> {
    position: usize,
    event: &'a Event<'a>,
    receipt: &'a Receipt,
    verdict: Verdict,
}

impl Late<'_> {
    /// Sent by the provider; what reconciliation or an import brings again counts for nothing.
    fn is_resend(&self) -> bool {
        matches!(self.event.from.origin, Origin::Delivery)
    }

    /// Its body is worth keeping: other content, or the first signed copy of what was read from the provider's list.
    fn is_kept(&self) -> bool {
        self.is_resend() && (self.verdict == Verdict::Divergent || self.receipt.origin == Origin::Reconcile)
    }
}

/// Records every event that did not become a receipt and fills in its verdict.
pub(super) async fn record(
    tx: &mut dyn Tx,
    plan: &Plan<'_>,
    planned: &Planned,
    inserted: &HashSet<ReceiptId>,
    context: &IntakeContext<'_>,
    verdicts: &mut [EventVerdict],
    counts: &mut Counts,
) -> Result<(), StoreError> {
    let taken: Vec<EventKey> = plan
        .by_key
        .iter()
        .filter(|(_, positions)| !inserted.contains(&plan.first(positions).new.receipt_id))
        .map(|(key, _)| key.clone())
        .collect();
    let found = if taken.is_empty() { Vec::new() } else { tx.receipts_by_key(&taken).await? };
    let known: HashMap<&EventKey, &Receipt> = found.iter().map(|receipt| (&receipt.key, receipt)).collect();
    let late = late_events(plan, planned, inserted, &known)?;
    if late.is_empty() {
        return Ok(());
    }
    for event in &late {
        verdicts[event.position] = EventVerdict {
            receipt_id: event.receipt.id,
            verdict: event.verdict,
            held: None,
            unmatched: false,
            rearmed: 0,
        };
    }
    let redeliveries: Vec<_> = late.iter().filter(|late| late.is_resend()).map(redelivery).collect();
    if !redeliveries.is_empty() {
        tx.add_redeliveries(&redeliveries).await?;
    }
    keep_variants(tx, &late, planned, inserted).await?;
    add_jobs_of_other_sources(tx, &late, inserted, context, counts).await?;
    rearm(tx, &late, inserted, context, verdicts).await
}

fn late_events<'a>(
    plan: &'a Plan<'_>,
    planned: &'a Planned,
    inserted: &HashSet<ReceiptId>,
    known: &HashMap<&EventKey, &'a Receipt>,
) -> Result<Vec<Late<'a>>, StoreError> {
    let mut late = Vec::new();
    for (position, event) in plan.events.iter().enumerate() {
        let positions = &plan.by_key[&event.key];
        let first = plan.first(positions).new.receipt_id;
        let receipt = if inserted.contains(&first) {
            if positions[0] == position {
                continue;
            }
            planned.receipt(first)
        } else {
            *known
                .get(&event.key)
                .ok_or_else(|| StoreError::Unavailable("a key is taken and has no receipt".to_owned()))?
        };
        let verdict = if differs(event, receipt) { Verdict::Divergent } else { Verdict::Duplicate };
        late.push(Late { position, event, receipt, verdict });
    }
    Ok(late)
}

/// Only two signed deliveries are compared; what was imported or read from the provider's list may look otherwise.
fn differs(event: &Event<'_>, receipt: &Receipt) -> bool {
    let comparable =
        matches!(receipt.origin, Origin::Delivery | Origin::Admitted) && event.from.origin == Origin::Delivery;
    comparable && receipt.item_sha256.is_some_and(|kept| kept != event.new.item_sha256)
}

fn redelivery(late: &Late<'_>) -> (ReceiptId, Redelivery) {
    let from = late.event.from;
    let retry_headers =
        from.retry_headers.iter().map(|(name, value)| (rows::storable(name), rows::storable(value))).collect();
    let row = Redelivery {
        at: from.received_at,
        source: from.source.to_string(),
        secret: from.verified_by.secret.clone(),
        peer: rows::storable(&from.peer),
        retry_headers,
        verdict: late.verdict.as_str().to_owned(),
    };
    (late.receipt.id, row)
}

async fn keep_variants(
    tx: &mut dyn Tx,
    late: &[Late<'_>],
    planned: &Planned,
    inserted: &HashSet<ReceiptId>,
) -> Result<(), StoreError> {
    let kept: Vec<&Late<'_>> = late.iter().filter(|late| late.is_kept()).collect();
    if kept.is_empty() {
        return Ok(());
    }
    let variants: Vec<_> = kept.iter().map(|late| variant(late)).collect();
    let new = tx.add_divergences(&variants).await?;
    let stored = planned.rows.receipts.iter().filter(|receipt| inserted.contains(&receipt.id));
    let mut stored: HashSet<PayloadId> = stored.filter_map(|receipt| receipt.payload_id).collect();
    let mut payloads = Vec::new();
    for (late, new) in kept.iter().zip(new) {
        if new && stored.insert(late.event.from.payload_id) {
            payloads.push(rows::payload_row(late.event.from));
        }
    }
    if payloads.is_empty() { Ok(()) } else { tx.insert_payloads(&payloads).await }
}

fn variant(late: &Late<'_>) -> DivergenceRow {
    DivergenceRow {
        receipt: late.receipt.id,
        item_sha256: late.event.new.item_sha256,
        at: late.event.from.received_at,
        source: late.event.from.source.to_string(),
        payload: late.event.from.payload_id,
        part: late.event.new.part,
    }
}

/// A subscription that takes the event by the new source, and would not have taken it by the receipt's own, gets its job.
/// The filters decide, never a missing row: a job that a person or an older configuration left out stays out.
async fn add_jobs_of_other_sources(
    tx: &mut dyn Tx,
    late: &[Late<'_>],
    inserted: &HashSet<ReceiptId>,
    context: &IntakeContext<'_>,
    counts: &mut Counts,
) -> Result<(), StoreError> {
    let now = tx.now().await?;
    let mut jobs = BTreeMap::<JobKey, Job>::new();
    let mut receipts = BTreeMap::<ReceiptId, &Receipt>::new();
    for late in late.iter().filter(|late| may_add_jobs(late)) {
        for job in jobs_of_other_source(late, now) {
            receipts.insert(late.receipt.id, late.receipt);
            jobs.entry(job.key.clone()).or_insert(job);
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let older: Vec<Receipt> =
        receipts.values().filter(|receipt| !inserted.contains(&receipt.id)).map(|receipt| (*receipt).clone()).collect();
    let bodies = if older.is_empty() { Vec::new() } else { tx.have_bodies(&older).await? };
    let gone: BTreeSet<ReceiptId> =
        older.iter().zip(bodies).filter(|(_, there)| !there).map(|(receipt, _)| receipt.id).collect();
    jobs.retain(|key, _| !gone.contains(&key.receipt));
    for there in tx.lock_jobs(&jobs.keys().cloned().collect::<Vec<_>>()).await? {
        jobs.remove(&there.key);
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let insert: Vec<Job> = jobs.into_values().collect();
    let outbox = insert.iter().filter_map(|job| rows::hand_over(job, now, context)).collect();
    let writes = JobWrites { insert, outbox, ..JobWrites::default() };
    let written = tx.write_jobs(&writes).await?;
    for (subscription, state, n) in writes.counts(&written) {
        counts.add(&subscription, &state, n);
    }
    Ok(())
}

fn may_add_jobs(late: &Late<'_>) -> bool {
    let receipt = late.receipt;
    *late.event.from.source != *receipt.source
        && late.event.from.origin != Origin::Imported
        && receipt.origin != Origin::Imported
        && receipt.hold_reason.is_none()
        && receipt.payload_id.is_some()
}

fn jobs_of_other_source(late: &Late<'_>, now: i64) -> Vec<Job> {
    let source = &*late.event.from.source;
    let by_new = EventFacts::of(late.receipt, source);
    let by_own = EventFacts::of(late.receipt, &late.receipt.source);
    let taking = late.event.from.subscriptions.matching(&by_new);
    taking
        .filter(|subscription| !subscription.filter.takes(&by_own))
        .map(|subscription| match late.verdict {
            Verdict::Divergent => rows::review_job(late.receipt, &subscription.name, source, JobReason::Divergent, now),
            _ => rows::fresh_job(late.receipt, subscription, source, now),
        })
        .collect()
}

/// The provider sends again what our consumers gave up: contract C9.
async fn rearm(
    tx: &mut dyn Tx,
    late: &[Late<'_>],
    inserted: &HashSet<ReceiptId>,
    context: &IntakeContext<'_>,
    verdicts: &mut [EventVerdict],
) -> Result<(), StoreError> {
    let resent: Vec<&Late<'_>> = late
        .iter()
        .filter(|late| late.is_resend() && late.verdict == Verdict::Duplicate && !inserted.contains(&late.receipt.id))
        .collect();
    let ids: BTreeSet<ReceiptId> = resent.iter().map(|late| late.receipt.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let jobs = tx.lock_jobs_of(&ids.into_iter().collect::<Vec<_>>()).await?;
    let in_review = |job: &Job| job.state == JobState::Review && job.reason.is_some_and(JobReason::rearms);
    let mut waiting: BTreeSet<JobKey> = jobs.into_iter().filter(in_review).map(|job| job.key).collect();
    for late in resent {
        let keys: Vec<JobKey> = waiting.iter().filter(|key| key.receipt == late.receipt.id).cloned().collect();
        if keys.is_empty() {
            continue;
        }
        // One resend asks once for each job; further copies in the same batch add nothing.
        waiting.retain(|key| key.receipt != late.receipt.id);
        let subscriptions = &late.event.from.subscriptions;
        let rearmed = job_flow::rearm_on_redelivery(tx, &keys, subscriptions, context.random).await?;
        verdicts[late.position].rearmed = u32::try_from(rearmed.len()).unwrap_or(u32::MAX);
    }
    Ok(())
}
