//! When a failed job is tried again: a pure function of the tries, the time and a random number.

use std::time::Duration;

/// How one more try is timed.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Waits before the second, third … try, before jitter.
    pub waits: Vec<Duration>,
    /// Jitter as fractions of the wait, `min..=max`.
    pub jitter_min: f64,
    pub jitter_max: f64,
    /// Also shorten (`both`), not only lengthen (`plus`).
    pub jitter_both: bool,
    /// Longest time from the series' first try to the start of another one.
    pub total_max: Duration,
    /// Bounds for a consumer's own `retry_after_s`.
    pub retry_after_max: Duration,
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this wait.
    After(Duration),
    /// The tries or the time are used up.
    Exhausted,
}
