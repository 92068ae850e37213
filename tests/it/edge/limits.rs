//! What strangers can make us hold or wait for is bounded.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::rig::{Client, Mood, PATIENCE, Rig, post};

const SHORT: Duration = Duration::from_millis(80);

/// The connection ends by itself within the test's patience; returns the answer that came before, if any.
async fn ends(client: &mut Client) -> Option<u16> {
    let begun = Instant::now();
    let status = client.read().await.map(|reply| reply.status);
    if status.is_some() {
        assert!(client.read().await.is_none(), "nothing more comes");
    }
    assert!(begun + PATIENCE > Instant::now());
    status
}

async fn goes_on(rig: &Rig) {
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], b"{\"id\":\"other\"}")).await.status, 200);
}

// W-119 (a)
#[tokio::test]
async fn a_silent_connection_is_closed() {
    let rig = Rig::with(|config| config.first_byte_limit = SHORT).await;
    let mut silent = rig.connect().await;
    goes_on(&rig).await;
    assert_eq!(ends(&mut silent).await, None);
    rig.end().await;
}

// W-119 (b)
#[tokio::test]
async fn a_slow_head_is_closed_however_often_a_byte_comes() {
    let rig = Rig::with(|config| config.header_limit = SHORT).await;
    let slow = rig.connect().await;
    let trickle = async {
        for byte in b"POST /in/shop HTTP/1.1\r\nhost: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
            if slow.stream.writable().await.is_err() || slow.stream.try_write(&[*byte]).is_err() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    };
    assert!(trickle.await, "the connection was closed on us");
    goes_on(&rig).await;
    rig.end().await;
}

// W-119 (c)
#[tokio::test]
async fn a_slow_body_is_408_by_a_deadline_for_the_whole() {
    let rig = Rig::with(|config| config.body_limit = SHORT).await;
    let mut slow = rig.connect().await;
    slow.write("POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\ncontent-length: 1000\r\n\r\n").await;
    for _ in 0..3 {
        slow.write("x").await;
        tokio::time::sleep(SHORT / 4).await;
    }
    goes_on(&rig).await;
    assert_eq!(ends(&mut slow).await, Some(408));
    assert_eq!(rig.intake.rejections(1).await[0].code, "body_timeout");
    rig.end().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_kept() {
    let rig = Rig::with(|config| {
        config.first_byte_limit = SHORT;
        config.header_limit = SHORT;
        config.keep_alive_limit = SHORT * 4;
    })
    .await;
    let mut client = rig.connect().await;
    for n in 0..3 {
        client.write(post("/in/shop", &["x-token: good"], format!("{{\"id\":\"e{n}\"}}").as_bytes())).await;
        assert_eq!(client.read().await.unwrap().status, 200);
        // Longer than a head may take, shorter than a connection may be idle.
        tokio::time::sleep(SHORT * 2).await;
    }
    assert!(client.read().await.is_none());
    rig.end().await;
}

#[tokio::test]
async fn a_connection_has_a_last_request() {
    let rig = Rig::with(|config| config.keep_alive_requests_max = 2).await;
    let mut client = rig.connect().await;
    for expected in [None, Some("close")] {
        client.write(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
        let reply = client.read().await.unwrap();
        assert_eq!((reply.status, reply.header("connection")), (200, expected));
    }
    assert!(client.read().await.is_none());
    rig.end().await;
}

// W-158
#[tokio::test]
async fn too_large_and_too_many_headers_are_431() {
    let rig = Rig::start().await;
    let large = format!("x-large: {}", "a".repeat(60 * 1024));
    assert_eq!(rig.send(post("/in/shop", &["x-token: good", &large], b"{}")).await.status, 431);
    let many: Vec<String> = (0..300).map(|n| format!("x-{n}: a")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(rig.send(post("/in/shop", &many, b"{}")).await.status, 431);
    let fits = format!("x-large: {}", "a".repeat(12 * 1024));
    assert_eq!(rig.send(post("/in/shop", &["x-token: good", &fits], b"{}")).await.status, 200);
    rig.end().await;
}

#[tokio::test]
async fn a_declared_body_over_the_limit_is_413_before_it_comes() {
    let rig = Rig::with(|config| config.body_max = 1000).await;
    let mut client = rig.connect().await;
    client.write("POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\ncontent-length: 1001\r\n\r\n").await;
    assert_eq!(ends(&mut client).await, Some(413));
    assert_eq!(rig.intake.rejections(1).await[0].code, "body_too_large");
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], &[b'x'; 1000])).await.status, 200);
    rig.end().await;
}

// W-028
#[tokio::test]
async fn a_chunked_body_over_the_limit_is_413_and_the_answer_can_be_read() {
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.write("POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    // 30 MB, or until we are told.
    for _ in 0..480 {
        if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &chunk).await.is_err() {
            break;
        }
        if client.stream.readable().now_or_never().is_some() {
            break;
        }
    }
    assert_eq!(client.read().await.unwrap().status, 413);
    rig.end().await;
}

// W-017
#[tokio::test]
async fn chunks_of_one_byte_and_a_trailer_are_a_body_like_any_other() {
    let rig = Rig::start().await;
    let mut request =
        "POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\ntransfer-encoding: chunked\r\ntrailer: x-end\r\n\r\n"
            .to_owned();
    for byte in "{\"id\":\"e1\"}".chars() {
        request += &format!("1\r\n{byte}\r\n");
    }
    request += "0\r\nx-end: 1\r\n\r\n";
    assert_eq!(rig.send(request).await.status, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.body.clone()), "{\"id\":\"e1\"}");
    rig.end().await;
}

