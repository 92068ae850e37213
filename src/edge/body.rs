//! Reading a body whole: bytes are counted as they come, whatever `Content-Length` says, and each KiB that is held is
//! taken from the budget of all bodies that are not yet committed.

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
pub(super) struct Share(#[expect(dead_code, reason = "held until it is dropped")] Option<OwnedSemaphorePermit>);

/// The bytes of bodies that the process may hold before their commit.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<Semaphore>);

impl Budget {
    pub fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT_BYTES;
        Self(Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS))))
    }

    fn take(&self, units: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let units = u32::try_from(units).map_err(|_| BodyError::Budget)?;
        Arc::clone(&self.0).try_acquire_many_owned(units).map_err(|_| BodyError::Budget)
    }

    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.0.available_permits() * UNIT_BYTES
    }
}

/// The declared length, for an early refusal only.
pub(super) fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads `body` to its end, at most `max` bytes.
pub(super) async fn read<B>(body: B, declared: Option<u64>, max: usize, budget: &Budget) -> Result<Held, BodyError>
where
    B: Body<Data: Buf>,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    let mut filled = Filling { bytes: Vec::new(), share: None, budget };
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
    Ok(Held { bytes: Bytes::from(filled.bytes), share: Share(filled.share) })
}

/// A body that grows, and its share of the budget that grows ahead of it.
struct Filling<'a> {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
    budget: &'a Budget,
}

impl Filling<'_> {
    /// Makes room for `needed` bytes. Grows by doubling, but straight to the declared length once half of it is there.
    fn reserve(&mut self, needed: usize, expected: usize) -> Result<(), BodyError> {
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        let doubled = needed.max(self.bytes.capacity() * 2);
        let goal = if expected >= needed && expected <= doubled { expected } else { doubled };
        let units = goal.div_ceil(UNIT_BYTES) - self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = self.budget.take(units)?;
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

    #[tokio::test]
    async fn a_share_covers_the_capacity_and_is_given_back() {
        let budget = Budget::new(1024 * 1024);
        for (chunk, total, declared) in
            [(1, 300, None), (7000, 100_000, None), (7000, 100_000, Some(100_000)), (1, 3, Some(900_000))]
        {
            let held = read(chunked(chunk, total), declared, 1024 * 1024, &budget).await.unwrap();
            assert_eq!(held.bytes.len(), total);
            assert!(1024 * 1024 - budget.free_bytes() >= total, "{total} bytes are held");
            drop(held);
            assert_eq!(budget.free_bytes(), 1024 * 1024);
        }
    }

    #[tokio::test]
    async fn a_declared_length_reserves_little_before_bytes_come() {
        let budget = Budget::new(1024 * 1024);
        let held = read(chunked(1, 1), Some(1024 * 1024), 1024 * 1024, &budget).await.unwrap();
        assert!(budget.free_bytes() >= 1024 * 1024 - FIRST_BYTES_MAX);
        drop(held);
    }

    // W-028
    #[tokio::test]
    async fn one_byte_over_the_limit_is_too_large_however_it_comes() {
        let budget = Budget::new(1024 * 1024);
        for declared in [None, Some(10), Some(1001)] {
            assert_eq!(read(chunked(100, 1001), declared, 1000, &budget).await.err(), Some(BodyError::TooLarge));
            assert!(read(chunked(100, 1000), declared, 1000, &budget).await.is_ok());
        }
        assert_eq!(budget.free_bytes(), 1024 * 1024);
    }

    #[tokio::test]
    async fn an_exhausted_budget_is_our_fault() {
        let budget = Budget::new(64 * 1024);
        let first = read(Full::new(Bytes::from(vec![1; 40_000])), Some(40_000), 100_000, &budget).await.unwrap();
        let second = read(Full::new(Bytes::from(vec![1; 40_000])), None, 100_000, &budget).await;
        assert_eq!(second.err(), Some(BodyError::Budget));
        drop(first);
        assert!(read(Full::new(Bytes::from(vec![1; 40_000])), None, 100_000, &budget).await.is_ok());
    }
}
