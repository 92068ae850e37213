//! Handshakes, and deliveries of which only a part is accepted.

use super::rig::*;
use makbuz::provider::{RejectionCode, SignRequest, SignedRequest, SourceSettings};

/// W-055, W-101: a challenge is echoed when it is a plain token, and is no way to have something else said or signed.
#[test]
fn w055_w101_slack_challenge() {
    let rig = Rig::new("slack");
    let body = |challenge: &str| format!(r#"{{"type":"url_verification","challenge":"{challenge}"}}"#);
    let signed = rig.sign_body(body("c1"));
    let reply = rig.handshake(&signed).expect("handshake");
    assert_eq!((reply.status.as_u16(), &*reply.body), (200, &br#"{"challenge":"c1"}"#[..]));
    assert_eq!(rig.handshake(&raw("POST", &[], body("c1"))), Some(reply));
    let forged = header(&signed, "x-slack-signature", format!("v0={}", "0".repeat(64)).as_bytes());
    assert_eq!(rig.code(&forged), RejectionCode::BadSignature);
    for challenge in ["v0:1700000000:{}", &"a".repeat(257), "<script>", "a b", "", "x\\ny", "\\ud83d"] {
        assert_eq!(rig.code(&raw("POST", &[], body(challenge))), RejectionCode::MissingSignature, "{challenge}");
    }
}

#[test]
fn discord_pings_are_answered_only_when_signed() {
    let rig = Rig::new("discord");
    let ping = rig.sign_body(r#"{"version":1,"application_id":"1","type":0}"#);
    assert_eq!(rig.handshake(&ping).map(|reply| reply.status.as_u16()), Some(204));
    let interaction = rig.sign_body(r#"{"application_id":"1","id":"2","token":"t","type":1}"#);
    assert_eq!(rig.handshake(&interaction).map(|reply| reply.body), Some(br#"{"type":1}"#[..].into()));
    assert_eq!(rig.code(&raw("POST", &[], ping.body.clone())), RejectionCode::MissingSignature);
    assert_eq!(rig.inlet.reply_refused(RejectionCode::BadSignature).status, 401);
}

/// Each item says which secret proved it, and over what: under two keys in one batch, neither stands for the other.
#[test]
fn adyen_items_carry_their_own_proofs() {
    let keys = ["00112233445566778899AABBCCDDEEFF".repeat(2), "FFEEDDCCBBAA99887766554433221100".repeat(2)];
    let item = |key: &str, id: &str| {
        let rig = Rig::with("adyen", &[key]);
        let request = SignRequest { id, event_type: Some("AUTHORISATION"), ..rig.request() };
        let signed = rig.inlet.sign(&request).expect("signed");
        let body = String::from_utf8(signed.body.to_vec()).expect("text");
        let start = body.find('[').expect("a list") + 1;
        body[start..body.len() - 2].to_owned()
    };
    let items = [item(&keys[1], "a"), item(&keys[0], "b"), item(&keys[1], "a")];
    let body = format!(r#"{{"live":"false","notificationItems":[{}]}}"#, items.join(","));
    let verified = Rig::with("adyen", &[&keys[0], &keys[1]]).verified(&raw("POST", &[], body));
    let proofs: Vec<_> = verified.events.iter().map(|event| event.proof.as_ref().expect("its own proof")).collect();
    let labels: Vec<_> = proofs.iter().map(|proof| proof.verified_by.secret.as_str()).collect();
    assert_eq!(labels, ["s1", "s0", "s1"]);
    assert_ne!(proofs[0].signed_sha256, proofs[1].signed_sha256);
    assert_eq!(proofs[0].signed_sha256, proofs[2].signed_sha256, "the same signed fields");
}

/// W-131: each item on its own; the good are kept, the bad are counted.
#[test]
fn w131_adyen_items_stand_alone() {
    let rig = Rig::new("adyen");
    let item = |id: &str| {
        let request = SignRequest { id, event_type: Some("AUTHORISATION"), ..rig.request() };
        let signed = rig.inlet.sign(&request).expect("signed");
        let body = String::from_utf8(signed.body.to_vec()).expect("text");
        body.strip_prefix(r#"{"live":"false","notificationItems":["#)
            .and_then(|rest| rest.strip_suffix("]}"))
            .expect("shape")
            .to_owned()
    };
    let post = |items: &[String]| {
        let body = format!(r#"{{"live":"false","notificationItems":[{}]}}"#, items.join(" , "));
        raw("POST", &[], body)
    };
    let both = rig.verified(&post(&[item("a"), item("b")]));
    assert_eq!((both.events.len(), both.refused_items), (2, 0));
    assert_eq!(both.events[1].pointer.as_deref(), Some("/notificationItems/1/NotificationRequestItem"));
    assert!(
        both.events[1].event_id.starts_with("AUTHORISATION|b|true|2023-11-14T22:13:20Z"),
        "{}",
        both.events[1].event_id
    );
    let forged = item("b").replace("1000", "9");
    let mixed = rig.verified(&post(&[item("a"), forged.clone()]));
    assert_eq!((mixed.events.len(), mixed.refused_items), (1, 1));
    assert_eq!(mixed.events[0].provider_ref, "a");
    assert_eq!(rig.code(&post(std::slice::from_ref(&forged))), RejectionCode::BadSignature);
    // Past the limit nobody has looked at the rest: no receipt may hold it.
    let mut many = vec![item("a"); 5001];
    many.push(forged);
    assert_eq!(rig.code(&post(&many)), RejectionCode::BadSignature);
    assert_eq!(rig.code(&post(&[])), RejectionCode::MissingSignature);
    for body in ["", "{}", "[]", "null", r#"{"notificationItems":{}}"#, r#"{"notificationItems":[1,null,"x",[]]}"#] {
        let refused = rig.code(&raw("POST", &[], body));
        assert!(
            matches!(refused, RejectionCode::MissingSignature | RejectionCode::MalformedSignature),
            "{body}: {refused:?}"
        );
    }
}

/// Braintree's challenge is answered under the same key as notifications: only what no payload can be is signed.
#[test]
fn braintree_challenges_are_signed_and_nothing_else_is() {
    let settings = SourceSettings {
        params: params(&[("public_key", "pub")]),
        ..settings(vec![secret("first", "integration_private_key")])
    };
    let rig = Rig::bound("braintree", settings);
    let get = |query: &str| SignedRequest { query: Some(query.to_owned()), ..raw("GET", &[], "") };
    let challenge = "20f9f8ed05f77439fe955c977e4c8a53";
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, b"integration_private_key");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, digest.as_ref());
    let right = format!("pub|{}", hex::encode(ring::hmac::sign(&key, challenge.as_bytes())));
    let reply = rig.handshake(&get(&format!("bt_challenge={challenge}"))).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&reply.body), right);
    for odd in [
        "",
        "abc",
        "PG5vdGlmaWNhdGlvbj4K",
        &"0".repeat(33),
        "20F9F8ED05F77439FE955C977E4C8A53",
        "20f9f8ed05f77439fe9%0A",
    ] {
        assert!(rig.receive_at(&get(&format!("bt_challenge={odd}")), NOW).is_err(), "{odd}");
    }
}
