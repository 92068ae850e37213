//! Signed test requests: the same rules as verification, run the other way. What is made here is checked by
//! [`Inlet::receive`] before it is handed out.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use secrecy::ExposeSecret as _;

use super::carrier::Carrier;
use super::context::{Content, Context, Document, Item, Params, Problem};
use super::definition::{ContentRule, Scheme, Template};
use super::expr::{Expr, Pipe, Term};
use super::inlet::{BoundSecret, Inlet};
use super::key::Mechanism;
use super::{Inbound, Rejection, json};

mod secrets;
mod text;

use text::{append, fill, without_field};

pub use secrets::TestSecret;

/// What to sign.
#[derive(Debug, Clone)]
pub struct SignRequest<'a> {
    /// Which template; the first if absent.
    pub event_type: Option<&'a str>,
    /// Sent instead of the template's body.
    pub body: Option<Bytes>,
    /// The signed time and `{now}`, UTC microseconds.
    pub now: i64,
    /// What `{id}` becomes: fresh for a fresh event.
    pub id: &'a str,
    /// What `{n}` becomes.
    pub n: u64,
    /// Label of the secret; the first if absent.
    pub secret: Option<&'a str>,
    /// The private half, where the configured secret is a public key.
    pub private_key: Option<&'a [u8]>,
    /// The public URL, without a query.
    pub url: &'a str,
    /// Set beside (or instead of) the template's headers, before signing.
    pub headers: &'a [(HeaderName, HeaderValue)],
}

impl Default for SignRequest<'_> {
    fn default() -> Self {
        Self {
            event_type: None,
            body: None,
            now: 0,
            id: "1",
            n: 1,
            secret: None,
            private_key: None,
            url: "https://hooks.example.com/in/test",
            headers: &[],
        }
    }
}

/// A request as the provider would send it.
#[derive(Debug, Clone)]
pub struct SignedRequest {
    pub method: Method,
    /// The rest of the path, for definitions that have one.
    pub suffix: Option<String>,
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Why no request could be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("no template for event type `{0}`")]
    NoTemplate(String),
    #[error("the source has no secret of this label that signs")]
    NoSecret,
    #[error("the configured secret is a public key: signing needs the private one")]
    NoPrivateKey,
    #[error("the private key is of no use: {0}")]
    BadPrivateKey(String),
    #[error("the body has no place for the signature: {0}")]
    NoPlace(String),
    #[error("what was signed is refused: {}: {}", .0.code.code(), .0.detail)]
    Refused(Rejection),
}

impl SignError {
    /// Stable name for logs and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoTemplate(_) => "no_template",
            Self::NoSecret => "no_secret",
            Self::NoPrivateKey => "no_private_key",
            Self::BadPrivateKey(_) => "bad_private_key",
            Self::NoPlace(_) => "no_place",
            Self::Refused(_) => "refused",
        }
    }
}

