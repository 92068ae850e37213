//! Time's part: hands out what is due, and takes back what ran out of its lease.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::model::subscription::SubscriptionSet;
use crate::store::{Jobs, StoreError};

/// Settings of the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerConfig {
    /// Jobs in one transaction. Default 200.
    pub batch_max: u32,
    /// Full batches of one kind in one step, so that neither kind starves the other. Default 10.
    pub batches_max: u32,
    /// Between two steps that found nothing more to do. Default 500 ms.
    pub pause: Duration,
    /// After a step that failed. Default 2 s.
    pub pause_after_failure: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            batch_max: 200,
            batches_max: 10,
            pause: Duration::from_millis(500),
            pause_after_failure: Duration::from_secs(2),
        }
    }
}

/// What a step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerStep {
    pub handed_out: u32,
    pub rescued: u32,
    /// There is more: step again without a pause.
    pub more: bool,
}

/// Any number of schedulers may run: rows that one of them holds are passed over by the others.
pub struct Scheduler {
    config: SchedulerConfig,
    jobs: Arc<dyn Jobs>,
    subscriptions: Arc<SubscriptionSet>,
}

impl Scheduler {
    pub fn new(config: SchedulerConfig, jobs: Arc<dyn Jobs>, subscriptions: Arc<SubscriptionSet>) -> Self {
        Self { config, jobs, subscriptions }
    }

    /// Takes back what ran out, then hands out what is due. Not to be dropped half way.
    pub async fn step(&self) -> Result<SchedulerStep, StoreError> {
        let mut done = SchedulerStep::default();
        let batch = self.config.batch_max;
        let (mut rescue, mut hand_out) = (true, true);
        for _ in 0..self.config.batches_max {
            if rescue {
                let n = self.jobs.rescue_expired(batch, Arc::clone(&self.subscriptions)).await?;
                done.rescued += n;
                rescue = n >= batch;
            }
            if hand_out {
                let n = self.jobs.hand_out_due(batch, Arc::clone(&self.subscriptions)).await?;
                done.handed_out += n;
                hand_out = n >= batch;
            }
            if !rescue && !hand_out {
                break;
            }
        }
        done.more = rescue || hand_out;
        Ok(done)
    }

    /// Steps until asked to stop.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.step().await {
                Ok(done) if done.more => continue,
                Ok(_) => self.config.pause,
                Err(error) => {
                    tracing::warn!(error.code = error.code(), %error, "the scheduler's step failed");
                    self.config.pause_after_failure
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}
