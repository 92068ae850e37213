//! Random lists of operations over the flows, from a printed seed; after each step the promises are checked. A failing
//! list that was worth keeping becomes a scenario of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::model::job::JobReason;
use crate::store::tx::SubscriptionState;
use crate::store::{ClaimRequest, ReplayRequest, ReplayVerdict};

/// A message in the broker, or in a consumer's hands; or a claim that a consumer holds.
#[derive(Debug, Clone)]
struct InHand {
    key: JobKey,
    attempt: i32,
    row: Option<OutboxRow>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Deliver,
    Resend,
    Schedule,
    /// Publishes one row; its confirm may come at once, later, or never.
    Publish,
    ConfirmLate,
    /// The broker loses a message.
    LoseMessage,
    /// No queue takes a message.
    Unroute,
    GiveUp,
    Claim,
    Start,
    /// A consumer reports on something it holds, and may report again later.
    Complete,
    Fail,
    Reject,
    /// A consumer forgets what it holds.
    Crash,
    LookForLost,
    Replay,
    Dismiss,
    Pause,
    Resume,
    Advance,
    AdvanceFar,
}

const OPS: [Op; 21] = [
    Op::Deliver,
    Op::Resend,
    Op::Schedule,
    Op::Publish,
    Op::ConfirmLate,
    Op::LoseMessage,
    Op::Unroute,
    Op::GiveUp,
    Op::Claim,
    Op::Start,
    Op::Complete,
    Op::Fail,
    Op::Reject,
    Op::Crash,
    Op::LookForLost,
    Op::Replay,
    Op::Dismiss,
    Op::Pause,
    Op::Resume,
    Op::Advance,
    Op::AdvanceFar,
];

