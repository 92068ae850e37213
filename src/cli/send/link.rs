//! One kept-alive connection to the receiver, made again when it ends.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::summary::Answer;
use crate::provider::SignedRequest;

/// From the request to its whole answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

pub(super) type Connector = HttpsConnector<HttpConnector>;

/// For `http` and `https`; reads the machine's certificates once.
pub(super) fn connector() -> std::io::Result<Connector> {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    let provider = rustls::crypto::ring::default_provider();
    Ok(HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(provider)?
        .https_or_http()
        .enable_http1()
        .wrap_connector(http))
}

pub(super) struct Link {
    connector: Connector,
    to: Uri,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Link {
    pub fn new(connector: Connector, to: Uri) -> Self {
        Self { connector, to, sender: None }
    }

    /// Sends one request and reads its answer. A connection that had ended before anything was written is made anew.
    pub async fn send(&mut self, signed: &SignedRequest, uri: &Uri) -> Result<Answer, &'static str> {
        for fresh in [false, true] {
            let mut sender = match self.sender.take() {
                Some(sender) if !fresh && sender.is_ready() => sender,
                _ => self.connect().await?,
            };
            match timeout(ANSWER_LIMIT, exchange(&mut sender, request(signed, uri))).await {
                Ok(Ok(answer)) => {
                    if sender.ready().await.is_ok() {
                        self.sender = Some(sender);
                    }
                    return Ok(answer);
                }
                Ok(Err(error)) if error.is_canceled() && !fresh => {}
                Ok(Err(_)) => return Err("connection"),
                Err(_) => return Err("timeout"),
            }
        }
        Err("connection")
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, &'static str> {
        let connecting = async {
            let io = self
                .connector
                .ready()
                .await
                .map_err(|_| "connect")?
                .call(self.to.clone())
                .await
                .map_err(|_| "connect")?;
            handshake(io).await.map_err(|_| "connect")
        };
        let (sender, connection) = timeout(CONNECT_LIMIT, connecting).await.map_err(|_| "connect")??;
        tokio::spawn(connection);
        Ok(sender)
    }
}

async fn exchange(sender: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let receipt = answer.headers().get("makbuz-receipt").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(Answer { status, receipt, body })
}

fn request(signed: &SignedRequest, uri: &Uri) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(signed.body.clone()));
    *request.method_mut() = signed.method.clone();
    *request.headers_mut() = signed.headers.clone();
    if let Some(host) = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(path) = uri.path_and_query() {
        *request.uri_mut() = path.as_str().parse().unwrap_or_default();
    }
    request
}
