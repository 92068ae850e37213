//! What a consumer reports of an attempt: the body that AMQP and HTTP share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job::{INTAKE, JobKey};

/// How an attempt went, in the consumer's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeKind {
    Started,
    Completed,
    /// Try again.
    Failed,
    /// Do not try again.
    Rejected,
}

impl OutcomeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Started, Self::Completed, Self::Failed, Self::Rejected].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The version of the report's body that this gateway reads.
pub const OUTCOME_VERSION: u32 = 1;
/// Longest `reason` that is kept; a longer one is cut.
pub const REASON_BYTES_MAX: usize = 128;
/// Longest text that is kept of a report; a longer one is cut.
pub const TEXT_BYTES_MAX: usize = 2048;
/// Longest name of a subscription.
const NAME_BYTES_MAX: usize = 40;
/// Digits of a token: HMAC-SHA256 in hex.
const TOKEN_BYTES: usize = 64;
/// `retry_after_s` past this (a year) is not a wish but a mistake.
const RETRY_AFTER_SECONDS_MAX: f64 = 31_536_000.0;

/// The body as it comes, version 1.
///
/// Fields that it does not name are passed over: a consumer may be newer than its gateway, and a report is worth more than a
/// field that this version has no use for. What changes the meaning of the fields below gets a new `v`, and that is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutcomeBody {
    pub v: u32,
    pub receipt: String,
    pub subscription: String,
    pub attempt: i64,
    pub token: String,
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<f64>,
    /// The effect had been there before this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub already: Option<bool>,
}

/// A report whose fields are what they should be; its token has still to be compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub key: JobKey,
    pub attempt: i32,
    pub token: String,
    pub kind: OutcomeKind,
    /// At most [`REASON_BYTES_MAX`].
    pub reason: Option<String>,
    /// At most [`TEXT_BYTES_MAX`].
    pub message: Option<String>,
    pub retry_after: Option<Duration>,
}

/// Why a report is refused; none of them is worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OutcomeError {
    #[error("the report is too large")]
    TooLarge,
    #[error("the report is not JSON of the expected shape")]
    Malformed,
    #[error("the report's version is not {OUTCOME_VERSION}")]
    Version,
    #[error("`receipt` is no receipt's id")]
    Receipt,
    #[error("`subscription` is no subscription's name")]
    Subscription,
    #[error("`attempt` is no attempt's number")]
    Attempt,
    #[error("`outcome` is not one of started, completed, failed, rejected")]
    Kind,
    #[error("`retry_after_s` is not a number of seconds")]
    RetryAfter,
    #[error("the token is not the one of this attempt")]
    Token,
}

impl OutcomeError {
    pub const ALL: [Self; 9] = [
        Self::TooLarge,
        Self::Malformed,
        Self::Version,
        Self::Receipt,
        Self::Subscription,
        Self::Attempt,
        Self::Kind,
        Self::RetryAfter,
        Self::Token,
    ];

    pub fn code(self) -> &'static str {
        match self {
            Self::TooLarge => "report_too_large",
            Self::Malformed => "report_malformed",
            Self::Version => "report_version",
            Self::Receipt => "receipt_invalid",
            Self::Subscription => "subscription_invalid",
            Self::Attempt => "attempt_invalid",
            Self::Kind => "outcome_unknown",
            Self::RetryAfter => "retry_after_invalid",
            Self::Token => "token_wrong",
        }
    }
}

impl OutcomeBody {
    /// Checks every field and bounds the texts.
    pub fn check(self) -> Result<Outcome, OutcomeError> {
        if self.v != OUTCOME_VERSION {
            return Err(OutcomeError::Version);
        }
        let receipt = self.receipt.parse().map_err(|_| OutcomeError::Receipt)?;
        if !is_name(&self.subscription) || self.subscription == INTAKE {
            return Err(OutcomeError::Subscription);
        }
        let attempt = i32::try_from(self.attempt).ok().filter(|attempt| *attempt >= 1).ok_or(OutcomeError::Attempt)?;
        let kind = OutcomeKind::parse(&self.outcome).ok_or(OutcomeError::Kind)?;
        if self.token.len() != TOKEN_BYTES {
            return Err(OutcomeError::Token);
        }
        let retry_after = match self.retry_after_s {
            None => None,
            Some(seconds) if (0.0..=RETRY_AFTER_SECONDS_MAX).contains(&seconds) => {
                Some(Duration::from_secs_f64(seconds))
            }
            Some(_) => return Err(OutcomeError::RetryAfter),
        };
        let already = (self.already == Some(true)).then(|| "already".to_owned());
        Ok(Outcome {
            key: JobKey { receipt, subscription: self.subscription },
            attempt,
            token: self.token,
            kind,
            reason: self
                .reason
                .map(|text| bounded(&text, REASON_BYTES_MAX))
                .filter(|text| !text.is_empty())
                .or(already),
            message: self.message.map(|text| bounded(&text, TEXT_BYTES_MAX)).filter(|text| !text.is_empty()),
            retry_after,
        })
    }
}

