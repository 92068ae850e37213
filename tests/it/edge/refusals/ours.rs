//! What is refused though its sender did nothing wrong: 503 with a time to try again, a warning, and a count of its own.

use std::time::Duration;

use makbuz::store::StoreError;
use tracing::Level;

use super::super::rig::{Mood, Reply, as_sent, post};
use super::super::witness::{Counts, Witness, delivery, once, rejection, watched};
use super::{assert_bare, assert_one_line, by_proxy, rig, signed_ago};

fn unavailable(source: &str) -> Counts {
    once(&[delivery(source, "unavailable")])
}

/// 503 with a time to try again: some providers never send again after a 4xx.
fn assert_try_again(reply: &Reply, what: &str) {
    assert_eq!(reply.status, 503, "{what}");
    assert_bare(reply, what);
    let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{what}: {seconds}");
}

// W-068, C10
#[test]
fn our_own_fault_is_503_one_warning_and_no_rejection() {
    watched(async |seen: &Witness| {
        let rig = rig(|config| config.answer_max = Duration::from_millis(50)).await;
        for (mood, code) in [
            (Mood::Refuses(StoreError::Busy), "busy"),
            (Mood::Refuses(StoreError::Unavailable("away".to_owned())), "store_unavailable"),
            (Mood::Fails(StoreError::Unavailable("away".to_owned())), "store_unavailable"),
            (Mood::Fails(StoreError::UnknownOutcome("away".to_owned())), "commit_unknown"),
            (Mood::Fails(StoreError::Row("locked".to_owned())), "row_refused"),
            (Mood::Holds, "answer_limit"),
            (Mood::Panics, "panicked"),
        ] {
            rig.intake.set(mood);
            let (before, _) = (seen.counts(), seen.lines());
            let reply = rig.send(by_proxy(&as_sent("/in/talk", &signed_ago(0)))).await;
            assert_try_again(&reply, code);
            assert_one_line(&seen.lines(), Level::WARN, ("talk", code), code);
            assert_eq!(seen.counted_since(&before), unavailable("talk"), "{code}");
        }
        rig.intake.release();
        rig.end().await;
    });
}

// C10: a secret that has run out is a mistake of ours, and the sender did nothing wrong.
#[test]
fn a_source_without_a_live_secret_is_503_and_counted_by_its_code() {
    watched(async |seen: &Witness| {
        let rig = rig(|_| {}).await;
        let before = seen.counts();
        let reply = rig.send(by_proxy(&post("/in/lapsed", &["x-token: good"], b"{}"))).await;
        assert_try_again(&reply, "no live secret");
        assert_one_line(&seen.lines(), Level::WARN, ("lapsed", "no_secret"), "no live secret");
        let both = once(&[delivery("lapsed", "unavailable"), rejection("lapsed", "no_secret")]);
        assert_eq!(seen.counted_since(&before), both);
        rig.end().await;
    });
}

#[test]
fn what_is_shed_is_503_and_says_whether_the_load_is_one_clients() {
    const BOTH: u32 = 100;
    // How many requests and bytes there are for all, and how much of that one client may have.
    for (requests_max, bytes_max, client_share_percent, code) in [
        (1, 1 << 20, BOTH, "overloaded"),
        (9, 64 * 1024, BOTH, "overloaded"),
        (2, 1 << 20, 50, "client_share"),
        (9, 160 * 1024, 1, "client_share"),
    ] {
        watched(async |seen: &Witness| {
            let rig = rig(|config| {
                (config.requests_max, config.bytes_max) = (requests_max, bytes_max);
                (config.client_share_percent, config.body_max) = (client_share_percent, 40_000);
            })
            .await;
            rig.intake.set(Mood::Holds);
            let large = [b"{\"id\":\"e1\"}".as_slice(), &[b' '; 39_000]].concat();
            let request = by_proxy(&post("/in/shop", &["x-token: good"], &large));
            let mut first = rig.connect().await;
            first.write(&request).await;
            rig.intake.submitted(1).await;
            let (before, _) = (seen.counts(), seen.lines());
            let reply = rig.send(&request).await;
            assert_try_again(&reply, code);
            assert_one_line(&seen.lines(), Level::WARN, ("shop", code), code);
            let mut expected = unavailable("shop");
            if code == "client_share" {
                expected.extend(once(&[rejection("shop", code)]));
            }
            assert_eq!(seen.counted_since(&before), expected, "{requests_max} requests, {bytes_max} bytes");
            rig.intake.release();
            assert_eq!(first.read().await.unwrap().status, 200);
            rig.end().await;
        });
    }
}
