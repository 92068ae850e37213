//! Gauges of jobs, from the store's counters: the same cost at any depth.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::model::job::{INTAKE, JobState};
use crate::model::outcome::OutcomeError;
use crate::model::subscription::SubscriptionSet;
use crate::store::{JobStatus, Jobs, StoreError};

/// Codes of refused reports beside those of [`OutcomeError`].
const MORE_CODES: [&str; 4] = ["no_such_job", "no_such_attempt", "row_refused", "path_mismatch"];

/// Starts every label value of processing at 0.
pub fn start_metrics(subscriptions: &SubscriptionSet) {
    for subscription in subscriptions.iter() {
        metrics::start_subscription(&subscription.name);
    }
    show(&JobStatus::default(), subscriptions.iter().map(|subscription| subscription.name.as_str()).chain([INTAKE]));
    let codes: Vec<&'static str> = OutcomeError::ALL.map(OutcomeError::code).into_iter().chain(MORE_CODES).collect();
    metrics::start_bad_reports(&codes);
}

/// Keeps the gauges fresh.
pub struct Gauges {
    jobs: Arc<dyn Jobs>,
    /// Names that were shown: one that has no jobs any more goes back to 0 and does not stand still.
    shown: BTreeSet<String>,
}

impl Gauges {
    /// How often `run` steps.
    pub const EVERY: Duration = Duration::from_secs(5);

    pub fn new(jobs: Arc<dyn Jobs>, subscriptions: &SubscriptionSet) -> Self {
        let names = subscriptions.iter().map(|subscription| subscription.name.clone());
        Self { jobs, shown: names.chain([INTAKE.to_owned()]).collect() }
    }

    /// Reads the store's counters and sets the gauges. Not to be dropped half way.
    pub async fn step(&mut self) -> Result<(), StoreError> {
        let status = self.jobs.job_status().await?;
        self.shown.extend(status.counts.keys().map(|(subscription, _)| subscription.clone()));
        show(&status, self.shown.iter().map(String::as_str));
        Ok(())
    }

    /// Steps until asked to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.step().await {
                tracing::warn!(error.code = error.code(), %error, "the gauges of jobs stand still");
            }
            tokio::select! {
                () = tokio::time::sleep(Self::EVERY) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

fn show<'a>(status: &JobStatus, subscriptions: impl Iterator<Item = &'a str>) {
    for name in subscriptions {
        for state in JobState::ALL {
            let n = status.counts.get(&(name.to_owned(), state)).copied().unwrap_or(0);
            metrics::jobs(name, state.as_str(), n);
        }
        let unprocessed = status.oldest_unprocessed.get(name).copied().unwrap_or_default();
        let review = status.oldest_review.get(name).copied().unwrap_or_default();
        let repeated = status.repeated_failures.get(name).copied().unwrap_or(0);
        metrics::job_ages(name, unprocessed, review, repeated);
    }
}
