//! Which path leads where.

use super::rig::{Rig, post};

async fn status(rig: &Rig, request: &str) -> u16 {
    rig.send(request).await.status
}

#[tokio::test]
async fn one_trailing_slash_aliases_and_extra_paths_lead_to_the_source() {
    let rig = Rig::start().await;
    for (n, path) in
        ["/in/shop", "/in/shop/", "/in/old-shop", "/webhooks/shop", "/webhooks/shop/"].into_iter().enumerate()
    {
        let body = format!("{{\"id\":\"e{n}\"}}");
        let reply = rig.send(post(path, &["x-token: good"], body.as_bytes())).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.header("makbuz-receipt").is_some());
        assert_eq!(rig.intake.last(|delivery| delivery.source.to_string()), "shop", "{path}");
    }
    assert_eq!(rig.intake.receipts(), 5);
    rig.end().await;
}

// W-110
#[tokio::test]
async fn path_tricks_are_404_and_never_a_redirect() {
    let rig = Rig::start().await;
    for path in [
        "//in/shop",
        "/in//shop",
        "/in/shop//",
        "/in/../in/shop",
        "/in/shop/..",
        "/in/%73hop",
        "/in/shop%2f",
        "/in/shop;x",
        "/in/Shop",
        "/IN/shop",
        "/in/shop/extra",
        "/in",
        "/in/",
        "/",
        "/in/\\shop",
        "/webhooks",
        "/webhooks/shop/extra",
        "/in/%3Cscript%3E",
    ] {
        let reply = rig.send(post(path, &["x-token: good"], b"{}")).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.is_empty() && reply.header("location").is_none());
    }
    assert_eq!(rig.intake.kept(), 0);
    let unknown = rig.edge.unknown_paths();
    assert!(unknown.iter().any(|entry| entry.path == "/in/%3Cscript%3E" && entry.count == 1));
    rig.end().await;
}

#[tokio::test]
async fn an_unknown_source_is_answered_without_its_body() {
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.write("POST /in/nobody HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n").await;
    let reply = client.read().await.unwrap();
    assert_eq!((reply.status, reply.header("connection")), (404, Some("close")));
    assert!(client.read().await.is_none(), "the connection ends");
    rig.end().await;
}

#[tokio::test]
async fn an_account_is_in_the_path_if_and_only_if_the_source_says_so() {
    let rig = Rig::start().await;
    let send = |path: &'static str| rig.send(post(path, &["x-token: good"], b"{\"id\":\"e1\"}"));
    assert_eq!(send("/in/seller").await.status, 404);
    assert_eq!(send("/in/seller/").await.status, 404);
    assert_eq!(send("/in/seller/m1/more").await.status, 404);
    assert_eq!(send("/in/seller/m1").await.status, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.events[0].account.clone()), "m1");
    assert_eq!(
        send("/in/seller/m1/").await.header("makbuz-receipt"),
        send("/in/seller/m1").await.header("makbuz-receipt")
    );
    rig.end().await;
}

#[tokio::test]
async fn a_suffix_and_put_belong_to_definitions_that_declare_them() {
    let rig = Rig::start().await;
    let put = |path: &str| {
        String::from_utf8(post(path, &["x-token: good"], b"{\"id\":\"e1\"}")).unwrap().replacen("POST", "PUT", 1)
    };
    assert_eq!(status(&rig, &put("/in/depot/orders/created")).await, 200);
    assert_eq!(rig.intake.last(|delivery| delivery.events[0].event_type.clone()), "orders/created");
    assert_eq!(status(&rig, &put("/in/shop/orders")).await, 404);
    let refused = rig.send(put("/in/shop")).await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")));
    rig.end().await;
}

// W-104
#[tokio::test]
async fn probes_are_answered_where_declared_and_405_elsewhere() {
    let rig = Rig::start().await;
    let probe = |path: &str, method: &str| format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert_eq!(status(&rig, &probe("/in/probe", "HEAD")).await, 200);
    assert_eq!(status(&rig, &probe("/in/probe", "GET")).await, 405);
    assert_eq!(status(&rig, &probe("/in/shop", "HEAD")).await, 405);
    assert_eq!(status(&rig, &probe("/in/shop", "DELETE")).await, 405);
    assert_eq!(rig.intake.kept(), 0);
    rig.end().await;
}

#[tokio::test]
async fn a_method_that_the_source_does_not_take_is_in_the_quarantine_with_its_peer() {
    let rig = Rig::with(|config| config.trusted_proxies.networks = vec!["127.0.0.0/8".parse().unwrap()]).await;
    let request = "DELETE /in/shop?a=1 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 198.51.100.7\r\nx-token: good\r\n\r\n";
    let refused = rig.send(request).await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")));
    assert_eq!(refused.header("connection"), Some("close"));
    let kept = rig.intake.rejections(1).await.remove(0);
    assert_eq!((kept.source.as_str(), kept.code.as_str()), ("shop", "method_not_allowed"));
    assert_eq!(
        (kept.peer.as_str(), kept.method.as_str(), kept.path.as_str()),
        ("198.51.100.7", "DELETE", "/in/shop?a=1")
    );
    assert!(!kept.headers.iter().any(|(_, value)| value == "good"), "{:?}", kept.headers);
    rig.end().await;
}

#[tokio::test]
async fn healthz_is_constant() {
    let rig = Rig::start().await;
    let reply = rig.send("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "ok\n"));
    assert_eq!(status(&rig, "POST /healthz HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await, 405);
    rig.end().await;
}