// W-029
#[tokio::test]
async fn large_bodies_of_real_providers_arrive_whole() {
    let rig = Rig::with(|config| config.body_max = 25 * 1024 * 1024).await;
    for size in [65_537, 457 * 1024, 1_153_434, 26_109_542] {
        let id = format!("{{\"id\":\"e{size}\"}}");
        let body = [id.as_bytes(), &vec![b' '; size - id.len()]].concat();
        let reply = rig.send(post("/in/shop", &["x-token: good"], &body)).await;
        assert_eq!(reply.status, 200, "{size}");
        assert!(rig.intake.last(|delivery| delivery.body == body), "{size} bytes, unchanged");
    }
    rig.end().await;
}

#[tokio::test]
async fn the_bytes_of_all_bodies_together_are_bounded() {
    let rig = Rig::with(|config| config.bytes_max = 64 * 1024).await;
    rig.intake.set(Mood::Holds);
    let body = |id: &str| [format!("{{\"id\":\"{id}\"}}").as_bytes(), &[b' '; 40_000]].concat();
    let mut first = rig.connect().await;
    first.write(post("/in/shop", &["x-token: good"], &body("e1"))).await;
    rig.intake.submitted(1).await;
    let second = rig.send(post("/in/shop", &["x-token: good"], &body("e2"))).await;
    assert_eq!(second.status, 503);
    assert!(second.header("retry-after").is_some());
    rig.intake.release();
    assert_eq!(first.read().await.unwrap().status, 200);
    assert_eq!(rig.send(post("/in/shop", &["x-token: good"], &body("e2"))).await.status, 200);
    rig.end().await;
}

#[tokio::test]
async fn requests_past_the_limit_are_shed_at_once() {
    let rig = Rig::with(|config| (config.requests_max, config.client_share_percent) = (2, 100)).await;
    rig.intake.set(Mood::Holds);
    let mut clients = Vec::new();
    for n in 0..2 {
        let mut client = rig.connect().await;
        client.write(post("/in/shop", &["x-token: good"], format!("{{\"id\":\"e{n}\"}}").as_bytes())).await;
        clients.push(client);
    }
    rig.intake.submitted(2).await;
    let shed = rig.send(post("/in/shop", &["x-token: good"], b"{}")).await;
    assert_eq!(shed.status, 503);
    assert!(shed.header("retry-after").is_some());
    assert_eq!(rig.send(post("/in/nobody", &[], b"{}")).await.status, 404, "a stranger's path needs no place");
    rig.intake.release();
    for client in &mut clients {
        assert_eq!(client.read().await.unwrap().status, 200);
    }
    goes_on(&rig).await;
    rig.end().await;
}

#[tokio::test]
async fn connections_are_bounded_per_peer_and_in_all() {
    for (per_peer, in_all) in [(2, 100), (100, 2)] {
        let rig = Rig::with(|config| {
            config.connections_per_peer_max = per_peer;
            config.connections_max = in_all;
        })
        .await;
        let request = post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}");
        let (mut first, mut second) = (rig.connect().await, rig.connect().await);
        for client in [&mut first, &mut second] {
            client.write(&request).await;
            assert_eq!(client.read().await.unwrap().status, 200);
        }
        let refused = rig.send(&request).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("3")));
        drop(first);
        loop {
            // Its place comes back when the edge has seen it leave.
            let mut client = rig.connect().await;
            client.write(&request).await;
            if client.read().await.is_some_and(|reply| reply.status == 200) {
                break;
            }
        }
        rig.end().await;
    }
}

// W-112
#[tokio::test]
async fn expect_continue_is_answered_at_once_and_refusals_do_not_wait_for_the_body() {
    let rig = Rig::with(|config| config.body_max = 1000).await;
    let head = |more: &str| format!("POST /in/shop HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n{more}\r\n\r\n");
    let mut client = rig.connect().await;
    client.write(head("x-token: good\r\ncontent-length: 11")).await;
    assert_eq!(client.read().await.unwrap().status, 100);
    client.write("{\"id\":\"e1\"}").await;
    assert_eq!(client.read().await.unwrap().status, 200);
    for (more, status) in [("content-length: 11", 401), ("x-token: good\r\ncontent-length: 1001", 413)] {
        let mut client = rig.connect().await;
        client.write(head(more)).await;
        assert_eq!(client.read().await.unwrap().status, status, "{more}");
    }
    rig.end().await;
}

#[tokio::test]
async fn a_sender_that_ends_its_side_still_gets_its_answer() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Holds);
    let mut client = rig.connect().await;
    client.write(post("/in/shop", &["x-token: good"], b"{\"id\":\"e1\"}")).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    rig.intake.submitted(1).await;
    assert!(client.hears_nothing().await);
    rig.intake.release();
    assert_eq!(client.read().await.unwrap().status, 200);
    rig.end().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_nothing() {
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.write("POST /in/shop HTTP/1.1\r\nhost: a\r\nx-token: good\r\ncontent-length: 100\r\n\r\n{\"id\"").await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    assert_ne!(ends(&mut client).await, Some(200));
    assert_eq!(rig.intake.kept(), 0);
    rig.end().await;
}
