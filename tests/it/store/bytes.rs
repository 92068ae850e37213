//! Contract C5: what arrived is what is kept.

use std::sync::Arc;

use bytes::Bytes;
use makbuz::random::Random;
use makbuz::store::Store;

use super::harness::{Harness, both, deliver, deliver_one};

/// W-019, W-020: NUL, lone surrogates, invalid UTF-8, a BOM, nothing at all, and every byte there is.
pub async fn every_byte_comes_back_as_it_was_sent(store: Arc<dyn Store>, h: &Harness) {
    let all: Vec<u8> = (0..=255).collect();
    let mut large = vec![0; 3 * 1024 * 1024];
    h.random.fill(&mut large);
    let bodies: [&[u8]; 9] = [
        br#"{"a":"\u0000"}"#,
        br#"{"a":"\ud83d"}"#,
        b"{\"a\":\"\0\"}",
        b"{\"a\":\"\xff\xfe\x80\"}",
        b"\xef\xbb\xbf{}",
        b"",
        b"\0",
        &all,
        &large,
    ];
    for (n, body) in bodies.into_iter().enumerate() {
        let delivery = h.batch(vec![h.event(&format!("e{n}"), "x")], body, &both());
        let verdict = deliver(&store, delivery).await.expect("no body costs an event");
        let stored = store.body(verdict.events[0].receipt_id, false).await.unwrap();
        assert!(stored.body == body, "body {n}");
        assert_eq!(stored.content_type, "application/json");
    }
    // All of them in one transaction.
    let deliveries =
        bodies.into_iter().enumerate().map(|(n, body)| h.batch(vec![h.event(&format!("b{n}"), "x")], body, &both()));
    let heard = super::harness::deliver_all(&store, deliveries.collect()).await;
    for (n, (heard, body)) in heard.into_iter().zip(bodies).enumerate() {
        let id = heard.unwrap().events[0].receipt_id;
        assert!(store.body(id, true).await.unwrap().body == body, "body {n} of the batch");
    }
}

pub async fn an_item_of_a_batch_is_its_own_slice(store: Arc<dyn Store>, h: &Harness) {
    let body = br#"[{"id":1}, {"id":2}]"#;
    let mut events = vec![h.event("e1", "1"), h.event("e2", "2")];
    events[0].part = Some((1, 9));
    events[0].pointer = Some("/0".to_owned());
    events[1].part = Some((11, 19));
    let verdict = deliver(&store, h.batch(events, body, &both())).await.unwrap();
    let second = verdict.events[1].receipt_id;
    assert_eq!(&store.body(second, false).await.unwrap().body[..], br#"{"id":2}"#);
    assert_eq!(&store.body(second, true).await.unwrap().body[..], body);
    let view = store.receipt(verdict.events[0].receipt_id).await.unwrap().unwrap();
    assert_eq!((view.receipt.part, view.receipt.pointer.as_deref()), (Some((1, 9)), Some("/0")));
}

/// W-158: header values are bytes.
pub async fn headers_are_bytes_and_dropped_ones_leave_their_name(store: Arc<dyn Store>, h: &Harness) {
    let mut delivery = h.delivery("e1", "{}", &both());
    delivery.headers =
        vec![("x-topic".to_owned(), Bytes::from_static(b"p\xffsh")), ("x-empty".to_owned(), Bytes::new())];
    let sent = delivery.headers.clone();
    let verdict = deliver_one(&store, delivery).await;
    assert_eq!(store.receipt(verdict.receipt_id).await.unwrap().unwrap().headers, sent);
    assert_eq!(h.count("SELECT count(*) FROM payloads WHERE headers LIKE '%[\"cookie\"]%'").await, 1);
}

pub async fn nul_in_a_text_costs_no_event(store: Arc<dyn Store>, h: &Harness) {
    let mut delivery = h.delivery("e\0vil", "{}", &both());
    delivery.events[0].event_type = "a\0b".to_owned();
    delivery.events[0].resource_key = Some("k\0".to_owned());
    delivery.events[0].account = "acct\0".to_owned();
    delivery.url = "/in/web?\0".to_owned();
    let first = deliver_one(&store, delivery).await;
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert!(view.receipt.key.event_id.starts_with("sha256:"), "{}", view.receipt.key.event_id);
    assert_eq!(view.receipt.event_type, "a\u{fffd}b");
}
