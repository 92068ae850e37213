//! How the operators' commands reach the data: through the API of a running instance, or, where none runs, through the same
//! API in this process over the store itself. There is one set of rules either way.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use secrecy::SecretSlice;
use serde_json::Value;
use tower::ServiceExt;

use super::open;
use super::{Context, Found};
use crate::admin::{self, AccessToken, AccessTokens};
use crate::config::{Config, Secret};
use crate::model::access::{Caller, Role};
use crate::random::{Random, SystemRandom};
use crate::store::Store;

/// Where requests go.
pub(crate) struct Api {
    place: Place,
    token: HeaderValue,
}

enum Place {
    Running {
        client: Client<HttpConnector, Body>,
        base: String,
    },
    /// The router of the operators' listener over the store; closed when the command has ended.
    Here {
        router: Router,
        store: Arc<dyn Store>,
    },
}

/// A refusal of the API, with its stable code.
#[derive(Debug, thiserror::Error)]
#[error("{message} ({code})")]
pub(crate) struct Refused {
    pub code: String,
    pub message: String,
}

/// An instance on this machine answers at once, or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest answer; claims may wait.
const ANSWER_MAX: Duration = Duration::from_secs(90);
const ANSWER_BYTES_MAX: usize = 512 << 20;

impl Api {
    /// Finds a running instance, or opens the store.
    pub async fn reach(context: &Context) -> anyhow::Result<Self> {
        let found = context.config()?;
        let base = match &context.common.admin {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!(
                "http://{}",
                reachable(match &found {
                    Found::File(config) | Found::Embedded(config) => config,
                })
            ),
        };
        let config = found.config();
        if !base.starts_with("http://") {
            bail!("--admin is an http:// address; to reach an instance over TLS, use a tunnel");
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_MAX));
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let running =
            Self { place: Place::Running { client, base: base.clone() }, token: HeaderValue::from_static("") };
        match running.send(Method::GET, "/livez", None).await {
            Ok(_) => Ok(Self { token: bearer(&operator_token(context, &config)?)?, ..running }),
            Err(error) if context.common.admin.is_some() => Err(error.context(format!("nothing answers at {base}"))),
            Err(_) => Self::here(&config)
                .await
                .with_context(|| format!("nothing answers at {base}, and the store could not be opened")),
        }
    }

    async fn here(config: &Config) -> anyhow::Result<Self> {
        let store = open::existing_store(config).await?;
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes);
        let value = hex::encode(bytes).into_bytes();
        let caller = Caller { name: "cli".to_owned(), role: Role::Admin, subscriptions: Vec::new() };
        let tokens = AccessTokens::new([AccessToken { caller, value: SecretSlice::from(value.clone()) }]);
        let admin = open::admin(config, Arc::clone(&store), Arc::new(tokens)).await?;
        let token = bearer(&Secret::new(value, "generated"))?;
        Ok(Self { place: Place::Here { router: admin::operators(admin, true), store }, token })
    }

    /// The JSON at `path`.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.send(Method::GET, path, None).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// The bytes at `path`.
    pub async fn get_bytes(&self, path: &str) -> anyhow::Result<Bytes> {
        self.send(Method::GET, path, None).await
    }

    /// Sends `body` to `path`.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.send(Method::POST, path, Some(body)).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Lets go of the store, if it was opened here.
    pub async fn close(self) {
        if let Place::Here { store, .. } = self.place {
            store.close().await;
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Bytes> {
        let base = match &self.place {
            Place::Running { base, .. } => base.as_str(),
            Place::Here { .. } => "",
        };
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, self.token.clone());
        }
        let request = match body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        }?;
        match &self.place {
            Place::Running { client, .. } => {
                let response = tokio::time::timeout(ANSWER_MAX, client.request(request))
                    .await
                    .map_err(|_| anyhow!("no answer in time"))??;
                answer(response.map(Body::new)).await
            }
            Place::Here { router, .. } => answer(router.clone().oneshot(request).await?).await,
        }
    }
}

async fn answer(response: Response<Body>) -> anyhow::Result<Bytes> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| anyhow!(error))?
        .to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let told: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (told["error"]["code"].as_str(), told["error"]["message"].as_str()) {
        (Some(code), Some(message)) => Err(Refused { code: code.to_owned(), message: message.to_owned() }.into()),
        _ => bail!("the instance answered {status}"),
    }
}

/// An address to connect to: a listener on all addresses is reached on this machine.
fn reachable(config: &Config) -> std::net::SocketAddr {
    let mut address = config.admin.listen;
    if address.ip().is_unspecified() {
        let loopback: std::net::IpAddr = match address {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    address
}

/// $MAKBUZ_TOKEN, or the first token of the configuration that may operate, or may at least look.
fn operator_token(context: &Context, config: &Config) -> anyhow::Result<Secret> {
    if let Some(value) = context.environment.bytes("MAKBUZ_TOKEN") {
        return Ok(Secret::new(value.to_vec(), "env:MAKBUZ_TOKEN"));
    }
    let by_role = |role| config.tokens.iter().find(|token| token.role == role);
    let token = [Role::Operator, Role::Admin, Role::Viewer].into_iter().find_map(by_role);
    let token = token.context(
        "an instance runs, and there is no token for it: set MAKBUZ_TOKEN, or configure a [[token]] of role operator",
    )?;
    Ok(token.value.clone())
}

fn bearer(token: &Secret) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token.expose()].concat())
        .map_err(|_| anyhow!("{token} cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A path part or query value, whatever its characters.
pub(crate) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// `?a=b&c=d` of what is given.
pub(crate) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_deref()?))));
    let joined = given.collect::<Vec<_>>().join("&");
    if joined.is_empty() { joined } else { format!("?{joined}") }
}
