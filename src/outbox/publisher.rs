//! Publishes batches: one task, one channel, one batch behind its barrier at a time. A row counts as confirmed by its own
//! confirm alone; a row of which nothing certain is known stays in the outbox.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::message::{Identity, Message, identity};
use super::verdict::{Confirm, RowResult, results};
use crate::amqp::{AmqpError, Link};

/// Limits of publishing.
#[derive(Debug, Clone, Copy)]
pub struct PublisherConfig {
    /// For a publish to leave, and for all confirms of a batch to come. Default 10 s.
    pub confirm_timeout: Duration,
    /// How much longer a batch on its way may wait while the broker says that it is blocked. Default 5 min.
    pub blocked_max: Duration,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self { confirm_timeout: Duration::from_secs(10), blocked_max: Duration::from_secs(300) }
    }
}

/// The relay's end: batches in, their results out, in the same order.
pub(crate) struct PublisherHandle<T> {
    pub batches: mpsc::Sender<Vec<(T, Message)>>,
    pub done: mpsc::Receiver<Vec<(T, RowResult)>>,
}

impl<T> PublisherHandle<T> {
    /// The publisher's task is no more, though nobody dropped this handle: it panicked.
    pub fn has_died(&self) -> bool {
        self.done.is_closed()
    }
}

/// Starts the publisher's task; it ends when the handle is dropped. `T` goes along with each message.
pub(crate) fn start<T: Send + 'static>(
    config: PublisherConfig,
    link: watch::Receiver<Option<Arc<Link>>>,
    in_flight: usize,
) -> PublisherHandle<T> {
    // Room for all that may be in flight: the relay counts, and never finds it full.
    let (batches, mut taken) = mpsc::channel::<Vec<(T, Message)>>(in_flight.max(1));
    let (finished, done) = mpsc::channel(in_flight + 1);
    tokio::spawn(async move {
        let mut publisher = Publisher { config, link, channel: None };
        while let Some(batch) = taken.recv().await {
            let (rows, messages): (Vec<T>, Vec<Message>) = batch.into_iter().unzip();
            let results = publisher.publish(&messages).await;
            if finished.send(rows.into_iter().zip(results).collect()).await.is_err() {
                return;
            }
        }
    });
    PublisherHandle { batches, done }
}

struct Publisher {
    config: PublisherConfig,
    link: watch::Receiver<Option<Arc<Link>>>,
    channel: Option<Open>,
}

/// A channel in confirm mode on the link it belongs to.
struct Open {
    link: Arc<Link>,
    channel: Channel,
}

/// One try at a group of messages.
struct Tried {
    results: Vec<RowResult>,
    /// The broker closed the channel over a message of the group.
    refused: Option<String>,
}

