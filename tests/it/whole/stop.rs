//! SIGTERM: what is under way is finished, nothing new is taken, and the exit code tells a stop from a crash.

use std::time::Duration;

use tokio::net::TcpStream;

use super::super::support::client::Client;
use super::super::support::database::plain_id;
use super::super::support::{eventually, sign};
use super::{House, SECRET};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_flight_at_sigterm_gets_its_answer_on_sqlite() {
    stop_in_flight(House::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_flight_at_sigterm_gets_its_answer_on_postgres() {
    let Some(house) = House::production().await else { return };
    stop_in_flight(house).await;
}

async fn stop_in_flight(house: House) {
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let body = sign::body("evt_in_flight", 2_000);
    let mut headers = sign::headers(SECRET, &body);
    headers.push(("Expect".into(), "100-continue".into()));
    let mut client = Client::connect(gateway.edge).await.expect("it listens");
    let head = client.head("POST", "/in/pay", &headers, body.len());
    client.send_raw(&head).await.expect("sent");
    // The interim answer says that the program is in the middle of this request.
    let interim = client.answer().await.expect("an interim answer");
    assert_eq!(interim.status, 100, "{}", interim.text());
    client.send_raw(&body[..1_000]).await.expect("sent");

    gateway.terminate();
    let edge = gateway.edge;
    eventually("no new connections", Duration::from_secs(10), async || {
        TcpStream::connect(edge).await.is_err().then_some(())
    })
    .await;

    client.send_raw(&body[1_000..]).await.expect("the connection is still there");
    let answer = client.answer().await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let receipt = plain_id(answer.receipt().expect("C1: a 200 names its receipt"));
    let status = gateway.exit(Duration::from_secs(25)).await;
    assert!(status.success(), "a stop is not a crash: {status}");
    assert_eq!(house.store.read().await.receipts.get("evt_in_flight"), Some(&receipt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_program_stops_at_once() {
    let house = House::embedded();
    let gateway = house.installation.start().await;
    gateway.ready().await;
    // An idle keep-alive connection must not hold the stop up.
    let _idle = Client::connect(gateway.edge).await.expect("it listens");
    gateway.terminate();
    let status = gateway.exit(Duration::from_secs(5)).await;
    assert!(status.success(), "a stop is not a crash: {status}");
}
