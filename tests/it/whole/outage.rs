//! The broker or the database is away, half-open or read-only: what is answered, what is kept, and that it heals alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::time::Instant;

use super::super::support::client;
use super::super::support::database::plain_id;
use super::super::support::process::Gateway;
use super::super::support::proxy::{Network, Proxy};
use super::super::support::{eventually, sign};
use super::{House, SECRET, services};

/// `answer_max` of the configuration, and what a loaded machine may add.
const ANSWER_MAX: Duration = Duration::from_secs(2 + 3);
/// How long recovery may take once the other side is back: a back-off of at most 30 s.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_without_a_broker_costs_no_answer_and_no_memory() {
    let Some((database, broker)) = services().await else { return };
    let proxy = Proxy::before(&broker.address()).await;
    let (store_url, amqp_url) = (database.url.clone(), broker.url_at(&proxy.address.to_string()));
    let house = House::behind(database, broker, &store_url, &amqp_url).await;
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let mut accepted = BTreeMap::new();
    for number in 0..500 {
        accept(gateway.edge, &format!("evt_before_{number}"), &mut accepted).await;
    }
    house.broker().take("all", accepted.len(), Duration::from_secs(30)).await;

    proxy.set(Network::Down);
    let began = Instant::now();
    let mut after_ten_seconds = None;
    let mut away = BTreeMap::new();
    for number in 0.. {
        accept(gateway.edge, &format!("evt_away_{number}"), &mut away).await;
        if began.elapsed_secs() >= 10 && after_ten_seconds.is_none() {
            after_ten_seconds = Some(gateway.resident_kib());
        }
        if began.elapsed_secs() >= 60 {
            break;
        }
        // A steady hundred a second at most: the pace of the load, not a wait for anything.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (early, late) = (after_ten_seconds.expect("a minute has ten seconds"), gateway.resident_kib());
    assert!(
        late < early + 16 * 1024,
        "C11: {early} KiB after ten seconds, {late} KiB after a minute with {} events",
        away.len()
    );
    let waiting = house.store.read().await.outbox;
    assert_eq!(waiting, i64::try_from(away.len()).expect("few"), "all that came meanwhile waits in the outbox");

    proxy.set(Network::Up);
    let messages = house.broker().take("all", away.len(), RECOVERY_MAX).await;
    for receipt in away.values() {
        assert!(messages.iter().any(|message| message.receipt == *receipt), "C4: {receipt} came out of the queue");
    }
    let store = &house.store;
    eventually("an empty outbox", RECOVERY_MAX, async || (store.read().await.outbox == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_closes_its_connections_is_a_503_and_heals() {
    database_outage(Network::Down).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_resets_its_connections_is_a_503_and_heals() {
    database_outage(Network::Reset).await;
}

/// Packets are dropped: no error comes, only silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_database_connection_is_a_503_and_heals() {
    database_outage(Network::Silent).await;
}

/// Fail-over leaves the old primary read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_a_503_and_heals() {
    let Some(house) = House::production().await else { return };
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let mut accepted = BTreeMap::new();
    accept(gateway.edge, "evt_before", &mut accepted).await;

    let (database, _) = house.services.as_ref().expect("production");
    let name = &database.name;
    let disconnect = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    );
    database.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    database.execute(&disconnect).await;
    refused_with_503(&gateway, "evt_away").await;

    database.execute(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await;
    // No second disconnection: who found itself read-only must have thrown its connection away.
    recovers(&gateway, "evt_away", &mut accepted).await;
    kept_and_delivered(&house, &accepted).await;
}

/// W-068: a table is missing. Who signed right hears 503 and nothing of a signature, however often; 401 is for a forger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_is_a_503_and_never_a_bad_signature() {
    let Some(house) = House::production().await else { return };
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let (database, _) = house.services.as_ref().expect("production");
    let mut other = PgConnection::connect(&database.url).await.expect("the database");
    let rename = async |connection: &mut PgConnection, sql: &'static str| {
        sqlx::query(sql).execute(connection).await.expect("renamed");
    };
    rename(&mut other, "ALTER TABLE receipts RENAME TO receipts_away").await;
    refused_with_503(&gateway, "evt_away").await;
    let body = sign::body("evt_away_0", 900);
    let forged = client::send(gateway.edge, "POST", "/in/pay", &sign::headers("whsec_another", &body), &body).await;
    assert_eq!(forged.expect("an answer").status, 401);
    let scrape = client::send(gateway.admin, "GET", "/metrics", &[], b"").await.expect("an answer").text();
    for line in [
        "makbuz_rejections_total{source=\"pay\",code=\"bad_signature\"} 1",
        "makbuz_deliveries_total{source=\"pay\",result=\"rejected\"} 1",
        "makbuz_deliveries_total{source=\"pay\",result=\"unavailable\"} 15",
    ] {
        assert!(scrape.lines().any(|found| found == line), "{line}: {scrape}");
    }
    assert!(gateway.log().contains("relation \\\"receipts\\\" does not exist"), "the log has the database's reason");

    rename(&mut other, "ALTER TABLE receipts_away RENAME TO receipts").await;
    let mut accepted = BTreeMap::new();
    recovers(&gateway, "evt_away", &mut accepted).await;
    kept_and_delivered(&house, &accepted).await;
}

