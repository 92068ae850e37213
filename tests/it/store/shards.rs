//! Which relay publishes what: leases by the store's clock.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use makbuz::store::{SHARDS, Store};

use super::harness::Harness;

const LEASE: Duration = Duration::from_secs(5);

pub async fn relays_share_and_take_over_what_ran_out(store: Arc<dyn Store>, h: &Harness) {
    assert_eq!(store.announce_relay("a", LEASE).await.unwrap(), 1);
    assert_eq!(store.hold_shards("a", 32, LEASE).await.unwrap(), (0..SHARDS).collect::<Vec<_>>());
    // A second one finds nothing free until the first gives back.
    assert_eq!(store.announce_relay("b", LEASE).await.unwrap(), 2);
    assert!(store.hold_shards("b", 16, LEASE).await.unwrap().is_empty());
    store.release_shards("a", &(16..32).collect::<Vec<_>>()).await.unwrap();
    let b = store.hold_shards("b", 16, LEASE).await.unwrap();
    assert_eq!(b, (16..32).collect::<Vec<_>>());
    assert_eq!(store.hold_shards("a", 16, LEASE).await.unwrap().len(), 16);
    // Renewed in time, a lease goes on for ever.
    for _ in 0..5 {
        h.backend.pass(Duration::from_secs(3)).await;
        assert_eq!(store.hold_shards("b", 16, LEASE).await.unwrap().len(), 16);
        store.announce_relay("b", LEASE).await.unwrap();
    }
    // `a` was not heard of for 15 s: `b` is alone and adopts its shards.
    assert_eq!(store.announce_relay("b", LEASE).await.unwrap(), 1);
    assert_eq!(store.hold_shards("b", 32, LEASE).await.unwrap().len(), 32);
    assert!(store.hold_shards("a", 16, LEASE).await.unwrap().is_empty());
}

pub async fn a_relay_gives_back_only_its_own(store: Arc<dyn Store>, _: &Harness) {
    store.hold_shards("a", 10, LEASE).await.unwrap();
    let b = store.hold_shards("b", 10, LEASE).await.unwrap();
    store.release_shards("a", &b).await.unwrap();
    assert_eq!(store.hold_shards("b", 10, LEASE).await.unwrap(), b);
    let c: HashSet<u8> = store.hold_shards("c", 32, LEASE).await.unwrap().into_iter().collect();
    assert!(c.len() == 12 && c.iter().all(|shard| !b.contains(shard)));
}
