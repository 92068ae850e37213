//! What `make run-full` starts, as a newcomer sees it.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::super::support::broker::Broker;
use super::super::support::database::Database;
use super::super::support::process::BINARY;

/// Longest wait for the whole of it.
const LONG: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_full_example_sends_an_event_and_shows_its_message() {
    let Some(database) = Database::create().await else { return };
    let Some(mut broker) = Broker::find(&["inbox"]) else { return };
    // One name for both, so that both go with the test.
    broker.prefix = database.name.replace('_', "-");
    let folder = tempfile::Builder::new().prefix("makbuz-it-").tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/full.sh");
    let programs = Path::new(BINARY).parent().expect("the folder of the programs");
    let mut command = Command::new("bash");
    command.arg(script).arg(programs).current_dir(folder.path());
    command.env("DATABASE_URL", &database.url).env("AMQP_URL", &broker.url).env("NAME", &broker.prefix);
    command.env("EDGE_PORT", free_port()).env("ADMIN_PORT", free_port());
    let mut example =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("bash runs");
    let mut lines = BufReader::new(example.stdout.take().expect("piped")).lines();
    let mut shown = Vec::new();
    let until_it_serves = async {
        while let Some(line) = lines.next_line().await.expect("its output") {
            let serves = line.starts_with("== serving");
            shown.push(line);
            if serves {
                return true;
            }
        }
        false
    };
    let serves = timeout(LONG, until_it_serves).await;
    let shown = shown.join("\n");
    assert_eq!(serves, Ok(true), "{shown}");
    assert!(shown.contains("answers   200 × 1"), "{shown}");
    assert!(shown.contains("makbuz-source  dev") && shown.contains("makbuz-attempt  1"), "{shown}");
    assert!(shown.contains(r#"{"type":"contact.created""#), "the body: {shown}");
    let stop = format!("kill -TERM {}", example.id().expect("it runs"));
    assert!(Command::new("sh").args(["-c", &stop]).status().await.is_ok_and(|status| status.success()));
    timeout(LONG, example.wait()).await.expect("it stops").expect("its status");
}

/// Free a moment ago; the example takes it at once.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port().to_string()
}
