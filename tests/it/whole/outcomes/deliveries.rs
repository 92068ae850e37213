//! What the broker counts of its deliveries is the broker's. Ours are attempts: in the database, for each job alone.

use std::collections::BTreeMap;

use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use serde_json::{Value, json};

use super::broker::{Worker, production};
use super::{Desk, Work, history};

/// W-145: one event kills whoever works on it, thrice, and with each death all that was prefetched goes back. The broker
/// counts that against each of them; we count it where the work had begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_kills_its_consumer_uses_up_its_own_tries_and_no_neighbours() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (poison, _) = desk.accepted("evt_poison").await;
    let mut neighbours = Vec::new();
    for number in 0..10 {
        neighbours.push(desk.accepted(&format!("evt_neighbour_{number}")).await.0);
    }
    for death in 1..=3 {
        let mut worker = Worker::of(&house, "hasty").await;
        let held = prefetch(&mut worker, neighbours.len(), &poison, death).await;
        for neighbour in &neighbours {
            assert_eq!(held[&(neighbour.clone(), 1)].1.redelivered, death > 1, "the broker has given it before");
        }
        worker.report(&held[&(poison.clone(), death)].0.says("started")).await;
        worker.heard(&desk).await;
        worker.dies().await;
    }
    let mut worker = Worker::of(&house, "hasty").await;
    let held = prefetch(&mut worker, neighbours.len(), &poison, 3).await;
    let shown = desk.job(&poison, "hasty", "queued", 4).await;
    let ended: Vec<_> = history(&shown)[..3].iter().map(|(number, _, _, class, _)| (*number, *class)).collect();
    assert_eq!(ended, [1, 2, 3].map(|number| (number, Some("no_outcome"))));
    for neighbour in &neighbours {
        assert_eq!(desk.job(neighbour, "hasty", "queued", 1).await["attempts"], json!([]), "not one attempt of theirs");
    }
    for neighbour in &neighbours {
        let (work, delivery) = &held[&(neighbour.clone(), 1)];
        worker.report(&work.says("completed")).await;
        delivery.ack(BasicAckOptions::default()).await.expect("an ack");
    }
    for neighbour in &neighbours {
        let done = desk.job(neighbour, "hasty", "completed", 1).await;
        assert_eq!(history(&done), [(1, "first", Some("completed"), None, false)]);
    }
    // Its last try is in the lane of old trouble, and then it waits for a person.
    let last = Worker::of(&house, "hasty.slow").await.take().await;
    assert_eq!((&last.receipt, last.attempt), (&poison, 4));
    worker.report(&last.says("failed")).await;
    assert_eq!(desk.job(&poison, "hasty", "review", 4).await["job"]["reason"], json!("exhausted"));
}

/// Holds all that the queue gives until the neighbours and this attempt of the poison have come, by receipt and attempt.
async fn prefetch(
    worker: &mut Worker,
    neighbours: usize,
    poison: &str,
    attempt: i64,
) -> BTreeMap<(String, i64), (Work, Delivery)> {
    let mut held = BTreeMap::new();
    let newest = (poison.to_owned(), attempt);
    let others = |held: &BTreeMap<(String, i64), _>| held.keys().filter(|(receipt, _)| receipt != poison).count();
    while others(&held) < neighbours || !held.contains_key(&newest) {
        let (work, delivery) = worker.hold().await;
        held.insert((work.receipt.clone(), work.attempt), (work, delivery));
    }
    held
}

/// W-148: the work takes longer than the broker waits for an ack. Somebody else gets the message, and it is the same attempt
/// under the same lease; whoever ends it first has ended it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_given_to_another_consumer_is_the_same_attempt_under_the_same_lease() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_long").await;
    let mut first = Worker::of(&house, "patient").await;
    let (work, _) = first.hold().await;
    first.report(&work.says("started")).await;
    let running = desk.job(&receipt, "patient", "running", 1).await;
    let lease = |shown: &Value| shown["job"]["leased_until"].clone();
    assert!(lease(&running).is_string());
    first.dies().await;

    let mut second = Worker::of(&house, "patient").await;
    let (again, delivery) = second.hold().await;
    assert!(delivery.redelivered);
    let same = |work: &Work| (work.receipt.clone(), work.attempt, work.trigger.clone(), work.token.clone());
    assert_eq!(same(&again), same(&work));
    second.report(&again.says("started")).await;
    second.heard(&desk).await;
    assert_eq!(desk.job(&receipt, "patient", "running", 1).await, running, "no second attempt, no other lease");

    // Only its channel was closed: the first one has done it.
    second.report(&work.says("completed")).await;
    let done = desk.job(&receipt, "patient", "completed", 1).await;
    assert_eq!(history(&done), [(1, "first", Some("completed"), None, false)]);
    second.report(&again.says("completed")).await;
    second.heard(&desk).await;
    assert_eq!(desk.job(&receipt, "patient", "completed", 1).await, done);
    delivery.ack(BasicAckOptions::default()).await.expect("an ack");
    let counter = "makbuz_attempts_total{subscription=\"patient\",outcome=\"completed\"}";
    assert_eq!(desk.counted(counter).await, 1);
}
