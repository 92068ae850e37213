//! One writer: takes what waits, commits it, answers. It owns its connection; where the database gives no answer, both go.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep, timeout};

use super::commands::{AGAIN_MAX, jitter};
use super::connect::{self, Purpose};
use super::days::Day;
use super::error::Failure;
use super::tx::PgTx;
use super::writers::try_commit;
use super::{Shared, partitions, unavailable};
use crate::metrics;
use crate::store::committer::Waiting;
use crate::store::intake_flow::{self, HeldRows, IntakeContext};
use crate::store::{DeliveryVerdict, NewDelivery, StoreError};

/// An idle writer looks this often whether its server is still there and writable.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// How long a lock is waited for once a batch is being split: its neighbours have waited long enough.
const SPLIT_LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// Why a writer ended.
#[derive(Debug)]
pub(super) enum End {
    /// The queue is closed and empty.
    Stopped,
    /// Its connection is gone, and no other could be opened.
    Lost(StoreError),
    /// The database gave no answer; the connection was dropped with what was on its way.
    LetGo,
    /// It had not begun when intake was closed; the first writer of the next beginning goes before it.
    StoodBack,
}

/// Commits what waits until the queue is closed or the connection is beyond repair.
pub(super) async fn run(shared: Arc<Shared>, mut connection: PgConnection, slot: i16) -> End {
    let _counted = shared.gate.connected();
    loop {
        let taken = tokio::select! {
            biased;
            taken = shared.queue.take() => Some(taken),
            () = sleep(IDLE_CHECK) => None,
            () = shared.gate.suspicion() => None,
        };
        let Some(taken) = taken else {
            match still_there(&shared, connection, slot).await {
                Ok(same) => connection = same,
                Err(end) => return end,
            }
            continue;
        };
        let Some(batch) = taken else {
            // The answers are given; how the closing went changes nothing.
            let _ = timeout(IDLE_CHECK, connection.close()).await;
            return End::Stopped;
        };
        match (Writer { shared: &shared, slot }).commit_all(connection, batch).await {
            Ok(same) => connection = same,
            Err(end) => return end,
        }
    }
}

/// While commits are refused, the look is a trial commit: no delivery needs to come for health to be told.
async fn still_there(shared: &Shared, mut connection: PgConnection, slot: i16) -> Result<PgConnection, End> {
    let look = async {
        if shared.gate.ready().is_err() {
            drop(connection);
            let opened = shared.connector.open(Purpose::Write).await?;
            return match try_commit(opened, slot).await {
                Ok(connection) => {
                    shared.gate.relieved();
                    Ok(connection)
                }
                Err(error) => {
                    tracing::warn!(%error, "the database still refuses commits");
                    shared.connector.open(Purpose::Write).await
                }
            };
        }
        match connect::examine(&mut connection).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                tracing::warn!(%error, "an idle writer's connection is of no more use");
                drop(connection);
                shared.connector.open(Purpose::Write).await
            }
        }
    };
    match timeout(shared.config.answer_limit, look).await {
        Ok(found) => found.map_err(End::Lost),
        Err(_) => Err(End::LetGo),
    }
}

struct Writer<'a> {
    shared: &'a Arc<Shared>,
    slot: i16,
}

/// How one transaction, with its repetitions, ended.
struct Tried {
    connection: Option<PgConnection>,
    result: Result<Vec<DeliveryVerdict>, StoreError>,
}

