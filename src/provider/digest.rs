//! Hashes and prepared MACs: the key schedule is computed once per secret and copied per request.

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// Only where a provider gives no choice, and never new.
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// The hash of this name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "md5" => Some(Self::Md5),
            "sha1" => Some(Self::Sha1),
            "sha256" => Some(Self::Sha256),
            "sha384" => Some(Self::Sha384),
            "sha512" => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Bytes of a result.
    pub fn len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of `bytes`.
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let mut running = Running::plain(self);
        running.update(bytes);
        running.finish()
    }

    /// The MAC of `bytes` under `key`.
    pub fn mac(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        let mut running = MacKey::new(self, key).start();
        running.update(bytes);
        running.finish()
    }
}

/// A prepared HMAC key.
#[derive(Clone)]
pub struct MacKey(Running);

impl MacKey {
    /// Computes the key schedule.
    pub fn new(hash: Hash, key: &[u8]) -> Self {
        // Unwrap safety: HMAC takes keys of every length.
        const ANY: &str = "HMAC takes keys of every length";
        Self(match hash {
            Hash::Md5 => Running::MacMd5(Hmac::new_from_slice(key).expect(ANY)),
            Hash::Sha1 => Running::MacSha1(Hmac::new_from_slice(key).expect(ANY)),
            Hash::Sha256 => Running::MacSha256(Hmac::new_from_slice(key).expect(ANY)),
            Hash::Sha384 => Running::MacSha384(Hmac::new_from_slice(key).expect(ANY)),
            Hash::Sha512 => Running::MacSha512(Hmac::new_from_slice(key).expect(ANY)),
        })
    }

    /// A fresh computation under this key.
    pub fn start(&self) -> Running {
        self.0.clone()
    }
}

/// A digest or MAC under way.
#[derive(Clone)]
pub enum Running {
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
    MacMd5(Hmac<Md5>),
    MacSha1(Hmac<Sha1>),
    MacSha256(Hmac<Sha256>),
    MacSha384(Hmac<Sha384>),
    MacSha512(Hmac<Sha512>),
}

impl Running {
    /// A hash without a key.
    pub fn plain(hash: Hash) -> Self {
        match hash {
            Hash::Md5 => Self::Md5(Md5::new()),
            Hash::Sha1 => Self::Sha1(Sha1::new()),
            Hash::Sha256 => Self::Sha256(Sha256::new()),
            Hash::Sha384 => Self::Sha384(Sha384::new()),
            Hash::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    /// Takes in more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(state) => state.update(bytes),
            Self::Sha1(state) => state.update(bytes),
            Self::Sha256(state) => state.update(bytes),
            Self::Sha384(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
            Self::MacMd5(state) => Mac::update(state, bytes),
            Self::MacSha1(state) => Mac::update(state, bytes),
            Self::MacSha256(state) => Mac::update(state, bytes),
            Self::MacSha384(state) => Mac::update(state, bytes),
            Self::MacSha512(state) => Mac::update(state, bytes),
        }
    }

    /// The result; for making signatures, never for comparing them.
    pub fn finish(self) -> Vec<u8> {
        match self {
            Self::Md5(state) => state.finalize().to_vec(),
            Self::Sha1(state) => state.finalize().to_vec(),
            Self::Sha256(state) => state.finalize().to_vec(),
            Self::Sha384(state) => state.finalize().to_vec(),
            Self::Sha512(state) => state.finalize().to_vec(),
            Self::MacMd5(state) => state.finalize().into_bytes().to_vec(),
            Self::MacSha1(state) => state.finalize().into_bytes().to_vec(),
            Self::MacSha256(state) => state.finalize().into_bytes().to_vec(),
            Self::MacSha384(state) => state.finalize().into_bytes().to_vec(),
            Self::MacSha512(state) => state.finalize().into_bytes().to_vec(),
        }
    }

    /// Whether the result is one of `candidates`: constant time in their bytes, exact in their length, all looked at.
    pub fn equals_any(self, candidates: &[Vec<u8>]) -> bool {
        let right = self.finish();
        let hits = candidates.iter().fold(subtle::Choice::from(0), |hits, candidate| hits | right.ct_eq(candidate));
        hits.into()
    }
}

/// SHA-256 as an array.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
