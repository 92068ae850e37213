//! Every way to be refused: the sender gets a bare status, the operator one line and one count, and nobody a hint of what
//! would have been accepted.

mod ours;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use makbuz::clock::{Clock, SystemClock};
use makbuz::edge::{EdgeConfig, EdgeSource, REJECTION_CODES};
use makbuz::provider::{Inlet, RejectionCode, SignRequest, SignedRequest};
use tracing::Level;

use super::rig::{Reply, Rig, as_sent, post};
use super::sources::{Parts, inlet, inlet_with, secret, settings, shipped, shipped_with, source, usual};
use super::witness::{Counts, Line, Witness, delivery, once, rejection, watched};

/// Behind the proxy that all requests here come through.
const PEER: &str = "198.51.100.7";
/// The live secrets of the source `talk`, and their labels.
const TALK_SECRETS: [(&str, &str); 2] = [("label-of-old", "canary-talk-1"), ("label-of-new", "canary-talk-2")];
const TALK_BODY: &str = r#"{"event_id":"Ev1","team_id":"T1","type":"event_callback","event":{"type":"a"}}"#;
const SMS_URL: &str = "https://hooks.example.com/in/sms";
/// No request that comes by a socket meets this one: the routes refuse such a path as unknown first.
const UNREACHABLE: [&str; 1] = ["suffix"];
/// Met by the tests below that need more than a request.
const ELSEWHERE: [&str; 5] = ["no_secret", "client_share", "body_timeout", "body_broken", "mixed_batch"];

/// A request, and how it is refused.
struct Refusal {
    what: &'static str,
    source: &'static str,
    request: Vec<u8>,
    status: u16,
    code: &'static str,
}

/// The usual sources; `talk`, whose provider signs time and body; `sms`, where the URL names the body's digest;
/// `merchants/{account}` with a secret for A alone; `hello`, which takes a GET with a challenge; `lapsed`, whose only
/// secret is of last year; `items`, whose batches are signed item by item.
fn sources() -> Vec<Arc<EdgeSource>> {
    let mut of_a = secret("a", b"whsec_canary");
    of_a.params = [("account".to_owned(), b"A".to_vec().into())].into();
    let merchants =
        EdgeSource { account_in_path: true, ..source("merchants", shipped_with("stripe", settings(vec![of_a]))) };
    let hello = Parts {
        handshake: "[[handshake]]\nname = \"hello\"\nmethods = [\"GET\"]\nwhen = [\"query:challenge\"]\nsigned = \"no\"\nstatus = 200",
        ..Parts::default()
    };
    let mut expired = secret("expired", b"good");
    expired.not_after = Some(SystemClock.now() - 365 * 86_400_000_000);
    let more = [
        source("talk", talk()),
        EdgeSource { url: Some(SMS_URL.to_owned()), ..source("sms", shipped("twilio", b"canary")) },
        merchants,
        source("hello", inlet(&hello)),
        source("lapsed", inlet_with(&Parts::default(), settings(vec![expired]))),
        source("items", items()),
    ];
    usual().into_iter().chain(more.into_iter().map(Arc::new)).collect()
}

fn talk() -> Inlet {
    let secrets = TALK_SECRETS.map(|(label, value)| secret(label, value.as_bytes()));
    shipped_with("slack", settings(secrets.into()))
}

fn items() -> Inlet {
    shipped("adyen", &b"00112233445566778899AABBCCDDEEFF".repeat(2))
}

async fn rig(change: impl FnOnce(&mut EdgeConfig)) -> Rig {
    Rig::serving(sources(), |config| {
        config.trusted_proxies.networks = vec!["127.0.0.0/8".parse().unwrap()];
        change(config);
    })
    .await
}

/// The request as the proxy hands it on.
fn by_proxy(request: &[u8]) -> Vec<u8> {
    let at = request.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    [&request[..at], format!("x-forwarded-for: {PEER}\r\n").as_bytes(), &request[at..]].concat()
}

/// An authentic request to `talk`, signed so many seconds ago.
fn signed_ago(seconds: i64) -> SignedRequest {
    let now = SystemClock.now() - seconds * 1_000_000;
    talk().sign(&SignRequest { now, body: Some(TALK_BODY.into()), ..SignRequest::default() }).unwrap()
}