struct Simulation {
    world: World,
    in_hand: Vec<InHand>,
    unconfirmed: Vec<OutboxRow>,
    /// Messages that the broker lost: their jobs are queued and nowhere.
    lost: BTreeSet<JobKey>,
    delivered: usize,
    completions: BTreeMap<(JobKey, i32), u32>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let limited =
            Subscription { time_limit: Some(Duration::from_secs(90)), ..subscription("limited", Target::Amqp) };
        let confirmed = Subscription { completes_on: CompletesOn::Confirm, ..subscription("confirmed", Target::Amqp) };
        let mut world = World::new(vec![
            subscription("billing", Target::Amqp),
            subscription("badges", Target::Pull),
            confirmed,
            limited,
        ]);
        world.random = SeededRandom::new(seed);
        Self {
            world,
            in_hand: Vec::new(),
            unconfirmed: Vec::new(),
            lost: BTreeSet::new(),
            delivered: 0,
            completions: BTreeMap::new(),
        }
    }

    fn draw(&self, n: usize) -> usize {
        usize::try_from(self.world.random.next_u64() % u64::try_from(n.max(1)).expect("fits")).expect("fits")
    }

    fn some_job(&self) -> Option<JobKey> {
        let keys: Vec<&JobKey> = self.world.memory.jobs.keys().collect();
        keys.get(self.draw(keys.len())).map(|key| (*key).clone())
    }

    fn some_row(&self) -> Option<OutboxRow> {
        let rows: Vec<&OutboxRow> = self.world.memory.outbox.values().collect();
        rows.get(self.draw(rows.len())).map(|row| (*row).clone())
    }

    fn some_in_hand(&self) -> Option<usize> {
        (!self.in_hand.is_empty()).then(|| self.draw(self.in_hand.len()))
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Deliver => {
                self.world.deliver().await;
                self.delivered += 1;
            }
            Op::Resend => self.resend().await,
            Op::Schedule => {
                self.world.rescue().await;
                self.world.hand_out().await;
            }
            Op::Publish => self.publish().await,
            Op::ConfirmLate => {
                if !self.unconfirmed.is_empty() {
                    let row = self.unconfirmed.swap_remove(self.draw(self.unconfirmed.len()));
                    self.world.confirm(&row).await;
                }
            }
            Op::LoseMessage | Op::Crash => {
                if let Some(at) = self.some_in_hand() {
                    let gone = self.in_hand.swap_remove(at);
                    self.lost.insert(gone.key);
                }
            }
            Op::Unroute => self.unroute().await,
            Op::GiveUp => {
                if let Some(row) = self.some_row() {
                    let memory = &mut self.world.memory;
                    let gone =
                        give_up_outbox(memory, &[row.id], JobReason::Unroutable, "no queue").await.expect("given up");
                    assert_eq!(gone, 1);
                }
            }
            Op::Claim => self.claim().await,
            Op::Start => self.report(OutcomeKind::Started).await,
            Op::Complete => self.report(OutcomeKind::Completed).await,
            Op::Fail => self.report(OutcomeKind::Failed).await,
            Op::Reject => self.report(OutcomeKind::Rejected).await,
            Op::LookForLost => {
                for name in ["billing", "limited"] {
                    let World { memory, random, .. } = &mut self.world;
                    republish_lost(memory, name, RULE, random).await.expect("looked");
                }
            }
            Op::Replay => self.replay().await,
            Op::Dismiss => {
                if let Some(key) = self.some_job() {
                    let was = self.world.memory.job(&key).state;
                    let done = dismiss(&mut self.world.memory, &key, "ada", "why").await;
                    assert_eq!(done.is_ok(), was == JobState::Review);
                }
            }
            Op::Pause => self.world.memory.held_back = vec![("billing".into(), SubscriptionState::Paused)],
            Op::Resume => self.world.memory.held_back.clear(),
            Op::Advance => self.world.advance(Duration::from_secs(30)),
            Op::AdvanceFar => self.world.advance(Duration::from_secs(3 * 3600)),
        }
    }

    async fn resend(&mut self) {
        let Some(key) = self.some_job() else { return };
        let before = self.world.memory.job(&key).clone();
        let paused = self.world.memory.held_back.iter().any(|(name, _)| *name == key.subscription);
        let World { memory, subscriptions, random } = &mut self.world;
        let armed =
            rearm_on_redelivery(memory, std::slice::from_ref(&key), subscriptions, random).await.expect("rearmed");
        if !armed.is_empty() {
            assert!(
                before.state == JobState::Review && before.reason.is_some_and(JobReason::rearms) && !paused,
                "{before:?}"
            );
        }
    }

    async fn publish(&mut self) {
        let Some(row) = self.some_row() else { return };
        self.in_hand.push(InHand { key: row.key.clone(), attempt: row.attempt, row: Some(row.clone()) });
        match self.draw(3) {
            0 => self.unconfirmed.push(row),
            // The connection breaks before the confirm: the row stays and is published again.
            1 => {}
            _ => self.world.confirm(&row).await,
        }
    }

    async fn unroute(&mut self) {
        let Some(at) = self.in_hand.iter().position(|held| held.row.is_some()) else { return };
        let InHand { row: Some(row), .. } = self.in_hand.swap_remove(at) else { return };
        let delay = Duration::from_secs(30);
        return_to_outbox(&mut self.world.memory, &[hand_over(&row)], delay, &self.world.random)
            .await
            .expect("returned");
    }

    async fn claim(&mut self) {
        let lease = Duration::from_secs(60);
        let claim = ClaimRequest { subscription: "badges".into(), max: 2, lease, consumer: "worker".into() };
        let World { memory, subscriptions, random } = &mut self.world;
        let claimed = claim_jobs(memory, &claim, subscriptions, random).await.expect("claimed");
        for one in claimed {
            self.in_hand.push(InHand { key: one.job.key, attempt: one.job.attempt, row: None });
        }
    }

    async fn report(&mut self, kind: OutcomeKind) {
        let Some(at) = self.some_in_hand() else { return };
        let held = self.in_hand[at].clone();
        // Sometimes it keeps the message and reports on it again, much later.
        if kind != OutcomeKind::Started && self.draw(3) > 0 {
            self.in_hand.swap_remove(at);
        }
        let before = self.world.memory.job(&held.key).clone();
        let verdict = self.world.report(&held.key, held.attempt, kind).await;
        assert_ne!(verdict, OutcomeVerdict::NoSuchJob);
        assert_ne!(verdict, OutcomeVerdict::NoSuchAttempt, "what was handed over has begun: {held:?}");
        if verdict == OutcomeVerdict::Applied(JobState::Completed) {
            assert_eq!(kind, OutcomeKind::Completed);
            *self.completions.entry((held.key.clone(), before.series)).or_default() += 1;
        }
        let current = before.is_current_series(held.attempt);
        if kind == OutcomeKind::Completed && current && !before.state.is_ended() {
            assert_eq!(self.world.memory.job(&held.key).state, JobState::Completed, "a late completed completes");
        }
    }

    async fn replay(&mut self) {
        let Some(key) = self.some_job() else { return };
        let before = self.world.memory.job(&key).clone();
        let request = ReplayRequest { trigger: Trigger::Replay, actor: "ada".into(), why: Some("asked".into()) };
        let World { memory, subscriptions, random } = &mut self.world;
        let verdict =
            replay(memory, std::slice::from_ref(&key), &request, subscriptions, random).await.expect("replayed");
        let after = self.world.memory.job(&key);
        let asleep = matches!(before.state, JobState::Pending | JobState::Retrying);
        if asleep || before.leased_until.is_some() {
            assert_eq!(verdict, [ReplayVerdict::Refused("not_replayable")]);
            assert_eq!(*after, before);
        } else {
            assert_eq!(verdict, [ReplayVerdict::Armed]);
            assert_eq!(after.series, before.series + 1);
            self.lost.remove(&key);
        }
    }

    fn check(&self) {
        let memory = &self.world.memory;
        assert_eq!(memory.counts, memory.recounted(), "the counters are right");
        assert_eq!(memory.jobs.len(), self.delivered * 4, "nothing vanishes");
        assert!(self.completions.values().all(|n| *n == 1), "a series completes once: {:?}", self.completions);
        for (key, job) in &memory.jobs {
            self.check_history(key, job);
            let policy = &self.world.subscriptions.find(&key.subscription).expect("configured").retry;
            let tries = usize::try_from(job.series_attempts).expect("not negative");
            assert!(tries <= policy.attempts(), "the budget holds: {job:?}");
            self.check_place(key, job);
        }
    }

    fn check_history(&self, key: &JobKey, job: &Job) {
        let rows = self.world.memory.attempts(key);
        let numbers: Vec<i32> = rows.iter().map(|row| row.attempt).collect();
        // The last one may have no row yet (a first hand-over), or one more may be armed for a claim.
        let armed = job.state == JobState::Pending && numbers.last() == Some(&(job.attempt + 1));
        let unwritten = job.attempt == 1 && numbers.is_empty();
        let last = if unwritten { 0 } else { job.attempt + i32::from(armed) };
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "numbered without gaps: {job:?}");
        let open_leases =
            rows.iter().filter(|row| row.outcome == Some(OutcomeKind::Started) && row.attempt == job.attempt);
        assert!(job.leased_until.is_none() || open_leases.count() == 1, "one lease, on the attempt that runs: {job:?}");
        if job.state == JobState::Completed {
            let done = rows.iter().filter(|row| row.outcome == Some(OutcomeKind::Completed)).count();
            assert!(done >= 1, "a completed job has a completed attempt: {job:?}");
        }
    }

    /// Every live job is due some day, on its way, leased, or known to be lost.
    fn check_place(&self, key: &JobKey, job: &Job) {
        match job.state {
            JobState::Pending | JobState::Retrying => {}
            JobState::Queued => {
                let on_its_way = !self.world.memory.waiting(key).is_empty()
                    || self.in_hand.iter().any(|held| held.key == *key && held.attempt == job.attempt);
                assert!(on_its_way || self.lost.contains(key) || self.was_reported_early(key), "nowhere: {job:?}");
            }
            JobState::Running => {
                let limited = key.subscription == "badges" || key.subscription == "limited";
                assert_eq!(job.leased_until.is_some(), limited, "{job:?}");
            }
            JobState::Completed | JobState::Superseded | JobState::Review | JobState::Dismissed => {}
        }
    }

    /// A consumer that took the message, said something that was only recorded, and let go of it.
    fn was_reported_early(&self, key: &JobKey) -> bool {
        self.world.memory.attempts(key).iter().any(|row| row.late || row.consumer.is_some())
    }
}

