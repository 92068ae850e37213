//! Subscriptions in trouble: probes, review for what waits too long, and the way back from there.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::lanes::{Probe, Trouble};
use super::Relay;
use crate::clock::micros;
use crate::model::attempt::Trigger;
use crate::model::job::{JobKey, JobReason, JobState, Lane};
use crate::model::subscription::Target;
use crate::store::{JobQuery, OutboxMessage, ReplayRequest};

impl Relay {
    /// Lets a few rows out of each lane whose time has come, and gives up what has waited for a queue too long.
    pub(super) async fn probe(&mut self) -> bool {
        let mut out = Vec::new();
        for probe in self.lanes.due(Instant::now()) {
            let rows = self.read_lane(&probe).await;
            if rows.is_empty() {
                self.lanes.nothing_to_probe(&probe.subscription);
            }
            out.extend(rows);
        }
        let sent = !out.is_empty();
        if sent {
            self.send(out);
        }
        sent
    }

    async fn read_lane(&mut self, probe: &Probe) -> Vec<OutboxMessage> {
        let shards = self.shards.active(Instant::now()).to_vec();
        let configured = self.parts.subscriptions.iter().map(|known| known.name.as_str());
        let others: BTreeSet<&str> =
            configured.chain(self.lanes.waiting()).filter(|name| *name != probe.subscription).collect();
        let skip_lanes = pairs(&shards, others.into_iter());
        let expired = probe.trouble == Trouble::Unrouted && probe.for_ >= self.config.unroutable_after;
        let wanted = usize::try_from(probe.rows).unwrap_or(usize::MAX).min(self.config.batch_rows_max);
        let limit = if expired { self.config.batch_rows_max } else { wanted };
        let found = self.read(shards, limit, skip_lanes, false).await.unwrap_or_default();
        let (mut mine, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|row| row.hand_over.key.subscription == probe.subscription);
        self.parts.held.let_go(others.iter().map(|row| row.id));
        if expired {
            let now = self.parts.clock.now();
            let (old, young): (Vec<_>, Vec<_>) = mine.into_iter().partition(|row| self.is_unroutable(row, now));
            old.iter().for_each(|row| self.give_up_unroutable(row));
            mine = young;
        }
        let back = mine.split_off(wanted.min(mine.len()));
        self.parts.held.let_go(back.iter().map(|row| row.id));
        mine
    }

    /// Whether the row has waited for a queue as long as it may. A row that came back is a new row: what counts is its
    /// first return, and for a first attempt the event's arrival.
    pub(super) fn is_unroutable(&self, row: &OutboxMessage, now: i64) -> bool {
        let came_back = self.returned.get(&(row.hand_over.key.clone(), row.hand_over.attempt)).copied();
        let waits_since = match row.hand_over.lane {
            Lane::Slow => came_back,
            Lane::Fresh => {
                let first = (row.hand_over.trigger == Trigger::First).then_some(row.receipt.received_at);
                [Some(row.queued_at), came_back, first].into_iter().flatten().min()
            }
        };
        waits_since.is_some_and(|since| now.saturating_sub(since) >= micros(self.config.unroutable_after))
    }

    pub(super) fn give_up_unroutable(&mut self, row: &OutboxMessage) {
        self.returned.remove(&(row.hand_over.key.clone(), row.hand_over.attempt));
        self.given_up.push((row.id, JobReason::Unroutable));
    }

    /// Arms jobs again that are in review only because no queue took them: one to find out, all once routing is proven.
    /// It is a replay and not a return to the outbox, because a job in review has moved on from its attempt.
    pub(super) async fn rearm(&mut self) {
        let now = Instant::now();
        if now < self.rearm_at || !self.may_publish() {
            return;
        }
        self.rearm_at = now + self.config.rearm_every;
        let subscriptions = Arc::clone(&self.parts.subscriptions);
        for subscription in subscriptions.iter().filter(|known| known.target == Target::Amqp) {
            let limit = self.lanes.rearmable(&subscription.name, now);
            if limit > 0 && self.rearm_some(&subscription.name, limit).await >= self.config.batch_rows_max {
                self.rearm_at = now;
            }
        }
        let lanes = &self.lanes;
        self.returned.retain(|(key, _), since| {
            let recent = self.parts.clock.now().saturating_sub(*since) < 2 * micros(self.config.unroutable_after);
            recent || lanes.waits(&key.subscription)
        });
    }

    async fn rearm_some(&mut self, subscription: &str, limit: u32) -> usize {
        let query = JobQuery {
            subscription: Some(subscription.to_owned()),
            state: Some(JobState::Review),
            reason: Some(JobReason::Unroutable),
            before: None,
            limit,
        };
        let found = match self.parts.archive.jobs(query).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(error.code = error.code(), error = %error, "jobs in review could not be read");
                return 0;
            }
        };
        if found.is_empty() {
            self.lanes.forget_idle(subscription);
            return 0;
        }
        let keys: Vec<JobKey> = found.into_iter().map(|job| job.key).collect();
        let replay = ReplayRequest { trigger: Trigger::Redrive, actor: "relay".to_owned(), why: None };
        tracing::info!(subscription, jobs = keys.len(), "unroutable jobs are armed again");
        if let Err(error) = self.parts.jobs.replay(&keys, replay, Arc::clone(&self.parts.subscriptions)).await {
            tracing::warn!(error.code = error.code(), error = %error, "unroutable jobs could not be armed again");
            return 0;
        }
        keys.len()
    }
}

/// Each of the subscriptions in each of the shards.
pub(super) fn pairs<'a>(shards: &[u8], subscriptions: impl Iterator<Item = &'a str>) -> Vec<(u8, String)> {
    subscriptions.flat_map(|name| shards.iter().map(|shard| (*shard, name.to_owned()))).collect()
}
