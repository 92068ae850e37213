//! Many copies of one event, and a forgery before it: one receipt, one job, one message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::support::client;
use super::super::support::database::plain_id;
use super::super::support::sign;
use super::{House, SECRET};

/// W-098: the forger knows the id before the provider has sent it, and gains nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgery_with_its_id_does_not_keep_the_authentic_event_out() {
    let house = House::embedded();
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let body = sign::body("evt_forged_first", 100);
    let headers = sign::headers(SECRET, &body);
    let mut forged = body.clone();
    let at = forged.len() / 2;
    forged[at] ^= 1;
    let refused = client::send(gateway.edge, "POST", "/in/pay", &headers, &forged).await.expect("an answer");
    assert_eq!(refused.status, 401, "{}", refused.text());
    assert_eq!(house.store.read().await.receipts, BTreeMap::new(), "nothing of it is kept");
    let kept = client::send(gateway.edge, "POST", "/in/pay", &headers, &body).await.expect("an answer");
    assert_eq!(kept.status, 200, "{}", kept.text());
    let receipt = plain_id(kept.receipt().expect("C1: a 200 names its receipt"));
    let expected = BTreeMap::from([("evt_forged_first".to_owned(), receipt)]);
    assert_eq!(house.store.read().await.receipts, expected);
}

/// W-085: a provider that sends the same event over two hundred connections at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_copies_at_once_are_one_receipt_one_job_and_one_message() {
    let Some(house) = House::production().await else { return };
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let body = sign::body("evt_copied", 100);
    let headers = sign::headers(SECRET, &body);
    let mut copies = JoinSet::new();
    for _ in 0..200 {
        let (edge, headers, body) = (gateway.edge, headers.clone(), body.clone());
        copies.spawn(async move { client::send(edge, "POST", "/in/pay", &headers, &body).await });
    }
    let mut receipts = BTreeSet::new();
    while let Some(answer) = copies.join_next().await {
        let answer = answer.expect("no panic").expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        receipts.insert(plain_id(answer.receipt().expect("C1: a 200 names its receipt")));
    }
    let receipt = receipts.pop_first().expect("200 answers");
    assert!(receipts.is_empty(), "C3: other receipts than {receipt}: {receipts:?}");
    let kept = house.store.read().await;
    assert_eq!(kept.receipts, BTreeMap::from([("evt_copied".to_owned(), receipt.clone())]));
    assert_eq!(kept.jobs, 1, "one job for the one subscription");
    let messages = house.broker().take("all", 1, Duration::from_secs(30)).await;
    assert_eq!(messages.len(), 1, "one message");
    assert_eq!((&messages[0].receipt, &messages[0].body), (&receipt, &body));
}