impl Publisher {
    /// Publishes all of a batch; a message that the broker will not have is found and set apart.
    async fn publish(&mut self, messages: &[Message]) -> Vec<RowResult> {
        let mut results = vec![RowResult::NotSent; messages.len()];
        // A new connection learns that the broker is blocked by its first publish only: send one row ahead.
        let ahead = usize::from(self.channel.is_none() && messages.len() > 1);
        let mut groups: VecDeque<Vec<usize>> = VecDeque::new();
        groups.extend([(0..ahead).collect(), (ahead..messages.len()).collect::<Vec<_>>()]);
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let tried = self.attempt(messages, &group).await;
            match tried.refused {
                None => {}
                Some(why) if group.len() == 1 => {
                    let message = &messages[group[0]];
                    tracing::warn!(
                        receipt.id = message.identity().message_id,
                        error = why,
                        "the broker refuses the message"
                    );
                    results[group[0]] = RowResult::Refused;
                    continue;
                }
                Some(_) => {
                    let settled = |of: &RowResult| !matches!(of, RowResult::Lost | RowResult::NotSent);
                    let (known, open): (Vec<_>, Vec<_>) =
                        group.into_iter().zip(tried.results).partition(|(_, result)| settled(result));
                    known.into_iter().for_each(|(row, result)| results[row] = result);
                    for half in
                        halves(open.into_iter().map(|(row, _)| row).collect(), |row| messages[row].payload.len())
                    {
                        groups.push_front(half);
                    }
                    continue;
                }
            }
            let stop = tried
                .results
                .iter()
                .any(|result| matches!(result, RowResult::Timeout | RowResult::Lost | RowResult::NotSent));
            group.into_iter().zip(tried.results).for_each(|(row, result)| results[row] = result);
            if stop {
                break;
            }
        }
        results
    }

    /// Sends a group and waits for every confirm of it.
    async fn attempt(&mut self, messages: &[Message], group: &[usize]) -> Tried {
        let not_sent = Tried { results: vec![RowResult::NotSent; group.len()], refused: None };
        let Some((link, channel)) = self.open().await else { return not_sent };
        if link.blocked().is_some() || link.is_gone() {
            return not_sent;
        }
        let sent: Vec<Identity> = group.iter().map(|row| messages[*row].identity()).collect();
        let mut deadline = Deadline::new(&self.config, &link);
        let mut heard = Heard::default();
        let mut sends = begin_sends(&channel, messages, group).await;
        for send in &mut sends {
            heard.confirm(send, &mut deadline).await;
        }
        drop(sends);
        let mut tried = Tried { results: results(&sent, &heard.confirms, &heard.returned), refused: None };
        self.settle(&link, heard, &mut tried);
        tried
    }

    /// Decides whether the channel and the connection live on.
    fn settle(&mut self, link: &Link, heard: Heard, tried: &mut Tried) {
        if tried.results.contains(&RowResult::Timeout) {
            link.condemn("no confirm in time");
        }
        match heard.error {
            Some(AmqpError::Channel { reply: 406 | 311, text }) => {
                self.channel = None;
                tried.refused = Some(text);
            }
            // A missing exchange, a right that was taken away: connect again, slower and slower, and look at the topology.
            Some(error) => {
                self.channel = None;
                link.condemn(&error.to_string());
            }
            None if tried.results.contains(&RowResult::Lost) => {
                self.channel = None;
                link.condemn("a message came back that was not sent");
            }
            // A quorum queue tells each channel when it is full and when no longer, but not if a policy that was taken
            // away made it so: only a new channel finds out.
            None if tried.results.contains(&RowResult::Nacked) => self.channel = None,
            None => {}
        }
    }

    /// The channel on the present link, opened and in confirm mode.
    async fn open(&mut self) -> Option<(Arc<Link>, Channel)> {
        let link = self.link.borrow().clone();
        let Some(link) = link.filter(|link| !link.is_gone()) else {
            self.channel = None;
            return None;
        };
        if let Some(open) = &self.channel
            && Arc::ptr_eq(&open.link, &link)
            && open.channel.status().connected()
        {
            return Some((link, open.channel.clone()));
        }
        self.channel = None;
        let opened = async {
            let channel = link.channel().await?;
            link.answer("confirm.select", channel.confirm_select(ConfirmSelectOptions::default())).await?;
            Ok::<_, AmqpError>(channel)
        };
        match opened.await {
            Ok(channel) => {
                self.channel = Some(Open { link: Arc::clone(&link), channel: channel.clone() });
                Some((link, channel))
            }
            Err(error) => {
                tracing::warn!(error.code = error.code(), error = %error, "no channel to publish on");
                link.condemn(&error.to_string());
                None
            }
        }
    }
}

type Sent = lapin::Result<PublisherConfirm>;

/// A publish on its way out, or already out.
enum Publish<'a> {
    Going(Pin<Box<dyn Future<Output = Sent> + Send + 'a>>),
    Gone(Option<Sent>),
}

/// Hands every message of the group to the channel, in order. The first poll takes the delivery tag and queues the
/// frames; nothing is waited for in between.
async fn begin_sends<'a>(channel: &'a Channel, messages: &'a [Message], group: &[usize]) -> Vec<Publish<'a>> {
    let mut sends = Vec::with_capacity(group.len());
    for row in group {
        let message = &messages[*row];
        let options = BasicPublishOptions { mandatory: message.mandatory, ..BasicPublishOptions::default() };
        let (exchange, key) = (message.exchange.as_str().into(), message.routing_key.as_str().into());
        let mut going: Pin<Box<dyn Future<Output = Sent> + Send + 'a>> =
            Box::pin(channel.basic_publish(exchange, key, options, &message.payload, message.properties.clone()));
        sends.push(match poll_fn(|cx| Poll::Ready(going.as_mut().poll(cx))).await {
            Poll::Ready(sent) => Publish::Gone(Some(sent)),
            Poll::Pending => Publish::Going(going),
        });
    }
    sends
}

