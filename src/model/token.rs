//! The lease token: who did not get the message, or the claim, cannot report on it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::job::JobKey;

/// Makes and checks tokens under the store's key.
#[derive(Clone)]
pub struct TokenKey([u8; 32]);

impl TokenKey {
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// HMAC-SHA256 over `receipt|subscription|attempt`, in hex. None of the three can hold a `|`.
    pub fn token(&self, job: &JobKey, attempt: i32) -> String {
        hex::encode(self.mac(job, attempt).finalize().into_bytes())
    }

    /// Compares in constant time; a token of another length or with other digits is wrong.
    pub fn is_token(&self, token: &str, job: &JobKey, attempt: i32) -> bool {
        let mut given = [0; 32];
        // Capitals are another spelling of the same bytes, and we hand out only one spelling.
        let spelled = !token.bytes().any(|byte| byte.is_ascii_uppercase());
        spelled
            && hex::decode_to_slice(token, &mut given).is_ok()
            && self.mac(job, attempt).verify_slice(&given).is_ok()
    }

    fn mac(&self, job: &JobKey, attempt: i32) -> Hmac<Sha256> {
        // Unwrap safety: HMAC takes keys of every length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of 32 bytes");
        mac.update(format!("{}|{}|{attempt}", job.receipt, job.subscription).as_bytes());
        mac
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(subscription: &str) -> JobKey {
        JobKey {
            receipt: "0198c0de-0000-7000-8000-000000000001".parse().expect("an id"),
            subscription: subscription.to_owned(),
        }
    }

    /// `printf '0198c0de-0000-7000-8000-000000000001|billing|1' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0101…`
    const KNOWN: &str = "7fed63baf2a4fc2774fc1762c02155a2fb6a8071aaa60fbafa1adc68d243eea6";

    #[test]
    fn the_token_is_the_known_hmac() {
        assert_eq!(TokenKey::new([1; 32]).token(&job("billing"), 1), KNOWN);
    }

    #[test]
    fn a_token_is_good_for_its_own_attempt_alone() {
        let key = TokenKey::new([1; 32]);
        assert!(key.is_token(KNOWN, &job("billing"), 1));
        assert!(!key.is_token(KNOWN, &job("billing"), 2));
        assert!(!key.is_token(KNOWN, &job("badges"), 1));
        assert!(!TokenKey::new([2; 32]).is_token(KNOWN, &job("billing"), 1));
        for wrong in ["", "00", &KNOWN[..62], &format!("{KNOWN}00"), &KNOWN.to_uppercase(), &"zz".repeat(32)] {
            assert!(!key.is_token(wrong, &job("billing"), 1), "{wrong}");
        }
    }
}
