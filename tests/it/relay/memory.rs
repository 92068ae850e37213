//! The parts of the store that the relay uses, in memory, with the promises that the relay builds on, and a record of
//! what it was asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use makbuz::clock::{Clock, SystemClock, micros};
use makbuz::model::attempt::Trigger;
use makbuz::model::id::{OutboxId, ReceiptId};
use makbuz::model::job::{Job, JobKey, JobReason, JobState, Lane};
use makbuz::model::outcome::OutcomeKind;
use makbuz::model::receipt::{Coverage, EventKey, Mode, Origin, Receipt, VerifiedBy};
use makbuz::model::subscription::SubscriptionSet;
use makbuz::random::{Random, SystemRandom};
use makbuz::store::*;

/// The store.
pub struct Memory {
    state: Mutex<State>,
    pub away: AtomicBool,
    /// With each look one more row for this subscription is there: no look is ever empty.
    pub fed: Mutex<Option<String>>,
    /// A relay that cannot renew its lease.
    pub cut_off: Mutex<Option<String>>,
    random: SystemRandom,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<OutboxId, (OutboxMessage, i64)>,
    jobs: HashMap<JobKey, Held>,
    relays: HashMap<String, i64>,
    shards: HashMap<u8, (String, i64)>,
    reports: Vec<OutcomeReport>,
    returned: u32,
    looks: u32,
    seen: HashSet<OutboxId>,
}

struct Held {
    state: JobState,
    attempt: i32,
    reason: Option<JobReason>,
    message: OutboxMessage,
}

impl Memory {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            away: AtomicBool::new(false),
            fed: Mutex::default(),
            cut_off: Mutex::default(),
            random: SystemRandom::new(),
        })
    }

    /// A job with its row, as intake would have written it.
    pub fn add(&self, subscription: &str, body: &[u8]) -> ReceiptId {
        self.add_row(self.message(subscription, body, Lane::Fresh))
    }

    pub fn add_many(&self, subscription: &str, n: usize) -> Vec<ReceiptId> {
        (0..n).map(|n| self.add(subscription, format!("{{\"n\":{n}}}").as_bytes())).collect()
    }

    pub fn add_row(&self, message: OutboxMessage) -> ReceiptId {
        let mut state = self.lock();
        let key = message.hand_over.key.clone();
        let attempt = message.hand_over.attempt;
        state
            .jobs
            .insert(key.clone(), Held { state: JobState::Queued, attempt, reason: None, message: message.clone() });
        state.rows.insert(message.id, (message, SystemClock.now()));
        key.receipt
    }

    /// A row that is not stored yet.
    pub fn message(&self, subscription: &str, body: &[u8], lane: Lane) -> OutboxMessage {
        let now = SystemClock.now();
        let receipt = receipt(ReceiptId::new(now, &self.random), now);
        OutboxMessage {
            id: OutboxId::new(now, &self.random),
            shard: u8::try_from(self.random.next_u64() % 32).expect("below 32"),
            queued_at: now,
            hand_over: HandOver {
                key: JobKey { receipt: receipt.id, subscription: subscription.to_owned() },
                attempt: 1,
                lane,
                trigger: Trigger::First,
            },
            receipt: Arc::new(receipt),
            content_type: "application/json".to_owned(),
            body: Some(Bytes::copy_from_slice(body)),
        }
    }

    pub fn depth(&self) -> usize {
        self.lock().rows.len()
    }

    /// Receipts that still have a row for the subscription.
    pub fn waiting(&self, subscription: &str) -> HashSet<ReceiptId> {
        let state = self.lock();
        let rows = state.rows.values().map(|(row, _)| &row.hand_over.key);
        rows.filter(|key| key.subscription == subscription).map(|key| key.receipt).collect()
    }

    pub fn job(&self, receipt: ReceiptId, subscription: &str) -> (JobState, i32, Option<JobReason>) {
        let state = self.lock();
        let job = &state.jobs[&JobKey { receipt, subscription: subscription.to_owned() }];
        (job.state, job.attempt, job.reason)
    }

    pub fn reports(&self) -> Vec<OutcomeReport> {
        self.lock().reports.clone()
    }

    /// Hand-overs that were put back, in all.
    pub fn returned(&self) -> u32 {
        self.lock().returned
    }

    pub fn looks(&self) -> u32 {
        self.lock().looks
    }

    /// Whether any look has given this row.
    pub fn saw(&self, row: OutboxId) -> bool {
        self.lock().seen.contains(&row)
    }

    /// Whether the row is still there.
    pub fn has(&self, row: OutboxId) -> bool {
        self.lock().rows.contains_key(&row)
    }

    fn renews(&self, relay: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let cut_off = self.cut_off.lock().expect("not poisoned").as_deref() == Some(relay);
        if cut_off { Err(StoreError::Unavailable("cut off".to_owned())) } else { self.there() }
    }

    pub fn holder(&self, shard: u8) -> Option<String> {
        self.lock().shards.get(&shard).filter(|(_, until)| *until > SystemClock.now()).map(|(name, _)| name.clone())
    }

    pub fn shards_of(&self, relay: &str) -> usize {
        (0..SHARDS).filter(|shard| self.holder(*shard).as_deref() == Some(relay)).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    fn there(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        if self.away.load(Ordering::SeqCst) { Err(StoreError::Unavailable("away".to_owned())) } else { Ok(self.lock()) }
    }

    fn again(&self, mut message: OutboxMessage) -> OutboxMessage {
        message.id = OutboxId::new(SystemClock.now(), &self.random);
        message.queued_at = SystemClock.now();
        message
    }
}

