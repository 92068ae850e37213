//! Jobs on every backend, through the store's own doors: from the delivery to the end, or to a person.

mod broker;
mod resends;
mod survivors;

use std::sync::Arc;
use std::time::Duration;

use makbuz::model::attempt::Trigger;
use makbuz::model::job::{Job, JobKey, JobReason, JobState};
use makbuz::model::outcome::OutcomeKind;
use makbuz::model::receipt::HoldReason;
use makbuz::model::subscription::{CompletesOn, Subscription, SubscriptionSet, Target};
use makbuz::process::{Scheduler, SchedulerConfig};
use makbuz::store::{
    ClaimRequest, ConfirmedRow, JobQuery, Jobs, LostRule, OutboxMessage, OutboxQuery, OutcomeReport, OutcomeVerdict,
    ReplayRequest, ReplayVerdict, Store,
};

use crate::store::harness::{Harness, billing, both, deliver_one, set, subscription};

on_every_backend! {
    an_outage_of_an_hour_costs_no_attempt,
    seven_tries_then_review_then_a_resend_and_a_replay,
    a_fast_failure_overtakes_the_delete_of_its_outbox_row,
    a_late_completed_withdraws_what_still_waits,
    pull_jobs_are_claimed_extended_rescued_and_finished,
    a_hundred_claims_at_once_lease_each_job_once,
    a_held_receipt_is_released_once_even_by_two_at_once,
    what_completes_on_its_confirm_completes,
    lost_messages_go_out_again_only_where_consumers_report,
    returned_and_given_up_hand_overs,
    dismissed_jobs_are_listed_and_counted,
}

/// Every job of the store, and that the counters agree with them.
async fn jobs_counted(store: &Arc<dyn Store>) -> Vec<Job> {
    let jobs = store.jobs(JobQuery { limit: 1000, ..JobQuery::default() }).await.expect("listed");
    let status = store.job_status().await.expect("counted");
    for state in JobState::ALL {
        let real = jobs.iter().filter(|job| job.state == state).count();
        let counted: i64 = status.counts.iter().filter(|((_, of), _)| *of == state).map(|(_, n)| *n).sum();
        assert_eq!(i64::try_from(real).expect("fits"), counted, "{state:?} in {status:?}");
    }
    jobs
}

async fn job(store: &Arc<dyn Store>, key: &JobKey) -> Job {
    store.job(key).await.expect("read").expect("there").job
}

async fn history(store: &Arc<dyn Store>, key: &JobKey) -> Vec<(i32, Trigger, Option<OutcomeKind>)> {
    let view = store.job(key).await.expect("read").expect("there");
    view.attempts.iter().map(|attempt| (attempt.attempt, attempt.trigger, attempt.outcome)).collect()
}

fn report(key: &JobKey, attempt: i32, kind: OutcomeKind) -> OutcomeReport {
    OutcomeReport {
        key: key.clone(),
        attempt,
        kind,
        reason: Some("why".to_owned()),
        message: Some("in its own words\0".replace('\0', " ")),
        retry_after: None,
        consumer: "worker".to_owned(),
    }
}

async fn say(
    store: &Arc<dyn Store>,
    set: &Arc<SubscriptionSet>,
    key: &JobKey,
    attempt: i32,
    kind: OutcomeKind,
) -> OutcomeVerdict {
    store.record_outcomes(vec![report(key, attempt, kind)], set.clone()).await.expect("recorded")[0]
}

async fn waiting(store: &Arc<dyn Store>) -> Vec<OutboxMessage> {
    let query = OutboxQuery { shards: (0..32).collect(), limit: 1000, bytes_max: 1 << 20, ..OutboxQuery::default() };
    store.read_outbox(query).await.expect("read").messages
}

/// What the relay does when the broker takes everything.
async fn publish_all(store: &Arc<dyn Store>, set: &SubscriptionSet) -> usize {
    let rows: Vec<ConfirmedRow> = waiting(store)
        .await
        .into_iter()
        .map(|row| {
            let on = set.find(&row.hand_over.key.subscription).map(|found| found.completes_on);
            ConfirmedRow { id: row.id, completes: on == Some(CompletesOn::Confirm), hand_over: row.hand_over }
        })
        .collect();
    store.delete_outbox(&rows).await.expect("deleted");
    rows.len()
}

async fn delivered(store: &Arc<dyn Store>, h: &Harness, id: &str, set: &Arc<SubscriptionSet>, name: &str) -> JobKey {
    store.sync_subscriptions(set.clone()).await.expect("noted");
    let verdict = deliver_one(store, h.delivery(id, "{}", set)).await;
    JobKey { receipt: verdict.receipt_id, subscription: name.to_owned() }
}

