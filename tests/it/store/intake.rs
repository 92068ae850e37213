//! First deliveries: what is stored, what is held, what is refused.

use std::sync::Arc;

use makbuz::model::job::{INTAKE, JobReason, JobState};
use makbuz::model::receipt::{HoldReason, Origin};
use makbuz::store::{ReceiptQuery, Store, StoreError, Verdict};

use super::harness::{Harness, billing, both, deliver, deliver_all, deliver_one, set};

pub async fn a_first_delivery_is_a_receipt_with_its_jobs(store: Arc<dyn Store>, h: &Harness) {
    let verdict = deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    assert_eq!((verdict.verdict, verdict.held, verdict.unmatched), (Verdict::Stored, None, false));
    let view = store.receipt(verdict.receipt_id).await.unwrap().expect("it is there");
    let receipt = &view.receipt;
    assert_eq!(
        (receipt.key.provider.as_str(), receipt.key.account.as_str(), receipt.key.event_id.as_str()),
        ("acme", "acct_1", "e1")
    );
    assert_eq!((receipt.source.as_str(), receipt.origin, receipt.duplicates), ("web", Origin::Delivery, 0));
    assert_eq!(receipt.verified_by.as_ref().unwrap().secret, "s1");
    assert_eq!(view.url.as_deref(), Some("/in/web?a=1"));
    let [audit, billing] = view.jobs.as_slice() else { panic!("two jobs, by name: {:?}", view.jobs) };
    assert_eq!((audit.key.subscription.as_str(), audit.state, audit.attempt), ("audit", JobState::Pending, 0));
    assert_eq!((billing.key.subscription.as_str(), billing.state, billing.attempt), ("billing", JobState::Queued, 1));
    assert_eq!((billing.series, billing.series_attempts), (1, 1));
    // W-082: the outbox has a row for the broker's job alone, made with the receipt.
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
}

pub async fn a_receipt_is_readable_once_it_is_answered(store: Arc<dyn Store>, h: &Harness) {
    for n in 0..20 {
        let verdict = deliver_one(&store, h.delivery(&format!("e{n}"), "{}", &billing())).await;
        assert!(store.receipt(verdict.receipt_id).await.unwrap().is_some(), "answered before its commit: e{n}");
        assert_eq!(h.count("SELECT count(*) FROM receipts").await, n + 1);
    }
}

pub async fn malformed_events_are_held_with_one_job_in_review(store: Arc<dyn Store>, h: &Harness) {
    let mut delivery = h.delivery("sha256:00", "not json", &both());
    delivery.events[0].hold = Some(HoldReason::Unparsable);
    let verdict = deliver_one(&store, delivery).await;
    assert_eq!((verdict.verdict, verdict.held), (Verdict::Stored, Some(HoldReason::Unparsable)));
    let view = store.receipt(verdict.receipt_id).await.unwrap().unwrap();
    let [job] = view.jobs.as_slice() else { panic!("one job: {:?}", view.jobs) };
    assert_eq!(
        (job.key.subscription.as_str(), job.state, job.reason),
        (INTAKE, JobState::Review, Some(JobReason::Held))
    );
    assert_eq!(job.attempt, 0);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 0);
}

pub async fn an_event_that_nobody_takes_is_flagged(store: Arc<dyn Store>, h: &Harness) {
    let verdict = deliver_one(&store, h.delivery("e1", "{}", &set(Vec::new()))).await;
    assert_eq!((verdict.verdict, verdict.unmatched), (Verdict::Stored, true));
    let view = store.receipt(verdict.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.receipt.flags.as_str(), view.jobs.len()), ("unmatched", 0));
}

