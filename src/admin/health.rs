//! `/livez` and `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Admin;

/// How the broker looks from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerHealth {
    Up,
    /// It is there and takes nothing (an alarm of its own).
    Blocked,
    Away,
    /// It is there, and a queue or exchange is not as it should be.
    Topology,
}

impl BrokerHealth {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "ok",
            Self::Blocked => "blocked",
            Self::Away => "away",
            Self::Topology => "topology",
        }
    }
}

/// Asks the broker's side without waiting for it.
pub type BrokerLook = Arc<dyn Fn() -> BrokerHealth + Send + Sync>;

/// The store must say within this time that it is ready.
const READY_MAX: Duration = Duration::from_secs(3);

/// The process runs; says nothing of what it depends on.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// `{"status":"ready|degraded|unavailable","store":…,"broker":…}`. A broker that is away degrades and no more: intake goes
/// on, and the outbox waits.
pub(super) async fn readyz(State(admin): State<Admin>) -> (StatusCode, Json<Value>) {
    let intake = Arc::clone(&admin.intake);
    // In a task of its own: a look at the store that is dropped halfway would poison its connection.
    let look = tokio::spawn(async move { intake.ready().await });
    let store = match timeout(READY_MAX, look).await {
        Ok(Ok(Ok(()))) => "ok",
        Ok(Ok(Err(error))) => error.code(),
        Ok(Err(_)) => "panicked",
        Err(_) => "no_answer",
    };
    let broker = admin.broker.as_ref().map(|look| look());
    let (status, word) = match (store, broker) {
        ("ok", None | Some(BrokerHealth::Up)) => (StatusCode::OK, "ready"),
        ("ok", Some(_)) => (StatusCode::OK, "degraded"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let broker = broker.map_or("none", BrokerHealth::as_str);
    (status, Json(json!({ "status": word, "store": store, "broker": broker, "version": env!("CARGO_PKG_VERSION") })))
}
