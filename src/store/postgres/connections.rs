//! Connections for commands. A connection is *owned* by the task that uses it and comes back only after a clean end of its
//! transaction: a task that is dropped takes its connection with it, so no half-open transaction is ever handed on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::connect::{Connector, Purpose};
use crate::store::StoreError;

/// A connection is replaced at this age, so that a moved database is found.
const AGE_MAX: Duration = Duration::from_secs(1800);

/// A bounded set of connections.
pub(super) struct Connections {
    connector: Connector,
    acquire_timeout: Duration,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Parked>>,
}

struct Parked {
    connection: PgConnection,
    opened_at: Instant,
}

/// A connection in use; not given back unless [`Connections::give_back`] is called with it.
pub(super) struct Taken {
    pub connection: PgConnection,
    /// It has served before, so its line may have been cut since.
    pub used_before: bool,
    opened_at: Instant,
    permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(super) fn new(connector: Connector, max: u32, acquire_timeout: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(usize::try_from(max.max(1)).unwrap_or(1)));
        Self { connector, acquire_timeout, permits, idle: Mutex::default() }
    }

    /// An idle connection, or a new one; fails when none is free in time or none can be opened.
    pub(super) async fn take(&self) -> Result<Taken, StoreError> {
        let permit = timeout(self.acquire_timeout, self.permits.clone().acquire_owned())
            .await
            .map_err(|_| StoreError::Unavailable("every connection for commands is busy".to_owned()))?
            .map_err(|_| StoreError::Unavailable("stopping".to_owned()))?;
        if let Some(parked) = self.unpark() {
            return Ok(Taken { connection: parked.connection, used_before: true, opened_at: parked.opened_at, permit });
        }
        let connection = self.connector.open(Purpose::Command).await?;
        Ok(Taken { connection, used_before: false, opened_at: Instant::now(), permit })
    }

    /// Takes back a connection whose transaction has ended.
    pub(super) fn give_back(&self, taken: Taken) {
        let Taken { connection, opened_at, permit, .. } = taken;
        if !self.permits.is_closed() && Instant::now().duration_since(opened_at) < AGE_MAX {
            self.lock().push(Parked { connection, opened_at });
        }
        drop(permit);
    }

    /// Throws away what is idle: their server is gone, and each would fail once.
    pub(super) fn forget_idle(&self) {
        self.lock().clear();
    }

    /// No more connections; those in use end with their tasks.
    pub(super) fn close(&self) {
        self.permits.close();
        self.forget_idle();
    }

    /// The last one parked: it is the likeliest to be alive, and the others age out.
    fn unpark(&self) -> Option<Parked> {
        let mut idle = self.lock();
        let now = Instant::now();
        idle.retain(|parked| now.duration_since(parked.opened_at) < AGE_MAX);
        idle.pop()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Parked>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.idle.lock().expect("not poisoned")
    }
}
