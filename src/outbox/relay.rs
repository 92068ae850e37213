//! The loop that empties the outbox: keeps its shards, takes rows from the table and from memory, hands them to the
//! publisher, and deletes each by id after its own confirm. `step` does what is due and never waits for the broker; while
//! one batch is on its way the next is read. What it asks for is "what is still there", never "after the last one".

mod trouble;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use self::trouble::pairs;
use super::lanes::{Lanes, Trouble};
use super::message::{Message, MessageConfig, compose};
use super::publisher::{self, PublisherHandle};
use super::shards::Shards;
use super::verdict::RowResult;
use super::{Parts, RelayConfig, Stop};
use crate::amqp::{Broker, BrokerState};
use crate::metrics;
use crate::model::id::OutboxId;
use crate::model::job::{JobKey, JobReason, Lane};
use crate::model::subscription::CompletesOn;
use crate::store::{ConfirmedRow, HandOver, OutboxMessage, OutboxQuery};

/// Hand-overs whose first return is remembered; while so many are, a further one is not. Its hour then counts from its row,
/// so begins anew with each return, save for a first attempt, which counts from the arrival; and a slow row, which counts
/// from its first return alone, stays until there is room.
const RETURNED_MAX: usize = 4096;
/// How many hand-overs the `unrouted` consumer may report before the relay has heard them; more are only hints lost.
const UNROUTED_NEWS_MAX: usize = 1024;
/// Wait before a store call that failed is made again.
const STORE_RETRY: Duration = Duration::from_millis(250);

/// One relay. See [`super::run`] for the whole stage.
pub struct Relay {
    config: RelayConfig,
    message: MessageConfig,
    parts: Parts,
    broker: watch::Receiver<BrokerState>,
    publisher: PublisherHandle<OutboxMessage>,
    unrouted: (mpsc::Sender<HandOver>, mpsc::Receiver<HandOver>),
    shards: Shards,
    lanes: Lanes,
    in_flight: usize,
    finished: Vec<Vec<(OutboxMessage, RowResult)>>,
    /// Confirmed rows that are still in the table.
    undeleted: Vec<ConfirmedRow>,
    /// Since when the first of them is.
    undeleted_since: Instant,
    given_up: Vec<(OutboxId, JobReason)>,
    pushed_back: Vec<(OutboxId, HandOver)>,
    store_retry_at: Instant,
    /// When a hand-over came back for the first time, UTC microseconds.
    returned: HashMap<(JobKey, i32), i64>,
    look_at: Instant,
    rearm_at: Instant,
    status_at: Instant,
}

impl Relay {
    pub fn new(config: RelayConfig, message: MessageConfig, parts: Parts, broker: &Broker) -> Self {
        let now = Instant::now();
        Self {
            publisher: publisher::start(config.publisher, broker.publish_link(), config.batches_in_flight),
            shards: Shards::new(config.name.clone(), config.lease, config.renew_every),
            lanes: Lanes::new(config.probe_every, config.quiet),
            broker: broker.state(),
            unrouted: mpsc::channel(UNROUTED_NEWS_MAX),
            rearm_at: now + config.rearm_every,
            config,
            message,
            parts,
            in_flight: 0,
            finished: Vec::new(),
            undeleted: Vec::new(),
            undeleted_since: now,
            given_up: Vec::new(),
            pushed_back: Vec::new(),
            store_retry_at: now,
            returned: HashMap::new(),
            look_at: now,
            status_at: now,
        }
    }

    /// Where the `unrouted` consumer says what came back, once it is in the outbox again.
    pub(crate) fn unrouted(&self) -> mpsc::Sender<HandOver> {
        self.unrouted.0.clone()
    }

