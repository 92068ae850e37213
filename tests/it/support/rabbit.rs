//! A part of the broker for each test alone: a vhost of its own where `rabbitmqctl` may be used, else a prefix of its own
//! in the vhost of `AMQP_URL`; and what a test does there as a consumer, an operator or a saboteur.

use std::collections::HashMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeleteOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use secrecy::SecretString;
use tokio::time::{Instant, timeout, timeout_at};

use makbuz::amqp::{AmqpConfig, Names};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A corner of the broker; what was made there goes with this value.
pub struct Rabbit {
    /// Address with the vhost.
    pub url: String,
    pub prefix: String,
    /// The test's own vhost; without one it has only its prefix.
    vhost: Option<String>,
    users: std::sync::Mutex<Vec<String>>,
}

impl Rabbit {
    /// A corner of its own in the broker of `AMQP_URL`, or of the standard local port.
    pub async fn new() -> Self {
        let n = MADE.fetch_add(1, Ordering::Relaxed);
        let own = format!("makbuz-it-{}-{n}", std::process::id());
        let base = base_url();
        let made = tokio::task::spawn_blocking({
            let (own, user) = (own.clone(), user_of(&base));
            move || {
                control(&["add_vhost", &own]).status.success()
                    && control(&["set_permissions", "-p", &own, &user, ".*", ".*", ".*"]).status.success()
            }
        });
        let users = std::sync::Mutex::default();
        if made.await.expect("the tool was called") {
            Self { url: with_vhost(&base, &own), prefix: "makbuz".to_owned(), vhost: Some(own), users }
        } else {
            Self { url: base, prefix: own, vhost: None, users }
        }
    }

    /// As [`Self::new`], for tests that need a vhost of their own (policies, users, closing connections); `None`,
    /// said by `skip`, where `rabbitmqctl` may not be used.
    pub async fn with_vhost() -> Option<Self> {
        let rabbit = Self::new().await;
        if rabbit.vhost.is_none() {
            super::skip("rabbitmqctl may not be used here");
            return None;
        }
        Some(rabbit)
    }

    pub fn config(&self) -> AmqpConfig {
        let mut config = AmqpConfig::new(SecretString::from(self.url.clone()));
        config.prefix.clone_from(&self.prefix);
        config.reconnect_min = Duration::from_millis(50);
        config.reconnect_max = Duration::from_millis(200);
        config
    }

    pub fn names(&self) -> Names {
        Names::new(&self.prefix)
    }

    /// `host:port`, to put a proxy before it.
    pub fn address(&self) -> String {
        let (_, rest) = self.url.rsplit_once('@').expect("credentials stand in the address");
        let authority = rest.split('/').next().unwrap_or(rest);
        if authority.contains(':') { authority.to_owned() } else { format!("{authority}:5672") }
    }

    /// The same corner through another address.
    pub fn url_at(&self, address: &str) -> String {
        let (head, rest) = self.url.rsplit_once('@').expect("credentials stand in the address");
        let path = rest.find('/').map_or("", |at| &rest[at..]);
        format!("{head}@{address}{path}")
    }

    /// The same corner as another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        let (_, rest) = self.url.rsplit_once('@').expect("credentials stand in the address");
        format!("amqp://{user}:{password}@{rest}")
    }

    /// `rabbitmqctl COMMAND -p VHOST ARGUMENTS`, which must succeed.
    pub async fn control(&self, command: &str, arguments: &[&str]) -> String {
        let vhost = self.vhost.clone().expect("the test has a vhost");
        let all: Vec<String> = [command, "-p", &vhost].iter().chain(arguments).map(|part| (*part).to_owned()).collect();
        control_node(&all.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Makes a user that may do just this in the corner, and is removed with it.
    pub async fn add_user(&self, configure: &str, write: &str, read: &str) -> (String, String) {
        let name = self.add_user_with("secret", configure, write, read).await;
        (name, "secret".to_owned())
    }

    /// The same with a password of the test's own; returns the name.
    pub async fn add_user_with(&self, password: &str, configure: &str, write: &str, read: &str) -> String {
        let name =
            format!("{}-u{}", self.vhost.clone().expect("the test has a vhost"), MADE.fetch_add(1, Ordering::Relaxed));
        control_node(&["add_user", &name, password]).await;
        self.users.lock().expect("not poisoned").push(name.clone());
        self.control("set_permissions", &[&name, configure, write, read]).await;
        name
    }

    /// A connection and a channel of the test's own.
    pub async fn channel(&self) -> (Connection, Channel) {
        let connection =
            Connection::connect(&self.url, ConnectionProperties::default()).await.expect("the broker answers");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// A consumer of a queue that acks all it gets.
    pub async fn consume(&self, queue: &str) -> Taker {
        let (connection, channel) = self.channel().await;
        channel.basic_qos(500, BasicQosOptions::default()).await.expect("a prefetch");
        let consumer = channel
            .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .expect("the queue is there");
        Taker { _connection: connection, consumer, taken: HashMap::new() }
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        for user in self.users.lock().expect("not poisoned").drain(..) {
            drop(control(&["delete_user", &user]));
        }
        if let Some(vhost) = &self.vhost {
            drop(control(&["delete_vhost", vhost]));
            return;
        }
        let (url, prefix) = (self.url.clone(), self.prefix.clone());
        let cleared = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on(delete_all(&url, &prefix)).map_err(std::io::Error::other)
        });
        drop(cleared.join());
    }
}

