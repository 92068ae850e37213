//! The proof of a delivery: signature first, then time, then what the signature does not cover but points at.

use std::borrow::Cow;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use subtle::ConstantTimeEq as _;

use super::carrier::{Candidates, Carrier, refusal};
use super::context::{Context, Params, Problem};
use super::definition::{Scheme, WINDOW};
use super::digest::{Hash, Running, sha256};
use super::expr::{Expr, Term};
use super::inlet::{BoundSecret, Inlet};
use super::key::{Mechanism, Prepared};
use super::{Rejection, RejectionCode};
use crate::clock;

/// What proved a delivery (or an item).
pub(super) struct Proof<'i> {
    pub scheme: &'i Scheme,
    pub secret: Option<&'i BoundSecret>,
    pub signed_at: Option<i64>,
    pub outside_window: bool,
    pub signed_sha256: [u8; 32],
}

impl Inlet {
    /// Tries the schemes that apply; all of them must be switched on, have a live secret, and match by presence.
    pub(super) fn verify<'i>(&'i self, context: &Context<'_, '_>) -> Result<Proof<'i>, Rejection> {
        let inbound = context.inbound;
        let live = self.live(inbound.arrived_at, inbound.path_account)?;
        self.check_guards(context)?;
        let mut nearest: Option<Rejection> = None;
        for (index, scheme) in self.rules.schemes.iter().enumerate() {
            let unproved = scheme.mechanism == Mechanism::Unproved;
            let usable = self.enabled[index] && (unproved || live.iter().any(|secret| secret.keys[index].is_some()));
            if !usable || !holds_all(context, scheme) {
                continue;
            }
            match self.try_scheme(context, index, scheme, &live) {
                Ok(proof) => return Ok(proof),
                Err(rejection) => {
                    if nearest.as_ref().is_none_or(|known| rank(known.code) < rank(rejection.code)) {
                        nearest = Some(rejection);
                    }
                }
            }
        }
        Err(nearest.unwrap_or_else(|| {
            Rejection::new(RejectionCode::MissingSignature, "the request is of no form that the provider signs")
        }))
    }

    fn try_scheme<'i>(
        &'i self,
        context: &Context<'_, '_>,
        index: usize,
        scheme: &'i Scheme,
        live: &[&'i BoundSecret],
    ) -> Result<Proof<'i>, Rejection> {
        let candidates = match &scheme.carrier {
            Some(carrier) => shorter(context, carrier, scheme.mechanism)?,
            None => Candidates::default(),
        };
        let context = Context { pairs: &candidates.pairs, sorted: scheme.sorted.as_ref(), ..*context };
        let (text, signed_at) = match &scheme.timestamp {
            Some(timestamp) => {
                let text = timestamp_text(&context, &timestamp.from)?;
                let at = timestamp.unit.read(&text).ok_or_else(|| {
                    Rejection::new(
                        RejectionCode::BadTimestamp,
                        "the signed time is not a time as the provider writes it",
                    )
                })?;
                (Some(text), Some(at))
            }
            None => (None, None),
        };
        let context = Context { timestamp: text.as_deref(), ..context };
        let urls = urls(&context, scheme);
        let mut matched: Option<(&'i BoundSecret, &str)> = None;
        for secret in live.iter().filter(|secret| secret.keys[index].is_some()) {
            for url in &urls {
                let hit =
                    matches(&self.with_secret(&context, secret, url), scheme, secret, index, &candidates.signatures)?;
                if hit && matched.is_none() {
                    matched = Some((secret, url));
                }
            }
        }
        let secret = match (matched, scheme.mechanism) {
            (Some((secret, _)), _) => Some(secret),
            (None, Mechanism::Unproved) => None,
            (None, _) => return Err(Rejection::new(RejectionCode::BadSignature, "no live secret made this signature")),
        };
        let url = matched.map_or(context.url, |(_, url)| url);
        let context = match secret {
            Some(secret) => self.with_secret(&context, secret, url),
            None => context,
        };
        let outside_window = self.check_window(signed_at, context.inbound.arrived_at)?;
        check_equal(&context, scheme)?;
        check_not_extended(&context, scheme)?;
        let signed_sha256 = signed_digest(&context, scheme)?;
        Ok(Proof { scheme, secret, signed_at, outside_window, signed_sha256 })
    }

    pub(super) fn with_secret<'c, 'd>(
        &'c self,
        context: &Context<'c, 'd>,
        secret: &'c BoundSecret,
        url: &'c str,
    ) -> Context<'c, 'd> {
        Context {
            url,
            secret: Some(secret.text.expose_secret()),
            params: Params { own: Some(&secret.params), source: &self.params },
            ..*context
        }
    }

    /// Second proofs that the source has switched on.
    fn check_guards(&self, context: &Context<'_, '_>) -> Result<(), Rejection> {
        for (guard, prepared) in &self.guards {
            let candidates = shorter(context, &guard.carrier, guard.mechanism)?;
            if !presents(prepared, &candidates.signatures) {
                return Err(Rejection::new(
                    RejectionCode::BadSignature,
                    format!("the second proof ({}) is wrong", guard.name),
                ));
            }
        }
        Ok(())
    }

    /// Whether an authentic time is outside five minutes, or a refusal if it is outside the source's window.
    fn check_window(&self, signed_at: Option<i64>, now: i64) -> Result<bool, Rejection> {
        let (Some(at), Some(tolerance)) = (signed_at, self.tolerance) else { return Ok(false) };
        let age = now.saturating_sub(at);
        let tolerance = clock::micros(tolerance);
        let seconds = Duration::from_micros(age.unsigned_abs()).as_secs_f64();
        if age > tolerance {
            return Err(Rejection::new(RejectionCode::Stale, format!("authentic, but signed {seconds} s ago")));
        }
        if age < -tolerance {
            return Err(Rejection::new(RejectionCode::Future, format!("authentic, but signed {seconds} s ahead")));
        }
        Ok(age.unsigned_abs() > WINDOW.as_micros().try_into().unwrap_or(u64::MAX))
    }
}

