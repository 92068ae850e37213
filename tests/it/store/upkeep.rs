//! Retention, subscriptions that come and go, the check, and shapes that the tables refuse.

use std::sync::Arc;
use std::time::Duration;

use makbuz::model::job::JobState;
use makbuz::model::subscription::Target;
use makbuz::store::{QuarantineBounds, Retention, Severity, Store, Verdict};

use super::harness::{Harness, both, deliver_all, deliver_one, set, subscription};

const DAY: Duration = Duration::from_secs(86_400);

fn keep(bodies: Duration) -> Retention {
    Retention { bodies, quarantine: QuarantineBounds { count: 10, bytes: 1 << 20, age: DAY } }
}

pub async fn old_bodies_go_and_receipts_stay(store: Arc<dyn Store>, h: &Harness) {
    let deliveries: Vec<_> = (0..450).map(|n| h.delivery(&format!("e{n}"), "{}", &both())).collect();
    let mut ids = Vec::new();
    for heard in deliver_all(&store, deliveries).await {
        ids.push(heard.unwrap().events[0].receipt_id);
    }
    // All done, save one that still runs and one that waits for a person.
    h.backend.execute("DELETE FROM outbox").await.unwrap();
    h.backend
        .execute(
            "UPDATE jobs SET state = 'completed', finished_at = 1 WHERE receipt_id NOT IN
                (SELECT id FROM receipts WHERE event_id IN ('e7', 'e8'))",
        )
        .await
        .unwrap();
    h.backend
        .execute("UPDATE jobs SET state = 'review', reason = 'exhausted' WHERE receipt_id IN (SELECT id FROM receipts WHERE event_id = 'e8')")
        .await
        .unwrap();
    assert_eq!(store.upkeep(keep(DAY)).await.unwrap().bodies_expired, 0, "nothing is old yet");
    h.backend.pass(2 * DAY).await;
    let young = deliver_one(&store, h.delivery("young", "{}", &both())).await;
    store.upkeep(keep(DAY)).await.unwrap();
    assert_eq!(h.backend.bodies().await, 3);
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 451);
    for kept in [ids[7], ids[8], young.receipt_id] {
        assert!(store.body(kept, false).await.is_ok());
    }
    assert_eq!(store.body(ids[0], false).await.unwrap_err().code(), "body_gone");
    // W-092, C3: the key is for ever.
    assert_eq!(deliver_one(&store, h.delivery("e0", "{}", &both())).await.verdict, Verdict::Duplicate);
    // Once its job has ended, a later pass takes the body too.
    h.backend.execute("UPDATE jobs SET state = 'completed', finished_at = 1, reason = NULL").await.unwrap();
    h.backend.pass(2 * DAY).await;
    store.upkeep(keep(DAY)).await.unwrap();
    assert_eq!(h.backend.bodies().await, 0);
}

pub async fn removed_subscriptions_are_retired_and_come_back(store: Arc<dyn Store>, h: &Harness) {
    let state = async || h.count("SELECT count(*) FROM subscriptions WHERE state = 'active'").await;
    assert!(store.sync_subscriptions(both()).await.unwrap().is_empty());
    let verdict = deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    let only_audit = set(vec![subscription("audit", Target::Pull)]);
    assert_eq!(store.sync_subscriptions(only_audit.clone()).await.unwrap(), ["billing"]);
    assert_eq!(store.sync_subscriptions(only_audit).await.unwrap(), ["billing"]);
    assert_eq!(state().await, 1);
    let jobs = store.receipt(verdict.receipt_id).await.unwrap().unwrap().jobs;
    assert!(jobs.iter().any(|job| job.key.subscription == "billing" && job.state == JobState::Queued), "its jobs stay");
    assert!(store.sync_subscriptions(both()).await.unwrap().is_empty());
    assert_eq!(state().await, 2);
    // A pause outlives a restart of the configuration.
    h.backend.execute("UPDATE subscriptions SET state = 'paused', paused_at = 5 WHERE name = 'billing'").await.unwrap();
    store.sync_subscriptions(both()).await.unwrap();
    assert_eq!(h.count("SELECT count(*) FROM subscriptions WHERE state = 'paused'").await, 1);
}

pub async fn check_writes_and_reads_back(store: Arc<dyn Store>, _: &Harness) {
    let findings = store.check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.code == "store_writes" && finding.severity == Severity::Ok));
    assert!(findings.iter().any(|finding| finding.code == "store_durability"));
    let worst = findings.iter().map(|finding| finding.severity).max();
    assert!(worst < Some(Severity::Error), "{findings:?}");
}

pub async fn the_token_key_stays_the_same(store: Arc<dyn Store>, _: &Harness) {
    let key = store.token_key().await.unwrap();
    assert_ne!(key, [0; 32]);
    assert_eq!(store.token_key().await.unwrap(), key);
}

pub async fn impossible_rows_are_refused(store: Arc<dyn Store>, h: &Harness) {
    deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    for sql in [
        "UPDATE jobs SET state = 'lost'",
        "UPDATE jobs SET leased_until = 1",
        "UPDATE jobs SET state = 'completed'",
        "UPDATE jobs SET finished_at = 1",
        "UPDATE jobs SET state = 'retrying', next_attempt_at = NULL",
        "UPDATE jobs SET state = 'review', reason = NULL",
        "UPDATE jobs SET state = 'queued', handed_at = NULL",
        "UPDATE jobs SET series_attempts = attempt + 1",
        "UPDATE receipts SET mode = 'other'",
        "UPDATE receipts SET payload_id = NULL",
        "UPDATE receipts SET part_start = 1",
        "UPDATE receipts SET event_id = ''",
        "UPDATE outbox SET shard = 32",
        "UPDATE outbox SET lane = 'fast'",
    ] {
        assert!(h.backend.execute(sql).await.is_err(), "{sql}");
    }
}
