//! What the sender hears, and what is kept of what it sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use makbuz::provider::SignRequest;
use makbuz::store::StoreError;

use super::rig::{Mood, Rig, post};
use super::sources::{Parts, expired, inlet, shipped, source};

// W-107
#[tokio::test]
async fn a_duplicate_is_answered_byte_for_byte_like_the_first() {
    let rig = Rig::start().await;
    let request = post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}");
    let (first, second) = (rig.send(&request).await, rig.send(&request).await);
    let bare = |reply: &super::rig::Reply| {
        let headers = reply.headers.iter().filter(|(name, _)| name != "date").cloned().collect::<Vec<_>>();
        (reply.status, headers, reply.body.clone())
    };
    assert_eq!(bare(&first), bare(&second));
    assert_eq!((first.status, first.text().as_str()), (200, "OK"));
    assert_eq!((rig.intake.kept(), rig.intake.receipts()), (2, 1));
    rig.end().await;
}

#[tokio::test]
async fn a_batch_says_how_many_receipts_it_has() {
    let rig = Rig::start().await;
    let reply =
        rig.send(post("/in/shop", &["x-token: good"], b"[{\"id\":\"e1\"},{\"id\":\"e2\"},{\"id\":\"e3\"}]")).await;
    assert_eq!(reply.header("makbuz-receipts"), Some("3"));
    let first = rig.intake.last(|delivery| delivery.events[0].receipt_id.to_string());
    assert_eq!(reply.header("makbuz-receipt"), Some(first.as_str()));
    rig.end().await;
}

// W-131
#[tokio::test]
async fn of_a_mixed_batch_the_good_is_kept_and_the_answer_is_a_refusal() {
    let inlet = shipped("adyen", &b"00112233445566778899AABBCCDDEEFF".repeat(2));
    let item = |psp: &str| {
        format!(
            r#"{{"NotificationRequestItem":{{"additionalData":{{"hmacSignature":""}},"amount":{{"currency":"EUR","value":1000}},"eventCode":"AUTHORISATION","merchantAccountCode":"Shop","merchantReference":"r","pspReference":"{psp}","success":"true"}}}}"#
        )
    };
    let body = format!(r#"{{"live":"false","notificationItems":[{},{}]}}"#, item("P1"), item("P2"));
    let signed = inlet.sign(&SignRequest { body: Some(body.into()), ..SignRequest::default() }).unwrap();
    let mixed = String::from_utf8(signed.body.to_vec()).unwrap().replacen("\"P2\"", "\"P3\"", 1);
    let rig = Rig::serving(vec![Arc::new(source("adyen", inlet))], |_| {}).await;
    let reply = rig.send(post("/in/adyen", &["content-type: application/json"], mixed.as_bytes())).await;
    assert_eq!((reply.status, reply.body.len()), (401, 0));
    assert_eq!(rig.intake.last(|delivery| delivery.events[0].provider_ref.clone()), "P1");
    assert_eq!(rig.intake.receipts(), 1);
    let reply = rig.send(post("/in/adyen", &["content-type: application/json"], &signed.body)).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "[accepted]"));
    assert_eq!((reply.header("makbuz-receipts"), rig.intake.receipts()), (Some("2"), 2));
    rig.end().await;
}

// W-106, W-032
#[tokio::test]
async fn a_refusal_is_401_without_a_word_and_goes_to_the_quarantine() {
    let rig = Rig::start().await;
    let headers = ["x-token: bad", "authorization: Basic c2VjcmV0", "cookie: a=b", "user-agent: probe"];
    let reply = rig.send(post("/in/shop?token=SECRET123", &headers, b"{\"id\":\"e1\"}")).await;
    assert_eq!((reply.status, reply.body.len()), (401, 0));
    assert_eq!(reply.header("connection"), Some("close"));
    assert!(reply.header("set-cookie").is_none() && reply.header("makbuz-receipt").is_none());
    let kept = rig.intake.rejections(1).await.remove(0);
    assert_eq!((kept.source.as_str(), kept.code.as_str()), ("shop", "bad_signature"));
    assert_eq!((kept.path.as_str(), kept.peer.as_str()), ("/in/shop?token=cut", "127.0.0.1"));
    assert_eq!(kept.body, Bytes::from_static(b"{\"id\":\"e1\"}"));
    let value = |name: &str| kept.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!(value("user-agent"), Some(Bytes::from_static(b"probe")));
    assert_eq!(value("authorization"), Some(Bytes::new()), "the name only");
    assert_eq!(rig.intake.kept(), 0);
    rig.end().await;
}