/// `text` fit for a column and a log line: at most `bytes_max` bytes, cut between characters, and without the NUL that
/// PostgreSQL's text refuses.
pub fn bounded(text: &str, bytes_max: usize) -> String {
    let mut kept = String::with_capacity(text.len().min(bytes_max));
    for character in text.chars() {
        let character = if character == '\0' { char::REPLACEMENT_CHARACTER } else { character };
        if kept.len() + character.len_utf8() > bytes_max {
            break;
        }
        kept.push(character);
    }
    kept
}

/// Reason and message as one text, as the history keeps it.
pub fn words(reason: Option<&str>, message: Option<&str>) -> Option<String> {
    let joined = match (reason, message) {
        (None, None) => return None,
        (Some(reason), None) => reason.to_owned(),
        (None, Some(message)) => message.to_owned(),
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
    };
    Some(bounded(&joined, TEXT_BYTES_MAX))
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> OutcomeBody {
        OutcomeBody {
            v: 1,
            receipt: "0198c0de-0000-7000-8000-000000000001".into(),
            subscription: "billing".into(),
            attempt: 2,
            token: "ab".repeat(32),
            outcome: "failed".into(),
            reason: None,
            message: None,
            retry_after_s: None,
            already: None,
        }
    }

    #[test]
    fn a_good_report_is_taken_with_its_texts_bounded() {
        let long = "ş".repeat(2000);
        let outcome = OutcomeBody {
            reason: Some("r".repeat(500)),
            message: Some(format!("a\0b{long}")),
            retry_after_s: Some(1.5),
            ..body()
        }
        .check()
        .expect("good");
        assert_eq!((outcome.attempt, outcome.kind), (2, OutcomeKind::Failed));
        assert_eq!(outcome.reason.map(|reason| reason.len()), Some(128));
        let message = outcome.message.expect("kept");
        assert!(
            message.starts_with("a\u{fffd}bş") && message.len() <= 2048 && message.len() > 2044,
            "{}",
            message.len()
        );
        assert_eq!(outcome.retry_after, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn each_bad_field_has_its_own_code() {
        let cases: [(OutcomeBody, &str); 13] = [
            (OutcomeBody { v: 2, ..body() }, "report_version"),
            (OutcomeBody { receipt: "7".into(), ..body() }, "receipt_invalid"),
            (OutcomeBody { subscription: String::new(), ..body() }, "subscription_invalid"),
            (OutcomeBody { subscription: "~intake".into(), ..body() }, "subscription_invalid"),
            (OutcomeBody { subscription: "a".repeat(41), ..body() }, "subscription_invalid"),
            (OutcomeBody { subscription: "A".into(), ..body() }, "subscription_invalid"),
            (OutcomeBody { attempt: 0, ..body() }, "attempt_invalid"),
            (OutcomeBody { attempt: i64::MAX, ..body() }, "attempt_invalid"),
            (OutcomeBody { outcome: "done".into(), ..body() }, "outcome_unknown"),
            (OutcomeBody { token: String::new(), ..body() }, "token_wrong"),
            (OutcomeBody { retry_after_s: Some(-1.0), ..body() }, "retry_after_invalid"),
            (OutcomeBody { retry_after_s: Some(f64::INFINITY), ..body() }, "retry_after_invalid"),
            (OutcomeBody { retry_after_s: Some(1e300), ..body() }, "retry_after_invalid"),
        ];
        for (body, code) in cases {
            assert_eq!(body.clone().check().expect_err("refused").code(), code, "{body:?}");
        }
    }

    #[test]
    fn an_effect_that_was_there_already_says_so_in_the_history() {
        let done = OutcomeBody { outcome: "completed".into(), already: Some(true), ..body() }.check().expect("good");
        assert_eq!(done.reason.as_deref(), Some("already"));
    }

    #[test]
    fn words_join_reason_and_message_within_the_bound() {
        assert_eq!(words(None, None), None);
        assert_eq!(words(Some("r"), None).as_deref(), Some("r"));
        assert_eq!(words(Some("r"), Some("m")).as_deref(), Some("r: m"));
        assert_eq!(words(Some("r"), Some(&"m".repeat(9999))).map(|text| text.len()), Some(TEXT_BYTES_MAX));
    }
}
