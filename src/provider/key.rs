//! Secrets as configured → keys as the mechanism wants them. Nothing is guessed: the file says how a secret is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use zeroize::Zeroizing;

use super::digest::{Hash, MacKey, sha256};

/// How a secret's text becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// The text itself, even when it looks like hex or base64.
    Text,
    Hex,
    Base64,
    /// SHA-1 of the text.
    Sha1,
    /// A public key as PEM, or as base64 of its DER form.
    PublicKey,
}

impl KeyFormat {
    /// The format of this name in a provider file.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "utf8" => Some(Self::Text),
            "hex" => Some(Self::Hex),
            "base64" => Some(Self::Base64),
            "sha1" => Some(Self::Sha1),
            "public-key" => Some(Self::PublicKey),
            _ => None,
        }
    }

    /// Decodes `text`; empty results are mistakes.
    pub fn decode(self, text: &[u8]) -> Result<Zeroizing<Vec<u8>>, &'static str> {
        let key = match self {
            Self::Text => text.to_vec(),
            Self::Sha1 => Hash::Sha1.digest(text),
            Self::Hex => hex::decode(text).map_err(|_| "is not hex")?,
            Self::Base64 => STANDARD.decode(text).map_err(|_| "is not standard base64")?,
            Self::PublicKey => public_key(text)?,
        };
        if key.is_empty() { Err("is empty") } else { Ok(Zeroizing::new(key)) }
    }
}

/// How a delivery is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    Hmac(Hash),
    /// A plain hash over a message that holds the secret.
    Plain(Hash),
    Ed25519,
    /// ECDSA over P-256 with SHA-256, the signature in DER.
    EcdsaP256,
    /// The same, the signature as r and s side by side.
    EcdsaP256Fixed,
    Rsa(Hash),
    RsaPss(Hash),
    Token,
    Basic,
    /// Nothing is proved.
    Unproved,
}

impl Mechanism {
    /// The mechanism of this name in a provider file.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "ed25519" => Self::Ed25519,
            "ecdsa-p256-sha256" => Self::EcdsaP256,
            "ecdsa-p256-sha256-fixed" => Self::EcdsaP256Fixed,
            "token" => Self::Token,
            "basic" => Self::Basic,
            "none" => Self::Unproved,
            other => match other.split_once('-') {
                Some(("hmac", hash)) => Self::Hmac(Hash::parse(hash)?),
                Some(("hash", hash)) => Self::Plain(Hash::parse(hash)?),
                Some(("rsa", "sha1")) => Self::Rsa(Hash::Sha1),
                Some(("rsa", "sha256")) => Self::Rsa(Hash::Sha256),
                Some(("rsa", "sha512")) => Self::Rsa(Hash::Sha512),
                Some(("rsa", "pss-sha256")) => Self::RsaPss(Hash::Sha256),
                Some(("rsa", "pss-sha512")) => Self::RsaPss(Hash::Sha512),
                _ => return None,
            },
        })
    }

    /// Whether a message is signed at all.
    pub fn signs(self) -> bool {
        !matches!(self, Self::Token | Self::Basic | Self::Unproved)
    }

    /// Whether the configured secret is a public key.
    pub fn public(self) -> bool {
        self.algorithm().is_some()
    }

    /// Whether a signature of this many bytes can be right.
    pub fn fits(self, length: usize) -> bool {
        match self {
            Self::Hmac(hash) | Self::Plain(hash) => length == hash.len(),
            Self::Ed25519 | Self::EcdsaP256Fixed => length == 64,
            Self::EcdsaP256 => (8..=72).contains(&length),
            Self::Rsa(_) | Self::RsaPss(_) => (256..=1024).contains(&length),
            Self::Token | Self::Basic => length > 0,
            Self::Unproved => true,
        }
    }

    fn algorithm(self) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match self {
            Self::Ed25519 => &signature::ED25519,
            Self::EcdsaP256 => &signature::ECDSA_P256_SHA256_ASN1,
            Self::EcdsaP256Fixed => &signature::ECDSA_P256_SHA256_FIXED,
            Self::Rsa(Hash::Sha1) => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Rsa(Hash::Sha512) => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Rsa(_) => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::RsaPss(Hash::Sha512) => &signature::RSA_PSS_2048_8192_SHA512,
            Self::RsaPss(_) => &signature::RSA_PSS_2048_8192_SHA256,
            _ => return None,
        })
    }

    /// Prepares a decoded key.
    pub fn prepare(self, key: &[u8]) -> Result<Prepared, &'static str> {
        if key.iter().all(u8::is_ascii_whitespace) {
            return Err("is blank");
        }
        Ok(match self {
            Self::Hmac(hash) => Prepared::Mac(Box::new(MacKey::new(hash, key))),
            Self::Plain(hash) => Prepared::Plain(hash),
            Self::Token => Prepared::Secret(sha256(key)),
            Self::Basic => match key.iter().position(|byte| *byte == b':') {
                Some(at) if at > 0 && at + 1 < key.len() => Prepared::Secret(sha256(STANDARD.encode(key).as_bytes())),
                _ => return Err("is not `user:password`"),
            },
            Self::Unproved => Prepared::Nothing,
            Self::Ed25519 if key.len() != 32 => return Err("is not a 32-byte Ed25519 public key"),
            Self::EcdsaP256 | Self::EcdsaP256Fixed if key.len() != 65 || key[0] != 4 => {
                return Err("is not an uncompressed P-256 public key");
            }
            other => match other.algorithm() {
                Some(algorithm) => Prepared::Public(UnparsedPublicKey::new(algorithm, key.to_vec())),
                None => return Err("is of no use for this mechanism"),
            },
        })
    }
}

