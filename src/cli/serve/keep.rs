//! What runs beside the stages: the store's upkeep, the recorder's upkeep, and the key that some of them wait for.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Parts;
use crate::metrics;
use crate::model::subscription::SubscriptionSet;
use crate::model::token::TokenKey;
use crate::store::{Retention, Store, StoreError};

/// Between two upkeeps of the recorder; without them its histograms grow.
const RECORDER_EVERY: Duration = Duration::from_secs(5);
/// Between two upkeeps of the store.
const STORE_EVERY: Duration = Duration::from_secs(60);
/// Between two tries to reach a store that is away at the start.
const REACH_EVERY: Duration = Duration::from_secs(2);

/// The key of lease tokens; it is in the store, and there once the store has been reached.
#[derive(Clone)]
pub(super) struct Key(watch::Sender<Option<TokenKey>>);

impl Default for Key {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Key {
    /// The key, if it is there already.
    pub fn now(&self) -> Option<TokenKey> {
        self.0.borrow().clone()
    }

    /// Waits for the key; `None` when the process stops first.
    pub async fn wait(&self, stop: &CancellationToken) -> Option<TokenKey> {
        let mut seen = self.0.subscribe();
        tokio::select! {
            found = seen.wait_for(Option::is_some) => found.ok()?.clone(),
            () = stop.cancelled() => None,
        }
    }
}

/// Histograms are drained as they should be.
pub(super) fn metrics_upkeep(parts: &Parts, recorder: PrometheusHandle) {
    let stop = parts.lifecycle.stop().soft;
    parts.lifecycle.spawn("metrics", async move {
        while pause(RECORDER_EVERY, &stop).await {
            recorder.run_upkeep();
        }
    });
}

/// Reaches the store, tells it of the subscriptions, then keeps it: partitions, expiry, counters.
pub(super) fn store_upkeep(parts: &Parts) {
    let (store, subscriptions) = (Arc::clone(&parts.store), Arc::clone(&parts.subscriptions));
    let (stop, key) = (parts.lifecycle.stop().soft, parts.key.clone());
    let retention = retention(&parts.config);
    parts.lifecycle.spawn("upkeep", async move {
        while let Err(error) = reach(store.as_ref(), &subscriptions, &key).await {
            tracing::warn!(error.code = error.code(), %error, "the store cannot be reached yet");
            if !pause(REACH_EVERY, &stop).await {
                return;
            }
        }
        loop {
            match store.upkeep(retention).await {
                Ok(report) => report.partition_days_ahead.into_iter().for_each(metrics::partition_days_ahead),
                Err(error) => tracing::warn!(error.code = error.code(), %error, "the store's upkeep failed"),
            }
            if !pause(STORE_EVERY, &stop).await {
                return;
            }
        }
    });
}

async fn reach(store: &dyn Store, subscriptions: &Arc<SubscriptionSet>, key: &Key) -> Result<(), StoreError> {
    let found = store.token_key().await?;
    for name in store.sync_subscriptions(Arc::clone(subscriptions)).await? {
        tracing::warn!(subscription = name, "a subscription left the configuration; its jobs are kept, and retired");
    }
    key.0.send_replace(Some(TokenKey::new(found)));
    Ok(())
}

/// What the configuration says of keeping.
pub(super) fn retention(config: &crate::config::Config) -> Retention {
    Retention { bodies: config.retention.bodies, quarantine: quarantine(config) }
}

/// Bounds of the quarantine.
pub(super) fn quarantine(config: &crate::config::Config) -> crate::store::QuarantineBounds {
    crate::store::QuarantineBounds {
        count: config.retention.rejections_count,
        bytes: config.retention.rejections_bytes as u64,
        age: config.retention.rejections_age,
    }
}

/// False when the process stops.
async fn pause(span: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = tokio::time::sleep(span) => true,
        () = stop.cancelled() => false,
    }
}
