//! The jobs of one flow on the desk: locked, with their history, changed in memory, written at the end.

use std::collections::BTreeMap;

use super::super::tx::{JobWrites, Tx};
use crate::model::attempt::{Attempt, queue_target};
use crate::model::job::{Job, JobKey};
use crate::store::StoreError;

/// Locked jobs by key.
pub(super) struct Desk(BTreeMap<JobKey, Folder>);

/// One job and what the flow makes of it.
pub(super) struct Folder {
    before: Job,
    pub job: Job,
    attempts: BTreeMap<i32, Attempt>,
    changed: BTreeMap<i32, Attempt>,
    withdraw: bool,
}

impl Desk {
    /// Locks the jobs of these keys and reads their history.
    pub async fn lock(tx: &mut dyn Tx, keys: &[JobKey]) -> Result<Self, StoreError> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(Self(BTreeMap::new()));
        }
        let jobs = tx.lock_jobs(&keys).await?;
        Self::with(tx, jobs).await
    }

    /// Jobs that are locked already, with their history.
    pub async fn with(tx: &mut dyn Tx, jobs: Vec<Job>) -> Result<Self, StoreError> {
        let keys: Vec<JobKey> = jobs.iter().map(|job| job.key.clone()).collect();
        let history = if keys.is_empty() { Vec::new() } else { tx.attempts_of(&keys).await? };
        let mut desk: BTreeMap<JobKey, Folder> =
            jobs.into_iter().map(|job| (job.key.clone(), Folder::of(job))).collect();
        for attempt in history {
            if let Some(folder) = desk.get_mut(&attempt.key) {
                folder.attempts.insert(attempt.attempt, attempt);
            }
        }
        Ok(Self(desk))
    }

    pub fn folder(&mut self, key: &JobKey) -> Option<&mut Folder> {
        self.0.get_mut(key)
    }

    pub fn folders(&mut self) -> impl Iterator<Item = &mut Folder> {
        self.0.values_mut()
    }

    /// What has to be written.
    pub fn into_writes(self) -> JobWrites {
        let mut writes = JobWrites::default();
        for (key, folder) in self.0 {
            if folder.before != folder.job {
                writes.update.push((folder.before, folder.job));
            }
            writes.attempts.extend(folder.changed.into_values());
            if folder.withdraw {
                writes.withdraw.push(key);
            }
        }
        writes
    }
}

impl Folder {
    pub fn of(job: Job) -> Self {
        Self { before: job.clone(), job, attempts: BTreeMap::new(), changed: BTreeMap::new(), withdraw: false }
    }

    /// The row of an attempt.
    pub fn row(&self, attempt: i32) -> Option<&Attempt> {
        self.attempts.get(&attempt)
    }

    /// The row of the attempt that the job is at; made up where a first hand-over has none.
    pub fn current(&self) -> Attempt {
        let job = &self.job;
        let target = || queue_target(&job.key.subscription, job.lane);
        self.row(job.attempt).cloned().unwrap_or_else(|| Attempt::unwritten(job, job.attempt, target()))
    }

    pub fn history(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values()
    }

    /// Writes or replaces an attempt's row.
    pub fn keep(&mut self, attempt: Attempt) {
        self.attempts.insert(attempt.attempt, attempt.clone());
        self.changed.insert(attempt.attempt, attempt);
    }

    /// Hand-overs that still wait are taken out of the outbox.
    pub fn withdraw(&mut self) {
        self.withdraw = true;
    }
}
