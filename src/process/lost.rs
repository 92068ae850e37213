//! Looks for jobs whose message is nowhere: the queue was empty at three looks a minute apart, nothing waits in the outbox,
//! and an hour has gone by, or a day if a consumer has begun. They are published again with the same attempt number, twice
//! at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, micros};
use crate::model::subscription::{CompletesOn, SubscriptionSet, Target};
use crate::store::{Jobs, LostRule, StoreError};

/// Settings of the looks.
#[derive(Debug, Clone, Copy)]
pub struct LostConfig {
    /// Between two looks at one queue. Default 1 min.
    pub look_every: Duration,
    /// Looks in a row at which the queue has to be empty. Default 3.
    pub looks: u32,
    /// How long ago a job was handed out to count as lost. Default 60 min.
    pub older_than: Duration,
    /// The same for a job that its consumer has begun with no time limit: it may be at work still. Default 24 h.
    pub begun_older_than: Duration,
    /// How often an attempt is published again before its job goes to review. Default 2.
    pub times: u32,
    /// Jobs of one subscription at one look. Default 200.
    pub batch_max: u32,
}

impl Default for LostConfig {
    fn default() -> Self {
        let look_every = Duration::from_secs(60);
        let hour = Duration::from_secs(3600);
        Self { look_every, looks: 3, older_than: hour, begun_older_than: hour * 24, times: 2, batch_max: 200 }
    }
}

/// How many messages a subscription's queues have ready.
#[async_trait]
pub trait QueueLook: Send + Sync + 'static {
    /// Ready messages of both lanes together; `None` when nobody can say.
    async fn ready(&self, subscription: &str) -> Option<u64>;
}

/// Remembers what the last looks saw.
pub struct LostWatch {
    config: LostConfig,
    jobs: Arc<dyn Jobs>,
    queues: Arc<dyn QueueLook>,
    subscriptions: Arc<SubscriptionSet>,
    clock: Arc<dyn Clock>,
    last_look: Option<i64>,
    /// Looks in a row at which the queue was empty.
    empty: HashMap<String, u32>,
}

impl LostWatch {
    pub fn new(
        config: LostConfig,
        jobs: Arc<dyn Jobs>,
        queues: Arc<dyn QueueLook>,
        subscriptions: Arc<SubscriptionSet>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { config, jobs, queues, subscriptions, clock, last_look: None, empty: HashMap::new() }
    }

    /// Looks if it is time to; returns how many jobs it published again or gave up.
    pub async fn step(&mut self) -> Result<u32, StoreError> {
        let now = self.clock.now();
        let due = self.last_look.is_none_or(|last| now.saturating_sub(last) >= micros(self.config.look_every));
        if !due {
            return Ok(0);
        }
        self.last_look = Some(now);
        let mut found = 0;
        for subscription in self.subscriptions.iter() {
            // What completes on its confirm is never queued for longer than that.
            if subscription.target != Target::Amqp || subscription.completes_on == CompletesOn::Confirm {
                continue;
            }
            let name = &subscription.name;
            let empty = match self.queues.ready(name).await {
                Some(0) => self.empty.get(name).copied().unwrap_or(0).saturating_add(1),
                Some(_) | None => 0,
            };
            self.empty.insert(name.clone(), empty);
            if empty >= self.config.looks {
                let LostConfig { older_than, begun_older_than, times, batch_max, .. } = self.config;
                let rule = LostRule { older_than, begun_older_than, times, limit: batch_max };
                let n = self.jobs.republish_lost(name, rule).await?;
                if n > 0 {
                    tracing::warn!(subscription = name, jobs = n, "messages were lost: published again or given up");
                }
                found += n;
            }
        }
        Ok(found)
    }

    /// Steps until asked to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.step().await {
                tracing::warn!(error.code = error.code(), %error, "the look for lost messages failed");
            }
            tokio::select! {
                () = tokio::time::sleep(self.config.look_every) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}
