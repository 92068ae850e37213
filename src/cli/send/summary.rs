//! What came back: answers by status, latency, and whether each answer was the right one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use http::StatusCode;
use serde_json::{Value, json};

/// Ten minutes: longer than any request may take with its turn.
const LATENCY_MICROS_MAX: u64 = 600_000_000;

/// One answer, read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub receipt: Option<String>,
    pub body: Bytes,
}

impl Answer {
    /// A 2xx; or, for a browser's form, the redirect that names a receipt.
    pub fn is_accepted(&self) -> bool {
        self.status.is_success() || (self.status.is_redirection() && self.receipt.is_some())
    }
}

/// All answers of a load.
#[derive(Debug)]
pub struct Summary {
    pub sent: u64,
    pub accepted: u64,
    /// By status, or by what went wrong (`connect`, `connection`, `timeout`).
    pub answers: BTreeMap<String, u64>,
    /// Authentic ones without a 2xx.
    pub lost: u64,
    /// Changed ones with a 2xx.
    pub forged: u64,
    pub took: Duration,
    /// Microseconds; from the time a request was due, so that a stalled receiver is not measured less.
    latency: Histogram<u64>,
}

impl Summary {
    pub(super) fn new() -> Self {
        // Unwrap safety: constants that the histogram takes. Two digits keep one per connection small.
        let latency = Histogram::new_with_bounds(1, LATENCY_MICROS_MAX, 2).expect("a histogram");
        Self { sent: 0, accepted: 0, answers: BTreeMap::new(), lost: 0, forged: 0, took: Duration::ZERO, latency }
    }

    pub(super) fn add(&mut self, answer: &Result<Answer, &'static str>, tampered: bool, took: Duration) {
        self.sent += 1;
        let accepted = answer.as_ref().is_ok_and(Answer::is_accepted);
        self.accepted += u64::from(accepted);
        self.lost += u64::from(!accepted && !tampered);
        self.forged += u64::from(accepted && tampered);
        let name = match answer {
            Ok(answer) => answer.status.as_str().to_owned(),
            Err(what) => (*what).to_owned(),
        };
        *self.answers.entry(name).or_insert(0) += 1;
        self.latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.lost += other.lost;
        self.forged += other.forged;
        for (name, count) in &other.answers {
            *self.answers.entry(name.clone()).or_insert(0) += count;
        }
        // All have the same bounds, so that nothing is out of them.
        let _ = self.latency.add(&other.latency);
    }

    /// Every authentic request was accepted, and nothing else.
    pub fn is_right(&self) -> bool {
        self.lost == 0 && self.forged == 0
    }

    /// The latency below which this part of the answers lies.
    pub fn latency(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.latency.value_at_quantile(quantile))
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn per_second(&self) -> f64 {
        self.accepted as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub fn to_json(&self) -> Value {
        let ms = |quantile| self.latency(quantile).as_secs_f64() * 1e3;
        json!({
            "sent": self.sent,
            "accepted": self.accepted,
            "answers": self.answers,
            "lost": self.lost,
            "forged": self.forged,
            "seconds": self.took.as_secs_f64(),
            "accepted_per_second": self.per_second(),
            "latency_ms": { "p50": ms(0.5), "p90": ms(0.9), "p99": ms(0.99), "max": ms(1.0) },
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers: Vec<String> = self.answers.iter().map(|(name, count)| format!("{name} × {count}")).collect();
        let ms = |quantile| self.latency(quantile).as_secs_f64() * 1e3;
        writeln!(
            f,
            "sent      {} in {:.2} s, {:.0} accepted per second",
            self.sent,
            self.took.as_secs_f64(),
            self.per_second()
        )?;
        writeln!(f, "answers   {}", answers.join(", "))?;
        write!(
            f,
            "latency   p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(1.0)
        )?;
        if self.lost > 0 {
            write!(f, "\nWRONG     {} authentic requests were not accepted", self.lost)?;
        }
        if self.forged > 0 {
            write!(f, "\nWRONG     {} changed requests were accepted", self.forged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, receipt: Option<&str>) -> Result<Answer, &'static str> {
        let status = StatusCode::from_u16(status).unwrap();
        Ok(Answer { status, receipt: receipt.map(str::to_owned), body: Bytes::new() })
    }

    #[test]
    fn latencies_of_all_parts_are_in_the_summary() {
        let (mut all, mut part) = (Summary::new(), Summary::new());
        for ms in 1..=100 {
            part.add(&answer(200, None), false, Duration::from_millis(ms * 10));
        }
        all.merge(&part);
        all.add(&answer(200, None), false, Duration::from_secs(100_000));
        let near = |quantile: f64, ms: u64| {
            let found = all.latency(quantile).as_secs_f64() * 1e3;
            assert!((found / ms as f64 - 1.0).abs() < 0.03, "{quantile}: {found} ms is not {ms} ms");
        };
        near(0.5, 510);
        near(0.9, 910);
        near(1.0, 600_000);
    }

    #[test]
    fn right_is_all_authentic_and_nothing_else() {
        let mut summary = Summary::new();
        summary.add(&answer(204, None), false, Duration::ZERO);
        summary.add(&answer(303, Some("r")), false, Duration::ZERO);
        summary.add(&answer(401, None), true, Duration::ZERO);
        assert!(summary.is_right());
        summary.add(&answer(303, None), false, Duration::ZERO);
        summary.add(&Err("timeout"), false, Duration::ZERO);
        summary.add(&answer(200, None), true, Duration::ZERO);
        assert_eq!((summary.lost, summary.forged, summary.accepted, summary.sent), (2, 1, 3, 6));
    }
}
