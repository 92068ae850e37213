//! Work for the writer other than intake: a closure over the open transaction, and the oneshot that hears its result.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::tx::SqliteTx;
use crate::store::StoreError;

/// What a piece of work awaits on the writer's connection.
pub(super) type Flow<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One piece of work, whatever it returns.
#[async_trait]
pub(super) trait Work: Send {
    async fn run(&mut self, tx: &mut SqliteTx) -> Result<(), StoreError>;
    /// Called after COMMIT, or when it is known that nothing was committed.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Pending<T, F> {
    flow: Option<F>,
    result: Option<T>,
    answer: oneshot::Sender<Result<T, StoreError>>,
    /// A place in the queue, free again once this is done.
    _place: OwnedSemaphorePermit,
}

#[async_trait]
impl<T, F> Work for Pending<T, F>
where
    T: Send,
    F: for<'a> FnOnce(&'a mut SqliteTx) -> Flow<'a, T> + Send,
{
    async fn run(&mut self, tx: &mut SqliteTx) -> Result<(), StoreError> {
        if let Some(flow) = self.flow.take() {
            self.result = Some(flow(tx).await?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Pending { result, answer, .. } = *self;
        let result = outcome.and_then(|()| result.ok_or_else(|| StoreError::Unavailable("not run".to_owned())));
        // Nobody listens any more: the commit stands all the same.
        let _ = answer.send(result);
    }
}

/// A bounded queue of work; who finds it full waits for a place.
pub(super) struct WorkQueue {
    places: Arc<Semaphore>,
    waiting: Mutex<VecDeque<Box<dyn Work>>>,
    arrived: Notify,
}

impl WorkQueue {
    pub fn new(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), waiting: Mutex::default(), arrived: Notify::new() }
    }

    /// Queues work and waits for its commit.
    pub async fn run<T, F>(&self, flow: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut SqliteTx) -> Flow<'a, T> + Send + 'static,
    {
        let stopping = |_| StoreError::Unavailable("stopping".to_owned());
        let place = self.places.clone().acquire_owned().await.map_err(stopping)?;
        let (answer, heard) = oneshot::channel();
        let work = Pending { flow: Some(flow), result: None, answer, _place: place };
        self.lock().push_back(Box::new(work));
        self.arrived.notify_one();
        heard.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the writer was lost".to_owned())))
    }

    pub fn take(&self) -> Option<Box<dyn Work>> {
        self.lock().pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// No more work; what waits is still taken.
    pub fn close(&self) {
        self.places.close();
        self.arrived.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Box<dyn Work>>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.waiting.lock().expect("not poisoned")
    }
}
