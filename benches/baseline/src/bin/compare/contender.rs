//! Who is measured: how each is started with a fresh database and a queue of its own, and cleared away.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

pub const SECRET: &str = "whsec_bench_0123456789";
const PREFIX: &str = "bench";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Baseline,
    Gateway,
    /// The baseline without its store: what this machine's load, HTTP and broker leave for one.
    Bare,
}

/// With the broker, or the intake alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Full,
    Intake,
}

/// Where everything is.
pub struct Services {
    gateway: String,
    baseline: String,
    database_url: String,
    amqp_url: String,
}

/// One started contender.
pub struct Running {
    child: Child,
    /// Its configuration; goes with it.
    _folder: TempDir,
    pub address: SocketAddr,
    /// From spawn to the first 200 of `/readyz`.
    pub cold_start: Duration,
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Gateway => "makbuz",
            Self::Bare => "no store",
        }
    }

    fn database(self) -> String {
        format!("makbuz_bench_{}", self.name().replace(' ', "_"))
    }

    /// The queue in which its messages end.
    pub fn queue(self) -> String {
        match self {
            Self::Baseline | Self::Bare => format!("{PREFIX}.baseline"),
            Self::Gateway => format!("{PREFIX}.all"),
        }
    }
}

impl Mode {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "full" => Some(Self::Full),
            "intake" => Some(Self::Intake),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Intake => "intake",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Full => "Everything on (PostgreSQL, RabbitMQ)",
            Self::Intake => "Intake alone (PostgreSQL)",
        }
    }
}

impl Services {
    pub fn from_variables() -> Result<Self> {
        let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
        Ok(Self {
            gateway: variable("MAKBUZ")?,
            baseline: variable("BASELINE")?,
            database_url: variable("DATABASE_URL")?,
            amqp_url: variable("AMQP_URL")?,
        })
    }

    /// Starts a contender on a fresh database and an empty queue.
    pub async fn start(&self, contender: Contender, mode: Mode) -> Result<Running> {
        self.clear(contender).await?;
        let database = self.fresh_database(contender).await?;
        let folder = tempfile::tempdir()?;
        let address = free_address().await?;
        let mut command = match contender {
            Contender::Baseline | Contender::Bare => {
                let database = if contender == Contender::Bare { "" } else { &database };
                let mut command = Command::new(&self.baseline);
                command.env("LISTEN", address.to_string()).env("DATABASE_URL", database).env("SECRET", SECRET);
                command
                    .env("AMQP_URL", if mode == Mode::Full { &self.amqp_url } else { "" })
                    .env("QUEUE", contender.queue());
                command
            }
            Contender::Gateway => self.gateway_command(&folder, address, &database, mode).await?,
        };
        let ready = match contender {
            Contender::Baseline | Contender::Bare => address,
            Contender::Gateway => admin_address(address),
        };
        command.current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        let began = Instant::now();
        let child = command.spawn()?;
        wait_until_ready(ready).await.with_context(|| format!("{} does not start", contender.name()))?;
        Ok(Running { child, _folder: folder, address, cold_start: began.elapsed() })
    }

    async fn gateway_command(
        &self,
        folder: &TempDir,
        address: SocketAddr,
        database: &str,
        mode: Mode,
    ) -> Result<Command> {
        let (amqp, target) = match mode {
            Mode::Full => (format!("[amqp]\nurl = \"env:BENCH_AMQP_URL\"\nprefix = \"{PREFIX}\"\n"), "amqp"),
            Mode::Intake => (String::new(), "pull"),
        };
        let admin = admin_address(address);
        let config = format!(
            "[edge]\nlisten = \"{address}\"\n[admin]\nlisten = \"{admin}\"\n[store]\nurl = \"env:BENCH_STORE_URL\"\n{amqp}\
             [[source]]\nname = \"pay\"\nprovider = \"stripe\"\nsecrets = [\"env:BENCH_SECRET\"]\n\
             [[subscription]]\nname = \"all\"\ntarget = \"{target}\"\n"
        );
        std::fs::write(folder.path().join("makbuz.toml"), config)?;
        let command = |subcommand: &str| {
            let mut command = Command::new(&self.gateway);
            command.args([subcommand, "--config", "makbuz.toml"]).current_dir(folder.path());
            command.env("BENCH_STORE_URL", database).env("BENCH_AMQP_URL", &self.amqp_url).env("BENCH_SECRET", SECRET);
            command.env("MAKBUZ_LOG__LEVEL", "warn");
            command
        };
        ensure!(command("migrate").stdout(Stdio::null()).status().await?.success(), "makbuz migrate failed");
        Ok(command("serve"))
    }

    async fn fresh_database(&self, contender: Contender) -> Result<String> {
        let name = contender.database();
        let mut connection = PgConnection::connect(&self.database_url).await?;
        for statement in [format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("CREATE DATABASE {name}")] {
            sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await?;
        }
        // The one before left its pages to be written; that is not this one's work.
        sqlx::query("CHECKPOINT").execute(&mut connection).await.ok();
        let (head, tail) = self.database_url.rsplit_once('/').context("DATABASE_URL has no database")?;
        let options = tail.split_once('?').map(|(_, options)| format!("?{options}")).unwrap_or_default();
        Ok(format!("{head}/{name}{options}"))
    }

    /// How many messages wait in the contender's queue.
    pub async fn queue_depth(&self, contender: Contender) -> Result<u64> {
        let connection = Connection::connect(&self.amqp_url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(contender.queue().into(), options, FieldTable::default()).await?;
        let depth = queue.message_count();
        connection.close(200, "done".into()).await?;
        Ok(u64::from(depth))
    }

    /// Takes away the database and all broker names of a contender.
    pub async fn clear(&self, contender: Contender) -> Result<()> {
        let mut connection = PgConnection::connect(&self.database_url).await?;
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", contender.database());
        sqlx::query(AssertSqlSafe(drop)).execute(&mut connection).await?;
        let connection = Connection::connect(&self.amqp_url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        for queue in ["baseline", "all", "all.slow", "unrouted", "dead", "outcomes"] {
            channel.queue_delete(format!("{PREFIX}.{queue}").into(), QueueDeleteOptions::default()).await?;
        }
        for exchange in ["jobs", "events", "unrouted", "dead", "outcomes"] {
            channel.exchange_delete(format!("{PREFIX}.{exchange}").into(), ExchangeDeleteOptions::default()).await?;
        }
        connection.close(200, "done".into()).await?;
        Ok(())
    }
}

impl Running {
    pub fn pid(&self) -> Result<u32> {
        self.child.id().context("it ended")
    }

    pub async fn stop(mut self) -> Result<()> {
        let pid = self.pid()?;
        Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().await?;
        let status =
            tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await.context("it does not stop")??;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

fn admin_address(edge: SocketAddr) -> SocketAddr {
    SocketAddr::new(edge.ip(), edge.port() + 1)
}

/// Two free ports in a row; nobody else on this machine takes ports while the bench runs.
async fn free_address() -> Result<SocketAddr> {
    loop {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        if address.port() < u16::MAX && tokio::net::TcpListener::bind(admin_address(address)).await.is_ok() {
            return Ok(address);
        }
    }
}

async fn wait_until_ready(address: SocketAddr) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if ready(address).await.unwrap_or(false) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not ready within 30 s");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn ready(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}
