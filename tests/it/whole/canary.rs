//! Secrets stay where they are. Each secret is a value that can be recognised; then everything that the program writes,
//! answers, prints, stores and publishes is searched for it, in any spelling.

mod requests;

use std::fmt::Write as _;
use std::time::Duration;

use lapin::message::Delivery;
use lapin::types::AMQPValue;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::super::support::canary::Canaries;
use super::super::support::database::Database;
use super::super::support::process::{Gateway, Installation};
use super::super::support::rabbit::Rabbit;
use super::super::support::{client, eventually, sign};

/// Secrets of the sources: what signs, what is shown with each request, and a param beside a key.
const PAY: &str = "whsec_cnryPay7Kd2Vq9LmX4sT";
const TILL: &str = "cnryTillUser:cnryTillPw8Rf3Zu6";
const DOOR: &str = "cnryDoor5Hj8Wn1Bc6Gy";
const GATE: &str = "cnryGate9Tp2Xs7Dk4Lq";
const HATCH: &str = "cnryHatch3Mv6Qa8Ez1Rw";
const ORDER_KEY: &str = "cnryOrderKey4Uf7Yd2Ks";
const ORDER_SALT: &str = "cnryOrderSalt6Bn9Jx3P";
/// Tokens of the operators' listener, and passwords of the store and the broker.
const CONSUMER: &str = "cnryConsumer8Lw5Vt2Hc";
const OPERATOR: &str = "cnryOperator1Gz4Np7Sm";
const DATABASE: &str = "cnryDatabase2Xr5Kq8Wf";
const BROKER: &str = "cnryBroker7Jm1Tz4Yb9D";
/// What is no secret of ours, but somebody's: it came with a request that was refused.
const STRANGER: &str = "cnryStranger6Pd3Hv9Ua";

const SECRETS: [(&str, &str); 12] = [
    ("PAY", PAY),
    ("TILL", TILL),
    ("DOOR", DOOR),
    ("GATE", GATE),
    ("HATCH", HATCH),
    ("ORDER_KEY", ORDER_KEY),
    ("ORDER_SALT", ORDER_SALT),
    ("CONSUMER", CONSUMER),
    ("OPERATOR", OPERATOR),
    ("DATABASE", DATABASE),
    ("BROKER", BROKER),
    ("STRANGER", STRANGER),
];

const PATIENCE: Duration = Duration::from_secs(30);

fn canaries() -> Canaries {
    Canaries::new(SECRETS.map(|(name, value)| (name, value.to_owned())))
}

/// A source for each way to show a credential, and tokens for both listeners; `rest` is the store, the broker and the
/// subscription.
fn config(rest: &str) -> String {
    let token = |name: &str, from: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\nprovider = \"token\"\nsecrets = [\"env:{}\"]\nparams = {{ id = \"json:/id\", {from} }}\n",
            name.to_uppercase()
        )
    };
    let mut text =
        "[edge]\nlisten = \"127.0.0.1:0\"\nbody_max = \"64KiB\"\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    text += rest;
    text += "[[source]]\nname = \"pay\"\nprovider = \"stripe\"\nsecrets = [\"env:PAY\"]\n";
    text +=
        "[[source]]\nname = \"till\"\nprovider = \"basic\"\nsecrets = [\"env:TILL\"]\nparams = { id = \"json:/id\" }\n";
    text += &token("door", "keep = \"x-shop\"");
    text += &token("gate", "from = \"header:x-gate-key\", prefix = \"\"");
    text += &token("hatch", "from = \"query:code\", prefix = \"\"");
    text += "[[source]]\nname = \"orders\"\nprovider = \"paytr\"\nsecrets = [\"env:ORDER_KEY\"]\nparams = { merchant_salt = \"env:ORDER_SALT\" }\n";
    for (name, role) in [("consumer", "consumer\"\nsubscriptions = [\"all\"]"), ("operator", "operator\"")] {
        let _ =
            write!(text, "[[token]]\nname = \"{name}\"\nvalue = \"env:{}\"\nrole = \"{role}\n", name.to_uppercase());
    }
    text
}

fn installation(rest: &str, urls: &[(&str, &str)]) -> Installation {
    // As much as anybody could ask the log for.
    let mut variables = vec![("MAKBUZ_LOG__LEVEL", "trace")];
    variables.extend(SECRETS.iter().filter(|(name, _)| !["DATABASE", "BROKER", "STRANGER"].contains(name)));
    variables.extend(urls);
    Installation::new(&config(rest), &variables)
}

