//! Consumers that ask over HTTP, with nothing but the program and its SQLite file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::TOKEN;
use super::{Desk, House, LONG, OPERATOR, VARIABLES, WORKER, Work, eventually, history, more};

fn embedded() -> House {
    House::embedded_with(&more("pull"), &VARIABLES)
}

/// All that can be claimed now.
async fn claim(desk: &Desk<'_>, subscription: &str) -> Vec<Work> {
    let path = format!("/v1/subscriptions/{subscription}/claim");
    let answer = desk.ask(WORKER, "POST", &path, &json!({ "max": 10 })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = |job: &Value, field: &str| job[field].as_str().unwrap_or_else(|| panic!("no {field}: {job}")).to_owned();
    let answer = answer.json();
    let jobs = answer["jobs"].as_array().expect("a list").iter();
    jobs.map(|job| Work {
        receipt: text(job, "receipt"),
        subscription: text(job, "subscription"),
        attempt: job["attempt"].as_i64().expect("a number"),
        trigger: text(job, "trigger"),
        token: text(job, "token"),
        body: STANDARD.decode(text(job, "body_base64")).expect("base64"),
    })
    .collect()
}

/// The one job that can be claimed, once it can.
async fn claimed(desk: &Desk<'_>, subscription: &str) -> Work {
    let mut jobs = eventually("a job to claim", LONG, async || {
        Some(claim(desk, subscription).await).filter(|jobs| !jobs.is_empty())
    })
    .await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

/// What the route says: its status, and its answer or its error's code.
async fn said(desk: &Desk<'_>, token: &str, work: &Work, verb: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v1/jobs/{}/{}/{verb}", work.receipt, work.subscription);
    let answer = desk.ask(token, "POST", &path, body).await;
    let json = answer.json();
    (answer.status, if answer.status == 200 { json } else { json["error"]["code"].clone() })
}

async fn report(desk: &Desk<'_>, work: &Work, outcome: &str) -> (u16, Value) {
    said(desk, WORKER, work, "outcome", &work.says(outcome)).await
}

async fn extend(desk: &Desk<'_>, work: &Work, lease_s: u32) -> (u16, Value) {
    let order = json!({ "attempt": work.attempt, "token": work.token, "lease_s": lease_s });
    said(desk, WORKER, work, "extend", &order).await
}

fn applied(state: &str) -> (u16, Value) {
    (200, json!({ "verdict": "applied", "state": state }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_job_is_leased_extended_and_completed_once() {
    let house = embedded();
    let desk = Desk::open(&house).await;
    let (receipt, body) = desk.accepted("evt_claimed").await;
    let kept = desk.receipt(&receipt).await;
    desk.job(&receipt, "patient", "pending", 0).await;
    let work = claimed(&desk, "patient").await;
    let told = (work.receipt.as_str(), work.attempt, work.trigger.as_str());
    assert_eq!(told, (receipt.as_str(), 1, "first"));
    assert_eq!(work.body, body, "C5");
    let running = desk.job(&receipt, "patient", "running", 1).await;
    let row = &running["attempts"][0];
    assert_eq!((&row["outcome"], &row["consumer"]), (&json!("started"), &json!("worker")));
    assert!(claim(&desk, "patient").await.is_empty(), "it is leased");

    assert_eq!(extend(&desk, &work, 36_000).await, (200, json!({ "lease_s": 36_000 })));
    let longer = desk.job(&receipt, "patient", "running", 1).await;
    let until = |shown: &Value| shown["job"]["leased_until"].as_str().map(str::to_owned);
    assert!(until(&running).is_some() && until(&longer) > until(&running), "{longer}");

    assert_eq!(report(&desk, &work, "completed").await, applied("completed"));
    let done = desk.job(&receipt, "patient", "completed", 1).await;
    assert_eq!((history(&done), until(&done)), (vec![(1, "first", Some("completed"), None, false)], None));
    assert_eq!(report(&desk, &work, "completed").await.1["verdict"], json!("already"));
    assert_eq!(extend(&desk, &work, 60).await, (409, json!("not_running")));
    assert_eq!(desk.job(&receipt, "patient", "completed", 1).await, done);
    assert!(claim(&desk, "patient").await.is_empty());
    assert_eq!(desk.receipt(&receipt).await, kept, "C6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_reaches_only_the_jobs_of_its_own_subscriptions() {
    let house = embedded();
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_guarded").await;
    let path = |name: &str| format!("/v1/subscriptions/{name}/claim");
    let ask = async |token: &str, name: &str| desk.ask(token, "POST", &path(name), &json!({})).await.status;
    assert_eq!(ask(TOKEN, "patient").await, 403, "it is there, and not for this token");
    assert_eq!(ask(TOKEN, "nobody").await, 403, "a token learns of no subscription that is not its own");
    assert_eq!(ask(OPERATOR, "nobody").await, 404);
    assert_eq!(ask("token-that-nobody-has", "patient").await, 401);
    desk.job(&receipt, "patient", "pending", 0).await;

    // Not even with the attempt's own token.
    let work = claimed(&desk, "patient").await;
    let forbidden = (403, json!("forbidden"));
    let running = desk.job(&receipt, "patient", "running", 1).await;
    assert_eq!(said(&desk, TOKEN, &work, "outcome", &work.says("completed")).await, forbidden);
    let order = json!({ "attempt": 1, "token": work.token });
    assert_eq!(said(&desk, TOKEN, &work, "extend", &order).await, forbidden);
    // Nor with a path within its scope and a body beyond it.
    let elsewhere = Work { subscription: "all".to_owned(), ..work.clone() };
    assert_eq!(said(&desk, TOKEN, &elsewhere, "outcome", &work.says("completed")).await, (400, json!("path_mismatch")));
    assert_eq!(desk.job(&receipt, "patient", "running", 1).await, running);
    assert_eq!(report(&desk, &work, "completed").await, applied("completed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ran_out_is_given_to_the_next_and_a_late_completed_still_counts() {
    let house = embedded();
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_late").await;
    let kept = desk.receipt(&receipt).await;
    let lost = claimed(&desk, "hasty").await;
    let rescued = desk.job(&receipt, "hasty", "retrying", 1).await;
    assert_eq!(history(&rescued), [(1, "first", Some("failed"), Some("no_outcome"), false)]);
    assert_eq!(extend(&desk, &lost, 60).await, (409, json!("not_running")), "what ran out is not extended");

    let next = claimed(&desk, "hasty").await;
    assert_eq!((next.attempt, next.trigger.as_str()), (2, "rescue"));
    assert_eq!(extend(&desk, &next, 3600).await.0, 200);
    let running = desk.job(&receipt, "hasty", "running", 2).await;
    // The first consumer lives: its `failed` is only written down, and its token opens nothing else.
    assert_eq!(report(&desk, &lost, "failed").await, (200, json!({ "verdict": "recorded", "state": null })));
    let as_next = Work { attempt: 2, ..lost.clone() };
    assert_eq!(report(&desk, &as_next, "failed").await, (403, json!("token_wrong")));
    assert_eq!(extend(&desk, &as_next, 60).await, (403, json!("token_wrong")));
    assert_eq!(desk.bad_reports("token_wrong").await, 1);
    assert_eq!(desk.job(&receipt, "hasty", "running", 2).await["job"], running["job"]);

    assert_eq!(report(&desk, &lost, "completed").await, applied("completed"));
    let done = desk.job(&receipt, "hasty", "completed", 2).await;
    let first = history(&done)[0];
    assert_eq!((first.2, first.4), (Some("completed"), true), "completed, and late");
    assert_eq!(extend(&desk, &next, 60).await, (409, json!("not_running")));
    assert!(claim(&desk, "hasty").await.is_empty(), "no third attempt");
    assert_eq!(desk.receipt(&receipt).await, kept, "C6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_completed_of_a_job_that_nobody_took_again_withdraws_the_retry() {
    let house = embedded();
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_forgotten").await;
    let lost = claimed(&desk, "hasty").await;
    desk.job(&receipt, "hasty", "retrying", 1).await;
    assert_eq!(report(&desk, &lost, "completed").await, applied("completed"));
    let done = desk.job(&receipt, "hasty", "completed", 1).await;
    assert_eq!((&done["job"]["next_attempt_at"], history(&done)[0].4), (&Value::Null, true));
    assert!(claim(&desk, "hasty").await.is_empty());
}

/// W-143, W-149: the program is killed with ten jobs leased and five before a person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_no_lease_and_nothing_that_waits_for_a_person() {
    let house = embedded();
    let desk = Desk::open(&house).await;
    for number in 0..10 {
        desk.accepted(&format!("evt_killed_{number}")).await;
    }
    let before_a_person: Vec<Work> = claim(&desk, "patient").await.drain(..5).collect();
    for work in &before_a_person {
        assert_eq!(report(&desk, work, "rejected").await, applied("review"));
    }
    let mut lost = claim(&desk, "hasty").await;
    assert_eq!(lost.len(), 10);
    desk.gateway.kill().await;

    let desk = Desk::open(&house).await;
    let mut again = Vec::new();
    eventually("all that was leased comes back", LONG, async || {
        again.extend(claim(&desk, "hasty").await);
        (again.len() >= 10).then_some(())
    })
    .await;
    lost.sort_by(|a, b| a.receipt.cmp(&b.receipt));
    again.sort_by(|a, b| a.receipt.cmp(&b.receipt));
    for (lost, again) in lost.iter().zip(&again) {
        assert_eq!((&again.receipt, again.attempt, again.trigger.as_str()), (&lost.receipt, 2, "rescue"));
        assert_eq!(again.body, lost.body);
    }
    for work in &before_a_person {
        let shown = desk.job(&work.receipt, "patient", "review", 1).await;
        assert_eq!(history(&shown), [(1, "first", Some("rejected"), Some("rejected"), false)]);
    }
    let review = desk.get("/v1/review?subscription=patient").await;
    assert_eq!(review["jobs"].as_array().map(Vec::len), Some(5));
}
