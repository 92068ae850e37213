//! Mechanisms that no shipped file uses yet: a file made here, and a known request that it must judge rightly. And what a
//! mechanism must refuse that no known request shows.

use makbuz::provider::{Catalog, Definition, RejectionCode, run_vector};

use super::rig::{NOW, Rig, raw};
use super::*;

/// Name, scheme and other sections, the lines of `[identity]`.
const FILES: &[(&str, &str, &str)] = &[
    (
        "midtrans",
        r#"mechanism = "hash-sha512"
signed = "json:/order_id + json:/status_code + json:/gross_amount + secret"
coverage = "fields"
signature = { from = "json:/signature_key", encoding = "hex" }
[event]
type = "json:/transaction_status""#,
        "provider_ref = \"json:/transaction_id\"\nkey = [\"json:/transaction_id\", \"json:/transaction_status\"]\nsigned = false",
    ),
    (
        "pagerduty",
        r#"mechanism = "hmac-sha256"
signed = "body"
coverage = "body"
signature = { from = "header:x-pagerduty-signature", name = "v1", separator = ",", encoding = "hex" }
[event]
type = "json:/event/event_type""#,
        "provider_ref = \"json:/event/id\"\nsigned = true",
    ),
    (
        "sanity",
        r#"mechanism = "hmac-sha256"
signed = "timestamp + '.' + body"
coverage = "body"
signature = { from = "header:sanity-webhook-signature", name = "v1", encoding = "base64url" }
timestamp = { from = "pair:t", unit = "ms" }"#,
        "provider_ref = \"json:/_id\"\nsigned = true",
    ),
    (
        "meta",
        r#"mechanism = "hmac-sha256"
signed = "body"
coverage = "body"
signature = { from = "header:x-hub-signature-256", prefix = "sha256=", encoding = "hex" }
[[handshake]]
name = "verify"
methods = ["GET"]
when = ["query:hub.mode == 'subscribe'", "query:hub.verify_token == secret"]
signed = "no"
content_type = "text/plain"
body = "query:hub.challenge|token""#,
        "provider_ref = \"json:/id\"\nsigned = true",
    ),
    (
        "zoom",
        r#"mechanism = "hmac-sha256"
signed = "'v0:' + timestamp + ':' + body"
coverage = "body"
signature = { from = "header:x-zm-signature", prefix = "v0=", encoding = "hex" }
timestamp = { from = "header:x-zm-request-timestamp" }
[[handshake]]
name = "validation"
when = ["json:/event == 'endpoint.url_validation'"]
signed = "required"
content_type = "application/json"
body = "'{\"plainToken\":' + json:/payload/plainToken|token|quote + ',\"encryptedToken\":' + json:/payload/plainToken|token|hmac-sha256|hex|quote + '}'""#,
        "provider_ref = \"json:/event_ts\"\nsigned = true",
    ),
    (
        "twitch",
        r#"mechanism = "hmac-sha256"
signed = "header:twitch-eventsub-message-id + timestamp + body"
coverage = "body"
signature = { from = "header:twitch-eventsub-message-signature", prefix = "sha256=", encoding = "hex" }
timestamp = { from = "header:twitch-eventsub-message-timestamp", unit = "iso8601" }
[[handshake]]
name = "verification"
when = ["header:twitch-eventsub-message-type == 'webhook_callback_verification'"]
signed = "required"
content_type = "text/plain"
body = "json:/challenge|token""#,
        "provider_ref = \"header:twitch-eventsub-message-id\"\nsigned = true",
    ),
    (
        "microsoft-graph",
        r#"mechanism = "token"
coverage = "none"
signature = { from = "json:/value/0/clientState" }
[[handshake]]
name = "validation"
when = ["query:validationToken"]
signed = "no"
content_type = "text/plain"
body = "query:validationToken""#,
        "provider_ref = \"json:/value/0/id\"\nsigned = false",
    ),
    (
        "trello",
        r#"mechanism = "hmac-sha1"
signed = "body + url"
coverage = "body"
signature = { from = "header:x-trello-webhook", encoding = "base64" }
[[handshake]]
name = "head"
methods = ["HEAD"]
signed = "no""#,
        "provider_ref = \"json:/action/id\"\nsigned = true",
    ),
];

fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    for (name, sections, identity) in FILES {
        let window = if sections.contains("timestamp = ") {
            String::new()
        } else {
            let guard = sections.contains("coverage = \"fields\"");
            format!("[window]\ncheck = \"none\"\nreplay_guard = {guard}\n")
        };
        let text = format!(
            "name = \"{name}\"\ntitle = \"T\"\ndocs = [\"d\"]\nevidence = \"docs\"\n[[scheme]]\n{sections}\n{window}[identity]\n{identity}\n\
             [[template]]\ntype = \"t\"\nbody = \"{{}}\"\n"
        );
        catalog.insert(name, format!("{name}.toml"), &text);
    }
    catalog
}

fn mechanism_vectors() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mechanisms");
    let paths = std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path());
    paths.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).expect("vector"))).collect()
}

