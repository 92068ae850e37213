//! Joins the pull functions of `process` to the listeners of `admin`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{ApiError, PullApi};
use crate::model::job::JobKey;
use crate::process::{Pull, PullError};

/// The functions, once the store's key is there.
pub(super) struct Served(pub watch::Receiver<Option<Arc<Pull>>>);

/// Longest wait of a consumer for processing to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(1);

impl Served {
    /// Waits a little where the program has only just begun, or its store is only just back.
    async fn pull(&self) -> Result<Arc<Pull>, ApiError> {
        let mut begun = self.0.clone();
        let found = tokio::time::timeout(BEGIN_WAIT, begun.wait_for(Option::is_some)).await;
        let pull = found.ok().and_then(Result::ok).and_then(|pull| pull.clone());
        pull.ok_or_else(|| {
            tracing::warn!(error.code = "store_unavailable", "a consumer asked before the store was there");
            ApiError::unavailable("store_unavailable")
        })
    }
}

#[async_trait]
impl PullApi for Served {
    async fn claim(
        &self,
        subscription: &str,
        body: &[u8],
        consumer: &str,
        gone: CancellationToken,
    ) -> Result<Value, ApiError> {
        let (pull, body) = (self.pull().await?, read(body)?);
        tokio::select! {
            // What it has begun in the store runs on in a task of its own.
            answer = pull.claim(subscription, &body, consumer) => written(answer),
            () = gone.cancelled() => Err(ApiError::unavailable("client_gone")),
        }
    }

    async fn extend(&self, job: &JobKey, body: &[u8]) -> Result<Value, ApiError> {
        let (pull, body) = (self.pull().await?, read(body)?);
        written(pull.extend(job, &body).await)
    }

    async fn outcome(&self, job: &JobKey, body: &[u8], consumer: &str) -> Result<Value, ApiError> {
        written(self.pull().await?.outcome(job, body, consumer).await)
    }
}

/// An empty body says nothing, where nothing has to be said.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request("body_invalid", error.to_string()))
}

fn written(answer: Result<impl Serialize, PullError>) -> Result<Value, ApiError> {
    match answer {
        Ok(answer) => serde_json::to_value(answer).map_err(|_| ApiError::unavailable("internal")),
        Err(PullError::Store(error)) => Err(error.into()),
        Err(error) => {
            let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
            Err(ApiError::new(status, error.code(), error.to_string()))
        }
    }
}
