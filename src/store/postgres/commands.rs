//! Runs a command: one transaction on one connection, in a task of its own. Whoever asked may go; the transaction goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::time::{sleep, timeout};

use super::connections::{Connections, Taken};
use super::error::Failure;
use super::tx::PgTx;
use super::{Shared, below, unavailable};
use crate::store::StoreError;

/// How often a transaction is run again after a serialization failure, a deadlock or a missing day.
pub(super) const AGAIN_MAX: u32 = 3;

/// Connections for commands, and the way to run one.
#[derive(Clone)]
pub(super) struct Commands {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
}

impl Commands {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let connector = shared.connector.clone();
        let connections =
            Arc::new(Connections::new(connector, shared.config.commands_max, shared.config.acquire_timeout));
        Self { shared, connections }
    }

    /// Runs `work` in a transaction and commits it; runs it again where the database asks for that. The caller may be
    /// dropped at any moment: the transaction belongs to a task of its own, and so does its connection.
    pub(super) async fn run<T, F>(&self, name: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut PgTx<'_>) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync + 'static,
    {
        let this = self.clone();
        let limit = self.shared.config.command_limit;
        let task = self.shared.tasks.spawn(async move {
            let committing = AtomicBool::new(false);
            // Past the limit the future is dropped together with the connection that it owns, which is never used again.
            let done = timeout(limit, this.run_here(&work, &committing)).await;
            done.unwrap_or_else(|_| {
                tracing::warn!(command = name, limit_ms = limit.as_millis(), "the database gave no answer");
                match committing.load(Ordering::SeqCst) {
                    true => Err(StoreError::UnknownOutcome(format!("{name}: no answer to COMMIT"))),
                    false => Err(unavailable(format!("{name}: no answer"))),
                }
            })
        });
        task.await.unwrap_or_else(|error| Err(unavailable(format!("{name}: {error}"))))
    }

    /// No more connections.
    pub(super) fn close(&self) {
        self.connections.close();
    }

    async fn run_here<T, F>(&self, work: &F, committing: &AtomicBool) -> Result<T, StoreError>
    where
        F: for<'t> Fn(&'t mut PgTx<'_>) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync,
    {
        let mut round = 0;
        loop {
            let mut taken = self.connections.take().await?;
            let end = self.attempt(&mut taken, work, committing).await;
            let stale = taken.used_before && end.never_began;
            if end.reusable {
                self.connections.give_back(taken);
            } else if end.never_began || end.failure == Some(Failure::ReadOnly) {
                self.connections.forget_idle();
            }
            match (end.failure, end.result) {
                // The line was cut while the connection was idle: nothing has happened yet.
                (_, Err(_)) if stale => {}
                (Some(Failure::Again), Err(_)) if round < AGAIN_MAX => {
                    round += 1;
                    sleep(jitter(&self.shared, round)).await;
                }
                (Some(Failure::MissingDay), Err(error)) if round < AGAIN_MAX => {
                    round += 1;
                    tracing::info!(%error, "a day of bodies has no partition: making what is missing");
                    super::partitions::make_ahead(&self.shared).await?;
                }
                // Nobody's row is at fault: a report that meets a lock must be told again, not thrown away.
                (Some(Failure::Locked), Err(error)) => return Err(unavailable(error.to_string())),
                (_, result) => return result,
            }
        }
    }

    async fn attempt<T, F>(&self, taken: &mut Taken, work: &F, committing: &AtomicBool) -> End<T>
    where
        F: for<'t> Fn(&'t mut PgTx<'_>) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync,
    {
        let connection: &mut PgConnection = &mut taken.connection;
        // Each command takes a slot of the counters anew: those that run at once rarely meet in one.
        let slot = self.shared.slots.of_command(&*self.shared.random);
        let begun = PgTx::begin(connection, &*self.shared.random, slot, self.shared.offset()).await;
        let mut tx = match begun {
            Ok(tx) => tx,
            Err((failure, error)) => {
                let never_began = failure == Failure::Lost;
                return End { result: Err(error), failure: Some(failure), reusable: false, never_began };
            }
        };
        let result = match work(&mut tx).await {
            Ok(value) => tx.settle().await.map(|()| value),
            Err(error) => Err(error),
        };
        let failure = tx.failure();
        match result {
            Ok(value) if failure.is_none() => {
                committing.store(true, Ordering::SeqCst);
                let committed = tx.commit().await;
                committing.store(false, Ordering::SeqCst);
                let reusable = committed.is_ok();
                End { result: committed.map(|()| value), failure: None, reusable, never_began: false }
            }
            Ok(_) => {
                let reusable = tx.roll_back().await;
                let error = unavailable("a statement of this transaction had failed");
                End { result: Err(error), failure, reusable, never_began: false }
            }
            Err(error) => {
                let reusable = tx.roll_back().await;
                End { result: Err(error), failure, reusable, never_began: false }
            }
        }
    }
}

/// How one attempt at a transaction ended.
struct End<T> {
    result: Result<T, StoreError>,
    failure: Option<Failure>,
    reusable: bool,
    /// The connection was already dead at BEGIN.
    never_began: bool,
}

/// Wait before a transaction is run again: up to 10, 20, 40 ms.
pub(super) fn jitter(shared: &Shared, round: u32) -> Duration {
    Duration::from_micros(1000 + below(&*shared.random, 10_000_u64 << round.min(4).saturating_sub(1)))
}