/// The candidates of a request, through a context whose lifetime ends here.
fn shorter(context: &Context<'_, '_>, carrier: &Carrier, mechanism: Mechanism) -> Result<Candidates, Rejection> {
    carrier.candidates(context, mechanism)
}

fn holds_all(context: &Context<'_, '_>, scheme: &Scheme) -> bool {
    scheme.when.iter().all(|condition| context.holds(condition))
}

/// How far a request came before it was refused: the refusal that got furthest is the one to report.
fn rank(code: RejectionCode) -> u8 {
    match code {
        RejectionCode::MissingSignature => 0,
        RejectionCode::DuplicateHeader | RejectionCode::MalformedSignature => 1,
        RejectionCode::BadTimestamp => 2,
        RejectionCode::BadSignature => 3,
        _ => 4,
    }
}

fn timestamp_text(context: &Context<'_, '_>, from: &Expr) -> Result<Vec<u8>, Rejection> {
    let bad = |detail: &str| Rejection::new(RejectionCode::BadTimestamp, detail);
    match context.value(from) {
        Ok(Some(text)) => Ok(text.into_owned()),
        Ok(None) if matches!(from.plain(), Some(Term::Header(_))) => {
            Err(refusal(Problem::Absent("the timestamp's header".to_owned())))
        }
        Ok(None) => Err(bad("there is no signed time")),
        Err(problem @ (Problem::HeaderTwice(_) | Problem::HeaderNotText(_))) => Err(refusal(problem)),
        Err(_) => Err(bad("the signed time cannot be read")),
    }
}