fn scheduler(store: &Arc<dyn Store>, set: &Arc<SubscriptionSet>) -> Scheduler {
    let jobs: Arc<dyn Jobs> = store.clone();
    Scheduler::new(SchedulerConfig::default(), jobs, set.clone())
}

async fn replay(store: &Arc<dyn Store>, set: &Arc<SubscriptionSet>, key: &JobKey, why: Option<&str>) -> ReplayVerdict {
    let request = ReplayRequest { trigger: Trigger::Replay, actor: "ada".to_owned(), why: why.map(str::to_owned) };
    store.replay(std::slice::from_ref(key), request, set.clone()).await.expect("answered").remove(0)
}

async fn claim(
    store: &Arc<dyn Store>,
    set: &Arc<SubscriptionSet>,
    max: u32,
    lease: Duration,
) -> Vec<(JobKey, i32, Trigger)> {
    let request = ClaimRequest { subscription: "audit".to_owned(), max, lease, consumer: "worker".to_owned() };
    let claimed = store.claim_jobs(request, set.clone()).await.expect("claimed");
    claimed.into_iter().map(|one| (one.job.key, one.job.attempt, one.trigger)).collect()
}

async fn an_outage_of_an_hour_costs_no_attempt(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    assert_eq!(publish_all(&store, &set).await, 1);
    for _ in 0..12 {
        h.backend.pass(Duration::from_secs(300)).await;
        let step = scheduler(&store, &set).step().await.expect("stepped");
        assert_eq!((step.handed_out, step.rescued), (0, 0));
    }
    assert!(history(&store, &key).await.is_empty());
    assert_eq!(say(&store, &set, &key, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert_eq!(history(&store, &key).await, [(1, Trigger::First, Some(OutcomeKind::Completed))]);
    assert_eq!(say(&store, &set, &key, 1, OutcomeKind::Completed).await, OutcomeVerdict::Already);
    assert_eq!(say(&store, &set, &key, 2, OutcomeKind::Completed).await, OutcomeVerdict::NoSuchAttempt);
    assert_eq!(jobs_counted(&store).await.len(), 1);
}

/// Fails every try of the series that is under way; returns how many there were.
async fn exhaust(store: &Arc<dyn Store>, h: &Harness, set: &Arc<SubscriptionSet>, key: &JobKey) -> u32 {
    let mut tries = 0;
    loop {
        publish_all(store, set).await;
        let attempt = job(store, key).await.attempt;
        tries += 1;
        match say(store, set, key, attempt, OutcomeKind::Failed).await {
            OutcomeVerdict::Applied(JobState::Review) => return tries,
            OutcomeVerdict::Applied(JobState::Retrying) => {}
            other => panic!("{other:?}"),
        }
        let due = job(store, key).await.next_attempt_at.expect("due");
        let left = u64::try_from(due - h.now()).expect("in the future");
        h.backend.pass(Duration::from_micros(left) + Duration::from_millis(10)).await;
        assert_eq!(scheduler(store, set).step().await.expect("stepped").handed_out, 1);
        jobs_counted(store).await;
    }
}

async fn seven_tries_then_review_then_a_resend_and_a_replay(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    assert_eq!(exhaust(&store, h, &set, &key).await, 7);
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").handed_out, 0, "no eighth");
    let stored = job(&store, &key).await;
    assert_eq!((stored.attempt, stored.reason), (7, Some(JobReason::Exhausted)));
    assert_eq!(stored.fingerprint.as_deref(), Some("exhausted:why"));
    let attempts = history(&store, &key).await;
    assert_eq!(attempts.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(attempts[1..].iter().all(|(_, trigger, _)| *trigger == Trigger::Retry));

    // The provider sends it again: a new series begins, and a message goes out.
    let again = deliver_one(&store, h.delivery("evt_1", "{}", &set)).await;
    assert_eq!((again.receipt_id, again.rearmed), (key.receipt, 1));
    let stored = job(&store, &key).await;
    assert_eq!((stored.state, stored.attempt, stored.series, stored.rearms), (JobState::Queued, 8, 2, 1));
    assert_eq!(waiting(&store).await[0].hand_over.trigger, Trigger::Redelivery);
    publish_all(&store, &set).await;
    say(&store, &set, &key, 8, OutcomeKind::Rejected).await;
    let again = deliver_one(&store, h.delivery("evt_1", "{}", &set)).await;
    assert_eq!(again.rearmed, 0, "what a consumer rejected is not undone by a resend");

    // W-146: a replay has a new budget, and the history stays.
    assert_eq!(replay(&store, &set, &key, None).await, ReplayVerdict::Armed);
    assert_eq!(replay(&store, &set, &key, None).await, ReplayVerdict::Refused("why_missing"));
    assert_eq!(exhaust(&store, h, &set, &key).await, 7);
    assert_eq!(history(&store, &key).await.len(), 15);
    jobs_counted(&store).await;
}

async fn a_fast_failure_overtakes_the_delete_of_its_outbox_row(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    let first = waiting(&store).await.remove(0);
    say(&store, &set, &key, 1, OutcomeKind::Failed).await;
    h.backend.pass(Duration::from_secs(7)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").handed_out, 1);
    let confirmed = ConfirmedRow { id: first.id, hand_over: first.hand_over, completes: false };
    store.delete_outbox(&[confirmed]).await.expect("deleted");
    let left = waiting(&store).await;
    assert_eq!((left.len(), left[0].hand_over.attempt), (1, 2));
    assert_eq!(store.outbox_status().await.expect("counted").depth, 1);
}

async fn a_late_completed_withdraws_what_still_waits(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    publish_all(&store, &set).await;
    say(&store, &set, &key, 1, OutcomeKind::Failed).await;
    h.backend.pass(Duration::from_secs(7)).await;
    scheduler(&store, &set).step().await.expect("stepped");
    assert_eq!(say(&store, &set, &key, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert!(waiting(&store).await.is_empty());
    assert_eq!(store.outbox_status().await.expect("counted").depth, 0);
    let view = store.job(&key).await.expect("read").expect("there");
    assert!(view.attempts[0].late);
    jobs_counted(&store).await;
}

async fn pull_jobs_are_claimed_extended_rescued_and_finished(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    let key = delivered(&store, h, "evt_1", &set, "audit").await;
    let lease = Duration::from_secs(60);
    assert_eq!(claim(&store, &set, 5, lease).await, [(key.clone(), 1, Trigger::First)]);
    assert!(claim(&store, &set, 5, lease).await.is_empty());
    store.extend_lease(&key, 1, lease * 2).await.expect("extended");
    h.backend.pass(Duration::from_secs(100)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").rescued, 0);
    h.backend.pass(Duration::from_secs(21)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").rescued, 1);
    assert_eq!(store.extend_lease(&key, 1, lease).await.expect_err("refused").code(), "not_running");
    h.backend.pass(Duration::from_secs(7)).await;
    assert_eq!(claim(&store, &set, 5, lease).await, [(key.clone(), 2, Trigger::Rescue)]);
    assert_eq!(say(&store, &set, &key, 1, OutcomeKind::Failed).await, OutcomeVerdict::Recorded);
    assert_eq!(say(&store, &set, &key, 2, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert_eq!(replay(&store, &set, &key, None).await, ReplayVerdict::Refused("why_missing"));
    assert_eq!(replay(&store, &set, &key, Some("lost")).await, ReplayVerdict::Armed);
    assert_eq!(claim(&store, &set, 5, lease).await, [(key.clone(), 3, Trigger::Replay)]);
    jobs_counted(&store).await;
}

async fn a_hundred_claims_at_once_lease_each_job_once(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    for n in 0..40 {
        delivered(&store, h, &format!("evt_{n}"), &set, "audit").await;
    }
    let claims: Vec<_> = (0..100)
        .map(|_| {
            let (store, set) = (store.clone(), set.clone());
            tokio::spawn(async move { claim(&store, &set, 1, Duration::from_secs(60)).await })
        })
        .collect();
    let mut leased = Vec::new();
    for claim in claims {
        leased.extend(claim.await.expect("no panic"));
    }
    // Rows that another claim holds are passed over, so some may be left for the next one.
    leased.extend(claim(&store, &set, 40, Duration::from_secs(60)).await);
    leased.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    leased.dedup();
    assert_eq!(leased.len(), 40);
    assert!(leased.iter().all(|(_, attempt, _)| *attempt == 1), "each begun once");
    jobs_counted(&store).await;
}

async fn a_held_receipt_is_released_once_even_by_two_at_once(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    store.sync_subscriptions(set.clone()).await.expect("noted");
    let mut event = h.event("evt_1", "not JSON");
    event.hold = Some(HoldReason::Unparsable);
    let verdict = deliver_one(&store, h.batch(vec![event], b"not JSON", &set)).await;
    let key = JobKey { receipt: verdict.receipt_id, subscription: "~intake".to_owned() };
    let (one, two) = tokio::join!(replay(&store, &set, &key, None), replay(&store, &set, &key, None));
    let released = ReplayVerdict::Released(vec!["billing".to_owned(), "audit".to_owned()]);
    let refused = ReplayVerdict::Refused("already_released");
    assert!((one == released && two == refused) || (one == refused && two == released), "{one:?}, {two:?}");
    let stored = job(&store, &key).await;
    assert_eq!((stored.state, stored.reason, stored.attempt), (JobState::Completed, Some(JobReason::Released), 0));
    assert_eq!(waiting(&store).await.len(), 1);
    assert_eq!(claim(&store, &set, 5, Duration::from_secs(60)).await[0].2, Trigger::Release);
    assert_eq!(jobs_counted(&store).await.len(), 3);
}

async fn what_completes_on_its_confirm_completes(store: Arc<dyn Store>, h: &Harness) {
    let confirm = Subscription { completes_on: CompletesOn::Confirm, ..subscription("archive", Target::Amqp) };
    let set = set(vec![confirm]);
    let key = delivered(&store, h, "evt_1", &set, "archive").await;
    let hand_over = waiting(&store).await[0].hand_over.clone();
    publish_all(&store, &set).await;
    assert_eq!(job(&store, &key).await.state, JobState::Completed);
    // No queue took it after all.
    store.return_to_outbox(&[hand_over], Duration::ZERO).await.expect("returned");
    assert_eq!(job(&store, &key).await.state, JobState::Queued);
    assert_eq!(publish_all(&store, &set).await, 1);
    assert_eq!(history(&store, &key).await, [(1, Trigger::First, Some(OutcomeKind::Completed))]);
    jobs_counted(&store).await;
}

async fn lost_messages_go_out_again_only_where_consumers_report(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let hour = Duration::from_secs(3600);
    let rule = LostRule { older_than: hour, begun_older_than: hour * 24, times: 2, limit: 10 };
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    publish_all(&store, &set).await;
    h.backend.pass(hour * 2).await;
    assert_eq!(store.republish_lost("billing", rule).await.expect("looked"), 0, "it never reported anything");
    let other = delivered(&store, h, "evt_2", &set, "billing").await;
    publish_all(&store, &set).await;
    say(&store, &set, &other, 1, OutcomeKind::Completed).await;
    for _ in 0..2 {
        assert_eq!(store.republish_lost("billing", rule).await.expect("looked"), 1);
        assert_eq!(waiting(&store).await[0].hand_over.attempt, 1, "with the same number");
        publish_all(&store, &set).await;
        h.backend.pass(hour * 2).await;
    }
    store.republish_lost("billing", rule).await.expect("looked");
    let stored = job(&store, &key).await;
    assert_eq!((stored.state, stored.reason), (JobState::Review, Some(JobReason::NoOutcome)));

    let begun = delivered(&store, h, "evt_3", &set, "billing").await;
    publish_all(&store, &set).await;
    say(&store, &set, &begun, 1, OutcomeKind::Started).await;
    for (hours, found) in [(23, 0), (2, 1), (25, 0)] {
        h.backend.pass(hour * hours).await;
        assert_eq!(store.republish_lost("billing", rule).await.expect("looked"), found, "{hours} h later");
    }
    let stored = job(&store, &begun).await;
    assert_eq!((stored.state, stored.attempt), (JobState::Queued, 1));
    jobs_counted(&store).await;
}

async fn returned_and_given_up_hand_overs(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    let row = waiting(&store).await.remove(0);
    let twice = [row.hand_over.clone(), row.hand_over.clone()];
    store.return_to_outbox(&twice, Duration::ZERO).await.expect("returned");
    let rows = waiting(&store).await;
    assert_eq!((rows.len(), rows[0].id == row.id), (1, false));
    let gone = store.give_up_outbox(&[rows[0].id], JobReason::Unroutable, "no queue").await.expect("given up");
    assert_eq!((gone, store.outbox_status().await.expect("counted").depth), (1, 0));
    let stored = job(&store, &key).await;
    assert_eq!((stored.state, stored.note.as_deref()), (JobState::Review, Some("no queue")));
    assert_eq!(replay(&store, &set, &key, None).await, ReplayVerdict::Armed);
    assert_eq!(waiting(&store).await[0].hand_over.attempt, 2);
    jobs_counted(&store).await;
}

async fn dismissed_jobs_are_listed_and_counted(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    assert_eq!(store.dismiss(&key, "ada", "why").await.expect_err("refused").code(), "not_in_review");
    say(&store, &set, &key, 1, OutcomeKind::Rejected).await;
    store.dismiss(&key, "ada", "not ours").await.expect("dismissed");
    assert_eq!(say(&store, &set, &key, 1, OutcomeKind::Completed).await, OutcomeVerdict::Recorded);
    let dismissed = JobQuery { state: Some(JobState::Dismissed), limit: 10, ..JobQuery::default() };
    assert_eq!(store.jobs(dismissed).await.expect("listed")[0].key, key);
    assert_eq!(h.count("SELECT count(*) FROM audit WHERE action = 'dismiss'").await, 1);
    let nobody = JobKey { subscription: "nobody".to_owned(), ..key };
    assert_eq!(store.dismiss(&nobody, "ada", "why").await.expect_err("refused").code(), "not_found");
    jobs_counted(&store).await;
}
