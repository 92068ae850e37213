//! Requests signed by the providers' official SDKs, over real HTTP, into the running program: accepted, kept and handed
//! on byte for byte; the same requests tampered with, stale or without their proof leave nothing anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use super::support::broker::Broker;
use super::support::client;
use super::support::database::{Database, Store, plain_id};
use super::support::peers::{Order, Peers, Signed};
use super::support::process::Installation;
use super::support::sign::now_seconds;

const PUBLIC_URL: &str = "https://hooks.example.com";

/// One kind of request that an SDK can sign.
struct Kind {
    /// The SDK's signer, and the path's last part with `source`.
    signer: &'static str,
    source: &'static str,
    secret: &'static str,
    /// The header whose absence, repetition or emptiness is a forgery.
    proof: &'static str,
    /// The time is signed, so that a stale one is refused.
    timed: bool,
    body: fn(&str) -> String,
}

const KINDS: [Kind; 6] = [
    Kind {
        signer: "stripe",
        source: "stripe",
        secret: "whsec_peer_stripe_0123456789",
        proof: "Stripe-Signature",
        timed: true,
        body: |id| {
            format!(
                r#"{{"id":"evt_{id}","object":"event","type":"charge.succeeded","created":1700000000,"livemode":true,"data":{{"object":{{"id":"ch_1","amount":100,"note":"caf\u00e9 €"}}}}}}"#
            )
        },
    },
    Kind {
        signer: "github",
        source: "github",
        secret: "It's a Secret to Everybody",
        proof: "X-Hub-Signature-256",
        timed: false,
        body: |id| {
            format!(
                r#"{{"ref":"refs/heads/main","after":"{id}","repository":{{"id":1,"full_name":"o/r"}},"sender":{{"login":"Zoë"}}}}"#
            )
        },
    },
    Kind {
        signer: "standard-webhooks",
        source: "standard",
        secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        proof: "webhook-signature",
        timed: true,
        body: |id| format!(r#"{{"type":"invoice.paid","timestamp":"2026-11-30T00:00:00Z","data":{{"id":"{id}"}}}}"#),
    },
    Kind {
        signer: "slack",
        source: "slack",
        secret: "8f742231b10e8888abcd99yyyzzz85a5",
        proof: "X-Slack-Signature",
        timed: true,
        body: |id| {
            format!(
                r#"{{"token":"t","team_id":"T1","api_app_id":"A1","event":{{"type":"message","text":"ığüşöç"}},"type":"event_callback","event_id":"Ev{id}","event_time":1700000000}}"#
            )
        },
    },
    Kind {
        signer: "twilio",
        source: "twilio",
        secret: "0123456789abcdef0123456789abcdef",
        proof: "X-Twilio-Signature",
        timed: false,
        body: |id| {
            format!("CallSid=CA{id}&CallStatus=completed&From=%2B14158675309&To=%2B18005551212&Digits=&Note=a+b%26c")
        },
    },
    Kind {
        signer: "twilio-json",
        source: "twilio",
        secret: "0123456789abcdef0123456789abcdef",
        proof: "X-Twilio-Signature",
        timed: false,
        body: |id| format!(r#"{{"CallSid":"CAJ{id}","CallStatus":"completed","To":"+18005551212"}}"#),
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn official_sdks_are_accepted_on_postgres_and_rabbitmq_and_forgeries_leave_nothing() {
    let Some(database) = Database::create().await else { return };
    let Some(broker) = Broker::find(&["all"]) else { return };
    let mut variables = secrets();
    variables.extend([("STORE_URL", database.url.as_str()), ("AMQP_URL", broker.url.as_str())]);
    let amqp = format!("[amqp]\nurl = \"env:AMQP_URL\"\nprefix = \"{}\"\n", broker.prefix);
    let installation = Installation::new(&config("env:STORE_URL", &amqp, "amqp"), &variables);
    installation.migrate().await;
    let Some(accepted) = run(&installation, &Store::Postgres(database.url.clone())).await else { return };

    let messages = broker.take("all", accepted.len(), Duration::from_secs(30)).await;
    assert_eq!(messages.len(), accepted.len(), "one message for each accepted event, and none for a forgery");
    for message in messages {
        let (header, body) = accepted.get(&message.receipt).expect("a message of an accepted event");
        assert_eq!(&message.message_id, header, "message_id is the Makbuz-Receipt header");
        assert_eq!(&message.body, body, "C5: the same bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn official_sdks_are_accepted_on_sqlite_and_forgeries_leave_nothing() {
    let installation = Installation::new(&config("sqlite://makbuz.db", "", "pull"), &secrets());
    run(&installation, &Store::sqlite(installation.folder())).await;
}

/// Posts all kinds and all forgeries; returns receipt → (header, body) of what was accepted.
async fn run(installation: &Installation, store: &Store) -> Option<BTreeMap<String, (String, Vec<u8>)>> {
    let mut peers = Peers::start().await?;
    let gateway = installation.start().await;
    gateway.ready().await;
    let mut accepted = BTreeMap::new();
    for kind in &KINDS {
        let order = order(kind, "1", now_seconds());
        let signed = peers.sign(&order).await;
        let answer =
            client::send(gateway.edge, "POST", &signed.target, &signed.headers, &signed.body).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}: {}", kind.signer, answer.text());
        let header = answer.receipt().expect("C1: a 200 names its receipt").to_owned();
        accepted.insert(plain_id(&header), (header, order.body));

        let before = store.rows().await;
        for (what, forged) in forgeries(&mut peers, kind).await {
            let answer = client::send(gateway.edge, "POST", &forged.target, &forged.headers, &forged.body)
                .await
                .expect("an answer");
            assert_eq!(answer.status, 401, "{}, {what}: {}", kind.signer, answer.text());
            assert_eq!(answer.receipt(), None, "{}, {what}", kind.signer);
        }
        // What was accepted before moves on meanwhile: out of the outbox, and nowhere else.
        let (mut before, mut after) = (before, store.rows().await);
        assert!(after.remove("outbox") <= before.remove("outbox"), "C2: a forgery of {} is handed over", kind.signer);
        assert_eq!(after, before, "C2: a forgery of {} left something", kind.signer);
    }
    let bodies = accepted.iter().map(|(receipt, (_, body))| (receipt.clone(), body.clone())).collect();
    assert_eq!(store.bodies().await, bodies, "C5: the store has the signed bytes");
    let kept = store.read().await;
    let receipts: Vec<_> = kept.receipts.values().cloned().collect();
    assert_eq!(receipts.len(), KINDS.len(), "one receipt for each kind: {:?}", kept.receipts);
    assert!(receipts.iter().all(|receipt| accepted.contains_key(receipt)));
    assert_eq!(kept.jobs, i64::try_from(KINDS.len()).expect("few"), "one job for each receipt");
    Some(accepted)
}

/// A fresh event each time, so that nothing is taken for a duplicate.
async fn forgeries(peers: &mut Peers, kind: &Kind) -> Vec<(&'static str, Signed)> {
    let now = now_seconds();
    let mut forgeries = Vec::new();

    let mut changed = peers.sign(&order(kind, "changed", now)).await;
    let middle = changed.body.len() / 2;
    changed.body[middle] ^= 1;
    forgeries.push(("one byte changed", changed));

    let mut wrong = order(kind, "wrong", now);
    wrong.secret = if kind.signer == "standard-webhooks" {
        "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".into()
    } else {
        format!("{}x", kind.secret)
    };
    forgeries.push(("wrong secret", peers.sign(&wrong).await));

    if kind.timed {
        forgeries.push(("stale", peers.sign(&order(kind, "stale", now - 400)).await));
        forgeries.push(("from the future", peers.sign(&order(kind, "future", now + 400)).await));
    }
    let is_proof = |(name, _): &(String, String)| name.eq_ignore_ascii_case(kind.proof);

    let mut without = peers.sign(&order(kind, "without", now)).await;
    without.headers.retain(|header| !is_proof(header));
    forgeries.push(("no header", without));

    let mut twice = peers.sign(&order(kind, "twice", now)).await;
    let again: Vec<_> = twice.headers.iter().filter(|header| is_proof(header)).cloned().collect();
    assert_eq!(again.len(), 1, "{} carries its proof in {}", kind.signer, kind.proof);
    twice.headers.extend(again);
    forgeries.push(("two headers", twice));

    let mut empty = peers.sign(&order(kind, "empty", now)).await;
    for header in empty.headers.iter_mut().filter(|header| is_proof(header)) {
        header.1.clear();
    }
    forgeries.push(("empty header", empty));
    forgeries
}

fn order(kind: &Kind, id: &str, time: i64) -> Order {
    let id = format!("{}{id}", kind.signer.replace('-', ""));
    let body = (kind.body)(&id).into_bytes();
    Order {
        signer: kind.signer,
        secret: kind.secret.into(),
        time,
        url: format!("{PUBLIC_URL}/in/{}", kind.source),
        id,
        body,
    }
}

fn secrets() -> Vec<(&'static str, &'static str)> {
    let variable = |source: &str| match source {
        "stripe" => "STRIPE_SECRET",
        "github" => "GITHUB_SECRET",
        "standard" => "STANDARD_SECRET",
        "slack" => "SLACK_SECRET",
        _ => "TWILIO_SECRET",
    };
    let mut variables: Vec<_> = KINDS.iter().map(|kind| (variable(kind.source), kind.secret)).collect();
    variables.dedup();
    variables.push(("TOKEN", "token-of-the-peers-tests"));
    variables
}

fn config(store: &str, amqp: &str, target: &str) -> String {
    let mut config = format!(
        r#"
[edge]
listen = "127.0.0.1:0"
public_url = "{PUBLIC_URL}"
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
{amqp}
[[subscription]]
name = "all"
target = "{target}"
[[token]]
name = "consumer"
value = "env:TOKEN"
role = "consumer"
subscriptions = ["all"]
"#
    );
    for (source, provider, variable) in [
        ("stripe", "stripe", "STRIPE_SECRET"),
        ("github", "github", "GITHUB_SECRET"),
        ("standard", "standard-webhooks", "STANDARD_SECRET"),
        ("slack", "slack", "SLACK_SECRET"),
        ("twilio", "twilio", "TWILIO_SECRET"),
    ] {
        config.push_str(&format!(
            "[[source]]\nname = \"{source}\"\nprovider = \"{provider}\"\nsecrets = [\"env:{variable}\"]\n"
        ));
    }
    config
}
