//! A connection's bytes, with the time limits that hyper does not have: until the first byte, and from the first byte of
//! a head to its end. hyper's own header limit runs from the moment it waits for a head; here it bounds idle keep-alive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What the bytes and the service of one connection tell each other.
#[derive(Debug)]
pub(super) struct Watch {
    accepted_at: Instant,
    /// A request is with the service.
    busy: AtomicBool,
    /// When the first byte of the present head came, in microseconds after `accepted_at`, plus one; 0 for unknown.
    first_byte: AtomicU64,
    /// Requests so far.
    requests: AtomicU64,
}

impl Watch {
    pub fn new() -> Self {
        Self {
            accepted_at: Instant::now(),
            busy: AtomicBool::new(false),
            first_byte: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// A head is complete: returns when its first byte came, and how many requests there were with this one.
    pub fn begin(&self) -> (Instant, u64) {
        self.busy.store(true, Ordering::Relaxed);
        let first_byte = match self.first_byte.swap(0, Ordering::Relaxed) {
            0 => Instant::now(),
            micros => self.accepted_at + Duration::from_micros(micros - 1),
        };
        (first_byte, self.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The service has its answer.
    pub fn end(&self) {
        self.busy.store(false, Ordering::Relaxed);
    }

    fn note_first_byte(&self) {
        let micros = u64::try_from((Instant::now() - self.accepted_at).as_micros()).unwrap_or(u64::MAX - 1);
        self.first_byte.store(micros + 1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has come on this connection.
    Silent,
    /// A head has begun.
    Head,
    /// A request is with the service; its body has its own limit.
    Request,
    /// Between requests; hyper's limit runs.
    Idle,
}

/// A stream under watch.
pub(super) struct Wire<S> {
    stream: S,
    watch: Arc<Watch>,
    phase: Phase,
    /// Requests that the watch had counted at the last look.
    requests: u64,
    deadline: Instant,
    limits: WireLimits,
    /// Made only when a read has to wait under a limit.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Made only when the other end does not take our answer.
    write_alarm: Option<Pin<Box<Sleep>>>,
}

/// The time limits that the bytes themselves show.
#[derive(Debug, Clone, Copy)]
pub(super) struct WireLimits {
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a head to its last.
    pub header: Duration,
    /// For the other end to take more of an answer.
    pub write: Duration,
}

impl<S> Wire<S> {
    pub fn new(stream: S, watch: Arc<Watch>, limits: WireLimits) -> Self {
        let deadline = watch.accepted_at + limits.first_byte;
        Self { stream, watch, phase: Phase::Silent, requests: 0, deadline, limits, alarm: None, write_alarm: None }
    }

    /// The stream itself, for its last moments.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Learns from the watch whether a head that came has become a request, and whether that has its answer.
    fn look(&mut self) {
        let requests = self.watch.requests.load(Ordering::Relaxed);
        if requests != self.requests {
            self.requests = requests;
            self.phase = Phase::Request;
            self.alarm = None;
        }
        if self.phase == Phase::Request && !self.watch.busy.load(Ordering::Relaxed) {
            self.phase = Phase::Idle;
        }
    }

    fn arrived(&mut self) {
        if matches!(self.phase, Phase::Silent | Phase::Idle) {
            self.phase = Phase::Head;
            self.deadline = Instant::now() + self.limits.header;
            self.alarm = None;
            self.watch.note_first_byte();
        }
    }

    fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !matches!(self.phase, Phase::Silent | Phase::Head) {
            return Poll::Pending;
        }
        let deadline = self.deadline;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        std::task::ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S> Wire<S> {
    /// Lets a write wait no longer than its limit.
    fn limit_write(&mut self, wrote: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if wrote.is_ready() {
            self.write_alarm = None;
            return wrote;
        }
        let limit = self.limits.write;
        let alarm = self.write_alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        std::task::ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.look();
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(result) => {
                if buf.filled().len() > before {
                    self.arrived();
                }
                Poll::Ready(result)
            }
            Poll::Pending => self.poll_limit(cx),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit_write(wrote, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limit_write(wrote, cx)
    }
}
