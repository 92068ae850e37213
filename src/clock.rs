//! The only place that asks for the time. Times are UTC microseconds since 1970 as `i64`, spans are `Duration`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds in a second, for conversions at the rim (providers sign seconds or milliseconds).
pub const MICROS_PER_SECOND: i64 = 1_000_000;

/// Source of the present time; given to whoever needs it, so that tests can hold it still.
pub trait Clock: Send + Sync + 'static {
    /// Now, in UTC microseconds since 1970.
    fn now(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> i64 {
        #[expect(clippy::disallowed_methods, reason = "this is the one caller of the global clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct MockClock(AtomicI64);

impl MockClock {
    /// Stands at `now` (UTC microseconds).
    pub fn at(now: i64) -> Self {
        Self(AtomicI64::new(now))
    }

    /// Moves on by `span`.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(micros(span), Ordering::SeqCst);
    }

    /// Jumps to `now` (UTC microseconds), backwards too.
    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for MockClock {
    fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A span in whole microseconds; spans past 292,000 years end there.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
