//! A request becomes a handshake's answer, events, or a rejection.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use secrecy::ExposeSecret as _;

use super::context::{Content, Context, Document, Item, Params};
use super::definition::{ContentRule, HandshakeProof};
use super::digest::sha256;
use super::inlet::Inlet;
use super::json;
use super::verify::Proof;
use super::{ExtractedEvent, Inbound, Received, Rejection, RejectionCode, Reply, Verified};
use crate::model::receipt::{ItemProof, VerifiedBy};

/// Longest value of a retry header that is kept.
const RETRY_HEADER_BYTES_MAX: usize = 128;

impl Inlet {
    /// Verifies a request and reads its events. Total: whatever the bytes, it ends in one of the three.
    pub fn receive(&self, inbound: &Inbound<'_>) -> Result<Received, Rejection> {
        let content = self.content(inbound);
        let document = Document::new(inbound, content, self.rules.payload_field.as_deref(), &self.rules.document);
        let url = self.signed_url(inbound);
        // Handshakes may compare with it or answer under it.
        let first = self.live(inbound.arrived_at, inbound.path_account).ok().and_then(|live| live.first().copied());
        let context = Context {
            inbound,
            document: &document,
            item: None,
            url: &url,
            timestamp: None,
            pairs: &[],
            sorted: None,
            params: Params { own: None, source: &self.params },
            secret: first.map(|secret| secret.text.expose_secret()),
            key: first.and_then(|secret| secret.keys.iter().flatten().next()).map(|key| &**key.decoded),
        };
        if let Some(reply) = self.handshake(&context, HandshakeProof::Never) {
            return Ok(Received::Handshake(reply));
        }
        if !self.rules.methods.contains(inbound.method) {
            return Err(Rejection::new(RejectionCode::Method, format!("no events come with {}", inbound.method)));
        }
        if !self.rules.suffix && inbound.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(Rejection::new(RejectionCode::Suffix, "nothing is served below this path"));
        }
        if self.rules.schemes.iter().zip(&self.enabled).any(|(scheme, on)| *on && scheme.per_item) {
            return self.receive_items(&context);
        }
        let proof = match self.verify(&context) {
            Ok(proof) => proof,
            Err(rejection) if rejection.code == RejectionCode::MissingSignature => {
                return self.handshake(&context, HandshakeProof::Optional).map(Received::Handshake).ok_or(rejection);
            }
            Err(rejection) => return Err(rejection),
        };
        for kind in [HandshakeProof::Required, HandshakeProof::Optional] {
            if let Some(reply) = self.handshake(&context, kind) {
                return Ok(Received::Handshake(reply));
            }
        }
        let events = self.extract(&context, &proof)?;
        Ok(Received::Events(self.verified(&context, &proof, events)))
    }

    fn content(&self, inbound: &Inbound<'_>) -> Content {
        let says_form = || {
            let value = inbound.headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
            let kind = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        };
        match self.rules.content {
            ContentRule::Json => Content::Json,
            ContentRule::Form => Content::Form,
            ContentRule::Opaque => Content::Opaque,
            ContentRule::Either if says_form() => Content::Form,
            ContentRule::Either => Content::Json,
        }
    }

    /// The public URL, from the source's settings where it is told there.
    fn signed_url(&self, inbound: &Inbound<'_>) -> String {
        let Some(base) = &self.url else { return inbound.url.to_owned() };
        let suffix = inbound.suffix.filter(|suffix| !suffix.is_empty());
        let mut url = suffix.map_or_else(|| base.clone(), |suffix| format!("{}/{suffix}", base.trim_end_matches('/')));
        if let Some(query) = inbound.query {
            url.push('?');
            url.push_str(query);
        }
        url
    }

    fn handshake(&self, context: &Context<'_, '_>, proof: HandshakeProof) -> Option<Reply> {
        for handshake in self.rules.handshakes.iter().filter(|handshake| handshake.proof == proof) {
            let meant = handshake.methods.contains(context.inbound.method)
                && handshake.when.iter().all(|condition| context.holds(condition));
            if !meant {
                continue;
            }
            // A body that cannot be made (a challenge that is no plain token) is no handshake.
            let body = match &handshake.body {
                None => Some(Bytes::new()),
                Some(body) => context.value(body).ok().flatten().map(|body| Bytes::from(body.into_owned())),
            };
            if let Some(body) = body {
                return Some(Reply { status: handshake.status, content_type: handshake.content_type.clone(), body });
            }
        }
        None
    }

    /// A batch whose items are signed one by one: the good are kept, the bad are counted.
    fn receive_items(&self, context: &Context<'_, '_>) -> Result<Received, Rejection> {
        let document = context.document;
        let json = document.json().map_err(super::carrier::refusal)?;
        let items = self.items(context, json).unwrap_or_default();
        let Some(batch) = self.rules.batch.as_ref().filter(|_| !items.is_empty()) else {
            return Err(Rejection::new(RejectionCode::MissingSignature, "there are no items that could be signed"));
        };
        let mut good: Vec<(Proof<'_>, ExtractedEvent)> = Vec::new();
        let mut bad = Vec::new();
        for found in &items {
            let bytes = &json.bytes[found.span.clone()];
            let outcome = match json::scan(bytes, &self.rules.item) {
                Ok(scan) => {
                    let item = Item { bytes, scan };
                    let context = Context { item: Some(&item), ..*context };
                    self.verify(&context).and_then(|proof| {
                        let mut event = self.event(&context, &proof, Some(found))?;
                        event.proof =
                            Some(ItemProof { verified_by: verified_by(&proof), signed_sha256: proof.signed_sha256 });
                        Ok((proof, event))
                    })
                }
                Err(fault) => Err(super::carrier::refusal(super::context::Problem::Unparsable(fault))),
            };
            match outcome {
                Ok(kept) => good.push(kept),
                Err(rejection) => bad.push(rejection),
            }
        }
        if items.len() > batch.max {
            // Each item has its own proof, and those past the limit were not looked at: nothing vouches for the whole.
            return Err(Rejection::new(RejectionCode::BadSignature, "there are more items than are verified"));
        }
        if good.is_empty() {
            let none = || Rejection::new(RejectionCode::BadSignature, "no item verifies");
            return Err(bad.into_iter().next().unwrap_or_else(none));
        }
        let joined: Vec<u8> = good.iter().flat_map(|(proof, _)| proof.signed_sha256).collect();
        let (mut proofs, events): (Vec<_>, Vec<_>) = good.into_iter().unzip();
        let proof = proofs.swap_remove(0);
        let mut verified = self.verified(context, &proof, events);
        if !proofs.is_empty() {
            verified.signed_sha256 = sha256(&joined);
        }
        verified.refused_items = if batch.accept_mixed { 0 } else { bad.len() };
        Ok(Received::Events(verified))
    }

    fn verified(&self, context: &Context<'_, '_>, proof: &Proof<'_>, events: Vec<ExtractedEvent>) -> Verified {
        let headers = context.inbound.headers;
        let retry_headers = self.rules.retry_headers.iter().filter_map(|name| {
            let value = headers.get(name)?.to_str().ok()?;
            Some((name.to_string(), value.get(..value.len().min(RETRY_HEADER_BYTES_MAX))?.to_owned()))
        });
        Verified {
            verified_by: verified_by(proof),
            signed_sha256: proof.signed_sha256,
            replay_guard: self.replay_guard && proof.scheme.mechanism.signs() && !self.rules.identity.every_delivery,
            every_delivery: self.rules.identity.every_delivery,
            outside_window: proof.outside_window,
            events,
            refused_items: 0,
            retry_headers: retry_headers.collect(),
        }
    }
}

fn verified_by(proof: &Proof<'_>) -> VerifiedBy {
    VerifiedBy {
        mechanism: proof.scheme.mechanism_name.clone(),
        secret: proof.secret.map(|secret| secret.label.clone()).unwrap_or_default(),
        signed_at: proof.signed_at,
        coverage: proof.scheme.coverage,
    }
}
