//! Refused requests on their way to the quarantine: a queue bounded in count and bytes that a task empties, so that no
//! request waits for it and a flood of forgeries costs a bounded write now and then. What does not fit is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Edge, EdgeConfig};
use crate::metrics;
use crate::store::NewRejection;

/// Rejections in one transaction.
const BATCH_MAX: usize = 256;

pub(super) struct Quarantine {
    sender: mpsc::Sender<NewRejection>,
    /// Taken by the one task that empties the queue.
    receiver: Mutex<mpsc::Receiver<NewRejection>>,
    bytes: AtomicUsize,
    bytes_max: usize,
    closed: CancellationToken,
}

impl Quarantine {
    pub fn new(config: &EdgeConfig) -> Self {
        let (sender, receiver) = mpsc::channel(config.quarantine_queue_max.max(1));
        Self {
            sender,
            receiver: Mutex::new(receiver),
            bytes: AtomicUsize::new(0),
            bytes_max: config.quarantine_queue_bytes_max,
            closed: CancellationToken::new(),
        }
    }

    /// Puts one in the queue, or counts it as dropped.
    pub fn put(&self, rejection: NewRejection) {
        let size = size(&rejection);
        let held = self.bytes.fetch_add(size, Ordering::Relaxed);
        if held + size > self.bytes_max || self.sender.try_send(rejection).is_err() {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            metrics::quarantine_dropped(1);
        }
    }

    /// Lets the emptying task end once the queue is empty.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

/// Empties the queue until it is closed.
pub(super) async fn drain(edge: Arc<Edge>) {
    let quarantine = &edge.quarantine;
    let mut receiver = quarantine.receiver.lock().await;
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = receiver.recv_many(&mut batch, BATCH_MAX) => {}
            () = quarantine.closed.cancelled() => return,
        }
        write(&edge, std::mem::take(&mut batch)).await;
        tokio::select! {
            () = sleep(edge.config.quarantine_pause) => {}
            () = quarantine.closed.cancelled() => {}
        }
    }
}

/// One transaction of the store; never inside a `select!`.
async fn write(edge: &Edge, batch: Vec<NewRejection>) {
    let count = batch.len();
    let bytes: usize = batch.iter().map(size).sum();
    if let Err(error) = edge.intake.record_rejections(batch, edge.config.quarantine).await {
        warn!(error.code = error.code(), %error, rejections = count, "the quarantine could not be written");
        metrics::quarantine_dropped(u64::try_from(count).unwrap_or(u64::MAX));
    }
    edge.quarantine.bytes.fetch_sub(bytes, Ordering::Relaxed);
}

fn size(rejection: &NewRejection) -> usize {
    let headers: usize = rejection.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    rejection.body.len() + headers + rejection.detail.len() + rejection.path.len()
}
