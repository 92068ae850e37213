//! The accept loop of both listeners.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::lifecycle::Stop;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenConfig {
    /// Open connections; more wait in the kernel's queue. Default 256.
    pub connections_max: usize,
    /// From the connection, or the last answer, to the end of the next request's headers. Default 60 s: scrapers come that
    /// often on one connection.
    pub header_timeout: Duration,
    /// All headers of a request together. Default 16 KiB.
    pub header_bytes_max: usize,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { connections_max: 256, header_timeout: Duration::from_secs(60), header_bytes_max: 16 * 1024 }
    }
}

/// After an accept error such as "too many open files", a moment for some to close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the soft stop, then lets requests that are under way end, until the hard one.
pub async fn serve(listener: TcpListener, router: Router, config: ListenConfig, stop: Stop) {
    let permits = Arc::new(Semaphore::new(config.connections_max));
    let connections = TaskTracker::new();
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit,
            () = stop.soft.cancelled() => break,
        };
        // Unwrap safety: nobody closes this semaphore.
        let permit = permit.expect("never closed");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.soft.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve_connection(stream, router.clone(), config, stop.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(error = %error, "the operators' listener could not accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    config: ListenConfig,
    stop: Stop,
    permit: OwnedSemaphorePermit,
) {
    let _permit = permit;
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.header_bytes_max)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let mut ending = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stop.hard.cancelled() => return,
            () = stop.soft.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