/// A key with its schedule computed.
#[derive(Clone)]
pub enum Prepared {
    Mac(Box<MacKey>),
    Plain(Hash),
    Public(UnparsedPublicKey<Vec<u8>>),
    /// SHA-256 of what must be presented.
    Secret([u8; 32]),
    Nothing,
}

/// The key inside a SubjectPublicKeyInfo: raw for curves, PKCS#1 for RSA.
fn public_key(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    const WRONG: &str = "is not a public key (PEM, or base64 of its DER form)";
    let text = std::str::from_utf8(text).map_err(|_| WRONG)?.trim();
    let inner = match text.strip_prefix("-----BEGIN PUBLIC KEY-----") {
        Some(rest) => rest.strip_suffix("-----END PUBLIC KEY-----").ok_or(WRONG)?,
        None => text,
    };
    let packed: String = inner.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let der = STANDARD.decode(packed).map_err(|_| WRONG)?;
    let (0x30, info, []) = tlv(&der).ok_or(WRONG)? else { return Err(WRONG) };
    let (0x30, _, rest) = tlv(info).ok_or(WRONG)? else { return Err(WRONG) };
    let (0x03, [0, key @ ..], []) = tlv(rest).ok_or(WRONG)? else { return Err(WRONG) };
    Ok(key.to_vec())
}

/// Tag, content and rest of the first DER element.
fn tlv(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 | 0x82 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w038_undecodable_and_empty_secrets_are_refused() {
        for text in ["!!!!", "", "A", "QUJ", "QUJD=", "QUJ_", " "] {
            let key = KeyFormat::Base64.decode(text.as_bytes());
            assert!(key.is_err(), "{text}");
        }
        assert!(KeyFormat::Hex.decode(b"0g").is_err());
        assert!(KeyFormat::Hex.decode(b"abc").is_err());
        assert!(KeyFormat::Text.decode(b"").is_err());
        assert!(Mechanism::Hmac(Hash::Sha256).prepare(b" \n").is_err());
        assert!(Mechanism::Basic.prepare(b"nocolon").is_err());
        assert!(Mechanism::Basic.prepare(b"user:").is_err());
        assert!(Mechanism::Ed25519.prepare(&[1; 31]).is_err());
    }

    #[test]
    fn public_keys_are_read_from_pem_and_der() {
        let der = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==";
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n{}\n-----END PUBLIC KEY-----\n", &der[..64], &der[64..]);
        let key = KeyFormat::PublicKey.decode(der.as_bytes()).expect("der");
        assert_eq!((key.len(), key[0]), (65, 4));
        assert_eq!(*KeyFormat::PublicKey.decode(pem.as_bytes()).expect("pem"), *key);
        assert!(KeyFormat::PublicKey.decode(&der.as_bytes()[..60]).is_err());
    }
}
