//! What callers can make the listener hold or wait for is bounded.

use super::*;

#[tokio::test]
async fn requests_past_the_limit_are_503_and_probes_are_not_counted() {
    let rig = Rig::new().await;
    let limits = Limits { requests_max: 0, ..Limits::default() };
    let router = operators(Admin { limits, ..rig.admin.clone() }, true);
    let (status, body) = send(&router, "GET", "/v1/receipts", Some("viewer"), "").await;
    let told: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &told["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("busy")));
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(send(&router, "GET", path, None, "").await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_body_that_stops_coming_ends_the_request() {
    let rig = Rig::new().await;
    let limits = Limits { body_time_max: Duration::from_millis(20), ..Limits::default() };
    let router = operators(Admin { limits, ..rig.admin.clone() }, true);
    let never = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
    let request = Request::builder()
        .method("POST")
        .uri("/v1/subscriptions/billing/claim")
        .header("authorization", "Bearer billing-0123456789abcdef")
        .body(Body::from_stream(never))
        .unwrap();
    let answer =
        tokio::time::timeout(Duration::from_secs(20), router.oneshot(request)).await.expect("an answer").unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}
