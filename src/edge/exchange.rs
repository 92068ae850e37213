//! One request at a known source: what the head said, and how the request ends.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http::{Method, Request};
use tokio::time::Instant;
use tracing::{info, warn};

use super::body::Purse;
use super::browser::{self, Form};
use super::ending::{Ending, Failure, MIXED_BATCH};
use super::reply::{self, Answer};
use super::route::Routed;
use super::shares::Part;
use super::stack::Arrival;
use super::{Edge, Setup, body, headers, observe};
use crate::metrics::{self, DeliveryResult};
use crate::provider::{Inbound, Inlet, RejectionCode};
use crate::store::NewRejection;

/// However short the limits: a body that has come whole is given this long for its commit.
const COMMIT_TIME_MIN: Duration = Duration::from_secs(1);
/// What is kept of a path.
const PATH_CHARS_MAX: usize = 1024;
/// What is kept of a rejection's detail.
const DETAIL_CHARS_MAX: usize = 300;

pub(super) struct Exchange {
    pub edge: Arc<Edge>,
    pub setup: Arc<Setup>,
    pub routed: Routed,
    pub arrival: Arrival,
    pub method: Method,
    pub path: String,
    /// As received, without our own counter of tries.
    pub query: Option<String>,
    pub headers: HeaderMap,
    /// The sender's address, as a trusted proxy names it.
    pub peer: String,
    client: IpAddr,
    /// The public URL with the query, as the provider signed it.
    url: String,
    /// How often a browser has posted the same form again.
    tries: u32,
    begun: Instant,
}

impl Exchange {
    /// Reads the head. An error is the answer to a request that leads nowhere, or comes by a method that its source does
    /// not take.
    pub fn open<B>(edge: &Arc<Edge>, request: &mut Request<B>) -> Result<Self, Box<Answer>> {
        let arrival = request.extensions_mut().remove::<Arrival>().ok_or_else(|| Box::new(reply::unavailable(1)))?;
        let path = request.uri().path();
        if path == "/healthz" {
            return Err(Box::new(reply::health(request.method())));
        }
        let setup = edge.setup.load_full();
        let Some(routed) = setup.routes.find(path) else {
            edge.unknown.note(path, arrival.at);
            observe::unknown_path(arrival.first_byte);
            return Err(Box::new(reply::not_found()));
        };
        let source = &routed.source;
        let (tries, query) = match request.uri().query() {
            Some(query) if source.browser().is_some() => browser::split_tries(query),
            query => (0, query.map(str::to_owned)),
        };
        let base = match (&source.url, &edge.config.public_url) {
            (Some(url), _) => url.clone(),
            (None, Some(public)) => format!("{}{path}", public.trim_end_matches('/')),
            (None, None) => path.to_owned(),
        };
        let url = query.as_ref().map_or_else(|| base.clone(), |query| format!("{base}?{query}"));
        let path = path.to_owned();
        if let Some(alias) = &routed.alias {
            metrics::alias(&source.name, alias);
        }
        let headers = std::mem::take(request.headers_mut());
        let client = edge.config.trusted_proxies.client(arrival.peer, &headers);
        let peer = client.to_string();
        let (edge, method, begun) = (Arc::clone(edge), request.method().clone(), Instant::now());
        let opened =
            Self { edge, setup, routed, arrival, method, path, query, headers, peer, client, url, tries, begun };
        // Here and not where bodies are read: it needs no place among the requests at work.
        if opened.inlet().methods().contains(&opened.method) {
            Ok(opened)
        } else {
            Err(Box::new(opened.close(Err(Failure::Method), None)))
        }
    }

    pub fn inlet(&self) -> &Inlet {
        &self.routed.source.inlet
    }

    /// The largest body that the source takes.
    pub fn body_max(&self) -> u64 {
        let source = &self.routed.source;
        source.body_max.unwrap_or_else(|| self.edge.config.body_max.max(source.inlet.body_max().unwrap_or(0)))
    }

    /// The client's place among the requests at work, unless it has its share of them.
    pub fn enter(&self) -> Result<Part, Failure> {
        let config = &self.edge.config;
        let max = config.share_of(self.client, config.requests_max);
        self.edge.clients.one(self.client, max).ok_or(Failure::ClientShare)
    }

    /// What the body is paid from. However small the client's share: one body of the source has room in it.
    pub fn purse(&self) -> Purse {
        let config = &self.edge.config;
        let all = usize::try_from(config.bytes_max).unwrap_or(usize::MAX);
        // Twice, because a body of unknown length grows by doubling.
        let one = usize::try_from(self.body_max()).unwrap_or(usize::MAX).saturating_mul(2);
        self.edge.budget.of(self.client, config.share_of(self.client, all).max(one))
    }

    /// What the head alone decides, so that nobody waits for a body that cannot help.
    pub fn refuse_early(&self) -> Result<(), Failure> {
        let encoded = self.headers.get_all(CONTENT_ENCODING).iter().any(|value| {
            let value = value.to_str().unwrap_or("?").trim();
            !value.is_empty() && !value.eq_ignore_ascii_case("identity")
        });
        if encoded {
            return Err(Failure::Encoding);
        }
        if body::declared(&self.headers).is_some_and(|declared| declared > self.body_max()) {
            return Err(Failure::Body(body::BodyError::TooLarge));
        }
        self.inlet()
            .refuse_head(&self.method, &self.headers, self.arrival.at)
            .map_or(Ok(()), |rejection| Err(Failure::Rejected(rejection)))
    }

