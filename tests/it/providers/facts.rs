//! Identity, account, type and the other facts of an event.

use super::rig::*;
use makbuz::model::receipt::{Flag, HoldReason, Mode};
use makbuz::provider::{Received, RejectionCode};

/// W-086: the id is a resource; each delivery is kept.
#[test]
fn w086_mollie_deliveries_are_events() {
    let rig = Rig::new("mollie-classic");
    let verified = rig.verified(&raw("POST", &[], "id=tr_x"));
    assert!(verified.every_delivery && !verified.replay_guard);
    let event = &verified.events[0];
    assert_eq!((&*event.event_id, &*event.event_type), ("tr_x", "tr"));
    assert!(event.flags.contains(&Flag::EveryDelivery) && event.flags.contains(&Flag::Unsigned));
    assert_eq!(verified.verified_by.mechanism, "none");
    for body in ["", "id=", "x=1"] {
        assert_eq!(rig.held(&raw("POST", &[], body)), HoldReason::NoId, "{body}");
    }
    assert_eq!(rig.held(&raw("POST", &[], "id=tr_a&id=tr_b")), HoldReason::IdTwice);
    let long = rig.event(&raw("POST", &[], format!("id={}", "x".repeat(219))));
    assert!(long.event_id.starts_with("sha256:"), "room for the receipt's id");
    assert_eq!(long.provider_ref, long.event_id, "the store makes the key from it");
}

/// W-088: the topic is part of the key, the action's id is not.
#[test]
fn w088_shopify_keys() {
    let rig = Rig::with("shopify", &["test_secret"]);
    let event = |topic: &str, id: &str| {
        let request = rig.sign("orders/create");
        let request = header(&request, "x-shopify-topic", topic.as_bytes());
        rig.event(&header(&request, "x-shopify-webhook-id", id.as_bytes()))
    };
    assert_eq!(event("products/create", "w1").event_id, "products/create|w1");
    assert_ne!(event("products/create", "w1").event_id, event("products/update", "w1").event_id);
    assert_eq!(event("products/create", "w1").provider_ref, "w1");
    assert_ne!(event("a|b", "c").event_id, event("a", "b|c").event_id);
    assert!(event("a", "b").flags.contains(&Flag::AccountUnsigned));
    let verified = rig.verified(&rig.sign("orders/create"));
    assert!(verified.replay_guard);
    let mut without = rig.sign("orders/create");
    without.headers.remove("x-shopify-webhook-id");
    assert_eq!(rig.held(&without), HoldReason::NoId);
}