// W-098: who forges an event must not be able to use up its id.
#[tokio::test]
async fn a_forgery_does_not_use_up_the_id_of_the_authentic_event() {
    let rig = Rig::start().await;
    let forged = rig.send(post("/in/shop", &["x-token: bad"], b"{\"id\":\"e9\",\"paid\":true}")).await;
    assert_eq!(forged.status, 401);
    assert_eq!((rig.intake.kept(), rig.intake.receipts()), (0, 0), "intake never saw it");
    let authentic = rig.send(post("/in/shop", &["x-token: good"], b"{\"id\":\"e9\"}")).await;
    assert_eq!((authentic.status, rig.intake.kept(), rig.intake.receipts()), (200, 1, 1));
    assert_eq!(rig.intake.last(|delivery| delivery.body.clone()), Bytes::from_static(b"{\"id\":\"e9\"}"));
}

// W-067: a proof in the query is kept nowhere, whatever its field is called.
#[tokio::test]
async fn a_proof_in_the_query_is_cut_from_what_is_kept() {
    let inlet = inlet(&Parts { from: "query:code", ..Parts::default() });
    let rig = Rig::serving(vec![Arc::new(source("shop", inlet))], |_| {}).await;
    assert_eq!(rig.send(post("/in/shop?code=good&id=7", &[], b"{\"id\":\"e1\"}")).await.status, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.url.clone()), "/in/shop?code=cut&id=7");
    assert_eq!(rig.send(post("/in/shop?id=7&%63ode=g00d", &[], b"{}")).await.status, 401);
    assert_eq!(rig.intake.rejections(1).await[0].path, "/in/shop?id=7&%63ode=cut");
    rig.end().await;
}

#[tokio::test]
async fn quarantined_bodies_are_cut_and_pressure_drops_them() {
    let rig = Rig::with(|config| {
        config.quarantine_body_max = 10;
        config.quarantine_queue_bytes_max = 1000;
    })
    .await;
    rig.send(post("/in/shop", &["x-token: bad"], &[b'x'; 5000])).await;
    assert_eq!(rig.intake.rejections(1).await[0].body.len(), 10);
    rig.send(post(&format!("/in/shop?x={}", "y".repeat(2000)), &["x-token: bad"], b"{}")).await;
    rig.send(post("/in/shop", &["x-token: bad"], b"{}")).await;
    let kept = rig.intake.rejections(2).await;
    assert!(kept.iter().all(|rejection| !rejection.path.contains("yyy")), "too large for the queue: dropped");
    rig.end().await;
}

// W-068
#[tokio::test]
async fn a_store_that_cannot_keep_is_503_with_retry_after_and_never_401() {
    let rig = Rig::start().await;
    let request = post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}");
    for mood in [
        Mood::Refuses(StoreError::Busy),
        Mood::Fails(StoreError::Unavailable("gone".to_owned())),
        Mood::Fails(StoreError::UnknownOutcome("gone".to_owned())),
        Mood::Fails(StoreError::Row("locked".to_owned())),
    ] {
        rig.intake.set(mood.clone());
        let reply = rig.send(&request).await;
        assert_eq!((reply.status, reply.body.len()), (503, 0), "{mood:?}");
        let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=5).contains(&seconds));
    }
    rig.intake.set(Mood::Commits);
    assert_eq!(rig.send(&request).await.status, 200);
    rig.end().await;
}