/// What came back while waiting behind the barrier.
#[derive(Default)]
struct Heard {
    confirms: Vec<Confirm>,
    returned: Vec<Identity>,
    error: Option<AmqpError>,
}

impl Heard {
    async fn confirm(&mut self, send: &mut Publish<'_>, deadline: &mut Deadline<'_>) {
        let sent = match send {
            Publish::Gone(sent) => sent.take(),
            Publish::Going(going) => deadline.within(going).await,
        };
        let confirmed = match sent {
            Some(Ok(confirm)) => deadline.within(confirm).await,
            Some(Err(error)) => Some(Err(error)),
            None => None,
        };
        let (confirm, returned) = match confirmed {
            Some(Ok(Confirmation::Ack(returned))) => (Confirm::Ack, returned),
            Some(Ok(Confirmation::Nack(returned))) => (Confirm::Nack, returned),
            // Not in confirm mode: that proves nothing.
            Some(Ok(Confirmation::NotRequested)) => (Confirm::Lost, None),
            Some(Err(error)) => {
                self.note(error.into());
                (Confirm::Lost, None)
            }
            None if deadline.link.is_gone() => {
                self.note(AmqpError::Lost(deadline.link.why()));
                (Confirm::Lost, None)
            }
            None => (Confirm::Timeout, None),
        };
        self.confirms.push(confirm);
        if let Some(back) = returned {
            self.returned.push(identity(&back.delivery.properties, back.delivery.routing_key.as_str()));
        }
    }

    /// Keeps the broker's own word before lapin's "invalid channel state" that follows from it.
    fn note(&mut self, error: AmqpError) {
        let better = matches!((&self.error, &error), (None, _) | (Some(AmqpError::Lost(_)), AmqpError::Channel { .. }));
        if better {
            self.error = Some(error);
        }
    }
}

/// When a batch has waited long enough. While the broker is blocked it begins anew, up to a bound.
struct Deadline<'a> {
    link: &'a Link,
    limit: Duration,
    at: Instant,
    blocked_at: Instant,
}

impl<'a> Deadline<'a> {
    fn new(config: &PublisherConfig, link: &'a Link) -> Self {
        let now = Instant::now();
        let limit = config.confirm_timeout;
        Self { link, limit, at: now + limit, blocked_at: now + config.blocked_max }
    }

    /// `None` when time is up or the connection gone.
    async fn within<F: Future + Unpin>(&mut self, mut waited: F) -> Option<F::Output> {
        loop {
            tokio::select! {
                biased;
                heard = &mut waited => return Some(heard),
                () = self.link.gone() => return None,
                () = sleep_until(self.at) => {
                    let now = Instant::now();
                    if self.link.blocked().is_none() || now >= self.blocked_at {
                        return None;
                    }
                    self.at = now + self.limit;
                }
            }
        }
    }
}

/// The largest alone, and the rest in halves: size is what a broker usually refuses a message for. The groups come so
/// that pushing each to the front makes the largest the first.
fn halves(mut rows: Vec<usize>, size: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let Some(largest) = (0..rows.len()).max_by_key(|at| size(rows[*at])) else { return Vec::new() };
    let largest = rows.remove(largest);
    // The rest goes whole when the largest stands out: most likely it was the only one.
    let stands_out = rows.iter().all(|row| size(*row) * 2 <= size(largest));
    let rest = if stands_out { Vec::new() } else { rows.split_off(rows.len() / 2) };
    vec![rest, rows, vec![largest]]
}

#[cfg(test)]
mod tests {
    use super::halves;

    #[test]
    fn bisection_ends_with_every_row_alone_at_worst() {
        let size = |row: usize| if row == 7 { 1_000 } else { 10 };
        let mut alone = Vec::new();
        let mut groups = vec![(0..100).collect::<Vec<_>>()];
        let mut tries = 0;
        while let Some(group) = groups.pop() {
            tries += 1;
            if group.len() < 2 {
                alone.extend(group);
            } else {
                groups.extend(halves(group, size));
            }
        }
        alone.sort_unstable();
        assert_eq!(alone, (0..100).collect::<Vec<_>>());
        assert!(tries < 400, "{tries}");
    }

    #[test]
    fn the_one_that_stands_out_is_tried_first_and_the_rest_together() {
        let groups = halves(vec![0, 1, 2, 3], |row| if row == 2 { 1_000 } else { 1 });
        assert_eq!(groups, [vec![], vec![0, 1, 3], vec![2]]);
    }
}
