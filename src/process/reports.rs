//! A consumer's report from its bytes to the store's words: the same for AMQP and HTTP.

use std::time::Duration;

use crate::clock::Clock;
use crate::metrics;
use crate::model::job::JobState;
use crate::model::outcome::{Outcome, OutcomeBody, OutcomeError, OutcomeKind};
use crate::model::token::TokenKey;
use crate::store::{OutcomeReport, OutcomeVerdict};

/// Longest report: its two texts at their longest, with room for what JSON makes of them.
pub const REPORT_BYTES_MAX: usize = 64 * 1024;

/// Reads reports and checks their tokens.
#[derive(Debug, Clone)]
pub struct ReportReader {
    key: TokenKey,
}

impl ReportReader {
    pub fn new(key: TokenKey) -> Self {
        Self { key }
    }

    /// The report in `bytes`. `consumer` is who sends it: the token's name, or the broker's user.
    pub fn read(&self, bytes: &[u8], consumer: &str) -> Result<OutcomeReport, OutcomeError> {
        if bytes.len() > REPORT_BYTES_MAX {
            return Err(OutcomeError::TooLarge);
        }
        let body: OutcomeBody = serde_json::from_slice(bytes).map_err(|_| OutcomeError::Malformed)?;
        let Outcome { key, attempt, token, kind, reason, message, retry_after } = body.check()?;
        if !self.key.is_token(&token, &key, attempt) {
            return Err(OutcomeError::Token);
        }
        Ok(OutcomeReport { key, attempt, kind, reason, message, retry_after, consumer: consumer.to_owned() })
    }
}

/// Counts what a committed report came to. Call it once for each, after the commit.
pub fn account(report: &OutcomeReport, verdict: OutcomeVerdict, clock: &dyn Clock) {
    let state = match verdict {
        OutcomeVerdict::Applied(state) => state,
        OutcomeVerdict::Recorded | OutcomeVerdict::Already => return,
        OutcomeVerdict::NoSuchJob => return refused(report, "no_such_job"),
        OutcomeVerdict::NoSuchAttempt => return refused(report, "no_such_attempt"),
    };
    let subscription = &report.key.subscription;
    match report.kind {
        OutcomeKind::Started => return,
        OutcomeKind::Completed => {
            let lag = clock.now().saturating_sub(report.key.receipt.created_at());
            metrics::processing_lag(subscription, Duration::from_micros(u64::try_from(lag).unwrap_or(0)));
        }
        OutcomeKind::Failed | OutcomeKind::Rejected => metrics::attempt_failure(subscription, report.kind.as_str()),
    }
    metrics::attempt(subscription, report.kind.as_str());
    if state == JobState::Review {
        tracing::warn!(
            receipt.id = %report.key.receipt,
            subscription,
            attempt.number = report.attempt,
            outcome = report.kind.as_str(),
            "a job waits for a person"
        );
    }
}

/// Counts and logs a report with the right token that no job can take.
pub fn refused(report: &OutcomeReport, code: &'static str) {
    metrics::bad_report(code);
    tracing::info!(
        error.code = code,
        receipt.id = %report.key.receipt,
        subscription = report.key.subscription,
        attempt.number = report.attempt,
        consumer = report.consumer,
        "a report was refused"
    );
}
