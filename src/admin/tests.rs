//! Tokens, roles and scopes, over a real store.

mod limits;

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use secrecy::SecretSlice;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::clock::{Clock, MockClock};
use crate::metrics;
use crate::model::access::{Caller, Role};
use crate::model::filter::Filter;
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::JobKey;
use crate::model::receipt::{Coverage, Mode, Origin, VerifiedBy};
use crate::model::retry::RetryPolicy;
use crate::model::subscription::{CompletesOn, Subscription, Target};
use crate::random::SeededRandom;
use crate::store::sqlite::{SqliteConfig, SqliteStore};
use crate::store::{DeliveryVerdict, NewDelivery, NewEvent, NewRejection, QuarantineBounds, Store, StoreError};

type Answer = tokio::sync::oneshot::Receiver<Result<DeliveryVerdict, StoreError>>;

const NOW: i64 = 1_796_083_200_000_000;
const BODY: &[u8] = b"{\"type\":\"invoice.paid\"}\xff";

struct Rig {
    router: Router,
    consumers: Router,
    admin: Admin,
    receipt: ReceiptId,
    _folder: tempfile::TempDir,
}

/// Says what it was asked; the rules themselves are `process`'s.
struct Echo;

#[async_trait]
impl PullApi for Echo {
    async fn claim(
        &self,
        subscription: &str,
        _: &[u8],
        consumer: &str,
        _: CancellationToken,
    ) -> Result<Value, ApiError> {
        Ok(json!({ "claimed": subscription, "by": consumer }))
    }

    async fn extend(&self, job: &JobKey, _: &[u8]) -> Result<Value, ApiError> {
        Ok(json!({ "extended": job.subscription }))
    }

    async fn outcome(&self, job: &JobKey, body: &[u8], _: &str) -> Result<Value, ApiError> {
        Ok(json!({ "reported": job.subscription, "bytes": body.len() }))
    }
}

fn subscription(name: &str, types: &[&str]) -> Subscription {
    Subscription {
        name: name.to_owned(),
        filter: Filter { types: types.iter().map(|glob| glob.parse().unwrap()).collect(), ..Filter::default() },
        target: Target::Pull,
        retry: RetryPolicy::preset("standard").unwrap(),
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

fn tokens() -> AccessTokens {
    let token = |name: &str, role, subscriptions: &[&str]| AccessToken {
        caller: Caller {
            name: name.to_owned(),
            role,
            subscriptions: subscriptions.iter().map(|&name| name.to_owned()).collect(),
        },
        value: SecretSlice::from(format!("{name}-0123456789abcdef").into_bytes()),
    };
    AccessTokens::new([
        token("billing", Role::Consumer, &["billing"]),
        token("badges", Role::Consumer, &["badges"]),
        token("viewer", Role::Viewer, &[]),
        token("operator", Role::Operator, &[]),
        token("admin", Role::Admin, &[]),
    ])
}

impl Rig {
    /// One receipt of type `invoice.paid`, which `billing` takes and `badges` does not.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(MockClock::at(NOW));
        let random = Arc::new(SeededRandom::new(7));
        let config = SqliteConfig::at(folder.path().join("makbuz.db"));
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(config, clock.clone(), random.clone()).await.unwrap());
        let subscriptions = Arc::new(SubscriptionSet::new(vec![
            subscription("billing", &["invoice.*"]),
            subscription("badges", &["badge.*"]),
        ]));
        store.sync_subscriptions(Arc::clone(&subscriptions)).await.unwrap();
        let receipt = ReceiptId::new(clock.now(), random.as_ref());
        let payload = PayloadId::new(clock.now(), random.as_ref());
        let heard = store.submit(delivery(receipt, payload, Arc::clone(&subscriptions))).unwrap();
        heard.await.unwrap().unwrap();
        let admin = Admin {
            tokens: Arc::new(tokens()),
            intake: store.clone(),
            outbox: store.clone(),
            jobs: store.clone(),
            archive: store.clone(),
            subscriptions,
            pull: Some(Arc::new(Echo)),
            broker: Some(Arc::new(|| BrokerHealth::Away)),
            metrics: metrics::builder().unwrap().build_recorder().handle(),
            gauges: Arc::default(),
            limits: Limits { body_bytes_max: 1024, ..Limits::default() },
        };
        Self {
            router: operators(admin.clone(), true),
            consumers: consumers(admin.clone()),
            admin,
            receipt,
            _folder: folder,
        }
    }

    async fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (StatusCode, Bytes) {
        send(&self.router, method, path, token, body).await
    }

    async fn json(&self, method: &str, path: &str, token: &str, body: &str) -> (StatusCode, Value) {
        let (status, body) = self.ask(method, path, Some(token), body).await;
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("JSON, not {body:?}")))
    }
}

