//! `/metrics`, and the gauges that are read from the store before it answers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::Admin;
use crate::metrics;
use crate::model::job::JobState;
use crate::store::{Jobs, Outbox, StoreError};

/// However often one scrapes, the store is asked no more often than this.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// A scrape waits no longer for the store; it then shows what was last known.
const REFRESH_MAX: Duration = Duration::from_secs(2);

/// When the gauges were last read from the store.
#[derive(Default)]
pub struct Gauges(Mutex<Option<Instant>>);

/// Prometheus text.
pub(super) async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let refresher = admin.clone();
    // In a task of its own: a scraper that leaves must not drop a database call halfway.
    let refresh = tokio::spawn(async move { refresher.gauges.refresh(&refresher).await });
    if timeout(REFRESH_MAX, refresh).await.is_err() {
        tracing::warn!("the store was too slow for a scrape; its gauges are old");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.metrics.render())
}

impl Gauges {
    async fn refresh(&self, admin: &Admin) {
        // Who finds it being refreshed has nothing to add.
        let Ok(mut last) = self.0.try_lock() else { return };
        if last.is_some_and(|at| Instant::now().duration_since(at) < REFRESH_EVERY) {
            return;
        }
        match read(&admin.outbox, &admin.jobs, admin).await {
            Ok(()) => *last = Some(Instant::now()),
            Err(error) => tracing::warn!(error.code = error.code(), "the gauges could not be read from the store"),
        }
    }
}

async fn read(outbox: &Arc<dyn Outbox>, jobs: &Arc<dyn Jobs>, admin: &Admin) -> Result<(), StoreError> {
    let status = outbox.outbox_status().await?;
    metrics::outbox(status.depth, status.oldest.unwrap_or_default());
    let status = jobs.job_status().await?;
    let mut names: Vec<&str> = admin.subscriptions.iter().map(|subscription| subscription.name.as_str()).collect();
    names.extend(status.counts.keys().map(|(name, _)| name.as_str()));
    names.sort_unstable();
    names.dedup();
    for name in names {
        for state in JobState::ALL {
            // Zero for what has no row: a state that empties must not keep its last value.
            metrics::jobs(name, state.as_str(), status.counts.get(&(name.to_owned(), state)).copied().unwrap_or(0));
        }
        let age = |ages: &std::collections::BTreeMap<String, Duration>| ages.get(name).copied().unwrap_or_default();
        let repeated = status.repeated_failures.get(name).copied().unwrap_or(0);
        metrics::job_ages(name, age(&status.oldest_unprocessed), age(&status.oldest_review), repeated);
    }
    Ok(())
}
