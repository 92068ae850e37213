//! Known requests with known verdicts, run with the clock held still.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Catalog, Definition, Inbound, Inlet, ParamValues, Received, Reply, SourceSecret, SourceSettings, Verified,
};
use crate::clock::MICROS_PER_SECOND;
use crate::random::SeededRandom;

/// The clock of vectors that sign no time.
const ANY_TIME: i64 = 1_700_000_000;

#[derive(Deserialize)]
struct Vector {
    provider: String,
    /// Null where a request is answered without one; then any will do.
    secret: Option<String>,
    method: String,
    url: String,
    headers: serde_json::Map<String, Value>,
    body_base64: String,
    timestamp_unix_or_null: Option<i64>,
    expect: String,
    event_id: Option<String>,
    event_type: Option<String>,
    account: Option<String>,
    #[serde(default)]
    params: serde_json::Map<String, Value>,
    #[serde(default)]
    expected_response: Option<ExpectedResponse>,
}

#[derive(Deserialize)]
struct ExpectedResponse {
    status: u16,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    body: Option<String>,
}

/// Runs one vector; the error says what is not as it should be.
pub fn run_vector(catalog: &Catalog, json: &str) -> Result<(), String> {
    let vector: Vector = serde_json::from_str(json).map_err(|error| format!("no vector: {error}"))?;
    let definition = catalog.get(&vector.provider).map_err(|errors| lines(&errors))?;
    let valid = match &*vector.expect {
        "valid" => true,
        "invalid" => false,
        other => return Err(format!("expect is `{other}`, neither valid nor invalid")),
    };
    let inlet = match bind(&definition, &vector) {
        Ok(inlet) => inlet,
        // A secret that no source may have proves nothing either.
        Err(_) if !valid => return Ok(()),
        Err(reason) => return Err(reason),
    };
    match (receive(&definition, &inlet, &vector)?, valid) {
        (Ok(Received::Handshake(reply)), true) => match &vector.expected_response {
            Some(expected) => same_reply(expected, &reply),
            None => Ok(()),
        },
        (Ok(Received::Events(verified)), true) => check(&vector, &inlet, &verified),
        (Ok(_), false) => Err("was accepted, and must not be".to_owned()),
        (Err(_), false) => Ok(()),
        (Err(rejection), true) => Err(format!("was refused: {}: {}", rejection.code.code(), rejection.detail)),
    }
}

fn bind(definition: &Definition, vector: &Vector) -> Result<Inlet, String> {
    let mut params = ParamValues::new();
    for (name, value) in &vector.params {
        if definition.params().any(|(known, ..)| known == name) || name == "scheme" {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            params.insert(name.clone(), text.into_bytes().into());
        }
    }
    let any = || definition.test_secret(&SeededRandom::new(1)).map(|made| made.secret).unwrap_or_default();
    let text = vector.secret.clone().unwrap_or_else(any);
    let secret = SourceSecret {
        label: "vector".to_owned(),
        value: text.into_bytes().into(),
        not_before: None,
        not_after: None,
        params: ParamValues::new(),
    };
    let settings = SourceSettings {
        name: "vector".to_owned(),
        secrets: if definition.unsigned() { Vec::new() } else { vec![secret] },
        params,
        account: None,
        account_in_path: false,
        tolerance: None,
        window_strict: false,
        url: None,
        hold_malformed: true,
        replay_guard: None,
    };
    definition.bind(settings).map_err(|errors| lines(&errors))
}

fn receive(
    definition: &Definition,
    inlet: &Inlet,
    vector: &Vector,
) -> Result<Result<Received, super::Rejection>, String> {
    let method: Method = vector.method.parse().map_err(|_| "no method".to_owned())?;
    let body = Bytes::from(STANDARD.decode(&vector.body_base64).map_err(|error| format!("body_base64: {error}"))?);
    let mut headers = HeaderMap::new();
    for (name, value) in &vector.headers {
        let name: HeaderName = name.parse().map_err(|_| format!("no header name: {name}"))?;
        let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        for value in values {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("no header value: {text}"))?;
            headers.append(name.clone(), value);
        }
    }
    let query = vector.url.split_once('?').map(|(_, query)| query);
    // Everything after `/{in or hooks}/{provider}/` is the suffix.
    let mark = format!("/{}/", definition.name());
    let suffix = vector.url.split(['?', '#']).next().and_then(|url| url.split_once(&mark)).map(|(_, suffix)| suffix);
    let inbound = Inbound {
        method: &method,
        url: &vector.url,
        query,
        path_account: None,
        suffix: suffix.filter(|_| inlet.takes_suffix()),
        headers: &headers,
        body: &body,
        arrived_at: vector.timestamp_unix_or_null.unwrap_or(ANY_TIME).saturating_mul(MICROS_PER_SECOND),
    };
    Ok(inlet.receive(&inbound))
}

fn check(vector: &Vector, inlet: &Inlet, verified: &Verified) -> Result<(), String> {
    let Some(event) = verified.events.first() else { return Err("no event came out".to_owned()) };
    if verified.refused_items > 0 {
        return Err(format!("{} items were refused", verified.refused_items));
    }
    let facts = [
        ("event_id", &vector.event_id, &event.provider_ref),
        ("event_type", &vector.event_type, &event.event_type),
        ("account", &vector.account, &event.account),
    ];
    for (name, expected, found) in facts {
        if expected.as_ref().is_some_and(|expected| expected != found) {
            return Err(format!("{name} is `{found}`, and should be `{}`", expected.as_deref().unwrap_or_default()));
        }
    }
    let reply = inlet.reply_accepted();
    if let Some(expected) = vector.params.get("expected_response_body").and_then(Value::as_str)
        && reply.body != expected.as_bytes()
    {
        return Err(format!("the answer is `{}`, and should be `{expected}`", String::from_utf8_lossy(&reply.body)));
    }
    vector.expected_response.as_ref().map_or(Ok(()), |expected| same_reply(expected, &reply))
}

fn same_reply(expected: &ExpectedResponse, reply: &Reply) -> Result<(), String> {
    if reply.status.as_u16() != expected.status {
        return Err(format!("the answer's status is {}, and should be {}", reply.status.as_u16(), expected.status));
    }
    if expected.content_type.is_some() && expected.content_type != reply.content_type {
        return Err(format!("the answer's content type is {:?}", reply.content_type));
    }
    match &expected.body {
        Some(body) if reply.body != body.as_bytes() => {
            Err(format!("the answer is `{}`, and should be `{body}`", String::from_utf8_lossy(&reply.body)))
        }
        _ => Ok(()),
    }
}

fn lines(errors: &[super::SpecError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
