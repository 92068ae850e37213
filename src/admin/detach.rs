//! Keeps a handler alive when its client leaves, and bounds how many there are.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{ApiError, ClientGone};

/// How many handlers may run at once, those of departed clients included.
#[derive(Clone)]
pub(super) struct Permits(Arc<Semaphore>);

impl Permits {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }
}

/// Runs the handler in a task of its own. Its [`ClientGone`] is cancelled when the client leaves, so that it begins nothing
/// more for nobody; what it has begun, it ends.
pub(super) async fn detach(State(permits): State<Permits>, mut request: Request, next: Next) -> Response {
    let Ok(permit) = permits.0.try_acquire_owned() else {
        return ApiError::unavailable("busy").into_response();
    };
    let gone = CancellationToken::new();
    request.extensions_mut().insert(ClientGone(gone.clone()));
    let _cancels = gone.drop_guard();
    let handler = tokio::spawn(async move {
        let response = next.run(request).await;
        drop(permit);
        response
    });
    handler.await.unwrap_or_else(|_| {
        tracing::error!("a handler of the operators' listener panicked");
        ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal", "a fault of ours").into_response()
    })
}
