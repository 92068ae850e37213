//! Reading a body whole: bytes are counted as they come, whatever `Content-Length` says, and each KiB that is held is
//! taken from the budget of all bodies that are not yet committed.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::BoxError;
use tower_http::timeout::TimeoutError;

use super::shares::{Part, Shares};

/// One unit of the budget.
const UNIT_BYTES: usize = 1024;
/// What a declared length may reserve before any byte has come.
const FIRST_BYTES_MAX: usize = 64 * 1024;

/// Why a body was not read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyError {
    /// More than the source takes.
    TooLarge,
    /// All bodies together are too much: our load, not the sender's fault.
    Budget,
    /// The bodies of this one client are more than it may have of the budget.
    ClientShare,
    /// Not whole in time.
    Timeout,
    /// Broken framing, or the sender left.
    Broken,
}

/// A body read whole, and its share of the budget.
pub(super) struct Held {
    pub bytes: Bytes,
    pub share: Share,
}

/// A share of the budget; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    #[expect(dead_code, reason = "held until it is dropped")]
    of_all: Option<OwnedSemaphorePermit>,
    #[expect(dead_code, reason = "held until it is dropped")]
    of_client: Part,
}

/// The bytes of bodies that the process may hold before their commit, and how many of them one client may.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    all: Arc<Semaphore>,
    clients: Arc<Shares>,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT_BYTES;
        Self { all: Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS))), clients: Arc::default() }
    }

    /// For one body of `client`, whose bodies may have `bytes_max` at once.
    pub fn of(&self, client: IpAddr, bytes_max: usize) -> Purse {
        Purse { all: Arc::clone(&self.all), client: self.clients.of(client, bytes_max / UNIT_BYTES) }
    }

    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.all.available_permits() * UNIT_BYTES
    }
}

/// What one body is paid from.
#[derive(Debug)]
pub(super) struct Purse {
    all: Arc<Semaphore>,
    client: Part,
}

impl Purse {
    fn take(&mut self, units: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        // First: one that has had its share is to be told so, and not that all is gone.
        if !self.client.grow(units) {
            return Err(BodyError::ClientShare);
        }
        let units = u32::try_from(units).map_err(|_| BodyError::Budget)?;
        Arc::clone(&self.all).try_acquire_many_owned(units).map_err(|_| BodyError::Budget)
    }
}

/// The declared length, for an early refusal only.
pub(super) fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads `body` to its end, at most `max` bytes.
pub(super) async fn read<B>(body: B, declared: Option<u64>, max: usize, purse: Purse) -> Result<Held, BodyError>
where
    B: Body<Data: Buf>,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    let mut filled = Filling { bytes: Vec::new(), share: None, purse };
    let expected = declared.and_then(|declared| usize::try_from(declared).ok()).unwrap_or(0).min(max);
    filled.reserve(expected.min(FIRST_BYTES_MAX), expected)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| cause(error.into()))?;
        let Ok(mut data) = frame.into_data() else { continue };
        let needed = filled.bytes.len() + data.remaining();
        if needed > max {
            return Err(BodyError::TooLarge);
        }
        filled.reserve(needed, expected)?;
        while data.has_remaining() {
            let chunk = data.chunk();
            filled.bytes.extend_from_slice(chunk);
            let read = chunk.len();
            data.advance(read);
        }
    }
    Ok(Held { bytes: Bytes::from(filled.bytes), share: Share { of_all: filled.share, of_client: filled.purse.client } })
}

/// A body that grows, and its share of the budget that grows ahead of it.
struct Filling {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
    purse: Purse,
}

impl Filling {
    /// Makes room for `needed` bytes. Grows by doubling, but straight to the declared length once half of it is there.
    fn reserve(&mut self, needed: usize, expected: usize) -> Result<(), BodyError> {
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        let doubled = needed.max(self.bytes.capacity() * 2);
        let goal = if expected >= needed && expected <= doubled { expected } else { doubled };
        let units = goal.div_ceil(UNIT_BYTES) - self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = self.purse.take(units)?;
        match &mut self.share {
            Some(share) => share.merge(more),
            none => *none = Some(more),
        }
        self.bytes.reserve_exact(goal - self.bytes.len());
        Ok(())
    }
}

