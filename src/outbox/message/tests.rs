use super::*;
use crate::model::filter::Filter;
use crate::model::receipt::{EventKey, Mode, Origin, VerifiedBy};
use crate::model::retry::RetryPolicy;
use crate::model::subscription::{CompletesOn, Target};
use std::collections::BTreeSet;
use std::time::Duration;

const ID: &str = "01936f2e-0000-7000-8000-00000000002a";

fn row() -> OutboxMessage {
    let id: ReceiptId = ID.parse().expect("an id");
    let receipt = Receipt {
        id,
        key: EventKey { provider: "stripe".to_owned(), account: "acct_1".to_owned(), event_id: "evt_1".to_owned() },
        provider_ref: "evt_1".to_owned(),
        mode: Mode::Live,
        source: "stripe-eu".to_owned(),
        event_type: "invoice.paid".to_owned(),
        occurred_at: Some(1_796_000_000_000_000),
        received_at: 1_796_000_001_500_000,
        resource_key: Some("in_1".to_owned()),
        resource_version: None,
        payload_id: None,
        pointer: None,
        part: None,
        item_sha256: None,
        signed_sha256: None,
        verified_by: Some(VerifiedBy {
            mechanism: "hmac-sha256".to_owned(),
            secret: "a".to_owned(),
            signed_at: None,
            coverage: Coverage::Body,
        }),
        origin: Origin::Delivery,
        flags: "outside_window".to_owned(),
        hold_reason: None,
        duplicates: 2,
        last_delivered_at: None,
    };
    OutboxMessage {
        id: crate::model::id::OutboxId(uuid::Uuid::nil()),
        shard: 0,
        queued_at: 0,
        hand_over: HandOver {
            key: JobKey { receipt: id, subscription: "billing".to_owned() },
            attempt: 4,
            lane: Lane::Slow,
            trigger: Trigger::Retry,
        },
        receipt: Arc::new(receipt),
        content_type: "application/json; charset=utf-8".to_owned(),
        body: None,
    }
}

fn with_receipt(change: impl FnOnce(&mut Receipt)) -> OutboxMessage {
    let mut row = row();
    change(Arc::get_mut(&mut row.receipt).expect("not shared yet"));
    row
}

fn billing() -> Subscription {
    Subscription {
        name: "billing".to_owned(),
        filter: Filter::default(),
        target: Target::Amqp,
        retry: RetryPolicy {
            waits: vec![Duration::from_secs(5); 6],
            jitter_min: 0.0,
            jitter_max: 0.0,
            jitter_both: false,
            total_max: Duration::from_secs(1),
            retry_after_max: Duration::from_secs(1),
        },
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

fn config() -> MessageConfig {
    MessageConfig {
        names: Names::new("makbuz"),
        inline_max: 10,
        public_url: "https://hooks.example.com".to_owned(),
        token: Arc::new(|key, attempt| format!("token of {} {attempt}", key.subscription)),
    }
}

fn composed(row: &OutboxMessage, body: &'static [u8]) -> Message {
    compose(row, &Bytes::from_static(body), Some(&billing()), &config())
}

/// `name type value` of each header, in order.
fn headers(message: &Message) -> Vec<String> {
    let headers = message.properties.headers().clone().expect("headers");
    let line = |(name, value): (&ShortString, &AMQPValue)| match value {
        AMQPValue::LongString(text) => format!("{name} S {text}"),
        AMQPValue::LongInt(n) => format!("{name} I {n}"),
        AMQPValue::LongLongInt(n) => format!("{name} l {n}"),
        other => panic!("not in the contract: {other:?}"),
    };
    headers.inner().iter().map(line).collect()
}

/// The whole contract, word for word: a change here is a change for every consumer.
#[test]
fn a_complete_message_is_as_documented() {
    let message = composed(&row(), b"{\"a\":1}");
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("makbuz.jobs", "billing.slow"));
    assert!(message.mandatory);
    assert_eq!(&message.payload[..], b"{\"a\":1}");
    let properties = &message.properties;
    let text = |of: &Option<ShortString>| of.as_ref().map(ToString::to_string);
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(text(properties.message_id()).as_deref(), Some(ID));
    assert_eq!(text(properties.correlation_id()).as_deref(), Some(ID));
    assert_eq!(text(properties.kind()).as_deref(), Some("invoice.paid"));
    assert_eq!(*properties.timestamp(), Some(1_796_000_001));
    assert_eq!(text(properties.content_type()).as_deref(), Some("application/json; charset=utf-8"));
    assert_eq!(
        headers(&message),
        [
            "makbuz-account S acct_1",
            "makbuz-attempt I 4",
            "makbuz-attempts-max I 7",
            "makbuz-coverage S body",
            "makbuz-duplicates l 2",
            "makbuz-event-id S evt_1",
            "makbuz-flags S outside_window",
            "makbuz-occurred-at l 1796000000000000",
            &format!("makbuz-operation-key S {ID}"),
            "makbuz-order S uncertain",
            "makbuz-part S whole",
            "makbuz-provider S stripe",
            "makbuz-received-at l 1796000001500000",
            "makbuz-resource S in_1",
            "makbuz-source S stripe-eu",
            "makbuz-subscription S billing",
            "makbuz-token S token of billing 4",
            "makbuz-trigger S retry",
            "makbuz-version I 1",
        ]
    );
}

/// Consumers are written from the README: it names every header, and no other.
#[test]
fn the_readme_names_every_header() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("\n## ").find(|section| section.starts_with("Consuming")).expect("the section");
    let table = section.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split(" | ").next());
    let named: BTreeSet<&str> =
        table.flat_map(|cell| cell.split('`')).filter(|word| word.starts_with("makbuz-")).collect();
    let messages = [composed(&row(), b"{}"), composed(&row(), b"longer than what is sent inline")];
    let sent: Vec<String> = messages.iter().flat_map(headers).collect();
    let sent: BTreeSet<&str> = sent.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(named, sent);
}

