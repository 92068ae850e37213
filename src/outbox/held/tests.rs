use super::*;
use crate::model::attempt::Trigger;
use crate::model::job::{JobKey, Lane};
use crate::model::receipt::{EventKey, Mode, Origin, Receipt};
use crate::store::HandOver;
use bytes::Bytes;
use std::sync::Arc;
use uuid::Uuid;

fn row(n: u128, shard: u8, subscription: &str) -> OutboxMessage {
    let id = ReceiptId(Uuid::from_u128(n));
    let receipt = Receipt {
        id,
        key: EventKey { provider: "p".to_owned(), account: String::new(), event_id: n.to_string() },
        provider_ref: n.to_string(),
        mode: Mode::Unknown,
        source: "s".to_owned(),
        event_type: String::new(),
        occurred_at: None,
        received_at: 0,
        resource_key: None,
        resource_version: None,
        payload_id: None,
        pointer: None,
        part: None,
        item_sha256: None,
        signed_sha256: None,
        verified_by: None,
        origin: Origin::Delivery,
        flags: String::new(),
        hold_reason: None,
        duplicates: 0,
        last_delivered_at: None,
    };
    OutboxMessage {
        id: OutboxId(Uuid::from_u128(n)),
        shard,
        queued_at: 0,
        hand_over: HandOver {
            key: JobKey { receipt: id, subscription: subscription.to_owned() },
            attempt: 1,
            lane: Lane::Fresh,
            trigger: Trigger::First,
        },
        receipt: Arc::new(receipt),
        content_type: String::new(),
        body: Some(Bytes::from_static(b"0123456789")),
    }
}

/// Holds shards 1 and 2, and has seen an empty table.
fn held() -> Held {
    let config = HeldConfig { fresh_rows_max: 3, fresh_bytes_max: 25, announced_max: Duration::from_secs(60) };
    let held = Held::new(config);
    held.set_shards(&[1, 2]);
    held.begin_look();
    held.end_look(Vec::new(), true);
    held
}

fn commit(held: &Held, row: &OutboxMessage) {
    held.before_commit(&[(row.id, row.shard)]);
    held.committed(vec![row.clone()]);
}

fn taken(held: &Held) -> Vec<u128> {
    held.take_fresh(100, 1000).iter().map(|row| row.id.0.as_u128()).collect()
}

#[test]
fn nothing_is_handed_over_before_the_first_look() {
    let held = Held::new(HeldConfig::default());
    held.set_shards(&[1]);
    commit(&held, &row(1, 1, "a"));
    assert!(taken(&held).is_empty());
    assert!(held.begin_look().is_empty(), "the row is the table's");
}

#[test]
fn a_row_is_held_from_before_its_commit() {
    let held = held();
    let fresh = row(1, 1, "a");
    held.before_commit(&[(fresh.id, 1)]);
    assert!(held.begin_look().contains(&fresh.id), "a look leaves it out");
    assert!(held.end_look(vec![fresh.clone()], false).is_empty(), "even if it saw it");
    assert!(taken(&held).is_empty(), "and it is not published before it is committed");
    held.committed(vec![fresh.clone()]);
    assert_eq!(taken(&held), [1]);
    assert!(held.holds_any_of(1), "it is held until it is deleted");
    held.let_go([fresh.id].into_iter());
    assert!(!held.holds_any_of(1));
}

#[test]
fn a_commit_that_failed_or_is_unknown_leaves_the_row_to_the_table() {
    let held = held();
    let fresh = row(1, 1, "a");
    held.before_commit(&[(fresh.id, 1)]);
    held.abandoned(&[fresh.id]);
    held.begin_look();
    assert_eq!(held.end_look(vec![fresh], false).len(), 1, "it stands after all");
}