async fn database_outage(network: Network) {
    let Some((database, broker)) = services().await else { return };
    let proxy = Proxy::before(&database.address()).await;
    let (store_url, amqp_url) = (database.url_at(&proxy.address.to_string()), broker.url.clone());
    let house = House::behind(database, broker, &store_url, &amqp_url).await;
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let mut accepted = BTreeMap::new();
    accept(gateway.edge, "evt_before", &mut accepted).await;

    proxy.set(network);
    refused_with_503(&gateway, "evt_away").await;
    proxy.set(Network::Up);
    recovers(&gateway, "evt_away", &mut accepted).await;
    kept_and_delivered(&house, &accepted).await;
}

/// Sends one event that must be accepted.
async fn accept(edge: SocketAddr, id: &str, accepted: &mut BTreeMap<String, String>) {
    let answer = try_send(edge, id).await;
    assert_eq!(answer.status, 200, "{id}: {}", answer.text());
    accepted.insert(id.to_owned(), plain_id(answer.receipt().expect("C1: a 200 names its receipt")));
}

async fn try_send(edge: SocketAddr, id: &str) -> client::Answer {
    let body = sign::body(id, 900);
    client::send(edge, "POST", "/in/pay", &sign::headers(SECRET, &body), &body)
        .await
        .expect("the edge answers, whatever is away")
}

/// C10: ten requests at once and ten one after another, each 503 with Retry-After, each in time.
async fn refused_with_503(gateway: &Gateway, id: &str) {
    let mut at_once = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (edge, id) = (gateway.edge, format!("{id}_{number}"));
        at_once.spawn(async move { refused_in_time(edge, &id).await });
    }
    while let Some(request) = at_once.join_next().await {
        request.expect("refused as promised");
    }
    for number in 10..15 {
        refused_in_time(gateway.edge, &format!("{id}_{number}")).await;
    }
    let readiness = client::send(gateway.admin, "GET", "/readyz", &[], b"").await.expect("an answer");
    assert_eq!(readiness.status, 503, "/readyz says so too: {}", readiness.text());
    let liveness = client::send(gateway.admin, "GET", "/livez", &[], b"").await.expect("an answer");
    assert_eq!(liveness.status, 200, "a restart would not help: {}", liveness.text());
}

async fn refused_in_time(edge: SocketAddr, id: &str) {
    let began = Instant::now();
    let answer = try_send(edge, id).await;
    assert!(Instant::now() - began < ANSWER_MAX, "{id} was answered after {:?}", Instant::now() - began);
    assert_eq!(answer.status, 503, "C10: {id}: {}", answer.text());
    let retry_after = answer.header("retry-after").expect("C10: Retry-After");
    assert!(retry_after.parse::<u32>().is_ok_and(|seconds| seconds > 0), "Retry-After: {retry_after}");
}

/// The provider sends again until it is heard; the process is the same.
async fn recovers(gateway: &Gateway, id: &str, accepted: &mut BTreeMap<String, String>) {
    let edge = gateway.edge;
    for number in 0..15 {
        let id = format!("{id}_{number}");
        let receipt = eventually("a 200 again", RECOVERY_MAX, async || {
            let answer = try_send(edge, &id).await;
            assert!(matches!(answer.status, 200 | 503), "{}: {}", answer.status, answer.text());
            answer.receipt().filter(|_| answer.status == 200).map(plain_id)
        })
        .await;
        accepted.insert(id, receipt);
    }
    gateway.ready().await;
}

/// Each accepted event has its receipt and comes out of the queue; nothing came twice into the store.
async fn kept_and_delivered(house: &House, accepted: &BTreeMap<String, String>) {
    let kept = house.store.read().await;
    assert_eq!(&kept.receipts, accepted, "the store holds what was accepted");
    let messages = house.broker().take("all", accepted.len(), RECOVERY_MAX).await;
    for receipt in accepted.values() {
        assert!(messages.iter().any(|message| message.receipt == *receipt), "C4: {receipt} came out of the queue");
    }
}

/// Whole seconds since then, by the clock of the test's runtime.
trait ElapsedSeconds {
    fn elapsed_secs(&self) -> u64;
}

impl ElapsedSeconds for Instant {
    fn elapsed_secs(&self) -> u64 {
        (Self::now() - *self).as_secs()
    }
}