// W-068, W-038: without a secret that is valid now nobody can be judged, and that is no fault of who sends.
#[tokio::test]
async fn a_source_without_a_live_secret_is_503_with_retry_after_and_accuses_nobody() {
    let rig = Rig::serving(vec![Arc::new(source("shop", expired(&Parts::default())))], |_| {}).await;
    for token in ["x-token: good", "x-token: bad"] {
        let reply = rig.send(post("/in/shop", &[token], b"{\"id\":\"e1\"}")).await;
        assert_eq!((reply.status, reply.body.len()), (503, 0), "{token}");
        assert!(reply.header("retry-after").is_some(), "{token}");
    }
    assert_eq!(rig.intake.kept(), 0);
    // What is refused goes to the quarantine; of the two above nothing is there before this one.
    assert_eq!(rig.send(b"PATCH /in/shop HTTP/1.1\r\nhost: a\r\n\r\n").await.status, 405);
    assert_eq!(rig.intake.rejections(1).await[0].code, "method_not_allowed");
    rig.end().await;
}

// W-101: a handshake works while the store is away.
#[tokio::test]
async fn a_handshake_needs_no_store() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Refuses(StoreError::Unavailable("gone".to_owned())));
    let reply = rig.send("HEAD /in/probe HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(reply.status, 200);
    rig.end().await;
}

// W-101: the shipped one that platforms ask while a source is set up.
#[tokio::test]
async fn slacks_challenge_is_answered_while_the_store_is_away() {
    let rig = Rig::serving(vec![Arc::new(source("slack", shipped("slack", b"secret")))], |_| {}).await;
    rig.intake.set(Mood::Refuses(StoreError::Unavailable("gone".to_owned())));
    let asked = br#"{"token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}"#;
    let reply = rig.send(post("/in/slack", &["content-type: application/json"], asked)).await;
    let expected = r#"{"challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}"#;
    assert_eq!((reply.status, reply.text().as_str()), (200, expected));
    assert_eq!(rig.intake.kept(), 0);
    rig.end().await;
}

#[tokio::test]
async fn two_hundred_copies_wait_for_the_first_commit() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Holds);
    let request = post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}");
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut client = rig.connect().await;
        client.write(&request).await;
        clients.push(client);
    }
    rig.intake.submitted(200).await;
    for client in &mut clients[..3] {
        assert!(client.hears_nothing().await, "no answer before the commit");
    }
    rig.intake.release();
    let mut receipts = std::collections::HashSet::new();
    for client in &mut clients {
        let reply = client.read().await.unwrap();
        assert_eq!(reply.status, 200);
        receipts.insert(reply.header("makbuz-receipt").unwrap().to_owned());
    }
    assert_eq!((receipts.len(), rig.intake.receipts()), (1, 1));
    rig.end().await;
}

