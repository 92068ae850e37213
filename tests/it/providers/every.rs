//! What must hold for every provider that ships, whatever its file says: one request that is right, and the same request
//! spoiled in each of the usual ways.

use serde_json::Value;

use makbuz::provider::{Catalog, RejectionCode, SignedRequest, SourceSettings};

use super::rig::{NOW, Rig, header, secret, settings};

/// A template of a provider, signed, with the scheme that signed it.
struct Case {
    name: String,
    rig: Rig,
    request: SignedRequest,
    scheme: Value,
}

impl Case {
    /// All templates of all providers that prove anything.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for name in Catalog::embedded().names().filter(|name| *name != "mollie-classic") {
            let types: Vec<String> = Rig::new(name).definition.template_types().map(str::to_owned).collect();
            for event_type in types {
                let rig = Rig::new(name);
                let request = rig.sign(&event_type);
                let scheme = Self::scheme(&rig, &request);
                cases.push(Self { name: format!("{name} {event_type}"), rig, request, scheme });
            }
        }
        assert!(cases.len() > 80, "only {} cases", cases.len());
        cases
    }

    /// The one whose header the request has; the first where the proof is in the body or the query.
    fn scheme(rig: &Rig, request: &SignedRequest) -> Value {
        let described = rig.definition.describe();
        let schemes = described["schemes"].as_array().expect("schemes");
        let carried =
            schemes.iter().find(|scheme| carrier(scheme).is_some_and(|name| request.headers.contains_key(name)));
        carried.or(schemes.first()).expect("a scheme").clone()
    }

    fn refused(&self, request: &SignedRequest, how: &str) -> RejectionCode {
        match self.rig.receive_at(request, NOW) {
            Err(rejection) => rejection.code,
            Ok(_) => panic!("{}: accepted with {how}", self.name),
        }
    }
}

/// The header with the signature.
fn carrier(scheme: &Value) -> Option<&str> {
    let from = scheme["signature"].as_str()?.strip_prefix("header:")?;
    from.split(['|', ' ']).next()
}

#[test]
fn the_right_request_is_accepted_and_no_other_secret_or_empty_one() {
    for case in Case::all() {
        assert!(case.rig.receive_at(&case.request, NOW).is_ok(), "{}", case.name);
        let empty = settings(vec![secret("first", "")]);
        let empty = SourceSettings { params: case.rig.definition.example_params(), ..empty };
        assert!(case.rig.definition.bind(empty).is_err(), "{}: an empty secret is bound", case.name);
    }
}

#[test]
fn a_proof_in_a_header_is_there_once_and_whole() {
    for case in Case::all() {
        let Some(name) = carrier(&case.scheme).filter(|name| case.request.headers.contains_key(*name)) else {
            continue;
        };
        let value = case.request.headers[name].clone();
        let mut missing = case.request.clone();
        missing.headers.remove(name);
        case.refused(&missing, "no header");
        let mut doubled = case.request.clone();
        doubled.headers.append(http::HeaderName::from_bytes(name.as_bytes()).expect("a name"), value.clone());
        // Mollie may sign twice, in two headers.
        if !case.name.starts_with("mollie-nextgen") {
            // Where the header also says which scheme it is, there is none.
            let code = case.refused(&doubled, "two headers");
            let told = [RejectionCode::DuplicateHeader, RejectionCode::MissingSignature].contains(&code);
            assert!(told, "{}: {code:?}", case.name);
        }
        case.refused(&header(&case.request, name, b""), "an empty header");
        let cut = &value.as_bytes()[..value.len() - 1];
        case.refused(&header(&case.request, name, cut), "a cut signature");
    }
}

#[test]
fn a_signed_body_has_no_other_byte() {
    for case in Case::all() {
        if case.scheme["coverage"] != "body" {
            continue;
        }
        for at in [0, case.request.body.len() / 2, case.request.body.len() - 1] {
            let mut body = case.request.body.to_vec();
            body[at] ^= 1;
            case.refused(&SignedRequest { body: body.into(), ..case.request.clone() }, "a flipped byte");
        }
        let longer = [&case.request.body[..], b" "].concat();
        case.refused(&SignedRequest { body: longer.into(), ..case.request.clone() }, "one byte more");
    }
}

#[test]
fn a_signed_time_is_held_to_the_window_on_both_sides() {
    let mut timed = 0;
    for case in Case::all() {
        let described = case.rig.definition.describe();
        let window = described["window"].as_str().expect("a text");
        if window == "none" || case.scheme["timestamp"].is_null() {
            continue;
        }
        timed += 1;
        let window = humantime::parse_duration(window).expect("a span").as_secs();
        let code = |seconds: i64| {
            let at = NOW + seconds * 1_000_000;
            case.rig.receive_at(&case.request, at).err().map(|rejection| rejection.code)
        };
        let window = i64::try_from(window).expect("short");
        assert_eq!(code(window - 1), None, "{}", case.name);
        assert_eq!(code(window + 1), Some(RejectionCode::Stale), "{}", case.name);
        assert_eq!(code(1 - window), None, "{}", case.name);
        assert_eq!(code(-window - 1), Some(RejectionCode::Future), "{}", case.name);
    }
    assert!(timed > 25, "only {timed} sign a time");
}

/// W-049: authentic-looking without a proof.
#[test]
fn w049_no_unsigned_request_falls_through_to_a_weaker_scheme() {
    for case in Case::all() {
        let bare = SignedRequest { body: without_proof(&case), ..case.request.clone() };
        let bare = SignedRequest { headers: http::HeaderMap::new(), ..bare };
        assert_eq!(case.refused(&bare, "no proof"), RejectionCode::MissingSignature, "{}", case.name);
    }
}

/// The body without the fields and members that carry a signature.
fn without_proof(case: &Case) -> bytes::Bytes {
    let mut body = String::from_utf8_lossy(&case.request.body).into_owned();
    let described = case.rig.definition.describe();
    let schemes = described["schemes"].as_array().expect("schemes").iter();
    for from in schemes.filter_map(|scheme| scheme["signature"].as_str()) {
        let name = from.rsplit(['/', ':']).next().expect("a last part");
        if from.starts_with("form:") {
            let others = body.split('&').filter(|field| !field.starts_with(&format!("{name}=")));
            body = others.collect::<Vec<_>>().join("&");
        } else if from.starts_with("json:") || from.starts_with("item:") {
            body = body.replace(&format!("\"{name}\""), "\"x\"");
        }
    }
    body.into()
}
