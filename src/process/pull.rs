//! Work for consumers that ask over HTTP: claim, extend, outcome. Plain functions; routes, roles and bodies' limits are the
//! admin listener's.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pull_body::{ClaimAnswer, ClaimBody, ClaimedBody, ExtendAnswer, ExtendBody, OutcomeAnswer};
use super::reports::{ReportReader, account, refused};
use crate::clock::Clock;
use crate::metrics;
use crate::model::job::JobKey;
use crate::model::outcome::OutcomeError;
use crate::model::subscription::{Subscription, SubscriptionSet, Target};
use crate::model::token::TokenKey;
use crate::store::{ClaimRequest, ClaimedJob, Jobs, OutcomeVerdict, StoreError};

/// Settings of the pull functions.
#[derive(Debug, Clone, Copy)]
pub struct PullConfig {
    /// Most jobs in one claim. Default 100.
    pub claim_max: u32,
    /// Longest wait of one claim. Default 30 s.
    pub wait_max: Duration,
    /// Between two looks of a claim that waits. Not woken by arrivals: under load each would wake all. Default 500 ms.
    pub look_every: Duration,
    /// Claims that may wait at once; past it a claim answers at once with what is there. Each holds a connection of a
    /// listener, so this is to be well below the number of those. Default 128.
    pub waiting_max: usize,
    /// Lease of subscriptions without a time limit. Default 5 min.
    pub lease_default: Duration,
    /// Longest lease that an extension may ask for. Default 24 h.
    pub lease_max: Duration,
}

impl Default for PullConfig {
    fn default() -> Self {
        Self {
            claim_max: 100,
            wait_max: Duration::from_secs(30),
            look_every: Duration::from_millis(500),
            waiting_max: 128,
            lease_default: Duration::from_secs(300),
            lease_max: Duration::from_secs(86_400),
        }
    }
}

/// Why a consumer gets no answer. `code()` is stable; `status()` is what HTTP says.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    #[error("no such subscription")]
    UnknownSubscription,
    #[error("the subscription is not claimed from")]
    NotPull,
    /// A number in the request is out of its range.
    #[error("`{0}` is out of range")]
    Range(&'static str),
    #[error(transparent)]
    Report(#[from] OutcomeError),
    /// The path speaks of another job than the body.
    #[error("the path and the body name different jobs")]
    PathMismatch,
    #[error("no such job")]
    NoSuchJob,
    #[error("no such attempt")]
    NoSuchAttempt,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PullError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownSubscription => "subscription_unknown",
            Self::NotPull => "subscription_not_pull",
            Self::Range(_) => "out_of_range",
            Self::Report(error) => error.code(),
            Self::PathMismatch => "path_mismatch",
            Self::NoSuchJob => "no_such_job",
            Self::NoSuchAttempt => "no_such_attempt",
            Self::Store(error) => error.code(),
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownSubscription | Self::NoSuchJob | Self::Store(StoreError::NotFound) => 404,
            Self::NotPull | Self::NoSuchAttempt | Self::Store(StoreError::Refused(_)) => 409,
            Self::Range(_) | Self::PathMismatch => 400,
            Self::Report(OutcomeError::Token) => 403,
            Self::Report(OutcomeError::TooLarge) => 413,
            Self::Report(_) => 400,
            Self::Store(StoreError::BodyGone) => 410,
            Self::Store(_) => 503,
        }
    }
}

/// The functions, and who waits in them.
pub struct Pull {
    config: PullConfig,
    jobs: Arc<dyn Jobs>,
    subscriptions: Arc<SubscriptionSet>,
    key: TokenKey,
    reader: ReportReader,
    clock: Arc<dyn Clock>,
    waiting: Semaphore,
    stop: CancellationToken,
}