async fn send(router: &Router, method: &str, path: &str, token: Option<&str>, body: &str) -> (StatusCode, Bytes) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}-0123456789abcdef"));
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let response = router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let status = response.status();
    assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{method} {path}");
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

fn delivery(receipt_id: ReceiptId, payload_id: PayloadId, subscriptions: Arc<SubscriptionSet>) -> NewDelivery {
    NewDelivery {
        source: "stripe-eu".into(),
        provider: "stripe".into(),
        received_at: NOW,
        payload_id,
        body: Bytes::from_static(BODY),
        headers: vec![("content-type".to_owned(), Bytes::from_static(b"application/json"))],
        dropped_headers: vec!["cookie".to_owned()],
        content_type: "application/json".to_owned(),
        url: "/in/stripe-eu".to_owned(),
        peer: "192.0.2.1".to_owned(),
        retry_headers: Vec::new(),
        verified_by: VerifiedBy {
            mechanism: "hmac-sha256".to_owned(),
            secret: "S".to_owned(),
            signed_at: Some(NOW),
            coverage: Coverage::Body,
        },
        signed_sha256: [1; 32],
        replay_guard: false,
        guard_sources: Arc::new(["stripe-eu".into()]),
        every_delivery: false,
        origin: Origin::Delivery,
        events: vec![NewEvent {
            receipt_id,
            account: "acct_1".to_owned(),
            event_id: "evt_1".to_owned(),
            provider_ref: "evt_1".to_owned(),
            mode: Mode::Live,
            event_type: "invoice.paid".to_owned(),
            occurred_at: None,
            resource_key: None,
            resource_version: None,
            pointer: None,
            part: None,
            item_sha256: [2; 32],
            flags: Vec::new(),
            hold: None,
            proof: None,
        }],
        subscriptions,
    }
}

#[tokio::test]
async fn health_and_metrics_need_no_token_and_everything_else_does() {
    let rig = Rig::new().await;
    let (status, _) = rig.ask("GET", "/livez", None, "").await;
    assert_eq!(status, StatusCode::OK);
    let (status, body) = rig.ask("GET", "/readyz", None, "").await;
    let ready: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (status, &ready["status"], &ready["store"], &ready["broker"]),
        (StatusCode::OK, &json!("degraded"), &json!("ok"), &json!("away"))
    );
    assert_eq!(rig.ask("GET", "/metrics", None, "").await.0, StatusCode::OK);
    for path in ["/v1/receipts", "/v1/jobs", "/v1/review", "/v1/rejections", "/v1/nothing", "/anything"] {
        for token in [None, Some("nobody")] {
            let (status, body) = rig.ask("GET", path, token, "").await;
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            assert!(
                status == StatusCode::UNAUTHORIZED && body["error"]["code"] == "unauthorized",
                "{path}: {status} {body}"
            );
        }
    }
}

/// A store that is away.
struct Away;

#[async_trait]
impl Intake for Away {
    fn submit(&self, _: NewDelivery) -> Result<Answer, StoreError> {
        Err(StoreError::Busy)
    }

