//! The same event again: at once, in batches, after the end.

use std::sync::Arc;
use std::time::Duration;

use makbuz::model::job::{JobKey, JobReason, JobState};
use makbuz::store::{Store, Verdict};

use super::harness::{Harness, billing, both, deliver, deliver_all, deliver_one};

/// W-080: a duplicate is answered like the first, never with an error.
pub async fn a_second_delivery_is_a_duplicate_with_the_same_id(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    h.backend.pass(Duration::from_secs(3 * 86_400)).await;
    let at = h.now();
    let second = deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    assert_eq!((second.verdict, second.receipt_id), (Verdict::Duplicate, first.receipt_id));
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.receipt.duplicates, view.receipt.last_delivered_at), (1, Some(at)));
    let [redelivery] = view.deliveries.as_slice() else { panic!("one redelivery") };
    assert_eq!((redelivery.at, redelivery.secret.as_str(), redelivery.verdict.as_str()), (at, "s1", "duplicate"));
    // W-163: what the provider says of its retries is kept.
    assert_eq!(redelivery.retry_headers, [("x-retry".to_owned(), "2".to_owned())]);
    assert_eq!(view.jobs.len(), 2);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 1);
}

pub async fn two_hundred_copies_at_once_make_one_receipt_and_one_job(store: Arc<dyn Store>, h: &Harness) {
    let subscriptions = both();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let delivery = h.delivery("e1", "{}", &subscriptions);
        let store = store.clone();
        waiting.spawn(async move {
            let verdict = deliver(&store, delivery).await.expect("each copy is answered").events.remove(0);
            // Nobody is answered before the receipt can be read.
            let there = store.receipt(verdict.receipt_id).await.unwrap().is_some();
            (verdict, there)
        });
    }
    let heard = waiting.join_all().await;
    let stored: Vec<_> = heard.iter().filter(|(verdict, _)| verdict.verdict == Verdict::Stored).collect();
    assert_eq!(stored.len(), 1);
    assert!(heard.iter().all(|(verdict, there)| *there && verdict.receipt_id == stored[0].0.receipt_id));
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 1);
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 2);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
    assert_eq!(h.count("SELECT duplicates FROM receipts").await, 199);
    assert_eq!(h.count("SELECT count(*) FROM deliveries").await, 32);
}

pub async fn two_batches_in_opposite_order_both_end(store: Arc<dyn Store>, h: &Harness) {
    let subscriptions = both();
    for round in 0..10 {
        let ids: Vec<String> = (0..40).map(|n| format!("r{round}-{n:02}")).collect();
        let events = |ids: &mut dyn Iterator<Item = &String>| ids.map(|id| h.event(id, "{}")).collect::<Vec<_>>();
        let forth = h.batch(events(&mut ids.iter()), b"[]", &subscriptions);
        let back = h.batch(events(&mut ids.iter().rev()), b"[]", &subscriptions);
        let (forth, back) = tokio::join!(deliver(&store, forth), deliver(&store, back));
        let (forth, mut back) = (forth.unwrap(), back.unwrap());
        back.events.reverse();
        for (one, other) in forth.events.iter().zip(&back.events) {
            assert_eq!(one.receipt_id, other.receipt_id);
            assert_ne!(
                (one.verdict == Verdict::Stored),
                (other.verdict == Verdict::Stored),
                "exactly one of them is first"
            );
        }
    }
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 400);
}

