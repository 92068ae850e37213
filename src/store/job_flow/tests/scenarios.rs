//! The promises of processing, one story each.

use super::*;
use crate::model::job::{INTAKE, JobReason};
use crate::store::tx::SubscriptionState;
use crate::store::{ClaimRequest, ReplayVerdict, StoreError};

#[tokio::test]
async fn a_consumer_outage_of_an_hour_makes_no_attempt_and_no_review() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    for _ in 0..60 {
        world.advance(Duration::from_secs(60));
        assert_eq!((world.hand_out().await, world.rescue().await), (0, 0));
    }
    assert_eq!(world.memory.job(&job).state, JobState::Queued);
    assert_eq!(world.memory.job(&job).attempt, 1);
    assert!(world.memory.attempts(&job).is_empty());
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert_eq!(world.memory.attempts(&job).len(), 1);
}

#[tokio::test]
async fn a_target_that_fails_for_ever_gets_seven_tries_on_the_schedule_and_then_review() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    let mut moments = Vec::new();
    for n in 1..=7 {
        moments.push((world.memory.now - START) / 1_000_000);
        let verdict = world.report(&job, n, OutcomeKind::Failed).await;
        if n < 7 {
            assert_eq!(verdict, OutcomeVerdict::Applied(JobState::Retrying), "try {n}");
            assert_eq!(world.hand_out().await, 0, "not before it is due");
            world.next_try(&job).await;
        } else {
            assert_eq!(verdict, OutcomeVerdict::Applied(JobState::Review));
        }
    }
    for (at, base) in moments.iter().zip([0_i64, 5, 35, 155, 755, 4355, 25_955]) {
        assert!(*at >= base * 110 / 100 && *at <= base * 120 / 100, "try at {at} s, {base} s before jitter");
    }
    world.advance(HOUR * 100);
    assert_eq!(world.hand_out().await, 0, "no eighth");
    let stored = world.memory.job(&job);
    assert_eq!((stored.attempt, stored.series_attempts, stored.reason), (7, 7, Some(JobReason::Exhausted)));
    let history = world.memory.attempts(&job);
    assert_eq!(history.iter().map(|row| row.attempt).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(history[0].trigger, Trigger::First);
    assert!(history[1..].iter().all(|row| row.trigger == Trigger::Retry));
    assert!(history.iter().all(|row| row.outcome == Some(OutcomeKind::Failed) && row.ended_at.is_some()));
    // From the third retry on, old trouble takes the slow lane.
    let targets: Vec<&str> = history.iter().map(|row| row.target.as_str()).collect();
    assert_eq!(targets[..4], ["billing", "billing", "billing", "billing.slow"]);
}

#[tokio::test]
async fn a_fast_failure_that_overtakes_the_outbox_delete_loses_nothing() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let first = world.memory.waiting(&job)[0].clone();
    // Published, reported, and due again, all before the relay hears of its confirm.
    assert_eq!(world.report(&job, 1, OutcomeKind::Failed).await, OutcomeVerdict::Applied(JobState::Retrying));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.hand_out().await, 1);
    assert_eq!(world.memory.waiting(&job).len(), 2);
    world.confirm(&first).await;
    let left = world.memory.waiting(&job);
    assert_eq!((left.len(), left[0].attempt), (1, 2), "the old confirm takes its own row alone");
    assert_eq!(world.memory.counts, world.memory.recounted());
}

#[tokio::test]
async fn a_late_completed_completes_and_withdraws_the_retry_that_still_waits() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    world.report(&job, 1, OutcomeKind::Failed).await;
    world.advance(Duration::from_secs(10));
    world.hand_out().await;
    assert_eq!(world.memory.waiting(&job).len(), 1);
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert!(world.memory.waiting(&job).is_empty());
    assert!(world.memory.attempts(&job)[0].late);
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Already);
    assert_eq!(world.memory.counts, world.memory.recounted());
}

#[tokio::test]
async fn a_late_completed_ends_retrying_and_review_but_not_for_an_older_series() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.exhaust(&job).await;
    assert_eq!(world.report(&job, 3, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));

    let job = world.delivered("billing").await;
    world.exhaust(&job).await;
    world.arm(std::slice::from_ref(&job), Trigger::Replay, None).await;
    assert_eq!(world.report(&job, 7, OutcomeKind::Completed).await, OutcomeVerdict::Recorded);
    assert_eq!(world.memory.job(&job).state, JobState::Queued, "the replay goes on");
    assert_eq!(world.report(&job, 9, OutcomeKind::Completed).await, OutcomeVerdict::NoSuchAttempt);
    assert_eq!(world.report(&job, 0, OutcomeKind::Completed).await, OutcomeVerdict::NoSuchAttempt);
}

