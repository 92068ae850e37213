//! Brings home what no queue took: it is in the outbox again, committed, before the broker's message is acked.

use std::sync::Arc;
use std::time::Duration;

use lapin::message::Delivery;
use tokio::sync::mpsc;

use super::consume::consume;
use super::message::read_hand_over;
use super::{Parts, RelayConfig, Stop};
use crate::amqp::Broker;
use crate::metrics::{self, PublishResult};
use crate::model::attempt::Trigger;
use crate::model::job::JobKey;
use crate::model::subscription::CompletesOn;
use crate::store::{HandOver, ReplayRequest, StoreError};

/// Consumes `unrouted` until it is stopped. `told` hears what came back, so that its subscription waits.
pub(crate) async fn run(config: &RelayConfig, parts: Parts, broker: &Broker, told: mpsc::Sender<HandOver>, stop: Stop) {
    let queue = broker.config().names().unrouted();
    let home = Home { parts, told, delay: config.probe_every };
    consume(broker.consume_link(), queue, stop, |batch| home.commit(batch)).await;
}

struct Home {
    parts: Parts,
    told: mpsc::Sender<HandOver>,
    delay: Duration,
}

impl Home {
    async fn commit(&self, batch: Arc<Vec<Delivery>>) -> bool {
        let mut back = Vec::with_capacity(batch.len());
        for delivery in batch.iter() {
            match read_hand_over(&delivery.properties, delivery.routing_key.as_str()) {
                Some(hand_over) => back.push(hand_over),
                None => tracing::warn!(key = delivery.routing_key.as_str(), "a message that is not ours came back unrouted"),
            }
        }
        if let Err(error) = self.put_back(&back).await {
            tracing::warn!(error.code = error.code(), error = %error, "unrouted messages wait for the store");
            return false;
        }
        metrics::publish(PublishResult::Unrouted, u64::try_from(back.len()).unwrap_or(0));
        for hand_over in back {
            // A hint: when the relay is that far behind, the rows' own delay slows them down.
            let _ = self.told.try_send(hand_over);
        }
        true
    }

    async fn put_back(&self, back: &[HandOver]) -> Result<(), StoreError> {
        if back.is_empty() {
            return Ok(());
        }
        self.parts.outbox.return_to_outbox(back, self.delay).await?;
        // Where the confirm ends the job, it may have ended it already, and then nothing was put back: run it again.
        let ended: Vec<JobKey> =
            back.iter().filter(|hand_over| self.ends_on_confirm(hand_over)).map(|hand_over| hand_over.key.clone()).collect();
        if !ended.is_empty() {
            let why = Some("no queue took the message".to_owned());
            let replay = ReplayRequest { trigger: Trigger::Retry, actor: "relay".to_owned(), why };
            self.parts.jobs.replay(&ended, replay, Arc::clone(&self.parts.subscriptions)).await?;
        }
        Ok(())
    }

    fn ends_on_confirm(&self, hand_over: &HandOver) -> bool {
        let known = self.parts.subscriptions.find(&hand_over.key.subscription);
        known.is_some_and(|subscription| subscription.completes_on == CompletesOn::Confirm)
    }
}
