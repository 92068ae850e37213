//! The accept loop and the life of one connection.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, poll_fn};
use http::Request;
use http::header::{CONNECTION, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::shares::{Part, Shares};
use super::stack::{Arrival, StackAnswer, stack};
use super::wire::{Watch, Wire, WireLimits};
use super::{Edge, EdgeConfig, observe};
use crate::lifecycle::Stop;
use crate::metrics;

/// Connections past the caps that are told so at once; more are closed without a word.
const REFUSALS_MAX: usize = 64;
/// hyper's read buffer; a head must fit.
const BUFFER_BYTES: usize = 64 * 1024;
/// Pause after a failed accept: the process is out of file descriptors or memory, and trying at once would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 3\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What the accept loop shares with its connections.
struct Door {
    connections: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    peers: Arc<Shares>,
    tasks: TaskTracker,
}

/// Accepts until `stop.soft`, then waits for the connections; drops them at `stop.hard`.
pub(super) async fn serve(edge: &Arc<Edge>, listener: TcpListener, stop: &Stop) {
    let door = Door {
        connections: Arc::new(Semaphore::new(edge.config.connections_max)),
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        peers: Arc::default(),
        tasks: TaskTracker::new(),
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.soft.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => door.admit(edge, stream, peer, stop),
            Err(error) if is_of_one_connection(&error) => {
                debug!(%error, "a connection was gone before it was accepted")
            }
            Err(error) => {
                warn!(%error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // The kernel has already said yes to what is in the backlog.
    while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
        door.admit(edge, stream, peer, stop);
    }
    drop(listener);
    door.tasks.close();
    tokio::select! {
        () = door.tasks.wait() => {}
        () = stop.hard.cancelled() => {}
    }
}

impl Door {
    fn admit(&self, edge: &Arc<Edge>, stream: TcpStream, peer: SocketAddr, stop: &Stop) {
        // A reply is one small packet: waiting to fill it would only add to the provider's time.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "the connection was gone at once");
            return;
        }
        let max = if edge.config.trusted_proxies.trusts(peer.ip()) {
            usize::MAX
        } else {
            edge.config.connections_per_peer_max
        };
        let slots = Arc::clone(&self.connections).try_acquire_owned().ok().zip(self.peers.one(peer.ip(), max));
        match slots {
            Some((connection, part)) => {
                let (edge, stop) = (Arc::clone(edge), stop.clone());
                self.tasks.spawn(async move {
                    let _held: (_, Part) = (connection, part);
                    metrics::edge_connections(1.0);
                    serve_connection(&edge, stream, peer, &stop).await;
                    metrics::edge_connections(-1.0);
                });
            }
            None => self.refuse(edge, stream),
        }
    }

    /// 503 for a connection past the caps: load is our fault, and the sender should hear so at once.
    fn refuse(&self, edge: &Arc<Edge>, mut stream: TcpStream) {
        observe::connection_refused();
        let Ok(lane) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let edge = Arc::clone(edge);
        self.tasks.spawn(async move {
            if stream.try_write(REFUSAL).is_ok() {
                linger(&mut stream, &edge.config).await;
            }
            drop(lane);
        });
    }
}

/// Serves one connection of whatever kind to its end.
async fn serve_connection<S>(edge: &Arc<Edge>, stream: S, peer: SocketAddr, stop: &Stop)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = &edge.config;
    let watch = Arc::new(Watch::new());
    let limits =
        WireLimits { first_byte: config.first_byte_limit, header: config.header_limit, write: config.write_limit };
    let wire = Wire::new(stream, Arc::clone(&watch), limits);
    let service = Requests { stack: stack(edge), edge: Arc::clone(edge), peer, watch, stop: stop.clone() };
    let mut connection = builder(config).serve_connection(TokioIo::new(wire), service);
    let ended = {
        let mut run = pin!(async {
            tokio::select! {
                biased;
                ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => return ended,
                () = stopped_idle(stop, config) => {}
            }
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        });
        tokio::select! {
            biased;
            ended = &mut run => ended,
            () = stop.hard.cancelled() => return,
        }
    };
    if let Err(error) = ended {
        observe::connection_failed(&error);
        // Too large a head has its 431; of the others nobody waits for an answer.
        if !error.is_parse() && !error.is_parse_too_large() {
            return;
        }
    }
    linger(&mut connection.into_parts().io.into_inner().into_stream(), config).await;
}

/// After the soft stop, and a moment for requests that are already on their way.
async fn stopped_idle(stop: &Stop, config: &EdgeConfig) {
    stop.soft.cancelled().await;
    sleep(config.stop_idle).await;
}

/// hyper's own limits; first byte, header time and writes are [`Wire`]'s.
fn builder(config: &EdgeConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // Without a timer hyper's limits do nothing.
        .timer(TokioTimer::new())
        // Runs from the end of the last answer: the bound on idle connections.
        .header_read_timeout(config.keep_alive_limit)
        .max_header_size(config.header_bytes_max)
        .max_buf_size(BUFFER_BYTES.max(config.header_bytes_max))
        // A sender may end its side after the request and still wait for the answer.
        .half_close(true)
        .keep_alive(true);
    // hyper's own default costs nothing; any number that is set costs an allocation per request.
    if config.headers_max != EdgeConfig::default().headers_max {
        builder.max_headers(config.headers_max);
    }
    builder
}

/// The tower stack as hyper calls it: tells each request where it came from, and ends connections that are due.
struct Requests<S> {
    stack: S,
    edge: Arc<Edge>,
    peer: SocketAddr,
    watch: Arc<Watch>,
    stop: Stop,
}

impl<S> hyper::service::Service<Request<Incoming>> for Requests<S>
where
    S: tower::Service<Request<Incoming>, Response = StackAnswer, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = StackAnswer;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<StackAnswer, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let (first_byte, number) = self.watch.begin();
        request.extensions_mut().insert(Arrival { peer: self.peer, at: self.edge.clock.now(), first_byte });
        let last = number >= self.edge.config.keep_alive_requests_max;
        let (answer, watch, stop) = (self.stack.clone().oneshot(request), Arc::clone(&self.watch), self.stop.clone());
        Box::pin(async move {
            let mut answer = answer.await;
            watch.end();
            if let Ok(answer) = &mut answer
                && (last || stop.soft.is_cancelled())
            {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        })
    }
}

/// Ends our side and reads what still comes, within bounds: a socket closed with unread bytes is reset, and the reset
/// can overtake the answer.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, config: &EdgeConfig) {
    let read_rest = async {
        stream.shutdown().await?;
        let mut scratch = vec![0; 8192];
        let mut left = config.linger_bytes_max;
        while left > 0 {
            match stream.read(&mut scratch).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        Ok::<(), io::Error>(())
    };
    // Whatever goes wrong here, the connection is over.
    let _ = timeout(config.linger_limit, read_rest).await;
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
