//! The webhook receiver that a careful team writes by hand: axum in front, one INSERT a request, one persistent,
//! mandatory publish to a quorum queue with its confirm, then 200. It is as durable as the gateway's answer, and as fast
//! as this shape allows: prepared statements from a pool, one confirming channel shared by all requests.
//!
//! Variables: LISTEN, SECRET, POOL (default 20); DATABASE_URL, without which it stores nothing, and AMQP_URL with QUEUE,
//! without which it does not publish. Without the store it is no receiver, but a measure of what is left for one that
//! publishes the gateway's messages: they carry as many headers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde::Deserialize;
use sha2::Sha256;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const TOLERANCE: Duration = Duration::from_secs(300);

struct App {
    pool: Option<PgPool>,
    secret: String,
    publisher: Option<Publisher>,
}

struct Publisher {
    channel: Channel,
    queue: ShortString,
    /// What the gateway's messages carry beside the body: text, as long as it has them.
    headers: Option<FieldTable>,
    /// Ends with the process.
    _connection: Connection,
}

#[derive(Deserialize)]
struct Event {
    id: String,
    r#type: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let size = std::env::var("POOL").map_or(Ok(20), |text| text.parse()).context("POOL")?;
    let pool = match variable("DATABASE_URL")? {
        url if url.is_empty() => None,
        url => Some(open(&url, size).await?),
    };
    let publisher = match std::env::var("AMQP_URL") {
        Ok(url) if !url.is_empty() => {
            Some(Publisher::connect(&url, &variable("QUEUE")?, pool.is_none().then(gateway_headers)).await?)
        }
        _ => None,
    };
    let app = Arc::new(App { pool, secret: variable("SECRET")?, publisher });
    let router = Router::new()
        .route("/in/pay", post(receive))
        .route("/readyz", get(|| async { StatusCode::OK }))
        .layer(DefaultBodyLimit::max(5 * 1024 * 1024))
        .with_state(app);
    let listener = tokio::net::TcpListener::bind(variable("LISTEN")?).await?;
    let stop = async {
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("a handler");
        terminate.recv().await;
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    Ok(())
}

async fn open(url: &str, size: u32) -> Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(size).connect(url).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS events (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id text NOT NULL UNIQUE, event_type text NOT NULL,
            signature text NOT NULL, body bytea NOT NULL, received_at timestamptz NOT NULL DEFAULT now())",
    )
    .execute(&pool)
    .await?;
    Ok(pool)
}

async fn receive(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(signature) = headers.get("stripe-signature").and_then(|value| value.to_str().ok()) else {
        return StatusCode::UNAUTHORIZED;
    };
    if !verify(&app.secret, signature, &body) {
        return StatusCode::UNAUTHORIZED;
    }
    let Ok(event) = serde_json::from_slice::<Event>(&body) else { return StatusCode::BAD_REQUEST };
    match keep_and_publish(&app, &event, signature, &body).await {
        Ok(()) => StatusCode::OK,
        Err(error) => {
            eprintln!("{error:#}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

async fn keep_and_publish(app: &App, event: &Event, signature: &str, body: &Bytes) -> Result<()> {
    if let Some(pool) = &app.pool {
        let inserted = sqlx::query(
            "INSERT INTO events (event_id, event_type, signature, body) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(&event.id)
        .bind(&event.r#type)
        .bind(signature)
        .bind(body.as_ref())
        .execute(pool)
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(());
        }
    }
    let Some(publisher) = &app.publisher else { return Ok(()) };
    publisher.publish(event, body).await
}

impl Publisher {
    async fn connect(url: &str, queue: &str, headers: Option<FieldTable>) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), options, arguments).await?;
        Ok(Self { channel, queue: queue.into(), headers, _connection: connection })
    }

    async fn publish(&self, event: &Event, body: &[u8]) -> Result<()> {
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(event.id.as_str().into())
            .with_type(event.r#type.as_str().into())
            .with_content_type("application/json".into());
        let properties = match &self.headers {
            Some(headers) => properties.with_headers(headers.clone()),
            None => properties,
        };
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm =
            self.channel.basic_publish("".into(), self.queue.clone(), options, body, properties).await?.await?;
        ensure!(matches!(confirm, Confirmation::Ack(None)), "the broker did not take {}", event.id);
        Ok(())
    }
}

/// The names and lengths of what an event of this load has in the gateway.
fn gateway_headers() -> FieldTable {
    const HEADERS: [(&str, usize); 17] = [
        ("makbuz-provider", 6),
        ("makbuz-account", 7),
        ("makbuz-event-id", 24),
        ("makbuz-source", 3),
        ("makbuz-duplicates", 8),
        ("makbuz-received-at", 8),
        ("makbuz-occurred-at", 8),
        ("makbuz-order", 9),
        ("makbuz-flags", 0),
        ("makbuz-coverage", 4),
        ("makbuz-part", 5),
        ("makbuz-subscription", 3),
        ("makbuz-attempt", 4),
        ("makbuz-attempts-max", 4),
        ("makbuz-trigger", 5),
        ("makbuz-token", 64),
        ("makbuz-operation-key", 36),
    ];
    let mut headers = FieldTable::default();
    for (name, bytes) in HEADERS {
        headers.insert(name.into(), AMQPValue::LongString("x".repeat(bytes).into()));
    }
    headers
}

/// `t=…,v1=…` over `t.body`, constant time, five minutes both sides.
fn verify(secret: &str, header: &str, body: &[u8]) -> bool {
    let part = |name: &str| header.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let (Some(time), Some(signature)) = (part("t"), part("v1")) else { return false };
    let (Ok(at), Ok(signature)) = (time.parse::<u64>(), hex::decode(signature)) else { return false };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac.verify_slice(&signature).is_ok() && now.abs_diff(at) <= TOLERANCE.as_secs()
}