/// The URL with this password, if it has none of its own: a server that asks for none takes any.
fn with_password(url: &str) -> String {
    let (protocol, rest) = url.split_once("://").expect("a URL");
    match rest.rsplit_once('@') {
        Some((user, host)) if !user.contains(':') => format!("{protocol}://{user}:{DATABASE}@{host}"),
        _ => url.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_leaves_the_embedded_program() {
    let installation = installation(
        "[store]\nurl = \"sqlite://makbuz.db\"\n[[subscription]]\nname = \"all\"\ntarget = \"pull\"\n",
        &[],
    );
    let gateway = installation.start().await;
    let canaries = canaries();
    gateway.ready().await;
    requests::send_all(&gateway, &canaries).await;
    claim(&gateway, &canaries).await;
    look_from_outside(&installation, &gateway, &canaries).await;
    end(gateway, &canaries).await;
    check(&installation, &canaries, "PRAGMA").await;
    // All that it has written. The database is more than one file: what was committed last is in its log.
    let mut database = Vec::new();
    for entry in std::fs::read_dir(installation.folder()).expect("the folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        canaries.not_in(&name, &bytes, "");
        if name.starts_with("makbuz.db") {
            database.extend(bytes);
        }
    }
    for control in ["evt_hatch", "x-gate-key", "duplicate_header"] {
        canaries.not_in("the database", &database, control);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_leaves_the_program_in_production() {
    let Some(database) = Database::create().await else { return };
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let user = rabbit.add_user_with(BROKER, ".*", ".*", ".*").await;
    let urls = [("STORE_URL", &*with_password(&database.url)), ("AMQP_URL", &*rabbit.url_as(&user, BROKER))];
    let installation = installation(PRODUCTION, &urls);
    installation.migrate().await;
    let gateway = installation.start().await;
    let canaries = canaries();
    gateway.ready().await;
    requests::send_all(&gateway, &canaries).await;
    let mut taker = rabbit.consume("makbuz.all").await;
    for _ in 0..7 {
        let delivery = taker.next(PATIENCE).await;
        canaries.not_in("a message", readable(&delivery).as_bytes(), "makbuz-event-id: evt_");
    }
    look_from_outside(&installation, &gateway, &canaries).await;
    check(&installation, &canaries, "reachable").await;
    end(gateway, &canaries).await;
    canaries.not_in("the database", everything(&database.url).await.as_bytes(), "evt_hatch");
}

const PRODUCTION: &str = "[store]\nurl = \"env:STORE_URL\"\n[amqp]\nurl = \"env:AMQP_URL\"\n[[subscription]]\nname = \"all\"\ntarget = \"amqp\"\n";

/// Failures are where a password is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_that_are_refused_show_no_password() {
    let Some(database) = Database::create().await else { return };
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let store = format!("postgres://nobody-of-this-name:{DATABASE}@{}/{}", database.address(), database.name);
    let urls = [("STORE_URL", &*store), ("AMQP_URL", &*rabbit.url_as("nobody-of-this-name", BROKER))];
    let (installation, canaries) = (installation(PRODUCTION, &urls), canaries());
    print(&installation, &["migrate"], &canaries, "makbuz: ").await;
    check(&installation, &canaries, "error").await;
    let gateway = installation.start().await;
    let body = sign::body("evt_1", 10);
    let answer =
        client::send(gateway.edge, "POST", "/in/pay", &sign::headers(PAY, &body), &body).await.expect("answered");
    assert_eq!(answer.status, 503);
    for path in ["/readyz", "/metrics"] {
        let answer = client::send(gateway.admin, "GET", path, &[], b"").await.expect("answered");
        canaries.not_in(path, &answer.body, "broker");
    }
    eventually("both are missed in the log", PATIENCE, async || {
        let log = gateway.log();
        (log.contains("broker") && log.contains("store_unavailable")).then_some(())
    })
    .await;
    end(gateway, &canaries).await;
}

/// Mistakes name the key and the variable, and not what stands there.
#[tokio::test]
async fn a_secret_in_the_wrong_place_is_not_repeated() {
    let canaries = canaries();
    let file = config("[store]\nurl = \"env:DATABASE\"\n");
    let file = file.replace("env:PAY", PAY).replace("\"env:ORDER_SALT\"", "7");
    let file = file + &format!("[amqp]\nurl = \"amqp://guest:{BROKER}@localhost\"\npassword = \"{CONSUMER}\"\n");
    // Not a URL, and not fit for a header.
    let (database, operator) = (format!("mysql://{DATABASE}"), format!("{OPERATOR} {OPERATOR}"));
    let installation = Installation::new(&file, &[("DATABASE", &*database), ("OPERATOR", &*operator)]);
    for command in ["check", "migrate", "serve"] {
        for mistake in
            ["\"env:NAME\"", "no header carries", "`url` begins with", "`url` holds a password", "unknown key"]
        {
            print(&installation, &[command, "--config", "makbuz.toml"], &canaries, mistake).await;
        }
    }
}

/// Takes the work of the subscription, reports on it, and tries with what is no token.
async fn claim(gateway: &Gateway, canaries: &Canaries) {
    let path = "/v1/subscriptions/all/claim";
    let taken = ask(gateway, "POST", path, CONSUMER, br#"{"max":10,"wait_s":0}"#, canaries, "evt_hatch").await;
    let job = &taken["jobs"][0];
    let receipt = job["receipt"].as_str().expect("a receipt");
    let path = format!("/v1/jobs/{receipt}/all/outcome");
    for (token, told) in [(STRANGER, "token_wrong"), (job["token"].as_str().expect("a token"), "applied")] {
        let report = format!(
            r#"{{"v":1,"receipt":"{receipt}","subscription":"all","attempt":1,"token":"{token}","outcome":"failed","reason":"later"}}"#
        );
        ask(gateway, "POST", &path, CONSUMER, report.as_bytes(), canaries, told).await;
    }
}

/// Everything that an operator or a scraper can ask for: over HTTP, and by the command line.
async fn look_from_outside(installation: &Installation, gateway: &Gateway, canaries: &Canaries) {
    eventually("the quarantine is written", PATIENCE, async || {
        let answer = ask(gateway, "GET", "/v1/rejections?limit=500", OPERATOR, b"", canaries, "rejections").await;
        (answer["rejections"].as_array()?.len() == requests::quarantined()).then_some(())
    })
    .await;
    let receipts = ask(gateway, "GET", "/v1/receipts", OPERATOR, b"", canaries, "evt_hatch").await;
    let ids: Vec<&str> =
        receipts["receipts"].as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids.len(), 9, "all that was accepted");
    for id in &ids {
        ask(gateway, "GET", &format!("/v1/receipts/{id}"), OPERATOR, b"", canaries, "headers").await;
    }
    for (path, control) in [
        ("/v1/jobs", "subscription"),
        ("/v1/review", "jobs"),
        ("/metrics", "makbuz_rejections_total{source=\"gate\",code=\"duplicate_header\"} 1"),
        ("/readyz", "store"),
        (&*format!("/v1/receipts?token={OPERATOR}"), "query_invalid"),
        (&*format!("/v1/receipts/{OPERATOR}"), "receipt_invalid"),
    ] {
        ask(gateway, "GET", path, OPERATOR, b"", canaries, control).await;
    }
    ask(gateway, "GET", "/v1/receipts", STRANGER, b"", canaries, "unauthorized").await;
    let admin = format!("http://{}", gateway.admin);
    for (command, control) in [
        (&["receipts", "list", "--json"][..], "evt_hatch"),
        (&["receipts", "list"], "evt_hatch"),
        (&["receipts", "show", ids[0], "--json"], "headers"),
        (&["rejections", "--json", "--limit", "500"], "x-gate-key"),
        (&["rejections"], "duplicate_header"),
        (&["jobs", "list", "--json"], "all"),
        (&["review", "list", "--json"], "held"),
        (&["providers", "list", "--json"], "stripe"),
        (&["providers", "show", "token", "--json"], "token"),
    ] {
        let command = [command, &["--config", "makbuz.toml", "--admin", &admin]].concat();
        print(installation, &command, canaries, control).await;
    }
}

/// Asks the operators' listener, and searches the answer. JSON where it is.
async fn ask(
    gateway: &Gateway,
    method: &str,
    path: &str,
    token: &str,
    body: &[u8],
    canaries: &Canaries,
    control: &str,
) -> Value {
    let headers = [("Authorization".to_owned(), format!("Bearer {token}"))];
    let answer = client::send(gateway.admin, method, path, &headers, body).await.expect("an answer");
    let place = format!("{method} {path}");
    canaries.not_in(&place, format!("{:?}\n{}", answer.headers, answer.text()).as_bytes(), control);
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// Runs a subcommand, and searches what it prints.
async fn print(installation: &Installation, command: &[&str], canaries: &Canaries, control: &str) {
    let output = installation.run(command).await;
    canaries.not_in(&command.join(" "), &[output.stdout, output.stderr].concat(), control);
}

async fn check(installation: &Installation, canaries: &Canaries, control: &str) {
    for command in [&["check"][..], &["check", "--json"]] {
        let command = [command, &["--config", "makbuz.toml"]].concat();
        print(installation, &command, canaries, control).await;
    }
}

/// Body, properties and headers of a message; the client prints texts in headers as numbers.
fn readable(delivery: &Delivery) -> String {
    let mut text = format!("{}\n{:?}\n", String::from_utf8_lossy(&delivery.data), delivery.properties);
    for (name, value) in delivery.properties.headers().iter().flat_map(|headers| headers.inner()) {
        match value {
            AMQPValue::LongString(value) => text += &format!("{name}: {value}\n"),
            other => text += &format!("{name}: {other:?}\n"),
        }
    }
    text
}

/// Stops it, and searches all that it has said.
async fn end(gateway: Gateway, canaries: &Canaries) {
    canaries.not_in("the log", gateway.log().as_bytes(), "\"serving\"");
    gateway.terminate();
    gateway.exit(PATIENCE).await;
}

/// All rows of all tables, as the server prints them: bytes as hex.
async fn everything(url: &str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("the database");
    let tables = "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public'";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.expect("its tables");
    let mut all = String::new();
    for table in tables {
        let rows = AssertSqlSafe(format!("SELECT row::text FROM {table} AS row"));
        let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&mut connection).await.expect("its rows");
        all += &format!("{table}\n{}\n", rows.join("\n"));
    }
    all
}