/// W-095: the same id under another account is another key; W-100, W-043: the same event has the same key.
#[test]
fn accounts_come_from_the_event_then_the_source() {
    let hmac = |account: Option<&str>| {
        let mut settings = settings(vec![secret("s", "test_secret")]);
        settings.params =
            params(&[("id", "json:/id"), ("account_from", "json:/shop"), ("type", "header:x-type ?? json:/kind")]);
        settings.account = account.map(str::to_owned);
        Rig::bound("hmac", settings)
    };
    let rig = hmac(None);
    let event = rig.event(&rig.sign_body(r#"{"id":1,"shop":"s1","kind":"k"}"#));
    assert_eq!((&*event.account, &*event.event_id, &*event.event_type), ("s1", "1", "k"));
    assert_eq!(rig.event(&rig.sign_body(r#"{"id":1}"#)).account, "@test");
    let rig = hmac(Some("mine"));
    assert_eq!(rig.event(&rig.sign_body(r#"{"id":1}"#)).account, "mine");
    assert_eq!(rig.event(&rig.sign_body(r#"{"id":1,"shop":"s1"}"#)).account, "s1");
}

#[test]
fn hepsiburada_types_come_from_method_and_path() {
    let rig = Rig::new("hepsiburada");
    let order = rig.event(&rig.sign("post.orders"));
    assert_eq!((&*order.event_type, &*order.account, &*order.provider_ref), ("post.orders", "merchant-1", "id1"));
    assert!(order.event_id.starts_with("POST|orders|id1|2023-11-14"), "{}", order.event_id);
    let package = rig.event(&rig.sign("put.packages/intransit"));
    assert_eq!((&*package.event_type, &*package.account), ("put.packages/intransit", "merchant-1"));
    assert!(package.event_id.starts_with("PUT|packages/id1/intransit|"), "{}", package.event_id);
    assert!(order.flags.contains(&Flag::Unsigned) && order.flags.contains(&Flag::AccountUnsigned));
}

/// Volatile fields do not make two deliveries of an event differ; everything else does.
#[test]
fn content_digests_leave_volatile_fields_out() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    let digest = |body: &str| rig.event(&rig.sign_body(body.to_owned())).item_sha256;
    let first = digest(r#"{"id":"a","pending_webhooks":1,"x":1}"#);
    assert_eq!(first, digest(r#"{"id":"a","pending_webhooks":22,"x":1}"#));
    assert_ne!(first, digest(r#"{"id":"a","pending_webhooks":1,"x":2}"#));
}

#[test]
fn stripe_facts() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    let event = rig.event(&rig.sign("invoice.paid"));
    assert_eq!((&*event.account, event.mode, event.occurred_at), ("acct_test1", Mode::Test, Some(NOW)));
    assert_eq!(event.resource_key.as_deref(), Some("invoice/in_id1"));
    assert_eq!(event.resource_version.as_deref(), Some("1700000000"));
    let verified = rig.verified(&rig.sign("invoice.paid"));
    assert_eq!(verified.verified_by.signed_at, Some(NOW));
    assert_eq!((&*verified.verified_by.mechanism, &*verified.verified_by.secret), ("hmac-sha256", "s0"));
}

/// W-163: retry headers are kept.
#[test]
fn w163_retry_headers() {
    let rig = Rig::new("slack");
    let request = header(&rig.sign("reaction_added"), "x-slack-retry-num", b"2");
    assert_eq!(rig.verified(&request).retry_headers, [("x-slack-retry-num".to_owned(), "2".to_owned())]);
}

/// The iyzico formula for subscriptions needs the merchant's id, and only that formula.
#[test]
fn iyzico_subscriptions_need_the_merchant_id() {
    let body = r#"{"iyziReferenceCode":"r1","iyziEventType":"subscription.order.success","subscriptionReferenceCode":"s1","orderReferenceCode":"o1","customerReferenceCode":"c1"}"#;
    let mut with = settings(vec![secret("s", "key")]);
    with.params = params(&[("merchant_id", "3404590")]);
    let with = Rig::bound("iyzico", with);
    let request = with.sign_body(body);
    assert_eq!(with.event(&request).event_id, "r1");
    let without = Rig::with("iyzico", &["key"]);
    assert_eq!(without.code(&request), RejectionCode::MissingSignature);
}

#[test]
fn generic_hmac_takes_every_usual_form() {
    let mut timed = settings(vec![secret("s", "74657374")]);
    timed.params = params(&[
        ("id", "header:x-event-id"),
        ("header", "x-sig"),
        ("algorithm", "sha512"),
        ("encoding", "base64"),
        ("prefix", "v1="),
        ("key", "hex"),
        ("signed", "header:x-event-id + '.' + timestamp + '.' + body"),
        ("timestamp", "header:x-time"),
        ("timestamp_unit", "ms"),
        ("content", "opaque"),
        ("keep", "x-event-id"),
    ]);
    let rig = Rig::bound("hmac", timed);
    let id = [("x-event-id".parse().expect("name"), http::HeaderValue::from_static("e1"))];
    let request = makbuz::provider::SignRequest { headers: &id, body: Some("<xml/>".into()), ..rig.request() };
    let signed = rig.inlet.sign(&request).expect("signed");
    let verified = rig.verified(&signed);
    assert_eq!((&*verified.events[0].event_id, verified.verified_by.signed_at), ("e1", Some(NOW)));
    assert!(rig.inlet.kept_headers().iter().any(|name| name == "x-event-id"));
    assert!(
        matches!(rig.receive_at(&signed, NOW + 301_000_000), Err(rejection) if rejection.code == RejectionCode::Stale)
    );
    let mut every = settings(vec![secret("s", "token-1")]);
    every.params = params(&[("id", ""), ("identity", "every-delivery"), ("from", "query:token"), ("prefix", "")]);
    let Err(errors) = definition("token").bind(every) else { panic!("a blank id is no identity") };
    assert!(errors.iter().any(|error| error.key == "params.id"));
    let mut query = settings(vec![secret("s", "token-1")]);
    query.params =
        params(&[("id", "body|sha256|hex"), ("identity", "every-delivery"), ("from", "query:token"), ("prefix", "")]);
    let rig = Rig::bound("token", query);
    let request = makbuz::provider::SignedRequest { query: Some("token=token-1".to_owned()), ..raw("POST", &[], "{}") };
    assert!(matches!(rig.receive_at(&request, NOW), Ok(Received::Events(verified)) if verified.every_delivery));
    let wrong = makbuz::provider::SignedRequest { query: Some("token=token-2".to_owned()), ..request };
    assert_eq!(rig.code(&wrong), RejectionCode::BadSignature);
}
