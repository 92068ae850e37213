//! The provider sends an event again whose job is somewhere on its way, at its end, or before a person: W-083, and what C9
//! makes of it.

use std::sync::Arc;
use std::time::Duration;

use makbuz::model::attempt::Trigger;
use makbuz::model::job::{JobKey, JobReason, JobState};
use makbuz::model::outcome::OutcomeKind;
use makbuz::model::retry::{RetryLimits, RetryPolicy};
use makbuz::model::subscription::{Subscription, SubscriptionSet, Target};
use makbuz::store::{EventVerdict, JobView, LostRule, OutcomeVerdict, Store, Verdict};

use super::{claim, delivered, job, jobs_counted, publish_all, say, scheduler, waiting};
use crate::store::harness::{Harness, both, deliver_one, set, subscription};

on_every_backend! {
    a_resend_moves_nothing_of_a_job_of_a_queue,
    a_resend_moves_nothing_of_a_job_that_is_claimed,
    a_resend_moves_nothing_of_a_superseded_job,
    a_resend_arms_again_what_ran_out_was_unroutable_or_was_never_heard_of,
    a_resend_only_counts_where_the_subscription_says_so,
}

async fn view(store: &Arc<dyn Store>, key: &JobKey) -> JobView {
    store.job(key).await.expect("read").expect("there")
}

async fn resend(store: &Arc<dyn Store>, h: &Harness, set: &Arc<SubscriptionSet>, event: &str) -> EventVerdict {
    h.backend.pass(Duration::from_secs(1)).await;
    let again = deliver_one(store, h.delivery(event, "{}", set)).await;
    assert_eq!(again.verdict, Verdict::Duplicate, "{event}");
    again
}

/// Sends the event again: the job and its history stay as they are, no message goes out, and the receipt counts it.
async fn moves_nothing(store: &Arc<dyn Store>, h: &Harness, set: &Arc<SubscriptionSet>, event: &str, key: &JobKey) {
    let (before, messages) = (view(store, key).await, waiting(store).await.len());
    let counted = store.receipt(key.receipt).await.expect("read").expect("there").receipt.duplicates;
    let again = resend(store, h, set, event).await;
    assert_eq!((again.receipt_id, again.rearmed), (key.receipt, 0), "{event}");
    assert_eq!(view(store, key).await, before, "{event}");
    assert_eq!(waiting(store).await.len(), messages, "{event}");
    let seen = store.receipt(key.receipt).await.expect("read").expect("there").receipt;
    assert_eq!((seen.duplicates, seen.last_delivered_at), (counted + 1, Some(h.now())), "{event}");
}

