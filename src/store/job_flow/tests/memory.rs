//! A store of maps that refuses what the tables' constraints refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::model::attempt::Attempt;
use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{Job, JobKey, JobState, Move, OUTBOX_COUNT};
use crate::model::receipt::{EventKey, Receipt};
use crate::store::tx::{
    Counts, DivergenceRow, Due, IntakeRows, JobWrites, OutboxRow, PayloadRow, SubscriptionState, Tx, Written,
};
use crate::store::{HandOver, OutboxLook, OutboxQuery, Redelivery, StoreError};

#[derive(Default)]
pub struct Memory {
    pub now: i64,
    pub receipts: BTreeMap<ReceiptId, Receipt>,
    pub no_body: BTreeSet<ReceiptId>,
    pub jobs: BTreeMap<JobKey, Job>,
    pub attempts: BTreeMap<(JobKey, i32), Attempt>,
    pub outbox: BTreeMap<OutboxId, OutboxRow>,
    pub counts: BTreeMap<(String, String), i64>,
    pub held_back: Vec<(String, SubscriptionState)>,
    pub reported: BTreeSet<String>,
    pub audits: Vec<(String, String, String, String)>,
}

impl Memory {
    pub fn job(&self, key: &JobKey) -> &Job {
        &self.jobs[key]
    }

    pub fn attempts(&self, key: &JobKey) -> Vec<&Attempt> {
        self.attempts.range((key.clone(), 0)..=(key.clone(), i32::MAX)).map(|(_, attempt)| attempt).collect()
    }

    pub fn waiting(&self, key: &JobKey) -> Vec<&OutboxRow> {
        self.outbox.values().filter(|row| row.key == *key).collect()
    }

    /// The counters as they have to be.
    pub fn recounted(&self) -> BTreeMap<(String, String), i64> {
        let mut counts = Counts::default();
        self.jobs.values().for_each(|job| counts.add_job(job, 1));
        self.outbox.values().for_each(|row| counts.add(&row.key.subscription, OUTBOX_COUNT, 1));
        counts.into_rows().into_iter().map(|(subscription, state, n)| ((subscription, state), n)).collect()
    }

    fn is_due(&self, job: &Job) -> bool {
        matches!(job.state, JobState::Pending | JobState::Retrying)
            && job.next_attempt_at.is_none_or(|at| at <= self.now)
    }
}

fn check(job: &Job) {
    assert!(job.leased_until.is_none() || job.state == JobState::Running, "leased and not running: {job:?}");
    assert_eq!(job.state.is_ended(), job.finished_at.is_some(), "{job:?}");
    assert!(job.state != JobState::Retrying || job.next_attempt_at.is_some(), "{job:?}");
    assert!(job.state != JobState::Review || job.reason.is_some(), "{job:?}");
    assert!(job.state != JobState::Queued || job.handed_at.is_some(), "{job:?}");
    assert!((0..=job.attempt).contains(&job.series_attempts), "{job:?}");
    assert!(job.series >= 1, "{job:?}");
}

/// One legal move, or two (armed and handed out at once).
fn is_legal(before: JobState, after: JobState) -> bool {
    let next = |state: JobState| Move::ALL.into_iter().filter_map(move |made| state.after(made));
    before == after || next(before).any(|middle| middle == after || next(middle).any(|end| end == after))
}

#[async_trait]
impl Tx for Memory {
    async fn now(&mut self) -> Result<i64, StoreError> {
        Ok(self.now)
    }

    async fn insert_intake(&mut self, _rows: &IntakeRows) -> Result<Vec<ReceiptId>, StoreError> {
        panic!("no job flow does this")
    }

    async fn receipts_by_key(&mut self, _keys: &[EventKey]) -> Result<Vec<Receipt>, StoreError> {
        panic!("no job flow does this")
    }

    async fn receipts_by_signed(
        &mut self,
        _provider: &str,
        _sources: &[Arc<str>],
        _signed: &[[u8; 32]],
    ) -> Result<Vec<Receipt>, StoreError> {
        panic!("no job flow does this")
    }

    async fn insert_payloads(&mut self, _payloads: &[PayloadRow]) -> Result<(), StoreError> {
        panic!("no job flow does this")
    }

    async fn add_redeliveries(&mut self, _rows: &[(ReceiptId, Redelivery)]) -> Result<(), StoreError> {
        panic!("no job flow does this")
    }

    async fn add_divergences(&mut self, _rows: &[DivergenceRow]) -> Result<Vec<bool>, StoreError> {
        panic!("no job flow does this")
    }

    async fn lock_jobs(&mut self, keys: &[JobKey]) -> Result<Vec<Job>, StoreError> {
        assert!(keys.is_sorted(), "locks are taken in key order");
        Ok(keys.iter().filter_map(|key| self.jobs.get(key)).cloned().collect())
    }

    async fn lock_jobs_of(&mut self, receipts: &[ReceiptId]) -> Result<Vec<Job>, StoreError> {
        Ok(self.jobs.values().filter(|job| receipts.contains(&job.key.receipt)).cloned().collect())
    }

