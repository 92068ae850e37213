//! What waits for the broker, as the relay sees it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use makbuz::model::id::{OutboxId, ReceiptId};
use makbuz::model::job::{JobKey, JobReason, JobState};
use makbuz::model::subscription::{CompletesOn, Target};
use makbuz::store::{ConfirmedRow, FreshRows, NewEvent, OutboxMessage, OutboxQuery, SHARDS, Store};

use super::harness::{Harness, billing, deliver, deliver_all, deliver_one, set, subscription};

fn everything() -> OutboxQuery {
    OutboxQuery { shards: (0..SHARDS).collect(), limit: 100, bytes_max: usize::MAX, ..OutboxQuery::default() }
}

fn confirmed(message: &OutboxMessage, completes: bool) -> ConfirmedRow {
    ConfirmedRow { id: message.id, hand_over: message.hand_over.clone(), completes }
}

pub async fn rows_come_with_their_messages_oldest_first(store: Arc<dyn Store>, h: &Harness) {
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(deliver_one(&store, h.delivery(&format!("e{n}"), &format!("body {n}"), &billing())).await.receipt_id);
        h.backend.pass(Duration::from_millis(2)).await;
    }
    let messages = store.read_outbox(everything()).await.unwrap().messages;
    assert_eq!(messages.iter().map(|message| message.receipt.id).collect::<Vec<_>>(), ids);
    let third = &messages[2];
    assert_eq!(third.body.as_deref(), Some(b"body 2".as_slice()));
    assert_eq!((third.content_type.as_str(), third.hand_over.attempt), ("application/json", 1));
    assert_eq!(third.receipt.key.event_id, "e2");
    // Each row belongs to one shard.
    let mut found = 0;
    for shard in 0..SHARDS {
        let query = OutboxQuery { shards: vec![shard], ..everything() };
        let messages = store.read_outbox(query).await.unwrap().messages;
        assert!(messages.iter().all(|message| message.shard == shard));
        found += messages.len();
    }
    assert_eq!(found, 5);
    let two = store.read_outbox(OutboxQuery { limit: 2, ..everything() }).await.unwrap().messages;
    assert_eq!(two.iter().map(|message| message.receipt.id).collect::<Vec<_>>(), ids[..2]);
    // A body that is gone does not hide the row.
    h.backend.execute("DELETE FROM payloads").await.unwrap();
    let messages = store.read_outbox(everything()).await.unwrap().messages;
    assert!(messages.len() == 5 && messages.iter().all(|message| message.body.is_none()));
}

pub async fn held_rows_and_lanes_that_back_off_are_left_out(store: Arc<dyn Store>, h: &Harness) {
    let two = set(vec![subscription("a", Target::Amqp), subscription("b", Target::Amqp)]);
    deliver_all(&store, (0..10).map(|n| h.delivery(&format!("e{n}"), "{}", &two)).collect()).await;
    let all = store.read_outbox(everything()).await.unwrap().messages;
    assert_eq!(all.len(), 20);
    let skip: HashSet<OutboxId> = all[..7].iter().map(|message| message.id).collect();
    let rest = store.read_outbox(OutboxQuery { skip: skip.clone(), ..everything() }).await.unwrap().messages;
    assert!(rest.len() == 13 && rest.iter().all(|message| !skip.contains(&message.id)));
    let backing_off = (all[0].shard, all[0].hand_over.key.subscription.clone());
    let query = OutboxQuery { skip_lanes: vec![backing_off.clone()], ..everything() };
    let rest = store.read_outbox(query).await.unwrap().messages;
    let hidden =
        all.iter().filter(|message| (message.shard, message.hand_over.key.subscription.clone()) == backing_off);
    assert_eq!(rest.len(), 20 - hidden.count());
    // A whole subscription that backs off leaves the limit to the others.
    let skip_lanes = (0..SHARDS).map(|shard| (shard, "a".to_owned())).collect();
    let rest = store.read_outbox(OutboxQuery { skip_lanes, limit: 10, ..everything() }).await.unwrap().messages;
    assert!(rest.len() == 10 && rest.iter().all(|message| message.hand_over.key.subscription == "b"));
}