#[tokio::test]
async fn a_late_failure_is_only_recorded_and_an_attempt_takes_one_ending() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    world.report(&job, 1, OutcomeKind::Failed).await;
    let due = world.memory.job(&job).next_attempt_at;
    assert_eq!(world.report(&job, 1, OutcomeKind::Failed).await, OutcomeVerdict::Already);
    assert_eq!(world.report(&job, 1, OutcomeKind::Rejected).await, OutcomeVerdict::Recorded);
    assert_eq!(world.memory.job(&job).next_attempt_at, due);
    let row = world.memory.attempts(&job)[0];
    assert_eq!(
        (row.outcome, row.error_text.as_deref(), row.late),
        (Some(OutcomeKind::Failed), Some("late rejected"), true)
    );
    world.next_try(&job).await;
    assert_eq!(world.report(&job, 1, OutcomeKind::Rejected).await, OutcomeVerdict::Already);
    assert_eq!(world.memory.job(&job).state, JobState::Queued);
}

#[tokio::test]
async fn a_lease_that_runs_out_ends_the_attempt_and_the_next_follows_the_schedule_as_a_rescue() {
    let mut world = pull();
    let job = world.delivered("badges").await;
    let claimed = world.claim(Duration::from_secs(60)).await;
    assert_eq!((claimed.len(), claimed[0].job.attempt, claimed[0].trigger), (1, 1, Trigger::First));
    assert!(world.claim(Duration::from_secs(60)).await.is_empty(), "one lease at a time");
    world.advance(Duration::from_secs(50));
    extend_lease(&mut world.memory, &job, 1, Duration::from_secs(60)).await.expect("extended");
    world.advance(Duration::from_secs(50));
    assert_eq!(world.rescue().await, 0);
    world.advance(Duration::from_secs(20));
    assert_eq!(world.rescue().await, 1);
    let stored = world.memory.job(&job).clone();
    assert_eq!((stored.state, stored.series_attempts), (JobState::Retrying, 1));
    let refused = extend_lease(&mut world.memory, &job, 1, HOUR).await.expect_err("refused");
    assert_eq!(refused.code(), "not_running");
    assert!(world.claim(HOUR).await.is_empty(), "not before it is due");
    world.advance(Duration::from_secs(6));
    let claimed = world.claim(HOUR).await;
    assert_eq!((claimed[0].job.attempt, claimed[0].trigger), (2, Trigger::Rescue));
    assert_eq!(world.memory.attempts(&job)[0].error_class.as_deref(), Some("no_outcome"));
    // The first worker comes back after all.
    assert_eq!(world.report(&job, 1, OutcomeKind::Failed).await, OutcomeVerdict::Recorded);
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
    assert_eq!(world.report(&job, 2, OutcomeKind::Completed).await, OutcomeVerdict::Recorded, "completed once");
}

#[tokio::test]
async fn started_begins_the_time_limit_of_an_amqp_job_where_there_is_one() {
    let limited = Subscription { time_limit: Some(HOUR), ..subscription("billing", Target::Amqp) };
    let mut world = World::new(vec![limited, subscription("free", Target::Amqp)]);
    let job = world.delivered("billing").await;
    let free = key(job.receipt, "free");
    for of in [&job, &free] {
        assert_eq!(world.report(of, 1, OutcomeKind::Started).await, OutcomeVerdict::Applied(JobState::Running));
        assert_eq!(world.report(of, 1, OutcomeKind::Started).await, OutcomeVerdict::Already);
    }
    assert_eq!(world.memory.job(&job).leased_until, Some(START + 3_600_000_000));
    assert_eq!(world.memory.job(&free).leased_until, None);
    let refused = extend_lease(&mut world.memory, &free, 1, HOUR).await.expect_err("refused");
    assert_eq!(refused.code(), "no_lease");
    world.advance(HOUR * 2);
    assert_eq!(world.rescue().await, 1);
    assert_eq!(world.memory.job(&job).state, JobState::Retrying);
    assert_eq!(world.memory.job(&free).state, JobState::Running);
}

