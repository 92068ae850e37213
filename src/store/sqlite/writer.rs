//! The one writer: each transaction takes what waits in three lanes, so that one fsync carries all of it and none starves.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlx::Connection;
use tokio::time::Instant;

use super::connection::{self, commit_failure, failure};
use super::migrations;
use super::tx::SqliteTx;
use super::work::{Work, WorkQueue};
use crate::clock::Clock;
use crate::metrics;
use crate::random::Random;
use crate::store::committer::{IntakeQueue, Waiting};
use crate::store::intake_flow::{HeldRows, IntakeContext, commit_batch};
use crate::store::{DeliveryVerdict, FreshRows, NewDelivery, OutboxMessage, StoreError};

/// Commands in one transaction, and how long they may hold up the receipts beside them.
const COMMANDS_MAX: usize = 256;
const COMMANDS_TIME: Duration = Duration::from_millis(20);

/// Slots of `job_counts` that writers choose from.
const SLOTS: u64 = 64;

/// What the store and its writer share.
pub(super) struct Shared {
    pub path: PathBuf,
    pub busy_timeout: Duration,
    pub bytes_max: Option<u64>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    pub fresh: OnceLock<Arc<dyn FreshRows>>,
    pub intake: IntakeQueue,
    /// Outcomes, claims, outbox deletes and whatever else waits for an answer.
    pub commands: WorkQueue,
    /// Small steps that nobody waits for.
    pub housekeeping: WorkQueue,
    pub closing: AtomicBool,
    /// Why the last transaction failed; `None` once one has been committed.
    pub trouble: Mutex<Option<StoreError>>,
}

impl Shared {
    pub fn trouble(&self) -> Option<StoreError> {
        self.lock_trouble().clone()
    }

    /// Commits what waits and takes nothing more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.commands.close();
        self.housekeeping.close();
        self.intake.close();
    }

    /// A connection on this binary's schema.
    pub async fn connect(&self) -> Result<SqliteTx, StoreError> {
        let mut conn = connection::open_writer(&self.path, self.busy_timeout, self.bytes_max).await?;
        migrations::run(&mut conn, &*self.random, self.clock.now()).await?;
        let slot = i64::try_from(self.random.next_u64() % SLOTS).unwrap_or(0);
        Ok(SqliteTx { conn, clock: self.clock.clone(), random: self.random.clone(), slot })
    }

    pub fn note(&self, trouble: Option<StoreError>) {
        let mut noted = self.lock_trouble();
        match (&*noted, &trouble) {
            (None, Some(error)) => tracing::error!(error.code = error.code(), %error, "the store takes nothing"),
            (Some(_), None) => tracing::info!("the store is back"),
            _ => {}
        }
        *noted = trouble;
    }

    fn lock_trouble(&self) -> std::sync::MutexGuard<'_, Option<StoreError>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.trouble.lock().expect("not poisoned")
    }
}

/// Writes until the store is closed. A panic in a flow costs its waiters an error, and the connection; the next one goes on.
pub(super) async fn run(shared: Arc<Shared>, first: Option<SqliteTx>) {
    let mut first = first;
    loop {
        let writer = tokio::spawn(write_until_closed(shared.clone(), first.take()));
        match writer.await {
            Ok(()) => return,
            Err(error) => shared.note(Some(StoreError::Unavailable(format!("the writer was lost: {error}")))),
        }
    }
}

async fn write_until_closed(shared: Arc<Shared>, mut connected: Option<SqliteTx>) {
    loop {
        let idle = shared.intake.is_empty() && shared.commands.is_empty() && shared.housekeeping.is_empty();
        if !idle {
            connected = commit_round(&shared, connected).await;
        } else if shared.closing.load(Ordering::SeqCst) {
            break;
        } else {
            tokio::select! {
                () = shared.intake.arrived() => {}
                () = shared.commands.arrived() => {}
                () = shared.housekeeping.arrived() => {}
            }
        }
    }
    if let Some(tx) = connected {
        // The file is whole either way; a failed close only leaves the WAL for the next start.
        let _ = tx.conn.close().await;
    }
}

/// What one transaction carries.
#[derive(Default)]
struct Round {
    intake: Vec<Waiting>,
    verdicts: Vec<Result<DeliveryVerdict, StoreError>>,
    fresh: Vec<OutboxMessage>,
    work: Vec<(Box<dyn Work>, Result<(), StoreError>)>,
}

impl Round {
    /// After COMMIT.
    fn answer(self) {
        for (waiting, verdict) in self.intake.into_iter().zip(self.verdicts) {
            // Nobody listens any more: the commit stands all the same.
            let _ = waiting.answer.send(verdict);
        }
        for (work, outcome) in self.work {
            work.answer(outcome);
        }
    }

    /// Nothing of it was committed, or nobody knows.
    fn fail(self, error: &StoreError) {
        for waiting in self.intake {
            let _ = waiting.answer.send(Err(error.clone()));
        }
        for (work, _) in self.work {
            work.answer(Err(error.clone()));
        }
    }
}

