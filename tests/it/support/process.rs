//! The real program as a child process: configured in a folder of its own, on free ports, killed and stopped on command.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::client;
use super::eventually;

pub const BINARY: &str = env!("CARGO_BIN_EXE_makbuz");
/// Longest wait for a start; the design asks for less than 100 ms on an idle machine.
const START_MAX: Duration = Duration::from_secs(30);

/// A folder with a configuration, in which the program runs as often as the test likes.
pub struct Installation {
    folder: TempDir,
    variables: Vec<(String, String)>,
    starts: AtomicU32,
}

impl Installation {
    /// Writes `config` (TOML); `variables` are what its `env:` names say.
    pub fn new(config: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("makbuz-it-").tempdir().expect("a folder");
        std::fs::write(folder.path().join("makbuz.toml"), config).expect("the configuration is written");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { folder, variables, starts: AtomicU32::new(0) }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a subcommand to its end.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        self.command(&[]).args(arguments).output().await.expect("the program runs")
    }

    /// Brings the schema up to date; fails the test if that fails.
    pub async fn migrate(&self) {
        let output = self.run(&["migrate", "--config", "makbuz.toml"]).await;
        assert!(
            output.status.success(),
            "migrate: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Starts `serve` and waits until it listens.
    pub async fn start(&self) -> Gateway {
        self.start_under(&[]).await
    }

    /// The same below a wrapper such as `strace -f`.
    pub async fn start_under(&self, wrapper: &[&str]) -> Gateway {
        let log = self.folder.path().join(format!("log-{}", self.starts.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::create(&log).expect("a log file");
        let mut command = self.command(wrapper);
        command.args(["serve", "--config", "makbuz.toml"]);
        command.stdout(file.try_clone().expect("one more handle")).stderr(file);
        let child = command.spawn().expect("the program starts");
        let wrapped = !wrapper.is_empty();
        let mut gateway = Gateway { child, wrapped, log, edge: unknown_address(), admin: unknown_address() };
        gateway.wait_until_it_listens().await;
        gateway
    }

    fn command(&self, wrapper: &[&str]) -> Command {
        let mut words = wrapper.iter().copied().chain([BINARY]);
        let mut command = Command::new(words.next().unwrap_or(BINARY));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        command.env_clear().env("PATH", super::variable("PATH").unwrap_or_default());
        command.env("MAKBUZ_LOG__FORMAT", "json").envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A running `makbuz serve`; it is killed with this value.
pub struct Gateway {
    child: Child,
    /// The child is a wrapper, and the program its child.
    wrapped: bool,
    log: PathBuf,
    pub edge: SocketAddr,
    pub admin: SocketAddr,
}

impl Gateway {
    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.running_pid().expect("it runs")
    }

    /// Waits until `/readyz` says 200.
    pub async fn ready(&self) {
        let admin = self.admin;
        eventually("ready", START_MAX, async || {
            let answer = client::send(admin, "GET", "/readyz", &[], b"").await.ok()?;
            (answer.status == 200).then_some(())
        })
        .await;
    }

    /// SIGKILL, and waits for the end: nothing that the program would still do happens.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// SIGTERM; does not wait.
    pub fn terminate(&self) {
        assert!(signal(self.pid(), "TERM"), "SIGTERM was not sent");
    }

    /// Waits for the end.
    pub async fn exit(mut self, limit: Duration) -> ExitStatus {
        let status = tokio::time::timeout(limit, self.child.wait()).await;
        status.unwrap_or_else(|_| panic!("still there after {limit:?}")).expect("its status")
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn running_pid(&self) -> Option<u32> {
        let child = self.child.id()?;
        if !self.wrapped {
            return Some(child);
        }
        let children = std::fs::read_to_string(format!("/proc/{child}/task/{child}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    async fn wait_until_it_listens(&mut self) {
        let (child, log) = (&mut self.child, &self.log);
        let found = eventually("listening", START_MAX, async || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if let Some(status) = child.try_wait().expect("its status") {
                panic!("ended while it started, {status}:\n{text}");
            }
            addresses(&text)
        })
        .await;
        (self.edge, self.admin) = found;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The wrapper ends with its child, and not the other way round.
        if let Some(pid) = self.running_pid().filter(|_| self.wrapped) {
            signal(pid, "KILL");
        }
        if std::thread::panicking() {
            let text = self.log();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("--- {}\n{tail}\n", self.log.display()).as_bytes(),
            ));
        }
    }
}

/// Sends a signal by the shell, as the standard library sends none but SIGKILL.
fn signal(pid: u32, name: &str) -> bool {
    let status = std::process::Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    status.is_ok_and(|status| status.success())
}

fn unknown_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The listeners' addresses, from the `serving` line of a JSON log.
fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    for line in log.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let field = |name: &str| line.get(name).and_then(Value::as_str);
        if field("message") == Some("serving") {
            return Some((field("edge")?.parse().ok()?, field("admin")?.parse().ok()?));
        }
    }
    None
}

#[test]
fn addresses_are_found_in_the_log() {
    let log = "starting\n{\"message\":\"bound\",\"edge\":\"127.0.0.1:1\"}\n{\"level\":\"INFO\",\"message\":\"serving\",\"edge\":\"127.0.0.1:4001\",\"admin\":\"127.0.0.1:4002\"}";
    assert_eq!(
        addresses(log),
        Some((SocketAddr::from(([127, 0, 0, 1], 4001)), SocketAddr::from(([127, 0, 0, 1], 4002))))
    );
    assert_eq!(addresses("{\"message\":\"serving\",\"edge\":\"none\",\"admin\":\"127.0.0.1:1\"}"), None);
}
