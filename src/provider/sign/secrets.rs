//! Keys for test requests: made fresh, and used the way the provider would.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use secrecy::ExposeSecret as _;

use super::super::ParamValues;
use super::super::definition::{Definition, Scheme};
use super::super::digest::Hash;
use super::super::inlet::BoundSecret;
use super::super::key::{KeyFormat, Mechanism, Prepared};
use super::SignError;
use crate::random::Random;

/// A secret for tests: what to configure, and the private half where that is a public key.
#[derive(Debug, Clone)]
pub struct TestSecret {
    pub secret: String,
    /// Ed25519: the 32-byte seed. P-256 and RSA: PKCS#8, DER or PEM.
    pub private_key: Option<Vec<u8>>,
}

impl Definition {
    /// A fresh secret in the form that the provider gives out; `None` where none is used or none can be made here.
    pub fn test_secret(&self, random: &dyn Random) -> Option<TestSecret> {
        let scheme = self.rules.schemes.iter().find(|scheme| !scheme.optional)?;
        let mut bytes = [0; 32];
        random.fill(&mut bytes);
        let (key, private_key) = match scheme.mechanism {
            Mechanism::Unproved | Mechanism::Rsa(_) | Mechanism::RsaPss(_) => return None,
            Mechanism::Basic => {
                return Some(TestSecret { secret: format!("makbuz:{}", hex::encode(bytes)), private_key: None });
            }
            Mechanism::Ed25519 => {
                let pair = Ed25519KeyPair::from_seed_unchecked(&bytes).ok()?;
                (pair.public_key().as_ref().to_vec(), Some(bytes.to_vec()))
            }
            Mechanism::EcdsaP256 | Mechanism::EcdsaP256Fixed => {
                let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &nonces()).ok()?;
                let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &nonces()).ok()?;
                (pair.public_key().as_ref().to_vec(), Some(pkcs8.as_ref().to_vec()))
            }
            Mechanism::Hmac(_) | Mechanism::Plain(_) | Mechanism::Token => (bytes.to_vec(), None),
        };
        let text = match scheme.key {
            KeyFormat::Text | KeyFormat::Sha1 => format!("test_{}", hex::encode(&key[..16])),
            KeyFormat::Hex => hex::encode(key),
            KeyFormat::Base64 => STANDARD.encode(key),
            KeyFormat::PublicKey => STANDARD.encode(subject_public_key(scheme.mechanism, &key)),
        };
        let prefix = scheme.key_prefix.as_deref().unwrap_or_default();
        Some(TestSecret { secret: format!("{prefix}{text}"), private_key })
    }

    /// Values for the params that must be given, for tests and samples.
    pub fn example_params(&self) -> ParamValues {
        let required =
            self.spec.params.iter().filter(|(name, _)| self.rules.params.get(*name).is_some_and(|rule| rule.required));
        required
            .map(|(name, param)| {
                let example = param.example.clone().unwrap_or_else(|| format!("test-{name}"));
                (name.clone(), example.into_bytes().into())
            })
            .collect()
    }
}

/// The signature of a message under a bound secret.
pub(super) fn signature(
    scheme: &Scheme,
    secret: &BoundSecret,
    index: usize,
    message: &[u8],
    private_key: Option<&[u8]>,
) -> Result<Vec<u8>, SignError> {
    let bad = |error: &dyn std::fmt::Display| SignError::BadPrivateKey(error.to_string());
    let Some(key) = &secret.keys[index] else { return Err(SignError::NoSecret) };
    match (&key.prepared, scheme.mechanism) {
        (_, Mechanism::Basic) => Ok(STANDARD.encode(secret.text.expose_secret()).into_bytes()),
        (_, Mechanism::Token) => Ok(key.decoded.to_vec()),
        (Prepared::Mac(key), _) => {
            let mut running = key.start();
            running.update(message);
            Ok(running.finish())
        }
        (Prepared::Plain(hash), _) => Ok(hash.digest(message)),
        (_, Mechanism::Ed25519) => {
            let seed = private_key.ok_or(SignError::NoPrivateKey)?;
            let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|error| bad(&error))?;
            Ok(pair.sign(message).as_ref().to_vec())
        }
        (_, mechanism @ (Mechanism::EcdsaP256 | Mechanism::EcdsaP256Fixed)) => {
            let algorithm = match mechanism {
                Mechanism::EcdsaP256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
                _ => &ECDSA_P256_SHA256_FIXED_SIGNING,
            };
            let pkcs8 = der(private_key.ok_or(SignError::NoPrivateKey)?);
            let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8, &nonces()).map_err(|error| bad(&error))?;
            let signature = pair.sign(&nonces(), message).map_err(|error| bad(&error))?;
            Ok(signature.as_ref().to_vec())
        }
        (_, Mechanism::Rsa(_) | Mechanism::RsaPss(_)) => {
            let encoding: &'static dyn RsaEncoding = match scheme.mechanism {
                Mechanism::Rsa(Hash::Sha256) => &RSA_PKCS1_SHA256,
                Mechanism::Rsa(Hash::Sha512) => &RSA_PKCS1_SHA512,
                Mechanism::RsaPss(Hash::Sha512) => &RSA_PSS_SHA512,
                Mechanism::RsaPss(_) => &RSA_PSS_SHA256,
                // Nobody should make new ones.
                _ => return Err(SignError::NoPrivateKey),
            };
            let pkcs8 = der(private_key.ok_or(SignError::NoPrivateKey)?);
            let pair = RsaKeyPair::from_pkcs8(&pkcs8).map_err(|error| bad(&error))?;
            let mut signature = vec![0; pair.public().modulus_len()];
            pair.sign(encoding, &nonces(), message, &mut signature).map_err(|error| bad(&error))?;
            Ok(signature)
        }
        _ => Err(SignError::NoPrivateKey),
    }
}

/// The bytes of a key that may be written as PEM.
fn der(key: &[u8]) -> Cow<'_, [u8]> {
    let Some(text) = std::str::from_utf8(key).ok().filter(|text| text.trim_start().starts_with("-----BEGIN")) else {
        return Cow::Borrowed(key);
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    STANDARD.decode(lines.collect::<String>()).map_or(Cow::Borrowed(key), Cow::Owned)
}

/// ECDSA takes its nonces from ring's own generator and from nothing else.
#[expect(clippy::disallowed_methods, reason = "ring's signing trait is sealed: no other source of nonces can be given")]
fn nonces() -> ring::rand::SystemRandom {
    ring::rand::SystemRandom::new()
}

/// The DER form that providers hand out.
fn subject_public_key(mechanism: Mechanism, key: &[u8]) -> Vec<u8> {
    const P256: &[u8] =
        b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
    const ED25519: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
    let head = if mechanism == Mechanism::Ed25519 { ED25519 } else { P256 };
    [head, key].concat()
}
