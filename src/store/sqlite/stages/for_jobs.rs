//! Job flows, each in one transaction of the writer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::model::job::JobKey;
use crate::model::subscription::SubscriptionSet;
use crate::store::sqlite::{SqliteStore, status};
use crate::store::{
    ClaimRequest, ClaimedJob, JobStatus, Jobs, LostRule, OutcomeReport, OutcomeVerdict, ReplayRequest, ReplayVerdict,
    StoreError, job_flow,
};

#[async_trait]
impl Jobs for SqliteStore {
    async fn record_outcomes(
        &self,
        reports: Vec<OutcomeReport>,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<OutcomeVerdict>, StoreError> {
        let random = self.shared.random.clone();
        self.write(move |tx| {
            Box::pin(async move { job_flow::record_outcomes(tx, &reports, &subscriptions, &*random).await })
        })
        .await
    }

    async fn claim_jobs(
        &self,
        claim: ClaimRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ClaimedJob>, StoreError> {
        let random = self.shared.random.clone();
        self.write(move |tx| Box::pin(async move { job_flow::claim_jobs(tx, &claim, &subscriptions, &*random).await }))
            .await
    }

    async fn extend_lease(&self, job: &JobKey, attempt: i32, lease: Duration) -> Result<(), StoreError> {
        let job = job.clone();
        self.write(move |tx| Box::pin(async move { job_flow::extend_lease(tx, &job, attempt, lease).await })).await
    }

    async fn hand_out_due(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        let random = self.shared.random.clone();
        self.write(move |tx| Box::pin(async move { job_flow::hand_out_due(tx, limit, &subscriptions, &*random).await }))
            .await
    }

    async fn rescue_expired(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        let random = self.shared.random.clone();
        self.write(move |tx| {
            Box::pin(async move { job_flow::rescue_expired(tx, limit, &subscriptions, &*random).await })
        })
        .await
    }

    async fn republish_lost(&self, subscription: &str, rule: LostRule) -> Result<u32, StoreError> {
        let (subscription, random) = (subscription.to_owned(), self.shared.random.clone());
        self.write(move |tx| Box::pin(async move { job_flow::republish_lost(tx, &subscription, rule, &*random).await }))
            .await
    }

    async fn replay(
        &self,
        jobs: &[JobKey],
        replay: ReplayRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ReplayVerdict>, StoreError> {
        let (jobs, random) = (jobs.to_vec(), self.shared.random.clone());
        self.write(move |tx| {
            Box::pin(async move { job_flow::replay(tx, &jobs, &replay, &subscriptions, &*random).await })
        })
        .await
    }

    async fn dismiss(&self, job: &JobKey, actor: &str, why: &str) -> Result<(), StoreError> {
        let (job, actor, why) = (job.clone(), actor.to_owned(), why.to_owned());
        self.write(move |tx| Box::pin(async move { job_flow::dismiss(tx, &job, &actor, &why).await })).await
    }

    async fn job_status(&self) -> Result<JobStatus, StoreError> {
        let now = self.shared.clock.now();
        self.read(move |conn| Box::pin(async move { status::jobs(conn, now).await })).await
    }
}
