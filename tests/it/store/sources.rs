//! One event through two sources: one receipt (W-100), and jobs only where the second source brings them.

use std::sync::Arc;

use makbuz::model::attempt::Trigger;
use makbuz::model::job::{INTAKE, Job, JobKey, JobReason, JobState};
use makbuz::model::receipt::{HoldReason, Origin};
use makbuz::model::subscription::{SubscriptionSet, Target};
use makbuz::store::{NewDelivery, ReplayRequest, ReplayVerdict, Store, Verdict};

use super::harness::{Harness, deliver_all, deliver_one, from_sources, set};

/// `a` and `b` take their own source, `any` takes both.
fn by_source() -> Arc<SubscriptionSet> {
    set(vec![
        from_sources("a", Target::Amqp, &["web"]),
        from_sources("any", Target::Amqp, &[]),
        from_sources("b", Target::Amqp, &["second"]),
        from_sources("c", Target::Pull, &["second", "third"]),
    ])
}

fn through(h: &Harness, source: &str, body: &str) -> NewDelivery {
    let mut delivery = h.delivery("e1", body, &by_source());
    delivery.source = source.into();
    delivery
}

fn names(jobs: &[Job]) -> Vec<(&str, &str, JobState)> {
    jobs.iter().map(|job| (job.key.subscription.as_str(), job.source.as_str(), job.state)).collect()
}

const WITH_SECOND: [(&str, &str, JobState); 4] = [
    ("a", "web", JobState::Queued),
    ("any", "web", JobState::Queued),
    ("b", "second", JobState::Queued),
    ("c", "second", JobState::Pending),
];

pub async fn a_second_source_adds_the_jobs_that_only_it_brings(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, through(h, "web", "{}")).await;
    let second = deliver_one(&store, through(h, "second", "{}")).await;
    assert_eq!((second.verdict, second.receipt_id), (Verdict::Duplicate, first.receipt_id));
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!(names(&view.jobs), WITH_SECOND);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 3);
    // Again, and through a third: what is there stays alone.
    deliver_one(&store, through(h, "second", "{}")).await;
    deliver_one(&store, through(h, "third", "{}")).await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap().unwrap().jobs, view.jobs);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 3);
    assert_eq!(h.count("SELECT CAST(sum(n) AS bigint) FROM job_counts WHERE state = 'queued'").await, 3);
}

pub async fn a_second_source_in_the_same_batch_adds_them_too(store: Arc<dyn Store>, h: &Harness) {
    let deliveries = vec![
        through(h, "web", "{}"),
        through(h, "second", "{}"),
        through(h, "second", "{}"),
        through(h, "third", "{}"),
    ];
    let heard = deliver_all(&store, deliveries).await;
    let first = heard[0].as_ref().unwrap().events[0].receipt_id;
    let view = store.receipt(first).await.unwrap().unwrap();
    // Two writers may have shared them out: what every source brings is the first one's to commit.
    let mut expected = WITH_SECOND;
    expected[1].1 = if view.receipt.source == "web" { "web" } else { "second" };
    assert_eq!(names(&view.jobs), expected);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 3);
}

pub async fn a_missing_job_of_the_first_source_is_not_made_up_for(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, through(h, "web", "{}")).await;
    h.backend.execute("DELETE FROM jobs WHERE subscription IN ('a', 'any')").await.unwrap();
    deliver_one(&store, through(h, "web", "{}")).await;
    deliver_one(&store, through(h, "second", "{}")).await;
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!(names(&view.jobs), WITH_SECOND[2..]);
}

pub async fn held_and_imported_receipts_get_no_jobs_from_other_sources(store: Arc<dyn Store>, h: &Harness) {
    let mut held = through(h, "web", "{}");
    held.events[0].hold = Some(HoldReason::NoId);
    let first = deliver_one(&store, held).await;
    deliver_one(&store, through(h, "second", "{}")).await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap().unwrap().jobs.len(), 1);

    // Let go by a person, it is like any other: the second source brings the jobs that only it brings.
    let key = JobKey { receipt: first.receipt_id, subscription: INTAKE.to_owned() };
    let request = ReplayRequest { trigger: Trigger::Release, actor: "ada".to_owned(), why: None };
    let released = store.replay(&[key], request, by_source()).await.unwrap();
    assert_eq!(released, [ReplayVerdict::Released(vec!["a".to_owned(), "any".to_owned()])]);
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    assert_eq!(view.receipt.hold_reason, None);
    assert_eq!(view.jobs.iter().find_map(|job| job.note.as_deref()), Some("was held: no_id"));
    deliver_one(&store, through(h, "second", "{}")).await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap().unwrap().jobs.len(), 5);

    let mut imported = h.delivery("e2", "", &by_source());
    imported.origin = Origin::Imported;
    let first = deliver_one(&store, imported).await;
    let mut second = h.delivery("e2", "{}", &by_source());
    second.source = "second".into();
    deliver_one(&store, second).await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap().unwrap().jobs.len(), 0);

    // Nor a receipt whose body is gone.
    let first = deliver_one(&store, h.delivery("e3", "{}", &by_source())).await;
    h.backend.execute("DELETE FROM payloads").await.unwrap();
    let mut second = h.delivery("e3", "{}", &by_source());
    second.source = "second".into();
    deliver_one(&store, second).await;
    assert_eq!(store.receipt(first.receipt_id).await.unwrap().unwrap().jobs.len(), 2);
}

pub async fn a_divergent_delivery_of_another_source_waits_for_a_person(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, through(h, "web", "{}")).await;
    let second = deliver_one(&store, through(h, "second", "{\"other\":1}")).await;
    assert_eq!(second.verdict, Verdict::Divergent);
    let view = store.receipt(first.receipt_id).await.unwrap().unwrap();
    for job in view.jobs.iter().filter(|job| ["b", "c"].contains(&job.key.subscription.as_str())) {
        assert_eq!((job.state, job.reason, job.attempt), (JobState::Review, Some(JobReason::Divergent), 0));
    }
    assert_eq!((view.jobs.len(), h.count("SELECT count(*) FROM outbox").await), (4, 2));
}
