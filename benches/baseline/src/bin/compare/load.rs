//! The load: connections that each send a fresh signed event as soon as the last was answered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Plan;
use super::contender::SECRET;

/// What the senders saw.
pub struct Outcome {
    pub accepted: u64,
    pub span: Duration,
    /// Microseconds of each accepted request, sorted.
    pub latencies: Vec<u64>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Sends for `span`; an answer other than 200 ends the bench.
pub async fn run(address: SocketAddr, plan: Plan, span: Duration) -> Result<Outcome> {
    let filler: Arc<str> = "x".repeat(plan.body_bytes.saturating_sub(150)).into();
    let began = Instant::now();
    let until = began + span;
    let mut senders = JoinSet::new();
    for _ in 0..plan.connections {
        senders.spawn(send_until(address, Arc::clone(&filler), until));
    }
    let mut latencies = Vec::new();
    while let Some(sender) = senders.join_next().await {
        latencies.extend(sender??);
    }
    let span = began.elapsed();
    latencies.sort_unstable();
    Ok(Outcome { accepted: latencies.len() as u64, span, latencies })
}

async fn send_until(address: SocketAddr, filler: Arc<str>, until: Instant) -> Result<Vec<u64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut latencies = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    while Instant::now() < until {
        let request = request(&filler);
        let began = Instant::now();
        stream.write_all(&request).await?;
        let status = read_answer(&mut stream, &mut buffer).await?;
        if status != 200 {
            bail!("answered {status}");
        }
        latencies.push(u64::try_from(began.elapsed().as_micros())?);
    }
    Ok(latencies)
}

fn request(filler: &str) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let body = format!(
        r#"{{"id":"evt_{}_{id}","object":"event","type":"invoice.paid","created":{now},"livemode":false,"data":{{"object":{{"id":"in_{id}","note":"{filler}"}}}}}}"#,
        std::process::id()
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("any key");
    mac.update(format!("{now}.").as_bytes());
    mac.update(body.as_bytes());
    let signature = hex::encode(mac.finalize().into_bytes());
    let length = body.len();
    format!(
        "POST /in/pay HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nStripe-Signature: t={now},v1={signature}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Reads one answer whole and returns its status.
async fn read_answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<u16> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        let length: usize =
            head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
        while buffer.len() < end + 4 + length {
            if stream.read_buf(buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        return head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| io::ErrorKind::InvalidData.into());
    }
}