/// One transaction. Returns the connection, or nothing if it must be replaced.
async fn commit_round(shared: &Shared, connected: Option<SqliteTx>) -> Option<SqliteTx> {
    let began = Instant::now();
    let mut round = Round { intake: shared.intake.try_take(), ..Round::default() };
    let mut tx = match connected {
        Some(tx) => tx,
        None => match shared.connect().await {
            Ok(tx) => tx,
            Err(error) => {
                round.work.extend(shared.commands.take().map(|work| (work, Ok(()))));
                round.work.extend(shared.housekeeping.take().map(|work| (work, Ok(()))));
                shared.note(Some(error.clone()));
                round.fail(&error);
                return None;
            }
        },
    };
    match transact(shared, &mut tx, &mut round).await {
        Ok(()) => {
            shared.note(None);
            let events = round.intake.iter().map(|waiting| waiting.delivery.events.len()).sum();
            if events > 0 {
                metrics::commit(began.elapsed(), events);
            }
            round.answer();
            Some(tx)
        }
        Err(error) => {
            shared.note(Some(error.clone()));
            round.fail(&error);
            // A statement on a connection in an unknown state could be lost with it.
            let _ = tx.conn.close().await;
            None
        }
    }
}

/// BEGIN … COMMIT. An error means that the whole transaction failed.
async fn transact(shared: &Shared, tx: &mut SqliteTx, round: &mut Round) -> Result<(), StoreError> {
    execute(tx, "BEGIN IMMEDIATE").await?;
    if !round.intake.is_empty() {
        intake_lane(shared, tx, round).await?;
    }
    let began = Instant::now();
    while round.work.len() < COMMANDS_MAX && (round.work.is_empty() || began.elapsed() < COMMANDS_TIME) {
        let Some(work) = shared.commands.take() else { break };
        run_work(tx, round, work).await?;
    }
    if let Some(step) = shared.housekeeping.take() {
        run_work(tx, round, step).await?;
    }
    let held = HeldRows::hold(shared.fresh.get().cloned(), std::mem::take(&mut round.fresh));
    sqlx::query("COMMIT").execute(&mut tx.conn).await.map_err(commit_failure)?;
    held.committed();
    Ok(())
}

/// All deliveries at once; if one row is refused, each alone, so that only the bad one hears of it.
async fn intake_lane(shared: &Shared, tx: &mut SqliteTx, round: &mut Round) -> Result<(), StoreError> {
    let batch: Vec<&NewDelivery> = round.intake.iter().map(|waiting| &waiting.delivery).collect();
    let context = IntakeContext { random: &*shared.random, fresh: shared.fresh.get().cloned() };
    let whole = in_savepoint_batch(tx, &batch, &context).await?;
    match whole {
        Ok(done) => {
            round.verdicts = done.verdicts.into_iter().map(Ok).collect();
            round.fresh = done.fresh;
        }
        Err(error) if batch.len() == 1 => round.verdicts = vec![Err(error)],
        Err(_) => {
            for delivery in &batch {
                match in_savepoint_batch(tx, std::slice::from_ref(delivery), &context).await? {
                    Ok(done) => {
                        round.verdicts.extend(done.verdicts.into_iter().map(Ok));
                        round.fresh.extend(done.fresh);
                    }
                    Err(error) => round.verdicts.push(Err(error)),
                }
            }
        }
    }
    Ok(())
}

/// The inner result is this batch's own; the outer error is the transaction's.
async fn in_savepoint_batch(
    tx: &mut SqliteTx,
    batch: &[&NewDelivery],
    context: &IntakeContext<'_>,
) -> Result<Result<crate::store::intake_flow::CommittedBatch, StoreError>, StoreError> {
    execute(tx, "SAVEPOINT lane").await?;
    let done = commit_batch(tx, batch, context).await;
    settle(tx, done).await
}

async fn run_work(tx: &mut SqliteTx, round: &mut Round, mut work: Box<dyn Work>) -> Result<(), StoreError> {
    let began = execute(tx, "SAVEPOINT lane").await;
    let done = match began {
        Ok(()) => work.run(tx).await,
        Err(error) => Err(error),
    };
    // It belongs to the round first: if the transaction fails, it must hear of it.
    round.work.push((work, Ok(())));
    let outcome = settle(tx, done).await?;
    if let Some((_, heard)) = round.work.last_mut() {
        *heard = outcome;
    }
    Ok(())
}

/// Keeps or undoes what was done since the savepoint. Only a refusal that leaves the transaction sound is undone alone.
async fn settle<T>(tx: &mut SqliteTx, done: Result<T, StoreError>) -> Result<Result<T, StoreError>, StoreError> {
    match done {
        Ok(done) => {
            execute(tx, "RELEASE lane").await?;
            Ok(Ok(done))
        }
        Err(error) if error.is_of_the_work() => {
            execute(tx, "ROLLBACK TO lane").await?;
            execute(tx, "RELEASE lane").await?;
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

async fn execute(tx: &mut SqliteTx, sql: &'static str) -> Result<(), StoreError> {
    sqlx::query(sql).execute(&mut tx.conn).await.map(|_| ()).map_err(failure)
}
