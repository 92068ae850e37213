//! What the integration tests share: services, the real program as a child, a network that fails on command, a client
//! that can also speak broken HTTP, and requests that are signed as providers sign them.

/// Runs each function over a fresh store of every backend.
macro_rules! on_every_backend {
    ($($test:ident,)*) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let (store, h) = crate::support::sqlite::fresh_store().await;
                    super::$test(store, &h).await;
                    h.finish().await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let (store, h) = crate::support::postgres::fresh_store().await;
                    super::$test(store, &h).await;
                    h.finish().await;
                }
            )*
        }
    };
}

pub mod broker;
pub mod canary;
pub mod client;
pub mod database;
pub mod peers;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod rabbit;
pub mod sign;
pub mod sqlite;

use std::io::Write;
use std::time::Duration;

use tokio::time::Instant;

/// A variable of the test run; the harness is told by these where the services are.
#[expect(clippy::disallowed_methods, reason = "tests have no config; this is their only reader of the environment")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Says that the calling test cannot run here; it should return at once. With `CI=true` that is a failure.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    assert!(variable("CI").as_deref() != Some("true"), "skipped, which CI does not allow: {line}");
    if let Some(path) = variable("MAKBUZ_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("the runner made the file");
        file.write_all(line.as_bytes()).expect("it takes a line");
    }
}

/// The seed of a random test: `MAKBUZ_SEED`, or the time; printed, so that a failure can be run again.
pub fn seed() -> u64 {
    use makbuz::clock::{Clock, SystemClock};
    let seed = variable("MAKBUZ_SEED")
        .map_or_else(|| SystemClock.now().unsigned_abs(), |text| text.parse().expect("a number"));
    // Captured by the runner, shown on failure.
    std::io::stderr().write_all(format!("MAKBUZ_SEED={seed}\n").as_bytes()).expect("stderr takes a line");
    seed
}

/// Looks again and again until there is something, `limit` at most. For what happens in another process, where no
/// signal reaches the test.
pub async fn eventually<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
