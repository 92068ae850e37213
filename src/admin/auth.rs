//! Who asks: bearer tokens, compared in constant time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::ApiError;
use crate::model::access::Caller;

/// A configured token.
pub struct AccessToken {
    pub caller: Caller,
    pub value: SecretSlice<u8>,
}

/// All configured tokens, kept as digests: every comparison takes as long, whatever the length and the place of the match.
pub struct AccessTokens(Vec<([u8; 32], Caller)>);

impl AccessTokens {
    pub fn new(tokens: impl IntoIterator<Item = AccessToken>) -> Self {
        let digested =
            tokens.into_iter().map(|token| (Sha256::digest(token.value.expose_secret()).into(), token.caller));
        Self(digested.collect())
    }

    /// Whose token this is. All are compared, always.
    pub fn caller_of(&self, presented: &[u8]) -> Option<&Caller> {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        let mut found = None;
        for (known, caller) in &self.0 {
            if bool::from(known.ct_eq(&digest)) {
                found = Some(caller);
            }
        }
        found
    }
}

/// Lets nobody pass without a token, and tells the handlers who it is (an extension of type [`Caller`]).
pub(super) async fn authenticate(
    State(tokens): State<Arc<AccessTokens>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(caller) = bearer(&request).and_then(|presented| tokens.caller_of(presented)).cloned() else {
        return ApiError::unauthorized().into_response();
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// The token of exactly one `Authorization: Bearer` header.
fn bearer(request: &Request) -> Option<&[u8]> {
    let mut values = request.headers().get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}
