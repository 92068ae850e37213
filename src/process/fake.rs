//! A store whose answers a test writes down, and which remembers what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::model::id::ReceiptId;
use crate::model::job::{JobKey, JobState};
use crate::model::outcome::{OutcomeBody, OutcomeKind};
use crate::model::retry::RetryPolicy;
use crate::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use crate::model::token::TokenKey;
use crate::store::{
    ClaimRequest, ClaimedJob, DeliveryVerdict, Intake, JobStatus, Jobs, LostRule, NewDelivery, NewRejection,
    OutcomeReport, OutcomeVerdict, QuarantineBounds, ReplayRequest, ReplayVerdict, StoreError,
};

#[derive(Default)]
pub struct FakeStore {
    pub asked: Mutex<Vec<String>>,
    pub committed: Mutex<Vec<OutcomeReport>>,
    pub rejections: Mutex<Vec<NewRejection>>,
    /// Errors that the next calls of `record_outcomes` answer with.
    pub failures: Mutex<VecDeque<StoreError>>,
    /// A report with this message is refused as a row.
    pub poison: Option<&'static str>,
    pub claims: Mutex<VecDeque<Vec<ClaimedJob>>>,
    pub numbers: Mutex<VecDeque<u32>>,
    pub status: Mutex<JobStatus>,
}

impl FakeStore {
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }

    fn note(&self, what: String) {
        self.asked.lock().expect("not poisoned").push(what);
    }

    fn number(&self) -> u32 {
        self.numbers.lock().expect("not poisoned").pop_front().unwrap_or(0)
    }
}

#[async_trait]
impl Jobs for FakeStore {
    async fn record_outcomes(
        &self,
        reports: Vec<OutcomeReport>,
        _subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<OutcomeVerdict>, StoreError> {
        if let Some(error) = self.failures.lock().expect("not poisoned").pop_front() {
            return Err(error);
        }
        if self.poison.is_some() && reports.iter().any(|report| report.message.as_deref() == self.poison) {
            return Err(StoreError::Row("refused".into()));
        }
        let verdicts = reports
            .iter()
            .map(|report| match report.kind {
                OutcomeKind::Completed => OutcomeVerdict::Applied(JobState::Completed),
                OutcomeKind::Failed => OutcomeVerdict::Applied(JobState::Retrying),
                OutcomeKind::Rejected => OutcomeVerdict::NoSuchAttempt,
                OutcomeKind::Started => OutcomeVerdict::NoSuchJob,
            })
            .collect();
        self.committed.lock().expect("not poisoned").extend(reports);
        Ok(verdicts)
    }

    async fn claim_jobs(
        &self,
        claim: ClaimRequest,
        _subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ClaimedJob>, StoreError> {
        self.note(format!("claim {} {} {:?}", claim.subscription, claim.max, claim.lease));
        Ok(self.claims.lock().expect("not poisoned").pop_front().unwrap_or_default())
    }

    async fn extend_lease(&self, job: &JobKey, attempt: i32, lease: Duration) -> Result<(), StoreError> {
        self.note(format!("extend {} {attempt} {lease:?}", job.subscription));
        Ok(())
    }

    async fn hand_out_due(&self, limit: u32, _subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        self.note(format!("hand out {limit}"));
        Ok(self.number())
    }

    async fn rescue_expired(&self, limit: u32, _subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        self.note(format!("rescue {limit}"));
        Ok(self.number())
    }

    async fn republish_lost(&self, subscription: &str, rule: LostRule) -> Result<u32, StoreError> {
        self.note(format!("republish {subscription} {}", rule.times));
        Ok(1)
    }

    async fn replay(
        &self,
        _jobs: &[JobKey],
        _replay: ReplayRequest,
        _subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ReplayVerdict>, StoreError> {
        panic!("process never replays")
    }

    async fn dismiss(&self, _job: &JobKey, _actor: &str, _why: &str) -> Result<(), StoreError> {
        panic!("process never dismisses")
    }

    async fn job_status(&self) -> Result<JobStatus, StoreError> {
        Ok(self.status.lock().expect("not poisoned").clone())
    }
}

#[async_trait]
impl Intake for FakeStore {
    fn submit(
        &self,
        _delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError> {
        panic!("process never submits")
    }

    async fn record_rejections(
        &self,
        rejections: Vec<NewRejection>,
        _bounds: QuarantineBounds,
    ) -> Result<(), StoreError> {
        self.rejections.lock().expect("not poisoned").extend(rejections);
        Ok(())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

pub fn subscriptions() -> Arc<SubscriptionSet> {
    let one = |name: &str, target, completes_on| Subscription {
        name: name.to_owned(),
        filter: crate::model::filter::Filter::default(),
        target,
        retry: RetryPolicy::preset("standard").expect("a preset"),
        time_limit: None,
        completes_on,
        rearm: true,
    };
    Arc::new(SubscriptionSet::new(vec![
        one("billing", Target::Amqp, CompletesOn::Report),
        one("badges", Target::Pull, CompletesOn::Report),
        one("archive", Target::Amqp, CompletesOn::Confirm),
    ]))
}

pub fn token_key() -> TokenKey {
    TokenKey::new([3; 32])
}

pub fn job(n: u128) -> JobKey {
    JobKey { receipt: ReceiptId(uuid::Uuid::from_u128(n)), subscription: "billing".to_owned() }
}

/// A good report as JSON.
pub fn report(job: &JobKey, attempt: i32, outcome: &str, message: &str) -> Vec<u8> {
    let body = OutcomeBody {
        v: 1,
        receipt: job.receipt.to_string(),
        subscription: job.subscription.clone(),
        attempt: i64::from(attempt),
        token: token_key().token(job, attempt),
        outcome: outcome.to_owned(),
        reason: None,
        message: Some(message.to_owned()),
        retry_after_s: None,
        already: None,
    };
    serde_json::to_vec(&body).expect("JSON")
}
