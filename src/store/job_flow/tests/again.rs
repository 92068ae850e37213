//! Jobs that are run again, or let go: resends, replays, releases, and what may not be.

use super::*;
use crate::model::filter::Filter;
use crate::model::job::{INTAKE, JobReason};
use crate::model::receipt::HoldReason;
use crate::store::ReplayVerdict;
use crate::store::tx::SubscriptionState;

#[tokio::test]
async fn a_resend_arms_an_exhausted_job_again_at_most_three_times_a_day() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.exhaust(&job).await;
    for n in 1..=3 {
        assert!(world.resend(&job).await, "resend {n}");
        assert!(!world.resend(&job).await, "already under way: only counted");
        let stored = world.memory.job(&job).clone();
        assert_eq!(
            (stored.state, stored.series, stored.series_attempts, stored.rearms),
            (JobState::Queued, n + 1, 1, n)
        );
        assert_eq!(world.memory.waiting(&job)[0].trigger, Trigger::Redelivery);
        // Seven tries take more than seven hours, and this is about one day: the series is cut short.
        world.memory.jobs.get_mut(&job).expect("there").series_attempts = 7;
        world.confirm_all().await;
        let verdict = world.report(&job, stored.attempt, OutcomeKind::Failed).await;
        assert_eq!(verdict, OutcomeVerdict::Applied(JobState::Review));
    }
    assert!(!world.resend(&job).await, "the fourth within 24 h only counts");
    world.advance(HOUR * 25);
    assert!(world.resend(&job).await, "a day later it may again");
}

#[tokio::test]
async fn a_resend_never_arms_what_a_person_a_guard_or_a_consumer_put_there() {
    for reason in JobReason::ALL {
        let mut world = amqp();
        let receipt = world.receipt();
        let mut job = world.first_job(receipt, "billing");
        job.state = JobState::Review;
        job.reason = Some(reason);
        let of = job.key.clone();
        world.add(job, None).await;
        let expected = matches!(reason, JobReason::Exhausted | JobReason::Unroutable | JobReason::NoOutcome);
        assert_eq!(world.resend(&of).await, expected, "{reason:?}");
    }
}

#[tokio::test]
async fn a_resend_never_arms_while_paused_retired_switched_off_or_completed() {
    for held in [SubscriptionState::Paused, SubscriptionState::Retired] {
        let mut world = amqp();
        let job = world.delivered("billing").await;
        world.exhaust(&job).await;
        world.memory.held_back = vec![("billing".into(), held)];
        assert!(!world.resend(&job).await, "{held:?}");
        world.memory.held_back.clear();
        assert!(world.resend(&job).await);
    }
    let mut off = World::new(vec![Subscription { rearm: false, ..subscription("billing", Target::Amqp) }]);
    let job = off.delivered("billing").await;
    off.exhaust(&job).await;
    assert!(!off.resend(&job).await, "rearm = off");

    let mut done = amqp();
    let job = done.delivered("billing").await;
    done.report(&job, 1, OutcomeKind::Completed).await;
    assert!(!done.resend(&job).await, "a resend of a completed event does nothing");
    assert_eq!(done.memory.job(&job).state, JobState::Completed);
}

#[tokio::test]
async fn w_146_a_replay_starts_a_new_series_and_keeps_the_history() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.exhaust(&job).await;
    assert_eq!(world.arm(std::slice::from_ref(&job), Trigger::Replay, None).await, [ReplayVerdict::Armed]);
    let stored = world.memory.job(&job).clone();
    assert_eq!((stored.attempt, stored.series, stored.series_attempts), (8, 2, 1));
    assert_eq!((stored.state, stored.reason, stored.lane), (JobState::Queued, None, Lane::Fresh));
    world.confirm_all().await;
    assert_eq!(
        world.report(&job, 8, OutcomeKind::Failed).await,
        OutcomeVerdict::Applied(JobState::Retrying),
        "one failure more does not end it at once"
    );
    assert_eq!(world.memory.attempts(&job).len(), 8);
    assert_eq!(world.memory.audits[0].0, "ada");
}

