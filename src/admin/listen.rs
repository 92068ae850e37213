//! The accept loop of both listeners.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::places::{Place, Places};
use crate::lifecycle::Stop;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenConfig {
    /// Open connections; past it the one that has been idle longest is closed for the next. Default 256.
    pub connections_max: usize,
    /// From the connection, or the last answer, to the end of the next request's headers. Default 60 s: scrapers come that
    /// often on one connection.
    pub idle_max: Duration,
    /// All headers of a request together; at least 8 KiB. Default 16 KiB.
    pub header_bytes_max: usize,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { connections_max: 256, idle_max: Duration::from_secs(60), header_bytes_max: 16 * 1024 }
    }
}

/// hyper's least.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// After an accept error such as "too many open files", a moment for some to close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the soft stop, then lets requests that are under way end, until the hard one.
pub async fn serve(listener: TcpListener, router: Router, config: ListenConfig, stop: Stop) {
    let places = Places::new(config.connections_max);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.soft.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(error = %error, "the operators' listener could not accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Only after the accept: nobody has to leave before somebody comes. More wait in the kernel's queue.
        let place = tokio::select! {
            place = places.enter() => place,
            () = stop.soft.cancelled() => break,
        };
        connections.spawn(serve_connection(stream, router.clone(), config, stop.clone(), Arc::new(place)));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(stream: TcpStream, router: Router, config: ListenConfig, stop: Stop, place: Arc<Place>) {
    let _ = stream.set_nodelay(true);
    let service = Requests { router: TowerToHyperService::new(router), place: Arc::clone(&place) };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.idle_max)
        .max_buf_size(config.header_bytes_max.max(HEADER_BYTES_MIN))
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut ending = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            // Not gracefully: an idle connection may be one whose headers, or whose reader, never come.
            () = place.must_leave() => return,
            () = stop.hard.cancelled() => return,
            () = stop.soft.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The router, and word to the place of each request.
struct Requests {
    router: TowerToHyperService<Router>,
    place: Arc<Place>,
}

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.place.begin();
        let (answer, place) = (self.router.call(request), Arc::clone(&self.place));
        Box::pin(async move {
            let answer = answer.await;
            place.end();
            answer
        })
    }
}

#[cfg(test)]
mod tests;
