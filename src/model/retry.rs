//! When a failed job is tried again: a pure function of the tries, the time and a random number.

use std::time::Duration;

/// How one more try is timed. Made by [`RetryPolicy::schedule`], [`RetryPolicy::exponential`] or [`RetryPolicy::preset`],
/// which refuse what has no end.
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

/// By how much a wait is varied, as fractions of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    pub min: f64,
    pub max: f64,
    /// Shorten as often as lengthen; otherwise only lengthen.
    pub both: bool,
}

impl Jitter {
    /// The default: plus 10–20 %.
    pub const STANDARD: Self = Self { min: 0.10, max: 0.20, both: false };
}

/// The limits that every policy has beside its waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryLimits {
    pub jitter: Jitter,
    /// See [`RetryPolicy::total_max`]. Default 24 h.
    pub total_max: Duration,
    /// See [`RetryPolicy::retry_after_max`]. Default 1 h.
    pub retry_after_max: Duration,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self { jitter: Jitter::STANDARD, total_max: 24 * HOUR, retry_after_max: HOUR }
    }
}

/// Why a policy is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RetryError {
    #[error("a retry policy has 1 to {TRIES_MAX} tries, the first included")]
    Tries,
    #[error("the waits of a retry policy are longer than zero and at most {} days", WAIT_MAX.as_secs() / 86_400)]
    Wait,
    #[error("`factor` is between 1 and 100")]
    Factor,
    #[error("jitter is 0 <= min <= max <= 1 (below 1 where it may shorten)")]
    Jitter,
    #[error("`total_max` is longer than zero and at most {} days", TOTAL_MAX.as_secs() / 86_400)]
    Total,
    #[error("`retry_after_max` is at most {} days", WAIT_MAX.as_secs() / 86_400)]
    RetryAfter,
}

impl RetryError {
    pub fn code(self) -> &'static str {
        match self {
            Self::Tries => "retry_tries",
            Self::Wait => "retry_wait",
            Self::Factor => "retry_factor",
            Self::Jitter => "retry_jitter",
            Self::Total => "retry_total_max",
            Self::RetryAfter => "retry_after_max",
        }
    }
}

