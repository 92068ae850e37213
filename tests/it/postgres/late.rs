//! Rows that become visible out of order: an older id committed after a younger one was published and deleted.

use std::time::Duration;

use makbuz::clock::{Clock, SystemClock, micros};
use makbuz::model::id::{OutboxId, PayloadId, ReceiptId};
use makbuz::random::SystemRandom;
use makbuz::store::postgres::PostgresStore;
use makbuz::store::{ConfirmedRow, Intake, Outbox, OutboxMessage, OutboxQuery, SHARDS, Upkeep};

use super::deliveries::{answer, delivery, store};
use crate::support::postgres::{TestDatabase, run};

/// What is there, by either way of looking.
async fn look(store: &PostgresStore, by_lane: bool) -> Vec<OutboxMessage> {
    let query = OutboxQuery {
        shards: (0..SHARDS).collect(),
        limit: 100,
        bytes_max: 1 << 20,
        // A lane that backs off makes the look go lane by lane.
        skip_lanes: if by_lane { vec![(0, "none".to_owned())] } else { Vec::new() },
        ..OutboxQuery::default()
    };
    store.read_outbox(query).await.expect("a look").messages
}

async fn publish(store: &PostgresStore, rows: Vec<OutboxMessage>) {
    let confirmed = rows.into_iter().map(|row| ConfirmedRow { id: row.id, hand_over: row.hand_over, completes: false });
    store.delete_outbox(&confirmed.collect::<Vec<_>>()).await.expect("deleted");
}

/// W-140: "what is still there", never "id greater than the last".
#[tokio::test]
async fn a_row_committed_late_under_a_low_id_is_still_found() {
    for by_lane in [false, true] {
        let database = TestDatabase::create().await;
        let store = store(database.config()).await;
        let id = answer(store.submit(delivery("evt_model"))).await.expect("a commit").events[0].receipt_id;
        let rows = look(&store, by_lane).await;
        assert_eq!(rows.len(), 1);

        // The same rows under older ids, in a transaction that does not end.
        let (past, random) = (SystemClock.now() - micros(Duration::from_secs(60)), SystemRandom::new());
        let (receipt, payload) = (ReceiptId::new(past, &random), PayloadId::new(past, &random));
        let row = OutboxId::new(past, &random);
        assert!(row < rows[0].id);
        let mut late = database.connect().await;
        let copies = [
            format!("SELECT (jsonb_populate_record(r, '{{\"id\": \"{payload}\"}}')).* FROM payloads r"),
            format!(
                "SELECT (jsonb_populate_record(r, '{{\"id\": \"{receipt}\", \"event_id\": \"evt_late\", \"payload_id\": \"{payload}\"}}')).*
                 FROM receipts r WHERE id = '{id}'"
            ),
            format!("SELECT (jsonb_populate_record(r, '{{\"receipt_id\": \"{receipt}\"}}')).* FROM jobs r"),
            format!(
                "SELECT (jsonb_populate_record(r, '{{\"id\": \"{}\", \"receipt_id\": \"{receipt}\"}}')).* FROM outbox r",
                row.0
            ),
        ];
        run(&mut late, "BEGIN").await;
        for (table, copy) in ["payloads", "receipts", "jobs", "outbox"].into_iter().zip(copies) {
            run(&mut late, format!("INSERT INTO {table} {copy}")).await;
        }
        publish(&store, rows).await;

        answer(store.submit(delivery("evt_younger"))).await.expect("a commit");
        let younger = look(&store, by_lane).await;
        assert_eq!(younger.iter().map(|row| row.receipt.key.event_id.as_str()).collect::<Vec<_>>(), ["evt_younger"]);
        publish(&store, younger).await;
        assert!(look(&store, by_lane).await.is_empty());

        run(&mut late, "COMMIT").await;
        let found = look(&store, by_lane).await;
        assert_eq!(found.iter().map(|row| (row.id, row.receipt.id)).collect::<Vec<_>>(), [(row, receipt)]);
        assert!(found[0].body.is_some(), "with its body");
        publish(&store, found).await;
        assert_eq!(store.outbox_status().await.expect("a status").depth, 0);
        store.close().await;
    }
}
