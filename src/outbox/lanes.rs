//! Which subscriptions' rows must wait: a queue that is full, refused or gone must not hold up the others. Pure: the
//! time is a parameter.
//!
//! A subscription in trouble lets one row out every `probe_every`. Once a probe's confirm has stayed unanswered by the
//! `unrouted` queue for `quiet`, it lets out twice as many, and so on, until it is as free as the rest: another relay may
//! have been told of our unrouted probe, so that one good probe alone proves little.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// Rows let out at once after which a subscription is healthy again.
const FREE_AT: u32 = 256;

/// Why a subscription's rows wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its queue is full, or the broker refused.
    Nacked,
    /// No queue takes its messages.
    Unrouted,
}

/// A subscription that may let rows out now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    pub subscription: String,
    pub rows: u32,
    pub trouble: Trouble,
    /// How long it has been in trouble.
    pub for_: Duration,
}

#[derive(Debug)]
struct Lane {
    trouble: Trouble,
    since: Instant,
    /// Rows that the next probe may let out.
    rows: u32,
    next_at: Instant,
    /// When rows were last let out; at first, when trouble began.
    let_out_at: Instant,
    /// The last probe found no row to let out.
    idle: bool,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    probe_every: Duration,
    quiet: Duration,
    waiting: BTreeMap<String, Lane>,
    /// When a subscription's message was last confirmed, with no trouble since.
    proven: HashMap<String, Instant>,
}

impl Lanes {
    pub fn new(probe_every: Duration, quiet: Duration) -> Self {
        Self { probe_every, quiet, waiting: BTreeMap::new(), proven: HashMap::new() }
    }