    /// Steps until it is stopped, or its publisher has died; then finishes what is in flight and gives its shards back.
    pub async fn run(mut self, stop: Stop) {
        while !stop.soft.is_cancelled() && !stop.hard.is_cancelled() && !self.publisher.has_died() {
            if !self.step().await {
                tokio::select! {
                    () = self.wait() => {}
                    () = stop.soft.cancelled() => {}
                    () = stop.hard.cancelled() => {}
                }
            }
        }
        if self.publisher.has_died() {
            tracing::error!("the publisher's task died, the relay ends");
        }
        self.parts.held.close();
        self.finish(&stop).await;
    }

    /// Does what is due; says whether more may be due at once.
    pub async fn step(&mut self) -> bool {
        self.shards.keep(&*self.parts.outbox, &self.parts.held).await;
        self.hear();
        self.settle_store().await;
        self.shards.let_leave(&*self.parts.outbox, &self.parts.held).await;
        let sent = if self.may_publish() { self.probe().await | self.fill().await } else { false };
        self.rearm().await;
        self.report().await;
        sent || !self.finished.is_empty()
    }

    /// Waits until something may be due.
    pub async fn wait(&mut self) {
        let (ready, died) = (self.may_publish(), self.publisher.has_died());
        let mut until = self.shards.renew_at().min(self.status_at);
        if ready {
            until = self.lanes.next_at().into_iter().chain([self.look_at, until]).min().unwrap_or(until);
        }
        if self.has_store_work() {
            until = until.min(self.store_due());
        }
        tokio::select! {
            // Closed, it would be ready for ever; that it closes must still be heard.
            done = self.publisher.done.recv(), if !died => self.finished.extend(done),
            back = self.unrouted.1.recv() => self.note_unrouted(back),
            () = self.parts.held.arrived.notified(), if ready => {}
            _ = self.broker.changed() => {}
            () = sleep_until(until) => {}
        }
    }

    async fn finish(&mut self, stop: &Stop) {
        while (self.in_flight > 0 || self.has_store_work()) && !stop.hard.is_cancelled() {
            self.hear();
            self.settle_store().await;
            if self.in_flight > 0 || self.has_store_work() {
                tokio::select! {
                    () = self.wait() => {}
                    () = stop.hard.cancelled() => {}
                }
                self.shards.keep(&*self.parts.outbox, &self.parts.held).await;
            }
        }
        self.shards.release_all(&*self.parts.outbox).await;
    }

    fn may_publish(&self) -> bool {
        self.broker.borrow().takes_publishes()
            && self.in_flight < self.config.batches_in_flight
            && self.undeleted.len() < self.config.undeleted_max
            && !self.shards.active(Instant::now()).is_empty()
    }

    // === what came back ===

    /// Takes in finished batches and news of unrouted messages.
    fn hear(&mut self) {
        let died = self.publisher.has_died();
        while let Ok(done) = self.publisher.done.try_recv() {
            self.finished.push(done);
        }
        while let Ok(back) = self.unrouted.1.try_recv() {
            self.note_unrouted(Some(back));
        }
        for batch in std::mem::take(&mut self.finished) {
            self.in_flight -= 1;
            self.take_results(batch);
        }
        if died {
            // What was on its way stays in the outbox.
            self.in_flight = 0;
        }
        self.parts.held.set_waiting(self.lanes.waiting());
    }

    fn note_unrouted(&mut self, back: Option<HandOver>) {
        let Some(back) = back else { return };
        // A slow row waits on its own: its queue's trouble is not that of the fresh one.
        if back.lane == Lane::Fresh {
            self.lanes.trouble(&back.key.subscription, Trouble::Unrouted, Instant::now());
        }
        if self.returned.len() < RETURNED_MAX {
            self.returned.entry((back.key, back.attempt)).or_insert_with(|| self.parts.clock.now());
        }
    }

