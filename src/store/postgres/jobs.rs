//! What process and operators ask of the store: each flow in one transaction, run again where the database asks for that.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{PostgresStore, gauges};
use crate::model::job::JobKey;
use crate::model::subscription::SubscriptionSet;
use crate::store::job_flow;
use crate::store::{
    ClaimRequest, ClaimedJob, JobStatus, Jobs, LostRule, OutcomeReport, OutcomeVerdict, ReplayRequest, ReplayVerdict,
    StoreError,
};

/// Runs a job flow in a command. Each named value is shared with the task, which may run the flow more than once.
macro_rules! flow {
    ($store:expr, $name:literal, [$($value:ident),*], |$tx:ident, $random:ident| $call:expr) => {{
        $(let $value = Arc::new($value);)*
        let random = $store.shared.random.clone();
        $store.commands.run($name, move |$tx| {
            $(let $value = $value.clone();)*
            let random = random.clone();
            Box::pin(async move {
                let $random = &*random;
                $call.await
            })
        }).await
    }};
}
pub(super) use flow;

#[async_trait]
impl Jobs for PostgresStore {
    async fn record_outcomes(
        &self,
        reports: Vec<OutcomeReport>,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<OutcomeVerdict>, StoreError> {
        flow!(self, "record_outcomes", [reports, subscriptions], |tx, random| {
            job_flow::record_outcomes(tx, &reports, &subscriptions, random)
        })
    }

    async fn claim_jobs(
        &self,
        claim: ClaimRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ClaimedJob>, StoreError> {
        flow!(self, "claim_jobs", [claim, subscriptions], |tx, random| job_flow::claim_jobs(
            tx,
            &claim,
            &subscriptions,
            random
        ))
    }

    async fn extend_lease(&self, job: &JobKey, attempt: i32, lease: Duration) -> Result<(), StoreError> {
        let job = job.clone();
        flow!(self, "extend_lease", [job], |tx, _random| job_flow::extend_lease(tx, &job, attempt, lease))
    }

    async fn hand_out_due(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        flow!(self, "hand_out_due", [subscriptions], |tx, random| job_flow::hand_out_due(
            tx,
            limit,
            &subscriptions,
            random
        ))
    }

    async fn rescue_expired(&self, limit: u32, subscriptions: Arc<SubscriptionSet>) -> Result<u32, StoreError> {
        flow!(self, "rescue_expired", [subscriptions], |tx, random| job_flow::rescue_expired(
            tx,
            limit,
            &subscriptions,
            random
        ))
    }

    async fn republish_lost(&self, subscription: &str, rule: LostRule) -> Result<u32, StoreError> {
        let subscription = subscription.to_owned();
        flow!(self, "republish_lost", [subscription], |tx, random| {
            job_flow::republish_lost(tx, &subscription, rule, random)
        })
    }

    async fn replay(
        &self,
        jobs: &[JobKey],
        replay: ReplayRequest,
        subscriptions: Arc<SubscriptionSet>,
    ) -> Result<Vec<ReplayVerdict>, StoreError> {
        let jobs = jobs.to_vec();
        flow!(self, "replay", [jobs, replay, subscriptions], |tx, random| {
            job_flow::replay(tx, &jobs, &replay, &subscriptions, random)
        })
    }

    async fn dismiss(&self, job: &JobKey, actor: &str, why: &str) -> Result<(), StoreError> {
        let (job, actor, why) = (job.clone(), actor.to_owned(), why.to_owned());
        flow!(self, "dismiss", [job, actor, why], |tx, _random| job_flow::dismiss(tx, &job, &actor, &why))
    }

    async fn job_status(&self) -> Result<JobStatus, StoreError> {
        gauges::job_status(self).await
    }
}