#[test]
fn a_row_handled_during_a_look_is_not_taken_from_its_old_snapshot() {
    let held = held();
    held.begin_look();
    let fresh = row(1, 1, "a");
    commit(&held, &fresh);
    assert_eq!(taken(&held), [1]);
    held.let_go([fresh.id].into_iter());
    assert!(held.end_look(vec![fresh], false).is_empty(), "published and deleted meanwhile");
}

#[test]
fn past_the_bounds_the_table_takes_over_until_a_look_finds_nothing() {
    let held = held();
    for n in 1..=2 {
        commit(&held, &row(n, 1, "a"));
    }
    // 30 bytes would be more than 25.
    commit(&held, &row(3, 1, "a"));
    commit(&held, &row(4, 1, "a"));
    assert_eq!(taken(&held), [1, 2]);
    commit(&held, &row(5, 1, "a"));
    assert!(taken(&held).is_empty(), "still behind");
    held.begin_look();
    let found = held.end_look(vec![row(3, 1, "a"), row(4, 1, "a"), row(5, 1, "a")], false);
    assert_eq!(found.len(), 3, "none is lost");
    held.begin_look();
    held.end_look(Vec::new(), true);
    commit(&held, &row(6, 1, "a"));
    assert_eq!(taken(&held), [6]);
}

#[test]
fn a_look_that_has_seen_all_that_was_due_ends_being_behind_though_it_was_not_empty() {
    let held = Held::new(HeldConfig::default());
    held.set_shards(&[1]);
    held.begin_look();
    assert_eq!(held.end_look(vec![row(1, 1, "a")], false).len(), 1);
    commit(&held, &row(2, 1, "a"));
    assert!(taken(&held).is_empty(), "that look was cut short");
    held.begin_look();
    assert_eq!(held.end_look(vec![row(2, 1, "a")], true).len(), 1);
    commit(&held, &row(3, 1, "a"));
    assert_eq!(taken(&held), [3]);
    assert_eq!(held.begin_look(), [1, 2, 3].map(|n| row(n, 1, "a").id).into_iter().collect(), "each in one hand only");
}

#[test]
fn announced_rows_count_towards_the_bound() {
    let held = held();
    held.before_commit(&[1, 2, 3].map(|n| (row(n, 1, "a").id, 1)));
    held.before_commit(&[(row(4, 1, "a").id, 1)]);
    assert_eq!(held.begin_look().len(), 3);
}

#[test]
fn rows_of_other_shards_and_of_waiting_subscriptions_stay_in_the_table() {
    let held = held();
    held.set_waiting(["b"].into_iter());
    commit(&held, &row(1, 7, "a"));
    commit(&held, &row(2, 1, "b"));
    commit(&held, &row(3, 1, "a"));
    commit(&held, &row(4, 2, "a"));
    held.set_shards(&[1]);
    assert_eq!(taken(&held), [3], "shard 2 was given up");
    assert_eq!(held.begin_look(), HashSet::from([row(3, 1, "a").id]));
}

#[test]
fn a_row_of_whose_commit_nobody_spoke_is_the_tables_again() {
    let mut held = held();
    held.config.announced_max = Duration::ZERO;
    let fresh = row(1, 1, "a");
    held.before_commit(&[(fresh.id, 1)]);
    assert!(held.begin_look().is_empty());
    held.end_look(Vec::new(), true);
    held.committed(vec![fresh.clone()]);
    assert!(taken(&held).is_empty(), "a late word does not publish it twice");
    held.begin_look();
    assert_eq!(held.end_look(vec![fresh], false).len(), 1);
}

#[test]
fn fresh_rows_are_written_into_held_shards() {
    let held = held();
    for n in 0..100 {
        assert!([1, 2].contains(&held.shard(ReceiptId(Uuid::from_u128(n)))));
    }
    held.close();
    assert!(held.shard(ReceiptId(Uuid::from_u128(77))) < SHARDS, "without shards, into any");
    commit(&held, &row(9, 1, "a"));
    assert!(taken(&held).is_empty());
}
