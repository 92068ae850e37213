//! A client for HTTP/1.1 over one connection, which can also send bytes that no client library would.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for an answer; every limit of the program under test is shorter.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// One answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The receipt's id, as the contract's C1 has it.
    pub fn receipt(&self) -> Option<&str> {
        self.header("makbuz-receipt")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// What was read past the last answer.
    ahead: Vec<u8>,
    host: String,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, ahead: Vec::new(), host: address.to_string() })
    }

    /// Sends a request with its Content-Length, and reads the answer.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut request = self.head(method, path, headers, body.len());
        request.extend_from_slice(body);
        self.send_raw(&request).await?;
        self.answer().await
    }

    /// The head of a request, with the blank line.
    pub fn head(&self, method: &str, path: &str, headers: &[(String, String)], body_bytes: usize) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {body_bytes}\r\n", self.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Sends these bytes and nothing else.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads the next answer.
    pub async fn answer(&mut self) -> io::Result<Answer> {
        timeout(ANSWER_MAX, self.read_answer())
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer"))?
    }

    async fn read_answer(&mut self) -> io::Result<Answer> {
        let head_bytes = loop {
            if let Some(at) = find(&self.ahead, b"\r\n\r\n") {
                break at + 4;
            }
            self.read_more().await?;
        };
        let head: Vec<u8> = self.ahead.drain(..head_bytes).collect();
        let (status, headers) = parse_head(&head)?;
        let mut answer = Answer { status, headers, body: Vec::new() };
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().map_err(|_| broken("content-length"))?;
            answer.body = self.take(length).await?;
        } else if answer.header("transfer-encoding").is_some() {
            answer.body = self.take_chunks().await?;
        } else if !matches!(status, 100..200 | 204 | 304) {
            while self.read_more().await.is_ok() {}
            answer.body = std::mem::take(&mut self.ahead);
        }
        Ok(answer)
    }

    async fn take_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line_bytes = loop {
                if let Some(at) = find(&self.ahead, b"\r\n") {
                    break at + 2;
                }
                self.read_more().await?;
            };
            let line: Vec<u8> = self.ahead.drain(..line_bytes).collect();
            let size = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(size.trim().split(';').next().unwrap_or_default(), 16)
                .map_err(|_| broken("chunk size"))?;
            body.extend(self.take(size).await?);
            self.take(2).await?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < bytes {
            self.read_more().await?;
        }
        Ok(self.ahead.drain(..bytes).collect())
    }

    async fn read_more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.ahead).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the answer was whole"));
        }
        Ok(())
    }
}

/// One request over a connection of its own.
pub async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<Answer> {
    Client::connect(address).await?.send(method, path, headers, body).await
}

fn parse_head(head: &[u8]) -> io::Result<(u16, Vec<(String, String)>)> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let headers =
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    Ok((status.ok_or_else(|| broken("status line"))?, headers.collect()))
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no {what} that can be read"))
}