fn receipt(id: ReceiptId, now: i64) -> Receipt {
    Receipt {
        id,
        key: EventKey { provider: "stripe".to_owned(), account: "acct_1".to_owned(), event_id: format!("evt_{id}") },
        provider_ref: format!("evt_{id}"),
        mode: Mode::Live,
        source: "stripe-eu".to_owned(),
        event_type: "invoice.paid".to_owned(),
        occurred_at: None,
        received_at: now,
        resource_key: None,
        resource_version: None,
        payload_id: None,
        pointer: None,
        part: None,
        item_sha256: None,
        signed_sha256: None,
        verified_by: Some(VerifiedBy {
            mechanism: "hmac-sha256".to_owned(),
            secret: "a".to_owned(),
            signed_at: None,
            coverage: Coverage::Body,
        }),
        origin: Origin::Delivery,
        flags: String::new(),
        hold_reason: None,
        duplicates: 0,
        last_delivered_at: None,
    }
}

#[async_trait]
impl Outbox for Memory {
    async fn announce_relay(&self, relay: &str, lease: Duration) -> Result<u32, StoreError> {
        let mut state = self.renews(relay)?;
        let now = SystemClock.now();
        state.relays.insert(relay.to_owned(), now + micros(lease));
        state.relays.retain(|_, until| *until > now);
        Ok(u32::try_from(state.relays.len()).expect("few"))
    }

    async fn hold_shards(&self, relay: &str, share: u32, lease: Duration) -> Result<Vec<u8>, StoreError> {
        let mut state = self.renews(relay)?;
        let now = SystemClock.now();
        let until = now + micros(lease);
        let mut held: Vec<u8> = Vec::new();
        for (shard, (name, held_until)) in &mut state.shards {
            if name == relay {
                *held_until = until;
                held.push(*shard);
            }
        }
        for shard in 0..SHARDS {
            let free = state.shards.get(&shard).is_none_or(|(_, until)| *until <= now);
            if free && held.len() < usize::try_from(share).expect("few") {
                state.shards.insert(shard, (relay.to_owned(), until));
                held.push(shard);
            }
        }
        Ok(held)
    }

