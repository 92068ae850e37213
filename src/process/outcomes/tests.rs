use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::clock::MockClock;
use crate::model::job::JobKey;
use crate::process::REPORT_BYTES_MAX;
use crate::process::fake::{FakeStore, job, report, subscriptions, token_key};

#[derive(Default)]
struct FakeFeed {
    batches: VecDeque<Vec<Incoming>>,
    acked: Vec<u64>,
}

#[async_trait]
impl Feed for FakeFeed {
    async fn take(&mut self, max: usize) -> Result<Vec<Incoming>, FeedError> {
        let batch = self.batches.pop_front().ok_or_else(|| FeedError("gone".into()))?;
        assert!(batch.len() <= max);
        Ok(batch)
    }

    async fn ack_up_to(&mut self, tag: u64) -> Result<(), FeedError> {
        self.acked.push(tag);
        Ok(())
    }
}

impl FakeFeed {
    fn of(bodies: Vec<Vec<u8>>) -> Self {
        let user = Some("billing-service".to_owned());
        let incoming = |(tag, body)| Incoming { tag, body: Bytes::from(body), user: user.clone() };
        Self { batches: VecDeque::from([(1..).zip(bodies).map(incoming).collect()]), acked: Vec::new() }
    }
}

fn consumer(store: &Arc<FakeStore>) -> OutcomeConsumer {
    let bounds = QuarantineBounds { count: 10, bytes: 1000, age: Duration::from_secs(60) };
    let (jobs, intake): (Arc<dyn Jobs>, Arc<dyn Intake>) = (store.clone(), store.clone());
    let clock = Arc::new(MockClock::at(1_700_000_000_000_000));
    OutcomeConsumer::new(ConsumerConfig::new(bounds), jobs, intake, ReportReader::new(token_key()), clock)
}

#[tokio::test]
async fn a_batch_is_acked_after_its_commit_and_not_before() {
    let store = Arc::new(FakeStore {
        failures: Mutex::new(VecDeque::from([StoreError::Unavailable("away".into()), StoreError::Busy])),
        ..FakeStore::default()
    });
    let mut consumer = consumer(&store);
    let mut feed = FakeFeed::of(vec![report(&job(1), 1, "completed", "a"), report(&job(2), 1, "failed", "b")]);
    for _ in 0..2 {
        let stepped = consumer.step(&mut feed, &subscriptions()).await.expect("the feed stands");
        assert_eq!(stepped, Stepped::StoreFailed);
        assert!(feed.acked.is_empty(), "nothing is acked while nothing is committed");
    }
    // The same batch again: no second take, which would fail here.
    let stepped = consumer.step(&mut feed, &subscriptions()).await.expect("the feed stands");
    assert_eq!(stepped, Stepped::Acked(2));
    assert_eq!(feed.acked, [2]);
    let committed = store.committed.lock().expect("not poisoned");
    assert_eq!(committed.len(), 2);
    assert_eq!(committed[0].consumer, "billing-service");
}

#[tokio::test]
async fn a_bad_report_is_kept_and_acked_and_never_stops_its_neighbours() {
    let store = Arc::new(FakeStore::default());
    let mut consumer = consumer(&store);
    let stolen =
        String::from_utf8(report(&job(1), 1, "completed", "")).expect("text").replace("\"attempt\":1", "\"attempt\":2");
    let mut feed = FakeFeed::of(vec![
        b"\xff\xfe".to_vec(),
        b"[]".to_vec(),
        stolen.into_bytes(),
        vec![b'x'; REPORT_BYTES_MAX + 1],
        report(&job(2), 1, "completed", "good"),
        report(&job(3), 9, "rejected", "of no attempt"),
    ]);
    assert_eq!(consumer.step(&mut feed, &subscriptions()).await.expect("the feed stands"), Stepped::Acked(6));
    assert_eq!(feed.acked, [6]);
    assert_eq!(store.committed.lock().expect("not poisoned").len(), 2);
    let kept = store.rejections.lock().expect("not poisoned");
    let codes: Vec<&str> = kept.iter().map(|rejection| rejection.code.as_str()).collect();
    assert_eq!(codes, ["report_malformed", "report_malformed", "token_wrong", "report_too_large"]);
    let token = token_key().token(&job(1), 1);
    assert!(!String::from_utf8_lossy(&kept[2].body).contains(&token), "a live token is not kept");
    assert!(kept.iter().all(|rejection| rejection.body.len() <= KEPT_BYTES_MAX));
}

#[tokio::test]
async fn a_row_that_the_database_refuses_is_isolated_and_the_others_commit_in_order() {
    let store = Arc::new(FakeStore { poison: Some("poison"), ..FakeStore::default() });
    let mut consumer = consumer(&store);
    let mut bodies: Vec<Vec<u8>> = (1..=9).map(|n| report(&job(n), 1, "completed", "good")).collect();
    bodies.insert(4, report(&job(99), 1, "completed", "poison"));
    let mut feed = FakeFeed::of(bodies);
    assert_eq!(consumer.step(&mut feed, &subscriptions()).await.expect("the feed stands"), Stepped::Acked(10));
    let committed: Vec<JobKey> =
        store.committed.lock().expect("not poisoned").iter().map(|report| report.key.clone()).collect();
    assert_eq!(committed, (1..=9).map(job).collect::<Vec<_>>());
    assert_eq!(store.rejections.lock().expect("not poisoned")[0].code, "row_refused");
}

#[tokio::test]
async fn what_was_held_of_an_old_connection_is_forgotten_with_it() {
    let store =
        Arc::new(FakeStore { failures: Mutex::new(VecDeque::from([StoreError::Busy])), ..FakeStore::default() });
    let mut consumer = consumer(&store);
    let mut old = FakeFeed::of(vec![report(&job(1), 1, "completed", "old tag")]);
    assert_eq!(consumer.step(&mut old, &subscriptions()).await.expect("stands"), Stepped::StoreFailed);
    consumer.forget();
    let mut new = FakeFeed::of(vec![report(&job(1), 1, "completed", "same message")]);
    assert_eq!(consumer.step(&mut new, &subscriptions()).await.expect("stands"), Stepped::Acked(1));
    assert_eq!((old.acked.len(), new.acked.len()), (0, 1));
    assert_eq!(store.committed.lock().expect("not poisoned").len(), 1);
}

struct FakeFeeds(VecDeque<FakeFeed>, CancellationToken);

#[async_trait]
impl Feeds for FakeFeeds {
    async fn next(&mut self) -> Box<dyn Feed> {
        match self.0.pop_front() {
            Some(feed) => Box::new(feed),
            None => {
                self.1.cancel();
                std::future::pending().await
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_loop_goes_from_one_connection_to_the_next_and_ends_when_asked() {
    let store =
        Arc::new(FakeStore { failures: Mutex::new(VecDeque::from([StoreError::Busy])), ..FakeStore::default() });
    let stop = CancellationToken::new();
    let feeds = VecDeque::from([
        FakeFeed::of(vec![report(&job(1), 1, "completed", "one")]),
        FakeFeed::of(vec![report(&job(2), 1, "completed", "two")]),
    ]);
    consumer(&store).run(Box::new(FakeFeeds(feeds, stop.clone())), subscriptions(), stop).await;
    assert_eq!(store.committed.lock().expect("not poisoned").len(), 2);
}