impl Inlet {
    /// Makes a request that this inlet accepts.
    pub fn sign(&self, request: &SignRequest<'_>) -> Result<SignedRequest, SignError> {
        let mut last = SignError::NoSecret;
        for (index, scheme) in self.rules.schemes.iter().enumerate().filter(|(index, _)| self.enabled[*index]) {
            let wanted = |secret: &&BoundSecret| {
                secret.keys[index].is_some() && request.secret.is_none_or(|label| secret.label == label)
            };
            let secret = self.secrets.iter().find(wanted);
            if secret.is_none() && scheme.mechanism != Mechanism::Unproved {
                continue;
            }
            let signed = self.build(request)?.sign(self, scheme, secret, index, request);
            match signed.and_then(|signed| self.check(signed, request)) {
                Ok(signed) => return Ok(signed),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The request before it is signed.
    fn build(&self, request: &SignRequest<'_>) -> Result<SignedRequest, SignError> {
        let template = self.template(request.event_type)?;
        let fill = |text: &str| fill(text, request, &template.event_type);
        let mut headers = HeaderMap::new();
        let default_type = match self.rules.content {
            ContentRule::Form => "application/x-www-form-urlencoded",
            ContentRule::Json | ContentRule::Either => "application/json",
            ContentRule::Opaque => "application/octet-stream",
        };
        let content_type = template.content_type.as_deref().unwrap_or(default_type);
        let named = template.headers.iter().map(|(name, value)| (name.clone(), fill(value)));
        for (name, value) in named.chain([(CONTENT_TYPE, content_type.to_owned())]) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        for (name, value) in request.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(SignedRequest {
            method: template.method.clone(),
            suffix: template.suffix.as_deref().map(fill),
            query: None,
            headers,
            body: request.body.clone().unwrap_or_else(|| fill(&template.body).into()),
        })
    }

    fn template(&self, event_type: Option<&str>) -> Result<&Template, SignError> {
        let mut templates = self.rules.templates.iter();
        let found = templates.find(|template| event_type.is_none_or(|wanted| template.event_type == wanted));
        found.ok_or_else(|| SignError::NoTemplate(event_type.unwrap_or_default().to_owned()))
    }

    fn check(&self, signed: SignedRequest, request: &SignRequest<'_>) -> Result<SignedRequest, SignError> {
        let url = signed.url(request.url);
        // Whatever the account in the path, the proof is the same.
        match self.receive(&signed.inbound(&url, request.now)) {
            Ok(_) => Ok(signed),
            Err(rejection) => Err(SignError::Refused(rejection)),
        }
    }
}

impl SignedRequest {
    /// The URL with suffix and query, from the public one.
    pub fn url(&self, base: &str) -> String {
        let suffix = self.suffix.as_deref().map(|suffix| format!("/{suffix}")).unwrap_or_default();
        let query = self.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{suffix}{query}", base.trim_end_matches('/'))
    }

    /// The request as it would arrive at `url` (see [`Self::url`]).
    pub fn inbound<'a>(&'a self, url: &'a str, arrived_at: i64) -> Inbound<'a> {
        Inbound {
            method: &self.method,
            url,
            query: self.query.as_deref(),
            path_account: None,
            suffix: self.suffix.as_deref(),
            headers: &self.headers,
            body: &self.body,
            arrived_at,
        }
    }

    fn sign(
        mut self,
        inlet: &Inlet,
        scheme: &Scheme,
        secret: Option<&BoundSecret>,
        index: usize,
        request: &SignRequest<'_>,
    ) -> Result<Self, SignError> {
        let Some((secret, carrier)) = secret.zip(scheme.carrier.as_ref()) else { return Ok(self) };
        let params = Params { own: Some(&secret.params), source: &inlet.params };
        let carrier = &carrier.named(&params);
        let mut others = Vec::new();
        let time = scheme.timestamp.as_ref().map(|timestamp| (timestamp.unit.write(request.now), &timestamp.from));
        if let Some((text, from)) = &time {
            match from.plain() {
                Some(Term::Pair(name)) => others.push((name.clone(), text.clone())),
                Some(_) => self.place(from, text)?,
                // Of several places whichever the template has; of one, this one.
                None => drop(self.place(from, text)),
            }
        }
        others.extend(self.entries(carrier, &others));
        // What else stands beside the signature and is signed: a nonce.
        if let Some(signed) = &scheme.signed {
            signed.visit(&mut |term| {
                if let Term::Pair(name) = term
                    && others.iter().all(|(known, _)| known != name)
                {
                    others.push((name.clone(), request.id.to_owned()));
                }
            });
        }
        for (left, right) in &scheme.checks {
            let value = self.with_context(inlet, scheme, secret, request, None, |context| {
                context.text(right).map(|text| text.map(std::borrow::Cow::into_owned))
            });
            if let Ok(Some(value)) = value {
                self.place(left, &value)?;
            }
        }
        if scheme.per_item {
            return self.sign_items(inlet, scheme, secret, index, request);
        }
        if let Some(Term::Form(name)) = carrier.from.plain() {
            self.body = without_field(&self.body, name).into();
        }
        let text = time.as_ref().map(|(text, _)| text.as_bytes());
        let message = self.with_context(inlet, scheme, secret, request, text, |context| {
            message(&Context { pairs: &others, ..*context }, scheme)
        });
        let message = message.map_err(|problem| SignError::Refused(super::carrier::refusal(problem)))?;
        let signature = secrets::signature(scheme, secret, index, &message, request.private_key)?;
        let written = carrier.write(&signature, &others);
        if let Some(Term::Json(place)) = carrier.from.plain() {
            let span = self.with_context(inlet, scheme, secret, request, None, |context| {
                let json = context.document.json().ok()?;
                match json.scan.get(place.slot) {
                    json::Lookup::One(at) => Some(at.span.start..at.span.end),
                    _ => None,
                }
            });
            let no_place = || SignError::NoPlace(super::context::describe(&carrier.from));
            let mut body = self.body.to_vec();
            body.splice(span.ok_or_else(no_place)?, json::quote(&written).into_bytes());
            self.body = body.into();
        } else {
            self.place(&carrier.from, &written)?;
        }
        Ok(self)
    }

    /// Runs `look` in the context that verification would use.
    fn with_context<T>(
        &self,
        inlet: &Inlet,
        scheme: &Scheme,
        secret: &BoundSecret,
        request: &SignRequest<'_>,
        timestamp: Option<&[u8]>,
        look: impl FnOnce(&Context<'_, '_>) -> T,
    ) -> T {
        let url = self.url(request.url);
        let inbound = self.inbound(&url, request.now);
        let document = self.document(inlet, &inbound);
        look(&Context {
            inbound: &inbound,
            document: &document,
            item: None,
            url: &url,
            timestamp,
            pairs: &[],
            sorted: scheme.sorted.as_ref(),
            params: Params { own: Some(&secret.params), source: &inlet.params },
            secret: Some(secret.text.expose_secret()),
            key: None,
        })
    }

    fn document<'a>(&'a self, inlet: &'a Inlet, inbound: &Inbound<'a>) -> Document<'a> {
        let form =
            self.headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/x-www-form"));
        let content = match inlet.rules.content {
            ContentRule::Form => Content::Form,
            ContentRule::Either if form => Content::Form,
            ContentRule::Opaque => Content::Opaque,
            ContentRule::Json | ContentRule::Either => Content::Json,
        };
        Document::new(inbound, content, inlet.rules.payload_field.as_deref(), &inlet.rules.document)
    }

    /// Signs each item of the batch and writes the signature into it.
    fn sign_items(
        mut self,
        inlet: &Inlet,
        scheme: &Scheme,
        secret: &BoundSecret,
        index: usize,
        request: &SignRequest<'_>,
    ) -> Result<Self, SignError> {
        let Some(carrier) = &scheme.carrier else { return Ok(self) };
        let no_place = || SignError::NoPlace(super::context::describe(&carrier.from));
        let Some(Term::Json(place)) = carrier.from.plain() else { return Err(no_place()) };
        let patches = self.with_context(inlet, scheme, secret, request, None, |context| {
            let json = context.document.json().map_err(|_| no_place())?;
            let mut patches = Vec::new();
            for found in inlet.items(context, json).unwrap_or_default() {
                let bytes = &json.bytes[found.span.clone()];
                let scan = json::scan(bytes, &inlet.rules.item).map_err(|_| no_place())?;
                let json::Lookup::One(at) = scan.get(place.slot) else { return Err(no_place()) };
                let span = found.span.start + at.span.start..found.span.start + at.span.end;
                let item = Item { bytes, scan };
                let message = message(&Context { item: Some(&item), ..*context }, scheme)
                    .map_err(|problem| SignError::Refused(super::carrier::refusal(problem)))?;
                let signature = secrets::signature(scheme, secret, index, &message, request.private_key)?;
                patches.push((span, json::quote(&carrier.write(&signature, &[]))));
            }
            Ok(patches)
        })?;
        let mut body = self.body.to_vec();
        for (span, text) in patches.into_iter().rev() {
            body.splice(span, text.into_bytes());
        }
        self.body = body.into();
        Ok(self)
    }

    /// What the template has beside the signature, in a `k=v` list.
    fn entries(&self, carrier: &Carrier, known: &[(String, String)]) -> Vec<(String, String)> {
        let (Some(name), Some(separator), Some(Term::Header(header))) =
            (&carrier.name, carrier.separator, carrier.from.plain())
        else {
            return Vec::new();
        };
        let value = self.headers.get(header).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let entries = value.split(separator).filter_map(|entry| entry.split_once(carrier.assign));
        let new = |key: &str| key != name && known.iter().all(|(known, _)| known != key);
        entries.filter(|(key, _)| new(key)).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Writes a text where an expression would read it.
    fn place(&mut self, at: &Expr, text: &str) -> Result<(), SignError> {
        let no_place = || SignError::NoPlace(super::context::describe(at));
        // `query:x|lower` is still the query's place.
        let piece = match &*at.alternatives {
            [pieces] if pieces.len() == 1 => pieces.first(),
            _ => None,
        };
        match piece.map(|piece| &piece.term) {
            Some(Term::Header(name)) => {
                // `header:x|after:','`: behind what `header:x|until:','` has put there.
                let before = match piece.map(|piece| &*piece.pipes) {
                    Some([Pipe::After(mark)]) => self.headers.get(name).map(|value| [value.as_bytes(), mark].concat()),
                    _ => None,
                };
                let value = [before.unwrap_or_default(), text.as_bytes().to_vec()].concat();
                self.headers.insert(name, HeaderValue::from_bytes(&value).map_err(|_| no_place())?);
            }
            Some(Term::Query(name)) => append(&mut self.query, name, text),
            Some(Term::Form(name)) => {
                let mut body = Some(String::from_utf8_lossy(&without_field(&self.body, name)).into_owned())
                    .filter(|body| !body.is_empty());
                append(&mut body, name, text);
                self.body = body.unwrap_or_default().into();
            }
            // A time inside the body is the template's `{now}`.
            Some(Term::Json(_)) => {}
            _ => return Err(no_place()),
        }
        Ok(())
    }
}

fn message(context: &Context<'_, '_>, scheme: &Scheme) -> Result<Vec<u8>, Problem> {
    let mut message = Vec::new();
    if let Some(signed) = &scheme.signed {
        context.feed(signed, &mut |bytes| message.extend_from_slice(bytes))?;
    }
    Ok(message)
}