/// The authentic request with one header as this says.
fn with(name: &'static str, value: &str) -> Vec<u8> {
    let mut signed = signed_ago(0);
    signed.headers.insert(name, value.parse().unwrap());
    as_sent("/in/talk", &signed)
}

fn without(name: &str) -> Vec<u8> {
    let mut signed = signed_ago(0);
    signed.headers.remove(name);
    as_sent("/in/talk", &signed)
}

fn to_shop(headers: &[&str]) -> Vec<u8> {
    post("/in/shop", headers, b"{\"id\":\"e1\"}")
}

/// What is wrong with the signature or its time.
fn unproved() -> Vec<Refusal> {
    let (signature, time) = ("x-slack-signature", "x-slack-request-timestamp");
    let forged = format!("v0={}", "5a".repeat(32));
    let of = |what, request, code| Refusal { what, source: "talk", request, status: 401, code };
    let mut other_body = signed_ago(0);
    other_body.body = TALK_BODY.replace("Ev1", "Ev2").into();
    let mut twice = signed_ago(0);
    let second = twice.headers[signature].clone();
    twice.headers.append(signature, second);
    vec![
        of("no signature", without(signature), "missing_signature"),
        of("an empty signature", with(signature, ""), "malformed_signature"),
        of("the right signature twice", as_sent("/in/talk", &twice), "duplicate_header"),
        of("a signature that is no hex", with(signature, "v0=xyz"), "malformed_signature"),
        of("a signature of another version", with(signature, &forged.replace("v0", "v1")), "malformed_signature"),
        of("a signature too long to look at", with(signature, &"v0=".repeat(2000)), "malformed_signature"),
        of("a forged signature", with(signature, &forged), "bad_signature"),
        of("another body than was signed", as_sent("/in/talk", &other_body), "bad_signature"),
        of("no time", without(time), "missing_signature"),
        of("a time that is none", with(time, "yesterday"), "bad_timestamp"),
        of("another time than was signed", with(time, "1700000000"), "bad_signature"),
        of("authentic, from six minutes ago", as_sent("/in/talk", &signed_ago(360)), "stale"),
        of("authentic, from six minutes ahead", as_sent("/in/talk", &signed_ago(-360)), "future"),
    ]
}

/// What is wrong with the rest of a request.
fn others() -> Vec<Refusal> {
    let by = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes();
    let of = |what, source, request, status, code| Refusal { what, source, request, status, code };
    let sign = |inlet: &Inlet, event_type, url| {
        inlet.sign(&SignRequest { now: SystemClock.now(), event_type, url, ..SignRequest::default() }).unwrap()
    };
    let of_a = sign(&shipped("stripe", b"whsec_canary"), None, "");
    let mut digest = sign(&shipped("twilio", b"canary"), Some("json"), SMS_URL);
    digest.body = "{\"sid\":\"forged\"}".into();
    let zipped = ["x-token: good", "content-encoding: gzip"];
    let large = [b' '; 2000];
    vec![
        of("no token", "shop", to_shop(&[]), 401, "missing_signature"),
        of("a token that is no text", "shop", to_shop(&["x-token: t\u{fc}rk"]), 401, "malformed_signature"),
        of("two tokens", "shop", to_shop(&["x-token: good", "x-token: bad"]), 401, "duplicate_header"),
        of("a wrong token", "shop", to_shop(&["x-token: canary-presented"]), 401, "bad_signature"),
        of("an encoded body", "shop", to_shop(&zipped), 415, "content_encoding"),
        of("too large a body", "shop", post("/in/shop", &["x-token: good"], &large), 413, "body_too_large"),
        of("DELETE", "shop", by("DELETE", "/in/shop"), 405, "method_not_allowed"),
        of("GET without a challenge", "hello", by("GET", "/in/hello"), 405, "method"),
        of("an account without a secret", "merchants", as_sent("/in/merchants/C", &of_a), 404, "unknown_account"),
        of("another body than the digest", "sms", as_sent("/in/sms", &digest), 401, "body_mismatch"),
        of("no item", "items", post("/in/items", &[], b"{}"), 401, "missing_signature"),
        of("items that are none", "items", post("/in/items", &[], b"{\"notif"), 401, "malformed_signature"),
    ]
}

