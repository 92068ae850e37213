//! A TCP proxy in front of a database or a broker, which fails as networks fail, when the test says so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the network does now; a change takes hold of open connections too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Everything passes.
    Up,
    /// Everything passes, each piece this much later.
    Slow(Duration),
    /// Half-open: connections stay, new ones are taken, and no byte arrives any more.
    Silent,
    /// Connections are closed, new ones are closed at once.
    Down,
    /// The same with RST.
    Reset,
}

/// The proxy; it ends with this value.
pub struct Proxy {
    pub address: SocketAddr,
    network: watch::Sender<Network>,
    /// Bytes towards the server until the next cut; negative: no cut.
    budget: Arc<AtomicI64>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and carries to `server` (`host:port`).
    pub async fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (network, mode) = watch::channel(Network::Up);
        let budget = Arc::new(AtomicI64::new(-1));
        let accepting = tokio::spawn(accept(listener, server.to_owned(), mode, Arc::clone(&budget)));
        Self { address, network, budget, accepting }
    }

    pub fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Cuts the connection that carries the `bytes`-th byte from now towards the server, in the middle of what it sends.
    pub fn cut_after(&self, bytes: u32) {
        self.budget.store(i64::from(bytes), Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Open connections belong to this task, so that they end with it.
async fn accept(listener: TcpListener, server: String, mode: watch::Receiver<Network>, budget: Arc<AtomicI64>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(near, server.clone(), mode.clone(), Arc::clone(&budget)));
    }
}

async fn carry(mut near: TcpStream, server: String, mut mode: watch::Receiver<Network>, budget: Arc<AtomicI64>) {
    loop {
        match *mode.borrow_and_update() {
            Network::Down => return,
            Network::Reset => return drop(near.set_zero_linger()),
            Network::Silent => {}
            Network::Up | Network::Slow(_) => break,
        }
        if mode.changed().await.is_err() {
            return;
        }
    }
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    drop((near.set_nodelay(true), far.set_nodelay(true)));
    let (near_read, near_write) = near.split();
    let (far_read, far_write) = far.split();
    tokio::select! {
        () = pump(near_read, far_write, mode.clone(), Some(&budget)) => {}
        () = pump(far_read, near_write, mode.clone(), None) => {}
    }
    if *mode.borrow() == Network::Reset {
        drop((near.set_zero_linger(), far.set_zero_linger()));
    }
}

/// Carries one direction until it ends or the network breaks.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut mode: watch::Receiver<Network>,
    budget: Option<&AtomicI64>,
) {
    let mut buffer = vec![0; 16 * 1024];
    let mut held = 0;
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Network::Down | Network::Reset => return,
            Network::Silent => {
                if mode.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Network::Up | Network::Slow(_) => {}
        }
        if held == 0 {
            tokio::select! {
                changed = mode.changed() => {
                    if changed.is_err() { return }
                    continue;
                }
                read = from.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(n) => held = n,
                },
            }
            // What was read while the network broke waits for it.
            continue;
        }
        if let Network::Slow(by) = now {
            tokio::time::sleep(by).await;
        }
        let (allowed, cut) = spend(budget, held);
        if to.write_all(&buffer[..allowed]).await.is_err() || cut {
            return;
        }
        held = 0;
    }
}

/// How many of `bytes` may pass, and whether the connection ends after them.
fn spend(budget: Option<&AtomicI64>, bytes: usize) -> (usize, bool) {
    let Some(budget) = budget else { return (bytes, false) };
    let wanted = i64::try_from(bytes).unwrap_or(i64::MAX);
    // Below zero there is no cut to come; the one who spends the last byte cuts, once.
    let before = budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
        ..0 => None,
        left if left <= wanted => Some(-1),
        left => Some(left - wanted),
    });
    match before {
        Ok(left) if left <= wanted => (usize::try_from(left).unwrap_or(bytes), true),
        _ => (bytes, false),
    }
}

#[tokio::test]
async fn the_proxy_breaks_as_told() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::before(&server.local_addr().unwrap().to_string()).await;
    let mut near = TcpStream::connect(proxy.address).await.unwrap();
    let (mut far, _) = server.accept().await.unwrap();
    let mut bytes = [0; 4];

    near.write_all(b"ping").await.unwrap();
    far.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");

    let delay = Duration::from_millis(80);
    proxy.set(Network::Slow(delay));
    let began = tokio::time::Instant::now();
    near.write_all(b"slow").await.unwrap();
    far.read_exact(&mut bytes).await.unwrap();
    assert!(tokio::time::Instant::now() - began >= delay, "nothing passes a slow network at once");

    proxy.set(Network::Silent);
    near.write_all(b"late").await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(200), far.read_exact(&mut bytes)).await;
    assert!(nothing.is_err(), "a byte came through a silent network");
    proxy.set(Network::Up);
    far.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"late", "what waited arrives when the network is back");

    proxy.cut_after(2);
    near.write_all(b"cut!").await.unwrap();
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"cu");

    let mut near = TcpStream::connect(proxy.address).await.unwrap();
    let (_far, _) = server.accept().await.unwrap();
    proxy.set(Network::Reset);
    let error = near.read(&mut bytes).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
