//! Events that are authentic and yet raise a question: the same id with other content, the same event through a second
//! source, signed content under a new id, and what cannot be read. All are kept and answered 200, none is guessed about.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

use super::super::support::client::{self, Answer};
use super::super::support::database::plain_id;
use super::super::support::process::Gateway;
use super::super::support::sign;
use super::{House, SECRET};

const OPERATOR: &str = "token-of-the-operator-0123456789";

/// A second source of the same provider with a subscription of its own, a source whose ids are not signed, an operator.
fn more(target: &str) -> String {
    format!(
        r#"
[[source]]
name = "pay-two"
provider = "stripe"
secrets = ["env:PAY_SECRET"]
[[source]]
name = "hub"
provider = "github"
secrets = ["env:PAY_SECRET"]
[[subscription]]
name = "second"
target = "{target}"
filter = {{ sources = ["pay-two"] }}
[[token]]
name = "operator"
value = "env:OPERATOR"
role = "operator"
"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_raises_a_question_is_kept_counted_and_released_on_sqlite() {
    let house = House::embedded_with(&more("pull"), &[("OPERATOR", OPERATOR)]);
    let gateway = house.installation.start().await;
    doubts(&gateway, "pending").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_raises_a_question_is_kept_counted_and_released_on_postgres_and_rabbitmq() {
    let Some(house) = House::production_with(&["all", "second"], &more("amqp"), &[("OPERATOR", OPERATOR)]).await else {
        return;
    };
    let gateway = house.installation.start().await;
    let mut expected = doubts(&gateway, "queued").await;
    let messages = house.broker().take("all", 4, Duration::from_secs(30)).await;
    let mut bodies: Vec<_> = messages.iter().map(|message| (message.receipt.clone(), message.body.clone())).collect();
    bodies.sort();
    expected.sort();
    assert_eq!(
        bodies, expected,
        "one message for each receipt, with the bytes that were signed; none for the other content"
    );
    assert_eq!(house.broker().take("second", 1, Duration::from_secs(30)).await.len(), 1);
}

/// Goes through all of them; `handed` is the state of a job that has been handed over. Returns each receipt with its body.
async fn doubts(gateway: &Gateway, handed: &str) -> Vec<(String, Vec<u8>)> {
    gateway.ready().await;
    let desk = Desk { gateway };
    let first = divergent(&desk).await;
    second_source(&desk, &first).await;
    let (original, suspect) = suspects(&desk).await;
    let garbage = malformed(&desk).await;
    desk.release(&suspect.0, ("suspect", "suspect"), handed).await;
    desk.release(&garbage.0, ("unparsable", "held"), handed).await;
    vec![first, original, suspect, garbage]
}

/// Same id, other content: 200 with the first receipt, which keeps its bytes; the other content is kept beside it.
async fn divergent(desk: &Desk<'_>) -> (String, Vec<u8>) {
    let body = sign::body("evt_doubt", 10);
    let kept = desk.post("/in/pay", &sign::headers(SECRET, &body), &body).await;
    let other = sign::body("evt_doubt", 11);
    for _ in 0..2 {
        let again = desk.post("/in/pay", &sign::headers(SECRET, &other), &other).await;
        assert_eq!(again, kept, "the answer names the receipt of that id");
    }
    let receipt = desk.receipt(&kept).await;
    assert_eq!(receipt["divergences"].as_array().map(Vec::len), Some(1), "one variant, however often it comes");
    assert_eq!(receipt["duplicates"], 2);
    assert_eq!(desk.body(&kept).await, body);
    assert_eq!(desk.metric("makbuz_divergences_total", &[r#"source="pay""#]).await, 2.0);
    (kept, body)
}

async fn second_source(desk: &Desk<'_>, first: &(String, Vec<u8>)) {
    assert_eq!(jobs(&desk.receipt(&first.0).await), ["all"]);
    for _ in 0..2 {
        let again = desk.post("/in/pay-two", &sign::headers(SECRET, &first.1), &first.1).await;
        assert_eq!(again, first.0, "one event, one receipt");
        assert_eq!(jobs(&desk.receipt(&first.0).await), ["all", "second"], "only what the first source's did not have");
    }
    assert_eq!(desk.metric("makbuz_duplicates_total", &[r#"source="pay-two""#]).await, 2.0);
}

/// The delivery's id is a header that nobody signs: a captured request under a new one is no new event.
async fn suspects(desk: &Desk<'_>) -> ((String, Vec<u8>), (String, Vec<u8>)) {
    let body = br#"{"ref":"refs/heads/main","repository":{"id":1,"full_name":"o/r"}}"#.to_vec();
    let original = desk.post("/in/hub", &hub(&body, "11111111-1111-1111-1111-111111111111"), &body).await;
    let replayed = desk.post("/in/hub", &hub(&body, "22222222-2222-2222-2222-222222222222"), &body).await;
    assert_ne!(replayed, original, "it is kept, as an event that a person looks at");
    assert_eq!(desk.receipt(&original).await["hold_reason"], Value::Null);
    assert_eq!(jobs(&desk.receipt(&original).await), ["all"]);
    assert_eq!(desk.metric("makbuz_held_total", &[r#"source="hub""#, r#"reason="suspect""#]).await, 1.0);
    ((original, body.clone()), (replayed, body))
}

async fn malformed(desk: &Desk<'_>) -> (String, Vec<u8>) {
    let body = b"{\"id\":\"evt_torn\",\"type\":".to_vec();
    let receipt = desk.post("/in/pay", &sign::headers(SECRET, &body), &body).await;
    let again = desk.post("/in/pay", &sign::headers(SECRET, &body), &body).await;
    assert_eq!(again, receipt, "the same bytes are the same event");
    assert_eq!(desk.metric("makbuz_held_total", &[r#"source="pay""#, r#"reason="unparsable""#]).await, 1.0);
    (receipt, body)
}

fn hub(body: &[u8], delivery: &str) -> Vec<(String, String)> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("any key");
    mac.update(body);
    let signature = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    let headers = [
        ("Content-Type", "application/json"),
        ("X-GitHub-Event", "push"),
        ("X-GitHub-Delivery", delivery),
        ("X-Hub-Signature-256", &signature),
    ];
    headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// Subscriptions that have a job of this receipt, in order.
fn jobs(receipt: &Value) -> Vec<&str> {
    let jobs = receipt["jobs"].as_array().expect("a list");
    let mut names: Vec<_> = jobs.iter().map(|job| job["subscription"].as_str().expect("a name")).collect();
    names.sort_unstable();
    names
}

/// The provider before the edge, and the operator before the API.
struct Desk<'a> {
    gateway: &'a Gateway,
}

impl Desk<'_> {
    /// Posts what must be accepted; the receipt's id.
    async fn post(&self, path: &str, headers: &[(String, String)], body: &[u8]) -> String {
        let answer = client::send(self.gateway.edge, "POST", path, headers, body).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        plain_id(answer.receipt().expect("C1: a 200 names its receipt"))
    }

    async fn call(&self, method: &str, path: &str) -> Answer {
        let headers = [("Authorization".to_owned(), format!("Bearer {OPERATOR}"))];
        client::send(self.gateway.admin, method, path, &headers, b"").await.expect("an answer")
    }

    async fn receipt(&self, id: &str) -> Value {
        let answer = self.call("GET", &format!("/v1/receipts/{id}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    async fn body(&self, id: &str) -> Vec<u8> {
        self.call("GET", &format!("/v1/receipts/{id}/body")).await.body
    }

    /// The held receipt waits in review, for the reasons given (its own, the job's); released, it has its ordinary job, once.
    async fn release(&self, id: &str, (why, reason): (&str, &str), handed: &str) {
        let held = self.receipt(id).await;
        assert_eq!(held["hold_reason"], why);
        assert_eq!(jobs(&held), ["~intake"], "nothing is done before a person has looked");
        let intake = format!("/v1/jobs/{id}/~intake");
        let job = self.call("GET", &intake).await.json()["job"].take();
        assert_eq!((&job["state"], &job["reason"]), (&Value::from("review"), &Value::from(reason)));
        let released = self.call("POST", &format!("{intake}/replay")).await;
        assert_eq!(released.json()["verdict"], "released", "{}", released.text());
        assert_eq!(released.json()["subscriptions"], serde_json::json!(["all"]));
        let after = self.receipt(id).await;
        assert_eq!(jobs(&after), ["all", "~intake"]);
        let states: Vec<_> = after["jobs"].as_array().expect("a list").iter().map(|job| &job["state"]).collect();
        assert!(states.contains(&&Value::from("completed")), "{states:?}");
        assert!(states.iter().any(|state| **state == handed || **state == "pending"), "{states:?}");
        let twice = self.call("POST", &format!("{intake}/replay")).await;
        assert_eq!(twice.status, 409, "{}", twice.text());
    }

    /// The value of the series of this name that has all these labels.
    async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.call("GET", "/metrics").await.text();
        let series = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label)));
        let value = series.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} {labels:?} in\n{text}"))
    }
}
