//! Hears reports from the broker's queue of outcomes: in batches, acked only after the store's commit. A report that is no
//! report is counted, kept in the quarantine and acked, so that it never comes round again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::reports::{ReportReader, account};
use crate::clock::Clock;
use crate::metrics;
use crate::model::outcome::OutcomeError;
use crate::model::subscription::SubscriptionSet;
use crate::store::{Intake, Jobs, NewRejection, OutcomeReport, QuarantineBounds, StoreError};

/// Settings of the consumer.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerConfig {
    /// Reports in one transaction; also how many the broker sends ahead. Default 256.
    pub batch_max: usize,
    /// First wait after the store failed; doubles. Default 200 ms.
    pub wait_min: Duration,
    /// Longest wait after the store failed. Default 10 s.
    pub wait_max: Duration,
    /// Bad reports kept of one batch; the others are only counted. Default 8.
    pub kept_max: usize,
    /// The quarantine that keeps them is the same as for deliveries.
    pub quarantine: QuarantineBounds,
}

impl ConsumerConfig {
    /// The defaults, with the quarantine's bounds.
    pub fn new(quarantine: QuarantineBounds) -> Self {
        let (wait_min, wait_max) = (Duration::from_millis(200), Duration::from_secs(10));
        Self { batch_max: 256, wait_min, wait_max, kept_max: 8, quarantine }
    }
}

/// One message of the queue of outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// The broker's delivery tag; they rise.
    pub tag: u64,
    pub body: Bytes,
    /// The user that the broker vouches for, if the publisher named one.
    pub user: Option<String>,
}

/// The connection that the messages come from is gone; what was not acked comes again on the next one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the queue of outcomes is gone: {0}")]
pub struct FeedError(pub String);

/// Where messages come from; one connection's life.
#[async_trait]
pub trait Feed: Send {
    /// Waits for the first message, then takes what is there, at most `max`. Dropping the wait loses nothing.
    async fn take(&mut self, max: usize) -> Result<Vec<Incoming>, FeedError>;
    /// Acks every message up to this tag.
    async fn ack_up_to(&mut self, tag: u64) -> Result<(), FeedError>;
}

/// Where feeds come from: one after another, as connections come and go.
#[async_trait]
pub trait Feeds: Send {
    /// Waits for a connection and begins to consume on it. It paces itself: a feed that fails at once is not followed by
    /// the next one at once. Dropping the wait loses nothing.
    async fn next(&mut self) -> Box<dyn Feed>;
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// This many reports are committed and acked, bad ones included.
    Acked(usize),
    /// The store failed; the batch is held and tried again by the next step.
    StoreFailed,
}

/// Turns messages into verdicts.
pub struct OutcomeConsumer {
    config: ConsumerConfig,
    jobs: Arc<dyn Jobs>,
    quarantine: Arc<dyn Intake>,
    reader: ReportReader,
    clock: Arc<dyn Clock>,
    /// Taken and not acked, because the store failed.
    held: Vec<Incoming>,
}

impl OutcomeConsumer {
    pub fn new(
        config: ConsumerConfig,
        jobs: Arc<dyn Jobs>,
        quarantine: Arc<dyn Intake>,
        reader: ReportReader,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { config, jobs, quarantine, reader, clock, held: Vec::new() }
    }

    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// A new feed begins: what was held of the old one comes again by itself.
    pub fn forget(&mut self) {
        self.held.clear();
    }

    /// Waits until there is something to do. Nothing of the store runs here, so the wait may be dropped.
    pub async fn wait(&mut self, feed: &mut dyn Feed) -> Result<(), FeedError> {
        if self.held.is_empty() {
            self.held = feed.take(self.config.batch_max).await?;
        }
        Ok(())
    }

    /// Commits one batch and acks it. Not to be dropped half way: the store is at work.
    pub async fn step(
        &mut self,
        feed: &mut dyn Feed,
        subscriptions: &Arc<SubscriptionSet>,
    ) -> Result<Stepped, FeedError> {
        self.wait(feed).await?;
        let (mut reports, mut bad) = (Vec::new(), Vec::new());
        for message in &self.held {
            match self.reader.read(&message.body, message.user.as_deref().unwrap_or("amqp")) {
                Ok(report) => reports.push((report, message)),
                Err(error) => bad.push((error, message)),
            }
        }
        let refused = match self.record(reports, subscriptions).await {
            Ok(refused) => refused,
            Err(error) => {
                tracing::warn!(error.code = error.code(), %error, "reports wait for the store");
                return Ok(Stepped::StoreFailed);
            }
        };
        self.note_bad(&bad, &refused).await;
        let (n, last) = (self.held.len(), self.held.iter().map(|message| message.tag).max());
        if let Some(tag) = last {
            feed.ack_up_to(tag).await?;
        }
        self.held.clear();
        Ok(Stepped::Acked(n))
    }

