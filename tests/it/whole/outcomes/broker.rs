//! Consumers of RabbitMQ: the message is taken from the queue, and its outcome is published with the message's token.

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Desk, House, LONG, SUBSCRIPTIONS, VARIABLES, WORKER, Work, eventually, history, more};

pub async fn production() -> Option<House> {
    House::production_with(&SUBSCRIPTIONS, &more("amqp"), &VARIABLES).await
}

/// A consumer of one subscription's queue, in no language in particular.
pub struct Worker {
    connection: Connection,
    channel: Channel,
    consumer: lapin::Consumer,
    exchange: String,
    subscription: String,
}

impl Worker {
    pub async fn of(house: &House, subscription: &str) -> Self {
        let broker = house.broker();
        let connection = Connection::connect(&broker.url, ConnectionProperties::default()).await.expect("the broker");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let queue = format!("{}.{subscription}", broker.prefix);
        let consumer = channel
            .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .expect("the subscription's queue");
        let exchange = format!("{}.outcomes", broker.prefix);
        Self { connection, channel, consumer, exchange, subscription: subscription.to_owned() }
    }

    /// The next message, acked: from here on only the report tells how it went.
    pub async fn take(&mut self) -> Work {
        let (work, delivery) = self.hold().await;
        delivery.ack(BasicAckOptions::default()).await.expect("an ack");
        work
    }

    /// The next message, which the broker gives to somebody else when this consumer is gone.
    pub async fn hold(&mut self) -> (Work, Delivery) {
        let next = timeout(LONG, self.consumer.next()).await.expect("a message in time");
        let delivery = next.expect("the consumer goes on").expect("a delivery");
        let headers = delivery.properties.headers().clone().expect("headers");
        let header = |name: &str| headers.inner().get(name).unwrap_or_else(|| panic!("no {name}"));
        let text = |name: &str| match header(name) {
            AMQPValue::LongString(text) => text.to_string(),
            other => panic!("{name}: {other:?}"),
        };
        let AMQPValue::LongInt(attempt) = header("makbuz-attempt") else { panic!("an attempt") };
        let work = Work {
            receipt: delivery.properties.message_id().as_ref().expect("a message id").to_string(),
            subscription: text("makbuz-subscription"),
            attempt: i64::from(*attempt),
            trigger: text("makbuz-trigger"),
            token: text("makbuz-token"),
            body: delivery.data.clone(),
        };
        (work, delivery)
    }

    /// The process is killed, or the broker closes its channel: what it held goes back to the queue.
    pub async fn dies(self) {
        self.connection.close(200, "gone".into()).await.expect("closed");
    }

    /// Publishes a report; it is with the broker then, and not yet heard.
    pub async fn report(&self, body: &Value) {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let (exchange, key) = (self.exchange.as_str().into(), self.subscription.as_str().into());
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = body.to_string();
        let sent = self.channel.basic_publish(exchange, key, mandatory, body.as_bytes(), properties).await;
        let confirmation = sent.expect("sent").await.expect("taken");
        assert!(confirmation.take_message().is_none(), "the queue of outcomes takes it");
    }