impl Pull {
    /// Claims that wait answer at once when `stop` is cancelled.
    pub fn new(
        config: PullConfig,
        jobs: Arc<dyn Jobs>,
        subscriptions: Arc<SubscriptionSet>,
        key: TokenKey,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            config,
            jobs,
            subscriptions,
            reader: ReportReader::new(key.clone()),
            key,
            clock,
            waiting: Semaphore::new(config.waiting_max),
            stop,
        }
    }

    /// Leases due jobs, oldest first; waits for the first one as long as it is asked to.
    pub async fn claim(&self, name: &str, body: &ClaimBody, consumer: &str) -> Result<ClaimAnswer, PullError> {
        let subscription = self.subscription(name)?;
        let max = body.max.unwrap_or(1);
        if !(1..=self.config.claim_max).contains(&max) {
            return Err(PullError::Range("max"));
        }
        let wait = Duration::from_secs(u64::from(body.wait_s.unwrap_or(0)));
        if wait > self.config.wait_max {
            return Err(PullError::Range("wait_s"));
        }
        let request = ClaimRequest {
            subscription: name.to_owned(),
            max,
            lease: self.lease(subscription),
            consumer: consumer.to_owned(),
        };
        let until = Instant::now() + wait;
        // Who does not want to wait takes no seat from those who do.
        let seat = if wait.is_zero() { None } else { self.waiting.try_acquire().ok() };
        loop {
            let claimed = self.claim_once(request.clone()).await?;
            let left = until.saturating_duration_since(Instant::now());
            if !claimed.is_empty() || left.is_zero() || seat.is_none() || self.stop.is_cancelled() {
                let jobs = claimed.into_iter().map(|claimed| self.body(claimed, subscription)).collect();
                return Ok(ClaimAnswer { jobs });
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(self.config.look_every)) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Moves the end of a running attempt's lease.
    pub async fn extend(&self, job: &JobKey, body: &ExtendBody) -> Result<ExtendAnswer, PullError> {
        if !self.key.is_token(&body.token, job, body.attempt) {
            return Err(OutcomeError::Token.into());
        }
        let lease = match body.lease_s {
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None => {
                self.subscriptions.find(&job.subscription).map_or(self.config.lease_default, |found| self.lease(found))
            }
        };
        if lease.is_zero() || lease > self.config.lease_max {
            return Err(PullError::Range("lease_s"));
        }
        let (jobs, job, attempt) = (Arc::clone(&self.jobs), job.clone(), body.attempt);
        detached(async move { jobs.extend_lease(&job, attempt, lease).await }).await?;
        Ok(ExtendAnswer { lease_s: lease.as_secs() })
    }

    /// Takes a report; `body` is the outcome contract's JSON.
    pub async fn outcome(&self, job: &JobKey, body: &[u8], consumer: &str) -> Result<OutcomeAnswer, PullError> {
        let report = match self.reader.read(body, consumer) {
            Ok(report) => report,
            Err(error) => {
                metrics::bad_report(error.code());
                tracing::info!(error.code = error.code(), consumer, "a report was refused");
                return Err(error.into());
            }
        };
        if report.key != *job {
            refused(&report, "path_mismatch");
            return Err(PullError::PathMismatch);
        }
        let (jobs, subscriptions, reports) =
            (Arc::clone(&self.jobs), Arc::clone(&self.subscriptions), vec![report.clone()]);
        let verdicts = detached(async move { jobs.record_outcomes(reports, subscriptions).await }).await?;
        let verdict = verdicts.first().copied().unwrap_or(OutcomeVerdict::NoSuchJob);
        account(&report, verdict, self.clock.as_ref());
        let (verdict, state) = match verdict {
            OutcomeVerdict::Applied(state) => ("applied", Some(state.as_str())),
            OutcomeVerdict::Recorded => ("recorded", None),
            OutcomeVerdict::Already => ("already", None),
            OutcomeVerdict::NoSuchJob => return Err(PullError::NoSuchJob),
            OutcomeVerdict::NoSuchAttempt => return Err(PullError::NoSuchAttempt),
        };
        Ok(OutcomeAnswer { verdict, state })
    }

    fn subscription(&self, name: &str) -> Result<&Subscription, PullError> {
        let found = self.subscriptions.find(name).ok_or(PullError::UnknownSubscription)?;
        if found.target == Target::Pull { Ok(found) } else { Err(PullError::NotPull) }
    }

    fn lease(&self, subscription: &Subscription) -> Duration {
        subscription.time_limit.unwrap_or(self.config.lease_default).min(self.config.lease_max)
    }

    async fn claim_once(&self, request: ClaimRequest) -> Result<Vec<ClaimedJob>, PullError> {
        let (jobs, subscriptions) = (Arc::clone(&self.jobs), Arc::clone(&self.subscriptions));
        detached(async move { jobs.claim_jobs(request, subscriptions).await }).await
    }

    fn body(&self, claimed: ClaimedJob, subscription: &Subscription) -> ClaimedBody {
        let token = self.key.token(&claimed.job.key, claimed.job.attempt);
        ClaimedBody::new(claimed, subscription, token)
    }
}

/// Runs a store's work in a task of its own: the server drops a handler when its client leaves, and a statement must not be
/// dropped with it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, PullError> {
    match tokio::spawn(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(StoreError::Unavailable(error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests;
