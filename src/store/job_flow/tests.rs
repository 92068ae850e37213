//! The job flows over a store of maps, with a clock that is moved by hand.

mod again;
mod memory;
mod scenarios;
mod simulation;

use std::time::Duration;

use memory::Memory;

use super::*;
use crate::clock::micros;
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::{JobKey, JobState, OUTBOX_COUNT};
use crate::model::outcome::OutcomeKind;
use crate::model::receipt::{EventKey, Mode, Origin, Receipt};
use crate::model::retry::RetryPolicy;
use crate::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use crate::random::SeededRandom;
use crate::store::tx::Counts;
use crate::store::{
    ClaimRequest, ConfirmedRow, HandOver, LostRule, OutcomeReport, OutcomeVerdict, ReplayRequest, ReplayVerdict,
};

const RULE: LostRule = LostRule {
    older_than: Duration::from_secs(3600),
    begun_older_than: Duration::from_secs(24 * 3600),
    times: 2,
    limit: 10,
};
const START: i64 = 1_700_000_000_000_000;

/// A store, its configuration, and what a test does with them.
struct World {
    memory: Memory,
    subscriptions: SubscriptionSet,
    random: SeededRandom,
}

fn subscription(name: &str, target: Target) -> Subscription {
    Subscription {
        name: name.to_owned(),
        filter: crate::model::filter::Filter::default(),
        target,
        retry: RetryPolicy::preset("standard").expect("a preset"),
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

impl World {
    fn new(subscriptions: Vec<Subscription>) -> Self {
        let memory = Memory { now: START, ..Memory::default() };
        Self { memory, subscriptions: SubscriptionSet::new(subscriptions), random: SeededRandom::new(7) }
    }

    fn advance(&mut self, span: Duration) {
        self.memory.now += micros(span);
    }

    fn receipt(&mut self) -> ReceiptId {
        let now = self.memory.now;
        let id = ReceiptId::new(now, &self.random);
        let receipt = Receipt {
            id,
            key: EventKey { provider: "stripe".into(), account: "acct_1".into(), event_id: id.to_string() },
            provider_ref: id.to_string(),
            mode: Mode::Live,
            source: "eu".into(),
            event_type: "invoice.paid".into(),
            occurred_at: None,
            received_at: now,
            resource_key: None,
            resource_version: None,
            payload_id: Some(PayloadId::new(now, &self.random)),
            pointer: None,
            part: None,
            item_sha256: None,
            signed_sha256: None,
            verified_by: None,
            origin: Origin::Delivery,
            flags: String::new(),
            hold_reason: None,
            duplicates: 0,
            last_delivered_at: None,
        };
        self.memory.receipts.insert(id, receipt);
        id
    }

    /// What intake does with a new event: its receipt, its jobs, and the outbox rows of those that go to the broker.
    async fn deliver(&mut self) -> ReceiptId {
        let id = self.receipt();
        let names: Vec<(String, Target)> =
            self.subscriptions.iter().map(|found| (found.name.clone(), found.target)).collect();
        for (name, target) in names {
            let job = self.first_job(id, &name);
            match target {
                Target::Pull => self.add(job, None).await,
                Target::Amqp => {
                    let job = job.handed_out(Lane::Fresh, self.memory.now).expect("legal");
                    let row = outbox_row(&job, Lane::Fresh, Trigger::First, 0, self.memory.now, &self.random);
                    self.add(job, Some(row)).await;
                }
            }
        }
        id
    }

    fn first_job(&self, receipt: ReceiptId, subscription: &str) -> Job {
        Job::first(&self.memory.receipts[&receipt], subscription, "eu", self.memory.now)
    }

    async fn add(&mut self, job: Job, row: Option<OutboxRow>) {
        let writes = JobWrites { insert: vec![job], outbox: row.into_iter().collect(), ..JobWrites::default() };
        apply(&mut self.memory, &writes).await.expect("written");
    }

    async fn report(&mut self, key: &JobKey, attempt: i32, kind: OutcomeKind) -> OutcomeVerdict {
        let report = OutcomeReport {
            key: key.clone(),
            attempt,
            kind,
            reason: None,
            message: None,
            retry_after: None,
            consumer: "worker".into(),
        };
        self.reports(&[report]).await[0]
    }

    async fn reports(&mut self, reports: &[OutcomeReport]) -> Vec<OutcomeVerdict> {
        record_outcomes(&mut self.memory, reports, &self.subscriptions, &self.random).await.expect("recorded")
    }

    async fn hand_out(&mut self) -> u32 {
        hand_out_due(&mut self.memory, 100, &self.subscriptions, &self.random).await.expect("handed out")
    }

    async fn rescue(&mut self) -> u32 {
        rescue_expired(&mut self.memory, 100, &self.subscriptions, &self.random).await.expect("rescued")
    }

    /// What the relay does with a due row whose confirm comes: publishes it and deletes it by its own id.
    async fn confirm(&mut self, row: &OutboxRow) {
        let completes = self
            .subscriptions
            .find(&row.key.subscription)
            .is_some_and(|found| found.completes_on == CompletesOn::Confirm);
        let confirmed = ConfirmedRow { id: row.id, hand_over: hand_over(row), completes };
        complete_confirmed(&mut self.memory, &[confirmed]).await.expect("confirmed");
        let gone = self.memory.delete_outbox(&[row.id]).await.expect("deleted");
        let mut counts = Counts::default();
        gone.iter().for_each(|(name, n)| counts.add(name, OUTBOX_COUNT, -i64::try_from(*n).expect("fits")));
        self.memory.add_counts(&counts.into_rows()).await.expect("counted");
    }

    async fn confirm_all(&mut self) {
        for row in self.memory.outbox.values().cloned().collect::<Vec<_>>() {
            self.confirm(&row).await;
        }
    }

    /// Waits for the job's retry and hands it over.
    async fn next_try(&mut self, key: &JobKey) {
        let at = self.memory.job(key).next_attempt_at.expect("due some day");
        self.memory.now = self.memory.now.max(at);
        assert_eq!(self.hand_out().await, 1, "handed out when due");
        self.confirm_all().await;
    }
}

fn hand_over(row: &OutboxRow) -> HandOver {
    HandOver { key: row.key.clone(), attempt: row.attempt, lane: row.lane, trigger: row.trigger }
}

fn key(receipt: ReceiptId, subscription: &str) -> JobKey {
    JobKey { receipt, subscription: subscription.to_owned() }
}

const HOUR: Duration = Duration::from_secs(3600);

fn amqp() -> World {
    World::new(vec![subscription("billing", Target::Amqp)])
}

fn pull() -> World {
    World::new(vec![subscription("badges", Target::Pull)])
}

impl World {
    async fn arm(&mut self, keys: &[JobKey], trigger: Trigger, why: Option<&str>) -> Vec<ReplayVerdict> {
        let request = ReplayRequest { trigger, actor: "ada".into(), why: why.map(str::to_owned) };
        replay(&mut self.memory, keys, &request, &self.subscriptions, &self.random).await.expect("replayed")
    }

    async fn resend(&mut self, key: &JobKey) -> bool {
        let keys = std::slice::from_ref(key);
        !rearm_on_redelivery(&mut self.memory, keys, &self.subscriptions, &self.random)
            .await
            .expect("rearmed")
            .is_empty()
    }

    async fn claim(&mut self, lease: Duration) -> Vec<crate::store::ClaimedJob> {
        let claim = ClaimRequest { subscription: "badges".into(), max: 10, lease, consumer: "worker".into() };
        claim_jobs(&mut self.memory, &claim, &self.subscriptions, &self.random).await.expect("claimed")
    }

    /// Fails every try until the job waits for a person.
    async fn exhaust(&mut self, key: &JobKey) {
        self.confirm_all().await;
        loop {
            let attempt = self.memory.job(key).attempt;
            match self.report(key, attempt, OutcomeKind::Failed).await {
                OutcomeVerdict::Applied(JobState::Retrying) => self.next_try(key).await,
                OutcomeVerdict::Applied(JobState::Review) => return,
                other => panic!("{other:?}"),
            }
        }
    }

    async fn delivered(&mut self, subscription: &str) -> JobKey {
        let receipt = self.deliver().await;
        key(receipt, subscription)
    }
}