#[tokio::test]
async fn a_lost_message_is_published_again_twice_with_its_number_and_then_waits_for_a_person() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    world.advance(HOUR * 2);
    let look = |world: &mut World| {
        let World { memory, random, .. } = world;
        let found = republish_lost(memory, "billing", RULE, random);
        futures_util::FutureExt::now_or_never(found).expect("a store of maps never waits").expect("looked")
    };
    assert_eq!(look(&mut world), 0, "a subscription that never reported anything loses nothing");
    world.memory.reported.insert("billing".into());
    for n in 1..=2 {
        assert_eq!(look(&mut world), 1);
        assert_eq!(look(&mut world), 0, "it is in the outbox now");
        assert_eq!(world.memory.waiting(&job)[0].attempt, 1, "round {n}");
        world.confirm_all().await;
        assert_eq!(look(&mut world), 0, "an hour has to go by again");
        world.advance(HOUR * 2);
    }
    assert_eq!(look(&mut world), 1);
    let stored = world.memory.job(&job).clone();
    assert_eq!((stored.state, stored.reason, stored.attempt), (JobState::Review, Some(JobReason::NoOutcome), 1));
    let history = world.memory.attempts(&job);
    assert_eq!(
        (history.len(), history[0].trigger, history[0].error_class.as_deref()),
        (1, Trigger::First, Some("no_outcome"))
    );
    assert_eq!(world.memory.counts, world.memory.recounted());
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
}

#[tokio::test]
async fn a_hand_over_that_no_queue_took_is_in_the_outbox_again_once_and_a_job_that_moved_on_is_left_alone() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let row = world.memory.waiting(&job)[0].clone();
    let back = [hand_over(&row), hand_over(&row)];
    return_to_outbox(&mut world.memory, &back, HOUR, &world.random).await.expect("returned");
    let waiting = world.memory.waiting(&job);
    assert_eq!((waiting.len(), waiting[0].attempt, waiting[0].due_in), (1, 1, 3_600_000_000));
    assert_ne!(waiting[0].id, row.id);
    assert_eq!(world.memory.counts, world.memory.recounted());
    world.report(&job, 1, OutcomeKind::Completed).await;
    return_to_outbox(&mut world.memory, &back, HOUR, &world.random).await.expect("returned");
    assert!(world.memory.waiting(&job).is_empty(), "it was reported as completed: nothing goes out any more");
}

#[tokio::test]
async fn completing_on_the_confirm_is_taken_back_when_no_queue_took_the_message() {
    let confirm = Subscription { completes_on: CompletesOn::Confirm, ..subscription("billing", Target::Amqp) };
    let mut world = World::new(vec![confirm]);
    let job = world.delivered("billing").await;
    let row = world.memory.waiting(&job)[0].clone();
    world.confirm(&row).await;
    assert_eq!(world.memory.job(&job).state, JobState::Completed);
    assert_eq!(world.memory.attempts(&job)[0].outcome, Some(OutcomeKind::Completed));
    // The alternate exchange had confirmed it; C4: it is in the outbox again before the message is acked.
    return_to_outbox(&mut world.memory, &[hand_over(&row)], HOUR, &world.random).await.expect("returned");
    assert_eq!(world.memory.job(&job).state, JobState::Queued);
    let row = world.memory.waiting(&job)[0].clone();
    world.confirm(&row).await;
    assert_eq!(world.memory.job(&job).state, JobState::Completed);
    assert_eq!(world.memory.attempts(&job).len(), 1);
}

// The confirm is the alternate exchange's, and the relay hears of it last: what came back is in the outbox already.
#[tokio::test]
async fn a_confirm_that_comes_after_the_return_completes_nothing() {
    let confirm = Subscription { completes_on: CompletesOn::Confirm, ..subscription("billing", Target::Amqp) };
    let mut world = World::new(vec![confirm]);
    let job = world.delivered("billing").await;
    let row = world.memory.waiting(&job)[0].clone();
    return_to_outbox(&mut world.memory, &[hand_over(&row)], HOUR, &world.random).await.expect("returned");
    world.confirm(&row).await;
    assert_eq!(world.memory.job(&job).state, JobState::Queued);
    let waiting = world.memory.waiting(&job)[0].clone();
    give_up_outbox(&mut world.memory, &[waiting.id], JobReason::Unroutable, "no queue").await.expect("given up");
    let stored = world.memory.job(&job);
    assert_eq!((stored.state, stored.reason), (JobState::Review, Some(JobReason::Unroutable)));
}

