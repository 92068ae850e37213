//! What can be known of a request before its body has come.

use http::{HeaderMap, Method};

use super::definition::HandshakeProof;
use super::expr::Term;
use super::inlet::Inlet;
use super::key::Mechanism;
use super::{Rejection, RejectionCode};

impl Inlet {
    /// A refusal that no body can change: every scheme reads its signature from a header, and none of these came. `None`
    /// where the body may still prove the request, or is a handshake that needs no proof.
    pub fn refuse_head(&self, method: &Method, headers: &HeaderMap, now: i64) -> Option<Rejection> {
        let unproved = |proof| proof != HandshakeProof::Required;
        let handshakes = &self.rules.handshakes;
        let handshake = handshakes.iter().any(|known| unproved(known.proof) && known.methods.contains(method));
        if handshake || !self.rules.methods.contains(method) || self.live(now, None).is_err() {
            return None;
        }
        let mut schemes = self.rules.schemes.iter().zip(&self.enabled).filter(|(_, on)| **on).peekable();
        schemes.peek()?;
        let hopeless =
            schemes.all(|(scheme, _)| match scheme.carrier.as_ref().and_then(|carrier| carrier.from.plain()) {
                Some(Term::Header(name)) => !headers.contains_key(name),
                _ => false,
            });
        hopeless.then(|| Rejection::new(RejectionCode::MissingSignature, "no header that could hold the signature"))
    }

    /// Whether a signature takes long enough to check that it should not hold up other connections.
    pub fn is_heavy(&self) -> bool {
        let slow = |mechanism| {
            !matches!(
                mechanism,
                Mechanism::Hmac(_) | Mechanism::Plain(_) | Mechanism::Token | Mechanism::Basic | Mechanism::Unproved
            )
        };
        self.rules.schemes.iter().zip(&self.enabled).any(|(scheme, on)| *on && slow(scheme.mechanism))
    }
}