async fn run(seed: u64, steps: usize) -> Simulation {
    let mut simulation = Simulation::new(seed);
    for _ in 0..steps {
        // Deliveries and progress come more often than accidents.
        let op = match simulation.draw(3) {
            0 => [Op::Deliver, Op::Publish, Op::Schedule, Op::Advance, Op::Claim][simulation.draw(5)],
            _ => OPS[simulation.draw(OPS.len())],
        };
        simulation.apply(op).await;
        simulation.check();
    }
    simulation
}

/// Whatever happened before: once consumers work and time goes by, every live job ends.
async fn settle(simulation: &mut Simulation) {
    simulation.world.memory.held_back.clear();
    simulation.world.memory.reported.extend(["billing".to_owned(), "limited".to_owned()]);
    for _ in 0..40 {
        simulation.apply(Op::Schedule).await;
        simulation.apply(Op::LookForLost).await;
        for row in simulation.world.memory.outbox.values().cloned().collect::<Vec<_>>() {
            simulation.world.confirm(&row).await;
            simulation.world.report(&row.key, row.attempt, OutcomeKind::Completed).await;
        }
        simulation.in_hand.clear();
        simulation.claim().await;
        for held in std::mem::take(&mut simulation.in_hand) {
            simulation.world.report(&held.key, held.attempt, OutcomeKind::Completed).await;
        }
        simulation.world.advance(Duration::from_secs(3 * 3600));
    }
}

#[tokio::test]
async fn promises_hold_after_every_step_of_random_lists() {
    let first = std::env::args().find_map(|argument| argument.strip_prefix("seed=")?.parse().ok()).unwrap_or(1);
    for seed in first..first + 60_u64 {
        let watch = SeedOnPanic(seed);
        let mut simulation = run(seed, 200).await;
        settle(&mut simulation).await;
        let stuck: Vec<&Job> = simulation.world.memory.jobs.values().filter(|job| job.state.is_live()).collect();
        // A consumer that said `started`, without a time limit, and died is nobody's to take back.
        let stuck: Vec<_> =
            stuck.into_iter().filter(|job| !(job.state == JobState::Running && job.leased_until.is_none())).collect();
        assert!(stuck.is_empty(), "{stuck:?}");
        drop(watch);
    }
}

/// Prints the seed of a run that failed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    #[expect(clippy::print_stderr, reason = "the seed of a failed run")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing seed: {}", self.0);
        }
    }
}
