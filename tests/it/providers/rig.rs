//! A source of each provider with a fresh secret, and requests that it accepts.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use makbuz::model::receipt::HoldReason;
use makbuz::provider::{
    Catalog, Definition, ExtractedEvent, Inbound, Inlet, ParamValues, Received, Rejection, RejectionCode, Reply,
    SignRequest, SignedRequest, SourceSecret, SourceSettings, TestSecret, Verified,
};
use makbuz::random::SeededRandom;

/// The field reports' clock, UTC microseconds.
pub const NOW: i64 = 1_700_000_000_000_000;
pub const URL: &str = "https://hooks.example.com/in/test";

pub struct Rig {
    pub definition: Definition,
    pub inlet: Inlet,
    pub secret: Option<TestSecret>,
}

pub fn definition(name: &str) -> Definition {
    Catalog::embedded().get(name).expect(name)
}

pub fn secret(label: &str, value: &str) -> SourceSecret {
    SourceSecret {
        label: label.to_owned(),
        value: value.as_bytes().to_vec().into(),
        not_before: None,
        not_after: None,
        params: ParamValues::new(),
    }
}

pub fn settings(secrets: Vec<SourceSecret>) -> SourceSettings {
    SourceSettings {
        name: "test".to_owned(),
        secrets,
        params: ParamValues::new(),
        account: None,
        account_in_path: false,
        tolerance: None,
        window_strict: false,
        url: None,
        hold_malformed: true,
        replay_guard: None,
    }
}

pub fn params(pairs: &[(&str, &str)]) -> ParamValues {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec().into())).collect()
}

/// RSA keys are not made in a moment: one pair for the seed of most tests, and another.
fn rsa(definition: &Definition, seed: u64) -> Option<TestSecret> {
    let described = definition.describe();
    described["schemes"][0]["mechanism"].as_str().filter(|name| name.starts_with("rsa-"))?;
    let (public, private): (&str, &[u8]) = if seed == SEED {
        (
            include_str!("../../fixtures/keys/rsa-one.public.pem"),
            include_bytes!("../../fixtures/keys/rsa-one.pkcs8.der"),
        )
    } else {
        (
            include_str!("../../fixtures/keys/rsa-two.public.pem"),
            include_bytes!("../../fixtures/keys/rsa-two.pkcs8.der"),
        )
    };
    Some(TestSecret { secret: public.to_owned(), private_key: Some(private.to_vec()) })
}

const SEED: u64 = 7;

impl Rig {
    /// A source with a fresh secret.
    pub fn new(name: &str) -> Self {
        Self::seeded(name, SEED)
    }

    pub fn seeded(name: &str, seed: u64) -> Self {
        let definition = definition(name);
        let secret = definition.test_secret(&SeededRandom::new(seed)).or_else(|| rsa(&definition, seed));
        let secrets = secret.iter().map(|made| self::secret("first", &made.secret)).collect();
        let settings = SourceSettings { params: definition.example_params(), ..settings(secrets) };
        let inlet = definition.bind(settings).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        Self { definition, inlet, secret }
    }

    /// A source with these secrets.
    pub fn with(name: &str, secrets: &[&str]) -> Self {
        let secrets = secrets.iter().enumerate().map(|(at, text)| secret(&format!("s{at}"), text)).collect();
        Self::bound(name, settings(secrets))
    }

    pub fn bound(name: &str, settings: SourceSettings) -> Self {
        let definition = definition(name);
        let inlet = definition.bind(settings).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        Self { definition, inlet, secret: None }
    }

    pub fn request(&self) -> SignRequest<'_> {
        SignRequest {
            now: NOW,
            id: "id1",
            url: URL,
            private_key: self.secret.as_ref().and_then(|secret| secret.private_key.as_deref()),
            ..SignRequest::default()
        }
    }

    pub fn sign(&self, event_type: &str) -> SignedRequest {
        let request = SignRequest { event_type: Some(event_type), ..self.request() };
        self.inlet.sign(&request).unwrap_or_else(|error| panic!("{} {event_type}: {error}", self.definition.name()))
    }

    /// A signed request with this body.
    pub fn sign_body(&self, body: impl Into<Bytes>) -> SignedRequest {
        let request = SignRequest { body: Some(body.into()), ..self.request() };
        self.inlet.sign(&request).unwrap_or_else(|error| panic!("{}: {error}", self.definition.name()))
    }

    pub fn receive_at(&self, request: &SignedRequest, now: i64) -> Result<Received, Rejection> {
        let url = request.url(URL);
        self.inlet.receive(&request.inbound(&url, now))
    }

    pub fn code(&self, request: &SignedRequest) -> RejectionCode {
        match self.receive_at(request, NOW) {
            Err(rejection) => rejection.code,
            Ok(_) => panic!("{}: accepted, and must not be: {request:?}", self.definition.name()),
        }
    }

    pub fn verified(&self, request: &SignedRequest) -> Verified {
        match self.receive_at(request, NOW) {
            Ok(Received::Events(verified)) => verified,
            Ok(Received::Handshake(reply)) => panic!("{}: a handshake: {reply:?}", self.definition.name()),
            Err(rejection) => panic!("{}: {rejection:?}", self.definition.name()),
        }
    }

    pub fn handshake(&self, request: &SignedRequest) -> Option<Reply> {
        match self.receive_at(request, NOW) {
            Ok(Received::Handshake(reply)) => Some(reply),
            _ => None,
        }
    }

    pub fn event(&self, request: &SignedRequest) -> ExtractedEvent {
        let verified = self.verified(request);
        assert_eq!(verified.events.len(), 1, "{}", self.definition.name());
        verified.events[0].clone()
    }

    pub fn held(&self, request: &SignedRequest) -> HoldReason {
        let event = self.event(request);
        assert!(event.event_id.starts_with("sha256:"), "{}", event.event_id);
        event.hold.expect("held")
    }
}

/// A request as it came, for known headers.
pub fn raw(method: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> SignedRequest {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("header");
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("value"));
    }
    let method = Method::from_bytes(method.as_bytes()).expect("method");
    SignedRequest { method, suffix: None, query: None, headers: map, body: body.into() }
}

/// The request with one header set to these bytes.
pub fn header(request: &SignedRequest, name: &str, value: &[u8]) -> SignedRequest {
    let mut changed = request.clone();
    let name: HeaderName = name.parse().expect("header");
    changed.headers.insert(name, HeaderValue::from_bytes(value).expect("value"));
    changed
}

/// What the field reports' vectors give as hex.
pub fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

/// V1, V7, V8, V10, V16, V17: spaces, a float, escapes.
pub const UGLY: &str = "7b226964223a226576745f5431222c2020226e223a312e302c2275223a2268747470733a5c2f5c2f782e746573745c2f61222c2271223a22415c753030323642227d";

pub fn inbound<'a>(request: &'a SignedRequest, url: &'a str) -> Inbound<'a> {
    request.inbound(url, NOW)
}
