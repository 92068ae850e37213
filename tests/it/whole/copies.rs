//! Many copies of one event, and a forgery before it: one receipt, one job, one message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use super::super::support::client;
use super::super::support::database::plain_id;
use super::super::support::{eventually, sign};
use super::{House, SECRET};

/// W-098: the forger knows the id before the provider has sent it, and gains nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgery_with_its_id_does_not_keep_the_authentic_event_out() {
    let house = House::embedded();
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let body = sign::body("evt_forged_first", 100);
    let headers = sign::headers(SECRET, &body);
    let mut forged = body.clone();
    let at = forged.len() / 2;
    forged[at] ^= 1;
    let refused = client::send(gateway.edge, "POST", "/in/pay", &headers, &forged).await.expect("an answer");
    assert_eq!(refused.status, 401, "{}", refused.text());
    assert_eq!(house.store.read().await.receipts, BTreeMap::new(), "nothing of it is kept");
    let kept = client::send(gateway.edge, "POST", "/in/pay", &headers, &body).await.expect("an answer");
    assert_eq!(kept.status, 200, "{}", kept.text());
    let receipt = plain_id(kept.receipt().expect("C1: a 200 names its receipt"));
    let expected = BTreeMap::from([("evt_forged_first".to_owned(), receipt)]);
    assert_eq!(house.store.read().await.receipts, expected);
}

/// Sessions of the program that wait for a lock of this kind.
async fn waiting_for(locktype: &str, connection: &mut PgConnection) -> i64 {
    let waiting = sqlx::query_scalar(
        "SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
         WHERE a.datname = current_database() AND a.application_name LIKE 'makbuz %'
           AND l.locktype = $1 AND NOT l.granted",
    );
    waiting.bind(locktype).fetch_one(connection).await.expect("a count")
}

/// W-107, W-085: a provider that sends the same event over two hundred connections at once, while the first one's COMMIT
/// is held up: nobody is answered before it, and all alike after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_copies_at_once_are_one_receipt_one_job_and_one_message() {
    let Some(house) = House::production().await else { return };
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let body = sign::body("evt_copied", 100);
    let headers = sign::headers(SECRET, &body);
    let url = &house.services.as_ref().expect("production has a database").0.url;
    let mut holder = PgConnection::connect(url).await.expect("the database");
    let mut other = PgConnection::connect(url).await.expect("the database");
    let at_commit = sqlx::raw_sql(
        "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON receipts DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION at_commit();
         SELECT pg_advisory_lock(42)",
    );
    at_commit.execute(&mut holder).await.expect("the COMMIT will wait");
    let mut copies = JoinSet::new();
    for _ in 0..200 {
        let (edge, headers, body) = (gateway.edge, headers.clone(), body.clone());
        copies.spawn(async move { client::send(edge, "POST", "/in/pay", &headers, &body).await });
    }
    // Well within `lock_timeout` and `answer_max`.
    for locktype in ["advisory", "transactionid"] {
        eventually("one COMMIT waits, and copies wait for it", Duration::from_secs(2), async || {
            (waiting_for(locktype, &mut other).await == 1).then_some(())
        })
        .await;
    }
    assert!(copies.try_join_next().is_none(), "answered before the COMMIT");
    sqlx::raw_sql("SELECT pg_advisory_unlock(42)").execute(&mut holder).await.expect("released");
    let mut receipts = BTreeSet::new();
    while let Some(answer) = copies.join_next().await {
        let answer = answer.expect("no panic").expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        receipts.insert(plain_id(answer.receipt().expect("C1: a 200 names its receipt")));
    }
    let receipt = receipts.pop_first().expect("200 answers");
    assert!(receipts.is_empty(), "C3: other receipts than {receipt}: {receipts:?}");
    let kept = house.store.read().await;
    assert_eq!(kept.receipts, BTreeMap::from([("evt_copied".to_owned(), receipt.clone())]));
    assert_eq!(kept.jobs, 1, "one job for the one subscription");
    let messages = house.broker().take("all", 1, Duration::from_secs(30)).await;
    assert_eq!(messages.len(), 1, "one message");
    assert_eq!((&messages[0].receipt, &messages[0].body), (&receipt, &body));
}
