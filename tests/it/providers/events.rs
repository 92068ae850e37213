//! What comes out of an authentic request: nothing lost, nothing guessed.

use super::rig::*;
use makbuz::model::receipt::{Flag, HoldReason, Mode};
use makbuz::provider::{Received, RejectionCode};

fn github(body: impl Into<bytes::Bytes>) -> (Rig, makbuz::provider::SignedRequest) {
    let rig = Rig::with("github", &["test_secret"]);
    let request = rig.sign_body(body);
    (rig, request)
}

/// V1, V2, V4, V5, V7, V8: the field reports' own vectors.
#[test]
fn v1_to_v8_known_signatures_are_accepted() {
    let github = Rig::with("github", &["test_secret"]);
    for (body, signature) in [
        (UGLY, "3deb50f937dce9c6e2d35de0112a0f302c3b0421bc5437d67fca62c4146f7556"),
        (
            "7b226964223a226431222c2274223a226f6b20f09f988a20c3a720e280a6227d",
            "2c9c88749c6f17332a14a62e0f15661bdcf47bcf6837d88ad8a0a8310bcc6c12",
        ),
        (
            "5b7b226576656e74223a2270726f636573736564222c2273675f6576656e745f6964223a226131227d2c0d0a7b226576656e74223a226f70656e222c2273675f6576656e745f6964223a226132227d5d0d0a",
            "5480e6722c4b58912eadae162de32b6bc45ff71fc7664e14e99965b49d6fb5d3",
        ),
        ("", "f7f9bd47fb987337b5796fdc1fdb9ba221d0d5396814bfcaf9521f43fd8927fd"),
    ] {
        let value = format!("sha256={signature}");
        let whole = bytes(body);
        github.verified(&raw("POST", &[("X-Hub-Signature-256", &value)], whole.clone()));
        // W-005: no byte may be cut, none added.
        if let Some(cut) = whole.len().checked_sub(1) {
            assert_eq!(
                github.code(&raw("POST", &[("X-Hub-Signature-256", &value)], whole[..cut].to_vec())),
                RejectionCode::BadSignature
            );
        }
        let longer = [&whole[..], b"\n"].concat();
        assert_eq!(github.code(&raw("POST", &[("X-Hub-Signature-256", &value)], longer)), RejectionCode::BadSignature);
    }
    let shopify = Rig::with("shopify", &["test_secret"]);
    shopify.verified(&raw(
        "POST",
        &[("x-shopify-hmac-sha256", "PetQ+Tfc6cbi013gESoPMCw7BCG8VDfWf8pixBRvdVY=")],
        bytes(UGLY),
    ));
    let stripe = Rig::with("stripe", &["whsec_test"]);
    let signature = "t=1700000000,v1=0833466e10bc00f4f8878c9ee348560ee6a68bf3679a5821f88041f664932153";
    let event = stripe.event(&raw("POST", &[("Stripe-Signature", signature)], bytes(UGLY)));
    assert_eq!((&*event.event_id, &*event.account, event.hold), ("evt_T1", "", None));
    // W-016: base64 of the body is another body.
    let encoded = "eyJpZCI6ImV2dF9UMSJ9";
    assert_eq!(stripe.code(&raw("POST", &[("Stripe-Signature", signature)], encoded)), RejectionCode::BadSignature);
}

