//! A consumer of our own queues: takes what is there, lets a handler commit it, and acks after that. What cannot be
//! committed is kept unacked and tried again, because a requeue counts against the message's delivery limit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Stop;
use crate::amqp::{AmqpError, Link};

/// Messages taken at once; each carries its body, at most `inline_max`.
const PREFETCH: u16 = 64;
/// Wait before another try, be it of the store or of the broker.
const RETRY: Duration = Duration::from_secs(1);

/// Consumes `queue` on whatever connection there is until it is stopped. `commit` returns true once all it was given is
/// committed; only then is it acked.
pub(crate) async fn consume<C, F>(mut links: watch::Receiver<Option<Arc<Link>>>, queue: String, stop: Stop, commit: C)
where
    C: Fn(Arc<Vec<Delivery>>) -> F,
    F: Future<Output = bool>,
{
    while let Some(link) = next_link(&mut links, &stop).await {
        if let Err(error) = consume_link(&link, &queue, &stop, &commit).await
            && !link.is_gone()
        {
            tracing::warn!(queue, error.code = error.code(), error = %error, "the queue cannot be consumed");
        }
        pause(&stop).await;
    }
}

/// The present connection, once there is one; `None` when it is time to stop.
async fn next_link(links: &mut watch::Receiver<Option<Arc<Link>>>, stop: &Stop) -> Option<Arc<Link>> {
    loop {
        if stop.soft.is_cancelled() || stop.hard.is_cancelled() {
            return None;
        }
        let present = links.borrow_and_update().clone();
        if let Some(link) = present.filter(|link| !link.is_gone()) {
            return Some(link);
        }
        tokio::select! {
            changed = links.changed() => changed.ok()?,
            () = sleep(RETRY) => {}
            () = stop.soft.cancelled() => {}
            () = stop.hard.cancelled() => {}
        }
    }
}

async fn consume_link<C, F>(link: &Link, queue: &str, stop: &Stop, commit: &C) -> Result<(), AmqpError>
where
    C: Fn(Arc<Vec<Delivery>>) -> F,
    F: Future<Output = bool>,
{
    let channel = link.channel().await?;
    link.answer("basic.qos", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
    let asked = channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = link.answer("basic.consume", asked).await?;
    loop {
        let first = tokio::select! {
            next = consumer.next() => next,
            () = link.gone() => return Err(AmqpError::Lost(link.why())),
            () = stop.soft.cancelled() => break,
            () = stop.hard.cancelled() => break,
        };
        // The queue was deleted, or the channel closed: begin again.
        let Some(first) = first else { return Err(AmqpError::Lost("the consumer was cancelled".to_owned())) };
        let mut batch = vec![first?];
        while batch.len() < usize::from(PREFETCH)
            && let Some(Some(Ok(more))) = consumer.next().now_or_never()
        {
            batch.push(more);
        }
        let batch = Arc::new(batch);
        // Not in a select: the handler's store calls must not be dropped half way.
        while !commit(Arc::clone(&batch)).await {
            pause(stop).await;
            if link.is_gone() || stop.soft.is_cancelled() || stop.hard.is_cancelled() {
                return Ok(());
            }
        }
        if let Some(last) = batch.last() {
            let all_up_to = BasicAckOptions { multiple: true };
            let acked = async { last.ack(all_up_to).await.map(drop) };
            link.answer("basic.ack", acked).await?;
        }
    }
    let _ = link.answer("channel.close", channel.close(200, "OK".into())).await;
    Ok(())
}

async fn pause(stop: &Stop) {
    tokio::select! {
        () = sleep(RETRY) => {}
        () = stop.soft.cancelled() => {}
        () = stop.hard.cancelled() => {}
    }
}