#[test]
fn files_for_other_mechanisms_compile() {
    if let Err(errors) = catalog().check() {
        panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn known_requests_of_other_mechanisms_have_their_verdicts() {
    let catalog = catalog();
    let vectors = mechanism_vectors();
    assert_eq!(vectors.len(), FILES.len());
    let misses: Vec<_> = vectors
        .iter()
        .filter_map(|(path, text)| run_vector(&catalog, text).err().map(|reason| format!("{path}: {reason}")))
        .collect();
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

#[test]
fn another_secret_fails_each_of_them() {
    let catalog = catalog();
    for (path, text) in mechanism_vectors() {
        let mut vector: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        if vector["secret"].is_null() {
            continue;
        }
        vector["secret"] = "another".into();
        vector["expect"] = "invalid".into();
        assert_eq!(run_vector(&catalog, &vector.to_string()), Ok(()), "{path}");
    }
}

/// A verify token that is compared with nothing would let everybody in.
#[test]
fn an_empty_verify_token_answers_nobody() {
    let catalog = catalog();
    let (_, text) = mechanism_vectors().into_iter().find(|(path, _)| path.contains("meta")).expect("meta");
    for wrong in ["", "my-verify-toke", "my-verify-token2"] {
        let changed = text.replace("hub.verify_token=my-verify-token", &format!("hub.verify_token={wrong}"));
        let invalid = changed.replace("\"expect\": \"valid\"", "\"expect\": \"invalid\"");
        assert_ne!(changed, invalid);
        assert_eq!(run_vector(&catalog, &invalid), Ok(()), "{wrong}");
    }
}

/// N16: who shortens the list of signed fields, and can sign it, still says too little.
#[test]
fn a_list_of_signed_fields_holds_those_that_matter() {
    let rig = Rig::with("garanti-vpos", &["12345678"]);
    let fields = [("mdstatus", "1"), ("oid", "o-1"), ("response", "Approved"), ("procreturncode", "00"), ("rnd", "r1")];
    let post = |listed: &[&str]| {
        let value = |name: &str| fields.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value);
        let signed: String = listed.iter().map(|name| value(name)).collect::<String>() + "12345678";
        let hash = hex::encode_upper(ring::digest::digest(&ring::digest::SHA512, signed.as_bytes()));
        let all: String = fields.iter().map(|(name, value)| format!("{name}={value}&")).collect();
        let body = format!("{all}orderid=o-1&hashparams={}%3A&hash={hash}", listed.join("%3A"));
        raw("POST", &[("content-type", "application/x-www-form-urlencoded")], body)
    };
    let all = ["oid", "procreturncode", "response", "mdstatus", "rnd"];
    assert_eq!(rig.event(&post(&all)).event_id, "o-1|r1");
    for left_out in all {
        let listed: Vec<&str> = all.into_iter().filter(|name| *name != left_out).collect();
        assert_eq!(rig.code(&post(&listed)), RejectionCode::MissingSignature, "without {left_out}");
    }
    let unknown = [&all[..], &["nothing"]].concat();
    assert_eq!(rig.code(&post(&unknown)), RejectionCode::MissingSignature, "a field that is not there");
}

/// SHA-256 over `secret-body` can be continued without the secret: the body, the hash's own padding, and whatever follows.
#[test]
fn a_hash_that_others_can_continue_takes_no_padding() {
    let hash = |message: &[u8]| hex::encode(ring::digest::digest(&ring::digest::SHA256, message));
    let padding = b"\x80\0\0\0\0\x01";
    let body = br#"{"id":"ORDE_1","charges":[{"status":"PAID"}]}"#;
    let rig = Rig::with("pagbank", &["pagbank_token"]);
    let post = |name: &str, signature: String, body: &[u8]| raw("POST", &[(name, &signature)], body.to_vec());
    let pagbank = |body: &[u8]| post("x-authenticity-token", hash(&[b"pagbank_token-", body].concat()), body);
    assert_eq!(rig.event(&pagbank(body)).provider_ref, "ORDE_1");
    let continued = [&body[..], padding, br#"{"id":"ORDE_2"}"#].concat();
    assert_eq!(rig.code(&pagbank(&continued)), RejectionCode::BadSignature);
    // With the secret at the end there is nothing to continue.
    let rig = Rig::with("ppro", &["ppro_secret"]);
    let ppro = post("webhook-signature", hash(&[&continued[..], b".ppro_secret"].concat()), &continued);
    assert!(rig.receive_at(&ppro, NOW).is_ok());
}

/// Where values are signed without their names, no field is signed as itself.
#[test]
fn a_value_without_its_name_is_no_signed_id() {
    for name in ["nestpay-v3", "garanti-vpos", "akbank-vpos"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("providers/{name}.toml"));
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(Definition::compile("x.toml", &text.replace(&format!("name = \"{name}\""), "name = \"x\"")).is_ok());
        let claimed =
            text.replace("signed = false", "signed = true").replace(&format!("name = \"{name}\""), "name = \"x\"");
        let errors = Definition::compile("x.toml", &claimed).expect_err("a claim that does not hold");
        assert!(errors.iter().any(|error| error.key.starts_with("identity")), "{name}: {errors:?}");
    }
}
