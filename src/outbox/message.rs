//! The wire contract, version 1: what a job looks like as an AMQP message, written and read in this one place.
//!
//! Properties: persistent; `message_id` and `correlation_id` = receipt id; `type` = event type; `timestamp` = receipt's
//! arrival in seconds; `content_type` as received. Times in headers are UTC microseconds. The body is the event's exact
//! bytes, or empty when `makbuz-body-url` says where to fetch them.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use sha2::{Digest, Sha256};

use crate::amqp::{Names, slow_key};
use crate::clock::MICROS_PER_SECOND;
use crate::model::attempt::Trigger;
use crate::model::id::ReceiptId;
use crate::model::job::{JobKey, Lane};
use crate::model::receipt::{Coverage, Receipt};
use crate::model::subscription::{BROADCAST, Subscription};
use crate::store::{HandOver, OutboxMessage};

/// `makbuz-version`: raised when a consumer must read something differently.
pub const VERSION: i32 = 1;

/// Longest header value; a longer one is sent as its digest, so that the content header fits one frame.
const HEADER_BYTES_MAX: usize = 1024;

/// Longest `type` and `content_type`: AMQP's short string.
const SHORT_BYTES_MAX: usize = 255;

/// Makes the lease token of an attempt.
pub type TokenOf = Arc<dyn Fn(&JobKey, i32) -> String + Send + Sync>;

/// What composing needs beside the row.
#[derive(Clone)]
pub struct MessageConfig {
    pub names: Names,
    /// Larger bodies travel as an address only.
    pub inline_max: usize,
    /// Public address of the listener that serves bodies, without a slash at its end.
    pub public_url: String,
    pub token: TokenOf,
}

/// One message, ready to be published.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub exchange: String,
    pub routing_key: String,
    pub mandatory: bool,
    pub properties: BasicProperties,
    pub payload: Bytes,
}

/// What tells one message of a batch from another: lapin may hang a return on a neighbour's confirm.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub message_id: String,
    pub routing_key: String,
    pub attempt: i32,
}

impl Message {
    pub fn identity(&self) -> Identity {
        identity(&self.properties, &self.routing_key)
    }
}

/// The identity of a message that came back.
pub(crate) fn identity(properties: &BasicProperties, routing_key: &str) -> Identity {
    let message_id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
    let attempt = header(properties, "makbuz-attempt").and_then(integer).unwrap_or_default();
    Identity { message_id, routing_key: routing_key.to_owned(), attempt }
}

/// The message of a row whose body is `body`. `subscription` is `None` for one that left the configuration.
pub(crate) fn compose(
    row: &OutboxMessage,
    body: &Bytes,
    subscription: Option<&Subscription>,
    config: &MessageConfig,
) -> Message {
    let receipt = &*row.receipt;
    let hand_over = &row.hand_over;
    let (exchange, routing_key, mandatory) = address(hand_over, receipt, &config.names);
    let inline = body.len() <= config.inline_max;
    let mut headers = Headers::default();
    facts(&mut headers, receipt);
    headers.text("makbuz-subscription", &hand_over.key.subscription);
    headers.int("makbuz-attempt", hand_over.attempt);
    let attempts_max = subscription.map_or(hand_over.attempt, tries);
    headers.int("makbuz-attempts-max", attempts_max);
    headers.text("makbuz-trigger", hand_over.trigger.as_str());
    // Nobody reports on a broadcast.
    if hand_over.key.subscription != BROADCAST {
        headers.text("makbuz-token", &(config.token)(&hand_over.key, hand_over.attempt));
    }
    headers.text("makbuz-operation-key", &receipt.id.to_string());
    headers.int("makbuz-version", VERSION);
    if let Some(url) = body_url(receipt, inline, &config.public_url) {
        headers.text("makbuz-body-url", &url);
    }
    Message {
        exchange,
        routing_key,
        mandatory,
        properties: properties(receipt, &row.content_type).with_headers(headers.0),
        payload: if inline { body.clone() } else { Bytes::new() },
    }
}

/// The hand-over that a message came from, when it comes back; `None` for a message that is not ours.
pub(crate) fn read_hand_over(properties: &BasicProperties, routing_key: &str) -> Option<HandOver> {
    let receipt: ReceiptId = properties.message_id().as_ref()?.as_str().parse().ok()?;
    let subscription = string(header(properties, "makbuz-subscription")?)?;
    let attempt = header(properties, "makbuz-attempt").and_then(integer)?;
    let trigger = header(properties, "makbuz-trigger").and_then(string).and_then(|text| Trigger::parse(&text))?;
    let lane = if routing_key == slow_key(&subscription) { Lane::Slow } else { Lane::Fresh };
    Some(HandOver { key: JobKey { receipt, subscription }, attempt, lane, trigger })
}

