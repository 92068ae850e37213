//! Every metric, declared once: name, meaning, labels, buckets. Labels come from configuration or enums, never from requests.
//! Counters of known labels start at 0, so that a rule sees "none yet" and not "no such series".

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// How a delivery ended, for `makbuz_deliveries_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryResult {
    Accepted,
    Duplicate,
    Rejected,
    Unavailable,
    Handshake,
}

impl DeliveryResult {
    pub const ALL: [Self; 5] = [Self::Accepted, Self::Duplicate, Self::Rejected, Self::Unavailable, Self::Handshake];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
            Self::Handshake => "handshake",
        }
    }
}

/// How a publish ended, for `makbuz_publishes_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishResult {
    Confirmed,
    Nacked,
    Unrouted,
    Timeout,
    Lost,
}

impl PublishResult {
    pub const ALL: [Self; 5] = [Self::Confirmed, Self::Nacked, Self::Unrouted, Self::Timeout, Self::Lost];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Nacked => "nacked",
            Self::Unrouted => "unrouted",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
        }
    }
}

/// What became of a dead letter, for `makbuz_dead_letters_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetter {
    /// Recorded as a failed attempt.
    Failed,
    /// Expired, or its queue was too short: published again.
    Republished,
    /// Of no job that is known.
    Unknown,
}

impl DeadLetter {
    pub const ALL: [Self; 3] = [Self::Failed, Self::Republished, Self::Unknown];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Republished => "republished",
            Self::Unknown => "unknown",
        }
    }
}

/// The reasons of `makbuz_attempt_failures_total`.
pub const FAILURE_REASONS: [&str; 11] = [
    "timeout",
    "connect",
    "tls",
    "server_error",
    "throttled",
    "signature",
    "address",
    "other_4xx",
    "no_outcome",
    "failed",
    "rejected",
];

/// First byte to answer, and one commit: a commit is about an fsync, so the fine buckets lie around 1–50 ms.
const FAST_SECONDS: [f64; 14] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Publish, lag: from a few milliseconds to a day.
const LAG_SECONDS: [f64; 15] =
    [0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 28_800.0, 86_400.0];
const BATCH_EVENTS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// A recorder with our buckets, and the handle that renders it; the caller installs it and runs `run_upkeep` every 5 s.
pub fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full("makbuz_receipt_seconds".into()), &FAST_SECONDS)?
        .set_buckets_for_metric(Matcher::Full("makbuz_commit_seconds".into()), &FAST_SECONDS)?
        .set_buckets_for_metric(Matcher::Full("makbuz_commit_batch_events".into()), &BATCH_EVENTS)?
        .set_buckets_for_metric(Matcher::Full("makbuz_publish_seconds".into()), &LAG_SECONDS)?
        .set_buckets_for_metric(Matcher::Full("makbuz_processing_lag_seconds".into()), &LAG_SECONDS)?
        .set_buckets_for_metric(Matcher::Full("makbuz_occurred_lag_seconds".into()), &LAG_SECONDS)
}

