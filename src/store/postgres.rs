//! The store on PostgreSQL 14 and newer. Intake goes through writers, each with a connection of its own; everything else
//! through a few connections for commands. A task that is let go takes its connection with it.

mod archive;
mod check;
mod commands;
mod config;
mod connect;
mod connections;
mod days;
mod error;
mod expiry;
mod gauges;
mod intake;
mod jobs;
mod migration;
mod outbox;
mod partitions;
mod quarantine;
mod rows;
mod slots;
mod statements;
mod tx;
mod upkeep;
mod writer;
mod writers;

use std::sync::{Arc, Mutex};

use tokio_util::task::TaskTracker;

use super::committer::IntakeQueue;
use super::{FreshRows, StoreError};
use crate::random::Random;
use commands::Commands;
use connect::Connector;
use gauges::Gauges;
use slots::Slots;
use writers::Gate;

pub use config::{PostgresConfig, PostgresUrl};
pub use migration::{migrate, schema_state};

/// What a statement comes to before anyone decides what its failure means.
type Sql<T> = Result<T, sqlx::Error>;

/// A store on PostgreSQL.
pub struct PostgresStore {
    shared: Arc<Shared>,
    commands: Commands,
    gauges: Gauges,
    upkeep: upkeep::Memory,
}

/// What writers and commands have in common.
struct Shared {
    config: PostgresConfig,
    connector: Connector,
    random: Arc<dyn Random>,
    slots: Slots,
    queue: IntakeQueue,
    gate: Gate,
    tasks: TaskTracker,
    /// The relay of this process, once it is attached.
    fresh: Mutex<Option<Arc<dyn FreshRows>>>,
}

impl PostgresStore {
    /// Starts the store and returns at once; connections are made in the background, and
    /// [`ready`](super::Intake::ready) says why there are none yet. Call it inside a tokio runtime.
    pub fn open(config: PostgresConfig, random: Arc<dyn Random>) -> Arc<Self> {
        let connector = Connector::new(&config, format!("{:08x}", random.next_u64() & 0xffff_ffff));
        let shared = Arc::new(Shared {
            queue: IntakeQueue::new(config.committer),
            gate: Gate::new(),
            tasks: TaskTracker::new(),
            fresh: Mutex::default(),
            slots: Slots::new(&*random),
            connector,
            random,
            config,
        });
        shared.tasks.spawn(writers::run(shared.clone()));
        let commands = Commands::new(shared.clone());
        Arc::new(Self { shared, commands, gauges: Gauges::default(), upkeep: upkeep::Memory::default() })
    }
}

impl Shared {
    fn offset(&self) -> i64 {
        self.config.clock_offset.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn fresh(&self) -> Option<Arc<dyn FreshRows>> {
        self.lock_fresh().clone()
    }

    fn lock_fresh(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn FreshRows>>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.fresh.lock().expect("not poisoned")
    }
}

/// A number under `bound`, for slots and jitter.
fn below(random: &dyn Random, bound: u64) -> u64 {
    random.next_u64() % bound.max(1)
}

/// The failure of what needs a schema that is not there yet.
fn unavailable(why: impl Into<String>) -> StoreError {
    StoreError::Unavailable(why.into())
}