/// First death of a dead-lettered message: the queue it died in and the broker's reason.
pub(crate) fn read_death(properties: &BasicProperties) -> Option<(String, String)> {
    let AMQPValue::FieldArray(deaths) = header(properties, "x-death")? else { return None };
    // The broker puts the latest death first.
    let AMQPValue::FieldTable(latest) = deaths.as_slice().first()? else { return None };
    let queue = string(latest.inner().get("queue")?)?;
    let reason = string(latest.inner().get("reason")?)?;
    Some((queue, reason))
}

/// Where it goes. Broadcasts may reach nobody, jobs may not.
fn address(hand_over: &HandOver, receipt: &Receipt, names: &Names) -> (String, String, bool) {
    let subscription = &hand_over.key.subscription;
    if subscription == BROADCAST {
        let topic = format!("{}.{}", receipt.key.provider, receipt.event_type.replace('/', "."));
        return (names.events(), cut(&topic, SHORT_BYTES_MAX).to_owned(), false);
    }
    let key = match hand_over.lane {
        Lane::Fresh => subscription.clone(),
        Lane::Slow => slow_key(subscription),
    };
    (names.jobs(), key, true)
}

fn facts(headers: &mut Headers, receipt: &Receipt) {
    headers.text("makbuz-provider", &receipt.key.provider);
    headers.text("makbuz-account", &receipt.key.account);
    headers.text("makbuz-event-id", &receipt.key.event_id);
    headers.text("makbuz-source", &receipt.source);
    headers.long("makbuz-duplicates", receipt.duplicates);
    headers.long("makbuz-received-at", receipt.received_at);
    if let Some(at) = receipt.occurred_at {
        headers.long("makbuz-occurred-at", at);
    }
    if let Some(resource) = &receipt.resource_key {
        headers.text("makbuz-resource", resource);
    }
    // Nothing compares versions before the hand-over of an unordered subscription.
    headers.text("makbuz-order", "uncertain");
    headers.text("makbuz-flags", &receipt.flags);
    let coverage = receipt.verified_by.as_ref().map_or(Coverage::None, |proof| proof.coverage);
    headers.text("makbuz-coverage", coverage.as_str());
    headers.text("makbuz-part", if is_item(receipt) { "item" } else { "whole" });
}

fn is_item(receipt: &Receipt) -> bool {
    receipt.part.is_some()
}

/// Tries of one series, the first included.
fn tries(subscription: &Subscription) -> i32 {
    i32::try_from(subscription.retry.waits.len()).unwrap_or(i32::MAX - 1) + 1
}

fn body_url(receipt: &Receipt, inline: bool, public_url: &str) -> Option<String> {
    let own = format!("{public_url}/v1/receipts/{}/body", receipt.id);
    match (inline, is_item(receipt)) {
        (false, _) => Some(own),
        (true, true) => Some(format!("{own}?whole=true")),
        (true, false) => None,
    }
}

fn properties(receipt: &Receipt, content_type: &str) -> BasicProperties {
    let id = receipt.id.to_string();
    let seconds = u64::try_from(receipt.received_at / MICROS_PER_SECOND).unwrap_or(0);
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(short(&id))
        .with_correlation_id(short(&id))
        .with_type(short(&receipt.event_type))
        .with_timestamp(seconds);
    // Half a media type would be a wrong one.
    if content_type.is_empty() || content_type.len() > SHORT_BYTES_MAX {
        properties
    } else {
        properties.with_content_type(short(content_type))
    }
}

#[derive(Default)]
struct Headers(FieldTable);

impl Headers {
    fn put(&mut self, name: &'static str, value: AMQPValue) {
        self.0.insert(name.into(), value);
    }

    fn text(&mut self, name: &'static str, value: &str) {
        let value = if value.len() <= HEADER_BYTES_MAX {
            value.to_owned()
        } else {
            format!("sha256:{}", hex::encode(Sha256::digest(value)))
        };
        self.put(name, AMQPValue::LongString(value.into()));
    }

    fn int(&mut self, name: &'static str, value: i32) {
        self.put(name, AMQPValue::LongInt(value));
    }

    fn long(&mut self, name: &'static str, value: i64) {
        self.put(name, AMQPValue::LongLongInt(value));
    }
}

fn short(text: &str) -> ShortString {
    cut(text, SHORT_BYTES_MAX).into()
}

/// The longest beginning of at most `max` bytes that ends between characters.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

fn string(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Other clients may give an integer back in another width.
fn integer(value: &AMQPValue) -> Option<i32> {
    match value {
        AMQPValue::ShortShortInt(n) => Some((*n).into()),
        AMQPValue::ShortShortUInt(n) => Some((*n).into()),
        AMQPValue::ShortInt(n) => Some((*n).into()),
        AMQPValue::ShortUInt(n) => Some((*n).into()),
        AMQPValue::LongInt(n) => Some(*n),
        AMQPValue::LongUInt(n) => (*n).try_into().ok(),
        AMQPValue::LongLongInt(n) => (*n).try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
