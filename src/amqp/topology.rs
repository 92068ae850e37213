//! Exchanges, queues and bindings: made, or only looked at. Queue arguments are the same for ever, because they cannot be
//! changed on a queue that exists; lengths and times to live are an operator's policies.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use super::{AmqpConfig, AmqpError, Link, Names, TopologyMode, slow_key};

/// The dead-letter queue's delivery limit: in effect none. Its letters have nowhere else to go, and brokers from 4.0 on
/// drop them after 20 deliveries unless told otherwise.
const DEAD_DELIVERY_LIMIT: i64 = 2_147_483_647;

/// One thing that is not as it should be. It is reported and degrades; it never stops publishing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyProblem {
    /// Which exchange, queue or binding.
    pub name: String,
    /// `broker_mismatch` (406), `broker_not_found` (404), `broker_forbidden` (403) …
    pub code: &'static str,
    pub text: String,
}

/// Makes (or looks at) everything for these subscriptions. Errors only when the connection itself is gone; all that the
/// broker merely refuses comes back as problems.
pub async fn apply_topology(
    link: &Link,
    config: &AmqpConfig,
    subscriptions: &[String],
) -> Result<Vec<TopologyProblem>, AmqpError> {
    let mut hand = Hand { link, channel: link.channel().await?, problems: Vec::new() };
    for piece in pieces(&config.names(), config.broadcast, subscriptions) {
        match config.topology {
            TopologyMode::Declare => hand.declare(&piece).await?,
            TopologyMode::Check => hand.check(&piece).await?,
        }
    }
    let _ = link.answer("channel.close", hand.channel.close(200, "OK".into())).await;
    Ok(hand.problems)
}

/// How many messages of a queue are ready; by a passive declare, which changes nothing.
pub async fn ready_count(link: &Link, queue: &str) -> Result<u32, AmqpError> {
    let channel = link.channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found =
        link.answer("queue.declare", channel.queue_declare(queue.into(), passive, FieldTable::default())).await?;
    let _ = link.answer("channel.close", channel.close(200, "OK".into())).await;
    Ok(found.message_count())
}

/// The arguments of every queue but the dead letters'.
pub fn queue_arguments(names: &Names) -> FieldTable {
    let mut arguments = quorum();
    arguments.insert("x-dead-letter-exchange".into(), text(&names.dead()));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(20));
    arguments
}

fn dead_arguments() -> FieldTable {
    let mut arguments = quorum();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DEAD_DELIVERY_LIMIT));
    arguments
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

enum Piece {
    Exchange { name: String, kind: ExchangeKind, arguments: FieldTable },
    Queue { name: String, arguments: FieldTable },
    Binding { queue: String, exchange: String, key: String },
}

impl Piece {
    fn name(&self) -> String {
        match self {
            Self::Exchange { name, .. } | Self::Queue { name, .. } => name.clone(),
            Self::Binding { queue, exchange, key } => format!("{exchange} -{key}-> {queue}"),
        }
    }
}

/// In the order in which they must be made: the nets before what can fall.
fn pieces(names: &Names, broadcast: bool, subscriptions: &[String]) -> Vec<Piece> {
    let exchange = |name: String, kind| Piece::Exchange { name, kind, arguments: FieldTable::default() };
    let bind = |queue: String, exchange: String, key: &str| Piece::Binding { queue, exchange, key: key.to_owned() };
    let mut pieces = vec![
        exchange(names.dead(), ExchangeKind::Fanout),
        Piece::Queue { name: names.dead(), arguments: dead_arguments() },
        bind(names.dead(), names.dead(), ""),
        exchange(names.unrouted(), ExchangeKind::Fanout),
        Piece::Queue { name: names.unrouted(), arguments: queue_arguments(names) },
        bind(names.unrouted(), names.unrouted(), ""),
        exchange(names.outcomes(), ExchangeKind::Topic),
        Piece::Queue { name: names.outcomes(), arguments: queue_arguments(names) },
        bind(names.outcomes(), names.outcomes(), "#"),
    ];
    let mut alternate = FieldTable::default();
    alternate.insert("alternate-exchange".into(), text(&names.unrouted()));
    pieces.push(Piece::Exchange { name: names.jobs(), kind: ExchangeKind::Direct, arguments: alternate });
    if broadcast {
        pieces.push(exchange(names.events(), ExchangeKind::Topic));
    }
    for subscription in subscriptions {
        for (queue, key) in [
            (names.queue(subscription), subscription.clone()),
            (names.slow_queue(subscription), slow_key(subscription)),
        ] {
            pieces.push(Piece::Queue { name: queue.clone(), arguments: queue_arguments(names) });
            pieces.push(bind(queue, names.jobs(), &key));
        }
    }
    pieces
}