/// V13, V14: fields joined as the providers join them. W-059: no escaping, absent and null are empty.
#[test]
fn v13_v14_w059_field_signatures() {
    let key = "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF";
    let adyen = Rig::with("adyen", &[key]);
    let item = |extra: &str| {
        let body = format!(
            r#"{{"live":"true","notificationItems":[{{"NotificationRequestItem":{{"additionalData":{{"hmacSignature":"sVxRzF6Om4mieHuY8Mh73IIi6pd9BFA+PkNBz9DByAk="}},"amount":{{"currency":"EUR","value":1250}},"eventCode":"AUTHORISATION","merchantAccountCode":"ACC_TEST","merchantReference":"01-02-2024-10:11:12","pspReference":"PSP1","success":"false"{extra}}}}}]}}"#
        );
        raw("POST", &[], body)
    };
    for extra in ["", r#","originalReference":"""#, r#","originalReference":null"#, r#","reason":"https://x.test/a/b""#]
    {
        let event = adyen.event(&item(extra));
        assert_eq!((&*event.account, &*event.provider_ref, event.mode), ("ACC_TEST", "PSP1", Mode::Live));
        assert_eq!(event.event_id, "AUTHORISATION|PSP1|false|");
    }
    let mut paytr = settings(vec![secret("s", "pk")]);
    paytr.params = params(&[("merchant_salt", "ps")]);
    let paytr = Rig::bound("paytr", paytr);
    let body = "merchant_oid=ORD1&status=success&total_amount=1250&hash=ZxUYbt3F7ZPYYmEKBgdDnmeIsFhFThsP0W4Q3dqBq1g%3D";
    let event = paytr.event(&raw("POST", &[], body));
    assert_eq!((&*event.event_id, &*event.provider_ref, &*event.event_type), ("ORD1|success", "ORD1", "success"));
    assert_eq!(paytr.inlet.reply_accepted().body, "OK");
    assert_eq!(paytr.inlet.reply_accepted().content_type.as_deref(), Some("text/plain"));
}

/// V11: two values under one name, one empty value.
#[test]
fn v11_twilio_repeated_keys() {
    let rig = Rig::with("twilio", &["twilio_token"]);
    let headers =
        [("x-twilio-signature", "cjFrTgTkOZaStKveOiQjMrHFcl8="), ("content-type", "application/x-www-form-urlencoded")];
    let request = raw("POST", &headers, "Address=%2B15550002&Address=%2B15550001&Body=&From=%2B15550003");
    let Ok(Received::Events(verified)) = rig.inlet.receive(&inbound(&request, "https://hooks.example.test/twilio"))
    else {
        panic!("refused")
    };
    assert_eq!(verified.events[0].hold, Some(HoldReason::NoId));
}

/// W-061, W-062: repeated keys by value, equal ones once, everything unknown takes part.
#[test]
fn w061_w062_twilio_forms() {
    let rig = Rig::with("twilio", &["twilio_token"]);
    let base = "Address=%2B2&Address=%2B1&Body=&From=%2B3&MessageSid=SM1";
    let addons = format!("{base}&AddOns=%7B%22status%22%3A%22successful%22%7D");
    let forty: String = (0..40).map(|n| format!("&F{n}={n}")).collect();
    let mut request = rig.sign("message.delivered");
    for body in [base.to_owned(), addons, format!("{base}{forty}")] {
        let signed = makbuz::provider::SignRequest { body: Some(body.into()), ..rig.request() };
        request = rig.inlet.sign(&signed).expect("signed");
        rig.verified(&request);
    }
    // The order of arrival does not count, the names do.
    let turned: Vec<u8> = request.body.split(|byte| *byte == b'&').rev().collect::<Vec<_>>().join(&b'&');
    rig.verified(&makbuz::provider::SignedRequest { body: turned.into(), ..request.clone() });
    // W-064: the configured URL counts, whatever the request's own says.
    let mut fixed = settings(vec![secret("s", "twilio_token")]);
    fixed.url = Some(URL.to_owned());
    let fixed = Rig::bound("twilio", fixed);
    assert!(fixed.inlet.receive(&inbound(&request, "http://internal:8080/in/x")).is_ok());
    assert!(rig.inlet.receive(&inbound(&request, "http://internal:8080/in/x")).is_err());
}

/// W-001, W-002, W-007: bytes count, not what a parser would make of them, nor what the content type says.
#[test]
fn w001_w002_w007_bodies_are_taken_as_they_come() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    for body in [
        r#"{"id":"a","u":"https:\/\/x.test\/a","n":"A\u0026B","e":[],"f":1.50}"#,
        "{\n  \"b\" : 1,\n  \"id\" : \"a\"\n}",
        r#"{"a":1,"id":"a"}"#,
    ] {
        let request = rig.sign_body(body);
        for kind in [
            "text/plain; charset=UTF-8",
            "application/hal+json",
            "application/json; charset=iso-8859-9",
            "application/x-www-form-urlencoded",
        ] {
            assert_eq!(rig.event(&header(&request, "content-type", kind.as_bytes())).event_id, "a");
        }
        let mut none = request.clone();
        none.headers.remove("content-type");
        assert_eq!(rig.event(&none).event_id, "a");
    }
}

