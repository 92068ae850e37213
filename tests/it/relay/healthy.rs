//! When everything works.

use std::collections::HashSet;
use std::time::Duration;

use makbuz::model::job::{JobState, Lane};
use makbuz::model::subscription::CompletesOn;
use makbuz::store::FreshRows;

use super::memory::Memory;
use super::stage::{LIMIT, QUIET, Stage, eventually, quick, subscription, two};
use crate::support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_reaches_its_own_queue_once_and_leaves_the_outbox() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let billing = store.add_many("billing", 600);
    store.add_many("mail", 300);
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(600, LIMIT, QUIET).await;
    let mut mail = rabbit.consume(&rabbit.names().queue("mail")).await;
    mail.until(300, LIMIT, QUIET).await;
    assert!(taker.taken.values().chain(mail.taken.values()).all(|times| *times == 1), "once each");
    let came: HashSet<String> = taker.taken.keys().map(|(id, _)| id.clone()).collect();
    assert_eq!(came, billing.iter().map(ToString::to_string).collect());
    eventually("all deleted", || store.depth() == 0).await;
    assert_eq!(store.returned(), 0);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_arrive_as_they_were_signed() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let large = vec![0xa5; 256 * 1024];
    for body in [&b""[..], b"{\"a\":1.0,\"a\":\"\\u0000\"}\r\n", b"\xef\xbb\xbf{}", &all_bytes, &large] {
        store.add("billing", body);
        let got = taker.next(LIMIT).await;
        assert!(got.data == body, "{} bytes became {}", body.len(), got.data.len());
    }
    // One byte more, and only its address travels.
    let id = store.add("billing", &vec![7; 256 * 1024 + 1]);
    let got = taker.next(LIMIT).await;
    assert!(got.data.is_empty());
    let headers = got.properties.headers().clone().expect("headers");
    let url = headers.inner().get("makbuz-body-url").expect("an address");
    assert_eq!(
        format!("{url:?}"),
        format!(
            "{:?}",
            lapin::types::AMQPValue::LongString(format!("https://hooks.example.com/v1/receipts/{id}/body").into())
        )
    );
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_trouble_takes_the_slow_queue() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let slow = store.add_row(store.message("billing", b"{}", Lane::Slow));
    let fresh = store.add("billing", b"{}");
    let stage = Stage::start(&rabbit, &store, quick("a"));
    stage.connected().await;
    for (queue, id) in [(rabbit.names().slow_queue("billing"), slow), (rabbit.names().queue("billing"), fresh)] {
        let mut taker = rabbit.consume(&queue).await;
        let got = taker.next(LIMIT).await;
        assert_eq!(got.properties.message_id().as_ref().map(ToString::to_string), Some(id.to_string()));
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_rows_go_out_from_memory_once() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut config = quick("a");
    config.look_idle = Duration::from_millis(100);
    let stage = Stage::start(&rabbit, &store, config);
    stage.connected().await;
    // The hand-over in memory begins once a look has found nothing due.
    eventually("a first look", || store.looks() > 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    for n in 0..400 {
        let mut row = store.message("billing", b"{}", Lane::Fresh);
        row.shard = stage.held.shard(row.receipt.id);
        stage.held.before_commit(&[(row.id, row.shard)]);
        if n % 7 == 0 {
            // This COMMIT failed: there is no row, and no message.
            stage.held.abandoned(&[row.id]);
            continue;
        }
        store.add_row(row.clone());
        if n % 5 != 0 {
            stage.held.committed(vec![row]);
        } else {
            // Its outcome is unknown, but it stands: the table has it.
            stage.held.abandoned(&[row.id]);
        }
    }
    let stored = (0..400).filter(|n| n % 7 != 0).count();
    taker.until(stored, LIMIT, QUIET).await;
    assert_eq!(taker.taken.len(), stored);
    assert!(taker.taken.values().all(|times| *times == 1), "a look and the memory both published");
    eventually("all deleted", || store.depth() == 0).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_completes_on_the_confirm_is_completed_with_its_row() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let mut known = two();
    known[1] = subscription("mail");
    known[1].completes_on = CompletesOn::Confirm;
    let (reports, confirms) = (store.add("billing", b"{}"), store.add("mail", b"{}"));
    let stage = Stage::start_with(rabbit.config(), &store, quick("a"), known);
    eventually("all deleted", || store.depth() == 0).await;
    assert_eq!(store.job(confirms, "mail").0, JobState::Completed);
    assert_eq!(store.job(reports, "billing").0, JobState::Queued, "a confirm is not an effect");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_share_the_shards_and_the_survivor_adopts_them() {
    let (rabbit, store) = (Rabbit::new().await, Memory::new());
    let config = |name| {
        let mut config = quick(name);
        config.lease = Duration::from_millis(1500);
        config.renew_every = Duration::from_millis(300);
        config
    };
    let a = Stage::start(&rabbit, &store, config("a"));
    let b = Stage::start(&rabbit, &store, config("b"));
    eventually("half each", || store.shards_of("a") == 16 && store.shards_of("b") == 16).await;
    store.add_many("billing", 200);
    eventually("both empty their halves", || store.depth() == 0).await;
    a.die();
    store.add_many("billing", 200);
    eventually("the survivor has all", || store.shards_of("b") == 32).await;
    eventually("and empties them", || store.depth() == 0).await;
    let mut taker = rabbit.consume(&rabbit.names().queue("billing")).await;
    taker.until(400, LIMIT, QUIET).await;
    b.end().await;
    assert_eq!((0..32).filter(|shard| store.holder(*shard).is_some()).count(), 0, "given back at a soft stop");
}
