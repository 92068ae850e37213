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
use crate::store::HandOver;

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
                None => {
                    tracing::warn!(key = delivery.routing_key.as_str(), "a message that is not ours came back unrouted")
                }
            }
        }
        if !back.is_empty()
            && let Err(error) = self.parts.outbox.return_to_outbox(&back, self.delay).await
        {
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
}