fn cause(error: BoxError) -> BodyError {
    if error.is::<TimeoutError>() { BodyError::Timeout } else { BodyError::Broken }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn chunked(
        chunk: usize,
        total: usize,
    ) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
        let frames = (0..total.div_ceil(chunk)).map(move |n| {
            let size = chunk.min(total - n * chunk);
            Ok(Frame::data(Bytes::from(vec![u8::try_from(n % 251).unwrap(); size])))
        });
        StreamBody::new(stream::iter(frames))
    }

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// For a client that may have all there is.
    fn any(budget: &Budget) -> Purse {
        budget.of(CLIENT, usize::MAX)
    }

    #[tokio::test]
    async fn a_share_covers_the_capacity_and_is_given_back() {
        let budget = Budget::new(1024 * 1024);
        for (chunk, total, declared) in
            [(1, 300, None), (7000, 100_000, None), (7000, 100_000, Some(100_000)), (1, 3, Some(900_000))]
        {
            let held = read(chunked(chunk, total), declared, 1024 * 1024, any(&budget)).await.unwrap();
            assert_eq!(held.bytes.len(), total);
            assert!(1024 * 1024 - budget.free_bytes() >= total, "{total} bytes are held");
            drop(held);
            assert_eq!(budget.free_bytes(), 1024 * 1024);
        }
    }

    #[tokio::test]
    async fn a_declared_length_reserves_little_before_bytes_come() {
        let budget = Budget::new(1024 * 1024);
        let held = read(chunked(1, 1), Some(1024 * 1024), 1024 * 1024, any(&budget)).await.unwrap();
        assert!(budget.free_bytes() >= 1024 * 1024 - FIRST_BYTES_MAX);
        drop(held);
    }

    // W-028
    #[tokio::test]
    async fn one_byte_over_the_limit_is_too_large_however_it_comes() {
        let budget = Budget::new(1024 * 1024);
        for declared in [None, Some(10), Some(1001)] {
            assert_eq!(read(chunked(100, 1001), declared, 1000, any(&budget)).await.err(), Some(BodyError::TooLarge));
            assert!(read(chunked(100, 1000), declared, 1000, any(&budget)).await.is_ok());
        }
        assert_eq!(budget.free_bytes(), 1024 * 1024);
    }

    #[tokio::test]
    async fn an_exhausted_budget_is_our_fault() {
        let budget = Budget::new(64 * 1024);
        let first = read(Full::new(Bytes::from(vec![1; 40_000])), Some(40_000), 100_000, any(&budget)).await.unwrap();
        let second = read(Full::new(Bytes::from(vec![1; 40_000])), None, 100_000, any(&budget)).await;
        assert_eq!(second.err(), Some(BodyError::Budget));
        drop(first);
        assert!(read(Full::new(Bytes::from(vec![1; 40_000])), None, 100_000, any(&budget)).await.is_ok());
    }

    #[tokio::test]
    async fn one_client_cannot_have_the_whole_budget() {
        let budget = Budget::new(128 * 1024);
        let (body, other) = (|| Full::new(Bytes::from(vec![1; 40_000])), "192.0.2.7".parse().unwrap());
        let first = read(body(), Some(40_000), 100_000, budget.of(CLIENT, 64 * 1024)).await.unwrap();
        let second = read(body(), None, 100_000, budget.of(CLIENT, 64 * 1024)).await;
        assert_eq!(second.err(), Some(BodyError::ClientShare));
        let others = read(body(), Some(40_000), 100_000, budget.of(other, 64 * 1024)).await;
        assert!(others.is_ok(), "the other half is for others");
        drop(first);
        assert!(read(body(), Some(40_000), 100_000, budget.of(CLIENT, 64 * 1024)).await.is_ok());
        drop(others);
        assert_eq!(budget.free_bytes(), 128 * 1024);
    }
}