/// Most tries that a policy may have, the first included: more is a policy without an end.
pub const TRIES_MAX: usize = 100;
/// Longest single wait.
pub const WAIT_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Longest series.
pub const TOTAL_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Names that [`RetryPolicy::preset`] knows.
pub const PRESETS: [&str; 4] = ["standard", "short", "capped", "day"];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl RetryPolicy {
    /// A policy with these waits before the second, third … try.
    pub fn schedule(waits: Vec<Duration>, limits: RetryLimits) -> Result<Self, RetryError> {
        let RetryLimits { jitter, total_max, retry_after_max } = limits;
        let policy = Self {
            waits,
            jitter_min: jitter.min,
            jitter_max: jitter.max,
            jitter_both: jitter.both,
            total_max,
            retry_after_max,
        };
        policy.check()?;
        Ok(policy)
    }

    /// `tries` in all, the first included; the n-th wait is base × factor^(n−1), at most `cap`, before jitter.
    pub fn exponential(
        base: Duration,
        factor: f64,
        cap: Duration,
        tries: usize,
        limits: RetryLimits,
    ) -> Result<Self, RetryError> {
        if !(1.0..=100.0).contains(&factor) {
            return Err(RetryError::Factor);
        }
        if !(1..=TRIES_MAX).contains(&tries) {
            return Err(RetryError::Tries);
        }
        if cap > WAIT_MAX {
            return Err(RetryError::Wait);
        }
        let cap_seconds = cap.as_secs_f64();
        let waits = std::iter::successors(Some(base.as_secs_f64()), |wait| Some(wait * factor))
            .take(tries - 1)
            .map(|seconds| Duration::from_secs_f64(seconds.min(cap_seconds)))
            .collect();
        Self::schedule(waits, limits)
    }

    /// The named policy; see [`PRESETS`].
    pub fn preset(name: &str) -> Option<Self> {
        let limits = RetryLimits::default();
        let made = match name {
            "standard" => {
                Self::schedule(vec![5 * SECOND, 30 * SECOND, 2 * MINUTE, 10 * MINUTE, HOUR, 6 * HOUR], limits)
            }
            "short" => {
                let jitter = Jitter { min: 0.0, max: 0.20, both: true };
                Self::exponential(5 * SECOND, 2.0, HOUR, 6, RetryLimits { jitter, ..limits })
            }
            "capped" => {
                let jitter = Jitter { min: 0.0, max: 0.20, both: false };
                Self::exponential(SECOND, 2.0, 30 * SECOND, 6, RetryLimits { jitter, ..limits })
            }
            "day" => Self::schedule(
                vec![5 * SECOND, 30 * SECOND, 2 * MINUTE, 10 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR],
                RetryLimits { total_max: 26 * HOUR, ..limits },
            ),
            _ => return None,
        };
        made.ok()
    }

    /// Tries in a series, the first included.
    pub fn attempts(&self) -> usize {
        self.waits.len() + 1
    }

    /// What follows when the `tries_in_series`-th try of a series has failed at `now` (both times UTC microseconds).
    ///
    /// `retry_after` is the consumer's own wish: it lengthens the wait up to `retry_after_max` and never shortens it; the
    /// jitter is laid upon it too, so that many jobs with one wish do not come back together. `random_fraction` is in
    /// `0.0..1.0`.
    pub fn next(
        &self,
        tries_in_series: u32,
        first_attempt_at: i64,
        now: i64,
        retry_after: Option<Duration>,
        random_fraction: f64,
    ) -> Next {
        let position = usize::try_from(tries_in_series.max(1) - 1).unwrap_or(usize::MAX);
        let Some(&base) = self.waits.get(position) else {
            return Next::Exhausted;
        };
        let varied = self.jittered(base, random_fraction);
        let wait = match retry_after.map(|asked| asked.min(self.retry_after_max)) {
            Some(asked) if asked > base => asked + varied.saturating_sub(base),
            _ => varied,
        };
        let spent = Duration::from_micros(u64::try_from(now.saturating_sub(first_attempt_at)).unwrap_or(0));
        if spent.saturating_add(wait) > self.total_max {
            return Next::Exhausted;
        }
        Next::After(wait)
    }

    /// The shortest and the longest wait that jitter makes of `base`.
    pub fn range(&self, base: Duration) -> (Duration, Duration) {
        let shortest = if self.jitter_both { 1.0 - self.jitter_max } else { 1.0 + self.jitter_min };
        (base.mul_f64(shortest), base.mul_f64(1.0 + self.jitter_max))
    }

    fn jittered(&self, base: Duration, random_fraction: f64) -> Duration {
        let fraction = random_fraction.clamp(0.0, 1.0);
        let spread = self.jitter_max - self.jitter_min;
        if !self.jitter_both {
            return base.mul_f64(1.0 + self.jitter_min + fraction * spread);
        }
        // One number gives both: its half says the sign, its place in that half the size.
        let signed = 2.0 * fraction - 1.0;
        let size = self.jitter_min + signed.abs() * spread;
        base.mul_f64(1.0 + if signed < 0.0 { -size } else { size })
    }

    fn check(&self) -> Result<(), RetryError> {
        if self.attempts() > TRIES_MAX {
            return Err(RetryError::Tries);
        }
        if self.waits.iter().any(|wait| wait.is_zero() || *wait > WAIT_MAX) {
            return Err(RetryError::Wait);
        }
        let in_order = 0.0 <= self.jitter_min && self.jitter_min <= self.jitter_max && self.jitter_max <= 1.0;
        if !in_order || (self.jitter_both && self.jitter_max >= 1.0) {
            return Err(RetryError::Jitter);
        }
        if self.total_max.is_zero() || self.total_max > TOTAL_MAX {
            return Err(RetryError::Total);
        }
        if self.retry_after_max > WAIT_MAX {
            return Err(RetryError::RetryAfter);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