/// Takes messages off a queue and counts them.
pub struct Taker {
    _connection: Connection,
    consumer: lapin::Consumer,
    /// How often each (message id, attempt) came.
    pub taken: HashMap<(String, i64), u32>,
}

impl Taker {
    /// The next message, acked; panics after `limit`.
    pub async fn next(&mut self, limit: Duration) -> Delivery {
        let next = timeout(limit, self.consumer.next()).await.unwrap_or_else(|_| panic!("no message within {limit:?}"));
        self.note(next).await
    }

    /// Takes until `distinct` different messages have come, and then whatever comes within `quiet`.
    pub async fn until(&mut self, distinct: usize, limit: Duration, quiet: Duration) {
        let until = Instant::now() + limit;
        while self.taken.len() < distinct {
            let next = timeout_at(until, self.consumer.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{} of {distinct} messages within {limit:?}", self.taken.len()));
            self.note(next).await;
        }
        self.quiet(quiet).await;
    }

    /// Takes whatever comes until nothing does for `quiet`.
    pub async fn quiet(&mut self, quiet: Duration) {
        while let Ok(next) = timeout(quiet, self.consumer.next()).await {
            self.note(next).await;
        }
    }

    async fn note(&mut self, next: Option<lapin::Result<Delivery>>) -> Delivery {
        let delivery = next.expect("the consumer goes on").expect("a delivery");
        delivery.ack(BasicAckOptions::default()).await.expect("an ack");
        let id = delivery.properties.message_id().as_ref().expect("a message id").to_string();
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let attempt = match headers.inner().get("makbuz-attempt") {
            Some(lapin::types::AMQPValue::LongInt(n)) => i64::from(*n),
            other => panic!("no attempt: {other:?}"),
        };
        *self.taken.entry((id, attempt)).or_default() += 1;
        delivery
    }
}

/// `rabbitmqctl` for the whole node; must succeed.
pub async fn control_node(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|part| (*part).to_owned()).collect();
    let output =
        tokio::task::spawn_blocking(move || control(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let output = output.await.expect("the tool was called");
    assert!(output.status.success(), "rabbitmqctl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `rabbitmqctl`; a tool that is not there counts as one that fails.
pub fn control(arguments: &[&str]) -> Output {
    use std::os::unix::process::ExitStatusExt;
    let absent = |_| Output { status: std::process::ExitStatus::from_raw(256), stdout: Vec::new(), stderr: Vec::new() };
    Command::new("rabbitmqctl").arg("-q").args(arguments).output().unwrap_or_else(absent)
}

#[expect(clippy::disallowed_methods, reason = "tests have no config; this is where they learn of the broker")]
fn base_url() -> String {
    let given = std::env::var("AMQP_URL").ok().filter(|url| !url.is_empty());
    let url = given.unwrap_or_else(|| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
    // What follows cuts it up by its credentials.
    if url.contains('@') { url } else { url.replacen("://", "://guest:guest@", 1) }
}

fn user_of(url: &str) -> String {
    let credentials =
        url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map_or("guest", |(head, _)| head);
    credentials.split(':').next().unwrap_or("guest").to_owned()
}

fn with_vhost(url: &str, vhost: &str) -> String {
    let (head, rest) = url.rsplit_once('@').expect("credentials stand in the address");
    let authority = rest.split('/').next().unwrap_or(rest);
    format!("{head}@{authority}/{vhost}")
}

async fn delete_all(url: &str, prefix: &str) -> Result<(), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    for queue in ["unrouted", "dead", "outcomes", "billing", "billing.slow", "mail", "mail.slow"] {
        channel.queue_delete(format!("{prefix}.{queue}").into(), QueueDeleteOptions::default()).await?;
    }
    for exchange in ["jobs", "events", "unrouted", "dead", "outcomes"] {
        channel.exchange_delete(format!("{prefix}.{exchange}").into(), ExchangeDeleteOptions::default()).await?;
    }
    connection.close(200, "done".into()).await
}
