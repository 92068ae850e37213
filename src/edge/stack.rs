//! The tower stack, from the outside in.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, COOKIE, HeaderValue, PROXY_AUTHORIZATION, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder, service_fn};
use tower_http::body::UnsyncBoxBody;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::RequestBodyDeadlineLayer;
use tower_http::trace::TraceLayer;
use tracing::debug_span;

use super::exchange::Exchange;
use super::receive::receive;
use super::reply::{self, Answer};
use super::{Edge, observe};

/// What comes out of the stack.
pub(super) type StackAnswer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Where a request came from and when; put on it by the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub peer: SocketAddr,
    /// When the head was complete, UTC microseconds: the window is checked against it.
    pub at: i64,
    pub first_byte: Instant,
}

/// Builds the stack; its clones share the limits.
pub(super) fn stack(
    edge: &Arc<Edge>,
) -> impl Service<Request<Incoming>, Response = StackAnswer, Error = Infallible, Future: Send> + Clone + Send + use<> {
    ServiceBuilder::new()
        // Outermost: a bug before the source is known becomes a 503 and leaves the connection and all others alone.
        .layer(CatchPanicLayer::custom(panicked))
        // Next, so that it is on every answer of ours: nobody is to guess that an echoed challenge is a page.
        .layer(SetResponseHeaderLayer::if_not_present(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        // Before anything looks at headers: these print as "Sensitive" from here on.
        .layer(SetSensitiveRequestHeadersLayer::new([AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE]))
        // Around the rest, so that its span covers all that is logged for a request; without the query, which may be a token.
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(|request: &Request<_>| debug_span!("request", path = request.uri().path()))
                .on_request(())
                .on_response(())
                .on_body_chunk(())
                .on_eos(())
                .on_failure(()),
        )
        // Before any limit: a stranger's path takes no place and its body is never read. And it knows the source, so that
        // here, too, what the layers below could not do becomes that source's answer.
        .layer(RouteLayer(Arc::clone(edge)))
        // Outside of the limit, or requests would wait where nobody counts them, until the provider gives up.
        .load_shed()
        // As much work at once as memory allows. Shared by all connections, given back when the answer is ready.
        .layer(edge.places.clone())
        // Inside of the limit: from here on somebody reads, and a sender that trickles must not keep the place.
        .layer(RequestBodyDeadlineLayer::new(edge.config.body_limit))
        .service(service_fn(|request| receive(request).map(Ok::<_, Infallible>)))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Answer {
    // The panic hook has said where; its text may quote what a stranger sent.
    observe::panicked();
    reply::unavailable(1)
}

/// Finds the source, and answers for it when the layers below cannot.
#[derive(Clone)]
struct RouteLayer(Arc<Edge>);

impl<S> Layer<S> for RouteLayer {
    type Service = Route<S>;

    fn layer(&self, inner: S) -> Route<S> {
        Route { edge: Arc::clone(&self.0), inner }
    }
}

#[derive(Clone)]
struct Route<S> {
    edge: Arc<Edge>,
    inner: S,
}

impl<S> Service<Request<Incoming>> for Route<S>
where
    S: Service<Request<Incoming>, Response = Answer, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Answer, Infallible>>;

    /// Always: whether there is a place below is asked only for requests that lead to a source.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let exchange = match Exchange::open(&self.edge, &mut request) {
            Ok(exchange) => Arc::new(exchange),
            Err(answer) => return Box::pin(std::future::ready(Ok(*answer))),
        };
        request.extensions_mut().insert(Arc::clone(&exchange));
        let inner = self.inner.clone();
        // A bug below is caught here already: the source is known, so its fault is counted and answered as that source's.
        let work = AssertUnwindSafe(tower::ServiceExt::oneshot(inner, request)).catch_unwind();
        Box::pin(async move {
            Ok(match work.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_shed)) => exchange.shed(),
                Err(_panic) => exchange.panicked(),
            })
        })
    }
}
