//! What must never be accepted, provider by provider and field report by field report.

use super::rig::*;
use makbuz::model::receipt::Coverage;
use makbuz::provider::{Catalog, RejectionCode, SignRequest, SignedRequest};

/// Provider, and the headers that carry its proof.
const PROVED: &[(&str, &str)] = &[
    ("stripe", "stripe-signature"),
    ("standard-webhooks", "webhook-signature"),
    ("github", "x-hub-signature-256"),
    ("slack", "x-slack-signature"),
    ("iyzico", "x-iyz-signature-v3"),
    ("twilio", "x-twilio-signature"),
    ("sendgrid", "x-twilio-email-event-webhook-signature"),
    ("discord", "x-signature-ed25519"),
    ("shopify", "x-shopify-hmac-sha256"),
    ("hepsiburada", "authorization"),
    ("trendyol", "authorization"),
    ("hmac", "x-signature"),
    ("token", "authorization"),
    ("basic", "authorization"),
];

fn templates(rig: &Rig) -> Vec<SignedRequest> {
    let types: Vec<String> = rig.definition.template_types().map(str::to_owned).collect();
    types.iter().map(|event_type| rig.sign(event_type)).collect()
}

#[test]
fn each_template_of_each_provider_is_accepted_with_an_id_and_a_type() {
    for name in Catalog::embedded().names() {
        let rig = Rig::new(name);
        for request in templates(&rig) {
            let verified = rig.verified(&request);
            assert_eq!(verified.refused_items, 0, "{name}");
            for event in &verified.events {
                assert_eq!(event.hold, None, "{name}: {event:?}");
                assert!(!event.event_id.is_empty() && !event.provider_ref.is_empty(), "{name}: {event:?}");
                let generic = matches!(name, "hmac" | "token" | "basic");
                assert!(generic || event.event_type != "unknown", "{name}: {event:?}");
            }
        }
    }
}

#[test]
fn a_proof_that_is_missing_doubled_empty_or_not_ascii_is_refused() {
    for (name, carrier) in PROVED {
        let rig = Rig::new(name);
        for request in templates(&rig) {
            let value = request.headers[*carrier].clone();
            let mut missing = request.clone();
            missing.headers.remove(*carrier);
            assert_eq!(rig.code(&missing), RejectionCode::MissingSignature, "{name}");
            let mut doubled = request.clone();
            doubled.headers.append(*carrier, value.clone());
            assert_eq!(rig.code(&doubled), RejectionCode::DuplicateHeader, "{name}");
            let refused = rig.code(&header(&request, carrier, b""));
            assert!(
                matches!(refused, RejectionCode::MalformedSignature | RejectionCode::MissingSignature),
                "{name}: {refused:?}"
            );
            let odd = [value.as_bytes(), b"\xff"].concat();
            assert_eq!(rig.code(&header(&request, carrier, &odd)), RejectionCode::MalformedSignature, "{name}");
            let spaced = [b"  ", value.as_bytes(), b" \t"].concat();
            rig.verified(&header(&request, carrier, &spaced));
        }
    }
}

#[test]
fn another_secret_is_refused() {
    for name in Catalog::embedded().names().filter(|name| *name != "mollie-classic") {
        let (rig, other) = (Rig::new(name), Rig::seeded(name, 8));
        for request in templates(&other) {
            assert_eq!(rig.code(&request), RejectionCode::BadSignature, "{name}");
        }
    }
}

#[test]
fn a_changed_signed_field_is_refused() {
    for (name, event_type, from, to) in [
        ("paytr", "success", "total_amount=3456", "total_amount=3457"),
        ("paytr", "failed", "status=failed", "status=success"),
        ("iyzico", "API_AUTH", "\"SUCCESS\"", "\"FAILURE\""),
        ("iyzico", "CHECKOUT_FORM_AUTH", "\"token\":\"id1\"", "\"token\":\"id2\""),
        ("adyen", "AUTHORISATION", "\"value\":1000", "\"value\":1001"),
        ("adyen", "AUTHORISATION", "\"success\":\"true\"", "\"success\":\"false\""),
        ("twilio", "message.delivered", "MessageStatus=delivered", "MessageStatus=failed"),
        ("twilio", "message.delivered", "ApiVersion=2010-04-01", "ApiVersion=2010-04-01&More=1"),
    ] {
        let rig = Rig::new(name);
        let request = rig.sign(event_type);
        let body = String::from_utf8(request.body.to_vec()).expect("text");
        assert!(body.contains(from), "{name}: {body}");
        let changed = SignedRequest { body: body.replace(from, to).into(), ..request };
        assert_eq!(rig.code(&changed), RejectionCode::BadSignature, "{name}");
    }
}

