//! The store of a configuration, opened; and the operators' API over it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin::{AccessTokens, Admin, Gauges, Limits};
use crate::config::{Config, StoreUrl};
use crate::metrics;
use crate::model::subscription::SubscriptionSet;
use crate::random::{Random, SystemRandom};
use crate::store::Store;

/// Opens the store for `serve`: a new SQLite file is made and brought up to date, a database that is away is waited for.
pub(crate) async fn store(config: &Config, random: Arc<dyn Random>) -> anyhow::Result<Arc<dyn Store>> {
    let _ = random;
    match &config.store.url {
        StoreUrl::Sqlite(_) => bail!("the SQLite store is merged in later"),
        StoreUrl::Postgres(_) => bail!("the PostgreSQL store is merged in later"),
    }
}

/// Opens a store that is there already, for commands that look into it.
pub(crate) async fn existing_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    if let StoreUrl::Sqlite(path) = &config.store.url
        && !path.exists()
    {
        bail!("there is no store at {}: `makbuz serve` makes it", path.display());
    }
    store(config, Arc::new(SystemRandom::new())).await
}

/// The configured subscriptions.
pub(crate) fn subscriptions(config: &Config) -> Arc<SubscriptionSet> {
    Arc::new(SubscriptionSet::new(config.subscriptions.iter().map(|entry| entry.subscription.clone()).collect()))
}

/// The operators' API over a store, with neither broker nor claims.
pub(crate) fn admin_over(config: &Config, store: Arc<dyn Store>, tokens: Arc<AccessTokens>, metrics: PrometheusHandle) -> Admin {
    Admin {
        tokens,
        intake: store.clone(),
        outbox: store.clone(),
        jobs: store.clone(),
        archive: store,
        subscriptions: subscriptions(config),
        pull: None,
        broker: None,
        metrics,
        gauges: Arc::new(Gauges::default()),
        limits: Limits { body_bytes_max: config.admin.body_max, ..Limits::default() },
    }
}

/// The same for a command, which nobody scrapes.
pub(crate) async fn admin(config: &Config, store: Arc<dyn Store>, tokens: Arc<AccessTokens>) -> anyhow::Result<Admin> {
    let recorder = metrics::builder().context("the metrics recorder")?.build_recorder();
    Ok(admin_over(config, store, tokens, recorder.handle()))
}
