//! An edge on a socket of its own, before a store that does what the test says.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use makbuz::clock::SystemClock;
use makbuz::edge::{Edge, EdgeConfig, EdgeSource};
use makbuz::lifecycle::Stop;
use makbuz::model::id::ReceiptId;
use makbuz::model::subscription::SubscriptionSet;
use makbuz::provider::SignedRequest;
use makbuz::random::SeededRandom;
use makbuz::store::{
    DeliveryVerdict, EventVerdict, Intake, NewDelivery, NewRejection, QuarantineBounds, StoreError, Verdict,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any test may wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

type Answer = oneshot::Sender<Result<DeliveryVerdict, StoreError>>;

/// What the store does with a delivery.
#[derive(Debug, Clone)]
pub enum Mood {
    Commits,
    /// Holds the commit until [`FakeIntake::release`].
    Holds,
    /// Refuses at once.
    Refuses(StoreError),
    /// Has a bug.
    Panics,
    /// Takes it and fails.
    Fails(StoreError),
}

pub struct FakeIntake {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    mood: Mood,
    held: Vec<(NewDelivery, Answer)>,
    kept: Vec<NewDelivery>,
    receipts: HashMap<(String, String), ReceiptId>,
    rejections: Vec<NewRejection>,
    submitted: usize,
}

impl FakeIntake {
    fn new() -> Self {
        let state = State {
            mood: Mood::Commits,
            held: Vec::new(),
            kept: Vec::new(),
            receipts: HashMap::new(),
            rejections: Vec::new(),
            submitted: 0,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    pub fn set(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    /// Commits what is held, and from now on at once.
    pub fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.mood = Mood::Commits;
        for (delivery, answer) in std::mem::take(&mut state.held) {
            let verdict = state.commit(delivery);
            let _ = answer.send(Ok(verdict));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn kept(&self) -> usize {
        self.state.lock().unwrap().kept.len()
    }

    pub fn receipts(&self) -> usize {
        self.state.lock().unwrap().receipts.len()
    }

    pub fn last<T>(&self, look: impl FnOnce(&NewDelivery) -> T) -> T {
        look(self.state.lock().unwrap().kept.last().expect("a delivery was kept"))
    }

    /// Waits until `count` deliveries were handed over.
    pub async fn submitted(&self, count: usize) {
        self.until(|state| state.submitted >= count).await;
    }

    /// Waits until `count` rejections were written.
    pub async fn rejections(&self, count: usize) -> Vec<NewRejection> {
        self.until(|state| state.rejections.len() >= count).await;
        self.state.lock().unwrap().rejections.clone()
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if reached(&self.state.lock().unwrap()) {
                    return;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the store sees what the test waits for");
    }
}

impl State {
    fn commit(&mut self, delivery: NewDelivery) -> DeliveryVerdict {
        let mut events = Vec::new();
        for event in &delivery.events {
            let key = (event.account.clone(), event.event_id.clone());
            let known = self.receipts.get(&key).copied();
            let receipt_id = *self.receipts.entry(key).or_insert(event.receipt_id);
            let verdict = if known.is_some() { Verdict::Duplicate } else { Verdict::Stored };
            events.push(EventVerdict { receipt_id, verdict, held: event.hold, unmatched: true, rearmed: 0 });
        }
        self.kept.push(delivery);
        DeliveryVerdict { events }
    }
}

#[async_trait]
impl Intake for FakeIntake {
    fn submit(
        &self,
        delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError> {
        let (answer, heard) = oneshot::channel();
        let mut state = self.state.lock().unwrap();
        match state.mood.clone() {
            Mood::Panics => {
                drop(state);
                panic!("on purpose");
            }
            Mood::Refuses(error) => return Err(error),
            Mood::Holds => state.held.push((delivery, answer)),
            Mood::Fails(error) => {
                let _ = answer.send(Err(error));
            }
            Mood::Commits => {
                let verdict = state.commit(delivery);
                let _ = answer.send(Ok(verdict));
            }
        }
        state.submitted += 1;
        drop(state);
        self.changed.notify_waiters();
        Ok(heard)
    }

    async fn record_rejections(&self, rejections: Vec<NewRejection>, _: QuarantineBounds) -> Result<(), StoreError> {
        self.state.lock().unwrap().rejections.extend(rejections);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A running edge.
pub struct Rig {
    pub address: SocketAddr,
    pub edge: Arc<Edge>,
    pub intake: Arc<FakeIntake>,
    pub stop: Stop,
    pub task: JoinHandle<()>,
}

impl Rig {
    /// With default limits and the usual sources.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut EdgeConfig)) -> Self {
        Self::serving(super::sources::usual(), change).await
    }

    pub async fn serving(sources: Vec<Arc<EdgeSource>>, change: impl FnOnce(&mut EdgeConfig)) -> Self {
        let (quarantine_pause, linger_limit) = (Duration::from_millis(1), Duration::from_millis(100));
        let mut config = EdgeConfig { quarantine_pause, linger_limit, ..EdgeConfig::default() };
        change(&mut config);
        let intake = Arc::new(FakeIntake::new());
        let random = Arc::new(SeededRandom::new(42));
        let subscriptions = Arc::new(SubscriptionSet::default());
        let edge = Edge::new(config, sources, subscriptions, Arc::clone(&intake) as _, Arc::new(SystemClock), random);
        let (edge, stop) = (Arc::new(edge), Stop::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(Arc::clone(&edge).serve(listener, stop.clone()));
        Self { address, edge, intake, stop, task }
    }

    pub async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), buffer: Vec::new() }
    }

    /// One request on a connection of its own.
    pub async fn send(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut client = self.connect().await;
        client.write(request).await;
        client.read().await.expect("an answer")
    }

    /// Stops softly and waits for the end.
    pub async fn end(self) {
        self.stop.ask();
        timeout(PATIENCE, self.task).await.expect("the edge stops").expect("without a panic");
    }
}

/// An HTTP client that does only and exactly what the test says.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next answer; `None` when the connection ends first.
    pub async fn read(&mut self) -> Option<Reply> {
        timeout(PATIENCE, self.read_unhurried()).await.expect("an answer or the end of the connection")
    }

    /// Nothing comes within a moment.
    pub async fn hears_nothing(&mut self) -> bool {
        timeout(Duration::from_millis(150), self.fill()).await.is_err()
    }

    async fn read_unhurried(&mut self) -> Option<Reply> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.fill().await {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        self.buffer.drain(..end);
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = if status == 100 { 0 } else { length.map_or(0, |(_, value)| value.parse().unwrap()) };
        while self.buffer.len() < length {
            if !self.fill().await {
                return None;
            }
        }
        let body = self.buffer.drain(..length).collect();
        Some(Reply { status, headers, body })
    }

    /// Reads more; false at the end.
    async fn fill(&mut self) -> bool {
        let mut chunk = vec![0; 16 * 1024];
        match self.stream.read(&mut chunk).await {
            Ok(0) | Err(_) => false,
            Ok(read) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                true
            }
        }
    }
}

/// `POST path` with `body` and more header lines.
pub fn post(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        request += header;
        request += "\r\n";
    }
    let mut request = (request + "\r\n").into_bytes();
    request.extend_from_slice(body);
    request
}

/// A signed request as its provider sends it, to `path`.
pub fn as_sent(path: &str, signed: &SignedRequest) -> Vec<u8> {
    let query = signed.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
    let lines = signed.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    let lines: Vec<String> = lines.collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut request = post(&format!("{path}{query}"), &lines, &signed.body);
    let method = signed.method.as_str().bytes();
    request.splice(.."POST".len(), method);
    request
}
