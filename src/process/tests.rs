//! The loops by time: scheduler, looks for what was lost, gauges.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::fake::{FakeStore, subscriptions};
use super::*;
use crate::clock::MockClock;
use crate::metrics;
use crate::model::job::JobState;
use crate::store::{JobStatus, Jobs};

#[tokio::test]
async fn a_scheduler_step_takes_full_batches_again_and_says_when_there_is_more() {
    let store = Arc::new(FakeStore { numbers: Mutex::new([5, 10, 10, 10, 3].into()), ..FakeStore::default() });
    let jobs: Arc<dyn Jobs> = store.clone();
    let config = SchedulerConfig { batch_max: 10, batches_max: 3, ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(config, jobs, subscriptions());
    let done = scheduler.step().await.expect("stepped");
    assert_eq!(done, SchedulerStep { handed_out: 30, rescued: 5, more: true });
    assert_eq!(store.asked().iter().filter(|asked| asked.starts_with("rescue")).count(), 1);
    let done = scheduler.step().await.expect("stepped");
    assert_eq!(done, SchedulerStep { handed_out: 0, rescued: 3, more: false });
}

struct FakeQueue(AtomicU64);

#[async_trait]
impl QueueLook for FakeQueue {
    async fn ready(&self, _subscription: &str) -> Option<u64> {
        let n = self.0.load(Ordering::SeqCst);
        (n < u64::MAX).then_some(n)
    }
}

#[tokio::test]
async fn only_a_queue_that_was_empty_at_three_looks_in_a_row_a_minute_apart_has_lost_anything() {
    let store = Arc::new(FakeStore::default());
    let (jobs, clock) = (store.clone() as Arc<dyn Jobs>, Arc::new(MockClock::at(0)));
    let queue = Arc::new(FakeQueue(AtomicU64::new(0)));
    let mut watch = LostWatch::new(LostConfig::default(), jobs, queue.clone(), subscriptions(), clock.clone());
    let mut look = async |ready: u64, seconds: u64| {
        queue.0.store(ready, Ordering::SeqCst);
        clock.advance(Duration::from_secs(seconds));
        watch.step().await.expect("looked")
    };
    assert_eq!(look(0, 0).await, 0);
    assert_eq!(look(0, 1).await, 0, "not a minute later");
    assert_eq!(look(0, 59).await, 0);
    assert_eq!(look(7, 60).await, 0, "something is ready: it begins anew");
    assert_eq!(look(0, 60).await, 0);
    assert_eq!(look(u64::MAX, 60).await, 0, "nobody can say: it begins anew");
    assert_eq!(look(0, 60).await, 0);
    assert_eq!(look(0, 60).await, 0);
    assert!(store.asked().is_empty());
    assert_eq!(look(0, 60).await, 1);
    assert_eq!(store.asked(), ["republish billing 2"], "not for pull, and not for what completes on its confirm");
}

#[tokio::test]
async fn gauges_follow_the_counters_and_every_label_starts_at_zero() {
    let recorder = metrics::builder().expect("buckets").build_recorder();
    let handle = recorder.handle();
    let store = Arc::new(FakeStore::default());
    let mut gauges = Gauges::new(store.clone(), &subscriptions());
    let set = |counts: &[(&str, JobState, i64)]| {
        let counts = counts.iter().map(|(name, state, n)| (((*name).to_owned(), *state), *n)).collect();
        let oldest_unprocessed = BTreeMap::from([("billing".to_owned(), Duration::from_secs(42))]);
        *store.status.lock().expect("not poisoned") = JobStatus { counts, oldest_unprocessed, ..JobStatus::default() };
    };
    ::metrics::with_local_recorder(&recorder, || start_metrics(&subscriptions()));
    let rendered = handle.render();
    for line in [
        "makbuz_jobs{subscription=\"badges\",state=\"review\"} 0",
        "makbuz_jobs{subscription=\"~intake\",state=\"review\"} 0",
        "makbuz_attempts_total{subscription=\"billing\",outcome=\"failed\"} 0",
        "makbuz_attempt_failures_total{subscription=\"billing\",reason=\"no_outcome\"} 0",
        "makbuz_bad_reports_total{code=\"token_wrong\"} 0",
        "makbuz_oldest_review_seconds{subscription=\"billing\"} 0",
    ] {
        assert!(rendered.contains(line), "{line} is not in\n{rendered}");
    }

    let step = |gauges: &mut Gauges| {
        let stepped =
            ::metrics::with_local_recorder(&recorder, || futures_util::FutureExt::now_or_never(gauges.step()));
        stepped.expect("the fake never waits").expect("stepped");
        handle.render()
    };
    set(&[("billing", JobState::Review, 3), ("old-name", JobState::Queued, 2)]);
    let rendered = step(&mut gauges);
    assert!(rendered.contains("makbuz_jobs{subscription=\"billing\",state=\"review\"} 3"));
    assert!(
        rendered.contains("makbuz_jobs{subscription=\"old-name\",state=\"queued\"} 2"),
        "a retired one is shown too"
    );
    assert!(rendered.contains("makbuz_oldest_unprocessed_seconds{subscription=\"billing\"} 42"));
    set(&[]);
    let rendered = step(&mut gauges);
    assert!(rendered.contains("makbuz_jobs{subscription=\"old-name\",state=\"queued\"} 0"), "and does not stand still");
}
