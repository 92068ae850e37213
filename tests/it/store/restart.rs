//! W-079: the memory is in the store, not in the process.

use std::sync::Arc;
use std::time::Duration;

use makbuz::store::{OutboxQuery, SHARDS, Store, Verdict};

use super::harness::{Harness, both, deliver_one};

pub async fn everything_outlives_a_restart(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, h.delivery("e1", "{\"a\":1}", &both())).await;
    deliver_one(&store, h.delivery("e1", "{\"a\":2}", &both())).await;
    let before = store.receipt(first.receipt_id).await.unwrap();
    let key = store.token_key().await.unwrap();
    drop(store);
    let store = h.backend.restart().await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap(), before);
    assert_eq!(store.token_key().await.unwrap(), key);
    assert_eq!(&store.body(first.receipt_id, false).await.unwrap().body[..], b"{\"a\":1}");
    // W-092: thirty days later it is still a duplicate.
    h.backend.pass(Duration::from_secs(30 * 86_400)).await;
    let again = deliver_one(&store, h.delivery("e1", "{\"a\":1}", &both())).await;
    assert_eq!((again.verdict, again.receipt_id), (Verdict::Duplicate, first.receipt_id));
    let query =
        OutboxQuery { shards: (0..SHARDS).collect(), limit: 9, bytes_max: usize::MAX, ..OutboxQuery::default() };
    assert_eq!(store.read_outbox(query).await.unwrap().messages.len(), 1);
}