/// PayTR signs `… + salt + status + total`: a digit that moves over the border verifies, so it must be recognised.
#[test]
fn a_digit_that_moves_between_signed_fields_is_refused_or_recognised() {
    let rig = Rig::new("paytr");
    let request = rig.sign("success");
    let body = String::from_utf8(request.body.to_vec()).expect("text");
    let moved = body.replace("status=success&total_amount=3456", "status=success3&total_amount=456");
    assert_ne!(moved, body);
    let changed = SignedRequest { body: moved.into(), ..request.clone() };
    match rig.receive_at(&changed, NOW) {
        Err(rejection) => assert_eq!(rejection.code, RejectionCode::BadSignature),
        Ok(_) => {
            let (first, second) = (rig.verified(&request), rig.verified(&changed));
            assert!(first.replay_guard && second.replay_guard);
            assert_eq!(first.signed_sha256, second.signed_sha256);
        }
    }
}

/// Where a part of the content is signed, the rest may be changed: the same part again is doubtful.
#[test]
fn each_shipped_provider_that_signs_fields_guards_against_replays() {
    let mut seen = Vec::new();
    let catalog = Catalog::embedded();
    for name in catalog.names() {
        let rig = Rig::new(name);
        for request in templates(&rig) {
            let verified = rig.verified(&request);
            // A shown secret is the same each time, and says nothing of a replay.
            let signs = !["token", "basic", "none"].contains(&&*verified.verified_by.mechanism);
            if signs && verified.verified_by.coverage != Coverage::Body {
                assert!(verified.replay_guard, "{name}");
                seen.push(name);
            }
        }
    }
    for name in ["paytr", "iyzico", "adyen", "twilio", "mercado-pago"] {
        assert!(seen.contains(&name), "{name} does not sign the body");
    }
}

/// W-025 where only fields are signed: two readers could see two values, so the second one proves nothing.
#[test]
fn w025_a_signed_field_that_stands_twice_is_refused() {
    for (name, event_type, from, to) in [
        ("paytr", "success", "status=success", "status=success&status=failed"),
        ("iyzico", "API_AUTH", "\"status\": \"SUCCESS\"", "\"status\": \"SUCCESS\", \"status\": \"FAILURE\""),
        ("adyen", "AUTHORISATION", "\"success\":\"true\"", "\"success\":\"true\",\"success\":\"false\""),
    ] {
        let rig = Rig::new(name);
        let request = rig.sign(event_type);
        let body = String::from_utf8(request.body.to_vec()).expect("text");
        assert!(body.contains(from), "{name}: {body}");
        let changed = SignedRequest { body: body.replace(from, to).into(), ..request };
        assert_eq!(rig.code(&changed), RejectionCode::MalformedSignature, "{name}");
    }
}

/// W-070, W-076: both sides of the window, and authentic-but-late is not "bad signature".
#[test]
fn w070_w076_signed_times_are_held_to_five_minutes_both_sides() {
    for name in ["stripe", "standard-webhooks", "slack", "sendgrid", "discord"] {
        let rig = Rig::new(name);
        for request in templates(&rig) {
            let at = |seconds: i64| {
                rig.receive_at(&request, NOW + seconds * 1_000_000).map(|_| ()).map_err(|rejection| rejection.code)
            };
            assert_eq!(at(299), Ok(()), "{name}");
            assert_eq!(at(301), Err(RejectionCode::Stale), "{name}");
            assert_eq!(at(-299), Ok(()), "{name}");
            assert_eq!(at(-301), Err(RejectionCode::Future), "{name}");
            assert_eq!(at(-3600), Err(RejectionCode::Future), "{name}");
            assert_eq!(at(i64::MAX / 2_000_000), Err(RejectionCode::Stale), "{name}");
        }
        let forged = Rig::seeded(name, 9);
        let stale = forged.sign(forged.definition.template_types().next().expect("template"));
        let code = rig.receive_at(&stale, NOW + 9_000_000_000).err().map(|rejection| rejection.code);
        assert_eq!(code, Some(RejectionCode::BadSignature), "{name}: the signature comes first");
    }
}

/// W-071: garbage as a time is its own refusal, signed or not.
#[test]
fn w071_garbage_timestamps_are_refused() {
    let rig = Rig::new("slack");
    let request = rig.sign("reaction_added");
    let garbage = [
        "abc",
        "",
        "1e9",
        "0x10",
        "17 00000000",
        "1700000000.5",
        "-1",
        "+1700000000",
        "99999999999999999999",
        "01700000000",
    ];
    for text in garbage {
        let changed = header(&request, "x-slack-request-timestamp", text.as_bytes());
        assert_eq!(rig.code(&changed), RejectionCode::BadTimestamp, "{text}");
    }
    let rig = Rig::with("stripe", &["whsec_test"]);
    let good = "v1=0833466e10bc00f4f8878c9ee348560ee6a68bf3679a5821f88041f664932153";
    for head in ["t=1700000000,t=1700000000,", "t=1700000000,t=1,", "t=,", "t= 1700000000,", ""] {
        let request = raw("POST", &[("stripe-signature", &format!("{head}{good}"))], bytes(UGLY));
        assert_eq!(rig.code(&request), RejectionCode::BadTimestamp, "{head}");
    }
}