/// W-010: the same event as a form; `%2B` is a plus.
#[test]
fn w010_github_forms_hold_the_same_event() {
    let rig = Rig::with("github", &["test_secret"]);
    let request = makbuz::provider::SignRequest {
        body: Some("payload=%7B%22zen%22%3A%22a%2Bb%22%2C%22repository%22%3A%7B%22full_name%22%3A%22o%2Br%22%2C%22id%22%3A5%7D%7D".into()),
        event_type: Some("push"),
        headers: &[(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/x-www-form-urlencoded"))],
        ..rig.request()
    };
    // The template's content type is JSON: what is asked for wins.
    let mut signed = rig.inlet.sign(&request).expect("signed");
    assert_eq!(signed.headers["content-type"], "application/x-www-form-urlencoded");
    signed.headers.remove("x-github-hook-installation-target-id");
    let event = rig.event(&signed);
    assert_eq!((&*event.account, event.resource_key.as_deref(), event.hold), ("o+r", Some("repository/5"), None));
    let broken = makbuz::provider::SignRequest { body: Some("payload=%7B".into()), ..request };
    assert_eq!(rig.held(&rig.inlet.sign(&broken).expect("signed")), HoldReason::Unparsable);
}

/// W-004, W-013, W-026: authentic and unreadable is kept, never refused, never a panic.
#[test]
fn w004_w013_w026_authentic_but_unreadable_is_held() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    let deep = "[".repeat(100_000);
    for (body, reason) in [
        (&b""[..], HoldReason::Unparsable),
        (b"{\"id\":\"a\",\"d\":\"\xff\xfe\"}", HoldReason::Unparsable),
        (b"{\"id\":\"a\"", HoldReason::Unparsable),
        (b"not json", HoldReason::Unparsable),
        (deep.as_bytes(), HoldReason::Unparsable),
        (b"[]", HoldReason::WrongShape),
        (b"null", HoldReason::WrongShape),
        (b"\"x\"", HoldReason::WrongShape),
        (b"{\"id\":{}}", HoldReason::WrongShape),
        (b"{\"id\":[\"a\"]}", HoldReason::WrongShape),
        (b"{\"id\":\"\\ud83d\"}", HoldReason::WrongShape),
        (b"{\"id\":null}", HoldReason::NoId),
        (b"{\"id\":\"\"}", HoldReason::NoId),
        (b"{\"data\":{\"object\":[]}}", HoldReason::NoId),
        (b"{\"id\":\"evt_A\",\"id\":\"evt_B\"}", HoldReason::IdTwice),
        (b"{\"id\":\"evt_A\",\"\\u0069d\":\"evt_A\"}", HoldReason::IdTwice),
        (b"{\"id\":\"a\",\"account\":\"x\",\"account\":\"y\"}", HoldReason::IdTwice),
        (b"{\"id\":\"a\",\"type\":\"x\",\"type\":\"y\"}", HoldReason::IdTwice),
    ] {
        let request = rig.sign_body(body.to_vec());
        assert_eq!(rig.held(&request), reason, "{}", String::from_utf8_lossy(&body[..body.len().min(60)]));
        let unsigned = raw("POST", &[], body.to_vec());
        assert_eq!(rig.code(&unsigned), RejectionCode::MissingSignature);
    }
    let mut deliver = settings(vec![secret("s", "whsec_test")]);
    deliver.hold_malformed = false;
    let event = Rig::bound("stripe", deliver).event(&rig.sign_body("[]"));
    assert!(event.hold.is_none() && event.event_id.starts_with("sha256:"));
}

/// W-013: an empty body with an id in its signed headers is an event where the specification allows it.
#[test]
fn w013_standard_webhooks_may_be_empty() {
    let rig = Rig::new("standard-webhooks");
    let event = rig.event(&rig.sign_body(""));
    assert_eq!((&*event.event_id, event.hold), ("msg_id1", None));
    let (github, request) = github("");
    assert_eq!(github.held(&request), HoldReason::Unparsable);
    assert_eq!(github.event(&request).provider_ref, "id1", "what could be read is shown");
}

/// W-020, W-022: escaped NUL, lone surrogates, a byte order mark: nothing that the id does not need can hurt it.
#[test]
fn w020_w022_odd_text_elsewhere_costs_nothing() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    for (body, id) in [
        (r#"{"id":"n1","d":"x\u0000y"}"#.to_owned(), "n1"),
        (r#"{"id":"n2","d":"x\\u0000y"}"#.to_owned(), "n2"),
        (r#"{"id":"s1","d":"\ud83d"}"#.to_owned(), "s1"),
        (r#"{"id":"s2","d":"\ude0a\ud83d"}"#.to_owned(), "s2"),
        ("\u{feff}{\"id\":\"b1\"}".to_owned(), "b1"),
        (format!(r#"{{"d":{}{},"id":"d1"}}"#, "[".repeat(500), "]".repeat(500)), "d1"),
        (r#"{"id":"caf\u00e9 \/"}"#.to_owned(), "café /"),
    ] {
        let event = rig.event(&rig.sign_body(body));
        assert_eq!((&*event.event_id, event.hold), (id, None));
    }
    let nul = rig.event(&rig.sign_body(r#"{"id":"a\u0000b","type":"c\u0000d"}"#));
    assert!(nul.event_id.starts_with("sha256:") && nul.flags.contains(&Flag::IdDigested) && nul.hold.is_none());
    assert!(!nul.provider_ref.contains('\0') && !nul.event_type.contains('\0'));
}

/// W-023: numbers keep their digits.
#[test]
fn w023_numbers_are_their_text() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    for id in ["9007199254740993", "9007199254740992", "18446744073709551616", "1e3", "-0", "1.50"] {
        assert_eq!(rig.event(&rig.sign_body(format!("{{\"id\":{id}}}"))).event_id, id);
    }
}

/// W-097: long ids become their digest, the account too.
#[test]
fn w097_long_ids_are_digested() {
    let rig = Rig::with("stripe", &["whsec_test"]);
    let event = |length: usize| rig.event(&rig.sign_body(format!("{{\"id\":\"{}\"}}", "x".repeat(length))));
    assert_eq!(event(255).event_id.len(), 255);
    for length in [256, 3000, 100_000] {
        let event = event(length);
        assert_eq!((event.event_id.len(), event.hold), (71, None));
        assert!(event.flags.contains(&Flag::IdDigested) && event.provider_ref.len() <= 1024);
    }
    let event = rig.event(&rig.sign_body(format!(r#"{{"id":"a","account":"{}"}}"#, "y".repeat(129))));
    assert!(event.account.starts_with("sha256:") && event.flags.contains(&Flag::IdDigested));
}

/// W-046, W-158: header names in any case; values that are no text are refused where they are needed.
#[test]
fn w046_w158_headers() {
    let (rig, request) = github("{}");
    for name in ["x-github-event", "x-github-delivery", "x-github-hook-installation-target-id"] {
        assert_eq!(rig.code(&header(&request, name, b"p\xffsh")), RejectionCode::MalformedSignature);
        let mut doubled = request.clone();
        doubled.headers.append(name, http::HeaderValue::from_static("again"));
        assert_eq!(rig.code(&doubled), RejectionCode::DuplicateHeader);
    }
    let (rig, request) = github("{}");
    rig.verified(&header(&request, "x-unrelated", b"\xff\xfe"));
}

/// W-005, W-130: SendGrid's CRLF batch, each item its exact slice.
#[test]
fn w005_sendgrid_batches() {
    let rig = Rig::new("sendgrid");
    let request = rig.sign("open");
    assert!(request.body.ends_with(b"\r\n"));
    let verified = rig.verified(&request);
    let ids: Vec<_> = verified.events.iter().map(|event| &*event.event_id).collect();
    assert_eq!(ids, ["id1-a", "id1-b"]);
    for (at, event) in verified.events.iter().enumerate() {
        assert_eq!(event.pointer, Some(format!("/{at}")));
        let slice = &request.body[event.part.clone().expect("part")];
        let value: serde_json::Value = serde_json::from_slice(slice).expect("the item alone is JSON");
        assert_eq!(value["sg_event_id"], *event.event_id);
        assert_eq!(event.occurred_at, Some(NOW));
    }
    let mixed = rig.verified(&rig.sign_body(r#"[{"sg_event_id":"a"},1,{"sg_event_id":{}},{"event":"x"},null]"#));
    let holds: Vec<_> = mixed.events.iter().map(|event| event.hold).collect();
    let (shape, none) = (Some(HoldReason::WrongShape), Some(HoldReason::NoId));
    assert_eq!(holds, [None, shape, shape, none, shape]);
    assert_eq!(rig.held(&rig.sign_body("[]")), HoldReason::NoId);
    assert_eq!(rig.held(&rig.sign_body("{}")), HoldReason::WrongShape);
    let many = format!("[{}]", vec![r#"{"sg_event_id":"a"}"#; 5001].join(","));
    assert_eq!(rig.held(&rig.sign_body(many)), HoldReason::BatchTooLarge);
    let most = format!("[{}]", vec![r#"{"sg_event_id":"a"}"#; 5000].join(","));
    assert_eq!(rig.verified(&rig.sign_body(most)).events.len(), 5000);
}
