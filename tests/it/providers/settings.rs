//! What a source is bound with: secrets, params, windows, accounts.

use super::rig::*;
use makbuz::model::receipt::{Flag, HoldReason};
use makbuz::provider::{Catalog, Inbound, Received, RejectionCode, SourceSettings};

/// W-034, W-043, W-160: any live secret may match, which one is known, and none counts outside its time.
#[test]
fn w034_w043_w160_several_secrets_each_in_its_time() {
    let signed_by = |secret: &str| Rig::with("stripe", &[secret]).sign("charge.succeeded");
    let mut old = secret("old", "whsec_old");
    old.not_after = Some(NOW + 10);
    let mut new = secret("new", "whsec_new");
    new.not_before = Some(NOW - 10);
    let rig = Rig::bound("stripe", settings(vec![old, new]));
    for label in ["old", "new"] {
        let request = signed_by(&format!("whsec_{label}"));
        assert_eq!(rig.verified(&request).verified_by.secret, label);
    }
    let code = |secret: &str, at: i64| rig.receive_at(&signed_by(secret), at).err().map(|rejection| rejection.code);
    assert_eq!(code("whsec_old", NOW + 9), None);
    assert_eq!(code("whsec_old", NOW + 10), Some(RejectionCode::BadSignature));
    assert_eq!(code("whsec_new", NOW - 11), Some(RejectionCode::BadSignature));
    let mut gone = secret("gone", "whsec_gone");
    gone.not_after = Some(NOW);
    let rig = Rig::bound("stripe", settings(vec![gone]));
    assert_eq!(rig.code(&signed_by("whsec_gone")), RejectionCode::NoSecret);
    assert_eq!(rig.inlet.reply_refused(RejectionCode::NoSecret).status, 503);
}

/// W-037, W-038, W-040, V17: what is no secret never opens a source.
#[test]
fn w038_v17_empty_blank_and_undecodable_secrets_refuse_to_bind() {
    let reason = |name: &str, value: &str| {
        let settings =
            SourceSettings { params: definition(name).example_params(), ..settings(vec![secret("s", value)]) };
        let errors = definition(name).bind(settings).err().unwrap_or_else(|| panic!("{name} took `{value}`"));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for name in Catalog::embedded().names().filter(|name| *name != "mollie-classic") {
        for blank in ["", " ", "\n", "\t \r\n"] {
            assert!(reason(name, blank).contains("blank"), "{name}");
        }
        assert!(definition(name).bind(settings(Vec::new())).is_err(), "{name}");
    }
    for bad in ["whsec_!!!!", "whsec_", "whsec_A", "whpk_AAAA", "whpk_", "whsec_ QUJD"] {
        assert!(!reason("standard-webhooks", bad).is_empty());
    }
    assert!(reason("adyen", "not hex").contains("hex"));
    assert!(reason("sendgrid", "AAAA").contains("public key"));
    assert!(reason("discord", "abcd").contains("Ed25519"));
    assert!(reason("hepsiburada", "no-colon").contains("user:password"));
    let errors = definition("mollie-classic").bind(settings(vec![secret("s", "x")])).err().expect("refused");
    assert!(errors[0].reason.contains("signs nothing"));
}

/// W-037, V17: the secret is what its Base64 says; a MAC keyed with the text itself is a forgery.
#[test]
fn w037_v17_a_mac_keyed_with_the_text_of_the_secret_is_refused() {
    let text = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";
    let rig = Rig::with("standard-webhooks", &[text]);
    let body = bytes(UGLY);
    let signed = [b"msg_1.1700000000.", &*body].concat();
    let send = |key: &[u8]| {
        let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key), &signed);
        let signature = format!("v1,{}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, tag));
        let headers =
            [("webhook-id", "msg_1"), ("webhook-timestamp", "1700000000"), ("webhook-signature", &*signature)];
        raw("POST", &headers, body.clone())
    };
    rig.verified(&send(b"0123456789abcdef01234567"));
    for key in [text, &text["whsec_".len()..]] {
        assert_eq!(rig.code(&send(key.as_bytes())), RejectionCode::BadSignature, "{key}");
    }
}

/// W-055: an answer echoes nothing that could be a message or a page.
#[test]
fn w055_a_challenge_that_is_no_short_plain_token_is_not_echoed() {
    let rig = Rig::new("slack");
    let ask = |challenge: &str| {
        let body = serde_json::json!({ "type": "url_verification", "challenge": challenge });
        raw("POST", &[("content-type", "application/json")], body.to_string())
    };
    assert!(rig.handshake(&ask(&"a".repeat(256))).is_some());
    for odd in [&*"a".repeat(257), "", "a b", "<b>", "a:b", "a\n", "ü", "{}"] {
        assert_eq!(rig.code(&ask(odd)), RejectionCode::MissingSignature, "{odd}");
    }
}

/// W-040, W-041: the secret's bytes count as they are.
#[test]
fn w040_w041_secrets_are_byte_exact() {
    let body = bytes(UGLY);
    let headers = [("X-Hub-Signature-256", "sha256=3deb50f937dce9c6e2d35de0112a0f302c3b0421bc5437d67fca62c4146f7556")];
    let request = raw("POST", &headers, body);
    assert_eq!(Rig::with("github", &["test_secret\n"]).code(&request), RejectionCode::BadSignature);
    let odd = Rig::with("github", &["ab+/c=&x"]);
    odd.verified(&odd.sign("push"));
}

