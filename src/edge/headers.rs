//! What of a request is kept: of the headers an allow-list with values, of the others the names; of the URL everything
//! but credentials.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;
use http::header::HeaderName;

/// Kept with their values for every source: what the content is, and what connects a delivery to others.
const GENERIC: [&str; 12] = [
    "content-type",
    "content-encoding",
    "content-language",
    "date",
    "user-agent",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-correlation-id",
    "x-amzn-trace-id",
    "cf-ray",
    "idempotency-key",
];
/// Never kept, whatever a definition says.
const CREDENTIALS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];
/// Names of one request that are kept.
const NAMES_MAX: usize = 100;
/// Query fields that are somebody's key, if their name is or ends with one of these.
const SECRET_FIELDS: [&str; 14] = [
    "token",
    "secret",
    "password",
    "passwd",
    "pwd",
    "key",
    "apikey",
    "auth",
    "authorization",
    "signature",
    "sig",
    "hmac",
    "jwt",
    "credential",
];
/// What stands in their place.
const CUT: &str = "cut";

/// The headers of a request, sorted into those kept with their value and the bare names.
pub(super) struct Kept {
    pub values: Vec<(String, Bytes)>,
    pub names: Vec<String>,
}

/// Sorts `headers`; `of_definition` are those that a definition adds.
pub(super) fn keep(headers: &HeaderMap, of_definition: &[HeaderName]) -> Kept {
    let mut kept = Kept { values: Vec::new(), names: Vec::new() };
    for (name, value) in headers {
        let allowed = GENERIC.contains(&name.as_str()) || of_definition.contains(name);
        if allowed && !CREDENTIALS.contains(&name.as_str()) {
            kept.values.push((name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
        } else if kept.names.len() < NAMES_MAX && kept.names.last().is_none_or(|last| last != name.as_str()) {
            kept.names.push(name.as_str().to_owned());
        }
    }
    kept
}

/// A query without its credentials: fields named like one, and those that the definition (`proofs`) takes a proof from.
pub(super) fn cut_credentials<'q>(query: &'q str, proofs: &[String]) -> Cow<'q, str> {
    if !query.split('&').any(|pair| is_secret(pair, proofs)) {
        return Cow::Borrowed(query);
    }
    let pairs: Vec<Cow<'_, str>> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(pair, proofs) => Cow::Owned(format!("{name}={CUT}")),
            _ => Cow::Borrowed(pair),
        })
        .collect();
    Cow::Owned(pairs.join("&"))
}

/// Whether a pair of a query carries a credential. Names are compared as they come and percent-decoded: `%74oken` is one.
fn is_secret(pair: &str, proofs: &[String]) -> bool {
    let Some((name, _)) = pair.split_once('=') else { return false };
    let plain = name.replace('+', " ");
    let name = percent_encoding::percent_decode_str(&plain).decode_utf8_lossy();
    if proofs.iter().any(|proof| proof.eq_ignore_ascii_case(&name)) {
        return true;
    }
    let name: String = name.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    SECRET_FIELDS.iter().any(|secret| name.ends_with(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    // W-067
    #[test]
    fn credentials_are_cut_from_a_query() {
        for (query, kept) in [
            ("token=SECRET123", "token=cut"),
            ("a=1&access_token=SECRET123&b=2", "a=1&access_token=cut&b=2"),
            ("X-Api-Key=SECRET123&id=7", "X-Api-Key=cut&id=7"),
            ("%74oken=SECRET123", "%74oken=cut"),
            ("TOKEN=SECRET123&token=SECRET123", "TOKEN=cut&token=cut"),
            ("bodySHA256=abc&id=1", "bodySHA256=abc&id=1"),
            ("", ""),
        ] {
            assert_eq!(cut_credentials(query, &[]), kept);
        }
    }

    // W-067: by what the definition says, whatever the name.
    #[test]
    fn a_field_that_carries_the_proof_is_cut() {
        let proofs = ["code".to_owned()];
        assert_eq!(cut_credentials("a=1&%63ode=SECRET123", &proofs), "a=1&%63ode=cut");
        assert_eq!(cut_credentials("a=1&postcode=SECRET123", &proofs), "a=1&postcode=SECRET123");
    }

    // W-158
    #[test]
    fn values_are_bytes_and_credentials_never_stay() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse().unwrap());
        headers.insert("x-topic", http::HeaderValue::from_bytes(b"p\xffsh").unwrap());
        headers.insert("authorization", "Basic c2VjcmV0".parse().unwrap());
        headers.append("x-github-encoded-secret", "hush".parse().unwrap());
        headers.append("x-github-encoded-secret", "hush".parse().unwrap());
        let kept = keep(&headers, &["x-topic", "authorization"].map(HeaderName::from_static));
        assert_eq!(kept.values.len(), 2);
        assert!(kept.values.contains(&("x-topic".to_owned(), Bytes::from_static(b"p\xffsh"))));
        assert_eq!(kept.names.iter().filter(|name| *name == "x-github-encoded-secret").count(), 1);
        assert!(kept.names.contains(&"authorization".to_owned()));
    }
}
