//! The edge: from a provider's connection to a committed receipt and the answer. Its own accept loop over hyper's
//! HTTP/1 connection, because only there first-byte, header and body limits can be set; no HTTP/2, and TLS is the
//! proxy's until the door is built (`listen::serve_connection` takes any stream for that day).

mod body;
mod browser;
mod config;
mod ending;
mod exchange;
mod headers;
mod listen;
mod observe;
mod peer;
mod quarantine;
mod receive;
mod reply;
mod route;
mod shares;
mod stack;
mod ticket;
mod unknown;
mod wire;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::clock::Clock;
use crate::lifecycle::Stop;
use crate::model::subscription::SubscriptionSet;
use crate::provider::Inlet;
use crate::random::Random;
use crate::store::Intake;

pub use browser::Redirects;
pub use config::EdgeConfig;
pub use observe::REJECTION_CODES;
pub use peer::{ForwardedHeader, Network, NetworkError, TrustedProxies};
pub use unknown::UnknownPath;

/// One configured inlet.
pub struct EdgeSource {
    pub name: Arc<str>,
    /// Name of the provider's definition.
    pub provider: Arc<str>,
    pub inlet: Arc<Inlet>,
    /// See [`crate::store::NewDelivery::guard_sources`].
    pub guard_sources: Arc<[Arc<str>]>,
    /// Other names under `/in/`, counted by name.
    pub aliases: Vec<Arc<str>>,
    /// Exact extra paths, to take over existing endpoints.
    pub paths: Vec<String>,
    pub account_in_path: bool,
    /// Overrides the larger of [`EdgeConfig::body_max`] and the definition's own.
    pub body_max: Option<u64>,
    /// The public URL for URL-signed schemes, without a query; else [`EdgeConfig::public_url`] and the path.
    pub url: Option<String>,
    /// For definitions whose form a browser carries.
    pub redirects: Option<Redirects>,
}

impl EdgeSource {
    /// Where browsers go; only definitions that say so are carried by one.
    fn browser(&self) -> Option<&Redirects> {
        self.redirects.as_ref().filter(|_| self.inlet.carrier_browser())
    }
}

/// What one request is received under; replaced as a whole by a reload.
struct Setup {
    routes: route::Routes,
    subscriptions: Arc<SubscriptionSet>,
}

/// The receiver itself. Cheap to share; all requests of a process go through one.
pub struct Edge {
    config: EdgeConfig,
    setup: ArcSwap<Setup>,
    intake: Arc<dyn Intake>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    budget: body::Budget,
    /// Requests at work at once, shared by all connections.
    places: GlobalConcurrencyLimitLayer,
    /// How many of them each client has.
    clients: Arc<shares::Shares>,
    /// Verifications on the blocking pool.
    heavy: Arc<Semaphore>,
    quarantine: quarantine::Quarantine,
    unknown: unknown::UnknownPaths,
    /// Commits whose request has gone, each with its share of the budget.
    orphans: TaskTracker,
}

impl Edge {
    pub fn new(
        config: EdgeConfig,
        sources: Vec<Arc<EdgeSource>>,
        subscriptions: Arc<SubscriptionSet>,
        intake: Arc<dyn Intake>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        observe::start(&sources);
        Self {
            setup: ArcSwap::from_pointee(Setup { routes: route::Routes::new(&sources), subscriptions }),
            budget: body::Budget::new(config.bytes_max),
            places: GlobalConcurrencyLimitLayer::new(config.requests_max),
            clients: Arc::default(),
            heavy: Arc::new(Semaphore::new(config.heavy_max)),
            quarantine: quarantine::Quarantine::new(&config),
            unknown: unknown::UnknownPaths::default(),
            orphans: TaskTracker::new(),
            config,
            intake,
            clock,
            random,
        }
    }

    /// Takes a new configuration; requests that are in flight end under the old one.
    pub fn replace(&self, sources: &[Arc<EdgeSource>], subscriptions: Arc<SubscriptionSet>) {
        observe::start(sources);
        self.setup.store(Arc::new(Setup { routes: route::Routes::new(sources), subscriptions }));
    }

    /// Serves `listener` until `stop`. Softly: nothing new is accepted, requests in flight get their answer. Returns when
    /// the last connection has ended and the quarantine is written.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: Stop) {
        let drain = tokio::spawn(quarantine::drain(Arc::clone(&self)));
        listen::serve(&self, listener, &stop).await;
        self.quarantine.close();
        tokio::select! {
            _ = drain => {}
            () = stop.hard.cancelled() => {}
        }
    }

    /// The last 100 distinct paths that led to no source, the latest first.
    pub fn unknown_paths(&self) -> Vec<UnknownPath> {
        self.unknown.list()
    }
}
