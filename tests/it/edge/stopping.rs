//! A stop costs no request that is in flight.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::rig::{Mood, PATIENCE, Rig, post};

// W-122
#[tokio::test]
async fn a_request_in_flight_at_the_soft_stop_gets_its_answer() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Holds);
    let mut in_commit = rig.connect().await;
    in_commit.write(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    rig.intake.submitted(1).await;
    let mut in_body = rig.connect().await;
    in_body
        .write(
            "POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n",
        )
        .await;
    assert_eq!(in_body.read().await.unwrap().status, 100, "its body is being read");
    rig.stop.ask();
    in_body.write("{\"id\":\"e2\"}").await;
    rig.intake.submitted(2).await;
    rig.intake.release();
    for client in [&mut in_commit, &mut in_body] {
        let reply = client.read().await.unwrap();
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
        assert!(client.read().await.is_none());
    }
    timeout(PATIENCE, rig.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(rig.address).await.is_err(), "nothing listens any more");
}

// W-122
#[tokio::test]
async fn what_was_on_its_way_to_an_idle_connection_is_still_served() {
    let rig = Rig::with(|config| config.stop_idle = Duration::from_secs(5)).await;
    let request = post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}");
    let (mut used, mut fresh) = (rig.connect().await, rig.connect().await);
    used.write(&request).await;
    assert_eq!(used.read().await.unwrap().status, 200);
    rig.stop.ask();
    for client in [&mut used, &mut fresh] {
        client.write(&request).await;
        let reply = client.read().await.unwrap();
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    }
    timeout(PATIENCE, rig.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn idle_connections_are_closed_at_the_soft_stop() {
    let rig = Rig::with(|config| config.stop_idle = Duration::from_millis(10)).await;
    let mut idle = rig.connect().await;
    idle.write(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    assert_eq!(idle.read().await.unwrap().status, 200);
    let mut silent = rig.connect().await;
    rig.stop.ask();
    assert!(idle.read().await.is_none() && silent.read().await.is_none());
    timeout(PATIENCE, rig.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_hard_stop_waits_for_nothing() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Holds);
    let mut client = rig.connect().await;
    client.write(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    rig.intake.submitted(1).await;
    rig.stop.force();
    timeout(PATIENCE, rig.task).await.unwrap().unwrap();
    assert!(client.read().await.is_none());
    rig.intake.release();
    assert_eq!(rig.intake.receipts(), 1, "the commit is the store's");
}