pub async fn rows_of_paused_subscriptions_stay(store: Arc<dyn Store>, h: &Harness) {
    let two = set(vec![subscription("a", Target::Amqp), subscription("b", Target::Amqp)]);
    store.sync_subscriptions(two.clone()).await.unwrap();
    h.backend.execute("UPDATE subscriptions SET state = 'paused', paused_at = 1 WHERE name = 'a'").await.unwrap();
    let verdict = deliver_one(&store, h.delivery("e1", "{}", &two)).await;
    let jobs = store.receipt(verdict.receipt_id).await.unwrap().unwrap().jobs;
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.state == JobState::Queued), "the job is made all the same");
    let read = store.read_outbox(everything()).await.unwrap().messages;
    assert!(read.len() == 1 && read[0].hand_over.key.subscription == "b");
    assert_eq!(store.outbox_status().await.unwrap().depth, 2);
    h.backend.execute("UPDATE subscriptions SET state = 'active', paused_at = NULL WHERE name = 'a'").await.unwrap();
    assert_eq!(store.read_outbox(everything()).await.unwrap().messages.len(), 2);
}

pub async fn a_look_is_bounded_by_bytes(store: Arc<dyn Store>, h: &Harness) {
    deliver_all(&store, (0..10).map(|n| h.delivery(&format!("e{n}"), &"x".repeat(1000), &billing())).collect()).await;
    let look = |bytes_max| store.read_outbox(OutboxQuery { bytes_max, ..everything() });
    assert_eq!(look(3500).await.unwrap().messages.len(), 3);
    assert_eq!(look(10).await.unwrap().messages.len(), 1, "one at least, or it would wait for ever");

    // A small item counts as the body that has to be read for it, and that body counts once.
    let batch = |n: u32| {
        let item = |at: u64| NewEvent { part: Some((at, at + 10)), ..h.event(&format!("b{n}-{at}"), "{}") };
        h.batch(vec![item(0), item(10), item(20)], &[b'x'; 1000], &billing())
    };
    let waiting = store.read_outbox(everything()).await.unwrap().messages;
    store.delete_outbox(&waiting.iter().map(|message| confirmed(message, false)).collect::<Vec<_>>()).await.unwrap();
    deliver(&store, batch(1)).await.unwrap();
    let found = look(1500).await.unwrap();
    assert!(found.whole && found.messages.iter().all(|message| message.body.as_ref().unwrap().len() == 10));
    assert_eq!(found.messages.len(), 3);
    deliver(&store, batch(2)).await.unwrap();
    let found = look(1500).await.unwrap();
    let bodies: HashSet<_> = found.messages.iter().map(|message| message.receipt.payload_id).collect();
    assert_eq!((found.whole, bodies.len()), (false, 1));
}

pub async fn confirmed_rows_go_and_counters_follow(store: Arc<dyn Store>, h: &Harness) {
    let mut on_confirm = subscription("mail", Target::Amqp);
    on_confirm.completes_on = CompletesOn::Confirm;
    let two = set(vec![subscription("billing", Target::Amqp), on_confirm]);
    let receipt = deliver_one(&store, h.delivery("e1", "{}", &two)).await.receipt_id;
    h.backend.pass(Duration::from_secs(3)).await;
    let status = store.outbox_status().await.unwrap();
    assert_eq!(status.depth, 2);
    assert!(status.oldest.unwrap() >= Duration::from_secs(3));
    let messages = store.read_outbox(everything()).await.unwrap().messages;
    let rows: Vec<_> =
        messages.iter().map(|message| confirmed(message, message.hand_over.key.subscription == "mail")).collect();
    store.delete_outbox(&rows).await.unwrap();
    let status = store.outbox_status().await.unwrap();
    assert_eq!((status.depth, status.oldest), (0, None));
    assert!(store.read_outbox(everything()).await.unwrap().messages.is_empty());
    let state = async |name: &str| {
        let key = JobKey { receipt, subscription: name.to_owned() };
        store.job(&key).await.unwrap().unwrap().job.state
    };
    assert_eq!((state("billing").await, state("mail").await), (JobState::Queued, JobState::Completed));
    // Confirmed twice (two holders): the counters stay right.
    store.delete_outbox(&rows).await.unwrap();
    assert_eq!(store.outbox_status().await.unwrap().depth, 0);
    assert_eq!(h.count("SELECT CAST(coalesce(sum(n), 0) AS bigint) FROM job_counts WHERE state = '~outbox'").await, 0);
}