    /// Waits until all that was reported on this channel before has been heard: reports are heard in their order, and what
    /// is no report at all is counted.
    pub async fn heard(&self, desk: &Desk<'_>) {
        let before = desk.bad_reports("report_malformed").await;
        self.report(&json!("no report")).await;
        eventually("the reports are heard", LONG, async || {
            (desk.bad_reports("report_malformed").await > before).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completed_completes_its_job_once_and_leaves_the_receipt_and_its_other_jobs_alone() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (receipt, body) = desk.accepted("evt_done").await;
    let kept = desk.receipt(&receipt).await;
    let mut worker = Worker::of(&house, "patient").await;
    let work = worker.take().await;
    let told = (work.receipt.as_str(), work.subscription.as_str(), work.attempt, work.trigger.as_str());
    assert_eq!(told, (receipt.as_str(), "patient", 1, "first"));
    assert_eq!(work.body, body, "C5");
    desk.job(&receipt, "patient", "queued", 1).await;

    let report = work.says_with("completed", &[("reason", json!("paid"))]);
    worker.report(&report).await;
    let done = desk.job(&receipt, "patient", "completed", 1).await;
    assert_eq!(history(&done), [(1, "first", Some("completed"), None, false)]);
    assert_eq!((done["job"]["finished_at"].is_string(), &done["attempts"][0]["error_text"]), (true, &json!("paid")));

    worker.report(&report).await;
    worker.report(&work.says("failed")).await;
    worker.heard(&desk).await;
    let again = desk.job(&receipt, "patient", "completed", 1).await;
    assert_eq!(again["job"], done["job"], "what is completed stays so, whatever is said after it");
    assert_eq!(again["attempts"][0]["ended_at"], done["attempts"][0]["ended_at"]);
    let attempts = |outcome: &str| format!("makbuz_attempts_total{{subscription=\"patient\",outcome=\"{outcome}\"}}");
    assert_eq!((desk.counted(&attempts("completed")).await, desk.counted(&attempts("failed")).await), (1, 0));

    assert_eq!(desk.job(&receipt, "hasty", "queued", 1).await["attempts"], json!([]));
    assert_eq!(desk.receipt(&receipt).await, kept, "C6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_is_tried_again_and_the_old_attempt_can_then_only_be_completed() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_failing").await;
    let kept = desk.receipt(&receipt).await;
    let mut patient = Worker::of(&house, "patient").await;
    let why = [("reason", json!("declined")), ("message", json!("card 4242"))];
    let declined = patient.take().await.says_with("failed", &why);
    patient.report(&declined).await;
    let waiting = desk.job(&receipt, "patient", "retrying", 1).await;
    assert_eq!(history(&waiting), [(1, "first", Some("failed"), Some("failed"), false)]);
    assert_eq!(waiting["attempts"][0]["error_text"], json!("declined: card 4242"));
    assert!(waiting["job"]["next_attempt_at"].is_string());
    assert_eq!(waiting["job"]["next_attempt_at"], waiting["attempts"][0]["next_at"]);

    let mut hasty = Worker::of(&house, "hasty").await;
    let first = hasty.take().await;
    hasty.report(&first.says("failed")).await;
    let second = hasty.take().await;
    assert_eq!((&second.receipt, second.attempt, second.trigger.as_str()), (&receipt, 2, "retry"));
    assert_ne!(second.token, first.token, "each attempt has its own");
    desk.job(&receipt, "hasty", "queued", 2).await;
    // The old attempt's token speaks for the old attempt alone.
    hasty.report(&second.says_with("completed", &[("token", json!(first.token))])).await;
    hasty.report(&first.says_with("rejected", &[("reason", json!("too late"))])).await;
    hasty.heard(&desk).await;
    assert_eq!(desk.bad_reports("token_wrong").await, 1);
    let still = desk.job(&receipt, "hasty", "queued", 2).await;
    assert_eq!(history(&still)[0], (1, "first", Some("failed"), Some("failed"), true), "an attempt has one ending");
    assert!(still["attempts"][0]["error_text"].as_str().is_some_and(|text| text.contains("too late")), "{still}");

    hasty.report(&second.says("completed")).await;
    let done = desk.job(&receipt, "hasty", "completed", 2).await;
    assert_eq!(history(&done)[1], (2, "retry", Some("completed"), None, false));
    assert_eq!(desk.receipt(&receipt).await, kept, "C6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_runs_under_a_lease_that_is_extended_or_runs_out() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_slow").await;
    let kept = desk.receipt(&receipt).await;
    let mut patient = Worker::of(&house, "patient").await;
    let work = patient.take().await;
    patient.report(&work.says("started")).await;
    let running = desk.job(&receipt, "patient", "running", 1).await;
    assert_eq!(history(&running), [(1, "first", Some("started"), None, false)]);
    let until = |shown: &Value| shown["job"]["leased_until"].as_str().map(str::to_owned);
    let path = format!("/v1/jobs/{receipt}/patient/extend");
    let order = json!({ "attempt": 1, "token": work.token, "lease_s": 36_000 });
    let extended = desk.ask(WORKER, "POST", &path, &order).await;
    assert_eq!((extended.status, extended.json()), (200, json!({ "lease_s": 36_000 })));
    let longer = desk.job(&receipt, "patient", "running", 1).await;
    assert!(until(&running).is_some() && until(&longer) > until(&running), "{longer}");
    patient.report(&work.says("completed")).await;
    let done = desk.job(&receipt, "patient", "completed", 1).await;
    assert_eq!((until(&done), history(&done).len()), (None, 1));

    // This one says that it has begun, and then nothing for a second.
    let mut hasty = Worker::of(&house, "hasty").await;
    let lost = hasty.take().await;
    hasty.report(&lost.says("started")).await;
    let next = hasty.take().await;
    assert_eq!((next.attempt, next.trigger.as_str()), (2, "rescue"));
    let rescued = desk.job(&receipt, "hasty", "queued", 2).await;
    assert_eq!(history(&rescued)[0], (1, "first", Some("failed"), Some("no_outcome"), false));
    // It had the effect after all.
    hasty.report(&lost.says("completed")).await;
    let done = desk.job(&receipt, "hasty", "completed", 2).await;
    assert_eq!((history(&done)[0].2, history(&done)[0].4), (Some("completed"), true));
    assert_eq!(desk.receipt(&receipt).await, kept, "C6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_without_its_own_token_moves_nothing_and_is_counted() {
    let Some(house) = production().await else { return };
    let desk = Desk::open(&house).await;
    let (receipt, _) = desk.accepted("evt_one").await;
    let mut worker = Worker::of(&house, "patient").await;
    let one = worker.take().await;
    let before = desk.job(&receipt, "patient", "queued", 1).await;
    desk.accepted("evt_two").await;
    let two = worker.take().await;
    let other_job = Worker::of(&house, "hasty").await.take().await;
    assert_eq!(other_job.receipt, one.receipt, "another job of the same receipt");
    let wrong = ["0".repeat(64), two.token, other_job.token, one.token[..63].to_owned(), String::new()];
    for token in &wrong {
        worker.report(&one.says_with("completed", &[("token", json!(token))])).await;
    }
    worker.report(&one.says_with("completed", &[("attempt", json!(2))])).await;
    worker.heard(&desk).await;
    assert_eq!(desk.bad_reports("token_wrong").await, 6);
    let path = format!("/v1/jobs/{receipt}/patient/outcome");
    let refused = desk.ask(WORKER, "POST", &path, &one.says_with("completed", &[("token", json!(wrong[1]))])).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &json!("token_wrong")));
    assert_eq!(desk.bad_reports("token_wrong").await, 7);
    assert_eq!(desk.job(&receipt, "patient", "queued", 1).await, before);
    let rejections = desk.get("/v1/rejections").await;
    let rows = rejections["rejections"].as_array().expect("a list");
    let kept = rows.iter().filter(|row| row["source"] == "~outcomes" && row["code"] == "token_wrong").count();
    assert_eq!(kept, 6, "those that came over the broker are kept");
    let shown = desk.gateway.log() + &rejections.to_string();
    assert!(!shown.contains(&wrong[1]) && !shown.contains(&one.token), "a token is good whatever else was wrong");

    // It is good for one job, and HTTP takes the same report.
    let taken = desk.ask(WORKER, "POST", &path, &one.says("completed")).await;
    assert_eq!((taken.status, taken.json()), (200, json!({ "verdict": "applied", "state": "completed" })));
    desk.job(&receipt, "patient", "completed", 1).await;
    desk.job(&two.receipt, "patient", "queued", 1).await;
}