/// A status and nothing that tells why: no body, and only headers that every refusal may have.
fn assert_bare(reply: &Reply, what: &str) {
    const HEADERS: [&str; 6] =
        ["allow", "connection", "content-length", "date", "retry-after", "x-content-type-options"];
    assert!(reply.body.is_empty(), "{what}: {}", reply.text());
    let unexpected: Vec<_> = reply.headers.iter().filter(|(name, _)| !HEADERS.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "{what}: {unexpected:?}");
    assert_eq!(reply.header("connection"), Some("close"), "{what}");
}

/// One line that names code, source and peer, and keeps to itself what would have been right.
fn assert_one_line(lines: &[Line], level: Level, refusal: (&str, &str), what: &str) {
    let [line] = lines else { panic!("{what}: {lines:?}") };
    let (source, code) = refusal;
    assert_eq!(line.level, level, "{what}: {}", line.text());
    assert_eq!(line.field("error.code"), Some(code), "{what}: {}", line.text());
    assert_eq!(line.field("source"), Some(source), "{what}");
    assert_eq!(line.field("peer"), Some(PEER), "{what}: {}", line.text());
    let right = signed_ago(0).headers["x-slack-signature"].to_str().unwrap().to_owned();
    for secret in ["canary", "label-of", "00112233", &right[3..], "5a5a5a"] {
        assert!(!line.text().contains(secret), "{what}: {}", line.text());
    }
}

fn rejected(source: &str, code: &str) -> Counts {
    once(&[delivery(source, "rejected"), rejection(source, code)])
}

// W-032, W-047
#[test]
fn each_refusal_is_a_bare_status_one_line_and_one_count() {
    watched(async |seen: &Witness| {
        let rig = rig(|config| config.body_max = 1000).await;
        for Refusal { what, source, request, status, code } in unproved().into_iter().chain(others()) {
            let (before, _) = (seen.counts(), seen.lines());
            let reply = rig.send(by_proxy(&request)).await;
            assert_eq!(reply.status, status, "{what}");
            assert_bare(&reply, what);
            // A limit that is too small is the operator's affair.
            let level = if code == "body_too_large" { Level::WARN } else { Level::INFO };
            assert_one_line(&seen.lines(), level, (source, code), what);
            assert_eq!(seen.counted_since(&before), rejected(source, code), "{what}");
        }
        assert_eq!((rig.intake.kept(), rig.intake.receipts()), (0, 0));
        rig.end().await;
    });
}

#[test]
fn no_code_is_without_a_request_that_is_refused_by_it() {
    let met = unproved().into_iter().chain(others()).map(|refusal| refusal.code).chain(ELSEWHERE);
    let met: BTreeSet<&str> = met.collect();
    let unmet = |code: &&str| !met.contains(code) && !UNREACHABLE.contains(code);
    let all = RejectionCode::ALL.map(RejectionCode::code).into_iter().chain(REJECTION_CODES);
    assert_eq!(all.filter(unmet).collect::<Vec<_>>(), Vec::<&str>::new());
}

// W-076: our own clock is wrong, and a forger is at work, are two things. W-047: so is a header that got lost.
#[test]
fn lost_forged_and_late_are_counted_apart_by_source_and_never_by_secret() {
    watched(async |seen: &Witness| {
        let rig = rig(|_| {}).await;
        let forged = format!("v0={}", "0".repeat(64));
        let refused = [
            (without("x-slack-signature"), "missing_signature"),
            (with("x-slack-signature", &forged), "bad_signature"),
            (as_sent("/in/talk", &signed_ago(360)), "stale"),
        ];
        for (at, (request, code)) in refused.into_iter().enumerate() {
            rig.send(request).await;
            assert_eq!(rig.intake.rejections(at + 1).await[at].code, code);
            assert_eq!(seen.counts()[&rejection("talk", code)], 1);
            // By how much: that is what tells a wrong clock.
            let [line] = &seen.loud_lines()[..] else { panic!("one line") };
            let detail = line.field("detail").unwrap();
            assert_eq!(detail.starts_with("authentic, but signed 36"), code == "stale", "{detail}");
        }
        let series = seen.counts().into_keys();
        let mut labelled = series.filter(|name| TALK_SECRETS.iter().any(|(label, _)| name.contains(label)));
        assert!(labelled.all(|name| name.starts_with("makbuz_secret_matches_total{source=\"talk\"")));
        rig.end().await;
    });
}

