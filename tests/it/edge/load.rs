//! `makbuz send` as a library, against a real edge.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use makbuz::cli::send::load::{self, Load, Sent};
use makbuz::clock::SystemClock;
use makbuz::random::SeededRandom;
use makbuz::store::StoreError;

use super::rig::{Mood, Rig};
use super::sources::{shipped, source};

const SECRET: &[u8] = b"whsec_dGhlIHNlY3JldCBvZiB0aGVzZSB0ZXN0cw";

fn to(rig: &Rig, count: u64) -> Load {
    Load {
        inlet: Arc::new(shipped("stripe", SECRET)),
        to: format!("http://{}/in/stripe", rig.address),
        public_url: "https://hooks.example.com/in/stripe".to_owned(),
        event_type: None,
        body: None,
        private_key: None,
        count,
        rate: None,
        connections: 4,
        duplicates: 0.0,
        tamper: 0.0,
        clock: Arc::new(SystemClock),
        random: Arc::new(SeededRandom::new(7)),
        on_answer: None,
    }
}

async fn rig() -> Rig {
    Rig::serving(vec![Arc::new(source("stripe", shipped("stripe", SECRET)))], |_| {}).await
}

#[tokio::test]
async fn a_load_of_originals_duplicates_and_forgeries_is_answered_right() {
    let rig = rig().await;
    let history: Arc<Mutex<Vec<Sent>>> = Arc::default();
    let seen = Arc::clone(&history);
    let on_answer: load::OnAnswer = Arc::new(move |sent: &Sent| seen.lock().unwrap().push(sent.clone()));
    let load = Load { duplicates: 0.2, tamper: 0.1, on_answer: Some(on_answer), ..to(&rig, 300) };
    let summary = load::run(load).await.unwrap();
    assert!(summary.is_right(), "{summary}");
    assert_eq!((summary.sent, summary.answers.len()), (300, 2), "{summary}");
    let history = history.lock().unwrap().clone();
    let count = |of: fn(&Sent) -> bool| history.iter().filter(|sent| of(sent)).count();
    let (tampered, duplicates) = (count(|sent| sent.tampered), count(|sent| sent.duplicate));
    assert!(tampered > 0 && duplicates > 0);
    assert_eq!(rig.intake.receipts(), 300 - tampered - duplicates);
    assert_eq!(summary.answers["401"], u64::try_from(tampered).unwrap());
    assert_eq!(summary.to_json()["forged"], 0);
    rig.end().await;
}

#[tokio::test]
async fn what_is_not_kept_is_counted_as_lost() {
    let rig = rig().await;
    rig.intake.set(Mood::Refuses(StoreError::Busy));
    let summary = load::run(to(&rig, 3)).await.unwrap();
    assert!(!summary.is_right());
    assert_eq!((summary.lost, summary.answers["503"]), (3, 3));
    rig.end().await;
}

#[tokio::test]
async fn nobody_at_the_other_end_is_an_answer_too() {
    let rig = rig().await;
    let load = to(&rig, 2);
    rig.end().await;
    let summary = load::run(load).await.unwrap();
    assert_eq!((summary.lost, summary.answers["connect"]), (2, 2));
}

#[tokio::test]
async fn a_rate_is_kept() {
    let rig = rig().await;
    let summary = load::run(Load { rate: Some(100.0), ..to(&rig, 20) }).await.unwrap();
    assert!(summary.took >= Duration::from_millis(190), "{:?}", summary.took);
    assert!(summary.is_right());
    rig.end().await;
}