#[test]
fn settings_are_checked_all_at_once() {
    let mut wrong = settings(vec![secret("a", ""), secret("a", "x")]);
    wrong.params = params(&[("merchant_sald", "x")]);
    wrong.tolerance = Some(std::time::Duration::from_secs(60));
    let errors = definition("paytr").bind(wrong).err().expect("refused");
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in [
        "did you mean `merchant_salt`",
        "params.merchant_salt: is missing",
        "blank",
        "is there already",
        "signs no time",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let four = ["a", "b", "c", "d"].map(|label| secret(label, label)).into_iter().collect();
    let errors = definition("github").bind(settings(four)).err().expect("refused");
    assert!(errors[0].reason.contains("more than 3"));
}

#[test]
fn generic_sources_state_their_identity_or_refuse() {
    for name in ["hmac", "token", "basic"] {
        let errors = definition(name).bind(settings(vec![secret("s", "user:password")])).err().expect(name);
        assert!(errors.iter().any(|error| error.key == "params.id"), "{name}: {errors:?}");
        let mut bad = settings(vec![secret("s", "user:password")]);
        bad.params = params(&[("id", "jason:/id")]);
        let errors = definition(name).bind(bad).err().expect(name);
        assert!(errors.iter().any(|error| error.reason.contains("did you mean `json`")), "{name}: {errors:?}");
    }
}

#[test]
fn adyen_basic_authentication_is_a_second_lock_where_it_is_set() {
    let key = "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF";
    let request = Rig::with("adyen", &[key]).sign("AUTHORISATION");
    let mut locked = settings(vec![secret("s", key)]);
    locked.params = params(&[("basic_auth", "user:password")]);
    let rig = Rig::bound("adyen", locked);
    assert_eq!(rig.code(&request), RejectionCode::MissingSignature);
    rig.verified(&header(&request, "authorization", b"Basic dXNlcjpwYXNzd29yZA=="));
    assert_eq!(
        rig.code(&header(&request, "authorization", b"Basic dXNlcjpwYXNzd29yZQ==")),
        RejectionCode::BadSignature
    );
}

/// W-161: the account is the path's and the matching secret's; the body only may disagree.
#[test]
fn w161_an_account_is_bound_to_its_secret() {
    let of = |label: &str, value: &str| {
        let mut secret = secret(label, value);
        secret.params = params(&[("account", label)]);
        secret
    };
    let rig = Rig::bound("stripe", settings(vec![of("A", "whsec_a"), of("B", "whsec_b")]));
    let body = r#"{"id":"evt_1","account":"B","type":"x"}"#;
    let request = Rig::with("stripe", &["whsec_a"]).sign_body(body);
    let at_path = |account: &str| {
        let inbound = Inbound { path_account: Some(account), ..inbound(&request, URL) };
        rig.inlet.receive(&inbound)
    };
    let Ok(Received::Events(verified)) = at_path("A") else { panic!("refused") };
    let event = &verified.events[0];
    assert_eq!((&*event.account, event.hold), ("A", Some(HoldReason::AccountMismatch)));
    assert_eq!(at_path("B").err().map(|rejection| rejection.code), Some(RejectionCode::BadSignature));
    assert_eq!(at_path("C").err().map(|rejection| rejection.code), Some(RejectionCode::UnknownAccount));
    let unbound = rig.event(&request);
    assert_eq!((&*unbound.account, unbound.hold), ("A", Some(HoldReason::AccountMismatch)));
    // Malformed events may be asked for; a foreign account is no malformed event.
    let settings = SourceSettings { hold_malformed: false, ..settings(vec![of("A", "whsec_a")]) };
    let delivered = Rig::bound("stripe", settings).event(&request);
    assert_eq!((&*delivered.account, delivered.hold), ("A", Some(HoldReason::AccountMismatch)));
}

#[test]
fn a_wider_window_is_flagged_and_a_strict_one_caps_it() {
    let mut wide = settings(vec![secret("s", "whsec_test")]);
    wide.tolerance = Some(std::time::Duration::from_secs(3600));
    let rig = Rig::bound("stripe", wide);
    let request = rig.sign("charge.succeeded");
    let Ok(Received::Events(late)) = rig.receive_at(&request, NOW + 3_000_000_000) else { panic!("refused") };
    assert!(late.outside_window && late.events[0].flags.contains(&Flag::OutsideWindow));
    assert!(!rig.verified(&request).outside_window);
    let mut strict = settings(vec![secret("s", "whsec_test")]);
    strict.tolerance = Some(std::time::Duration::from_secs(3600));
    strict.window_strict = true;
    let rig = Rig::bound("stripe", strict);
    assert_eq!(
        rig.receive_at(&request, NOW + 3_000_000_000).err().map(|rejection| rejection.code),
        Some(RejectionCode::Stale)
    );
}

#[test]
fn credentials_are_never_among_the_kept_headers() {
    for name in Catalog::embedded().names() {
        let kept = Rig::new(name).inlet.kept_headers().to_vec();
        assert!(kept.iter().any(|name| name == "content-type"), "{name}");
        for credential in ["authorization", "x-api-key", "cookie", "x-hub-signature-256", "stripe-signature"] {
            assert!(!kept.iter().any(|name| name == credential), "{name} keeps {credential}");
        }
    }
}
