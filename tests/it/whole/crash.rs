//! SIGKILL at random moments under load, and the order of fsync and answer.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use makbuz::random::{Random, SeededRandom};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::super::support::client::{self, Client};
use super::super::support::database::plain_id;
use super::super::support::process::Gateway;
use super::super::support::{seed, sign, skip};
use super::{House, SECRET, TOKEN};

const CONNECTIONS: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_on_sqlite_lose_nothing() {
    kill_rounds(House::embedded(), 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_on_postgres_and_rabbitmq_lose_nothing() {
    let Some(house) = House::production().await else { return };
    kill_rounds(house, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn fifty_kills_on_sqlite_lose_nothing() {
    kill_rounds(House::embedded(), 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn fifty_kills_on_postgres_and_rabbitmq_lose_nothing() {
    let Some(house) = House::production().await else { return };
    kill_rounds(house, 50).await;
}

/// What the clients saw, which is all that a provider knows.
#[derive(Default)]
struct History {
    /// Answered 200: the event's id and its receipt.
    accepted: BTreeMap<String, String>,
    /// Sent, and never answered, or answered 503.
    open: BTreeSet<String>,
    /// Tampered with.
    forged: BTreeSet<String>,
    bodies: BTreeMap<String, Vec<u8>>,
}

async fn kill_rounds(house: House, rounds: u32) {
    let dice = Arc::new(SeededRandom::new(seed()));
    let history = Arc::new(Mutex::new(History::default()));
    for round in 0..rounds {
        let gateway = house.installation.start().await;
        gateway.ready().await;
        let mut clients = JoinSet::new();
        for client in 0..CONNECTIONS {
            let name = format!("evt_{round}_{client}");
            clients.spawn(send_until_it_dies(gateway.edge, name, Arc::clone(&dice), Arc::clone(&history)));
        }
        // The random moment is what this test is about.
        tokio::time::sleep(Duration::from_millis(100 + dice.next_u64() % 600)).await;
        gateway.kill().await;
        while let Some(client) = clients.join_next().await {
            client.expect("no client saw a broken promise");
        }
    }
    let gateway = house.installation.start().await;
    gateway.ready().await;
    let history = std::mem::take(&mut *history.lock().expect("not poisoned"));
    assert!(history.accepted.len() > rounds as usize, "too little load: {} accepted", history.accepted.len());
    check_receipts(&house, &history).await;
    check_jobs(&house, &gateway, &history).await;
}

/// One provider's connection: new events, resends of accepted ones, and forgeries, until the program is gone.
async fn send_until_it_dies(edge: SocketAddr, name: String, dice: Arc<SeededRandom>, history: Arc<Mutex<History>>) {
    let Ok(mut client) = Client::connect(edge).await else { return };
    let mut last: Option<String> = None;
    for number in 0_u32.. {
        let roll = dice.next_u64() % 10;
        let resend = if roll == 0 { last.clone() } else { None };
        let id = resend.clone().unwrap_or_else(|| format!("{name}_{number}"));
        let body = {
            let mut history = history.lock().expect("not poisoned");
            history.bodies.entry(id.clone()).or_insert_with(|| sign::body(&id, 200)).clone()
        };
        let headers = sign::headers(SECRET, &body);
        if (1..=2).contains(&roll) && resend.is_none() {
            let mut forged = body.clone();
            let at = forged.len() / 2;
            forged[at] ^= 1;
            match client.send("POST", "/in/pay", &headers, &forged).await {
                Ok(answer) => assert_eq!(answer.status, 401, "a forgery: {}", answer.text()),
                Err(_) => return,
            }
            // A refusal ends its connection.
            let Ok(next) = Client::connect(edge).await else { return };
            client = next;
            if roll == 1 {
                history.lock().expect("not poisoned").forged.insert(id);
                continue;
            }
            // W-098: else the untouched body follows with the same id, and is kept like any other.
        }
        let answer = client.send("POST", "/in/pay", &headers, &body).await;
        let mut history = history.lock().expect("not poisoned");
        match answer {
            Ok(answer) if answer.status == 200 => {
                let receipt = plain_id(answer.receipt().expect("C1: a 200 names its receipt"));
                if let Some(before) = history.accepted.insert(id.clone(), receipt.clone()) {
                    assert_eq!(before, receipt, "C3: a resend is answered like the first");
                }
                last = Some(id);
            }
            Ok(answer) => {
                assert_eq!(answer.status, 503, "C10: our own fault is a 503: {}", answer.text());
                history.open.insert(id);
            }
            Err(_) => {
                history.open.insert(id);
                return;
            }
        }
    }
}

/// Every 200 has its receipt; nothing else is there but what was sent and left unanswered.
async fn check_receipts(house: &House, history: &History) {
    let kept = house.store.read().await;
    for (event, receipt) in &history.accepted {
        assert_eq!(kept.receipts.get(event), Some(receipt), "C1: {event} was answered 200");
    }
    for event in kept.receipts.keys() {
        assert!(!history.forged.contains(event), "C2: {event} was a forgery");
        assert!(history.accepted.contains_key(event) || history.open.contains(event), "{event} was never sent");
    }
    assert_eq!(kept.jobs, i64::try_from(kept.receipts.len()).expect("few"), "one job for each receipt");
}

/// Every job reaches the queue, or a claim, with the bytes that were sent.
async fn check_jobs(house: &House, gateway: &Gateway, history: &History) {
    let kept = house.store.read().await;
    let expected: HashSet<&String> = kept.receipts.values().collect();
    let sent: BTreeMap<&String, &Vec<u8>> =
        kept.receipts.iter().map(|(event, receipt)| (receipt, &history.bodies[event])).collect();
    if house.services.is_none() {
        let claimed = claim_all(gateway, expected.len()).await;
        let found: HashSet<&String> = claimed.keys().collect();
        assert_eq!(found, expected, "C4: what can be claimed is what was accepted");
        return;
    }
    let messages = house.broker().take("all", expected.len(), Duration::from_secs(60)).await;
    for message in &messages {
        let body =
            sent.get(&message.receipt).unwrap_or_else(|| panic!("C2: no receipt for message {}", message.message_id));
        assert_eq!(&&message.body, body, "C5: the bytes of {}", message.message_id);
    }
    let found: HashSet<&String> = messages.iter().map(|message| &message.receipt).collect();
    assert_eq!(found, expected, "C4: every job reached the queue");
}

/// Claims until `wanted` jobs have come: receipt → the job as it was given.
pub async fn claim_all(gateway: &Gateway, wanted: usize) -> BTreeMap<String, Value> {
    let headers = [
        ("Authorization".to_owned(), format!("Bearer {TOKEN}")),
        ("Content-Type".to_owned(), "application/json".to_owned()),
    ];
    let order = json!({ "max": 100, "wait_s": 0 }).to_string();
    let mut claimed = BTreeMap::new();
    loop {
        let answer = client::send(gateway.admin, "POST", "/v1/subscriptions/all/claim", &headers, order.as_bytes())
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let jobs = answer.as_array().or_else(|| answer.get("jobs")?.as_array()).expect("a list of jobs").clone();
        if jobs.is_empty() {
            assert_eq!(claimed.len(), wanted, "no more jobs to claim");
            return claimed;
        }
        for job in jobs {
            let receipt = plain_id(job["receipt"].as_str().expect("the job names its receipt"));
            assert!(claimed.insert(receipt, job).is_none(), "one job was leased twice");
        }
    }
}

/// C1 on SQLite: between a request and its 200, the write-ahead log was synced to the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_syncs_before_it_answers_200() {
    if !std::process::Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("strace is not installed");
    }
    let house = House::embedded();
    let trace = house.installation.folder().join("trace");
    let path = trace.to_str().expect("UTF-8");
    let calls = "trace=fsync,fdatasync,read,recvfrom,readv,write,writev,sendto";
    let gateway = house.installation.start_under(&["strace", "-f", "-y", "-s", "96", "-o", path, "-e", calls]).await;
    gateway.ready().await;
    for number in 0..5 {
        let body = sign::body(&format!("evt_traced_{number}"), 0);
        let answer = client::send(gateway.edge, "POST", "/in/pay", &sign::headers(SECRET, &body), &body)
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    gateway.terminate();
    gateway.exit(Duration::from_secs(20)).await;
    let trace = std::fs::read_to_string(trace).expect("a trace");
    assert_eq!(synced_answers(&trace), (5, 5), "(answers, answers with a sync of the log before them)");
}

/// Counts the 200s to events in a trace, and those that came after the log's sync that followed their request.
fn synced_answers(trace: &str) -> (usize, usize) {
    let (mut answers, mut synced_answers) = (0, 0);
    let (mut requested, mut synced) = (false, false);
    let mut syncing: HashSet<&str> = HashSet::new();
    for line in trace.lines() {
        let thread = line.split_whitespace().next().unwrap_or_default();
        let of_log = line.contains("sync(") && line.contains("-wal>");
        if of_log && line.contains("<unfinished") {
            syncing.insert(thread);
        }
        let ended = line.trim_end().ends_with("= 0");
        let resumed = line.contains("sync resumed>") && ended && syncing.remove(thread);
        if resumed || (of_log && ended) {
            synced = true;
        }
        if line.contains("POST /in/pay") {
            (requested, synced) = (true, false);
        }
        if line.contains("HTTP/1.1 200") && requested {
            answers += 1;
            synced_answers += usize::from(synced);
            (requested, synced) = (false, false);
        }
    }
    (answers, synced_answers)
}

#[test]
fn the_trace_reader_tells_a_sync_before_from_one_after() {
    let right = "7 recvfrom(9<s>, \"POST /in/pay HTTP\", 96) = 90\n8 fdatasync(5</x/makbuz.db-wal> <unfinished ...>\n7 read(3, \"\") = 0\n8 <... fdatasync resumed>) = 0\n7 writev(9<s>, [\"HTTP/1.1 200 OK\"]) = 99";
    assert_eq!(synced_answers(right), (1, 1));
    let wrong = "7 recvfrom(9<s>, \"POST /in/pay HTTP\", 96) = 90\n7 writev(9<s>, [\"HTTP/1.1 200 OK\"]) = 99\n8 fsync(5</x/makbuz.db-wal>) = 0";
    assert_eq!(synced_answers(wrong), (1, 0));
}