#[tokio::test]
async fn a_hand_over_that_is_given_up_waits_in_review_and_runs_when_routing_is_back() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let row = world.memory.waiting(&job)[0].clone();
    let gone = give_up_outbox(&mut world.memory, &[row.id], JobReason::Unroutable, "no queue").await.expect("given up");
    assert_eq!(gone, 1);
    let stored = world.memory.job(&job).clone();
    assert_eq!(
        (stored.state, stored.reason, stored.note.as_deref()),
        (JobState::Review, Some(JobReason::Unroutable), Some("no queue"))
    );
    assert_eq!(world.memory.counts, world.memory.recounted());
    assert_eq!(give_up_outbox(&mut world.memory, &[row.id], JobReason::Unroutable, "").await.expect("nothing"), 0);
    assert_eq!(world.arm(std::slice::from_ref(&job), Trigger::Redrive, None).await, [ReplayVerdict::Armed]);
    assert_eq!(world.memory.waiting(&job)[0].attempt, 2);
}

#[tokio::test]
async fn a_claim_is_refused_or_empty_where_it_may_not_be_served() {
    let mut world = World::new(vec![subscription("badges", Target::Pull), subscription("billing", Target::Amqp)]);
    let job = world.delivered("badges").await;
    let claim = |name: &str| ClaimRequest { subscription: name.into(), max: 1, lease: HOUR, consumer: "w".into() };
    for (name, code) in [("nobody", "subscription_unknown"), ("billing", "subscription_not_pull")] {
        let refused = claim_jobs(&mut world.memory, &claim(name), &world.subscriptions, &world.random).await;
        assert_eq!(refused.expect_err("refused").code(), code);
    }
    world.memory.held_back = vec![("badges".into(), SubscriptionState::Paused)];
    assert!(world.claim(HOUR).await.is_empty());
    world.memory.held_back.clear();
    world.memory.no_body.insert(job.receipt);
    assert!(world.claim(HOUR).await.is_empty());
    let stored = world.memory.job(&job);
    assert_eq!((stored.state, stored.reason, stored.attempt), (JobState::Review, Some(JobReason::BodyGone), 0));
}

#[tokio::test]
async fn paused_and_retired_subscriptions_keep_their_due_jobs() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    world.report(&job, 1, OutcomeKind::Failed).await;
    world.advance(HOUR);
    for held in [SubscriptionState::Paused, SubscriptionState::Retired] {
        world.memory.held_back = vec![("billing".into(), held)];
        assert_eq!(world.hand_out().await, 0);
        assert_eq!(world.memory.job(&job).state, JobState::Retrying);
    }
    world.memory.held_back.clear();
    assert_eq!(world.hand_out().await, 1);
}

#[tokio::test]
async fn a_failure_of_a_subscription_that_left_the_configuration_waits_for_a_person() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.subscriptions = SubscriptionSet::new(Vec::new());
    assert_eq!(world.report(&job, 1, OutcomeKind::Failed).await, OutcomeVerdict::Applied(JobState::Review));
    assert!(world.memory.job(&job).note.as_deref().expect("says why").contains("no longer configured"));
}

#[tokio::test]
async fn one_batch_may_hold_many_reports_of_one_job() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let report = |attempt, kind| OutcomeReport {
        key: job.clone(),
        attempt,
        kind,
        reason: Some("r".into()),
        message: None,
        retry_after: None,
        consumer: "worker".into(),
    };
    let stranger = OutcomeReport { key: key(world.receipt(), "billing"), ..report(1, OutcomeKind::Completed) };
    let intake = OutcomeReport { key: key(job.receipt, INTAKE), ..report(1, OutcomeKind::Completed) };
    let verdicts = world
        .reports(&[
            report(1, OutcomeKind::Started),
            stranger,
            report(1, OutcomeKind::Failed),
            intake,
            report(1, OutcomeKind::Failed),
            report(2, OutcomeKind::Completed),
            report(1, OutcomeKind::Completed),
        ])
        .await;
    assert_eq!(
        verdicts,
        [
            OutcomeVerdict::Applied(JobState::Running),
            OutcomeVerdict::NoSuchJob,
            OutcomeVerdict::Applied(JobState::Retrying),
            OutcomeVerdict::NoSuchJob,
            OutcomeVerdict::Already,
            OutcomeVerdict::NoSuchAttempt,
            OutcomeVerdict::Applied(JobState::Completed),
        ]
    );
    assert!(world.memory.reported.contains("billing"));
    assert_eq!(world.memory.counts, world.memory.recounted());
}

#[tokio::test]
async fn dismissing_nothing_is_not_found() {
    let mut world = amqp();
    let nobody = key(world.receipt(), "billing");
    let refused = dismiss(&mut world.memory, &nobody, "ada", "why").await.expect_err("refused");
    assert!(matches!(refused, StoreError::NotFound));
}