#[tokio::test]
async fn a_replay_under_the_rules_of_today_is_refused_with_its_code() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let only = std::slice::from_ref(&job);
    let refused = |code| vec![ReplayVerdict::Refused(code)];
    assert_eq!(world.arm(only, Trigger::Replay, None).await, refused("why_missing"), "it is with its queue");
    world.exhaust(&job).await;
    let before = world.memory.job(&job).clone();

    world.memory.held_back = vec![("billing".into(), SubscriptionState::Retired)];
    assert_eq!(world.arm(only, Trigger::Replay, None).await, refused("subscription_retired"));
    world.memory.held_back.clear();
    let configured = std::mem::replace(&mut world.subscriptions, SubscriptionSet::new(Vec::new()));
    assert_eq!(world.arm(only, Trigger::Replay, None).await, refused("subscription_retired"));
    let filter = Filter { sources: vec!["us".into()], ..Filter::default() };
    world.subscriptions = SubscriptionSet::new(vec![Subscription { filter, ..subscription("billing", Target::Amqp) }]);
    assert_eq!(world.arm(only, Trigger::Replay, None).await, refused("filter_no_longer_takes"));
    world.subscriptions = configured;
    world.memory.no_body.insert(job.receipt);
    assert_eq!(world.arm(only, Trigger::Redrive, None).await, refused("body_gone"));
    world.memory.no_body.clear();
    world.memory.receipts.get_mut(&job.receipt).expect("there").origin = Origin::Imported;
    assert_eq!(world.arm(only, Trigger::Replay, None).await, refused("imported"));
    world.memory.receipts.get_mut(&job.receipt).expect("there").origin = Origin::Delivery;

    assert_eq!(*world.memory.job(&job), before, "a refusal changes nothing");
    assert!(world.memory.audits.is_empty());
    let nobody = key(world.receipt(), "billing");
    assert_eq!(world.arm(&[nobody], Trigger::Replay, None).await, [ReplayVerdict::NoSuchJob]);
    assert_eq!(world.arm(only, Trigger::Replay, None).await, [ReplayVerdict::Armed]);
}

#[tokio::test]
async fn a_job_from_a_second_source_is_replayed_by_that_sources_authority() {
    let mut world = amqp();
    let filter = Filter { sources: vec!["us".into()], ..Filter::default() };
    world.subscriptions = SubscriptionSet::new(vec![Subscription { filter, ..subscription("billing", Target::Amqp) }]);
    let receipt = world.receipt();
    let mut job = world.first_job(receipt, "billing");
    (job.source, job.state, job.reason) = ("us".into(), JobState::Review, Some(JobReason::Divergent));
    let of = job.key.clone();
    world.add(job, None).await;
    assert_eq!(world.arm(&[of], Trigger::Replay, None).await, [ReplayVerdict::Armed]);
}

#[tokio::test]
async fn what_ended_is_run_again_only_with_a_reason() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let only = std::slice::from_ref(&job);
    world.report(&job, 1, OutcomeKind::Completed).await;
    assert_eq!(world.arm(only, Trigger::Replay, Some("  ")).await, [ReplayVerdict::Refused("why_missing")]);
    assert_eq!(world.arm(only, Trigger::Replay, Some("the ledger lost it")).await, [ReplayVerdict::Armed]);
    assert_eq!(world.memory.job(&job).attempt, 2);

    world.report(&job, 2, OutcomeKind::Rejected).await;
    dismiss(&mut world.memory, &job, "ada", "not ours").await.expect("dismissed");
    let stored = world.memory.job(&job).clone();
    assert_eq!((stored.state, stored.reason), (JobState::Dismissed, Some(JobReason::Dismissed)));
    assert_eq!(world.memory.audits.last().expect("one").3, "was rejected: not ours");
    let again = dismiss(&mut world.memory, &job, "ada", "again").await.expect_err("refused");
    assert_eq!(again.code(), "not_in_review");
    assert_eq!(dismiss(&mut world.memory, &job, "ada", "").await.expect_err("refused").code(), "why_missing");
    assert_eq!(world.report(&job, 2, OutcomeKind::Completed).await, OutcomeVerdict::Recorded);
    assert_eq!(world.memory.job(&job).state, JobState::Dismissed, "on dismissed it is only recorded");
    assert_eq!(world.arm(only, Trigger::Replay, Some("it was")).await, [ReplayVerdict::Armed]);
}

#[tokio::test]
async fn a_held_receipt_is_released_to_the_filters_of_today_and_once() {
    for hold in HoldReason::ALL {
        let none = Filter { sources: vec!["us".into()], ..Filter::default() };
        let mut world = World::new(vec![
            subscription("billing", Target::Amqp),
            subscription("badges", Target::Pull),
            Subscription { filter: none, ..subscription("other", Target::Amqp) },
        ]);
        let receipt = world.receipt();
        world.memory.receipts.get_mut(&receipt).expect("there").hold_reason = Some(hold);
        let mut job = world.first_job(receipt, INTAKE);
        (job.state, job.reason) = (JobState::Review, Some(JobReason::Held));
        let of = job.key.clone();
        world.add(job, None).await;

        let released = world.arm(&[of.clone(), of.clone()], Trigger::Release, None).await;
        let names = vec!["billing".to_owned(), "badges".to_owned()];
        assert_eq!(released, [ReplayVerdict::Released(names), ReplayVerdict::Refused("already_released")], "{hold:?}");
        let intake = world.memory.job(&of).clone();
        assert_eq!((intake.state, intake.reason, intake.attempt), (JobState::Completed, Some(JobReason::Released), 0));
        let billing = world.memory.job(&key(receipt, "billing")).clone();
        assert_eq!((billing.state, billing.attempt, billing.series), (JobState::Queued, 1, 1));
        assert_eq!(world.memory.waiting(&billing.key)[0].trigger, Trigger::Release);
        assert_eq!(world.memory.jobs.len(), 3);
        let claimed = world.claim(HOUR).await;
        assert_eq!((claimed[0].trigger, claimed[0].job.attempt), (Trigger::Release, 1));
        assert_eq!(world.memory.counts, world.memory.recounted());
        assert_eq!(world.arm(&[of], Trigger::Replay, Some("why")).await, [ReplayVerdict::Refused("already_released")]);
    }
}

