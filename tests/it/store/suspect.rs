//! The replay guard: signed content that comes again under an id that is not signed.

use std::sync::Arc;

use makbuz::model::job::{INTAKE, JobReason, JobState};
use makbuz::model::receipt::HoldReason;
use makbuz::store::{NewDelivery, Store, Verdict};

use super::harness::{Harness, both, deliver, deliver_all, deliver_one};

fn guarded(h: &Harness, id: &str, signed: u8) -> NewDelivery {
    let mut delivery = h.delivery(id, "{}", &both());
    delivery.replay_guard = true;
    delivery.signed_sha256 = [signed; 32];
    delivery
}

pub async fn the_same_signed_content_under_a_new_id_is_held(store: Arc<dyn Store>, h: &Harness) {
    let first = deliver_one(&store, guarded(h, "e1", 1)).await;
    assert_eq!(first.verdict, Verdict::Stored);
    let replayed = deliver_one(&store, guarded(h, "e2", 1)).await;
    assert_eq!((replayed.verdict, replayed.held), (Verdict::Suspect, Some(HoldReason::Suspect)));
    let view = store.receipt(replayed.receipt_id).await.unwrap().unwrap();
    let [job] = view.jobs.as_slice() else { panic!("one job: {:?}", view.jobs) };
    assert_eq!(
        (job.key.subscription.as_str(), job.state, job.reason),
        (INTAKE, JobState::Review, Some(JobReason::Suspect))
    );
    // A real redelivery, same id, is a duplicate; other content is an event of its own.
    assert_eq!(deliver_one(&store, guarded(h, "e1", 1)).await.verdict, Verdict::Duplicate);
    assert_eq!(deliver_one(&store, guarded(h, "e2", 1)).await.verdict, Verdict::Duplicate);
    assert_eq!(deliver_one(&store, guarded(h, "e3", 3)).await.verdict, Verdict::Stored);
    assert_eq!(h.count("SELECT count(*) FROM outbox").await, 2);
}

pub async fn suspicion_holds_within_one_batch(store: Arc<dyn Store>, h: &Harness) {
    // The later id sorts first: order of arrival decides, not order of keys.
    let heard = deliver_all(&store, vec![guarded(h, "z", 1), guarded(h, "a", 1), guarded(h, "z", 1)]).await;
    let verdicts: Vec<_> = heard.iter().map(|heard| heard.as_ref().unwrap().events[0].verdict).collect();
    assert_eq!(verdicts, [Verdict::Stored, Verdict::Suspect, Verdict::Duplicate]);
}

pub async fn a_batch_of_events_is_not_suspect_of_itself(store: Arc<dyn Store>, h: &Harness) {
    let make = || {
        let mut delivery = h.batch((0..3).map(|n| h.event(&format!("e{n}"), "{}")).collect(), b"[]", &both());
        delivery.replay_guard = true;
        delivery.signed_sha256 = [9; 32];
        delivery
    };
    let first = deliver(&store, make()).await.unwrap();
    assert!(first.events.iter().all(|event| event.verdict == Verdict::Stored));
    let again = deliver(&store, make()).await.unwrap();
    assert!(again.events.iter().all(|event| event.verdict == Verdict::Duplicate));
}

pub async fn without_the_guard_nothing_is_suspect(store: Arc<dyn Store>, h: &Harness) {
    let unguarded = |id: &str| {
        let mut delivery = guarded(h, id, 1);
        delivery.replay_guard = false;
        delivery
    };
    assert_eq!(deliver_one(&store, unguarded("e1")).await.verdict, Verdict::Stored);
    assert_eq!(deliver_one(&store, unguarded("e2")).await.verdict, Verdict::Stored);
    // Nor across providers.
    assert_eq!(deliver_one(&store, guarded(h, "e1", 2)).await.verdict, Verdict::Duplicate);
    assert_eq!(deliver_one(&store, guarded(h, "e4", 4)).await.verdict, Verdict::Stored);
    let mut other = guarded(h, "e5", 4);
    other.provider = "other".into();
    assert_eq!(deliver_one(&store, other).await.verdict, Verdict::Stored);
}