/// W-130.
pub async fn overlapping_batches_store_each_event_once(store: Arc<dyn Store>, h: &Harness) {
    let subscriptions = both();
    let of = |ids: &[&str]| h.batch(ids.iter().map(|id| h.event(id, "{}")).collect(), b"[1,2]", &subscriptions);
    let heard = deliver_all(&store, vec![of(&["e1", "e2"]), of(&["e2", "e3"]), of(&["e4", "e4"])]).await;
    let verdicts: Vec<Vec<Verdict>> =
        heard.iter().map(|heard| heard.as_ref().unwrap().events.iter().map(|event| event.verdict).collect()).collect();
    use Verdict::{Duplicate, Stored};
    assert_eq!(verdicts, [[Stored, Stored], [Duplicate, Stored], [Stored, Duplicate]]);
    let events = |n: usize| &heard[n].as_ref().unwrap().events;
    assert_eq!(events(0)[1].receipt_id, events(1)[0].receipt_id);
    assert_eq!(events(2)[0].receipt_id, events(2)[1].receipt_id);
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 4);
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 8);
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 3);
    // Again, one after the other: nothing new.
    deliver_all(&store, vec![of(&["e4", "e1"]), of(&["e3", "e2"])]).await;
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 4);
}

/// W-083: a late retry rewinds nothing.
pub async fn a_redelivery_changes_nothing_of_a_finished_job(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "{}", &billing())).await;
    h.backend.execute("UPDATE jobs SET state = 'completed', finished_at = 7, reason = NULL").await.unwrap();
    let key = JobKey { receipt: first.receipt_id, subscription: "billing".to_owned() };
    let before = store.job(&key).await.unwrap().unwrap();
    let second = deliver_one(&store, h.delivery("e1", "{}", &billing())).await;
    assert_eq!((second.verdict, second.rearmed), (Verdict::Duplicate, 0));
    assert_eq!(store.job(&key).await.unwrap().unwrap(), before);
    // Nor does it touch one that a person, or doubt, put into review.
    for reason in ["suspect", "divergent", "rejected", "permanent"] {
        let sql = match reason {
            "suspect" => "UPDATE jobs SET state = 'review', finished_at = NULL, reason = 'suspect'",
            "divergent" => "UPDATE jobs SET state = 'review', finished_at = NULL, reason = 'divergent'",
            "rejected" => "UPDATE jobs SET state = 'review', finished_at = NULL, reason = 'rejected'",
            _ => "UPDATE jobs SET state = 'review', finished_at = NULL, reason = 'permanent'",
        };
        h.backend.execute(sql).await.unwrap();
        let again = deliver_one(&store, h.delivery("e1", "{}", &billing())).await;
        assert_eq!(again.rearmed, 0, "{reason}");
        assert_eq!(store.job(&key).await.unwrap().unwrap().job.state, JobState::Review, "{reason}");
    }
}

pub async fn thirty_two_redeliveries_are_kept_and_all_are_counted(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    for _ in 0..20 {
        deliver_one(&store, h.delivery("e1", "{}", &both())).await;
    }
    deliver_all(&store, (0..20).map(|_| h.delivery("e1", "{}", &both())).collect()).await;
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.receipt.duplicates, view.deliveries.len()), (40, 32));
}

/// C9, W-089 (b): the provider's own resend nudges what our consumers gave up.
pub async fn a_resend_arms_a_given_up_job_again(store: Arc<dyn Store>, h: &Harness) {
    let subscriptions = billing();
    store.sync_subscriptions(subscriptions.clone()).await.unwrap();
    let first = deliver_one(&store, h.delivery("e1", "{}", &subscriptions)).await;
    h.backend.execute("DELETE FROM outbox").await.unwrap();
    h.backend.execute("UPDATE jobs SET state = 'review', reason = 'exhausted', handed_at = NULL").await.unwrap();
    let resent = deliver_one(&store, h.delivery("e1", "{}", &subscriptions)).await;
    assert_eq!((resent.verdict, resent.rearmed), (Verdict::Duplicate, 1));
    let key = JobKey { receipt: first.receipt_id, subscription: "billing".to_owned() };
    let job = store.job(&key).await.unwrap().unwrap().job;
    assert_eq!((job.state, job.series, job.attempt), (JobState::Queued, 2, 2));
    assert_ne!(job.reason, Some(JobReason::Exhausted));
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 1);
}
