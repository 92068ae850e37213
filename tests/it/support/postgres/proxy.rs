//! A TCP proxy between a store and its server that can misbehave: cut, delay, refuse, or keep silent while it stays open.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// What the proxy does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Hands them on.
    Pass,
    /// Hands them on after a while.
    Delay(Duration),
    /// Takes connections and bytes and hands nothing on, in either direction: a line that is dead and does not say so.
    Silent,
    /// Hands on what the client says, and keeps the answers: a COMMIT gets through, its reply does not.
    Deaf,
    /// Closes every connection at once.
    Refuse,
}

/// A listening proxy; it ends with the value.
pub struct Proxy {
    pub port: u16,
    behaviour: watch::Sender<Behaviour>,
    cuts: watch::Sender<u64>,
    accepting: AbortHandle,
}

impl Proxy {
    /// Listens on a free port of this machine for `host:port`.
    pub async fn to(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
        let listening = listener.local_addr().expect("an address").port();
        let (behaviour, told) = watch::channel(Behaviour::Pass);
        let (cuts, cut) = watch::channel(0);
        let target = Arc::new((host.to_owned(), port));
        let accepting = tokio::spawn(accept(listener, target, told, cut)).abort_handle();
        Self { port: listening, behaviour, cuts, accepting }
    }

    /// From now on, for open connections too.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    /// Closes every open connection; new ones are taken.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    target: Arc<(String, u16)>,
    told: watch::Receiver<Behaviour>,
    cut: watch::Receiver<u64>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *told.borrow() == Behaviour::Refuse {
            continue;
        }
        tokio::spawn(carry(client, target.clone(), told.clone(), cut.clone()));
    }
}

async fn carry(
    client: TcpStream,
    target: Arc<(String, u16)>,
    told: watch::Receiver<Behaviour>,
    mut cut: watch::Receiver<u64>,
) {
    cut.mark_unchanged();
    let Ok(server) = TcpStream::connect((target.0.as_str(), target.1)).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, told.clone(), false) => {}
        () = pump(from_server, to_client, told, true) => {}
        // An error means that the proxy is gone: that cuts too.
        _ = cut.changed() => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut told: watch::Receiver<Behaviour>, answers: bool) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if read == 0 {
            return;
        }
        let behaviour = *told.borrow_and_update();
        match behaviour {
            Behaviour::Pass => {}
            Behaviour::Delay(span) => sleep(span).await,
            Behaviour::Refuse => return,
            Behaviour::Deaf if !answers => {}
            // What was swallowed is gone for good: such a connection never recovers, as on a real dead line.
            Behaviour::Silent | Behaviour::Deaf => std::future::pending().await,
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