/// W-031, W-044: every other spelling of the right signature is refused, and none of them panics.
#[test]
fn w031_w044_only_the_declared_spelling_counts() {
    let rig = Rig::with("github", &["test_secret"]);
    let right = "3deb50f937dce9c6e2d35de0112a0f302c3b0421bc5437d67fca62c4146f7556";
    let send = |value: &str| raw("POST", &[("X-Hub-Signature-256", value)], bytes(UGLY));
    rig.verified(&send(&format!("sha256={right}")));
    rig.verified(&send(&format!("sha256={}", right.to_uppercase())));
    rig.verified(&send(&format!(" sha256={right}\t")));
    let base64 = "PetQ+Tfc6cbi013gESoPMCw7BCG8VDfWf8pixBRvdVY=";
    let url_safe = base64.replace('+', "-").replace('/', "_");
    let wrong = [
        String::new(),
        "sha256=".to_owned(),
        "sha256=abc".to_owned(),
        right.to_owned(),
        format!("sha256={}", &right[1..]),
        format!("sha256={right}0"),
        format!("sha256={right}00"),
        format!("sha256={}", "z".repeat(64)),
        format!("sha1={right}"),
        format!("SHA256={right}"),
        format!("sha256= {right}"),
        format!("sha256={base64}"),
        format!("sha256={url_safe}"),
        format!("sha256={}", base64.trim_end_matches('=')),
        format!("sha256={}", &right[..32]),
        format!("sha256={right},"),
        format!("sha256={}ü", &right[1..]),
        "a".repeat(65_536),
    ];
    for value in wrong {
        let code = rig.code(&send(&value));
        assert_eq!(code, RejectionCode::MalformedSignature, "{}", &value[..value.len().min(80)]);
    }
    let rig = Rig::with("shopify", &["test_secret"]);
    let send = |value: &str| raw("POST", &[("X-Shopify-Hmac-Sha256", value)], bytes(UGLY));
    rig.verified(&send(base64));
    // The last character of the second carries bits that count for nothing.
    for value in [
        &*url_safe,
        "PetQ+Tfc6cbi013gESoPMCw7BCG8VDfWf8pixBRvdVZ=",
        "PetQ+Tfc6cbi013gESoPMCw7BCG8VDfWf8pixBRvdVY",
        right,
    ] {
        assert_eq!(rig.code(&send(value)), RejectionCode::MalformedSignature, "{value}");
    }
}

/// W-032: nothing that a refusal says helps to forge.
#[test]
fn w032_no_refusal_holds_the_right_signature() {
    let rig = Rig::with("github", &["test_secret"]);
    let wrong = format!("sha256={}", "0".repeat(64));
    let request = raw("POST", &[("X-Hub-Signature-256", &wrong)], bytes(UGLY));
    let rejection = rig.receive_at(&request, NOW).err().expect("refused");
    assert_eq!(rejection.code, RejectionCode::BadSignature);
    assert!(
        !rejection.detail.contains("3deb50f9") && !rejection.detail.contains("test_secret"),
        "{}",
        rejection.detail
    );
    assert!(rig.inlet.reply_refused(rejection.code).body.is_empty());
}

/// W-035, V10: lists with rotated and unknown versions.
#[test]
fn w035_lists_of_signatures() {
    let rig = Rig::with("standard-webhooks", &["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"]);
    let right = "v1,hRZpTKqPqOfJLrdfSsCLXMEQCvRhyjzrBWokHGiVe5o=";
    let send = |signature: &str| {
        let headers = [("webhook-id", "msg_1"), ("webhook-timestamp", "1700000000"), ("webhook-signature", signature)];
        raw("POST", &headers, bytes(UGLY))
    };
    let event = rig.event(&send(&format!("v1,AAAA v1a,zzzz {right}")));
    assert_eq!(event.event_id, "msg_1");
    assert_eq!(rig.code(&send(&right.replace("v1,", "v2,"))), RejectionCode::MissingSignature);
    let many = [right; 9].join(" ");
    assert_eq!(rig.code(&send(&many)), RejectionCode::MalformedSignature);
    let rig = Rig::with("stripe", &["whsec_test"]);
    let right = "v1=0833466e10bc00f4f8878c9ee348560ee6a68bf3679a5821f88041f664932153";
    let send = |value: &str| raw("POST", &[("Stripe-Signature", value)], bytes(UGLY));
    let bad = format!("v1={}", "ab".repeat(32));
    rig.verified(&send(&format!("t=1700000000,v0=x,{bad},{right}")));
    assert_eq!(
        rig.code(&send(&format!("t=1700000000,{}", right.replace("v1", "v0")))),
        RejectionCode::MissingSignature
    );
}