    async fn lock_due(&mut self, due: &Due, limit: u32) -> Result<Vec<Job>, StoreError> {
        let wanted = |job: &&Job| match due {
            Due::Claimable { subscription } => job.key.subscription == *subscription && self.is_due(job),
            Due::HandOut { subscriptions } => subscriptions.contains(&job.key.subscription) && self.is_due(job),
            Due::Expired => job.leased_until.is_some_and(|until| until <= self.now),
            Due::Lost { subscription, handed_before, begun_before } => {
                let before = if job.state == JobState::Queued { handed_before } else { begun_before };
                job.key.subscription == *subscription
                    && matches!(job.state, JobState::Queued | JobState::Running)
                    && job.leased_until.is_none()
                    && job.handed_at.is_some_and(|at| at < *before)
                    && self.waiting(&job.key).is_empty()
            }
        };
        Ok(self.jobs.values().filter(wanted).take(limit as usize).cloned().collect())
    }

    async fn attempts_of(&mut self, keys: &[JobKey]) -> Result<Vec<Attempt>, StoreError> {
        Ok(keys.iter().flat_map(|key| self.attempts(key)).cloned().collect())
    }

    async fn receipts_by_id(&mut self, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError> {
        Ok(ids.iter().filter_map(|id| self.receipts.get(id)).cloned().collect())
    }

    async fn bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<Option<(String, Bytes)>>, StoreError> {
        let body = |receipt: &Receipt| {
            (!self.no_body.contains(&receipt.id)).then(|| ("application/json".to_owned(), Bytes::from_static(b"{}")))
        };
        Ok(receipts.iter().map(body).collect())
    }

    async fn have_bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<bool>, StoreError> {
        Ok(receipts.iter().map(|receipt| receipt.payload_id.is_some() && !self.no_body.contains(&receipt.id)).collect())
    }

    async fn write_jobs(&mut self, writes: &JobWrites) -> Result<Written, StoreError> {
        let mut written = Written::default();
        for job in &writes.insert {
            check(job);
            if !self.jobs.contains_key(&job.key) {
                self.jobs.insert(job.key.clone(), job.clone());
                written.inserted.push(job.key.clone());
            }
        }
        for (before, after) in &writes.update {
            check(after);
            let there = self.jobs.get_mut(&before.key).expect("an update finds its row");
            let same = (there.state, there.attempt, there.series) == (before.state, before.attempt, before.series);
            assert!(same, "an update finds its row as it was");
            let release = before.key.subscription == crate::model::job::INTAKE;
            assert!(release || is_legal(before.state, after.state), "{:?} to {:?}", before.state, after.state);
            *there = after.clone();
        }
        for attempt in &writes.attempts {
            assert!(attempt.attempt >= 1, "{attempt:?}");
            self.attempts.insert((attempt.key.clone(), attempt.attempt), attempt.clone());
        }
        for key in &writes.withdraw {
            let before = self.outbox.len();
            self.outbox.retain(|_, row| row.key != *key);
            let gone = u64::try_from(before - self.outbox.len()).expect("fits");
            if gone > 0 {
                written.withdrawn.push((key.subscription.clone(), gone));
            }
        }
        for row in &writes.outbox {
            assert!(row.shard < 32, "{row:?}");
            self.outbox.insert(row.id, row.clone());
        }
        Ok(written)
    }

    async fn add_counts(&mut self, counts: &[(String, String, i64)]) -> Result<(), StoreError> {
        for (subscription, state, n) in counts {
            let count = self.counts.entry((subscription.clone(), state.clone())).or_default();
            *count += n;
        }
        self.counts.retain(|_, n| *n != 0);
        Ok(())
    }

    async fn held_back_subscriptions(&mut self) -> Result<Vec<(String, SubscriptionState)>, StoreError> {
        Ok(self.held_back.clone())
    }

    async fn note_report(&mut self, subscription: &str) -> Result<(), StoreError> {
        self.reported.insert(subscription.to_owned());
        Ok(())
    }

    async fn has_reported(&mut self, subscription: &str) -> Result<bool, StoreError> {
        Ok(self.reported.contains(subscription))
    }

    async fn release_hold(&mut self, receipt: ReceiptId) -> Result<(), StoreError> {
        self.receipts.get_mut(&receipt).expect("a receipt").hold_reason = None;
        Ok(())
    }

    async fn audit(&mut self, actor: &str, action: &str, subject: &str, detail: &str) -> Result<(), StoreError> {
        self.audits.push((actor.to_owned(), action.to_owned(), subject.to_owned(), detail.to_owned()));
        Ok(())
    }

    async fn read_outbox(&mut self, _query: &OutboxQuery) -> Result<OutboxLook, StoreError> {
        panic!("no job flow does this")
    }

    async fn outbox_by_id(&mut self, ids: &[OutboxId]) -> Result<Vec<(OutboxId, HandOver)>, StoreError> {
        let hand_over = |row: &OutboxRow| HandOver {
            key: row.key.clone(),
            attempt: row.attempt,
            lane: row.lane,
            trigger: row.trigger,
        };
        Ok(ids.iter().filter_map(|id| self.outbox.get(id)).map(|row| (row.id, hand_over(row))).collect())
    }

    async fn delete_outbox(&mut self, ids: &[OutboxId]) -> Result<Vec<(String, u64)>, StoreError> {
        let mut gone: BTreeMap<String, u64> = BTreeMap::new();
        for id in ids {
            if let Some(row) = self.outbox.remove(id) {
                *gone.entry(row.key.subscription).or_default() += 1;
            }
        }
        Ok(gone.into_iter().collect())
    }
}
