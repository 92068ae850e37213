//! What makes two events one, and what does not.

use std::sync::Arc;
use std::time::Duration;

use makbuz::model::id::ReceiptId;
use makbuz::model::job::JobKey;
use makbuz::random::Random;
use makbuz::store::{Store, Verdict};

use super::harness::{Harness, both, deliver_all, deliver_one};

/// W-095.
pub async fn the_same_id_of_other_providers_and_accounts_is_another_event(store: Arc<dyn Store>, h: &Harness) {
    let mut receipts = std::collections::HashSet::new();
    for (provider, account) in [("a", "x"), ("b", "x"), ("a", "y"), ("a", "")] {
        let mut delivery = h.delivery("1", "{}", &both());
        delivery.provider = provider.into();
        delivery.events[0].account = account.to_owned();
        let verdict = deliver_one(&store, delivery).await;
        assert_eq!(verdict.verdict, Verdict::Stored, "{provider} {account}");
        receipts.insert(verdict.receipt_id);
    }
    assert_eq!(receipts.len(), 4);
}

/// W-097: ids that no index takes.
pub async fn very_long_ids_become_their_digest(store: Arc<dyn Store>, h: &Harness) {
    for length in [255, 3_000, 100_000] {
        let id: String =
            (0..length).map(|_| char::from(b'a' + u8::try_from(h.random.next_u64() % 26).unwrap())).collect();
        let first = deliver_one(&store, h.delivery(&id, "{}", &both())).await;
        assert_eq!(first.verdict, Verdict::Stored, "{length}");
        let second = deliver_one(&store, h.delivery(&id, "{}", &both())).await;
        assert_eq!((second.verdict, second.receipt_id), (Verdict::Duplicate, first.receipt_id), "{length}");
        let other = deliver_one(&store, h.delivery(&format!("{id}!"), "{}", &both())).await;
        assert_eq!(other.verdict, Verdict::Stored, "{length}");
        let receipt = store.receipt(first.receipt_id).await.unwrap().unwrap().receipt;
        assert_eq!(receipt.flags.contains("id_digested"), length > 255);
        assert_eq!(receipt.key.event_id == id, length <= 255);
        assert!(id.starts_with(&receipt.provider_ref) && receipt.provider_ref.len() == length.min(4096));
    }
}

pub async fn ids_compare_by_exact_bytes(store: Arc<dyn Store>, h: &Harness) {
    // Case, spaces, Unicode forms (é as one and as two characters), numbers that look alike.
    let ids =
        ["evt", "EVT", "evt ", " evt", "\u{e9}", "e\u{301}", "1", "01", "1.0", "'", "\"", "\\", "%", "{}", "null"];
    let heard = deliver_all(&store, ids.iter().map(|id| h.delivery(id, "{}", &both())).collect()).await;
    for (id, heard) in ids.iter().zip(heard) {
        assert_eq!(heard.unwrap().events[0].verdict, Verdict::Stored, "{id:?}");
    }
    let heard = deliver_all(&store, ids.iter().map(|id| h.delivery(id, "{}", &both())).collect()).await;
    for (id, heard) in ids.iter().zip(heard) {
        let verdict = heard.unwrap().events.remove(0);
        assert_eq!(verdict.verdict, Verdict::Duplicate, "{id:?}");
        assert_eq!(store.receipt(verdict.receipt_id).await.unwrap().unwrap().receipt.key.event_id, **id);
    }
}

/// W-086: three notifications of one resource are three receipts, never suppressed and never suspect.
pub async fn every_delivery_is_a_receipt_where_the_source_says_so(store: Arc<dyn Store>, h: &Harness) {
    let make = || {
        let mut delivery = h.delivery("tr_x", "id=tr_x", &both());
        delivery.every_delivery = true;
        delivery.replay_guard = true;
        delivery.signed_sha256 = [5; 32];
        delivery
    };
    let mut ids = Vec::new();
    for wait in [0, 7, 3 * 86_400] {
        h.backend.pass(Duration::from_secs(wait)).await;
        let verdict = deliver_one(&store, make()).await;
        assert_eq!(verdict.verdict, Verdict::Stored);
        ids.push(verdict.receipt_id);
    }
    let heard = deliver_all(&store, vec![make(), make()]).await;
    assert!(heard.iter().all(|heard| heard.as_ref().unwrap().events[0].verdict == Verdict::Stored));
    let receipt = store.receipt(ids[0]).await.unwrap().unwrap().receipt;
    assert_eq!(receipt.key.event_id, format!("tr_x@{}", ids[0]));
    assert_eq!((receipt.provider_ref.as_str(), receipt.flags.as_str()), ("tr_x", "every_delivery"));
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 5);
}

pub async fn unknown_rows_are_not_found(store: Arc<dyn Store>, h: &Harness) {
    let nobody = ReceiptId::new(h.now(), &*h.random);
    assert!(store.receipt(nobody).await.unwrap().is_none());
    assert!(store.job(&JobKey { receipt: nobody, subscription: "billing".to_owned() }).await.unwrap().is_none());
    assert_eq!(store.body(nobody, false).await.unwrap_err().code(), "not_found");
    assert!(store.receipts(makbuz::store::ReceiptQuery { limit: 5, ..Default::default() }).await.unwrap().is_empty());
    let key = JobKey { receipt: nobody, subscription: "billing".to_owned() };
    assert_eq!(store.dismiss(&key, "anna", "no such thing").await.unwrap_err().code(), "not_found");
}