/// Installs the recorder for the whole process; a second call fails.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = builder()?.install_recorder()?;
    describe();
    gauge!("makbuz_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// Sets the counters of a source to 0. `rejection_codes` and `hold_reasons` are the stable codes of their enums.
pub fn start_source(source: &str, secrets: &[String], rejection_codes: &[&'static str], hold_reasons: &[&'static str]) {
    for result in DeliveryResult::ALL {
        counter!("makbuz_deliveries_total", "source" => source.to_owned(), "result" => result.as_str()).increment(0);
    }
    for code in rejection_codes {
        counter!("makbuz_rejections_total", "source" => source.to_owned(), "code" => *code).increment(0);
    }
    for reason in hold_reasons {
        counter!("makbuz_held_total", "source" => source.to_owned(), "reason" => *reason).increment(0);
    }
    for secret in secrets {
        counter!("makbuz_secret_matches_total", "source" => source.to_owned(), "secret" => secret.clone()).increment(0);
    }
    for name in
        ["makbuz_duplicates_total", "makbuz_divergences_total", "makbuz_unmatched_total", "makbuz_outside_window_total"]
    {
        counter!(name, "source" => source.to_owned()).increment(0);
    }
}

/// Sets the counters of a subscription to 0.
pub fn start_subscription(subscription: &str) {
    for outcome in ["completed", "failed", "rejected"] {
        counter!("makbuz_attempts_total", "subscription" => subscription.to_owned(), "outcome" => outcome).increment(0);
    }
    for reason in FAILURE_REASONS {
        counter!("makbuz_attempt_failures_total", "subscription" => subscription.to_owned(), "reason" => reason)
            .increment(0);
    }
}

/// Sets the counters that have no label from configuration to 0.
pub fn start_process() {
    for result in PublishResult::ALL {
        counter!("makbuz_publishes_total", "result" => result.as_str()).increment(0);
    }
    for result in DeadLetter::ALL {
        dead_letters(result, 0);
    }
    gauge!("makbuz_broker_blocked").set(0.0);
    gauge!("makbuz_edge_connections").set(0.0);
    counter!("makbuz_quarantine_dropped_total").increment(0);
}

pub fn delivery(source: &str, result: DeliveryResult, took: Duration) {
    counter!("makbuz_deliveries_total", "source" => source.to_owned(), "result" => result.as_str()).increment(1);
    histogram!("makbuz_receipt_seconds", "source" => source.to_owned()).record(took.as_secs_f64());
}

pub fn rejection(source: &str, code: &'static str) {
    counter!("makbuz_rejections_total", "source" => source.to_owned(), "code" => code).increment(1);
}

pub fn duplicate(source: &str) {
    counter!("makbuz_duplicates_total", "source" => source.to_owned()).increment(1);
}

pub fn divergence(source: &str) {
    counter!("makbuz_divergences_total", "source" => source.to_owned()).increment(1);
}

pub fn unmatched(source: &str) {
    counter!("makbuz_unmatched_total", "source" => source.to_owned()).increment(1);
}

pub fn held(source: &str, reason: &'static str) {
    counter!("makbuz_held_total", "source" => source.to_owned(), "reason" => reason).increment(1);
}

pub fn outside_window(source: &str) {
    counter!("makbuz_outside_window_total", "source" => source.to_owned()).increment(1);
}

pub fn secret_match(source: &str, secret: &str) {
    counter!("makbuz_secret_matches_total", "source" => source.to_owned(), "secret" => secret.to_owned()).increment(1);
}

/// `at` in seconds since 1970.
pub fn source_last_delivery(source: &str, at: f64) {
    gauge!("makbuz_source_last_delivery_timestamp_seconds", "source" => source.to_owned()).set(at);
}

pub fn occurred_lag(source: &str, lag: Duration) {
    histogram!("makbuz_occurred_lag_seconds", "source" => source.to_owned()).record(lag.as_secs_f64());
}

/// A source called by one of its aliases.
pub fn alias(source: &str, alias: &str) {
    counter!("makbuz_alias_deliveries_total", "source" => source.to_owned(), "alias" => alias.to_owned()).increment(1);
}

/// Opens (1) or ends (-1) a connection of the edge.
pub fn edge_connections(change: f64) {
    gauge!("makbuz_edge_connections").increment(change);
}

/// Rejections that did not reach the quarantine.
pub fn quarantine_dropped(count: u64) {
    counter!("makbuz_quarantine_dropped_total").increment(count);
}

#[expect(clippy::cast_precision_loss, reason = "a batch is small")]
pub fn commit(took: Duration, events: usize) {
    histogram!("makbuz_commit_seconds").record(took.as_secs_f64());
    histogram!("makbuz_commit_batch_events").record(events as f64);
}

pub fn publish(result: PublishResult, rows: u64) {
    counter!("makbuz_publishes_total", "result" => result.as_str()).increment(rows);
}

pub fn dead_letters(result: DeadLetter, letters: u64) {
    counter!("makbuz_dead_letters_total", "result" => result.as_str()).increment(letters);
}

/// From the commit of the row to its confirm.
pub fn publish_lag(lag: Duration) {
    histogram!("makbuz_publish_seconds").record(lag.as_secs_f64());
}

pub fn broker_blocked(blocked: bool) {
    gauge!("makbuz_broker_blocked").set(f64::from(u8::from(blocked)));
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
pub fn outbox(depth: u64, oldest: Duration) {
    gauge!("makbuz_outbox_depth").set(depth as f64);
    gauge!("makbuz_oldest_unpublished_seconds").set(oldest.as_secs_f64());
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
pub fn jobs(subscription: &str, state: &'static str, n: i64) {
    gauge!("makbuz_jobs", "subscription" => subscription.to_owned(), "state" => state).set(n as f64);
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
pub fn job_ages(subscription: &str, unprocessed: Duration, review: Duration, repeated_failures: i64) {
    gauge!("makbuz_oldest_unprocessed_seconds", "subscription" => subscription.to_owned())
        .set(unprocessed.as_secs_f64());
    gauge!("makbuz_oldest_review_seconds", "subscription" => subscription.to_owned()).set(review.as_secs_f64());
    gauge!("makbuz_repeated_failures", "subscription" => subscription.to_owned()).set(repeated_failures as f64);
}

/// From `received_at` to completed.
pub fn processing_lag(subscription: &str, lag: Duration) {
    histogram!("makbuz_processing_lag_seconds", "subscription" => subscription.to_owned()).record(lag.as_secs_f64());
}

pub fn attempt(subscription: &str, outcome: &'static str) {
    counter!("makbuz_attempts_total", "subscription" => subscription.to_owned(), "outcome" => outcome).increment(1);
}

pub fn attempt_failure(subscription: &str, reason: &'static str) {
    counter!("makbuz_attempt_failures_total", "subscription" => subscription.to_owned(), "reason" => reason)
        .increment(1);
}

/// A report that was refused, by its stable code.
pub fn bad_report(code: &'static str) {
    counter!("makbuz_bad_reports_total", "code" => code).increment(1);
}

/// Sets the counters of refused reports to 0.
pub fn start_bad_reports(codes: &[&'static str]) {
    for code in codes {
        counter!("makbuz_bad_reports_total", "code" => *code).increment(0);
    }
}

pub fn partition_days_ahead(days: u32) {
    gauge!("makbuz_partition_days_ahead").set(f64::from(days));
}

fn describe() {
    describe_counter!(
        "makbuz_deliveries_total",
        "Inbound requests by source and result: accepted, duplicate, rejected, unavailable, handshake"
    );
    describe_counter!("makbuz_rejections_total", "Refused requests by source and stable code");
    describe_counter!("makbuz_duplicates_total", "Authentic events whose receipt existed");
    describe_counter!("makbuz_divergences_total", "Events with a known key and other content");
    describe_counter!("makbuz_unmatched_total", "Receipts that no subscription took");
    describe_counter!("makbuz_held_total", "Receipts held for a person, by reason");
    describe_counter!("makbuz_outside_window_total", "Receipts accepted more than five minutes from their signed time");
    describe_counter!("makbuz_secret_matches_total", "Deliveries by the label of the secret that matched");
    describe_histogram!("makbuz_receipt_seconds", "First byte of the request to the answer");
    describe_counter!("makbuz_alias_deliveries_total", "Requests that called a source by one of its aliases");
    describe_gauge!("makbuz_edge_connections", "Open connections of the edge");
    describe_counter!("makbuz_quarantine_dropped_total", "Rejections that did not reach the quarantine");
    describe_histogram!("makbuz_commit_seconds", "One intake transaction");
    describe_histogram!("makbuz_commit_batch_events", "Events in one intake transaction");
    describe_counter!(
        "makbuz_publishes_total",
        "Publishes by result; what only the alternate exchange took counts as confirmed, and as unrouted when it is back"
    );
    describe_counter!("makbuz_dead_letters_total", "Dead letters by what became of them: failed, republished, unknown");
    describe_histogram!("makbuz_publish_seconds", "Commit of an outbox row to its confirm");
    describe_gauge!("makbuz_outbox_depth", "Hand-overs that wait for the broker");
    describe_gauge!("makbuz_oldest_unpublished_seconds", "Age of the oldest of them");
    describe_gauge!("makbuz_broker_blocked", "1 while the broker takes no publishes");
    describe_gauge!("makbuz_jobs", "Jobs by subscription and state");
    describe_gauge!(
        "makbuz_oldest_unprocessed_seconds",
        "Age since received_at of the oldest job in pending, queued, running or retrying"
    );
    describe_gauge!("makbuz_oldest_review_seconds", "Age since received_at of the oldest job in review");
    describe_histogram!("makbuz_processing_lag_seconds", "received_at to completed");
    describe_histogram!("makbuz_occurred_lag_seconds", "The provider's own time to received_at");
    describe_counter!("makbuz_attempts_total", "Ended attempts by outcome");
    describe_counter!("makbuz_attempt_failures_total", "Failed attempts by reason");
    describe_counter!("makbuz_bad_reports_total", "Reports of consumers that were refused, by stable code");
    describe_gauge!("makbuz_repeated_failures", "Live jobs with two or more failed attempts");
    describe_gauge!(
        "makbuz_source_last_delivery_timestamp_seconds",
        "When the source last delivered; absent until the first"
    );
    describe_gauge!("makbuz_partition_days_ahead", "Days of body partitions made ahead");
    describe_gauge!("makbuz_build_info", "Always 1; the version is a label");
}

#[cfg(test)]
mod tests {
    /// Rules are written from the README.
    #[test]
    fn the_readme_names_only_metrics_that_are_described() {
        let words = include_str!("../README.md").split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let named: Vec<&str> = words.filter(|word| word.starts_with("makbuz_")).collect();
        assert!(named.len() >= 10, "the table is there: {named:?}");
        let source = include_str!("metrics.rs");
        let described = &source[source.find("fn describe()").expect("it is there")..];
        for name in named {
            assert!(described.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
