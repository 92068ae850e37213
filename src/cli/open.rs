//! The store of a configuration, opened; and the operators' API over it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin::{AccessTokens, Admin, Gauges, Limits};
use crate::clock::SystemClock;
use crate::config::{Config, Secret, StoreUrl};
use crate::metrics;
use crate::model::subscription::SubscriptionSet;
use crate::random::{Random, SystemRandom};
use crate::store::committer::CommitterConfig;
use crate::store::postgres::{self, PostgresConfig, PostgresStore, PostgresUrl};
use crate::store::sqlite::{SqliteConfig, SqliteStore};
use crate::store::{Store, StoreError};

/// Opens the store for `serve`: a new SQLite file is made and brought up to date, a database that is away is waited for.
pub(crate) async fn store(config: &Config, random: Arc<dyn Random>) -> anyhow::Result<Arc<dyn Store>> {
    match &config.store.url {
        StoreUrl::Sqlite(path) => {
            let sqlite = sqlite(config, path);
            if config.store.migrate_at_start {
                return Ok(Arc::new(SqliteStore::open(sqlite, Arc::new(SystemClock), random).await?));
            }
            bail!(
                "[store] migrate = \"manual\" is for PostgreSQL: a SQLite file is brought up to date when it is opened"
            );
        }
        StoreUrl::Postgres(url) => {
            let url = postgres_url(url)?;
            if config.store.migrate_at_start
                && let Err(error) = postgres::migrate(&url, random.as_ref()).await
            {
                // Away at the start is no reason not to start; the wrong schema is.
                match error {
                    StoreError::Schema(_) => return Err(error.into()),
                    _ => {
                        tracing::warn!(error.code = error.code(), %error, "the schema could not be brought up to date")
                    }
                }
            }
            let store = &config.store;
            let postgres = PostgresConfig {
                writers: store.writers,
                commands_max: store.connections,
                committer: committer(config),
                ..PostgresConfig::at(url)
            };
            let store: Arc<dyn Store> = PostgresStore::open(postgres, random);
            Ok(store)
        }
    }
}

/// The settings of a SQLite file.
pub(crate) fn sqlite(config: &Config, path: &Path) -> SqliteConfig {
    SqliteConfig { committer: committer(config), ..SqliteConfig::at(path) }
}

/// The address of a PostgreSQL database; an error does not repeat it.
pub(crate) fn postgres_url(url: &Secret) -> anyhow::Result<PostgresUrl> {
    let text = std::str::from_utf8(url.expose()).with_context(|| format!("{url} is not UTF-8"))?;
    Ok(text.parse()?)
}

fn committer(config: &Config) -> CommitterConfig {
    CommitterConfig {
        queue_events_max: config.store.queue_events_max,
        queue_bytes_max: config.store.queue_bytes_max,
        batch_events_max: config.store.batch_events_max,
        batch_bytes_max: config.store.batch_bytes_max,
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
    let all = config.subscriptions.iter().map(|entry| entry.subscription.clone()).collect();
    let broadcast = config.amqp.as_ref().is_some_and(|amqp| amqp.broadcast);
    Arc::new(SubscriptionSet::new(all).with_broadcast(broadcast))
}

/// The operators' API over a store, with neither broker nor claims.
pub(crate) fn admin_over(
    config: &Config,
    store: Arc<dyn Store>,
    tokens: Arc<AccessTokens>,
    metrics: PrometheusHandle,
) -> Admin {
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
        limits: limits(config),
    }
}

/// What `[admin]` says of requests.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits {
        body_bytes_max: config.admin.body_max,
        requests_max: config.admin.requests_max as usize,
        body_time_max: config.admin.body_time_max,
    }
}

/// The same for a command, which nobody scrapes.
pub(crate) async fn admin(config: &Config, store: Arc<dyn Store>, tokens: Arc<AccessTokens>) -> anyhow::Result<Admin> {
    let recorder = metrics::builder().context("the metrics recorder")?.build_recorder();
    Ok(admin_over(config, store, tokens, recorder.handle()))
}
