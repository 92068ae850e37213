//! Which rows this relay has in its hands, and the fresh ones that writers of the same process hand over in memory.
//!
//! A row enters the held set before COMMIT and leaves it when it is deleted, when its COMMIT failed or is unknown, or
//! when it is given back to the table; looks skip held rows. Both the queue and the set are bounded: past the bounds the
//! relay is `behind`, and rows reach it by the table alone until a look has seen all that is due.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::id::{OutboxId, ReceiptId};
use crate::store::{FreshRows, OutboxMessage, SHARDS};

/// Bounds of the hand-over in memory.
#[derive(Debug, Clone, Copy)]
pub struct HeldConfig {
    /// Fresh rows held, committed or about to be. Default 4,096.
    pub fresh_rows_max: usize,
    /// Bytes of their bodies. Default 16 MiB.
    pub fresh_bytes_max: usize,
    /// A row announced so long ago, of whose COMMIT nobody spoke, is the table's. Default 60 s.
    pub announced_max: Duration,
}

impl Default for HeldConfig {
    fn default() -> Self {
        Self { fresh_rows_max: 4096, fresh_bytes_max: 16 * 1024 * 1024, announced_max: Duration::from_secs(60) }
    }
}

/// Rows in this relay's hands.
pub struct Held {
    config: HeldConfig,
    state: Mutex<State>,
    pub(crate) arrived: Notify,
}

#[derive(Default)]
struct State {
    /// Every row in hand, with its shard.
    held: HashMap<OutboxId, u8>,
    fresh: VecDeque<OutboxMessage>,
    fresh_bytes: usize,
    /// Rows whose COMMIT is under way, since when.
    announced: HashMap<OutboxId, Instant>,
    behind: bool,
    /// Shards to write to and read from.
    shards: Vec<u8>,
    /// Subscriptions whose rows stay in the table.
    waiting: HashSet<String>,
    /// While a look is under way: rows let go since it began. It may still see them.
    let_go: Option<HashSet<OutboxId>>,
}

impl Held {
    pub fn new(config: HeldConfig) -> Self {
        // Nobody hands rows over before the relay has looked at the table once.
        Self { config, state: Mutex::new(State { behind: true, ..State::default() }), arrived: Notify::new() }
    }

    /// Which shards the relay works on; fresh rows of others, and those not yet taken, go back to the table.
    pub(crate) fn set_shards(&self, shards: &[u8]) {
        let mut state = self.lock();
        if state.shards == shards {
            return;
        }
        state.shards = shards.to_vec();
        let stays: HashSet<u8> = shards.iter().copied().collect();
        state.give_back(|row| !stays.contains(&row.shard));
    }

    /// Which subscriptions' rows stay in the table.
    pub(crate) fn set_waiting<'a>(&self, waiting: impl Iterator<Item = &'a str>) {
        let mut state = self.lock();
        state.waiting = waiting.map(str::to_owned).collect();
        let waits = std::mem::take(&mut state.waiting);
        state.give_back(|row| waits.contains(&row.hand_over.key.subscription));
        state.waiting = waits;
    }

    /// Takes fresh rows, oldest first, within the bounds of one batch (the first may be larger).
    pub(crate) fn take_fresh(&self, rows_max: usize, bytes_max: usize) -> Vec<OutboxMessage> {
        let mut state = self.lock();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = state.fresh.front() {
            let more = body_bytes(next);
            if taken.len() >= rows_max || (bytes + more > bytes_max && !taken.is_empty()) {
                break;
            }
            bytes += more;
            taken.extend(state.fresh.pop_front());
            state.fresh_bytes -= more;
        }
        taken
    }

    /// Begins a look at the table: the ids that it leaves out.
    pub(crate) fn begin_look(&self) -> HashSet<OutboxId> {
        let mut state = self.lock();
        let now = Instant::now();
        let forgotten = state.announced.iter().filter(|(_, since)| now - **since > self.config.announced_max);
        let forgotten: Vec<_> = forgotten.map(|(row, _)| *row).collect();
        for row in forgotten {
            state.let_go(row);
        }
        state.let_go = Some(HashSet::new());
        state.held.keys().copied().collect()
    }

    /// Ends a look: keeps what nobody held or handled meanwhile, and holds it. `drained` says that the look
    /// has seen all that was due, so that the hand-over in memory may begin again.
    pub(crate) fn end_look(&self, rows: Vec<OutboxMessage>, drained: bool) -> Vec<OutboxMessage> {
        let mut state = self.lock();
        let let_go = state.let_go.take().unwrap_or_default();
        let new: Vec<_> =
            rows.into_iter().filter(|row| !let_go.contains(&row.id) && !state.held.contains_key(&row.id)).collect();
        for row in &new {
            state.held.insert(row.id, row.shard);
        }
        if drained {
            state.behind = false;
        }
        new
    }

    /// Lets rows go: they are deleted, or the table's again.
    pub(crate) fn let_go(&self, rows: impl Iterator<Item = OutboxId>) {
        let mut state = self.lock();
        for row in rows {
            state.let_go(row);
        }
    }

    /// Whether any row of the shard is in hand.
    pub(crate) fn holds_any_of(&self, shard: u8) -> bool {
        self.lock().held.values().any(|of| *of == shard)
    }

    /// No more fresh rows; those not yet taken go back to the table.
    pub(crate) fn close(&self) {
        self.set_shards(&[]);
        self.lock().behind = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.state.lock().expect("not poisoned")
    }
}

