//! Handshakes over a socket: answered at once and exactly where they are proved as declared, refused where they are not,
//! and never a receipt. And what providers send that is easily mistaken for a forgery, or for no forgery.

use std::sync::Arc;

use bytes::Bytes;
use makbuz::clock::{Clock, SystemClock};
use makbuz::edge::EdgeSource;
use makbuz::provider::{Catalog, Inlet, SignRequest, SignedRequest, TestSecret};
use makbuz::random::SeededRandom;
use makbuz::store::StoreError;

use super::rig::{Mood, Reply, Rig, as_sent, post};
use super::sources::{Parts, inlet_with, secret, settings, shipped, source};
use super::witness::{Counts, Witness, delivery, once, rejection, watched};

const FORM: &str = "content-type: application/x-www-form-urlencoded";
const CHALLENGE: &str = r#"{"token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595","type":"url_verification"}"#;
const ECHO: &str = r#"{"challenge":"3eZbrw1aBm2rZgRNFdxV2595"}"#;

/// A source of a shipped definition, and what its provider signs with.
struct Platform {
    name: &'static str,
    inlet: Inlet,
    keys: TestSecret,
}

impl Platform {
    fn new(name: &'static str) -> Self {
        let definition = Catalog::embedded().get(name).unwrap();
        let keys = definition.test_secret(&SeededRandom::new(7)).unwrap();
        Self { name, inlet: shipped(name, keys.secret.as_bytes()), keys }
    }

    fn source(&self) -> EdgeSource {
        source(self.name, shipped(self.name, self.keys.secret.as_bytes()))
    }

    /// What the provider would have sent so many seconds ago.
    fn signed_ago(&self, seconds: i64, body: impl Into<Bytes>) -> SignedRequest {
        let now = SystemClock.now() - seconds * 1_000_000;
        let private_key = self.keys.private_key.as_deref();
        let body = Some(body.into());
        self.inlet.sign(&SignRequest { now, body, private_key, ..SignRequest::default() }).unwrap()
    }

    async fn rig(&self) -> Rig {
        Rig::serving(vec![Arc::new(self.source())], |_| {}).await
    }

    async fn send(&self, rig: &Rig, signed: &SignedRequest) -> Reply {
        rig.send(as_sent(&format!("/in/{}", self.name), signed)).await
    }
}

/// The same request with one byte of its signature or of its body changed.
fn forged(signed: &SignedRequest, signature: &'static str) -> SignedRequest {
    let mut forged = signed.clone();
    let mut value = forged.headers[signature].as_bytes().to_vec();
    let last = value.last_mut().unwrap();
    *last = if *last == b'0' { b'1' } else { b'0' };
    forged.headers.insert(signature, value.as_slice().try_into().unwrap());
    forged
}

fn tampered(signed: &SignedRequest) -> SignedRequest {
    SignedRequest { body: [&signed.body[..], b" "].concat().into(), ..signed.clone() }
}

fn counted(name: &str, handshakes: u64, refusals: &[(&str, u64)]) -> Counts {
    let refused: u64 = refusals.iter().map(|(_, times)| times).sum();
    let mut counts: Counts = refusals.iter().map(|(code, times)| (rejection(name, code), *times)).collect();
    counts.insert(delivery(name, "rejected"), refused);
    counts.insert(delivery(name, "handshake"), handshakes);
    counts
}

/// An answer to a handshake: exact, no page to a browser, and no word of a receipt.
fn assert_answered(reply: &Reply, status: u16, body: &str) {
    assert_eq!((reply.status, reply.text().as_str()), (status, body));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert!(reply.header("makbuz-receipt").is_none() && reply.header("set-cookie").is_none());
}

