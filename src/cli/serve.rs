//! `makbuz serve`: the composition root. Each stage is put together in a file of its own under `serve/`; here is their
//! order. A store or a broker that is away does not keep the program from starting: it says so, and tries again.

pub(crate) mod broker;
mod edge;
pub(crate) mod embedded;
mod keep;
mod process;
mod pull;
mod welcome;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

use super::open;
use super::{Context, Found};
use crate::admin::{self, AccessToken, AccessTokens, Admin, ListenConfig};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, LogFormat, StoreUrl};
use crate::lifecycle::Lifecycle;
use crate::metrics;
use crate::model::access::Caller;
use crate::model::subscription::SubscriptionSet;
use crate::random::{Random, SystemRandom};
use crate::store::Store;
use crate::telemetry::{self, TelemetryConfig};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// What this process does; others may do the rest on the same PostgreSQL
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Role::Edge, Role::Relay, Role::Process, Role::Admin])]
    roles: Vec<Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Takes deliveries
    Edge,
    /// Empties the outbox into the broker
    Relay,
    /// Hands out due jobs, takes outcomes
    Process,
    /// The operators' listener
    Admin,
}

/// What all stages share.
struct Parts {
    config: Config,
    roles: Vec<Role>,
    store: Arc<dyn Store>,
    subscriptions: Arc<SubscriptionSet>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    /// The key of lease tokens, as soon as the store has been reached.
    key: keep::Key,
    lifecycle: Lifecycle,
}

impl Parts {
    fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

pub(crate) async fn run(context: &Context, args: ServeArgs) -> anyhow::Result<ExitCode> {
    let found = match context.config_file() {
        Some(_) => context.config()?,
        None => Found::Embedded(embedded::prepare(&context.environment, &SystemRandom::new())?),
    };
    let embedded = matches!(found, Found::Embedded(_));
    let config = found.config();
    start_logging(&config)?;
    // First of all: whichever library makes a TLS connection finds this one provider.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        bail!("another TLS provider is installed in this process");
    }
    let metrics = metrics::install().context("the metrics recorder")?;
    refuse_shared_sqlite(&config, &args.roles)?;
    let parts = assemble(config, args.roles).await?;
    metrics::start_process();
    keep::metrics_upkeep(&parts, metrics.clone());
    keep::store_upkeep(&parts);
    let broker = broker::start(&parts);
    let pull = process::start(&parts, broker.as_ref());
    let edge = edge::start(&parts).await?;
    let admin = start_admin(&parts, metrics, broker.as_ref(), pull).await?;
    // What is still held of it now is in the hands of stages.
    drop(broker);
    welcome::log(edge, admin, &parts.config);
    if let (true, Some(edge), Some(admin)) = (embedded, edge, admin) {
        super::output::say(welcome::embedded(edge, admin));
    }
    let store = Arc::clone(&parts.store);
    let code = parts.lifecycle.run().await?;
    // Last: what is queued is committed, and nothing is accepted afterwards.
    store.close().await;
    tracing::info!("stopped: everything that was answered 200 is committed");
    Ok(code)
}

fn start_logging(config: &Config) -> anyhow::Result<()> {
    let format = match config.log.format {
        LogFormat::Auto => telemetry::LogFormat::Auto,
        LogFormat::Text => telemetry::LogFormat::Human,
        LogFormat::Json => telemetry::LogFormat::Json,
    };
    telemetry::start(&TelemetryConfig { format, filter: config.log.level.clone() })?;
    for warning in &config.warnings {
        tracing::warn!(place = warning.within(&config.file), "configuration");
    }
    Ok(())
}

/// One process holds a SQLite file, so that one has to do everything.
fn refuse_shared_sqlite(config: &Config, roles: &[Role]) -> anyhow::Result<()> {
    let all = [Role::Edge, Role::Relay, Role::Process, Role::Admin].iter().all(|role| roles.contains(role));
    if matches!(config.store.url, StoreUrl::Sqlite(_)) && !all {
        bail!("on SQLite one process has all roles: leave --roles out, or use PostgreSQL");
    }
    Ok(())
}

