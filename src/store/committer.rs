//! The bounded queue between the edge and the writers: they take what is there, and while one commit is on its way the
//! next batch gathers. No timer.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::{Notify, oneshot};

use super::{DeliveryVerdict, NewDelivery, StoreError};

/// Bounds of the intake queue and of one batch.
#[derive(Debug, Clone, Copy)]
pub struct CommitterConfig {
    /// Events that may wait; past it 503. Default 4,096. A delivery that finds room is queued whole.
    pub queue_events_max: usize,
    /// Bytes of bodies that may wait; past it 503. Default 64 MiB.
    pub queue_bytes_max: usize,
    /// Events in one transaction (soft: a delivery is never split). Default 256.
    pub batch_events_max: usize,
    /// Bytes of bodies in one transaction (soft). Default 4 MiB.
    pub batch_bytes_max: usize,
}

impl Default for CommitterConfig {
    fn default() -> Self {
        Self {
            queue_events_max: 4096,
            queue_bytes_max: 64 * 1024 * 1024,
            batch_events_max: 256,
            batch_bytes_max: 4 * 1024 * 1024,
        }
    }
}

/// A batch of so many deliveries is large enough to be taken without looking for more.
const GATHER_MAX: usize = 32;

/// A delivery that waits for its commit.
pub(crate) struct Waiting {
    pub delivery: NewDelivery,
    pub answer: oneshot::Sender<Result<DeliveryVerdict, StoreError>>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.delivery.body.len()
    }
}

/// The word that something arrived. A writer that has it and is called away while it gathers passes it on: the others sleep.
struct Word<'a> {
    arrived: &'a Notify,
    is_kept: bool,
}

impl Drop for Word<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.arrived.notify_one();
        }
    }
}

/// Deliveries that wait for a writer.
pub(crate) struct IntakeQueue {
    config: CommitterConfig,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    events: usize,
    bytes: usize,
    closed: bool,
}

impl IntakeQueue {
    pub fn new(config: CommitterConfig) -> Self {
        Self { config, state: Mutex::default(), arrived: Notify::new() }
    }

    /// Queues a delivery. Fails at once when the queue is full or closed; a lone delivery larger than the bounds is let in.
    pub fn push(
        &self,
        delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError> {
        let (answer, heard) = oneshot::channel();
        let waiting = Waiting { delivery, answer };
        {
            let mut state = self.lock();
            if state.closed {
                return Err(StoreError::Unavailable("stopping".to_owned()));
            }
            let events = state.events + waiting.delivery.events.len();
            let bytes = state.bytes + waiting.bytes();
            // Without its own events: a large batch must not need an empty queue.
            let full = state.events >= self.config.queue_events_max || bytes > self.config.queue_bytes_max;
            if full && !state.waiting.is_empty() {
                return Err(StoreError::Busy);
            }
            state.events = events;
            state.bytes = bytes;
            state.waiting.push_back(waiting);
        }
        self.arrived.notify_one();
        Ok(heard)
    }

    /// Takes what is there, up to one batch; empty if there is nothing.
    pub fn try_take(&self) -> Vec<Waiting> {
        self.take_batch(&mut self.lock())
    }

    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// Returns once something may have arrived, or the queue was closed; for one writer that waits for other work too.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Takes what is there, up to one batch; waits while there is nothing; `None` once closed and empty.
    pub async fn take(&self) -> Option<Vec<Waiting>> {
        loop {
            self.gather().await;
            {
                let mut state = self.lock();
                let batch = self.take_batch(&mut state);
                if !batch.is_empty() {
                    if !state.waiting.is_empty() {
                        self.arrived.notify_one();
                    }
                    return Some(batch);
                }
                if state.closed {
                    // Wake the next writer, so that each of them sees the end.
                    self.arrived.notify_one();
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Lets requests that are ready to run at this moment come before a small batch is taken: a few turns of the scheduler,
    /// no time. Each batch costs the database as much as some rows do.
    async fn gather(&self) {
        let mut word = Word { arrived: &self.arrived, is_kept: false };
        let mut seen = self.lock().waiting.len();
        while seen > 0 && seen < GATHER_MAX {
            tokio::task::yield_now().await;
            let waiting = self.lock().waiting.len();
            if waiting <= seen {
                break;
            }
            seen = waiting;
        }
        word.is_kept = true;
    }

    /// Everything that waits, for a store that cannot commit it: the caller answers.
    pub fn drain(&self) -> Vec<Waiting> {
        let mut state = self.lock();
        (state.events, state.bytes) = (0, 0);
        state.waiting.drain(..).collect()
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// No more deliveries; those that wait are still taken.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    fn take_batch(&self, state: &mut State) -> Vec<Waiting> {
        let mut batch = Vec::new();
        let (mut events, mut bytes) = (0, 0);
        while let Some(next) = state.waiting.front() {
            let (next_events, next_bytes) = (next.delivery.events.len(), next.bytes());
            let over =
                events + next_events > self.config.batch_events_max || bytes + next_bytes > self.config.batch_bytes_max;
            if over && !batch.is_empty() {
                break;
            }
            events += next_events;
            bytes += next_bytes;
            batch.extend(state.waiting.pop_front());
        }
        state.events -= events;
        state.bytes -= bytes;
        batch
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.state.lock().expect("not poisoned")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use futures_util::poll;

    use super::*;
    use crate::model::id::PayloadId;
    use crate::model::receipt::{Coverage, Origin, VerifiedBy};
    use crate::model::subscription::SubscriptionSet;
    use crate::random::SeededRandom;

    fn delivery() -> NewDelivery {
        NewDelivery {
            source: "web".into(),
            provider: "acme".into(),
            received_at: 0,
            payload_id: PayloadId::new(0, &SeededRandom::new(1)),
            body: bytes::Bytes::new(),
            headers: Vec::new(),
            dropped_headers: Vec::new(),
            content_type: String::new(),
            url: String::new(),
            peer: String::new(),
            retry_headers: Vec::new(),
            verified_by: VerifiedBy {
                mechanism: String::new(),
                secret: String::new(),
                signed_at: None,
                coverage: Coverage::Body,
            },
            signed_sha256: [0; 32],
            replay_guard: false,
            guard_sources: Arc::new([]),
            every_delivery: false,
            origin: Origin::Delivery,
            events: Vec::new(),
            subscriptions: Arc::new(SubscriptionSet::default()),
        }
    }

    /// A writer that gathers and is called away (its server is under suspicion) leaves the delivery to another that sleeps.
    #[tokio::test]
    async fn a_writer_that_is_called_away_while_it_gathers_wakes_another() {
        let queue = IntakeQueue::new(CommitterConfig::default());
        let (mut called_away, mut asleep) = (Box::pin(queue.take()), Box::pin(queue.take()));
        // In this order, so that the one word goes to the writer that will not use it.
        assert!(poll!(called_away.as_mut()).is_pending() && poll!(asleep.as_mut()).is_pending());
        let _heard = queue.push(delivery()).expect("room");
        assert!(poll!(called_away.as_mut()).is_pending(), "it looks for more first");
        assert!(poll!(asleep.as_mut()).is_pending(), "nobody has told it");
        drop(called_away);
        let mut taken = poll!(asleep.as_mut());
        for _ in 0..GATHER_MAX {
            if taken.is_pending() {
                taken = poll!(asleep.as_mut());
            }
        }
        let Poll::Ready(Some(batch)) = taken else { panic!("it sleeps on while a delivery waits") };
        assert_eq!(batch.len(), 1);
    }
}