#[test]
fn a_hand_over_is_read_back_from_its_own_message() {
    let row = row();
    let message = composed(&row, b"{}");
    assert_eq!(read_hand_over(&message.properties, &message.routing_key), Some(row.hand_over));
    assert_eq!(read_hand_over(&BasicProperties::default(), "billing"), None);
}

#[test]
fn large_bodies_and_items_carry_an_address() {
    let url = |message: &Message| headers(message).into_iter().find(|line| line.starts_with("makbuz-body-url"));
    let item = with_receipt(|receipt| receipt.part = Some((1, 8)));
    let own = format!("makbuz-body-url S https://hooks.example.com/v1/receipts/{ID}/body");
    assert_eq!(url(&composed(&row(), b"0123456789")), None);
    let large = composed(&row(), b"0123456789a");
    assert_eq!((large.payload.len(), url(&large)), (0, Some(own.clone())));
    let inline = composed(&item, b"{\"a\":1}");
    assert_eq!((&inline.payload[..], url(&inline)), (&b"{\"a\":1}"[..], Some(format!("{own}?whole=true"))));
    assert!(headers(&inline).contains(&"makbuz-part S item".to_owned()));
    assert_eq!(url(&composed(&item, b"0123456789a")), Some(own), "the address is that of the message's own body");
}

#[test]
fn what_amqp_cannot_carry_costs_no_event() {
    let mut row = with_receipt(|receipt| {
        receipt.event_type = format!("a{}", "ü".repeat(300));
        receipt.resource_key = Some("x".repeat(100_000));
        receipt.key.account = "a\u{0}b\r\nç".to_owned();
    });
    row.content_type = "y".repeat(256);
    let message = composed(&row, b"{}");
    let kind = message.properties.kind().as_ref().map(ToString::to_string).expect("a type");
    assert_eq!(kind, format!("a{}", "ü".repeat(127)), "cut between characters");
    assert_eq!(*message.properties.content_type(), None, "half a media type would be a wrong one");
    let lines = headers(&message);
    assert!(lines.contains(&"makbuz-account S a\u{0}b\r\nç".to_owned()));
    let resource = lines.iter().find(|line| line.starts_with("makbuz-resource")).expect("a resource");
    assert_eq!(resource.len(), "makbuz-resource S sha256:".len() + 64);
    assert_eq!(read_hand_over(&message.properties, &message.routing_key), Some(row.hand_over.clone()));
    // Every long header at its longest still fits one frame of 128 KiB.
    assert!(lines.iter().map(String::len).sum::<usize>() < 30 * 1024);
}

#[test]
fn broadcasts_go_to_the_topic_exchange_and_may_reach_nobody() {
    let mut row = with_receipt(|receipt| receipt.event_type = "orders/create".to_owned());
    BROADCAST.clone_into(&mut row.hand_over.key.subscription);
    let message = compose(&row, &Bytes::from_static(b"{}"), None, &config());
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("makbuz.events", "stripe.orders.create"));
    assert!(!message.mandatory);
    assert!(header(&message.properties, "makbuz-token").is_none(), "nobody reports on it");
}

#[test]
fn messages_of_one_receipt_differ_by_key_and_attempt() {
    let one = composed(&row(), b"{}").identity();
    let mut other = row();
    other.hand_over.attempt = 5;
    assert_ne!(one, composed(&other, b"{}").identity());
    other.hand_over.attempt = 4;
    assert_eq!(one, composed(&other, b"another body").identity());
    "mail".clone_into(&mut other.hand_over.key.subscription);
    assert_ne!(one, composed(&other, b"{}").identity());
}
