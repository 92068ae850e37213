//! Random bodies and random damage: what is signed is accepted, what is changed is not, nothing panics.

use std::sync::LazyLock;

use http::{HeaderName, HeaderValue};
use makbuz::provider::{Catalog, SignedRequest};
use proptest::prelude::*;

use super::rig::*;

/// Providers whose signature covers every byte of the body.
const WHOLE: [&str; 8] = ["stripe", "standard-webhooks", "github", "slack", "sendgrid", "discord", "shopify", "hmac"];

static RIGS: LazyLock<Vec<Rig>> = LazyLock::new(|| WHOLE.iter().map(|name| Rig::new(name)).collect());
static ALL: LazyLock<Vec<Rig>> = LazyLock::new(|| Catalog::embedded().names().map(Rig::new).collect());

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..200),
        any::<String>().prop_map(String::into_bytes),
        any::<String>()
            .prop_map(|text| serde_json::json!({ "id": text, "type": text, "account": text }).to_string().into_bytes()),
        "[\\{\\}\\[\\]\",:0-9a-z\\\\\r\n\u{0}&=%+]{0,60}".prop_map(String::into_bytes),
        Just(b"{\"id\":\"x\\u0000\"}\r\n".to_vec()),
        Just(b"\xff\xfe\x00{}".to_vec()),
    ]
}

proptest! {
    #[test]
    fn what_is_signed_is_accepted(body in body(), which in 0..WHOLE.len()) {
        let rig = &RIGS[which];
        let request = rig.sign_body(body);
        prop_assert!(rig.receive_at(&request, NOW).is_ok());
    }

    #[test]
    fn one_change_of_a_signed_request_is_refused(body in body(), which in 0..WHOLE.len(), at in any::<prop::sample::Index>(), change in 1_u8..=255, kind in 0..4) {
        let rig = &RIGS[which];
        let request = rig.sign_body(body);
        let mut bytes = request.body.to_vec();
        match kind {
            0 if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= change;
            }
            1 if !bytes.is_empty() => {
                bytes.remove(at.index(bytes.len()));
            }
            2 => bytes.push(change),
            _ => bytes.insert(0, change),
        }
        let changed = SignedRequest { body: bytes.into(), ..request };
        prop_assert!(rig.receive_at(&changed, NOW).is_err());
    }

    #[test]
    fn one_change_of_a_proof_is_refused(which in 0..WHOLE.len(), at in any::<prop::sample::Index>(), to in b'!'..b'~') {
        let rig = &RIGS[which];
        let request = rig.sign(rig.definition.template_types().next().expect("template"));
        let (name, value) = request
            .headers
            .iter()
            .find(|(name, _)| ["signature", "hmac"].iter().any(|part| name.as_str().contains(part)) && !name.as_str().contains("timestamp"))
            .map(|(name, value)| (name.clone(), value.as_bytes().to_vec()))
            .expect("proof");
        let mut bytes = value.clone();
        let at = at.index(bytes.len());
        // The case of hex digits, and names of further entries, count for nothing.
        prop_assume!(!bytes[at].eq_ignore_ascii_case(&to));
        bytes[at] = to;
        let changed = header(&request, name.as_str(), &bytes);
        prop_assert!(rig.receive_at(&changed, NOW).is_err(), "{name}: {}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn nothing_panics(
        which in 0..ALL.len(),
        body in body(),
        headers in proptest::collection::vec(("[a-z-]{1,12}", proptest::collection::vec(0x20_u8..0x7f, 0..40)), 0..6),
        query in proptest::option::of("[a-zA-Z0-9=&%+]{0,40}"),
        suffix in proptest::option::of("[a-z0-9/]{0,20}"),
        form in any::<bool>(),
        now in any::<i64>(),
        odd in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let rig = &ALL[which];
        let mut request = rig.sign(rig.definition.template_types().next().expect("template"));
        let names: Vec<HeaderName> = request.headers.keys().cloned().collect();
        for name in names {
            if let Ok(value) = HeaderValue::from_bytes(&odd) {
                let damaged = SignedRequest { headers: { let mut map = request.headers.clone(); map.insert(name, value); map }, ..request.clone() };
                let _ = rig.receive_at(&damaged, now);
            }
        }
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(&value)) {
                request.headers.insert(name, value);
            }
        }
        if form {
            request.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        }
        let request = SignedRequest { body: body.into(), query, suffix, ..request };
        let _ = rig.receive_at(&request, now);
    }
}
