//! The operators' listener: JSON API, metrics, health.
//!
//! | route | who | what |
//! |---|---|---|
//! | `GET /livez` | anyone | the process runs |
//! | `GET /readyz` | anyone | which dependency is away; 503 when the store is |
//! | `GET /metrics` | anyone | Prometheus text |
//! | `GET /v1/receipts`, `/v1/receipts/{id}` | viewer | what was accepted, and what became of it |
//! | `GET /v1/receipts/{id}/body[?whole=true]` | operator, consumer in scope | the exact bytes |
//! | `GET /v1/jobs`, `/v1/jobs/{receipt}/{subscription}`, `GET /v1/review` | viewer | processing, with its history |
//! | `POST /v1/jobs/{receipt}/{subscription}/replay`, `…/dismiss` | operator | one job again, or closed |
//! | `GET /v1/rejections` | viewer | recent refused requests |
//! | `POST /v1/subscriptions/{name}/claim` | consumer in scope | take work under a lease |
//! | `POST /v1/jobs/{receipt}/{subscription}/extend`, `…/outcome` | consumer in scope, with the attempt's token | keep the lease, report |
//!
//! `[consume] listen` serves the last two rows and bodies alone. Errors are `{"error":{"code","message"}}` with a stable code.
//!
//! A handler runs in a task of its own ([`detach`]): hyper drops the handler of a client that leaves, and a database call
//! dropped halfway poisons its connection.

mod auth;
mod bodies;
mod detach;
mod error;
mod gauges;
mod health;
mod jobs;
mod listen;
mod places;
mod pull;
mod receipts;
mod rejections;
#[cfg(test)]
mod tests;
pub mod view;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, header};
use axum::middleware;
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::RequestBodyDeadlineLayer;

use crate::model::subscription::SubscriptionSet;
use crate::store::{Archive, Intake, Jobs, Outbox};

pub use auth::{AccessToken, AccessTokens};
pub use error::ApiError;
pub use gauges::Gauges;
pub use health::{BrokerHealth, BrokerLook};
pub use listen::{ListenConfig, serve};
pub use pull::{ClientGone, PullApi};

/// What the handlers work with; each a part of the store, or a look at another stage that the composition root gives.
#[derive(Clone)]
pub struct Admin {
    pub tokens: Arc<AccessTokens>,
    pub intake: Arc<dyn Intake>,
    pub outbox: Arc<dyn Outbox>,
    pub jobs: Arc<dyn Jobs>,
    pub archive: Arc<dyn Archive>,
    pub subscriptions: Arc<SubscriptionSet>,
    /// Claims and reports; absent where this process does not have the role `process`.
    pub pull: Option<Arc<dyn PullApi>>,
    /// Absent: no broker is configured.
    pub broker: Option<BrokerLook>,
    pub metrics: PrometheusHandle,
    pub gauges: Arc<Gauges>,
    pub limits: Limits,
}

/// Bounds of the listeners' work.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest request body. Default 256 KiB.
    pub body_bytes_max: usize,
    /// Requests that are worked on at once, of each listener; past it 503. Default 256.
    pub requests_max: usize,
    /// From the headers of a request to the end of its body. Default 10 s.
    pub body_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: 256 * 1024, requests_max: 256, body_time_max: Duration::from_secs(10) }
    }
}

/// Everything: the operators' listener, and the consumers' too unless they have one of their own.
pub fn operators(admin: Admin, with_consumers: bool) -> Router {
    let mut api = Router::new()
        .route("/v1/receipts", get(receipts::list))
        .route("/v1/receipts/{id}", get(receipts::show))
        .route("/v1/jobs", get(jobs::list))
        .route("/v1/review", get(jobs::review))
        .route("/v1/jobs/{receipt}/{subscription}", get(jobs::show))
        .route("/v1/jobs/{receipt}/{subscription}/replay", post(jobs::replay))
        .route("/v1/jobs/{receipt}/{subscription}/dismiss", post(jobs::dismiss))
        .route("/v1/rejections", get(rejections::list));
    api = if with_consumers { api.merge(consumer_routes()) } else { api.merge(body_route()) };
    // Health and metrics stand outside of the limits and the tokens: they must answer when everything else is busy.
    let open = Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(gauges::metrics))
        .with_state(admin.clone());
    finish(protect(api, &admin).merge(open))
}

/// Only what consumers need, for `[consume] listen`.
pub fn consumers(admin: Admin) -> Router {
    let open = Router::new().route("/livez", get(health::livez)).with_state(admin.clone());
    finish(protect(consumer_routes(), &admin).merge(open))
}

fn consumer_routes() -> Router<Admin> {
    body_route()
        .route("/v1/subscriptions/{name}/claim", post(pull::claim))
        .route("/v1/jobs/{receipt}/{subscription}/extend", post(pull::extend))
        .route("/v1/jobs/{receipt}/{subscription}/outcome", post(pull::outcome))
}

fn body_route() -> Router<Admin> {
    Router::new().route("/v1/receipts/{id}/body", get(bodies::body))
}

/// The layers of everything that needs a token; the last one added sees the request first.
fn protect(api: Router<Admin>, admin: &Admin) -> Router {
    let permits = detach::Permits::new(admin.limits.requests_max);
    api.fallback(|| async { ApiError::not_found("no such route") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        // Bounds what a handler reads.
        .layer(DefaultBodyLimit::max(admin.limits.body_bytes_max))
        // Above the handlers, so that they survive a client that leaves; below the tokens, so that strangers start no task.
        .layer(middleware::from_fn_with_state(permits, detach::detach))
        .layer(middleware::from_fn_with_state(Arc::clone(&admin.tokens), auth::authenticate))
        // A body that stops coming must not hold a connection.
        .layer(RequestBodyDeadlineLayer::new(admin.limits.body_time_max))
        .with_state(admin.clone())
}

/// What every answer carries.
fn finish(router: Router) -> Router {
    router
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .layer(SetResponseHeaderLayer::overriding(header::CACHE_CONTROL, HeaderValue::from_static("no-store")))
}
