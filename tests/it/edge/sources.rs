//! The sources that the tests post to: small definitions of a sender that shows a token in `x-token`.

use std::collections::BTreeMap;
use std::sync::Arc;

use makbuz::edge::{EdgeSource, Redirects};
use makbuz::provider::{Catalog, Inlet, SourceSecret, SourceSettings};

/// Parts of a definition that differ from test to test.
#[derive(Default)]
pub struct Parts {
    pub request: &'static str,
    pub delivery: &'static str,
    pub event: &'static str,
    pub handshake: &'static str,
    /// Where the token stands; `header:x-token` if empty.
    pub from: &'static str,
}

const JSON: &str = "content = \"json\"";

fn definition(parts: &Parts) -> String {
    let Parts { request, delivery, event, handshake, from } = parts;
    let from = if from.is_empty() { "header:x-token" } else { from };
    let request = if request.is_empty() { JSON } else { request };
    format!(
        r#"name = "shop"
title = "A shop of these tests"
docs = ["tests/it/edge"]
evidence = "general"

[request]
{request}

[delivery]
{delivery}

[[scheme]]
name = "token"
mechanism = "token"
coverage = "none"
signature = {{ from = "{from}" }}

[window]
check = "none"
replay_guard = false

[identity]
provider_ref = "item:/id"
signed = false

[event]
{event}

[batch]
items = ""
optional = true

{handshake}

[reply]
status = 200
content_type = "text/plain"
body = "OK"

[[template]]
type = "test"
body = '''{{"id":"{{id}}"}}'''
"#
    )
}

/// A definition of these tests, bound to the secret `good`.
pub fn inlet(parts: &Parts) -> Inlet {
    inlet_with(parts, settings(vec![secret("first", b"good")]))
}

pub fn inlet_with(parts: &Parts, settings: SourceSettings) -> Inlet {
    let mut catalog = Catalog::default();
    catalog.insert("shop", "shop.toml".to_owned(), &definition(parts));
    bind(&catalog, "shop", settings)
}

/// The same, whose only secret was good until 1970.
pub fn expired(parts: &Parts) -> Inlet {
    inlet_with(parts, settings(vec![SourceSecret { not_after: Some(1), ..secret("first", b"good") }]))
}

/// A shipped definition, bound to `secret`.
pub fn shipped(provider: &str, secret: &[u8]) -> Inlet {
    shipped_with(provider, settings(vec![self::secret("first", secret)]))
}

pub fn shipped_with(provider: &str, settings: SourceSettings) -> Inlet {
    bind(&Catalog::embedded(), provider, settings)
}

pub fn secret(label: &str, value: &[u8]) -> SourceSecret {
    SourceSecret {
        label: label.to_owned(),
        value: value.to_vec().into(),
        not_before: None,
        not_after: None,
        params: BTreeMap::new(),
    }
}

pub fn settings(secrets: Vec<SourceSecret>) -> SourceSettings {
    SourceSettings {
        name: "test".to_owned(),
        secrets,
        params: BTreeMap::new(),
        account: None,
        account_in_path: false,
        tolerance: None,
        window_strict: false,
        url: None,
        hold_malformed: true,
        replay_guard: None,
    }
}

fn bind(catalog: &Catalog, provider: &str, settings: SourceSettings) -> Inlet {
    let texts = |errors: Vec<makbuz::provider::SpecError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    catalog.get(provider).map_err(texts).unwrap().bind(settings).map_err(texts).unwrap()
}

pub fn source(name: &str, inlet: Inlet) -> EdgeSource {
    EdgeSource {
        guard_sources: std::sync::Arc::new([name.into()]),
        name: name.into(),
        provider: "shop".into(),
        inlet: Arc::new(inlet),
        aliases: Vec::new(),
        paths: Vec::new(),
        account_in_path: false,
        body_max: None,
        url: None,
        redirects: None,
    }
}

/// `/in/shop`, by alias `/in/old-shop` and by path `/webhooks/shop`; `/in/seller/{account}`; `/in/depot/…` with PUT;
/// `/in/probe` with HEAD; `/in/bank`, whose forms a browser brings; `/in/hurry`, whose provider waits one second and a bit.
pub fn usual() -> Vec<Arc<EdgeSource>> {
    let plain = || inlet(&Parts::default());
    let shop = EdgeSource {
        aliases: vec!["old-shop".into()],
        paths: vec!["/webhooks/shop".to_owned()],
        ..source("shop", plain())
    };
    let seller = EdgeSource { account_in_path: true, ..source("seller", plain()) };
    let depot = Parts {
        request: "content = \"json\"\nmethods = [\"PUT\"]\nsuffix = true",
        event: "type = \"suffix\"",
        ..Parts::default()
    };
    let probe = Parts {
        handshake: "[[handshake]]\nname = \"probe\"\nmethods = [\"HEAD\"]\nsigned = \"no\"\nstatus = 200",
        ..Parts::default()
    };
    let bank = Parts { request: "content = \"form\"\ncarrier = \"browser\"", ..Parts::default() };
    let redirects = Redirects {
        accepted: "https://shop.example/done?lang=tr".to_owned(),
        refused: "https://shop.example/failed".to_owned(),
        later: "https://shop.example/later?a=1&b=\"2\"".to_owned(),
    };
    let bank = EdgeSource { redirects: Some(redirects), ..source("bank", inlet(&bank)) };
    let hurry = Parts { delivery: "time_limit = \"1200ms\"", ..Parts::default() };
    [shop, seller, source("depot", inlet(&depot)), source("probe", inlet(&probe)), bank, source("hurry", inlet(&hurry))]
        .into_iter()
        .map(Arc::new)
        .collect()
}
