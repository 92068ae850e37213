//! The signed time is looked at once, when a request arrives, on both sides of the clock; the memory of what was accepted
//! has no end.

use std::sync::Arc;
use std::time::Duration;

use makbuz::clock::{Clock, MockClock};
use makbuz::model::attempt::Trigger;
use makbuz::model::job::{JobKey, JobState};
use makbuz::model::outcome::OutcomeKind;
use makbuz::model::subscription::{SubscriptionSet, Target};
use makbuz::random::SystemRandom;
use makbuz::store::sqlite::{SqliteConfig, SqliteStore};
use makbuz::store::{
    ClaimRequest, ClaimedJob, Outbox, OutboxQuery, OutcomeReport, OutcomeVerdict, ReplayRequest, ReplayVerdict, SHARDS,
    Store, Upkeep,
};

use super::{Door, accepted, event, pass, view};
use crate::relay::stage::{LIMIT, Stage, quick};
use crate::store::harness::{Harness, both, set, subscription};
use crate::support::rabbit::Rabbit;

/// As long as the processing stage was stopped.
const AWAY: Duration = Duration::from_secs(20 * 60);

on_every_backend! {
    a_request_from_the_far_end_of_the_window_is_a_duplicate_until_it_is_stale,
    what_was_accepted_is_worked_on_whenever_that_is,
}

/// W-073: a request signed 299 s ahead verifies for 599 s; all that time it is the event that is known, and no other.
async fn a_request_from_the_far_end_of_the_window_is_a_duplicate_until_it_is_stale(store: Arc<dyn Store>, h: &Harness) {
    let door = Door::open(store.clone(), h.now(), both()).await;
    let (body, signed_at) = (event("evt_1", door.seconds()), door.seconds() + 299);
    let first = door.post(&body, signed_at).await;
    let receipt = accepted(&first);
    for (span, duplicates) in [(590, 1), (9, 2)] {
        pass(&door, h, Duration::from_secs(span)).await;
        let again = door.post(&body, signed_at).await;
        assert_eq!((accepted(&again), &again.body), (receipt, &first.body), "answered like the first");
        assert_eq!(view(&store, receipt).await.receipt.duplicates, duplicates);
    }
    pass(&door, h, Duration::from_secs(2)).await;
    assert_eq!(door.post(&body, signed_at).await.status, 401, "301 s old");
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 1);
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 2);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
    assert_eq!(view(&store, receipt).await.receipt.duplicates, 2, "what is stale counts for nothing");
    door.close().await;
}

/// W-074: the request was nearly stale when it came. Twenty minutes later nobody would accept it, and everybody works on it.
async fn what_was_accepted_is_worked_on_whenever_that_is(store: Arc<dyn Store>, h: &Harness) {
    let known = both();
    store.sync_subscriptions(known.clone()).await.unwrap();
    let door = Door::open(store.clone(), h.now(), known.clone()).await;
    let (body, signed_at) = (event("evt_1", door.seconds()), door.seconds() - 299);
    let receipt = accepted(&door.post(&body, signed_at).await);
    pass(&door, h, AWAY).await;
    assert_eq!(door.post(&body, signed_at).await.status, 401, "no longer at the door");

    let query =
        OutboxQuery { shards: (0..SHARDS).collect(), limit: 9, bytes_max: usize::MAX, ..OutboxQuery::default() };
    let waiting = store.read_outbox(query).await.unwrap().messages;
    assert_eq!((waiting.len(), waiting[0].hand_over.attempt), (1, 1));
    let claimed = claim(&store, &known).await;
    assert_eq!((claimed.job.attempt, claimed.trigger, &claimed.body[..]), (1, Trigger::First, &body[..]));
    let key = JobKey { receipt, subscription: "audit".to_owned() };
    assert_eq!(reject(&store, &known, &key, 1).await, OutcomeVerdict::Applied(JobState::Review));
    pass(&door, h, AWAY).await;
    let request = ReplayRequest { trigger: Trigger::Replay, actor: "ada".to_owned(), why: None };
    let replayed = store.replay(std::slice::from_ref(&key), request, known.clone()).await.unwrap();
    assert_eq!(replayed, [ReplayVerdict::Armed]);
    pass(&door, h, AWAY).await;
    let again = claim(&store, &known).await;
    assert_eq!((again.job.attempt, again.trigger, &again.body[..]), (2, Trigger::Replay, &body[..]));
    door.close().await;
}

async fn claim(store: &Arc<dyn Store>, known: &Arc<SubscriptionSet>) -> ClaimedJob {
    let lease = Duration::from_secs(60);
    let request = ClaimRequest { subscription: "audit".to_owned(), max: 5, lease, consumer: "worker".to_owned() };
    let mut claimed = store.claim_jobs(request, known.clone()).await.unwrap();
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}

async fn reject(store: &Arc<dyn Store>, known: &Arc<SubscriptionSet>, key: &JobKey, attempt: i32) -> OutcomeVerdict {
    let report = OutcomeReport {
        key: key.clone(),
        attempt,
        kind: OutcomeKind::Rejected,
        reason: None,
        message: None,
        retry_after: None,
        consumer: "worker".to_owned(),
    };
    store.record_outcomes(vec![report], known.clone()).await.unwrap()[0]
}

/// W-074: a relay that was away for as long publishes what came before it went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_was_away_for_twenty_minutes_publishes_what_came_before() {
    let rabbit = Rabbit::new().await;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(MockClock::at(1_767_225_600_000_000));
    let config = SqliteConfig::at(folder.path().join("makbuz.db"));
    let opened = SqliteStore::open(config, clock.clone(), Arc::new(SystemRandom::new())).await;
    let store = Arc::new(opened.expect("the store opens"));
    let known = set(vec![subscription("billing", Target::Amqp)]);
    store.sync_subscriptions(known.clone()).await.unwrap();
    let door = Door::open(store.clone(), clock.now(), known.clone()).await;
    let body = event("evt_1", door.seconds());
    let receipt = door.accepted(&body).await;
    door.close().await;

    clock.advance(AWAY);
    let stage = Stage::start_on(rabbit.config(), &store, quick("late"), known);
    stage.connected().await;
    let mut billing = rabbit.consume(&rabbit.names().queue("billing")).await;
    let message = billing.next(LIMIT).await;
    assert_eq!(message.properties.message_id().as_ref().map(ToString::to_string), Some(receipt.to_string()));
    assert_eq!(message.data, body);
    stage.end().await;
    assert_eq!(store.outbox_status().await.unwrap().depth, 0);
    store.close().await;
}