#[tokio::test]
async fn a_replayed_pull_job_remembers_what_set_it_off_until_it_is_claimed() {
    let mut world = pull();
    let job = world.delivered("badges").await;
    world.claim(HOUR).await;
    world.report(&job, 1, OutcomeKind::Rejected).await;
    world.arm(std::slice::from_ref(&job), Trigger::Redrive, None).await;
    assert_eq!(world.memory.job(&job).state, JobState::Pending);
    assert_eq!(world.report(&job, 2, OutcomeKind::Completed).await, OutcomeVerdict::NoSuchAttempt, "not begun");
    let claimed = world.claim(HOUR).await;
    assert_eq!((claimed[0].job.attempt, claimed[0].trigger), (2, Trigger::Redrive));
    assert_eq!(world.memory.attempts(&job).len(), 2);
}

#[tokio::test]
async fn what_is_with_its_queue_or_was_begun_without_a_limit_is_replayed_with_a_reason_and_its_attempt_is_closed() {
    for begun in [false, true] {
        let mut world = amqp();
        let job = world.delivered("billing").await;
        world.confirm_all().await;
        if begun {
            world.report(&job, 1, OutcomeKind::Started).await;
        }
        let why = Some("its queue was purged");
        assert_eq!(world.arm(std::slice::from_ref(&job), Trigger::Replay, why).await, [ReplayVerdict::Armed]);
        let stored = world.memory.job(&job).clone();
        assert_eq!((stored.state, stored.attempt, stored.series), (JobState::Queued, 2, 2), "begun: {begun}");
        let first = &world.memory.attempts(&job)[0];
        assert_eq!((first.outcome, first.error_class.as_deref()), (Some(OutcomeKind::Failed), Some("replayed")));
        assert_eq!(first.error_text.as_deref(), why);
        assert_eq!(world.memory.waiting(&job).len(), 1);
        // The first run speaks up after all: kept, and the second goes on.
        assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Recorded);
        assert_eq!(world.memory.job(&job).state, JobState::Queued);
    }
}

#[tokio::test]
async fn a_lease_is_never_replayed_away() {
    let limited = Subscription { time_limit: Some(HOUR), ..subscription("billing", Target::Amqp) };
    let mut world = World::new(vec![limited]);
    let job = world.delivered("billing").await;
    world.report(&job, 1, OutcomeKind::Started).await;
    let verdict = world.arm(std::slice::from_ref(&job), Trigger::Replay, Some("now")).await;
    assert_eq!(verdict, [ReplayVerdict::Refused("not_replayable")]);
}

#[tokio::test]
async fn a_message_that_comes_back_after_its_consumer_began_goes_out_again_in_the_same_attempt() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    let row = world.memory.waiting(&job)[0].clone();
    world.confirm_all().await;
    world.report(&job, 1, OutcomeKind::Started).await;
    let returned = HandOver { key: job.clone(), attempt: 1, lane: row.lane, trigger: row.trigger };
    let World { memory, random, .. } = &mut world;
    return_to_outbox(memory, &[returned], Duration::from_secs(1), random).await.expect("returned");
    let stored = world.memory.job(&job).clone();
    assert_eq!((stored.state, stored.attempt), (JobState::Queued, 1));
    assert_eq!(world.memory.waiting(&job).len(), 1);
    assert_eq!(world.report(&job, 1, OutcomeKind::Completed).await, OutcomeVerdict::Applied(JobState::Completed));
}

#[tokio::test]
async fn a_job_that_was_begun_without_a_limit_counts_as_lost_after_a_day() {
    let mut world = amqp();
    let job = world.delivered("billing").await;
    world.confirm_all().await;
    world.report(&job, 1, OutcomeKind::Started).await;
    for (hours, found) in [(23, 0), (2, 1)] {
        world.advance(HOUR * hours);
        let World { memory, random, .. } = &mut world;
        assert_eq!(republish_lost(memory, "billing", RULE, random).await.expect("looked"), found);
    }
    assert_eq!(world.memory.job(&job).state, JobState::Queued);
    assert_eq!(world.memory.waiting(&job)[0].attempt, 1);
}
