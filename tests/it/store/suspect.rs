//! The replay guard: signed content that comes again under an id that is not signed.

use std::collections::BTreeMap;
use std::sync::Arc;

use makbuz::model::job::{INTAKE, JobReason, JobState};
use makbuz::model::receipt::{HoldReason, ItemProof, VerifiedBy};
use makbuz::store::{NewDelivery, NewEvent, ReceiptQuery, Store, Verdict};

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

pub async fn items_with_a_proof_of_their_own_are_guarded_one_by_one(store: Arc<dyn Store>, h: &Harness) {
    let item = |h: &Harness, id: &str, signed: u8| {
        let delivery = h.delivery(id, "{}", &both());
        let verified_by = VerifiedBy { secret: format!("s{signed}"), ..delivery.verified_by };
        NewEvent { proof: Some(ItemProof { verified_by, signed_sha256: [signed; 32] }), ..h.event(id, "{}") }
    };
    let batch = |events: Vec<NewEvent>| {
        let mut delivery = h.batch(events, b"[]", &both());
        delivery.replay_guard = true;
        delivery
    };
    let verdicts = async |events| {
        let heard = deliver(&store, batch(events)).await.unwrap();
        heard.events.iter().map(|event| event.verdict).collect::<Vec<_>>()
    };
    // Within one delivery, and with other items around it in the next: the item's own content decides.
    let first = vec![item(h, "a", 1), item(h, "b", 2), item(h, "c", 1)];
    assert_eq!(verdicts(first).await, [Verdict::Stored, Verdict::Stored, Verdict::Suspect]);
    let second = vec![item(h, "d", 3), item(h, "e", 2), item(h, "a", 1)];
    assert_eq!(verdicts(second).await, [Verdict::Stored, Verdict::Suspect, Verdict::Duplicate]);
    let receipts = store.receipts(ReceiptQuery { limit: 10, ..ReceiptQuery::default() }).await.unwrap();
    let proved: BTreeMap<&str, &str> = receipts
        .iter()
        .map(|view| (&*view.receipt.key.event_id, &*view.receipt.verified_by.as_ref().unwrap().secret))
        .collect();
    assert_eq!((proved["a"], proved["b"], proved["d"]), ("s1", "s2", "s3"), "each by what proved it");
}

/// Two sources of one provider with a secret each: nothing that one of them took would pass at the other.
pub async fn sources_that_share_no_secret_are_guarded_apart(store: Arc<dyn Store>, h: &Harness) {
    let through = |source: &str, id: &str, among: &[&str]| {
        let mut delivery = guarded(h, id, 1);
        delivery.source = source.into();
        delivery.guard_sources = among.iter().map(|name| Arc::from(*name)).collect();
        delivery
    };
    assert_eq!(deliver_one(&store, through("org", "e1", &["org"])).await.verdict, Verdict::Stored);
    assert_eq!(deliver_one(&store, through("repo", "e2", &["repo"])).await.verdict, Verdict::Stored);
    let both = deliver_all(&store, vec![through("x", "e3", &["x"]), through("y", "e4", &["y"])]).await;
    assert!(both.iter().all(|heard| heard.as_ref().unwrap().events[0].verdict == Verdict::Stored));
    // With the same secret it would pass, so it is looked for.
    let shared = ["org", "twin"];
    assert_eq!(deliver_one(&store, through("twin", "e5", &shared)).await.verdict, Verdict::Suspect);
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
