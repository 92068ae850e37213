//! The broker as processing sees it: the queue of outcomes as a [`Feed`], one channel's life; and how full queues are.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::lost::QueueLook;
use super::outcomes::{Feed, FeedError, Feeds, Incoming};
use crate::amqp::{Link, Names, ready_count};

/// Settings of the feed.
#[derive(Debug, Clone)]
pub struct FeedConfig {
    /// The queue of outcomes: `{prefix}.outcomes`.
    pub queue: String,
    /// Messages that the broker sends ahead of their acks. Default 256.
    pub prefetch: u16,
    /// For one answer of the broker. Default 10 s.
    pub operation_timeout: Duration,
}

impl FeedConfig {
    /// The defaults for `queue`.
    pub fn new(queue: String) -> Self {
        Self { queue, prefetch: 256, operation_timeout: Duration::from_secs(10) }
    }
}

/// Feeds on the consuming connection, as it comes and goes.
pub struct BrokerFeeds {
    links: watch::Receiver<Option<Arc<Link>>>,
    config: FeedConfig,
    /// Another feed was given before: the next one is not opened at once.
    again: bool,
}

/// Between the end of a feed and the next one, beside the connection's own waits.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

impl BrokerFeeds {
    pub fn new(links: watch::Receiver<Option<Arc<Link>>>, config: FeedConfig) -> Self {
        Self { links, config, again: false }
    }

    async fn link(&mut self) -> Arc<Link> {
        loop {
            if let Some(link) = self.links.borrow_and_update().clone() {
                return link;
            }
            if self.links.changed().await.is_err() {
                // Nobody keeps the connection any more: the process is about to stop.
                std::future::pending::<()>().await;
            }
        }
    }

    async fn open(&mut self) -> Result<AmqpFeed, FeedError> {
        let link = self.link().await;
        let channel = link.channel().await.map_err(|error| FeedError(error.to_string()))?;
        open_feed(channel, &self.config).await
    }
}

#[async_trait]
impl Feeds for BrokerFeeds {
    async fn next(&mut self) -> Box<dyn Feed> {
        loop {
            if std::mem::replace(&mut self.again, true) {
                sleep(REOPEN_PAUSE).await;
            }
            match self.open().await {
                Ok(feed) => return Box::new(feed),
                Err(error) => tracing::warn!(%error, "the queue of outcomes cannot be consumed"),
            }
        }
    }
}

/// Asks the broker how many messages a subscription's queues have ready.
pub struct BrokerQueues {
    links: watch::Receiver<Option<Arc<Link>>>,
    names: Names,
}

impl BrokerQueues {
    pub fn new(links: watch::Receiver<Option<Arc<Link>>>, names: Names) -> Self {
        Self { links, names }
    }
}

#[async_trait]
impl QueueLook for BrokerQueues {
    async fn ready(&self, subscription: &str) -> Option<u64> {
        let link = self.links.borrow().clone()?;
        let mut ready = 0;
        for queue in [self.names.queue(subscription), self.names.slow_queue(subscription)] {
            ready += u64::from(ready_count(&link, &queue).await.ok()?);
        }
        Some(ready)
    }
}

/// Messages of one channel. When it fails, the channel is of no use any more: take a new one.
pub struct AmqpFeed {
    channel: Channel,
    consumer: Consumer,
    operation_timeout: Duration,
}

/// Begins to consume on a channel that nothing else uses.
pub async fn open_feed(channel: Channel, config: &FeedConfig) -> Result<AmqpFeed, FeedError> {
    let qos = channel.basic_qos(config.prefetch, BasicQosOptions::default());
    in_time(config.operation_timeout, qos).await?;
    let consume = channel.basic_consume(
        config.queue.as_str().into(),
        "".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let consumer = in_time(config.operation_timeout, consume).await?;
    Ok(AmqpFeed { channel, consumer, operation_timeout: config.operation_timeout })
}

#[async_trait]
impl Feed for AmqpFeed {
    async fn take(&mut self, max: usize) -> Result<Vec<Incoming>, FeedError> {
        let mut taken = vec![incoming(self.consumer.next().await)?];
        while taken.len() < max {
            match self.consumer.next().now_or_never() {
                Some(next) => taken.push(incoming(next)?),
                None => break,
            }
        }
        Ok(taken)
    }

    async fn ack_up_to(&mut self, tag: u64) -> Result<(), FeedError> {
        let ack = self.channel.basic_ack(tag, BasicAckOptions { multiple: true });
        in_time(self.operation_timeout, ack).await
    }
}

fn incoming(next: Option<lapin::Result<Delivery>>) -> Result<Incoming, FeedError> {
    let delivery = next.ok_or_else(|| FeedError("the broker cancelled the consumer".to_owned()))?.map_err(lost)?;
    let user = delivery.properties.user_id().as_ref().map(ToString::to_string);
    Ok(Incoming { tag: delivery.delivery_tag, body: Bytes::from(delivery.data), user })
}

async fn in_time<T>(limit: Duration, answer: impl Future<Output = lapin::Result<T>>) -> Result<T, FeedError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(lost),
        Err(_) => Err(FeedError("the broker did not answer in time".to_owned())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the shape that map_err wants")]
fn lost(error: lapin::Error) -> FeedError {
    FeedError(error.to_string())
}