/// The URLs that the provider may have signed.
fn urls<'c>(context: &Context<'c, '_>, scheme: &Scheme) -> Vec<Cow<'c, str>> {
    let url = context.url;
    if !scheme.url_ports {
        return vec![Cow::Borrowed(url)];
    }
    let Some((protocol, rest)) = url.split_once("://") else { return vec![Cow::Borrowed(url)] };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            vec![Cow::Borrowed(url), Cow::Owned(format!("{protocol}://{host}{tail}"))]
        }
        _ => {
            let port = if protocol == "http" { 80 } else { 443 };
            vec![Cow::Borrowed(url), Cow::Owned(format!("{protocol}://{authority}:{port}{tail}"))]
        }
    }
}

/// Whether one of the signatures is right under this secret; all are looked at.
fn matches(
    context: &Context<'_, '_>,
    scheme: &Scheme,
    secret: &BoundSecret,
    index: usize,
    signatures: &[Vec<u8>],
) -> Result<bool, Rejection> {
    let Some(key) = &secret.keys[index] else { return Ok(false) };
    let mut running = match &key.prepared {
        Prepared::Mac(key) => key.start(),
        Prepared::Plain(hash) => Running::plain(*hash),
        Prepared::Public(key) => {
            let mut message = Vec::new();
            if let Some(signed) = &scheme.signed {
                context.feed(signed, &mut |bytes| message.extend_from_slice(bytes)).map_err(refusal)?;
            }
            // Public data on both sides: there is no time to hide.
            return Ok(signatures.iter().any(|signature| key.verify(&message, signature).is_ok()));
        }
        prepared @ (Prepared::Secret(_) | Prepared::Nothing) => return Ok(presents(prepared, signatures)),
    };
    if let Some(signed) = &scheme.signed {
        context.feed(signed, &mut |bytes| running.update(bytes)).map_err(refusal)?;
    }
    Ok(running.equals_any(signatures))
}

/// Whether one of the presented texts is the secret, compared as digests so that not even its length shows.
fn presents(prepared: &Prepared, presented: &[Vec<u8>]) -> bool {
    let Prepared::Secret(right) = prepared else { return false };
    let hits = presented.iter().fold(subtle::Choice::from(0), |hits, text| hits | sha256(text).ct_eq(right));
    hits.into()
}

/// What the signature points at (a digest in the URL, say) must be what came.
fn check_equal(context: &Context<'_, '_>, scheme: &Scheme) -> Result<(), Rejection> {
    for (left, right) in &scheme.checks {
        let left = context.value(left).map_err(refusal)?;
        let right = context.value(right).map_err(refusal)?;
        if left.is_none() || left != right {
            return Err(Rejection::new(
                RejectionCode::BodyMismatch,
                "the body is not the one that the signature points at",
            ));
        }
    }
    Ok(())
}

/// A plain hash whose message does not end with the secret can be continued by whoever has seen one: over the message, the
/// hash's own padding, and more. The padding holds zero bytes, which no provider's text does.
fn check_not_extended(context: &Context<'_, '_>, scheme: &Scheme) -> Result<(), Rejection> {
    let (Mechanism::Plain(_), Some(signed)) = (scheme.mechanism, &scheme.signed) else { return Ok(()) };
    if signed.ends_with(|term| matches!(term, Term::Secret)) {
        return Ok(());
    }
    let mut padded = false;
    context.feed(signed, &mut |bytes| padded |= bytes.contains(&0)).map_err(refusal)?;
    if padded {
        return Err(Rejection::new(RejectionCode::BadSignature, "a zero byte in a message that others can continue"));
    }
    Ok(())
}

/// SHA-256 of the signed content, the secret's place left empty; of the body where nothing is signed.
fn signed_digest(context: &Context<'_, '_>, scheme: &Scheme) -> Result<[u8; 32], Rejection> {
    let context = Context { secret: Some(&[]), ..*context };
    let mut running = Running::plain(Hash::Sha256);
    match &scheme.signed {
        Some(signed) => context.feed(signed, &mut |bytes| running.update(bytes)).map_err(refusal)?,
        None => running.update(context.inbound.body),
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(&running.finish());
    Ok(digest)
}