#[test]
fn a_body_that_never_ends_or_breaks_is_refused_by_its_own_code() {
    let head = "POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\n";
    for (rest, status, code) in [
        ("content-length: 100\r\n\r\n{\"id\"", 408, "body_timeout"),
        ("transfer-encoding: chunked\r\n\r\nno number\r\n", 400, "body_broken"),
    ] {
        watched(async |seen: &Witness| {
            let rig = rig(|config| config.body_limit = Duration::from_millis(50)).await;
            let before = seen.counts();
            let reply = rig.send(by_proxy(format!("{head}{rest}").as_bytes())).await;
            assert_eq!(reply.status, status, "{code}");
            assert_bare(&reply, code);
            assert_one_line(&seen.lines(), Level::INFO, ("shop", code), code);
            assert_eq!(seen.counted_since(&before), rejected("shop", code));
            rig.end().await;
        });
    }
}

// W-131
#[test]
fn a_batch_signed_in_part_is_refused_by_its_own_code() {
    watched(async |seen: &Witness| {
        let rig = rig(|_| {}).await;
        let signed = items().sign(&SignRequest::default()).unwrap();
        let body = String::from_utf8(signed.body.to_vec()).unwrap();
        let at = body.find("[{").unwrap() + 1;
        let item = &body[at..body.rfind("}]").unwrap() + 1];
        let mixed = body.replace(item, &format!("{item},{}", item.replace("1000", "9")));
        let before = seen.counts();
        let reply = rig.send(by_proxy(&post("/in/items", &[], mixed.as_bytes()))).await;
        assert_eq!(reply.status, 401);
        assert_bare(&reply, "mixed");
        assert_one_line(&seen.loud_lines(), Level::WARN, ("items", "mixed_batch"), "mixed");
        let counted = seen.counted_since(&before);
        assert!(rejected("items", "mixed_batch").iter().all(|series| counted.iter().any(|one| one == series)));
        rig.end().await;
    });
}

/// What belongs to no source is counted, and no stranger can fill the log.
#[test]
fn a_request_to_no_source_is_counted_as_unknown_and_no_line_for_an_operator() {
    let broken = b"POST /in/shop HTTP/1.1\r\nhost: a\r\nx-a: \x00\r\n\r\n".to_vec();
    let large = format!("x-large: {}", "a".repeat(60 * 1024));
    for (request, status, code) in [
        (post("/in/nobody", &["x-token: good"], b"{}"), 404, "unknown_path"),
        (post("/in/seller", &["x-token: good"], b"{}"), 404, "unknown_path"),
        (post("/in/shop", &[&large], b"{}"), 431, "head_too_large"),
        (broken, 400, "head_broken"),
        (to_shop(&["x-token: good"]), 503, "connection_limit"),
    ] {
        watched(async |seen: &Witness| {
            let limit = usize::from(code != "connection_limit");
            let rig = rig(|config| config.connections_max = limit).await;
            let before = seen.counts();
            let mut client = rig.connect().await;
            client.write(&request).await;
            let reply = client.read().await.expect("an answer");
            assert_eq!((reply.status, reply.body.len()), (status, 0), "{code}");
            // An error of the connection is counted when it ends.
            assert!(client.read().await.is_none());
            let mut expected = once(&[rejection("unknown", code)]);
            if code == "unknown_path" {
                expected.extend(once(&[delivery("unknown", "rejected")]));
            }
            assert_eq!(seen.counted_since(&before), expected);
            assert!(seen.loud_lines().is_empty(), "{code}");
            rig.end().await;
        });
    }
}