async fn assemble(config: Config, roles: Vec<Role>) -> anyhow::Result<Parts> {
    let random: Arc<dyn Random> = Arc::new(SystemRandom::new());
    let store = open::store(&config, Arc::clone(&random)).await?;
    let subscriptions = open::subscriptions(&config);
    Ok(Parts {
        roles,
        store,
        subscriptions,
        clock: Arc::new(SystemClock),
        random,
        key: keep::Key::default(),
        lifecycle: Lifecycle::new(config.edge.stop_max),
        config,
    })
}

async fn start_admin(
    parts: &Parts,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    broker: Option<&broker::Started>,
    pull: Option<Arc<dyn admin::PullApi>>,
) -> anyhow::Result<Option<SocketAddr>> {
    if !parts.has(Role::Admin) {
        return Ok(None);
    }
    let config = &parts.config;
    let admin = Admin {
        pull,
        broker: broker.map(broker::Started::look),
        ..open::admin_over(config, Arc::clone(&parts.store), Arc::new(tokens(config)), metrics)
    };
    let listen = listen_config(config);
    let stop = parts.lifecycle.stop();
    if let Some(address) = config.consume.listen {
        let (listener, _) = bind(address, "[consume] listen").await?;
        parts.lifecycle.spawn("consume", admin::serve(listener, admin::consumers(admin.clone()), listen, stop.clone()));
    }
    let (listener, address) = bind(config.admin.listen, "[admin] listen").await?;
    let router = admin::operators(admin, config.consume.listen.is_none());
    parts.lifecycle.spawn("admin", admin::serve(listener, router, listen, stop));
    Ok(Some(address))
}

fn tokens(config: &Config) -> AccessTokens {
    AccessTokens::new(config.tokens.iter().map(|token| AccessToken {
        caller: Caller {
            name: token.name.clone(),
            role: token.role,
            subscriptions: token.subscriptions.iter().map(|(name, _)| name.clone()).collect(),
        },
        value: token.value.share(),
    }))
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("{key} = {address}"))?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn listen_config(config: &Config) -> ListenConfig {
    ListenConfig {
        connections_max: config.admin.connections_max as usize,
        idle_max: config.admin.idle_max,
        header_bytes_max: config.admin.header_max,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::config::Environment;

    const TEXT: &str = "[admin]
connections_max = 11
idle_max = \"12s\"
header_max = \"13KiB\"
body_max = \"14KiB\"
body_time_max = \"15s\"
requests_max = 16

[edge]
client_share_percent = 17
";

    #[test]
    fn the_limits_of_the_configuration_reach_the_listeners() {
        let read = |text| Config::parse(text, "makbuz.toml", Path::new(""), &Environment::default()).unwrap();
        let (none, some) = (read(""), read(TEXT));
        let listen = listen_config(&some);
        assert_eq!(
            (listen.connections_max, listen.idle_max, listen.header_bytes_max),
            (11, Duration::from_secs(12), 13 << 10)
        );
        let limits = open::limits(&some);
        assert_eq!(
            (limits.body_bytes_max, limits.body_time_max, limits.requests_max),
            (14 << 10, Duration::from_secs(15), 16)
        );
        assert_eq!(edge::config(&some).unwrap().client_share_percent, 17);
        // Without a file the defaults are the ones that each part says of itself.
        assert_eq!(format!("{:?}", listen_config(&none)), format!("{:?}", ListenConfig::default()));
        assert_eq!(format!("{:?}", open::limits(&none)), format!("{:?}", admin::Limits::default()));
        assert_eq!(format!("{:?}", edge::config(&none).unwrap()), format!("{:?}", crate::edge::EdgeConfig::default()));
    }
}