impl FreshRows for Held {
    fn shard(&self, receipt: ReceiptId) -> u8 {
        let state = self.lock();
        // The id's tail is random.
        let draw = usize::try_from(receipt.0.as_u128() & 0xffff).unwrap_or(0);
        if state.shards.is_empty() {
            u8::try_from(draw % usize::from(SHARDS)).unwrap_or(0)
        } else {
            state.shards[draw % state.shards.len()]
        }
    }

    fn before_commit(&self, rows: &[(OutboxId, u8)]) {
        let mut state = self.lock();
        let fresh = state.fresh.len() + state.announced.len() + rows.len();
        if fresh > self.config.fresh_rows_max || state.fresh_bytes > self.config.fresh_bytes_max {
            state.behind = true;
        }
        if state.behind {
            return;
        }
        let now = Instant::now();
        for (row, shard) in rows {
            if state.shards.contains(shard) {
                state.held.insert(*row, *shard);
                state.announced.insert(*row, now);
            }
        }
    }

    fn committed(&self, rows: Vec<OutboxMessage>) {
        let mut state = self.lock();
        for row in rows {
            if state.announced.remove(&row.id).is_none() {
                continue;
            }
            let bytes = state.fresh_bytes + body_bytes(&row);
            let stays = state.waiting.contains(&row.hand_over.key.subscription) || !state.shards.contains(&row.shard);
            if bytes > self.config.fresh_bytes_max && !state.fresh.is_empty() {
                state.behind = true;
            }
            if stays || state.behind {
                state.let_go(row.id);
            } else {
                state.fresh_bytes = bytes;
                state.fresh.push_back(row);
            }
        }
        drop(state);
        self.arrived.notify_one();
    }

    fn abandoned(&self, rows: &[OutboxId]) {
        let mut state = self.lock();
        for row in rows {
            if state.announced.contains_key(row) {
                state.let_go(*row);
            }
        }
    }
}

impl State {
    fn let_go(&mut self, row: OutboxId) {
        self.held.remove(&row);
        self.announced.remove(&row);
        if let Some(let_go) = &mut self.let_go {
            let_go.insert(row);
        }
    }

    fn give_back(&mut self, which: impl Fn(&OutboxMessage) -> bool) {
        let (back, stay): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.fresh).into_iter().partition(which);
        self.fresh = stay;
        for row in back {
            self.fresh_bytes -= body_bytes(&row);
            // Not `let_go`: a look that is under way may take it.
            self.held.remove(&row.id);
        }
    }
}

fn body_bytes(row: &OutboxMessage) -> usize {
    row.body.as_ref().map_or(0, bytes::Bytes::len)
}

#[cfg(test)]
mod tests;