/// An id with a dot moves the border between the signed parts.
#[test]
fn standard_webhooks_ids_have_no_dot() {
    let rig = Rig::new("standard-webhooks");
    let request = SignRequest { id: "a.1", ..rig.request() };
    assert!(rig.inlet.sign(&request).is_err());
}

/// W-053: the URL's signature is right, the body is another one.
#[test]
fn w053_twilio_json_is_bound_to_its_digest() {
    let rig = Rig::new("twilio");
    let request = rig.sign("json");
    assert_eq!(rig.event(&request).event_id, "ZZid1|json|");
    let other = SignedRequest { body: "{\"sid\":\"forged\"}".into(), ..request.clone() };
    assert_eq!(rig.code(&other), RejectionCode::BodyMismatch);
    let without = SignedRequest { query: None, ..request.clone() };
    assert_eq!(rig.code(&without), RejectionCode::MissingSignature);
    let as_form = header(&other, "content-type", b"application/x-www-form-urlencoded");
    assert_eq!(rig.code(&as_form), RejectionCode::BodyMismatch);
    let empty = SignedRequest { body: "".into(), ..request };
    assert_eq!(rig.code(&empty), RejectionCode::BodyMismatch);
}

/// A URL signed without a body signs no body, whatever the method and the content type are then said to be.
#[test]
fn a_signed_get_carries_no_body() {
    let rig = Rig::with("twilio", &["12345"]);
    let query = "MessageSid=SM1&MessageStatus=sent&AccountSid=AC1";
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"12345");
    let tag = ring::hmac::sign(&key, format!("{URL}?{query}").as_bytes());
    let signature = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, tag);
    let get = SignedRequest { query: Some(query.to_owned()), ..raw("GET", &[("x-twilio-signature", &signature)], "") };
    let event = rig.event(&get);
    assert_eq!((&*event.event_id, &*event.account, &*event.event_type), ("SM1|sent|", "AC1", "message.sent"));
    let form = SignedRequest { body: "MessageSid=SM2".into(), ..get.clone() };
    assert_eq!(rig.code(&form), RejectionCode::MissingSignature);
    let named = header(&form, "content-type", b"application/x-www-form-urlencoded");
    assert_eq!(rig.code(&named), RejectionCode::BadSignature);
    let many = SignedRequest { body: "a=1&".repeat(5000).into(), ..named.clone() };
    assert_eq!(rig.code(&many), RejectionCode::MalformedSignature);
    let posted = SignedRequest { method: http::Method::POST, ..named };
    assert_eq!(rig.code(&posted), RejectionCode::BadSignature);
}

/// W-058: the weak signature never stands in for the strong one unless the source asks for it.
#[test]
fn w058_sha1_only_where_it_is_chosen() {
    let mut weak = settings(vec![secret("s", "test_secret")]);
    weak.params = params(&[("scheme", "sha1")]);
    let weak = Rig::bound("github", weak);
    let request = weak.sign("push");
    assert!(request.headers.contains_key("x-hub-signature"));
    assert_eq!(weak.verified(&request).verified_by.mechanism, "hmac-sha1");
    let strong = Rig::with("github", &["test_secret"]);
    assert_eq!(strong.code(&request), RejectionCode::MissingSignature);
    let both = header(&request, "x-hub-signature-256", format!("sha256={}", "0".repeat(64)).as_bytes());
    assert_eq!(strong.code(&both), RejectionCode::BadSignature);
}

#[test]
fn trendyol_takes_the_kind_of_proof_that_its_secret_is() {
    let key = Rig::with("trendyol", &["tr-api-key-1"]);
    let body = r#"{"shipmentPackageId":1,"status":"Created"}"#;
    assert_eq!(key.event(&raw("POST", &[("x-api-key", "tr-api-key-1")], body)).event_id, "1|Created|");
    assert_eq!(key.code(&raw("POST", &[("x-api-key", "tr-api-key-2")], body)), RejectionCode::BadSignature);
    assert_eq!(
        key.code(&raw("POST", &[("x-api-key", "tr-api-key-1"), ("authorization", "Basic eA==")], body)),
        RejectionCode::MissingSignature
    );
}

#[test]
fn methods_suffixes_and_paths_are_held_to_the_file() {
    let rig = Rig::new("stripe");
    let mut request = rig.sign("charge.succeeded");
    request.method = http::Method::PUT;
    assert_eq!(rig.code(&request), RejectionCode::Method);
    request.method = http::Method::POST;
    request.suffix = Some("more".to_owned());
    assert_eq!(rig.code(&request), RejectionCode::Suffix);
    assert!(Rig::new("hepsiburada").inlet.takes_suffix());
}