    fn take_results(&mut self, batch: Vec<(OutboxMessage, RowResult)>) {
        let (now, wall) = (Instant::now(), self.parts.clock.now());
        let mut confirmed = BTreeSet::new();
        let mut troubled = Vec::new();
        let mut stay = Vec::new();
        for (row, result) in batch {
            let (id, subscription) = (row.id, row.hand_over.key.subscription.clone());
            match result {
                RowResult::Confirmed => {
                    let lag = u64::try_from(wall - row.queued_at).unwrap_or(0);
                    metrics::publish_lag(Duration::from_micros(lag));
                    confirmed.insert(subscription);
                    let completes = self.completes_on_confirm(&row.hand_over);
                    if self.undeleted.is_empty() {
                        self.undeleted_since = now;
                    }
                    self.undeleted.push(ConfirmedRow { id, hand_over: row.hand_over, completes });
                }
                RowResult::Nacked if row.hand_over.lane == Lane::Slow => self.pushed_back.push((id, row.hand_over)),
                RowResult::Refused => self.given_up.push((id, JobReason::TooLarge)),
                RowResult::Nacked | RowResult::Unrouted => {
                    let trouble = if result == RowResult::Nacked { Trouble::Nacked } else { Trouble::Unrouted };
                    troubled.push((subscription, trouble));
                    stay.push(id);
                }
                RowResult::Lost | RowResult::Timeout | RowResult::NotSent => stay.push(id),
            }
            result.counted_as().into_iter().for_each(|how| metrics::publish(how, 1));
        }
        confirmed.iter().for_each(|subscription| self.lanes.confirmed(subscription, now));
        // After the confirms: a queue that took some and refused others is full.
        troubled.iter().for_each(|(subscription, trouble)| self.lanes.trouble(subscription, *trouble, now));
        self.parts.held.let_go(stay.into_iter());
    }

    fn completes_on_confirm(&self, hand_over: &HandOver) -> bool {
        let subscription = self.parts.subscriptions.find(&hand_over.key.subscription);
        subscription.is_some_and(|known| known.completes_on == CompletesOn::Confirm)
    }

    // === the store ===

    fn has_store_work(&self) -> bool {
        !(self.undeleted.is_empty() && self.given_up.is_empty() && self.pushed_back.is_empty())
    }

    /// When the store is next asked: confirmed rows are gathered while others are on their way, so that one transaction
    /// deletes many.
    fn store_due(&self) -> Instant {
        let only_confirmed = self.given_up.is_empty() && self.pushed_back.is_empty();
        let gathers = only_confirmed && self.in_flight > 0 && self.undeleted.len() < self.config.batch_rows_max;
        let due = if gathers { self.undeleted_since + self.config.delete_within } else { self.store_retry_at };
        due.max(self.store_retry_at)
    }

    /// Deletes what is confirmed, gives up what is refused, and puts slow rows back. What fails is done again later; until
    /// then the rows stay in hand, so that no look publishes them twice.
    async fn settle_store(&mut self) {
        if !self.has_store_work() || Instant::now() < self.store_due() {
            return;
        }
        let settled = self.try_settle().await;
        if let Err(error) = settled {
            tracing::warn!(error.code = error.code(), error = %error, "the outbox could not be updated");
            self.store_retry_at = Instant::now() + STORE_RETRY;
        }
    }

    async fn try_settle(&mut self) -> Result<(), crate::store::StoreError> {
        let outbox = Arc::clone(&self.parts.outbox);
        if !self.undeleted.is_empty() {
            outbox.delete_outbox(&self.undeleted).await?;
            self.parts.held.let_go(self.undeleted.drain(..).map(|row| row.id));
        }
        for (reason, note) in [
            (JobReason::TooLarge, "the broker refuses the message"),
            (JobReason::Unroutable, "no queue took the message"),
            (JobReason::BodyGone, "the stored body is gone"),
        ] {
            let rows: Vec<_> = self.given_up.iter().filter(|(_, of)| *of == reason).map(|(id, _)| *id).collect();
            if !rows.is_empty() {
                outbox.give_up_outbox(&rows, reason, note).await?;
                self.given_up.retain(|(_, of)| *of != reason);
                self.parts.held.let_go(rows.into_iter());
            }
        }
        if !self.pushed_back.is_empty() {
            let again: Vec<_> = self.pushed_back.iter().map(|(_, hand_over)| hand_over.clone()).collect();
            outbox.return_to_outbox(&again, self.config.probe_every).await?;
            let pushed = self.pushed_back.drain(..);
            self.undeleted.extend(pushed.map(|(id, hand_over)| ConfirmedRow { id, hand_over, completes: false }));
        }
        Ok(())
    }