async fn a_resend_moves_nothing_of_a_job_of_a_queue(store: Arc<dyn Store>, h: &Harness) {
    use OutcomeKind::{Completed, Failed, Rejected, Started};
    let set = both();
    let ways: [(&str, &[OutcomeKind], JobState); 7] = [
        ("queued", &[], JobState::Queued),
        ("started", &[Started], JobState::Running),
        ("failed", &[Failed], JobState::Retrying),
        ("completed", &[Completed], JobState::Completed),
        ("late", &[Failed, Completed], JobState::Completed),
        ("rejected", &[Rejected], JobState::Review),
        ("dismissed", &[Rejected], JobState::Dismissed),
    ];
    for (event, said, state) in ways {
        let key = delivered(&store, h, event, &set, "billing").await;
        // While the first message has not gone out yet, a second one would be as wrong.
        moves_nothing(&store, h, &set, event, &key).await;
        publish_all(&store, &set).await;
        for kind in said {
            say(&store, &set, &key, 1, *kind).await;
        }
        if state == JobState::Dismissed {
            store.dismiss(&key, "ada", "not ours").await.expect("dismissed");
        }
        assert_eq!(job(&store, &key).await.state, state, "{event}");
        moves_nothing(&store, h, &set, event, &key).await;
    }
    h.backend.pass(Duration::from_secs(7)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").handed_out, 1, "the failed one's second try");
    let key = waiting(&store).await.remove(0).hand_over.key;
    moves_nothing(&store, h, &set, "failed", &key).await;
    jobs_counted(&store).await;
}

async fn a_resend_moves_nothing_of_a_job_that_is_claimed(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    let key = delivered(&store, h, "evt_1", &set, "audit").await;
    moves_nothing(&store, h, &set, "evt_1", &key).await;
    let lease = Duration::from_secs(60);
    assert_eq!(claim(&store, &set, 5, lease).await, [(key.clone(), 1, Trigger::First)]);
    moves_nothing(&store, h, &set, "evt_1", &key).await;
    assert!(claim(&store, &set, 5, lease).await.is_empty(), "still leased");
    h.backend.pass(lease).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").rescued, 1);
    moves_nothing(&store, h, &set, "evt_1", &key).await;
    assert!(claim(&store, &set, 5, lease).await.is_empty(), "not before its time");
    h.backend.pass(Duration::from_secs(7)).await;
    assert_eq!(claim(&store, &set, 5, lease).await, [(key.clone(), 2, Trigger::Rescue)]);
    assert_eq!(
        say(&store, &set, &key, 2, OutcomeKind::Completed).await,
        OutcomeVerdict::Applied(JobState::Completed),
        "the resends took nothing from whoever had it"
    );
    moves_nothing(&store, h, &set, "evt_1", &key).await;
    jobs_counted(&store).await;
}

async fn a_resend_moves_nothing_of_a_superseded_job(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    publish_all(&store, &set).await;
    h.backend.execute("UPDATE jobs SET state = 'superseded', finished_at = 7 WHERE state = 'queued'").await.unwrap();
    assert_eq!(job(&store, &key).await.state, JobState::Superseded);
    moves_nothing(&store, h, &set, "evt_1", &key).await;
}

/// One try and no more.
fn once(name: &str, target: Target) -> Subscription {
    let retry = RetryPolicy::schedule(Vec::new(), RetryLimits::default()).expect("one try");
    Subscription { retry, ..subscription(name, target) }
}

async fn a_resend_arms_again_what_ran_out_was_unroutable_or_was_never_heard_of(store: Arc<dyn Store>, h: &Harness) {
    let set = set(vec![once("billing", Target::Amqp), once("audit", Target::Pull)]);
    let exhausted = delivered(&store, h, "exhausted", &set, "billing").await;
    publish_all(&store, &set).await;
    say(&store, &set, &exhausted, 1, OutcomeKind::Failed).await;
    let unroutable = delivered(&store, h, "unroutable", &set, "billing").await;
    let row = waiting(&store).await.remove(0);
    store.give_up_outbox(&[row.id], JobReason::Unroutable, "no queue").await.expect("given up");
    let lost = delivered(&store, h, "lost", &set, "billing").await;
    publish_all(&store, &set).await;
    let hour = Duration::from_secs(3600);
    h.backend.pass(hour * 2).await;
    let rule = LostRule { older_than: hour, begun_older_than: hour, times: 0, limit: 10 };
    assert_eq!(store.republish_lost("billing", rule).await.expect("looked"), 1);

    let ways = [
        ("exhausted", &exhausted, JobReason::Exhausted),
        ("unroutable", &unroutable, JobReason::Unroutable),
        ("lost", &lost, JobReason::NoOutcome),
    ];
    for (event, key, reason) in ways {
        let stored = job(&store, key).await;
        assert_eq!((stored.state, stored.reason), (JobState::Review, Some(reason)));
        assert_eq!(resend(&store, h, &set, event).await.rearmed, 1, "{event}");
        let stored = job(&store, key).await;
        assert_eq!((stored.state, stored.attempt, stored.series), (JobState::Queued, 2, 2), "{event}");
        assert_eq!((stored.reason, stored.series_attempts, stored.rearms), (None, 1, 1), "{event}");
        let messages = waiting(&store).await;
        let again: Vec<_> = messages.iter().filter(|row| row.hand_over.key == *key).collect();
        assert_eq!((again.len(), again[0].hand_over.trigger), (1, Trigger::Redelivery), "{event}");
        // It is under way: the next resend is a duplicate and nothing else.
        moves_nothing(&store, h, &set, event, key).await;
    }
    let audit = JobKey { subscription: "audit".to_owned(), ..exhausted };
    assert!(claim(&store, &set, 5, hour).await.contains(&(audit.clone(), 1, Trigger::First)));
    say(&store, &set, &audit, 1, OutcomeKind::Failed).await;
    assert_eq!(resend(&store, h, &set, "exhausted").await.rearmed, 1);
    assert_eq!(claim(&store, &set, 5, hour).await, [(audit, 2, Trigger::Redelivery)]);
    jobs_counted(&store).await;
}

async fn a_resend_only_counts_where_the_subscription_says_so(store: Arc<dyn Store>, h: &Harness) {
    let set = set(vec![Subscription { rearm: false, ..once("billing", Target::Amqp) }]);
    let key = delivered(&store, h, "evt_1", &set, "billing").await;
    publish_all(&store, &set).await;
    say(&store, &set, &key, 1, OutcomeKind::Failed).await;
    assert_eq!(job(&store, &key).await.reason, Some(JobReason::Exhausted));
    moves_nothing(&store, h, &set, "evt_1", &key).await;
    jobs_counted(&store).await;
}
