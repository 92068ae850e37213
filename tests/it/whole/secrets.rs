//! W-067: a sender that can only put its token into the URL. The real program, at its most talkative, writes it nowhere.

use serde_json::json;

use super::super::support::client;
use super::House;
use super::outcomes::broker::Worker;
use super::outcomes::{Desk, OPERATOR};

/// Nothing in them has another spelling in a URL, so that a look for the text is enough. The field's name is no secret's.
const TOKEN_OF_THE_URL: &str = "s3cret-of-the-url-0123456789";
const GUESS: &str = "gu3ss-of-a-stranger-0123456789";

fn more() -> String {
    r#"
[[source]]
name = "hook"
provider = "token"
secrets = ["env:HOOK_SECRET"]
params = { id = "json:/id", from = "query:who", prefix = "" }
[[token]]
name = "ada"
value = "env:OPERATOR_TOKEN"
role = "operator"
"#
    .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_in_the_url_is_in_no_log_no_answer_no_metric_no_message_and_no_row() {
    let variables =
        [("HOOK_SECRET", TOKEN_OF_THE_URL), ("OPERATOR_TOKEN", OPERATOR), ("MAKBUZ_LOG__LEVEL", "trace,h2=off")];
    let Some(house) = House::production_with(&["all"], &more(), &variables).await else { return };
    let desk = Desk::open(&house).await;
    let post = async |path: &str, body: &[u8]| {
        let headers = [("Content-Type".to_owned(), "application/json".to_owned())];
        client::send(desk.gateway.edge, "POST", path, &headers, body).await.expect("an answer")
    };
    let path = |name: &str, token: &str| format!("/in/hook?shop=7&{name}={token}&lang=tr");
    let event = json!({ "id": "evt_1", "n": 1 }).to_string();
    let kept = post(&path("who", TOKEN_OF_THE_URL), event.as_bytes()).await;
    assert_eq!(kept.status, 200, "{}", kept.text());
    let receipt = kept.receipt().expect("C1: a 200 names its receipt").to_owned();
    // The ways that a request can go: again, again otherwise, unreadable, refused, by no such source, too large.
    let large = vec![b' '; (5 << 20) + 1];
    for (status, path, body) in [
        (200, path("who", TOKEN_OF_THE_URL), event.as_bytes()),
        (200, path("%77ho", TOKEN_OF_THE_URL), b"{\"id\":\"evt_1\",\"n\":2}"),
        (200, path("who", TOKEN_OF_THE_URL), b"no JSON"),
        (401, path("who", GUESS), event.as_bytes()),
        (401, path("%77ho", GUESS), event.as_bytes()),
        (404, path("who", TOKEN_OF_THE_URL).replace("/in/hook", "/in/nobody"), event.as_bytes()),
        (405, path("who", TOKEN_OF_THE_URL), b""),
        (413, path("who", TOKEN_OF_THE_URL), &large),
    ] {
        let answer = match status {
            405 => client::send(desk.gateway.edge, "PATCH", &path, &[], body).await.expect("an answer"),
            413 => refused_by_its_length(&desk, &path, body.len()).await,
            _ => post(&path, body).await,
        };
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        silent("an answer", &format!("{answer:?}"));
    }

    let (_, delivery) = Worker::of(&house, "all").await.hold().await;
    silent("the message", &format!("{:?}", delivery.properties));
    let shown = desk.get(&format!("/v1/receipts/{receipt}")).await;
    assert_eq!(shown["url"], json!("/in/hook?shop=7&who=cut&lang=tr"), "the rest of the URL is kept");
    for path in [format!("/v1/receipts/{receipt}"), "/v1/receipts".to_owned(), "/v1/jobs".to_owned()] {
        silent(&path, &desk.get(&path).await.to_string());
    }
    let refused = super::super::support::eventually("what was refused is kept", super::outcomes::LONG, async || {
        let refused = desk.get("/v1/rejections").await;
        (refused["rejections"].as_array().map(Vec::len) == Some(4)).then_some(refused)
    })
    .await;
    silent("/v1/rejections", &refused.to_string());
    let scrape = client::send(desk.gateway.admin, "GET", "/metrics", &[], b"").await.expect("an answer").text();
    silent("/metrics", &scrape);
    let log = desk.gateway.log();
    assert!(log.contains("a delivery was refused") && log.contains("TRACE"), "it did talk");
    silent("the log", &log);
    silent("the database", &dump(&house).await);
}

fn silent(place: &str, text: &str) {
    for secret in [TOKEN_OF_THE_URL, GUESS] {
        assert!(!text.contains(secret), "{place} has {secret}: {text}");
    }
}

/// The head of a request whose body is too large is enough.
async fn refused_by_its_length(desk: &Desk<'_>, path: &str, bytes: usize) -> client::Answer {
    let mut client = client::Client::connect(desk.gateway.edge).await.expect("it listens");
    let head = client.head("POST", path, &[], bytes);
    client.send_raw(&head).await.expect("sent");
    client.answer().await.expect("an answer")
}

/// Every row of every table, as text.
async fn dump(house: &House) -> String {
    use sqlx::{AssertSqlSafe, Connection};
    let url = &house.services.as_ref().expect("production has a database").0.url;
    let mut connection = sqlx::PgConnection::connect(url).await.expect("the database");
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            .fetch_all(&mut connection)
            .await
            .expect("the tables");
    assert!(tables.iter().any(|table| table == "receipts"), "{tables:?}");
    let mut all = String::new();
    for table in tables {
        // Bytes as text: a byte that is no letter becomes an escape.
        let sql = AssertSqlSafe(format!(
            "SET bytea_output = 'escape'; SELECT coalesce(string_agg(t::text, ' '), '') FROM {table} t"
        ));
        let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await.expect("its rows");
        let text: String = sqlx::Row::try_get(rows.last().expect("one row"), 0).expect("text");
        all.push_str(&text);
    }
    assert!(all.contains("/in/hook?shop=7"), "the rows are read");
    all
}
