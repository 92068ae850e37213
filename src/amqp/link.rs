//! One connection, made with time limits and watched until it is gone.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Event};
use secrecy::ExposeSecret;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{AmqpConfig, AmqpError};

/// How often a connection is asked whether it still stands; lapin does not tell of every end by an event.
const PULSE: Duration = Duration::from_millis(200);

/// A live connection. It never recovers: once [`Link::gone`] has returned, take the next one.
pub struct Link {
    connection: Connection,
    blocked: watch::Receiver<Option<String>>,
    gone: CancellationToken,
    why: std::sync::Arc<Mutex<String>>,
    operation_timeout: Duration,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("gone", &self.is_gone()).field("blocked", &self.blocked()).finish_non_exhaustive()
    }
}

/// Connects once. `purpose` is shown in the broker's list of connections.
pub async fn connect(config: &AmqpConfig, purpose: &str) -> Result<Link, AmqpError> {
    let mut uri: AMQPUri = config.url.expose_secret().parse().map_err(|_| AmqpError::Url)?;
    uri.query.heartbeat = Some(u16::try_from(config.heartbeat.as_secs()).unwrap_or(u16::MAX));
    uri.query.connection_timeout = Some(u64::try_from(config.connect_timeout.as_millis()).unwrap_or(u64::MAX));
    let properties =
        ConnectionProperties::default().with_connection_name(format!("{} {purpose}", config.prefix).into());
    let connection = timeout(config.connect_timeout, Connection::connect_uri(uri, properties))
        .await
        .map_err(|_| AmqpError::Timeout("connect"))?
        .map_err(|error| AmqpError::Connect(error.to_string()))?;
    Ok(Link::watch(connection, config.operation_timeout))
}

impl Link {
    fn watch(connection: Connection, operation_timeout: Duration) -> Self {
        let (blocked_sender, blocked) = watch::channel(None);
        let gone = CancellationToken::new();
        let why = std::sync::Arc::new(Mutex::new(String::new()));
        let watcher = Watcher {
            status: connection.status().clone(),
            blocked: blocked_sender,
            gone: gone.clone(),
            why: std::sync::Arc::clone(&why),
        };
        tokio::spawn(watcher.run(connection.events_listener()));
        Self { connection, blocked, gone, why, operation_timeout }
    }

    /// A new channel; on it nothing is confirmed yet.
    pub async fn channel(&self) -> Result<Channel, AmqpError> {
        self.answer("channel.open", self.connection.create_channel()).await
    }

    /// Waits for one answer of the broker, within the limit; past it the connection is given up.
    pub async fn answer<T>(
        &self,
        what: &'static str,
        asked: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, AmqpError> {
        match timeout(self.operation_timeout, asked).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                self.condemn(what);
                Err(AmqpError::Timeout(what))
            }
        }
    }

    /// Why the broker takes no publishes now, if it does not.
    pub fn blocked(&self) -> Option<String> {
        let told = self.blocked.borrow().clone();
        if told.is_none() && self.connection.status().blocked() { Some("alarm".to_owned()) } else { told }
    }

    /// Changes when the broker blocks or unblocks the connection.
    pub fn blocked_changes(&self) -> watch::Receiver<Option<String>> {
        self.blocked.clone()
    }

    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled() || !self.connection.status().connected()
    }

    /// Returns once the connection is lost or condemned.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Why it is gone.
    pub fn why(&self) -> String {
        lock(&self.why).clone()
    }

    /// Gives the connection up: whoever holds it lets go, and a new one is made.
    pub fn condemn(&self, why: &str) {
        note(&self.why, why);
        self.gone.cancel();
    }

    /// Says goodbye to the broker, within the limit.
    pub async fn close(&self) {
        let _ = timeout(self.operation_timeout, self.connection.close(200, "OK".into())).await;
        self.condemn("closed");
    }
}

struct Watcher {
    status: lapin::ConnectionStatus,
    blocked: watch::Sender<Option<String>>,
    gone: CancellationToken,
    why: std::sync::Arc<Mutex<String>>,
}

impl Watcher {
    async fn run(self, events: impl futures_util::Stream<Item = Event>) {
        let mut events = std::pin::pin!(events);
        let mut pulse = interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.gone.cancelled() => return,
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(why)) => drop(self.blocked.send_replace(Some(why))),
                    Some(Event::ConnectionUnblocked) => drop(self.blocked.send_replace(None)),
                    Some(Event::Error(error)) if !self.status.connected() => return self.end(&error.to_string()),
                    Some(_) => {}
                    None => return self.end("closed"),
                },
                _ = pulse.tick() => if !self.status.connected() {
                    return self.end("the connection was closed");
                },
            }
        }
    }

    fn end(&self, why: &str) {
        note(&self.why, why);
        self.gone.cancel();
    }
}

/// Keeps the first reason: it is the one that ended the connection.
fn note(why: &Mutex<String>, text: &str) {
    let mut why = lock(why);
    if why.is_empty() {
        text.clone_into(&mut why);
    }
}

fn lock(why: &Mutex<String>) -> std::sync::MutexGuard<'_, String> {
    // Unwrap safety: nothing panics while it holds this lock.
    why.lock().expect("not poisoned")
}
