//! The broker as a consumer sees it: a prefix of a test's own, and the messages of a queue.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeleteOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use tokio::time::{Instant, timeout, timeout_at};

use super::database::plain_id;

static FOUND: AtomicU32 = AtomicU32::new(0);
/// A queue that gives nothing for this long is taken as empty.
const QUIET: Duration = Duration::from_millis(700);

/// A part of the broker that is this test's alone; what was made there goes with this value.
pub struct Broker {
    pub url: String,
    pub prefix: String,
    /// Queues of subscriptions, for the end.
    subscriptions: Vec<String>,
}

/// One message, as far as the contract speaks of it.
#[derive(Debug)]
pub struct Message {
    /// 32 hex digits.
    pub receipt: String,
    pub message_id: String,
    pub body: Vec<u8>,
}

impl Broker {
    /// The broker of `AMQP_URL`, with names for these subscriptions; `None`, said by `skip`, without one.
    pub fn find(subscriptions: &[&str]) -> Option<Self> {
        let Some(url) = super::variable("AMQP_URL") else {
            super::skip("no RabbitMQ: AMQP_URL is not set");
            return None;
        };
        let prefix = format!("it-{}-{}", std::process::id(), FOUND.fetch_add(1, Ordering::Relaxed));
        Some(Self { url, prefix, subscriptions: subscriptions.iter().map(|name| (*name).to_owned()).collect() })
    }

    /// The same broker through another address, such as a proxy's.
    pub fn url_at(&self, address: &str) -> String {
        let (head, tail) = self.url.split_once('@').unwrap_or(("amqp://guest:guest", &self.url));
        let path = tail.find('/').map_or("", |at| &tail[at..]);
        format!("{head}@{address}{path}")
    }

    /// `host:port` of the broker.
    pub fn address(&self) -> String {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        if host.contains(':') { host.to_owned() } else { format!("{host}:5672") }
    }

    /// Takes and acks the messages of a subscription's queue until `distinct` receipts have come, then whatever else
    /// is there; fails the test after `limit`.
    pub async fn take(&self, subscription: &str, distinct: usize, limit: Duration) -> Vec<Message> {
        let until = Instant::now() + limit;
        let connection =
            Connection::connect(&self.url, ConnectionProperties::default()).await.expect("AMQP_URL answers");
        let channel = connection.create_channel().await.expect("a channel");
        channel.basic_qos(200, BasicQosOptions::default()).await.expect("a prefetch");
        let queue = format!("{}.{subscription}", self.prefix);
        let mut consumer = channel
            .basic_consume(queue.as_str().into(), "test".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .expect("the subscription's queue is there");
        let mut seen = HashSet::new();
        let mut messages = Vec::new();
        loop {
            let next = if seen.len() < distinct {
                let next = timeout_at(until, consumer.next()).await;
                next.unwrap_or_else(|_| {
                    panic!("{} of {distinct} receipts came out of {queue} within {limit:?}", seen.len())
                })
            } else {
                match timeout(QUIET, consumer.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                }
            };
            let delivery = next.expect("the consumer goes on").expect("a delivery");
            delivery.ack(BasicAckOptions::default()).await.expect("an ack");
            let message = Message::of(&delivery);
            seen.insert(message.receipt.clone());
            messages.push(message);
        }
        drop(connection.close(200, "done".into()).await);
        messages
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let (url, prefix, subscriptions) =
            (self.url.clone(), self.prefix.clone(), std::mem::take(&mut self.subscriptions));
        // A test's own runtime may be ending; the drop must not wait for it.
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on(delete_all(&url, &prefix, &subscriptions)).map_err(std::io::Error::other)
        });
        drop(deleted.join());
    }
}

async fn delete_all(url: &str, prefix: &str, subscriptions: &[String]) -> Result<(), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let fixed = ["unrouted", "dead", "outcomes"].map(String::from);
    let slow = subscriptions.iter().map(|name| format!("{name}.slow"));
    for queue in fixed.into_iter().chain(subscriptions.iter().cloned()).chain(slow) {
        channel.queue_delete(format!("{prefix}.{queue}").into(), QueueDeleteOptions::default()).await?;
    }
    for exchange in ["jobs", "events", "unrouted", "dead", "outcomes"] {
        channel.exchange_delete(format!("{prefix}.{exchange}").into(), ExchangeDeleteOptions::default()).await?;
    }
    connection.close(200, "done".into()).await
}

impl Message {
    fn of(delivery: &Delivery) -> Self {
        let message_id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        Self { receipt: plain_id(&message_id), message_id, body: delivery.data.clone() }
    }
}