    async fn release_shards(&self, relay: &str, shards: &[u8]) -> Result<(), StoreError> {
        let mut state = self.there()?;
        state.shards.retain(|shard, (name, _)| name != relay || !shards.contains(shard));
        if state.shards.values().all(|(name, _)| name != relay) {
            state.relays.remove(relay);
        }
        Ok(())
    }

    async fn read_outbox(&self, query: OutboxQuery) -> Result<OutboxLook, StoreError> {
        let fed = self.fed.lock().expect("not poisoned").clone();
        if let Some(subscription) = fed {
            self.add(&subscription, b"{}");
        }
        let mut state = self.there()?;
        state.looks += 1;
        let now = SystemClock.now();
        let (mut found, mut bytes, mut whole) = (Vec::new(), 0, true);
        for (row, due) in state.rows.values() {
            let lane = (row.shard, row.hand_over.key.subscription.clone());
            let wanted = *due <= now && query.shards.contains(&row.shard);
            if !wanted || query.skip.contains(&row.id) || query.skip_lanes.contains(&lane) {
                continue;
            }
            bytes += row.body.as_ref().map_or(0, Bytes::len);
            if found.len() >= usize::try_from(query.limit).expect("few")
                || (bytes > query.bytes_max && !found.is_empty())
            {
                whole = false;
                break;
            }
            found.push(row.clone());
        }
        state.seen.extend(found.iter().map(|row| row.id));
        Ok(OutboxLook { messages: found, whole })
    }

    async fn delete_outbox(&self, confirmed: &[ConfirmedRow]) -> Result<(), StoreError> {
        let mut state = self.there()?;
        for row in confirmed {
            state.rows.remove(&row.id);
            if row.completes
                && let Some(job) = state.jobs.get_mut(&row.hand_over.key)
            {
                job.state = JobState::Completed;
            }
        }
        Ok(())
    }

    async fn return_to_outbox(&self, returned: &[HandOver], delay: Duration) -> Result<(), StoreError> {
        let mut state = self.there()?;
        for hand_over in returned {
            let Some(job) = state.jobs.get_mut(&hand_over.key) else { continue };
            // Only its confirm can have completed it here.
            if job.state == JobState::Completed && job.attempt == hand_over.attempt {
                job.state = JobState::Queued;
            }
            if job.state != JobState::Queued || job.attempt != hand_over.attempt {
                continue;
            }
            let message = self.again(job.message.clone());
            state.returned += 1;
            state.rows.insert(message.id, (message, SystemClock.now() + micros(delay)));
        }
        Ok(())
    }

    async fn give_up_outbox(&self, rows: &[OutboxId], reason: JobReason, _note: &str) -> Result<u64, StoreError> {
        let mut state = self.there()?;
        let mut given = 0;
        for id in rows {
            if let Some((row, _)) = state.rows.remove(id) {
                let job = state.jobs.get_mut(&row.hand_over.key).expect("a row has a job");
                (job.state, job.reason) = (JobState::Review, Some(reason));
                given += 1;
            }
        }
        Ok(given)
    }

    async fn outbox_status(&self) -> Result<OutboxStatus, StoreError> {
        Ok(OutboxStatus { depth: u64::try_from(self.there()?.rows.len()).expect("few"), oldest: None })
    }
}