    /// Hears reports until asked to stop, on one connection after another. What is not acked by then comes again.
    pub async fn run(
        mut self,
        mut feeds: Box<dyn Feeds>,
        subscriptions: Arc<SubscriptionSet>,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            let mut feed = tokio::select! {
                feed = feeds.next() => feed,
                () = stop.cancelled() => return,
            };
            self.forget();
            if let Err(error) = self.hear(feed.as_mut(), &subscriptions, &stop).await {
                tracing::warn!(%error, "reports are not heard until the broker is back");
            }
        }
    }

    /// One feed's life; `Ok` when asked to stop.
    async fn hear(
        &mut self,
        feed: &mut dyn Feed,
        subscriptions: &Arc<SubscriptionSet>,
        stop: &CancellationToken,
    ) -> Result<(), FeedError> {
        let mut pause = self.config.wait_min;
        loop {
            tokio::select! {
                waited = self.wait(feed) => waited?,
                () = stop.cancelled() => return Ok(()),
            }
            if self.step(feed, subscriptions).await? != Stepped::StoreFailed {
                pause = self.config.wait_min;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return Ok(()),
            }
            pause = (pause * 2).min(self.config.wait_max);
        }
    }

    /// Records a batch; one that the database refuses for a row is halved until the row stands alone. Returns such rows.
    async fn record<'a>(
        &self,
        reports: Vec<(OutcomeReport, &'a Incoming)>,
        subscriptions: &Arc<SubscriptionSet>,
    ) -> Result<Vec<&'a Incoming>, StoreError> {
        let (mut refused, mut parts) = (Vec::new(), vec![reports]);
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let batch: Vec<OutcomeReport> = part.iter().map(|(report, _)| report.clone()).collect();
            match self.jobs.record_outcomes(batch, Arc::clone(subscriptions)).await {
                Ok(verdicts) => {
                    for ((report, _), verdict) in part.iter().zip(verdicts) {
                        account(report, verdict, self.clock.as_ref());
                    }
                }
                Err(StoreError::Row(_)) if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    // The first half goes first: reports are applied in their order.
                    parts.push(rest);
                    parts.push(part);
                }
                Err(StoreError::Row(_)) => refused.extend(part.into_iter().map(|(_, message)| message)),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    async fn note_bad(&self, bad: &[(OutcomeError, &Incoming)], refused: &[&Incoming]) {
        let all = bad.iter().map(|(error, message)| (error.code(), *message));
        let all: Vec<_> = all.chain(refused.iter().map(|message| ("row_refused", *message))).collect();
        if all.is_empty() {
            return;
        }
        for (code, message) in &all {
            metrics::bad_report(code);
            tracing::info!(error.code = code, bytes = message.body.len(), user = message.user, "a report was refused");
        }
        let kept = all.iter().take(self.config.kept_max);
        let rejections = kept.map(|(code, message)| rejection(code, message, self.clock.now())).collect();
        // Keeping them is a help for whoever looks, and no reason to hear the same message again.
        if let Err(error) = self.quarantine.record_rejections(rejections, self.config.quarantine).await {
            tracing::warn!(error.code = error.code(), %error, "refused reports were not kept");
        }
    }
}

/// Bytes of a bad report that are kept.
const KEPT_BYTES_MAX: usize = 1024;

/// A bad report as the quarantine keeps it: its first bytes, without anything that might be a token.
fn rejection(code: &str, message: &Incoming, at: i64) -> NewRejection {
    let start = &message.body[..message.body.len().min(KEPT_BYTES_MAX)];
    NewRejection {
        at,
        source: "~outcomes".to_owned(),
        code: code.to_owned(),
        detail: "a consumer's report".to_owned(),
        peer: message.user.clone().unwrap_or_default(),
        method: "AMQP".to_owned(),
        path: String::new(),
        headers: Vec::new(),
        body: Bytes::from(without_tokens(start)),
    }
}

/// Long runs of hexadecimal digits become dots: a token is good for its attempt whatever else was wrong with the report.
fn without_tokens(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if run > 32 {
            kept.extend_from_slice(b"...");
        } else {
            kept.extend_from_slice(&rest[..run]);
        }
        rest = &rest[run..];
        let plain = rest.iter().take_while(|byte| !byte.is_ascii_hexdigit()).count();
        kept.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
    }
    kept
}

#[cfg(test)]
mod tests;