    /// Whether the subscription's rows wait.
    pub fn waits(&self, subscription: &str) -> bool {
        self.waiting.contains_key(subscription)
    }

    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        self.waiting.keys().map(String::as_str)
    }

    /// A message of the subscription was nacked or came back.
    pub fn trouble(&mut self, subscription: &str, trouble: Trouble, now: Instant) {
        self.proven.remove(subscription);
        let probe_every = self.probe_every;
        let lane = self.waiting.entry(subscription.to_owned()).or_insert_with(|| {
            tracing::warn!(subscription, ?trouble, "the subscription's queue takes no messages; its jobs wait");
            Lane { trouble, since: now, rows: 1, next_at: now, let_out_at: now, idle: false }
        });
        if lane.trouble != trouble {
            // How long no queue took anything is not how long one was full.
            (lane.trouble, lane.since) = (trouble, now);
        }
        lane.rows = 1;
        // Counted from what was let out, or a burst that was on its way would put the probe off for ever.
        let next_at = lane.let_out_at + probe_every;
        lane.next_at = if next_at > now { next_at } else { now + probe_every };
        lane.idle = false;
    }

    /// A message of the subscription was confirmed. A lane opens wider, after a quiet while.
    pub fn confirmed(&mut self, subscription: &str, now: Instant) {
        self.proven.entry(subscription.to_owned()).or_insert(now);
        if let Some(lane) = self.waiting.get_mut(subscription) {
            lane.rows = lane.rows.saturating_mul(2);
            lane.next_at = now + self.quiet;
            if lane.rows > FREE_AT {
                tracing::info!(subscription, "the subscription's queue takes messages again");
                self.waiting.remove(subscription);
            }
        }
    }

    /// Lanes whose time has come; each is due again after `probe_every` unless it hears something before.
    pub fn due(&mut self, now: Instant) -> Vec<Probe> {
        let probe_every = self.probe_every;
        let due = self.waiting.iter_mut().filter(|(_, lane)| lane.next_at <= now);
        due.map(|(subscription, lane)| {
            lane.next_at = now + probe_every;
            lane.let_out_at = now;
            let (rows, trouble, for_) = (lane.rows, lane.trouble, now - lane.since);
            Probe { subscription: subscription.clone(), rows, trouble, for_ }
        })
        .collect()
    }

    /// The probe found no row. A full queue's lane is forgotten; that of a missing one is kept, for its jobs in review.
    pub fn nothing_to_probe(&mut self, subscription: &str) {
        match self.waiting.get_mut(subscription) {
            Some(lane) if lane.trouble == Trouble::Unrouted && !self.proven.contains_key(subscription) => {
                lane.idle = true
            }
            _ => drop(self.waiting.remove(subscription)),
        }
    }

    /// No job waits for this lane, here or in review.
    pub fn forget_idle(&mut self, subscription: &str) {
        if self.waiting.get(subscription).is_some_and(|lane| lane.idle) {
            self.waiting.remove(subscription);
        }
    }

    /// How many of the jobs that went to review as unroutable may be armed again now.
    pub fn rearmable(&self, subscription: &str, now: Instant) -> u32 {
        match self.waiting.get(subscription) {
            Some(lane) => u32::from(lane.idle),
            None => match self.proven.get(subscription) {
                Some(at) if *at + self.quiet <= now => FREE_AT,
                // Nothing is known yet: one finds out.
                _ => 1,
            },
        }
    }

    /// When the next probe is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.waiting.values().map(|lane| lane.next_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: Duration = Duration::from_secs(30);
    const QUIET: Duration = Duration::from_secs(1);

    #[test]
    fn one_probe_goes_out_every_thirty_seconds_until_one_succeeds() {
        let mut lanes = Lanes::new(PROBE, QUIET);
        let start = Instant::now();
        lanes.trouble("billing", Trouble::Unrouted, start);
        assert!(lanes.waits("billing") && !lanes.waits("mail"));
        assert!(lanes.due(start + Duration::from_secs(29)).is_empty());
        let probe = lanes.due(start + PROBE);
        assert_eq!((probe.len(), probe[0].rows, probe[0].for_), (1, 1, PROBE));
        assert!(lanes.due(start + PROBE).is_empty(), "one, not one per look");
        lanes.trouble("billing", Trouble::Unrouted, start + PROBE);
        assert!(lanes.due(start + PROBE + Duration::from_secs(29)).is_empty());
        assert_eq!(lanes.due(start + PROBE * 2).len(), 1);
        // The confirm of an unrouted probe comes first; its return must not make the next probe come sooner.
        lanes.confirmed("billing", start + PROBE * 2);
        lanes.trouble("billing", Trouble::Unrouted, start + PROBE * 2 + QUIET / 10);
        assert!(lanes.due(start + PROBE * 2 + QUIET * 2).is_empty());
        assert_eq!(lanes.due(start + PROBE * 3).len(), 1);
    }

    #[test]
    fn a_lane_opens_by_doubling_and_closes_at_once() {
        let mut lanes = Lanes::new(PROBE, QUIET);
        let mut now = Instant::now();
        lanes.trouble("billing", Trouble::Nacked, now);
        now += PROBE;
        for rows in [1, 2, 4] {
            assert_eq!(lanes.due(now).first().map(|probe| probe.rows), Some(rows));
            lanes.confirmed("billing", now);
            assert!(lanes.due(now).is_empty(), "quiet first");
            now += QUIET;
        }
        lanes.trouble("billing", Trouble::Nacked, now);
        now += PROBE;
        assert_eq!(lanes.due(now).first().map(|probe| probe.rows), Some(1));
        for _ in 0..9 {
            lanes.confirmed("billing", now);
            now += QUIET;
        }
        assert!(!lanes.waits("billing"));
    }

    #[test]
    fn troubles_that_keep_coming_do_not_put_the_probe_off_for_ever() {
        let mut lanes = Lanes::new(PROBE, QUIET);
        let start = Instant::now();
        for second in 0..30 {
            lanes.trouble("billing", Trouble::Nacked, start + Duration::from_secs(second));
        }
        assert_eq!(lanes.due(start + PROBE).len(), 1);
    }

    #[test]
    fn unroutable_jobs_in_review_are_armed_one_at_a_time_until_routing_is_proven() {
        let mut lanes = Lanes::new(PROBE, QUIET);
        let now = Instant::now();
        assert_eq!(lanes.rearmable("billing", now), 1, "nothing is known: one finds out");
        lanes.trouble("billing", Trouble::Unrouted, now);
        assert_eq!(lanes.rearmable("billing", now), 0, "rows wait that can be the probe");
        lanes.nothing_to_probe("billing");
        assert_eq!(lanes.rearmable("billing", now), 1);
        lanes.forget_idle("billing");
        lanes.confirmed("billing", now);
        assert_eq!(lanes.rearmable("billing", now), 1, "not quiet long enough");
        assert_eq!(lanes.rearmable("billing", now + QUIET), FREE_AT);
    }
}
