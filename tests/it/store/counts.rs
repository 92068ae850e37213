//! Counters against a real count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use makbuz::model::job::JobState;
use makbuz::model::receipt::HoldReason;
use makbuz::model::subscription::Target;
use makbuz::random::Random;
use makbuz::store::{ClaimRequest, ConfirmedRow, JobQuery, OutboxQuery, QuarantineBounds, Retention, SHARDS, Store};

use super::harness::{Harness, both, deliver_all, deliver_one, from_sources, set, subscription};

async fn assert_counters_are_right(store: &Arc<dyn Store>, h: &Harness) {
    let mut real = BTreeMap::new();
    for job in store.jobs(JobQuery { limit: 100_000, ..JobQuery::default() }).await.unwrap() {
        *real.entry((job.key.subscription, job.state)).or_insert(0) += 1;
    }
    let mut counted = store.job_status().await.unwrap().counts;
    counted.retain(|_, n| *n != 0);
    assert_eq!(counted, real);
    let depth = i64::try_from(store.outbox_status().await.unwrap().depth).unwrap();
    assert_eq!(depth, h.count("SELECT count(*) FROM outbox").await);
}

pub async fn counters_equal_a_real_count_after_random_deliveries(store: Arc<dyn Store>, h: &Harness) {
    let subscriptions = set(vec![
        subscription("billing", Target::Amqp),
        subscription("audit", Target::Pull),
        from_sources("late", Target::Amqp, &["second"]),
    ]);
    store.sync_subscriptions(subscriptions.clone()).await.unwrap();
    let draw = |below: u64| h.random.next_u64() % below;
    for _ in 0..60 {
        h.backend.pass(Duration::from_millis(draw(50))).await;
        let deliveries = (0..draw(8)).map(|_| {
            let mut delivery = h.delivery(&format!("e{}", draw(60)), &format!("{}", draw(3)), &subscriptions);
            delivery.source = if draw(3) == 0 { "second".into() } else { "web".into() };
            delivery.replay_guard = draw(2) == 0;
            delivery.signed_sha256 = [u8::try_from(draw(40)).unwrap(); 32];
            delivery.events[0].hold = (draw(12) == 0).then_some(HoldReason::NoId);
            delivery
        });
        for heard in deliver_all(&store, deliveries.collect()).await {
            heard.unwrap();
        }
        if draw(2) == 0 {
            let claim = ClaimRequest {
                subscription: "audit".to_owned(),
                max: 3,
                lease: Duration::from_secs(30),
                consumer: "c".to_owned(),
            };
            store.claim_jobs(claim, subscriptions.clone()).await.unwrap();
        }
        let query =
            OutboxQuery { shards: (0..SHARDS).collect(), limit: 5, bytes_max: usize::MAX, ..Default::default() };
        let confirmed: Vec<_> = store
            .read_outbox(query)
            .await
            .unwrap()
            .messages
            .into_iter()
            .map(|message| ConfirmedRow { id: message.id, hand_over: message.hand_over, completes: draw(2) == 0 })
            .collect();
        store.delete_outbox(&confirmed).await.unwrap();
    }
    h.backend.pass(Duration::from_secs(60)).await;
    assert!(store.rescue_expired(1000, subscriptions.clone()).await.unwrap() > 0);
    assert_counters_are_right(&store, h).await;
    // The correction finds nothing to correct.
    let bounds = QuarantineBounds { count: 1, bytes: 1, age: Duration::from_secs(1) };
    let report = store.upkeep(Retention { bodies: Duration::from_secs(86_400), quarantine: bounds }).await.unwrap();
    assert_eq!(report.counts_corrected, 0);
}

pub async fn the_hourly_correction_repairs_a_counter_that_is_off(store: Arc<dyn Store>, h: &Harness) {
    deliver_all(&store, (0..5).map(|n| h.delivery(&format!("e{n}"), "{}", &both())).collect()).await;
    h.backend.execute("UPDATE job_counts SET n = n + 7 WHERE state = 'queued'").await.unwrap();
    h.backend.execute("DELETE FROM job_counts WHERE state = 'pending'").await.unwrap();
    let bounds = QuarantineBounds { count: 1, bytes: 1, age: Duration::from_secs(1) };
    let retention = Retention { bodies: Duration::from_secs(86_400), quarantine: bounds };
    assert_eq!(store.upkeep(retention).await.unwrap().counts_corrected, 2);
    assert_counters_are_right(&store, h).await;
    // Then not before an hour is over.
    h.backend.execute("UPDATE job_counts SET n = n + 1 WHERE state = 'queued' AND slot < 64").await.unwrap();
    assert_eq!(store.upkeep(retention).await.unwrap().counts_corrected, 0);
    h.backend.pass(Duration::from_secs(3601)).await;
    assert_eq!(store.upkeep(retention).await.unwrap().counts_corrected, 1);
    assert_counters_are_right(&store, h).await;
}

pub async fn status_of_an_empty_store_is_empty(store: Arc<dyn Store>, h: &Harness) {
    let status = store.job_status().await.unwrap();
    assert!(status.counts.is_empty() && status.oldest_unprocessed.is_empty());
    assert_eq!(store.outbox_status().await.unwrap().depth, 0);
    deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    h.backend.pass(Duration::from_secs(90)).await;
    deliver_one(&store, h.delivery("e2", "{}", &both())).await;
    let status = store.job_status().await.unwrap();
    assert_eq!(status.counts[&("billing".to_owned(), JobState::Queued)], 2);
    let age = status.oldest_unprocessed["billing"];
    assert!(age >= Duration::from_secs(90) && age < Duration::from_secs(120), "{age:?}");
    assert_eq!(status.oldest_review["billing"], Duration::ZERO);
    assert_eq!(status.repeated_failures["billing"], 0);
    h.backend
        .execute("UPDATE jobs SET state = 'review', reason = 'exhausted' WHERE subscription = 'billing'")
        .await
        .unwrap();
    let status = store.job_status().await.unwrap();
    assert!(status.oldest_review["billing"] >= Duration::from_secs(90));
    assert_eq!(status.oldest_unprocessed["billing"], Duration::ZERO);
}
