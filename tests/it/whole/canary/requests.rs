//! Requests that carry credentials, in all places where a sender may put them: accepted, refused and malformed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::super::support::client::Client;
use super::super::super::support::process::Gateway;
use super::super::super::support::sign;
use super::{Canaries, DOOR, GATE, HATCH, PAY, STRANGER, TILL};

/// One request as it goes over the wire, and how it is answered.
pub struct Sent {
    what: &'static str,
    status: u16,
    bytes: Vec<u8>,
}

type Headers<'a> = &'a [(&'a str, &'a str)];

fn request(line: &str, headers: Headers<'_>, body: &[u8]) -> Vec<u8> {
    let mut head = format!("{line} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    [head.as_bytes(), b"\r\n", body].concat()
}

fn basic(credentials: &str) -> String {
    format!("Basic {}", STANDARD.encode(credentials))
}

fn event(id: &str) -> Vec<u8> {
    format!(r#"{{"id":"{id}","type":"test"}}"#).into_bytes()
}

/// An authentic event of `pay`, with more headers and whatever follows the path.
fn signed(query: &str, body: &[u8], more: Headers<'_>) -> Vec<u8> {
    let headers = sign::headers(PAY, body);
    let mut all: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    all.extend(more);
    request(&format!("POST /in/pay{query}"), &all, body)
}

/// By each source's own credential.
fn accepted() -> Vec<Sent> {
    let of = |what, bytes| Sent { what, status: 200, bytes };
    let (till, door, hatch) = (basic(TILL), format!("Bearer {DOOR}"), format!("POST /in/hatch?id=7&code={HATCH}"));
    let userinfo = format!("POST http://{TILL}@gateway/in/till");
    let unneeded = [("Authorization", &*till), ("Cookie", STRANGER), ("X-Api-Key", STRANGER)];
    vec![
        of("a signature", signed("", &sign::body("evt_pay", 10), &[])),
        of("and credentials that nobody asked for", signed("", &sign::body("evt_more", 10), &unneeded)),
        of("a password", request("POST /in/till", &[("Authorization", &till)], &event("evt_till"))),
        of("a password, in the target too", request(&userinfo, &[("Authorization", &till)], &event("evt_target"))),
        of("a bearer token", request("POST /in/door", &[("Authorization", &door)], &event("evt_door"))),
        of("a token in a header", request("POST /in/gate", &[("X-Gate-Key", GATE)], &event("evt_gate"))),
        of("a token in the query", request(&hatch, &[], &event("evt_hatch"))),
        of("authentic, and no JSON", signed("", b"not { JSON", &[])),
        of("a password, and no JSON", request("POST /in/till", &[("Authorization", &till)], b"{\"id\":")),
    ]
}

/// By what is wrong, or shown to the wrong source: secrets of others, old ones, ones with a typing mistake.
fn refused() -> Vec<Sent> {
    let of = |what, status, bytes| Sent { what, status, bytes };
    let (till, wrong, bearer) = (basic(TILL), basic(&format!("user:{STRANGER}")), format!("Bearer {STRANGER}"));
    let everywhere = [
        ("Authorization", &*bearer),
        ("Proxy-Authorization", &*till),
        ("Cookie", STRANGER),
        ("X-Gate-Key", GATE),
        ("X-Api-Key", STRANGER),
        ("X-Shopify-Hmac-Sha256", STRANGER),
    ];
    let query = format!("?token={STRANGER}&api_key={STRANGER}&%74oken={STRANGER}&id=7");
    let late = sign::headers_at(PAY, b"{}", sign::now_seconds() - 3600);
    let late: Vec<(&str, &str)> = late.iter().map(|(name, value)| (&**name, &**value)).collect();
    let post = |path: &str, headers| request(&format!("POST {path}"), headers, &event("evt_refused"));
    vec![
        of("a wrong password", 401, post("/in/till", &[("Authorization", &wrong)])),
        of("another kind of proof", 401, post("/in/till", &[("Authorization", &bearer)])),
        of("a wrong bearer token", 401, post("/in/door", &[("Authorization", &bearer)])),
        of("a wrong token", 401, post("/in/gate", &[("X-Gate-Key", STRANGER)])),
        of("the right token twice", 401, post("/in/gate", &[("X-Gate-Key", GATE), ("x-gate-key", GATE)])),
        of("a code by another method", 405, request(&format!("PUT /in/hatch?code={HATCH}&id=7"), &[], b"{}")),
        of("a wrong code", 401, post(&format!("/in/hatch?code={STRANGER}"), &[])),
        of("another source's password", 401, post("/in/pay", &[("Authorization", &till)])),
        of("credentials everywhere", 401, post(&format!("/in/pay{query}"), &everywhere)),
        of("an old signature", 401, request("POST /in/pay", &late, b"{}")),
        of("no source", 404, post(&format!("/in/nobody{query}&code={HATCH}"), &everywhere)),
        of("another method", 405, request(&format!("DELETE /in/till{query}"), &everywhere, b"")),
    ]
}

/// Broken, too large, or in a shape that is not taken.
fn malformed() -> Vec<Sent> {
    let of = |what, status, bytes| Sent { what, status, bytes };
    let till = basic(TILL);
    let with = ("Authorization", &*till);
    let large = vec![b' '; 100 * 1024];
    let line = format!("X-Large: {}", GATE.repeat(4000));
    let broken = |line: &str| format!("POST /in/till HTTP/1.1\r\n{line}\r\nContent-Length: 2\r\n\r\n{{}}").into_bytes();
    let chunked = format!("Authorization: {till}\r\nTransfer-Encoding: chunked\r\n\r\n{GATE}\r\n");
    vec![
        of("an encoded body", 415, request("POST /in/till", &[with, ("Content-Encoding", "gzip")], b"{}")),
        of("too large a body", 413, request("POST /in/till", &[with], &large)),
        of("a header without a colon", 400, broken(&format!("Authorization {till}"))),
        of("a byte 00 in a header", 400, broken(&format!("X-Gate-Key: {GATE}\0"))),
        of("too large a head", 431, broken(&line)),
        of("a chunk without a size", 400, format!("POST /in/till HTTP/1.1\r\nHost: a\r\n{chunked}").into_bytes()),
    ]
}

/// Sends them all, the accepted ones twice, and looks at each answer.
pub async fn send_all(gateway: &Gateway, canaries: &Canaries) {
    for sent in accepted().into_iter().chain(accepted()).chain(refused()).chain(malformed()) {
        let mut client = Client::connect(gateway.edge).await.expect("it listens");
        // A refusal may come before all is sent.
        drop(client.send_raw(&sent.bytes).await);
        let answer = client.answer().await.unwrap_or_else(|error| panic!("{}: {error}", sent.what));
        assert_eq!(answer.status, sent.status, "{}: {}", sent.what, answer.text());
        canaries.not_in(sent.what, format!("answer {:?} {}", answer.headers, answer.text()).as_bytes(), "answer");
    }
}

/// How many of them leave a row in the quarantine: not those that are no request to a source.
pub fn quarantined() -> usize {
    let strangers = [404, 431];
    let broken_heads = 2;
    let of_sources = |sent: &&Sent| !strangers.contains(&sent.status);
    refused().iter().chain(&malformed()).filter(of_sources).count() - broken_heads
}
