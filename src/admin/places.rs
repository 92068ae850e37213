//! The places of a listener: as many connections as there may be. When all are taken, the connection that has been without
//! a request for the longest time gives way, so that idle peers, however many, keep nobody out.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

/// All places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    state: Mutex<State>,
    /// A connection left, or has become idle, or is not leaving after all.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Counts up; gives connections their numbers, and idle ones their order.
    next: u64,
    taken: HashMap<u64, Seat>,
    /// Idle connections, the longest idle first.
    idle: BTreeMap<u64, u64>,
    /// How many were asked to leave and have not left.
    leaving: usize,
}

#[derive(Debug)]
struct Seat {
    standing: Standing,
    told: Arc<Notify>,
}

/// How one connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// A handler runs.
    AtWork,
    /// None does: nothing has come yet, a head is incomplete, or the answer is on its way out. By its place in the order.
    Idle(u64),
    /// Asked to leave.
    Leaving,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    told: Arc<Notify>,
}

impl Places {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), state: Mutex::default(), changed: Notify::new() })
    }

    /// A place; asks one idle connection to leave if there is none, and waits if all are at work.
    pub async fn enter(self: &Arc<Self>) -> Place {
        loop {
            // Made before the look, so that no change between look and wait is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(place) = self.try_enter() {
                return place;
            }
            changed.await;
        }
    }

    fn try_enter(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.lock();
        if state.taken.len() >= self.most {
            // One at a time: whoever waits needs one place.
            if state.leaving == 0
                && let Some((_, number)) = state.idle.pop_first()
                && let Some(seat) = state.taken.get_mut(&number)
            {
                seat.standing = Standing::Leaving;
                seat.told.notify_one();
                state.leaving += 1;
            }
            return None;
        }
        let (number, since, told) = (state.draw(), state.draw(), Arc::new(Notify::new()));
        state.taken.insert(number, Seat { standing: Standing::Idle(since), told: Arc::clone(&told) });
        state.idle.insert(since, number);
        Some(Place { places: Arc::clone(self), number, told })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.state.lock().expect("not poisoned")
    }
}

impl State {
    fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Gives a connection another standing; `None` takes it out.
    fn change(&mut self, number: u64, to: Option<Standing>) {
        let before = match to {
            Some(standing) => self.taken.get_mut(&number).map(|seat| std::mem::replace(&mut seat.standing, standing)),
            None => self.taken.remove(&number).map(|seat| seat.standing),
        };
        match before {
            Some(Standing::Idle(since)) => drop(self.idle.remove(&since)),
            Some(Standing::Leaving) => self.leaving -= 1,
            Some(Standing::AtWork) | None => {}
        }
        if let Some(Standing::Idle(since)) = to {
            self.idle.insert(since, number);
        }
    }
}

impl Place {
    /// A request has come: from here on nobody asks this connection to leave, and if somebody just did, another has to.
    pub fn begin(&self) {
        self.places.lock().change(self.number, Some(Standing::AtWork));
        self.places.changed.notify_waiters();
    }

    /// The request has its answer.
    pub fn end(&self) {
        let mut state = self.places.lock();
        let since = state.draw();
        state.change(self.number, Some(Standing::Idle(since)));
        drop(state);
        self.places.changed.notify_waiters();
    }

    /// Returns when the connection has to leave.
    pub async fn must_leave(&self) {
        loop {
            self.told.notified().await;
            let state = self.places.lock();
            if state.taken.get(&self.number).is_some_and(|seat| seat.standing == Standing::Leaving) {
                return;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().change(self.number, None);
        self.places.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_was_asked_to_leave_and_has_a_request_stays_and_another_leaves() {
        let places = Places::new(2);
        let (first, second) = (places.enter().await, places.enter().await);
        let mut third = pin!(places.enter());
        assert!(third.as_mut().now_or_never().is_none());
        first.begin();
        assert!(first.must_leave().now_or_never().is_none(), "its request came before it had left");
        assert!(third.as_mut().now_or_never().is_none());
        assert!(second.must_leave().now_or_never().is_some(), "so the next one has to");
        drop(second);
        let third = third.now_or_never().expect("a place");
        first.end();
        drop((first, third));
        let state = places.lock();
        assert_eq!((state.taken.len(), state.idle.len(), state.leaving), (0, 0, 0), "nothing stays behind");
    }

    #[tokio::test]
    async fn one_that_waits_sends_one_away() {
        let places = Places::new(2);
        let (first, second) = (places.enter().await, places.enter().await);
        second.begin();
        second.end();
        let mut third = pin!(places.enter());
        assert!(third.as_mut().now_or_never().is_none());
        second.begin();
        second.end();
        assert!(third.as_mut().now_or_never().is_none());
        assert!(first.must_leave().now_or_never().is_some());
        assert!(second.must_leave().now_or_never().is_none());
    }
}
