//! Requests signed as Stripe signs them, for tests that need many and need no oracle.

use hmac::{Hmac, KeyInit, Mac};
use makbuz::clock::{Clock, MICROS_PER_SECOND, SystemClock};
use sha2::Sha256;

/// The body of event `id`, about `padding` bytes longer than it must be.
pub fn body(id: &str, padding: usize) -> Vec<u8> {
    let now = now_seconds();
    let filler = "x".repeat(padding);
    format!(
        r#"{{"id":"{id}","object":"event","type":"invoice.paid","created":{now},"livemode":false,"data":{{"object":{{"id":"in_1","object":"invoice","note":"{filler}"}}}}}}"#
    )
    .into_bytes()
}

/// The headers with which `body` is authentic now.
pub fn headers(secret: &str, body: &[u8]) -> Vec<(String, String)> {
    headers_at(secret, body, now_seconds())
}

/// The same at another time, in seconds since 1970.
pub fn headers_at(secret: &str, body: &[u8], at: i64) -> Vec<(String, String)> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any key");
    mac.update(format!("{at}.").as_bytes());
    mac.update(body);
    let signature = hex::encode(mac.finalize().into_bytes());
    vec![
        ("Content-Type".into(), "application/json".into()),
        ("Stripe-Signature".into(), format!("t={at},v1={signature}")),
    ]
}

pub fn now_seconds() -> i64 {
    SystemClock.now() / MICROS_PER_SECOND
}
