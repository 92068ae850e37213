//! The providers' official SDKs as oracles: they sign, our program verifies. See tests/peers/.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// What is to be signed.
#[derive(Debug, Clone)]
pub struct Order {
    /// A signer's name in sign.py or sign.mjs.
    pub signer: &'static str,
    pub secret: String,
    /// Seconds since 1970.
    pub time: i64,
    /// The address that the provider was told.
    pub url: String,
    /// The event's id, where a header carries it.
    pub id: String,
    pub body: Vec<u8>,
}

/// A request as its provider would send it.
#[derive(Debug, Clone)]
pub struct Signed {
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Both SDK processes.
pub struct Peers {
    python: Signer,
    node: Signer,
}

struct Signer {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
struct Line {
    url: String,
    headers: Vec<(String, String)>,
    body_base64: String,
}

impl Peers {
    /// Installs the pinned SDKs beside the build, once, and starts the signers; `None`, said by `skip`, where that fails.
    pub async fn start() -> Option<Self> {
        let folder = installed_in();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/install.sh");
        let output =
            Command::new("bash").arg(script).arg(&folder).stdin(Stdio::null()).output().await.expect("bash runs");
        if !output.status.success() {
            super::skip(&format!("the SDKs cannot be installed: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return None;
        }
        let python = Signer::start(&folder.join("venv/bin/python"), &folder.join("sign.py"));
        Some(Self { python, node: Signer::start(Path::new("node"), &folder.join("sign.mjs")) })
    }

    /// Has an order signed by the official SDK.
    pub async fn sign(&mut self, order: &Order) -> Signed {
        let signer = if order.signer == "github" { &mut self.node } else { &mut self.python };
        signer.sign(order).await
    }
}

impl Signer {
    fn start(program: &Path, script: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the SDK's interpreter starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { _child: child, input, output }
    }

    async fn sign(&mut self, order: &Order) -> Signed {
        let body = STANDARD.encode(&order.body);
        let line = json!({
            "provider": order.signer, "secret": order.secret, "time": order.time,
            "url": order.url, "id": order.id, "body_base64": body,
        });
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("the signer reads");
        self.input.flush().await.expect("the signer reads");
        let answer = self.output.next_line().await.expect("the signer writes").expect("one line for each order");
        let line: Line = serde_json::from_str(&answer).expect("the signer's line");
        let after_scheme = line.url.split_once("://").map_or(line.url.as_str(), |(_, rest)| rest);
        let target = after_scheme.find('/').map_or("/", |at| &after_scheme[at..]).to_owned();
        Signed { target, headers: line.headers, body: STANDARD.decode(line.body_base64).expect("base64") }
    }
}

/// Beside the target folder's profile folders, so that it outlives rebuilds.
fn installed_in() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap_or(temporary).join("peers")
}
