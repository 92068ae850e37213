//! On sockets: what peers that do nothing, or wait, can take from others.

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Longer than any test may wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    address: std::net::SocketAddr,
    /// One permit for each request of `/wait` that has begun.
    waiting: Arc<Semaphore>,
    /// One permit lets one of them end.
    release: Arc<Semaphore>,
    stop: Stop,
    task: JoinHandle<()>,
}

impl Rig {
    async fn with(config: ListenConfig) -> Self {
        let (waiting, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begun, may_end) = (Arc::clone(&waiting), Arc::clone(&release));
        let wait = move || async move {
            begun.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            "waited"
        };
        let router = Router::new().route("/livez", get(|| async { "ok" })).route("/wait", get(wait));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Stop::new());
        let task = tokio::spawn(serve(listener, router, config, stop.clone()));
        Self { address, waiting, release, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn end(self) {
        self.stop.force();
        timeout(PATIENCE, self.task).await.expect("it stops").unwrap();
    }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
}

/// Reads until `last` has come; false if the connection ends first.
async fn hears(stream: &mut TcpStream, last: &str) -> bool {
    let mut heard = Vec::new();
    let read = async {
        while !heard.ends_with(last.as_bytes()) {
            if !matches!(stream.read_buf(&mut heard).await, Ok(1..)) {
                return false;
            }
        }
        true
    };
    timeout(PATIENCE, read).await.expect("an answer, or the end")
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    // A reset is an end too.
    let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the end");
    read.is_err() || rest.is_empty()
}

#[tokio::test]
async fn idle_peers_keep_no_probe_out_and_the_longest_idle_gives_way() {
    let rig = Rig::with(ListenConfig { connections_max: 3, ..ListenConfig::default() }).await;
    let (mut used, mut kept, mut silent) = (rig.connect().await, rig.connect().await, rig.connect().await);
    for stream in [&mut silent, &mut used, &mut kept] {
        ask(stream, "/livez").await;
        assert!(hears(stream, "ok").await);
    }
    silent.write_all(b"GET /livez HT").await.unwrap();
    let mut probe = rig.connect().await;
    ask(&mut probe, "/livez").await;
    assert!(hears(&mut probe, "ok").await, "a probe is answered though all places are taken");
    assert!(is_closed(&mut silent).await, "half a head is no request");
    let mut another = rig.connect().await;
    ask(&mut another, "/livez").await;
    assert!(hears(&mut another, "ok").await && is_closed(&mut used).await);
    ask(&mut kept, "/livez").await;
    assert!(hears(&mut kept, "ok").await, "who was used later has kept its place");
    rig.end().await;
}

#[tokio::test]
async fn a_request_at_work_is_not_sent_away_and_its_place_is_free_with_its_answer() {
    let rig = Rig::with(ListenConfig { connections_max: 1, ..ListenConfig::default() }).await;
    let mut first = rig.connect().await;
    ask(&mut first, "/wait").await;
    rig.waiting.acquire().await.unwrap().forget();
    let mut probe = rig.connect().await;
    ask(&mut probe, "/livez").await;
    rig.release.add_permits(1);
    assert!(hears(&mut first, "waited").await);
    assert!(hears(&mut probe, "ok").await && is_closed(&mut first).await);
    rig.end().await;
}

#[tokio::test]
async fn headers_that_do_not_come_end_the_connection() {
    let rig = Rig::with(ListenConfig { idle_max: Duration::from_millis(50), ..ListenConfig::default() }).await;
    let (mut silent, mut half, mut used) = (rig.connect().await, rig.connect().await, rig.connect().await);
    half.write_all(b"GET /livez HT").await.unwrap();
    ask(&mut used, "/livez").await;
    assert!(hears(&mut used, "ok").await);
    for stream in [&mut silent, &mut half, &mut used] {
        assert!(is_closed(stream).await);
    }
    rig.end().await;
}

#[tokio::test]
async fn headers_are_bounded() {
    let rig = Rig::with(ListenConfig { header_bytes_max: 8 * 1024, ..ListenConfig::default() }).await;
    let mut stream = rig.connect().await;
    let large = format!("GET /livez HTTP/1.1\r\nhost: a\r\nx-large: {}\r\n\r\n", "a".repeat(9 * 1024));
    stream.write_all(large.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("the end");
    // The reset of what was not read may overtake the answer.
    assert!(read.is_err() || heard.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&heard));
    rig.end().await;
}
