//! How the process ends: the first SIGTERM or SIGINT asks softly (finish what is in flight), the second, or the end of
//! the grace time, ends hard. A task that dies by itself ends everything, and the exit code tells that from a stop.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

/// After the hard stop, tasks have this long to drop what they hold.
const HARD_STOP_MAX: Duration = Duration::from_secs(5);

/// What a task looks at to know that it must end; clones see the same.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Take nothing new and finish what is in flight.
    pub soft: CancellationToken,
    /// Drop everything now. Implies `soft`.
    pub hard: CancellationToken,
}

impl Stop {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for an orderly end.
    pub fn ask(&self) {
        self.soft.cancel();
    }

    /// Ends now.
    pub fn force(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }
}

/// The tasks of the process and how they end together.
pub struct Lifecycle {
    stop: Stop,
    tasks: TaskTracker,
    died: Arc<AtomicBool>,
    grace: Duration,
    reload: watch::Sender<u64>,
}

impl Lifecycle {
    /// `grace`: from the soft stop to the hard one (`serve` uses 25 s, inside of the 30 s that Kubernetes gives).
    pub fn new(grace: Duration) -> Self {
        Self {
            stop: Stop::new(),
            tasks: TaskTracker::new(),
            died: Arc::default(),
            grace,
            reload: watch::Sender::new(0),
        }
    }

    /// For a task to look at, or to stop everything with.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Counts the SIGHUPs; whoever can reload its configuration waits for a change.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reload.subscribe()
    }

    /// Runs `task` until it ends. One that ends before a stop was asked for, or panics, has died: everything stops.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (stop, died) = (self.stop.clone(), Arc::clone(&self.died));
        self.tasks.spawn(async move {
            let panicked = AssertUnwindSafe(task).catch_unwind().await.is_err();
            if panicked || !stop.soft.is_cancelled() {
                error!(task = name, panicked, "a task died, everything stops");
                died.store(true, Ordering::SeqCst);
                stop.ask();
            }
        });
    }

    /// Waits for signals and tasks. `FAILURE` when a task died by itself or did not end in time.
    pub async fn run(self) -> std::io::Result<ExitCode> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                () = self.stop.soft.cancelled() => break,
                _ = terminate.recv() => break info!(signal = "SIGTERM", "stopping"),
                _ = interrupt.recv() => break info!(signal = "SIGINT", "stopping"),
                _ = hangup.recv() => self.reload.send_modify(|count| *count += 1),
            }
        }
        self.stop.ask();
        let second = async {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        };
        let ended = self.drain(second).await;
        Ok(if ended && !self.died.load(Ordering::SeqCst) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Soft until all tasks have ended, `impatient` is over or the grace time is; then hard. Whether all ended.
    async fn drain(&self, impatient: impl Future<Output = ()>) -> bool {
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => return true,
            () = impatient => warn!("second signal, ending hard"),
            () = tokio::time::sleep(self.grace) => warn!(grace_seconds = self.grace.as_secs(), "grace time is over, ending hard"),
        }
        self.stop.force();
        timeout(HARD_STOP_MAX, self.tasks.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_by_itself_stops_everything_and_fails() {
        let lifecycle = Lifecycle::new(Duration::from_millis(50));
        let stop = lifecycle.stop();
        let seen = stop.clone();
        lifecycle.spawn("other", async move { seen.soft.cancelled().await });
        lifecycle.spawn("short", async {});
        let code = lifecycle.run().await.unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        assert!(stop.soft.is_cancelled() && !stop.hard.is_cancelled());
    }

    #[tokio::test]
    async fn a_panic_in_a_task_is_a_death() {
        let lifecycle = Lifecycle::new(Duration::from_millis(50));
        lifecycle.spawn("panics", async { panic!("on purpose") });
        let code = lifecycle.run().await.unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    }

    #[tokio::test]
    async fn a_stop_that_was_asked_for_is_a_success() {
        let lifecycle = Lifecycle::new(Duration::from_millis(50));
        let stop = lifecycle.stop();
        let seen = stop.clone();
        lifecycle.spawn("worker", async move { seen.soft.cancelled().await });
        stop.ask();
        let code = lifecycle.run().await.unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        assert!(!stop.hard.is_cancelled());
    }

    #[tokio::test]
    async fn what_does_not_end_softly_is_ended_hard_after_the_grace_time() {
        let lifecycle = Lifecycle::new(Duration::from_millis(50));
        let stop = lifecycle.stop();
        let seen = stop.clone();
        lifecycle.spawn("stubborn", async move { seen.hard.cancelled().await });
        stop.ask();
        let code = lifecycle.run().await.unwrap();
        assert!(stop.hard.is_cancelled());
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }

    #[tokio::test]
    async fn a_second_signal_does_not_wait_for_the_grace_time() {
        let lifecycle = Lifecycle::new(Duration::from_secs(1_000_000));
        let stop = lifecycle.stop();
        let seen = stop.clone();
        lifecycle.spawn("stubborn", async move { seen.hard.cancelled().await });
        let begun = tokio::time::Instant::now();
        stop.ask();
        assert!(lifecycle.drain(async {}).await);
        assert!(begun + Duration::from_secs(1) > tokio::time::Instant::now());
    }
}
