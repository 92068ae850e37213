//! One client leaves something to the others, be it on its own or behind our proxy.

use makbuz::edge::EdgeConfig;

use super::rig::{Client, Mood, Rig, post};

/// All tests connect from one address: to the edge it is its proxy.
fn behind_a_proxy(config: &mut EdgeConfig) {
    config.trusted_proxies.networks = vec!["127.0.0.0/8".parse().unwrap()];
}

/// A request that never sends its body, once the edge waits for that.
async fn slow_body(rig: &Rig, client: &str) -> Client {
    let mut slow = rig.connect().await;
    let forwarded = if client.is_empty() { String::new() } else { format!("x-forwarded-for: {client}\r\n") };
    slow.write(format!(
        "POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\n{forwarded}expect: 100-continue\r\ncontent-length: 1000\r\n\r\n"
    ))
    .await;
    assert_eq!(slow.read().await.unwrap().status, 100, "its body is waited for");
    slow
}

fn from(client: &str, body: &[u8]) -> Vec<u8> {
    post("/in/shop", &["x-token: good", &format!("x-forwarded-for: {client}")], body)
}

#[tokio::test]
async fn slow_bodies_of_one_client_take_no_more_than_its_share_of_the_places() {
    let rig = Rig::with(|config| {
        behind_a_proxy(config);
        (config.requests_max, config.client_share_percent) = (4, 50);
    })
    .await;
    let (greedy, other) = ("198.51.100.1", "198.51.100.2");
    let slow = [slow_body(&rig, greedy).await, slow_body(&rig, greedy).await];
    let shed = rig.send(from(greedy, b"{\"id\":\"e1\"}")).await;
    assert_eq!((shed.status, shed.header("connection")), (503, Some("close")));
    assert!(shed.header("retry-after").is_some());
    assert_eq!(rig.send(from(other, b"{\"id\":\"e2\"}")).await.status, 200, "the rest is for others");
    drop(slow);
    // Its places come back when the edge has seen it leave.
    while rig.send(from(greedy, b"{\"id\":\"e1\"}")).await.status != 200 {}
    rig.end().await;
}

#[tokio::test]
async fn a_client_without_a_proxy_is_its_own_peer_and_cannot_name_another() {
    let rig = Rig::with(|config| (config.requests_max, config.client_share_percent) = (4, 50)).await;
    let _slow = [slow_body(&rig, "198.51.100.1").await, slow_body(&rig, "198.51.100.2").await];
    assert_eq!(rig.send(from("198.51.100.3", b"{\"id\":\"e1\"}")).await.status, 503);
    rig.stop.force();
}

#[tokio::test]
async fn a_proxy_that_names_nobody_is_not_held_to_the_share_of_one() {
    let rig = Rig::with(|config| {
        behind_a_proxy(config);
        config.connections_per_peer_max = 1;
        (config.requests_max, config.client_share_percent) = (4, 50);
    })
    .await;
    let _slow = [slow_body(&rig, "").await, slow_body(&rig, "").await, slow_body(&rig, "").await];
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await.status, 200);
    rig.stop.force();
}

#[tokio::test]
async fn the_bytes_of_one_client_are_no_more_than_its_share_but_one_body_always_fits() {
    let rig = Rig::with(|config| {
        behind_a_proxy(config);
        (config.body_max, config.bytes_max, config.client_share_percent) = (32 * 1024, 160 * 1024, 1);
    })
    .await;
    rig.intake.set(Mood::Holds);
    let body = |id: &str| [format!("{{\"id\":\"{id}\"}}").as_bytes(), &[b' '; 30_000]].concat();
    let (greedy, other) = ("198.51.100.1", "198.51.100.2");
    let mut waiting = Vec::new();
    for (client, id) in [(greedy, "e1"), (greedy, "e2"), (other, "e3")] {
        let mut connection = rig.connect().await;
        connection.write(from(client, &body(id))).await;
        waiting.push(connection);
        rig.intake.submitted(waiting.len()).await;
        if id == "e2" {
            assert_eq!(rig.send(from(greedy, &body("e4"))).await.status, 503);
        }
    }
    rig.intake.release();
    for connection in &mut waiting {
        assert_eq!(connection.read().await.unwrap().status, 200);
    }
    assert_eq!(rig.send(from(greedy, &body("e4"))).await.status, 200);
    rig.end().await;
}

#[test]
fn what_is_refused_for_the_share_of_others_is_counted_by_its_code() {
    let recorder = makbuz::metrics::builder().unwrap().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = async {
        let rig = Rig::with(|config| (config.requests_max, config.client_share_percent) = (2, 50)).await;
        let _slow = slow_body(&rig, "").await;
        assert_eq!(rig.send(from("", b"{}")).await.status, 503);
        rig.stop.force();
    };
    let series = "makbuz_rejections_total{source=\"shop\",code=\"client_share\"}";
    metrics::with_local_recorder(&recorder, || runtime.block_on(run));
    let told = recorder.handle().render();
    assert!(told.contains(&format!("{series} 1\n")), "{told}");
}
