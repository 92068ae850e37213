//! What consumers report to the real program, over the broker and over HTTP, and what operators then see. The receipt is
//! held beside it: no report touches it (C6).

pub mod broker;
mod deliveries;
mod pull;

use std::time::Duration;

use serde_json::{Value, json};

use super::super::support::client::{self, Answer};
use super::super::support::process::Gateway;
use super::super::support::{eventually, sign};
use super::{House, SECRET};

pub const LONG: Duration = Duration::from_secs(30);
pub const OPERATOR: &str = "token-of-an-operator-of-the-tests";
/// A consumer of `patient` and `hasty`; the one of `super` has only `all`.
const WORKER: &str = "token-of-a-worker-of-the-tests";
const VARIABLES: [(&str, &str); 2] = [("OPERATOR_TOKEN", OPERATOR), ("WORKER_TOKEN", WORKER)];
const SUBSCRIPTIONS: [&str; 3] = ["all", "patient", "hasty"];

/// Two subscriptions more: `patient` stands still long enough to be looked at, `hasty` moves on within a test.
fn more(target: &str) -> String {
    format!(
        r#"
[[subscription]]
name = "patient"
target = "{target}"
time_limit = "1h"
retry = {{ schedule = ["2h"] }}
[[subscription]]
name = "hasty"
target = "{target}"
time_limit = "1s"
retry = {{ schedule = ["100ms", "100ms", "100ms"] }}
[[token]]
name = "ada"
value = "env:OPERATOR_TOKEN"
role = "operator"
[[token]]
name = "worker"
value = "env:WORKER_TOKEN"
role = "consumer"
subscriptions = ["patient", "hasty"]
[process]
tick = "50ms"
"#
    )
}

/// The program and the operator in front of it.
pub struct Desk<'a> {
    house: &'a House,
    pub gateway: Gateway,
}

impl<'a> Desk<'a> {
    pub async fn open(house: &'a House) -> Self {
        let gateway = house.installation.start().await;
        // A broker that is away only degrades; here its queues have to be there.
        let admin = gateway.admin;
        eventually("ready, with the broker", LONG, async || {
            let answer = client::send(admin, "GET", "/readyz", &[], b"").await.ok()?;
            (answer.json()["status"] == "ready").then_some(())
        })
        .await;
        Self { house, gateway }
    }

    /// Sends an event that is accepted; gives its receipt's id and its body.
    async fn accepted(&self, event: &str) -> (String, Vec<u8>) {
        let body = sign::body(event, 100);
        let headers = sign::headers(SECRET, &body);
        let answer = client::send(self.gateway.edge, "POST", "/in/pay", &headers, &body).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        (answer.receipt().expect("C1: a 200 names its receipt").to_owned(), body)
    }

    /// A request to the operators' listener.
    async fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [
            ("Authorization".to_owned(), format!("Bearer {token}")),
            ("Content-Type".to_owned(), "application/json".to_owned()),
        ];
        let body = if method == "GET" { String::new() } else { body.to_string() };
        client::send(self.gateway.admin, method, path, &headers, body.as_bytes()).await.expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.ask(OPERATOR, "GET", path, &Value::Null).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub async fn printed(&self, arguments: &[&str]) -> Value {
        let admin = format!("http://{}", self.gateway.admin);
        let output = self.house.installation.run(&[arguments, &["--json", "--admin", &admin]].concat()).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The job with its attempts, once it is in `state` at `attempt`: by the API, by its lists, and by the commands, which
    /// all say the same.
    async fn job(&self, receipt: &str, subscription: &str, state: &str, attempt: i64) -> Value {
        let path = format!("/v1/jobs/{receipt}/{subscription}");
        let shown = eventually(&format!("{subscription} is {state} at {attempt}"), LONG, async || {
            let shown = self.get(&path).await;
            let now = (shown["job"]["state"].as_str(), shown["job"]["attempt"].as_i64());
            (now == (Some(state), Some(attempt))).then_some(shown)
        })
        .await;
        assert_eq!(self.printed(&["jobs", "show", receipt, subscription]).await, shown);
        let listed = self.get(&format!("/v1/jobs?subscription={subscription}&state={state}")).await;
        let rows = listed["jobs"].as_array().expect("a list");
        let found: Vec<_> = rows.iter().filter(|job| job["receipt"] == *receipt).collect();
        assert_eq!(found, [&shown["job"]], "the list has it once, and alike");
        let arguments = ["jobs", "list", "--subscription", subscription, "--state", state];
        assert_eq!(self.printed(&arguments).await, listed);
        shown
    }

    /// The receipt without its jobs: all that processing must leave alone.
    async fn receipt(&self, receipt: &str) -> Value {
        let mut shown = self.get(&format!("/v1/receipts/{receipt}")).await;
        shown.as_object_mut().expect("an object").remove("jobs").expect("its jobs");
        shown
    }

    /// A counter, as the scrape has it.
    async fn counted(&self, series: &str) -> u64 {
        let scrape = client::send(self.gateway.admin, "GET", "/metrics", &[], b"").await.expect("an answer").text();
        let line = scrape.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        line.unwrap_or_else(|| panic!("{series} starts at 0: {scrape}"))
    }

    async fn bad_reports(&self, code: &str) -> u64 {
        self.counted(&format!("makbuz_bad_reports_total{{code=\"{code}\"}}")).await
    }
}

/// A hand-over as its consumer holds it, whichever way it came.
#[derive(Debug, Clone)]
pub struct Work {
    receipt: String,
    subscription: String,
    attempt: i64,
    trigger: String,
    token: String,
    body: Vec<u8>,
}

impl Work {
    /// The outcome contract's body.
    fn says(&self, outcome: &str) -> Value {
        json!({
            "v": 1,
            "receipt": self.receipt,
            "subscription": self.subscription,
            "attempt": self.attempt,
            "token": self.token,
            "outcome": outcome,
        })
    }

    /// The same report with something else in it.
    fn says_with(&self, outcome: &str, other: &[(&str, Value)]) -> Value {
        let mut report = self.says(outcome);
        for (name, value) in other {
            report[name] = value.clone();
        }
        report
    }
}

/// An attempt: number, trigger, outcome, error class, late.
type Told<'a> = (i64, &'a str, Option<&'a str>, Option<&'a str>, bool);

/// What happened in each attempt.
fn history(shown: &Value) -> Vec<Told<'_>> {
    let attempts = shown["attempts"].as_array().expect("attempts").iter();
    attempts
        .map(|attempt| {
            let number = attempt["attempt"].as_i64().expect("a number");
            let trigger = attempt["trigger"].as_str().expect("a trigger");
            let late = attempt["late"].as_bool().expect("a flag");
            (number, trigger, attempt["outcome"].as_str(), attempt["error_class"].as_str(), late)
        })
        .collect()
}
