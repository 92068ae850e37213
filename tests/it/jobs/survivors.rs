//! Who held the work is gone, or the program is: what was leased comes back with its attempt counted, and what waits for a
//! person still does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use makbuz::model::attempt::{NO_OUTCOME, Trigger};
use makbuz::model::job::{JobKey, JobReason, JobState};
use makbuz::model::outcome::OutcomeKind;
use makbuz::store::{JobQuery, OutboxQuery, OutcomeReport, OutcomeVerdict, Store};

use super::{claim, delivered, history, job, jobs_counted, report, scheduler};
use crate::store::harness::{Harness, billing, both, deliver_all};

on_every_backend! {
    what_a_dead_consumer_had_leased_is_given_out_again_and_the_lost_attempt_counts,
    what_a_dead_relay_held_is_the_next_ones_and_no_attempt,
    a_thousand_jobs_before_a_person_outlive_a_restart,
}

const LEASE: Duration = Duration::from_secs(60);

/// W-143: ten jobs are leased, and then nobody is there, nor is the program.
async fn what_a_dead_consumer_had_leased_is_given_out_again_and_the_lost_attempt_counts(
    store: Arc<dyn Store>,
    h: &Harness,
) {
    let set = both();
    for n in 0..10 {
        delivered(&store, h, &format!("evt_{n}"), &set, "audit").await;
    }
    let leased: BTreeSet<JobKey> = claim(&store, &set, 20, LEASE).await.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(leased.len(), 10);
    drop(store);
    let store = h.backend.restart().await;
    assert!(claim(&store, &set, 20, LEASE).await.is_empty(), "a restart ends no lease");
    h.backend.pass(LEASE - Duration::from_secs(2)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").rescued, 0, "nor does anything before its time");
    h.backend.pass(Duration::from_secs(2)).await;
    assert_eq!(scheduler(&store, &set).step().await.expect("stepped").rescued, 10);
    h.backend.pass(Duration::from_secs(7)).await;
    let again = claim(&store, &set, 20, LEASE).await;
    assert!(again.iter().all(|(_, attempt, trigger)| (*attempt, *trigger) == (2, Trigger::Rescue)), "{again:?}");
    assert_eq!(again.into_iter().map(|(key, ..)| key).collect::<BTreeSet<_>>(), leased);
    for key in &leased {
        let stored = job(&store, key).await;
        assert_eq!((stored.state, stored.series_attempts), (JobState::Running, 2), "the lost one counts");
        let view = store.job(key).await.expect("read").expect("there");
        assert_eq!(view.attempts[0].error_class.as_deref(), Some(NO_OUTCOME));
        let told = history(&store, key).await;
        assert_eq!(told[0], (1, Trigger::First, Some(OutcomeKind::Failed)));
    }
    jobs_counted(&store).await;
}

/// W-143: a relay died with rows in its hands. The broker may have them or not, so they go out again, as the same attempt.
async fn what_a_dead_relay_held_is_the_next_ones_and_no_attempt(store: Arc<dyn Store>, h: &Harness) {
    let set = billing();
    let mut keys = BTreeSet::new();
    for n in 0..10 {
        keys.insert(delivered(&store, h, &format!("evt_{n}"), &set, "billing").await);
    }
    let lease = Duration::from_secs(5);
    let rows = async |store: &Arc<dyn Store>, shards: Vec<u8>| {
        let query = OutboxQuery { shards, limit: 100, bytes_max: 1 << 20, ..OutboxQuery::default() };
        store.read_outbox(query).await.expect("read").messages
    };
    store.announce_relay("dead", lease).await.expect("announced");
    let shards = store.hold_shards("dead", 32, lease).await.expect("held");
    assert_eq!(rows(&store, shards).await.len(), 10);
    drop(store);
    let store = h.backend.restart().await;
    assert_eq!(store.announce_relay("next", lease).await.expect("announced"), 2);
    assert!(store.hold_shards("next", 32, lease).await.expect("asked").is_empty(), "not while the lease runs");
    h.backend.pass(lease + Duration::from_secs(1)).await;
    let shards = store.hold_shards("next", 32, lease).await.expect("held");
    let found = rows(&store, shards).await;
    assert!(found.iter().all(|row| row.hand_over.attempt == 1 && row.hand_over.trigger == Trigger::First));
    assert_eq!(found.into_iter().map(|row| row.hand_over.key).collect::<BTreeSet<_>>(), keys);
    for key in &keys {
        assert_eq!((job(&store, key).await.attempt, history(&store, key).await), (1, Vec::new()));
    }
}

/// W-149: what waits for a person is in no buffer of ours.
async fn a_thousand_jobs_before_a_person_outlive_a_restart(store: Arc<dyn Store>, h: &Harness) {
    let set = both();
    store.sync_subscriptions(set.clone()).await.expect("noted");
    for part in 0..10 {
        let events = (0..100).map(|n| h.event(&format!("evt_{part}_{n}"), "{}")).collect();
        deliver_all(&store, vec![h.batch(events, b"[]", &set)]).await.remove(0).expect("stored");
        let claimed = claim(&store, &set, 100, LEASE).await;
        let reports: Vec<OutcomeReport> =
            claimed.iter().map(|(key, attempt, _)| report(key, *attempt, OutcomeKind::Rejected)).collect();
        let verdicts = store.record_outcomes(reports, set.clone()).await.expect("recorded");
        assert_eq!(verdicts, vec![OutcomeVerdict::Applied(JobState::Review); 100]);
    }
    let query = JobQuery {
        subscription: Some("audit".to_owned()),
        state: Some(JobState::Review),
        limit: 2000,
        ..JobQuery::default()
    };
    let before = store.jobs(query.clone()).await.expect("listed");
    assert_eq!(before.len(), 1000);
    drop(store);
    let store = h.backend.restart().await;
    let after = store.jobs(query).await.expect("listed");
    assert_eq!(after, before);
    let [first, .., last] = after.as_slice() else { panic!("a thousand") };
    for kept in [first, last] {
        let view = store.job(&kept.key).await.expect("read").expect("there");
        assert_eq!((view.job.reason, view.attempts.len()), (Some(JobReason::Rejected), 1));
        assert_eq!(view.attempts[0].error_text.as_deref(), Some("why: in its own words "), "with its history");
    }
    let status = store.job_status().await.expect("counted");
    assert_eq!(status.counts.get(&("audit".to_owned(), JobState::Review)), Some(&1000));
}