pub async fn returned_rows_are_due_later(store: Arc<dyn Store>, h: &Harness) {
    deliver_one(&store, h.delivery("e1", "{}", &billing())).await;
    let message = store.read_outbox(everything()).await.unwrap().messages.remove(0);
    store.delete_outbox(&[confirmed(&message, false)]).await.unwrap();
    store.return_to_outbox(std::slice::from_ref(&message.hand_over), Duration::from_secs(30)).await.unwrap();
    assert!(store.read_outbox(everything()).await.unwrap().messages.is_empty());
    assert_eq!(store.outbox_status().await.unwrap().depth, 1);
    h.backend.pass(Duration::from_secs(31)).await;
    let again = store.read_outbox(everything()).await.unwrap().messages.remove(0);
    assert_eq!((again.hand_over.attempt, again.receipt.id), (1, message.receipt.id));
    assert_ne!(again.id, message.id);
    // Given up: out of the outbox, into review.
    assert_eq!(store.give_up_outbox(&[again.id], JobReason::Unroutable, "no queue").await.unwrap(), 1);
    let job = store.job(&again.hand_over.key).await.unwrap().unwrap().job;
    assert_eq!((job.state, job.reason), (JobState::Review, Some(JobReason::Unroutable)));
    assert_eq!(store.outbox_status().await.unwrap().depth, 0);
}

#[derive(Default)]
struct Relay {
    log: Mutex<Vec<String>>,
    held: Mutex<Vec<OutboxId>>,
    rows: Mutex<Vec<OutboxMessage>>,
}

impl FreshRows for Relay {
    fn shard(&self, _: ReceiptId) -> u8 {
        17
    }

    fn before_commit(&self, rows: &[(OutboxId, u8)]) {
        assert!(rows.iter().all(|(_, shard)| *shard == 17));
        self.held.lock().unwrap().extend(rows.iter().map(|(id, _)| *id));
        self.log.lock().unwrap().push(format!("before {}", rows.len()));
    }

    fn committed(&self, rows: Vec<OutboxMessage>) {
        self.log.lock().unwrap().push(format!("committed {}", rows.len()));
        self.rows.lock().unwrap().extend(rows);
    }

    fn abandoned(&self, rows: &[OutboxId]) {
        self.log.lock().unwrap().push(format!("abandoned {}", rows.len()));
    }
}

pub async fn fresh_rows_reach_the_relay_of_the_process_after_commit(store: Arc<dyn Store>, h: &Harness) {
    let relay = Arc::new(Relay::default());
    store.attach(relay.clone());
    store.sync_subscriptions(billing()).await.unwrap();
    let mut batch = h.batch(vec![h.event("e1", "1"), h.event("e2", "2")], b"[1,2]", &billing());
    batch.events[0].part = Some((1, 2));
    super::harness::deliver(&store, batch).await.unwrap();
    let mut looked = store.read_outbox(everything()).await.unwrap().messages;
    looked.sort_by_key(|row| row.id);
    deliver_one(&store, h.delivery("e1", "1", &billing())).await;
    // The next commit is behind the one before it: what follows the first is known by now.
    deliver_one(&store, h.delivery("last", "{}", &set(Vec::new()))).await;
    assert_eq!(*relay.log.lock().unwrap(), ["before 2", "committed 2"], "a duplicate has nothing to hand over");
    let mut rows = relay.rows.lock().unwrap().clone();
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), *relay.held.lock().unwrap());
    // Both rows are of the same millisecond, so a look may give them in either order.
    rows.sort_by_key(|row| row.id);
    assert!(rows.iter().any(|row| row.body.as_deref() == Some(b"1".as_slice())));
    // The same messages as a look at the table gives.
    assert_eq!(rows.len(), looked.len());
    for (row, looked) in rows.iter().zip(&looked) {
        assert_eq!(
            (row.id, row.shard, &row.hand_over, &row.body),
            (looked.id, looked.shard, &looked.hand_over, &looked.body)
        );
        assert_eq!((&row.receipt, &row.content_type), (&looked.receipt, &looked.content_type));
    }
    // A paused subscription's rows are not handed over.
    h.backend.execute("UPDATE subscriptions SET state = 'paused', paused_at = 1").await.unwrap();
    deliver_one(&store, h.delivery("e3", "3", &billing())).await;
    deliver_one(&store, h.delivery("last", "{}", &set(Vec::new()))).await;
    assert_eq!(relay.rows.lock().unwrap().len(), 2);
}
