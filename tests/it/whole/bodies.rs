//! How large a body may be: as large as its provider's largest, which the provider's file knows.

use makbuz::clock::{Clock, SystemClock};
use makbuz::provider::SignRequest;

use super::super::support::client::{self, Client};
use super::super::support::sign;
use super::{House, SECRET, TOKEN};
use crate::edge::sources::shipped;

const FORGE: &str = "secret-of-the-forge-0123456789";

/// Headers and body of a push of `bytes` bytes, signed as GitHub signs.
fn push(id: &str, bytes: usize) -> (Vec<(String, String)>, Vec<u8>) {
    let (head, tail) =
        (format!("{{\"after\":\"{id}\",\"repository\":{{\"full_name\":\"octo/hello\"}},\"note\":\""), "\"}");
    let filler = "x".repeat(bytes - head.len() - tail.len());
    let body = format!("{head}{filler}{tail}").into_bytes();
    let request = SignRequest {
        event_type: Some("push"),
        body: Some(body.clone().into()),
        now: SystemClock.now(),
        id,
        ..SignRequest::default()
    };
    let signed = shipped("github", FORGE.as_bytes()).sign(&request).expect("signed");
    let text = |value: &http::HeaderValue| value.to_str().expect("ASCII").to_owned();
    (signed.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(), body)
}

/// W-029: a source has its provider's limit without anybody having to think of it; what is past it is counted where the
/// operator looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_source_takes_what_its_provider_sends_and_counts_what_it_cannot() {
    let more = "[[source]]\nname = \"forge\"\nprovider = \"github\"\nsecrets = [\"env:FORGE_SECRET\"]\n";
    // 25 MiB to a disk that others use as well.
    let house = House::embedded_with(more, &[("FORGE_SECRET", FORGE), ("MAKBUZ_EDGE__ANSWER_MAX", "25s")]);
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let bearer = [("Authorization".to_owned(), format!("Bearer {TOKEN}"))];
    for bytes in [65_537, 457 * 1024, 1_153_434, 26_109_542, 25 << 20] {
        let (headers, body) = push(&format!("d-{bytes}"), bytes);
        let answer = client::send(gateway.edge, "POST", "/in/forge", &headers, &body).await.expect("an answer");
        assert_eq!(answer.status, 200, "{bytes}: {}", answer.text());
        let path = format!("/v1/receipts/{}/body", answer.receipt().expect("C1: a 200 names its receipt"));
        let kept = client::send(gateway.admin, "GET", &path, &bearer, b"").await.expect("an answer");
        assert!(kept.status == 200 && kept.body == body, "C5: {bytes} bytes, as they came");
    }
    let refused = async |path: &str, headers: &[(String, String)], bytes: usize| {
        let mut client = Client::connect(gateway.edge).await.expect("it listens");
        let head = client.head("POST", path, headers, bytes);
        client.send_raw(&head).await.expect("sent");
        client.answer().await.expect("an answer").status
    };
    let (headers, body) = push("d-large", (25 << 20) + 1);
    assert_eq!(refused("/in/forge", &headers, body.len()).await, 413);
    // What is the forge's is not everybody's.
    let large = sign::body("evt_large", 5 << 20);
    assert_eq!(refused("/in/pay", &sign::headers(SECRET, &large), large.len()).await, 413);
    let scrape = client::send(gateway.admin, "GET", "/metrics", &[], b"").await.expect("an answer").text();
    for source in ["forge", "pay"] {
        let line = format!("makbuz_rejections_total{{source=\"{source}\",code=\"body_too_large\"}} 1");
        assert!(scrape.lines().any(|found| found == line), "{line}: {scrape}");
    }
    assert_eq!(house.store.read().await.receipts.len(), 5);
}