#[async_trait]
impl Jobs for Memory {
    async fn record_outcomes(
        &self,
        reports: Vec<OutcomeReport>,
        _subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<OutcomeVerdict>, StoreError> {
        let mut state = self.there()?;
        let mut verdicts = Vec::new();
        for report in reports {
            verdicts.push(match state.jobs.get_mut(&report.key) {
                None => OutcomeVerdict::NoSuchJob,
                Some(job) if job.attempt != report.attempt => OutcomeVerdict::NoSuchAttempt,
                Some(job) => {
                    job.state =
                        if report.kind == OutcomeKind::Failed { JobState::Retrying } else { JobState::Completed };
                    OutcomeVerdict::Applied(job.state)
                }
            });
            state.reports.push(report);
        }
        Ok(verdicts)
    }

    async fn replay(
        &self,
        jobs: &[JobKey],
        replay: ReplayRequest,
        _subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ReplayVerdict>, StoreError> {
        let mut state = self.there()?;
        let mut verdicts = Vec::new();
        for key in jobs {
            let Some(job) = state.jobs.get_mut(key) else {
                verdicts.push(ReplayVerdict::NoSuchJob);
                continue;
            };
            let may = job.state == JobState::Review || (job.state == JobState::Completed && replay.why.is_some());
            if !may {
                verdicts.push(ReplayVerdict::Refused("not_replayable"));
                continue;
            }
            (job.state, job.reason, job.attempt) = (JobState::Queued, None, job.attempt + 1);
            job.message = self.again(job.message.clone());
            job.message.hand_over.attempt = job.attempt;
            job.message.hand_over.trigger = replay.trigger;
            let message = job.message.clone();
            state.rows.insert(message.id, (message, SystemClock.now()));
            verdicts.push(ReplayVerdict::Armed);
        }
        Ok(verdicts)
    }

    async fn claim_jobs(&self, _: ClaimRequest, _: Arc<SubscriptionSet>) -> Result<Vec<ClaimedJob>, StoreError> {
        unreachable!("the relay does not claim")
    }
    async fn extend_lease(&self, _: &JobKey, _: i32, _: Duration) -> Result<(), StoreError> {
        unreachable!("the relay has no leases on jobs")
    }
    async fn hand_out_due(&self, _: u32, _: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        unreachable!("the scheduler does that")
    }
    async fn rescue_expired(&self, _: u32, _: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        unreachable!("the scheduler does that")
    }
    async fn republish_lost(&self, _: &str, _: LostRule) -> Result<u32, StoreError> {
        unreachable!("the scheduler does that")
    }
    async fn dismiss(&self, _: &JobKey, _: &str, _: &str) -> Result<(), StoreError> {
        unreachable!("a person does that")
    }
    async fn job_status(&self) -> Result<JobStatus, StoreError> {
        Ok(JobStatus::default())
    }
}

#[async_trait]
impl Archive for Memory {
    async fn jobs(&self, query: JobQuery) -> Result<Vec<Job>, StoreError> {
        let state = self.there()?;
        let wanted = state.jobs.iter().filter(|(key, job)| {
            query.subscription.as_ref().is_none_or(|name| *name == key.subscription)
                && query.state.is_none_or(|state| state == job.state)
                && (query.reason.is_none() || query.reason == job.reason)
        });
        Ok(wanted.take(usize::try_from(query.limit).expect("few")).map(|(key, held)| job(key, held)).collect())
    }
    async fn receipt(&self, _: ReceiptId) -> Result<Option<ReceiptView>, StoreError> {
        unreachable!("not the relay's")
    }
    async fn receipts(&self, _: ReceiptQuery) -> Result<Vec<ReceiptView>, StoreError> {
        unreachable!("not the relay's")
    }
    async fn body(&self, _: ReceiptId, _: bool) -> Result<StoredBody, StoreError> {
        unreachable!("not the relay's")
    }
    async fn job(&self, _: &JobKey) -> Result<Option<JobView>, StoreError> {
        unreachable!("not the relay's")
    }
    async fn rejections(&self, _: u32) -> Result<Vec<NewRejection>, StoreError> {
        unreachable!("not the relay's")
    }
}

fn job(key: &JobKey, held: &Held) -> Job {
    Job {
        key: key.clone(),
        source: "stripe-eu".to_owned(),
        state: held.state,
        attempt: held.attempt,
        series: 1,
        series_attempts: held.attempt,
        first_attempt_at: None,
        next_attempt_at: None,
        leased_until: None,
        handed_at: None,
        lane: Lane::Fresh,
        resource_key: None,
        turn_key: None,
        reason: held.reason,
        fingerprint: None,
        assignee: None,
        note: None,
        rearms: 0,
        created_at: 0,
        finished_at: None,
    }
}