pub async fn a_refused_row_fails_no_neighbour(store: Arc<dyn Store>, h: &Harness) {
    let mut bad = h.delivery("bad", "{}", &both());
    bad.provider = "p".repeat(41).into();
    let good = |n: usize| h.delivery(&format!("good{n}"), "{}", &both());
    let heard = deliver_all(&store, vec![good(1), good(2), bad, good(3)]).await;
    assert!(matches!(heard[2], Err(StoreError::Row(_))), "the bad one hears of it: {:?}", heard[2]);
    for (n, verdict) in [&heard[0], &heard[1], &heard[3]].into_iter().enumerate() {
        assert_eq!(verdict.as_ref().unwrap().events[0].verdict, Verdict::Stored, "neighbour {n}");
    }
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 3);
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 3);
    // The writer goes on, and what was refused may come again in a shape that can be stored.
    assert_eq!(deliver_one(&store, h.delivery("bad", "{}", &both())).await.verdict, Verdict::Stored);
    store.ready().await.expect("a refused row is no trouble of the store");
}

pub async fn dropping_the_waiter_changes_nothing(store: Arc<dyn Store>, h: &Harness) {
    for n in 0..50 {
        drop(store.submit(h.delivery(&format!("e{n}"), "{}", &both())).unwrap());
    }
    // The queue is in order: once this one is answered, those before it are committed.
    deliver_one(&store, h.delivery("last", "{}", &both())).await;
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 51);
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 102);
    assert_eq!(deliver_one(&store, h.delivery("e7", "{}", &both())).await.verdict, Verdict::Duplicate);
}

pub async fn an_imported_key_has_no_body_and_no_jobs(store: Arc<dyn Store>, h: &Harness) {
    let mut import = h.delivery("old", "", &both());
    import.origin = Origin::Imported;
    let imported = deliver_one(&store, import).await;
    let view = store.receipt(imported.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.receipt.payload_id, view.receipt.item_sha256, view.jobs.len()), (None, None, 0));
    assert_eq!(store.body(imported.receipt_id, true).await.unwrap_err().code(), "body_gone");
    // Its first delivery is a plain duplicate, whatever its content.
    let verdict = deliver_one(&store, h.delivery("old", "{\"a\":1}", &both())).await;
    assert_eq!((verdict.verdict, verdict.receipt_id), (Verdict::Duplicate, imported.receipt_id));
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 0);
    // An import of what is there counts for nothing.
    let mut again = h.delivery("old", "", &both());
    again.origin = Origin::Imported;
    assert_eq!(deliver_one(&store, again).await.verdict, Verdict::Duplicate);
    assert_eq!(h.count("SELECT duplicates FROM receipts").await, 1);
}

pub async fn pages_go_from_new_to_old(store: Arc<dyn Store>, h: &Harness) {
    let mut ids = Vec::new();
    for n in 0..5 {
        h.backend.pass(std::time::Duration::from_millis(2)).await;
        let mut delivery = h.delivery(&format!("e{n}"), "{}", &both());
        delivery.source = if n == 2 { "other".into() } else { "web".into() };
        ids.push(deliver(&store, delivery).await.unwrap().events[0].receipt_id);
    }
    let page = |query| store.receipts(query);
    let first = page(ReceiptQuery { limit: 2, ..ReceiptQuery::default() }).await.unwrap();
    assert_eq!(first.iter().map(|view| view.receipt.id).collect::<Vec<_>>(), [ids[4], ids[3]]);
    let before = Some(ids[3]);
    let web = ReceiptQuery { source: Some("web".to_owned()), before, limit: 9, ..ReceiptQuery::default() };
    let next = page(web).await.unwrap();
    assert_eq!(next.iter().map(|view| view.receipt.id).collect::<Vec<_>>(), [ids[1], ids[0]]);
    assert_eq!(next[0].jobs.len(), 2);
    let by_id = ReceiptQuery { event_id: Some("e2".to_owned()), limit: 9, ..ReceiptQuery::default() };
    assert_eq!(page(by_id).await.unwrap().len(), 1);
    let jobs = store.jobs(makbuz::store::JobQuery { state: Some(JobState::Queued), limit: 3, ..Default::default() });
    let jobs = jobs.await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.key.receipt).collect::<Vec<_>>(), [ids[4], ids[3], ids[2]]);
}
