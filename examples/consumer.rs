//! A consumer of one subscription, as a service in any language would write it: takes messages from the subscription's
//! queue, shows them, and reports each as completed.
//!
//!     cargo run --example consumer -- amqp://guest:guest@127.0.0.1:5672/%2f makbuz billing 1
//!
//! The message's body is what the provider sent, byte for byte; `message_id` is the receipt's id. A consumer must stand a
//! message that comes twice: it remembers `makbuz-operation-key`, or the receipt's id.

#![expect(clippy::print_stdout, reason = "an example that shows what it gets")]

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, prefix, subscription, count] = arguments.as_slice() else {
        anyhow::bail!("usage: consumer URL PREFIX SUBSCRIPTION COUNT");
    };
    let count: usize = count.parse().context("COUNT")?;
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    channel.basic_qos(10, BasicQosOptions::default()).await?;
    let queue = format!("{prefix}.{subscription}");
    let mut messages = channel
        .basic_consume(queue.into(), "example".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    for _ in 0..count {
        let message = messages.next().await.context("the queue is gone")??;
        show(&message);
        report(&channel, prefix, subscription, &message).await?;
        // Only now: if this process dies in between, the message comes again.
        message.ack(BasicAckOptions::default()).await?;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

fn show(message: &Delivery) {
    let properties = &message.properties;
    println!("message_id    {}", properties.message_id().as_ref().map_or("", |id| id.as_str()));
    println!("type          {}", properties.kind().as_ref().map_or("", |kind| kind.as_str()));
    println!("content_type  {}", properties.content_type().as_ref().map_or("", |kind| kind.as_str()));
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        // Whoever has the token can report for this attempt.
        let shown = if name.as_str() == "makbuz-token" { "…".to_owned() } else { text(value) };
        println!("{name}  {shown}");
    }
    println!("{}\n", String::from_utf8_lossy(&message.data));
}

/// Says that the effect has happened: the attempt's own token proves that this consumer got the message.
async fn report(channel: &Channel, prefix: &str, subscription: &str, message: &Delivery) -> Result<()> {
    let header = |name: &str| message.properties.headers().as_ref()?.inner().get(name).map(text);
    let receipt = message.properties.message_id().as_ref().context("a message of makbuz has a message_id")?.as_str();
    let attempt: i64 = header("makbuz-attempt").context("makbuz-attempt")?.parse()?;
    let token = header("makbuz-token").context("makbuz-token")?;
    let outcome = json!({
        "v": 1, "receipt": receipt, "subscription": subscription, "attempt": attempt, "token": token, "outcome": "completed",
    });
    let properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
    let exchange = format!("{prefix}.outcomes");
    let body = outcome.to_string();
    let sent = channel.basic_publish(
        exchange.into(),
        subscription.into(),
        BasicPublishOptions::default(),
        body.as_bytes(),
        properties,
    );
    anyhow::ensure!(sent.await?.await?.is_ack(), "the broker did not take the outcome");
    Ok(())
}

/// A header's value as text, whatever AMQP type it has.
fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::Timestamp(number) => number.to_string(),
        AMQPValue::Boolean(yes) => yes.to_string(),
        other => format!("{other:?}"),
    }
}