    /// The request as the provider's definition sees it.
    pub fn inbound<'a>(&'a self, body: &'a Bytes) -> Inbound<'a> {
        Inbound {
            method: &self.method,
            url: &self.url,
            query: self.query.as_deref(),
            path_account: self.routed.account.as_deref(),
            suffix: self.routed.suffix.as_deref(),
            headers: &self.headers,
            body,
            arrived_at: self.arrival.at,
        }
    }

    /// When the sender hears 503, whatever the commit does.
    pub fn deadline(&self) -> Instant {
        let own = self.inlet().answer_max().map(|limit| limit.saturating_sub(Duration::from_secs(1)));
        let limit = own.map_or(self.edge.config.answer_max, |own| own.min(self.edge.config.answer_max));
        let least = COMMIT_TIME_MIN.min(limit);
        (self.begun + limit).max(Instant::now() + least)
    }

    /// Path and query as received, for the archive.
    pub fn stored_url(&self) -> String {
        match &self.query {
            Some(query) => {
                format!("{}?{}", self.path, headers::cut_credentials(query, self.inlet().credential_queries()))
            }
            None => self.path.clone(),
        }
    }

    /// Content type as received; bytes beyond ASCII are replaced, they are in the kept headers.
    pub fn content_type(&self) -> String {
        self.headers
            .get(CONTENT_TYPE)
            .map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// Counts, logs and answers. `body` is what was read, if it was read whole.
    pub fn close(&self, ending: Result<Ending, Failure>, body: Option<&Bytes>) -> Answer {
        let source = &self.routed.source;
        let took = Instant::now() - self.arrival.first_byte;
        match ending {
            Ok(Ending::Handshake(answer)) => {
                metrics::delivery(&source.name, DeliveryResult::Handshake, took);
                reply::exact(&answer)
            }
            Ok(Ending::Kept(kept)) if kept.refused_items > 0 => {
                observe::kept(source, &kept, DeliveryResult::Rejected, took);
                warn!(
                    source = &*source.name,
                    provider = &*source.provider,
                    error.code = MIXED_BATCH,
                    peer = self.peer,
                    refused_items = kept.refused_items,
                    kept_items = kept.verdict.events.len(),
                    "a batch was signed in part: the good items are kept, the provider is told to look"
                );
                metrics::rejection(&source.name, MIXED_BATCH);
                reply::refused(source, RejectionCode::BadSignature)
            }
            Ok(Ending::Kept(kept)) => {
                observe::kept(source, &kept, kept.result(), took);
                reply::kept(source, &kept)
            }
            Err(failure) => self.fail(&failure, body, took),
        }
    }

    /// The answer to a request for which there was no place.
    pub fn shed(&self) -> Answer {
        let took = Instant::now() - self.arrival.first_byte;
        self.fail(&Failure::Overloaded("requests"), None, took)
    }

    /// The answer to a request in which we have a bug. The panic hook has said where; its text may quote what a stranger sent.
    pub fn panicked(&self) -> Answer {
        let took = Instant::now() - self.arrival.first_byte;
        self.fail(&Failure::Panicked, None, took)
    }

    fn fail(&self, failure: &Failure, body: Option<&Bytes>, took: Duration) -> Answer {
        let source = &self.routed.source;
        let code = failure.code();
        if failure.is_rejection() {
            metrics::rejection(&source.name, code);
        }
        if failure.is_ours() {
            metrics::delivery(&source.name, DeliveryResult::Unavailable, took);
            let peer = &self.peer;
            warn!(source = &*source.name, error.code = code, error = %failure, peer, "a delivery was answered 503");
            let delay = 1 + self.edge.random.next_u64() % 5;
            return match source.browser() {
                Some(redirects) => browser::unavailable(redirects, &self.form(body), delay),
                None => reply::unavailable(delay),
            };
        }
        metrics::delivery(&source.name, DeliveryResult::Rejected, took);
        let (detail, method) = (cut(&failure.to_string(), DETAIL_CHARS_MAX), &self.method);
        if matches!(failure, Failure::Body(body::BodyError::TooLarge)) {
            warn!(
                source = &*source.name,
                error.code = code,
                body_bytes_max = self.body_max(),
                peer = self.peer,
                "a body was over the source's limit: is body_max too small?"
            );
        } else {
            info!(source = &*source.name, error.code = code, detail, peer = self.peer, %method, "a delivery was refused");
        }
        self.quarantine(code, detail, body);
        reply::failed(source, failure)
    }

    fn quarantine(&self, code: &'static str, detail: String, body: Option<&Bytes>) {
        let kept = headers::keep(&self.headers, self.inlet().kept_headers());
        let names = kept.names.into_iter().map(|name| (name, Bytes::new()));
        let prefix =
            body.map(|body| Bytes::copy_from_slice(&body[..body.len().min(self.edge.config.quarantine_body_max)]));
        self.edge.quarantine.put(NewRejection {
            at: self.arrival.at,
            source: self.routed.source.name.to_string(),
            code: code.to_owned(),
            detail,
            peer: self.peer.clone(),
            method: self.method.to_string(),
            path: cut(&self.stored_url(), PATH_CHARS_MAX),
            headers: kept.values.into_iter().chain(names).collect(),
            body: prefix.unwrap_or_default(),
        });
    }

    fn form<'a>(&'a self, body: Option<&'a Bytes>) -> Form<'a> {
        let content_type = self.headers.get(CONTENT_TYPE);
        Form { path: &self.path, query: self.query.as_deref(), content_type, body, tries: self.tries }
    }
}

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