    async fn record_rejections(&self, _: Vec<NewRejection>, _: QuarantineBounds) -> Result<(), StoreError> {
        Err(StoreError::Busy)
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Err(StoreError::Unavailable("postgres://user:canary@db refused".to_owned()))
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_named_and_answers_503_without_its_address() {
    let rig = Rig::new().await;
    let router = operators(Admin { intake: Arc::new(Away), ..rig.admin.clone() }, true);
    let (status, body) = send(&router, "GET", "/readyz", None, "").await;
    let ready: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (status, &ready["status"], &ready["store"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable"), &json!("store_unavailable"))
    );
    assert!(!String::from_utf8_lossy(&body).contains("canary"), "{body:?}");
    assert_eq!(send(&router, "GET", "/livez", None, "").await.0, StatusCode::OK);
}

#[tokio::test]
async fn two_authorization_headers_are_no_token() {
    let rig = Rig::new().await;
    let request = Request::builder()
        .uri("/v1/receipts")
        .header("authorization", "Bearer viewer-0123456789abcdef")
        .header("authorization", "Bearer viewer-0123456789abcdef")
        .body(Body::empty())
        .unwrap();
    assert_eq!(rig.router.clone().oneshot(request).await.unwrap().status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn each_role_reaches_as_far_as_it_says() {
    let rig = Rig::new().await;
    let id = rig.receipt;
    let (body, replay, claim) =
        (format!("/v1/receipts/{id}/body"), format!("/v1/jobs/{id}/billing/replay"), "/v1/subscriptions/billing/claim");
    let (ok, no, conflict, absent) =
        (StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::CONFLICT, StatusCode::NOT_FOUND);
    // A live job cannot be replayed: 409 says that the role would have let it.
    let cases = [
        ("billing", no, ok, no, ok),
        ("badges", no, absent, no, no),
        ("viewer", ok, no, no, no),
        ("operator", ok, ok, conflict, ok),
        ("admin", ok, ok, conflict, ok),
    ];
    for (token, list, bytes, again, work) in cases {
        assert_eq!(rig.ask("GET", "/v1/receipts", Some(token), "").await.0, list, "{token} lists");
        assert_eq!(rig.ask("GET", &body, Some(token), "").await.0, bytes, "{token} reads a body");
        let (status, told) = rig.ask("POST", &replay, Some(token), "").await;
        assert_eq!(status, again, "{token} replays: {told:?}");
        assert_eq!(rig.ask("POST", claim, Some(token), "{}").await.0, work, "{token} claims");
    }
}

#[tokio::test]
async fn a_consumer_is_held_to_its_subscriptions() {
    let rig = Rig::new().await;
    let id = rig.receipt;
    let (status, told) = rig.json("POST", "/v1/subscriptions/billing/claim", "billing", "{}").await;
    assert_eq!((status, told), (StatusCode::OK, json!({ "claimed": "billing", "by": "billing" })));
    for path in [
        "/v1/subscriptions/badges/claim".to_owned(),
        format!("/v1/jobs/{id}/badges/extend"),
        format!("/v1/jobs/{id}/badges/outcome"),
    ] {
        let (status, told) = rig.json("POST", &path, "billing", "{}").await;
        assert_eq!((status, &told["error"]["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")), "{path}");
    }
    let (status, told) = rig.json("POST", &format!("/v1/jobs/{id}/billing/outcome"), "billing", "{}").await;
    assert_eq!((status, told), (StatusCode::OK, json!({ "reported": "billing", "bytes": 2 })));
}

#[tokio::test]
async fn the_consumers_listener_serves_consumers_alone() {
    let rig = Rig::new().await;
    let (status, _) = send(&rig.consumers, "POST", "/v1/subscriptions/billing/claim", Some("billing"), "{}").await;
    assert_eq!(status, StatusCode::OK);
    for path in ["/v1/receipts", "/v1/jobs", "/metrics", "/readyz"] {
        let (status, _) = send(&rig.consumers, "GET", path, Some("admin"), "").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_receipt_is_shown_with_its_jobs_and_its_exact_bytes() {
    let rig = Rig::new().await;
    let id = rig.receipt.to_string();
    let (_, listed) = rig.json("GET", "/v1/receipts?source=stripe-eu&limit=1", "viewer", "").await;
    assert_eq!((&listed["receipts"][0]["id"], &listed["next"]), (&json!(id), &Value::Null));
    let (_, shown) = rig.json("GET", &format!("/v1/receipts/{id}"), "viewer", "").await;
    assert_eq!((&shown["event_id"], &shown["received_at"]), (&json!("evt_1"), &json!("2026-12-01T00:00:00.000000Z")));
    assert_eq!((&shown["jobs"][0]["subscription"], &shown["jobs"][0]["state"]), (&json!("billing"), &json!("pending")));
    let (_, job) = rig.json("GET", &format!("/v1/jobs/{id}/billing"), "viewer", "").await;
    assert_eq!((&job["job"]["attempt"], &job["attempts"]), (&json!(0), &json!([])));
    let (status, bytes) = rig.ask("GET", &format!("/v1/receipts/{id}/body"), Some("operator"), "").await;
    assert_eq!((status, &bytes[..]), (StatusCode::OK, BODY));
}

#[tokio::test]
async fn bodies_are_to_be_saved_and_not_to_be_shown() {
    let rig = Rig::new().await;
    let request = Request::builder()
        .uri(format!("/v1/receipts/{}/body?whole=true", rig.receipt))
        .header("authorization", "bearer operator-0123456789abcdef")
        .body(Body::empty())
        .unwrap();
    let response = rig.router.clone().oneshot(request).await.unwrap();
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/octet-stream");
    assert!(headers["content-disposition"].to_str().unwrap().starts_with("attachment; "));
    assert_eq!(
        (&headers["makbuz-content-type"], &headers["cache-control"]),
        (&"application/json".parse().unwrap(), &"no-store".parse().unwrap())
    );
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_with_a_code() {
    let rig = Rig::new().await;
    let id = rig.receipt;
    let (replay, dismiss) = (format!("/v1/jobs/{id}/billing/replay"), format!("/v1/jobs/{id}/billing/dismiss"));
    let long = format!("{{\"why\":\"{}\"}}", "x".repeat(2000));
    let cases = [
        ("GET", "/v1/receipts?limit=0", "", 400, "limit_invalid"),
        ("GET", "/v1/receipts?limit=501", "", 400, "limit_invalid"),
        ("GET", "/v1/receipts?sorce=x", "", 400, "query_invalid"),
        ("GET", "/v1/receipts?mode=real", "", 400, "mode_invalid"),
        ("GET", "/v1/receipts/7", "", 400, "receipt_invalid"),
        ("GET", "/v1/receipts/0198c0de-0000-7000-8000-000000000001", "", 404, "not_found"),
        ("GET", "/v1/jobs?state=done", "", 400, "state_invalid"),
        ("GET", "/v1/jobs?reason=bad", "", 400, "reason_invalid"),
        ("GET", "/v1/review?state=queued", "", 400, "query_invalid"),
        ("GET", "/v1/receipts?account=a%00", "", 400, "query_invalid"),
        ("GET", "/v1/jobs?subscription=%00", "", 400, "query_invalid"),
        ("GET", "/v1/nothing", "", 404, "not_found"),
        ("PUT", "/v1/receipts", "", 405, "method_not_allowed"),
        ("POST", &replay, "{\"wy\":1}", 400, "body_invalid"),
        ("POST", &replay, &long, 400, "body_invalid"),
        ("POST", &dismiss, "", 400, "why_missing"),
        ("POST", &dismiss, "{\"why\":\" \"}", 400, "why_missing"),
    ];
    for (method, path, body, status, code) in cases {
        let (got, told) = rig.json(method, path, "operator", body).await;
        assert_eq!((got.as_u16(), &told["error"]["code"]), (status, &json!(code)), "{method} {path}: {told}");
    }
    let (status, told) = rig.json("POST", &dismiss, "operator", "{\"why\":\"not ours\"}").await;
    assert_eq!(status, StatusCode::CONFLICT, "a live job is not dismissed: {told}");
}

#[tokio::test]
async fn without_the_role_process_nothing_is_claimed() {
    let rig = Rig::new().await;
    let admin = Admin { pull: None, ..rig.admin.clone() };
    let (status, _) =
        send(&operators(admin, true), "POST", "/v1/subscriptions/billing/claim", Some("billing"), "{}").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[test]
fn a_page_never_ends_between_the_jobs_of_one_receipt() {
    let random = SeededRandom::new(3);
    let (a, b) = (ReceiptId::new(NOW, &random), ReceiptId::new(NOW, &random));
    let keys = [(a, "x"), (a, "y"), (b, "x"), (b, "y"), (b, "z")];
    let receipts: Vec<ReceiptId> = keys.iter().map(|(receipt, _)| *receipt).collect();
    assert_eq!([1, 2, 3, 5, 9].map(|limit| jobs::end_of_page(&receipts, limit)), [2, 2, 5, 5, 5]);
}