// W-101, W-104
#[test]
fn slacks_challenge_is_echoed_unless_its_signature_is_wrong_or_late() {
    watched(async |seen: &Witness| {
        let slack = Platform::new("slack");
        let rig = slack.rig().await;
        let (signature, before) = ("x-slack-signature", seen.counts());
        let asked = slack.signed_ago(0, CHALLENGE);
        assert_answered(&slack.send(&rig, &asked).await, 200, ECHO);
        for (refused, code) in [
            (forged(&asked, signature), "bad_signature"),
            (tampered(&asked), "bad_signature"),
            (slack.signed_ago(360, CHALLENGE), "stale"),
            (slack.signed_ago(-360, CHALLENGE), "future"),
        ] {
            let reply = slack.send(&rig, &refused).await;
            assert_eq!((reply.status, reply.body.len()), (401, 0), "{code}");
        }
        // An event is no handshake, whatever it calls itself, and one without a proof is refused.
        let event = r#"{"event_id":"Ev1","team_id":"T1","type":"event_callback","challenge":"c"}"#;
        assert_eq!(rig.send(post("/in/slack", &[], event.as_bytes())).await.status, 401);
        let refusals = [("bad_signature", 2), ("stale", 1), ("future", 1), ("missing_signature", 1)];
        assert_eq!(seen.counted_since(&before), counted("slack", 1, &refusals));
        assert_eq!(rig.intake.kept(), 0);
        rig.end().await;
    });
}

// W-032: the provider tests with wrong signatures, and removes an URL that takes one.
#[test]
fn discords_pings_are_answered_when_signed_and_401_when_not() {
    watched(async |seen: &Witness| {
        let discord = Platform::new("discord");
        let rig = discord.rig().await;
        // Also while nothing could be kept: a handshake keeps nothing.
        rig.intake.set(Mood::Refuses(StoreError::Unavailable("away".to_owned())));
        let before = seen.counts();
        let (event_ping, interaction_ping) =
            (r#"{"version":1,"application_id":"1","type":0}"#, r#"{"application_id":"1","id":"2","type":1}"#);
        for (body, status, answer) in [(event_ping, 204, ""), (interaction_ping, 200, r#"{"type":1}"#)] {
            let ping = discord.signed_ago(0, body);
            assert_answered(&discord.send(&rig, &ping).await, status, answer);
            let unsigned = post("/in/discord", &["content-type: application/json"], body.as_bytes());
            assert_eq!(rig.send(unsigned).await.status, 401);
            for refused in [forged(&ping, "x-signature-ed25519"), tampered(&ping), discord.signed_ago(360, body)] {
                let reply = discord.send(&rig, &refused).await;
                assert_eq!((reply.status, reply.body.len()), (401, 0), "{body}");
            }
        }
        let refusals = [("bad_signature", 4), ("stale", 2), ("missing_signature", 2)];
        assert_eq!(seen.counted_since(&before), counted("discord", 2, &refusals));
        assert_eq!(rig.intake.kept(), 0);
        rig.end().await;
    });
}

/// A sender that asks with a GET, and shows a word that was agreed on.
fn subscribing() -> Parts {
    Parts {
        handshake: r#"
[params.verify_token]
about = "the word that the sender shows"
example = "word"

[[handshake]]
name = "verify"
methods = ["GET"]
when = ["query:hub.mode == 'subscribe'", "query:hub.verify_token == param:verify_token"]
signed = "no"
content_type = "text/plain"
body = "query:hub.challenge|token"

[[handshake]]
name = "probe"
methods = ["HEAD"]
signed = "no"
status = 200
"#,
        ..Parts::default()
    }
}

// W-104, W-055: before the source's secret is live, too.
#[tokio::test]
async fn a_get_is_answered_with_the_right_word_alone_and_needs_no_live_secret() {
    let mut later = secret("later", b"good");
    later.not_before = Some(SystemClock.now() + 86_400_000_000);
    let mut settings = settings(vec![later]);
    settings.params.insert("verify_token".to_owned(), b"word".to_vec().into());
    let rig = Rig::serving(vec![Arc::new(source("hub", inlet_with(&subscribing(), settings)))], |_| {}).await;
    let get = |method: &str, query: &str| format!("{method} /in/hub?{query} HTTP/1.1\r\nhost: a\r\n\r\n");
    let asked = "hub.mode=subscribe&hub.verify_token=word&hub.challenge";
    let reply = rig.send(get("GET", &format!("{asked}=1158201444"))).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "1158201444"));
    assert_eq!((reply.header("content-type"), reply.header("makbuz-receipt")), (Some("text/plain"), None));
    for query in [
        &format!("{asked}=%3Cscript%3E"),
        &format!("{asked}=v0%3A1700000000%3A%7B%7D"),
        "hub.mode=subscribe&hub.verify_token=world&hub.challenge=1",
        "hub.mode=subscribe&hub.challenge=1",
        "hub.verify_token=word&hub.challenge=1",
        "",
    ] {
        let reply = rig.send(get("GET", query)).await;
        assert_eq!((reply.status, reply.body.len()), (405, 0), "{query}");
    }
    let reply = rig.send(get("HEAD", "")).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    // The words of a handshake are no proof of an event.
    let event = post(&format!("/in/hub?{asked}=1"), &["x-token: good"], b"{\"id\":\"e1\"}");
    assert_eq!(rig.send(event).await.status, 503);
    assert_eq!(rig.intake.kept(), 0);
    rig.end().await;
}

