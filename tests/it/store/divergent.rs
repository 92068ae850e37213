//! The same key with other content.

use std::sync::Arc;

use makbuz::model::receipt::Origin;
use makbuz::store::{Store, Verdict};

use super::harness::{Harness, both, deliver_all, deliver_one};

pub async fn other_content_under_a_known_key_is_kept_beside(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "{\"a\":1}", &both())).await;
    let second = deliver_one(&store, h.delivery("e1", "{\"a\":2}", &both())).await;
    assert_eq!((second.verdict, second.receipt_id), (Verdict::Divergent, first.receipt_id));
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.divergences.len(), view.receipt.duplicates), (1, 1));
    assert_eq!(view.deliveries[0].verdict, "divergent");
    assert_eq!(&store.body(first.receipt_id, false).await.unwrap().body[..], b"{\"a\":1}", "the receipt keeps its own");
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 2);
    // The same variant again is not kept twice, and neither is its body.
    let third = deliver_one(&store, h.delivery("e1", "{\"a\":2}", &both())).await;
    assert_eq!(third.verdict, Verdict::Divergent);
    assert_eq!(h.count("SELECT count(*) FROM divergences").await, 1);
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 2);
    // At once: in one batch the first arrival is the receipt; in two writers' batches it is the first to commit.
    let heard = deliver_all(&store, vec![h.delivery("e2", "x", &both()), h.delivery("e2", "y", &both())]).await;
    let heard: Vec<_> = heard.iter().map(|verdict| &verdict.as_ref().unwrap().events[0]).collect();
    assert_eq!(heard[0].receipt_id, heard[1].receipt_id);
    for verdict in [Verdict::Stored, Verdict::Divergent] {
        assert_eq!(heard.iter().filter(|event| event.verdict == verdict).count(), 1, "{verdict:?}");
    }
    assert_eq!(h.count("SELECT count(*) FROM jobs").await, 4);
}

pub async fn at_most_sixteen_variants_are_kept_and_all_are_counted(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "0", &both())).await;
    for n in 1..=20 {
        let verdict = deliver_one(&store, h.delivery("e1", &n.to_string(), &both())).await;
        assert_eq!(verdict.verdict, Verdict::Divergent);
    }
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!((view.divergences.len(), view.receipt.duplicates), (16, 20));
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 17);
}

pub async fn receipts_from_the_providers_list_are_never_compared(store: Arc<dyn Store>, h: &Harness) {
    let mut listed = h.delivery("e1", "{\"from\":\"list\"}", &both());
    listed.origin = Origin::Reconcile;
    let first = deliver_one(&store, listed).await;
    assert_eq!(first.verdict, Verdict::Stored);
    let signed = deliver_one(&store, h.delivery("e1", "{\"from\":\"hook\"}", &both())).await;
    assert_eq!((signed.verdict, signed.receipt_id), (Verdict::Duplicate, first.receipt_id));
    // Its signed body is kept beside.
    assert_eq!(h.count("SELECT count(*) FROM payloads").await, 2);
    // And what the list says of an event that came by itself counts for nothing.
    deliver_one(&store, h.delivery("e2", "{}", &both())).await;
    let mut listed = h.delivery("e2", "{\"other\":1}", &both());
    listed.origin = Origin::Reconcile;
    assert_eq!(deliver_one(&store, listed).await.verdict, Verdict::Duplicate);
    assert_eq!(h.count("SELECT duplicates FROM receipts WHERE event_id = 'e2'").await, 0);
}