    // === what goes out ===

    /// Fills the publisher: a look when it is due, else the fresh rows in memory.
    async fn fill(&mut self) -> bool {
        let mut sent = false;
        while self.may_publish() {
            let mut rows = Vec::new();
            if Instant::now() >= self.look_at {
                rows = self.look().await;
            }
            if rows.is_empty() {
                rows = self.parts.held.take_fresh(self.config.batch_rows_max, self.config.batch_bytes_max);
            }
            if rows.is_empty() {
                break;
            }
            self.send(rows);
            sent = true;
        }
        sent
    }

    async fn look(&mut self) -> Vec<OutboxMessage> {
        let shards = self.shards.active(Instant::now()).to_vec();
        let skip_lanes = pairs(&shards, self.lanes.waiting());
        let limit = self.config.batch_rows_max;
        let found = self.read(shards, limit, skip_lanes, true).await;
        let wait = match found.as_ref().map(Vec::len) {
            Some(rows) if rows >= limit => Duration::ZERO,
            Some(rows) if rows > 0 => self.config.look_busy,
            _ => self.config.look_idle,
        };
        self.look_at = Instant::now() + wait;
        found.unwrap_or_default()
    }

    /// One look at the table; what it finds is held. `None` when the store is away.
    async fn read(
        &self,
        shards: Vec<u8>,
        limit: usize,
        skip_lanes: Vec<(u8, String)>,
        whole: bool,
    ) -> Option<Vec<OutboxMessage>> {
        let skip = self.parts.held.begin_look();
        let row_limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let query = OutboxQuery { shards, limit: row_limit, bytes_max: self.config.batch_bytes_max, skip, skip_lanes };
        match self.parts.outbox.read_outbox(query).await {
            // What has seen all that was due need not be empty: under steady load it never is, and what is committed
            // meanwhile is found by the next one.
            Ok(look) => Some(self.parts.held.end_look(look.messages, whole && look.whole)),
            Err(error) => {
                self.parts.held.end_look(Vec::new(), false);
                tracing::warn!(error.code = error.code(), error = %error, "the outbox could not be read");
                None
            }
        }
    }

    /// Composes and hands over; a row without its body goes to review instead.
    fn send(&mut self, rows: Vec<OutboxMessage>) {
        let now = self.parts.clock.now();
        let mut batch: Vec<(OutboxMessage, Message)> = Vec::with_capacity(rows.len());
        for row in rows {
            if row.hand_over.lane == Lane::Slow && self.is_unroutable(&row, now) {
                self.give_up_unroutable(&row);
                continue;
            }
            let Some(body) = row.body.clone() else {
                self.given_up.push((row.id, JobReason::BodyGone));
                continue;
            };
            let subscription = self.parts.subscriptions.find(&row.hand_over.key.subscription);
            let message = compose(&row, &body, subscription.map(|known| &**known), &self.message);
            batch.push((row, message));
        }
        if batch.is_empty() {
            return;
        }
        match self.publisher.batches.try_send(batch) {
            Ok(()) => self.in_flight += 1,
            // The publisher's task died: the rows are the table's.
            Err(error) => self.parts.held.let_go(error.into_inner().into_iter().map(|(row, _)| row.id)),
        }
    }

    async fn report(&mut self) {
        let now = Instant::now();
        if now < self.status_at {
            return;
        }
        self.status_at = now + self.config.status_every;
        if let Ok(status) = self.parts.outbox.outbox_status().await {
            metrics::outbox(status.depth, status.oldest.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests;