impl Writer<'_> {
    /// Commits a batch; where a row is at fault, in halves, until that row stands alone. Everyone who waits is answered.
    async fn commit_all(&self, mut connection: PgConnection, batch: Vec<Waiting>) -> Result<PgConnection, End> {
        let deadline = Instant::now() + self.shared.config.answer_limit;
        let mut parts = VecDeque::from([batch]);
        let mut whole = true;
        while let Some(mut part) = parts.pop_front() {
            if !whole && Instant::now() >= deadline {
                answer_all(part, &unavailable("the batch could not be split in time"));
                continue;
            }
            let deliveries: Vec<&NewDelivery> = part.iter().map(|waiting| &waiting.delivery).collect();
            let lock_timeout = (!whole).then_some(SPLIT_LOCK_TIMEOUT);
            whole = false;
            // Past the limit the future is dropped together with the connection that it owns.
            let tried =
                timeout(self.shared.config.answer_limit, self.commit(connection, &deliveries, lock_timeout)).await;
            let Ok(tried) = tried else {
                answer_all(part, &StoreError::UnknownOutcome("the database gave no answer".to_owned()));
                parts.into_iter().for_each(|part| answer_all(part, &unavailable("the database gave no answer")));
                return Err(End::LetGo);
            };
            match tried.result {
                Ok(verdicts) => {
                    self.shared.gate.committed();
                    answer_each(part, verdicts);
                }
                Err(StoreError::Row(_)) if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.push_front(rest);
                    parts.push_front(part);
                }
                Err(error) => answer_all(part, &error),
            }
            connection = match self.again(tried.connection).await {
                Ok(connection) => connection,
                Err(end) => {
                    parts.into_iter().for_each(|part| answer_all(part, &unavailable("the connection is lost")));
                    return Err(end);
                }
            };
        }
        Ok(connection)
    }

    /// The same connection, or a new one in its place.
    async fn again(&self, connection: Option<PgConnection>) -> Result<PgConnection, End> {
        match connection {
            Some(connection) => Ok(connection),
            None => match timeout(self.shared.config.answer_limit, self.shared.connector.open(Purpose::Write)).await {
                Ok(opened) => opened.map_err(End::Lost),
                Err(_) => Err(End::LetGo),
            },
        }
    }

    /// Commits the deliveries in one transaction, again where the database asks for that: after a deadlock, on a missing
    /// day, or on a new connection when the old one broke before COMMIT.
    async fn commit(&self, connection: PgConnection, batch: &[&NewDelivery], lock_timeout: Option<Duration>) -> Tried {
        let (mut connection, mut round, mut reconnected) = (connection, 0, false);
        loop {
            let began = Instant::now();
            let (failure, result, reusable) = self.transaction(&mut connection, batch, lock_timeout).await;
            match (failure, result) {
                (_, Ok(verdicts)) => {
                    let events = batch.iter().map(|delivery| delivery.events.len()).sum();
                    metrics::commit(Instant::now().duration_since(began), events);
                    return Tried { connection: Some(connection), result: Ok(verdicts) };
                }
                (Some(Failure::Again), Err(_)) if reusable && round < AGAIN_MAX => {
                    round += 1;
                    sleep(jitter(self.shared, round)).await;
                }
                (Some(Failure::MissingDay), Err(error)) if reusable && round < AGAIN_MAX => {
                    round += 1;
                    let days =
                        batch.iter().map(|delivery| Day::of(delivery.payload_id.created_at())).collect::<BTreeSet<_>>();
                    tracing::info!(%error, days = days.len(), "a day of bodies has no partition: making it");
                    if let Err(error) = partitions::make(self.shared, &days).await {
                        return Tried { connection: Some(connection), result: Err(error) };
                    }
                }
                (Some(Failure::Lost | Failure::ReadOnly), Err(error)) if !reconnected => {
                    reconnected = true;
                    tracing::warn!(%error, "a writer's connection is of no more use; the batch goes to a new one");
                    match self.shared.connector.open(Purpose::Write).await {
                        Ok(new) => connection = new,
                        Err(error) => return Tried { connection: None, result: Err(error) },
                    }
                }
                (failure, Err(error)) => {
                    if failure == Some(Failure::Refused) {
                        self.shared.gate.refused(error.clone());
                    }
                    return Tried { connection: reusable.then_some(connection), result: Err(error) };
                }
            }
        }
    }

    /// One BEGIN … COMMIT. A failure that is known has changed nothing; an error of COMMIT has none.
    async fn transaction(
        &self,
        connection: &mut PgConnection,
        batch: &[&NewDelivery],
        lock_timeout: Option<Duration>,
    ) -> (Option<Failure>, Result<Vec<DeliveryVerdict>, StoreError>, bool) {
        let begun = PgTx::begin(connection, &*self.shared.random, self.slot, self.shared.offset()).await;
        let mut tx = match begun {
            Ok(tx) => tx,
            Err((failure, error)) => return (Some(failure), Err(error), false),
        };
        let fresh = self.shared.fresh();
        let context = IntakeContext { random: &*self.shared.random, fresh: fresh.clone() };
        let flown = match lock_timeout {
            Some(limit) => tx.limit_locks(limit).await,
            None => Ok(()),
        };
        let flown = match flown {
            Ok(()) => intake_flow::commit_batch(&mut tx, batch, &context).await,
            Err(error) => Err(error),
        };
        let flown = match flown {
            Ok(committed) => tx.settle().await.map(|()| committed),
            Err(error) => Err(error),
        };
        let committed = match flown {
            Ok(committed) if tx.failure().is_none() => committed,
            other => {
                let failure = tx.failure();
                let error = other.err().unwrap_or_else(|| unavailable("a statement of this transaction had failed"));
                let reusable = tx.roll_back().await;
                return (failure, Err(error), reusable);
            }
        };
        // From here until COMMIT has answered, the relay's looks pass these rows over.
        let held = HeldRows::hold(fresh, committed.fresh);
        match tx.commit().await {
            Ok(()) => {
                held.committed();
                (None, Ok(committed.verdicts), true)
            }
            Err(error) => (None, Err(error), false),
        }
    }
}

fn answer_each(part: Vec<Waiting>, verdicts: Vec<DeliveryVerdict>) {
    for (waiting, verdict) in part.into_iter().zip(verdicts) {
        // Nobody may be listening any more: the commit stands all the same.
        let _ = waiting.answer.send(Ok(verdict));
    }
}

/// Tells everyone of the same failure.
pub(super) fn answer_all(part: Vec<Waiting>, error: &StoreError) {
    for waiting in part {
        let _ = waiting.answer.send(Err(error.clone()));
    }
}