#[tokio::test]
async fn past_the_answers_limit_it_is_503_while_the_commit_goes_on() {
    let rig = Rig::with(|config| config.answer_max = Duration::from_millis(50)).await;
    rig.intake.set(Mood::Holds);
    let reply = rig.send(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    assert_eq!(reply.status, 503);
    assert!(reply.header("retry-after").is_some());
    rig.intake.release();
    assert_eq!(rig.intake.receipts(), 1);
    rig.end().await;
}

#[tokio::test]
async fn the_providers_own_limit_less_a_second_counts_where_it_is_smaller() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Holds);
    let reply = rig.send(post("/in/hurry", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    assert_eq!(reply.status, 503, "well before the edge's own eight seconds");
    rig.end().await;
}

#[tokio::test]
async fn a_sender_that_leaves_costs_nothing_and_its_event_is_kept() {
    let rig = Rig::with(|config| config.bytes_max = 64 * 1024).await;
    rig.intake.set(Mood::Holds);
    let body = [b"{\"id\":\"e1\",\"x\":\"".as_slice(), &[b'x'; 40_000], b"\"}"].concat();
    let mut client = rig.connect().await;
    client.write(post("/in/shop", &["x-token: good"], &body)).await;
    rig.intake.submitted(1).await;
    client.stream.set_zero_linger().unwrap();
    drop(client);
    // Its bytes stay counted until its commit is answered: what is not yet kept is still held.
    rig.intake.set(Mood::Commits);
    let second = body.clone();
    let second = [b"{\"id\":\"e2\"".as_slice(), &second[10..]].concat();
    let request = post("/in/shop", &["x-token: good"], &second);
    assert_eq!(rig.send(&request).await.status, 503);
    rig.intake.release();
    loop {
        // The share comes back a moment after the commit's answer.
        if rig.send(&request).await.status == 200 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.intake.receipts(), 2);
    rig.end().await;
}

// W-113
#[tokio::test]
async fn cookies_and_origins_mean_nothing_here() {
    let rig = Rig::start().await;
    for headers in [
        &["x-token: good", "cookie: session=stale"][..],
        &["x-token: good", "origin: https://evil.test", "sec-fetch-site: cross-site"],
        &["x-token: good", "referer: https://evil.test/"],
    ] {
        assert_eq!(rig.send(post("/in/shop", headers, b"{\"id\":\"e1\"}")).await.status, 200, "{headers:?}");
    }
    rig.end().await;
}

// W-065
#[tokio::test]
async fn the_peer_is_what_a_trusted_proxy_says() {
    let request = post("/in/shop", &["x-token: good", "x-forwarded-for: [2001:db8::1]:443"], b"{\"id\":\"e1\"}");
    let rig = Rig::start().await;
    assert_eq!(rig.send(&request).await.status, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.peer.clone()), "127.0.0.1");
    rig.end().await;
    let rig = Rig::with(|config| config.trusted_proxies.networks.push("127.0.0.0/8".parse().unwrap())).await;
    assert_eq!(rig.send(&request).await.status, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.peer.clone()), "2001:db8::1");
    rig.end().await;
}

// W-158
#[tokio::test]
async fn headers_that_are_no_ascii_never_panic() {
    let rig = Rig::start().await;
    for header in [&b"x-event: p\xffsh"[..], "x-topic: тест".as_bytes(), b"content-type: \xff\xfe", b"x-token: \xff"]
    {
        let mut request = b"POST /in/shop HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nx-token: good\r\n".to_vec();
        request.extend_from_slice(header);
        request.extend_from_slice(b"\r\n\r\n{}");
        let status = rig.send(request).await.status;
        assert!([200, 400, 401].contains(&status), "{status} for {header:?}");
    }
    // W-020: a byte 00 in a header is broken HTTP.
    let reply = rig.send(b"POST /in/shop HTTP/1.1\r\nhost: a\r\nx-a: \x00\r\ncontent-length: 2\r\n\r\n{}").await;
    assert_eq!(reply.status, 400);
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], b"{}")).await.status, 200, "and others go on");
    rig.end().await;
}

// W-014
#[tokio::test]
async fn an_encoded_body_is_415() {
    let rig = Rig::start().await;
    for encoding in ["gzip", "GZIP ", "br", "identity, gzip", "\u{fe}"] {
        let header = format!("content-encoding: {encoding}");
        let reply = rig.send(post("/in/shop", &["x-token: good", &header], b"{}")).await;
        assert_eq!(reply.status, 415, "{encoding}");
    }
    assert_eq!(rig.send(post("/in/shop", &["x-token: good", "content-encoding: identity"], b"{}")).await.status, 200);
    let kept = rig.intake.rejections(5).await;
    assert!(kept.iter().all(|rejection| rejection.code == "content_encoding"));
    rig.end().await;
}

#[tokio::test]
async fn a_panic_in_one_request_is_503_and_the_others_go_on() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Panics);
    let reply = rig.send(post("/in/shop", &["x-token: good"], b"{}")).await;
    assert_eq!(reply.status, 503);
    assert!(reply.header("retry-after").is_some());
    rig.intake.set(Mood::Commits);
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], b"{}")).await.status, 200);
    rig.end().await;
}