struct Hand<'a> {
    link: &'a Link,
    channel: Channel,
    problems: Vec<TopologyProblem>,
}

impl Hand<'_> {
    async fn declare(&mut self, piece: &Piece) -> Result<(), AmqpError> {
        let channel = self.channel.clone();
        let done = match piece {
            Piece::Exchange { name, kind, arguments } => {
                let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
                let asked = channel.exchange_declare(name.as_str().into(), kind.clone(), durable, arguments.clone());
                self.link.answer("exchange.declare", asked).await
            }
            Piece::Queue { name, arguments } => {
                let asked =
                    channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments.clone());
                self.link.answer("queue.declare", asked).await.map(drop)
            }
            Piece::Binding { queue, exchange, key } => {
                let (queue, exchange, key) = (queue.as_str().into(), exchange.as_str().into(), key.as_str().into());
                let asked =
                    channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default());
                self.link.answer("queue.bind", asked).await
            }
        };
        self.settle(piece, done).await
    }

    /// Bindings cannot be looked at over AMQP; an unrouted message tells of a missing one.
    async fn check(&mut self, piece: &Piece) -> Result<(), AmqpError> {
        let channel = self.channel.clone();
        let done = match piece {
            Piece::Exchange { name, kind, .. } => {
                let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                let asked =
                    channel.exchange_declare(name.as_str().into(), kind.clone(), passive, FieldTable::default());
                self.link.answer("exchange.declare", asked).await
            }
            Piece::Queue { name, .. } => {
                let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                let asked = channel.queue_declare(name.as_str().into(), passive, FieldTable::default());
                self.link.answer("queue.declare", asked).await.map(drop)
            }
            Piece::Binding { .. } => Ok(()),
        };
        self.settle(piece, done).await
    }

    /// A refusal closes the channel: note it and go on with a new one.
    async fn settle(&mut self, piece: &Piece, done: Result<(), AmqpError>) -> Result<(), AmqpError> {
        match done {
            Ok(()) => Ok(()),
            Err(error @ AmqpError::Channel { .. }) => {
                let text = error.to_string();
                self.problems.push(TopologyProblem { name: piece.name(), code: error.code(), text });
                self.channel = self.link.channel().await?;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The shipped file must be what we would declare: a queue cannot be changed afterwards.
    #[test]
    fn the_shipped_definitions_are_what_we_declare() {
        let shipped: Value =
            serde_json::from_str(include_str!("../../deploy/rabbitmq/definitions.json")).expect("it is JSON");
        let list = |of: &str| shipped[of].as_array().cloned().unwrap_or_default();
        let ours = pieces(&Names::new("makbuz"), true, &["billing".to_owned()]);
        let count = ["exchanges", "queues", "bindings"].map(|of| list(of).len()).iter().sum::<usize>();
        assert_eq!(ours.len(), count);
        for piece in &ours {
            let found = match piece {
                Piece::Exchange { name, kind, arguments } => list("exchanges").iter().any(|other| {
                    other["name"] == name.as_str()
                        && other["type"] == format!("{kind:?}").to_lowercase()
                        && other["durable"] == true
                        && other["arguments"] == as_json(arguments)
                }),
                Piece::Queue { name, arguments } => list("queues").iter().any(|other| {
                    other["name"] == name.as_str()
                        && other["durable"] == true
                        && other["arguments"] == as_json(arguments)
                }),
                Piece::Binding { queue, exchange, key } => list("bindings").iter().any(|other| {
                    let ends = (&other["source"], &other["destination"], &other["routing_key"]);
                    ends == (&exchange.as_str().into(), &queue.as_str().into(), &key.as_str().into())
                }),
            };
            assert!(found, "{} is not in the shipped definitions, or not so", piece.name());
        }
    }

    fn as_json(arguments: &FieldTable) -> Value {
        let value = |value: &AMQPValue| match value {
            AMQPValue::LongString(text) => Value::from(text.to_string()),
            AMQPValue::LongLongInt(n) => Value::from(*n),
            other => panic!("not used: {other:?}"),
        };
        arguments
            .inner()
            .iter()
            .map(|(name, of)| (name.to_string(), value(of)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}