// W-008: what the signature covers is the form as it came, not a form that reads the same.
#[tokio::test]
async fn a_signed_form_is_taken_by_its_raw_bytes() {
    let slack = Platform::new("slack");
    let rig = slack.rig().await;
    for form in [
        "team_id=T1&command=%2Fa&text=a+b%20c%2bd%e2%82%AC&empty=&trigger_id=1.2.e1",
        "team_id=T1&text=a&text=b&=&&trigger_id=1.2.e2",
        "payload=%7B%22type%22%3A%22block_actions%22%2C%22team%22%3A%7B%22id%22%3A%22T1%22%7D%2C%22trigger_id%22%3A%221.2.e3%22%7D",
    ] {
        let mut signed = slack.signed_ago(0, form);
        signed.headers.insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
        let reply = slack.send(&rig, &signed).await;
        assert_eq!(reply.status, 200, "{form}: {}", reply.text());
        assert_eq!(rig.intake.last(|delivery| delivery.body.clone()), form, "byte for byte");
        let known = (rig.intake.kept(), rig.intake.receipts());
        // The same fields, spelled another way.
        let respelled = form.replace("%2F", "/").replace("%22", "\"").replace("&&", "&");
        assert_ne!(respelled, form);
        let reply = slack.send(&rig, &SignedRequest { body: respelled.into(), ..signed }).await;
        assert_eq!((reply.status, rig.intake.kept(), rig.intake.receipts()), (401, known.0, known.1));
    }
    let lost = post("/in/slack", &[FORM], b"team_id=T1&trigger_id=1.2.e4");
    assert_eq!(rig.send(lost).await.status, 401);
    rig.end().await;
}

// W-077
#[test]
fn a_resend_with_another_body_and_the_old_signature_is_refused_and_costs_the_event_nothing() {
    watched(async |seen: &Witness| {
        let shop = Platform::new("github");
        let rig = shop.rig().await;
        let first = shop.signed_ago(0, r#"{"id":"r1","SendAttempts":1}"#);
        rig.intake.set(Mood::Refuses(StoreError::Busy));
        assert_eq!(shop.send(&rig, &first).await.status, 503);
        rig.intake.set(Mood::Commits);
        let before = seen.counts();
        let second = SignedRequest { body: r#"{"id":"r1","SendAttempts":2}"#.into(), ..first.clone() };
        let reply = shop.send(&rig, &second).await;
        assert_eq!((reply.status, rig.intake.kept()), (401, 0));
        let expected = once(&[delivery("github", "rejected"), rejection("github", "bad_signature")]);
        assert_eq!(seen.counted_since(&before), expected);
        // What a person needs to see that it was no forger: the body, with the id of the event.
        assert_eq!(rig.intake.rejections(1).await[0].body, second.body);
        let reply = shop.send(&rig, &first).await;
        assert_eq!((reply.status, rig.intake.receipts()), (200, 1), "the event itself is taken as ever");
        rig.end().await;
    });
}
