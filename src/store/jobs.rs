//! What process and admin say to the store about jobs, and what they hear.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::model::attempt::{Attempt, Trigger};
use crate::model::id::ReceiptId;
use crate::model::job::{Job, JobKey, JobReason, JobState};
use crate::model::outcome::OutcomeKind;
use crate::model::receipt::{Mode, Receipt};

/// One consumer's report, its token already checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeReport {
    pub key: JobKey,
    pub attempt: i32,
    pub kind: OutcomeKind,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub retry_after: Option<Duration>,
    /// Who reports: the token's name, or the AMQP user.
    pub consumer: String,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeVerdict {
    /// It moved the job.
    Applied(JobState),
    /// It is kept in the history, and moved nothing (late, or a second ending).
    Recorded,
    /// Said before, word for word.
    Already,
    NoSuchJob,
    /// The attempt has not begun, or belongs to no series of this job.
    NoSuchAttempt,
}

/// A consumer asks for work.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub subscription: String,
    pub max: u32,
    pub lease: Duration,
    pub consumer: String,
}

/// When a job whose message is nowhere counts as lost, and how often it is published again.
#[derive(Debug, Clone, Copy)]
pub struct LostRule {
    /// Since its hand-over, for a job that nobody has begun.
    pub older_than: Duration,
    /// Since its hand-over, for a job that its consumer has begun with no time limit; never less than `older_than`.
    pub begun_older_than: Duration,
    /// Times that one attempt is published again.
    pub times: u32,
    /// Jobs at one look.
    pub limit: u32,
}

/// A leased job with its event.
#[derive(Debug, Clone)]
pub struct ClaimedJob {
    pub job: Job,
    pub trigger: Trigger,
    pub receipt: Receipt,
    pub content_type: String,
    /// `None` when the stored body is gone (the job is then in review, and not in this list).
    pub body: Bytes,
    /// UTC microseconds, the store's clock.
    pub leased_until: i64,
}

/// Who asks for jobs again, and why.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    pub trigger: Trigger,
    pub actor: String,
    /// Required to run a completed or dismissed job again.
    pub why: Option<String>,
}

/// What became of one requested replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayVerdict {
    Armed,
    /// A held receipt was let go; these subscriptions got jobs.
    Released(Vec<String>),
    /// Not allowed today: the stable code says why (`not_replayable`, `filter_no_longer_takes`, `subscription_retired`,
    /// `body_gone`, `imported`, `why_missing`, `already_released`).
    Refused(&'static str),
    NoSuchJob,
}

/// Counters for gauges, cheap at any depth.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobStatus {
    pub counts: BTreeMap<(String, JobState), i64>,
    /// Age since `received_at` of the oldest live job, by subscription; zero where there is none.
    pub oldest_unprocessed: BTreeMap<String, Duration>,
    pub oldest_review: BTreeMap<String, Duration>,
    /// Live jobs with two or more failed attempts.
    pub repeated_failures: BTreeMap<String, i64>,
}

/// A receipt with its jobs and redeliveries.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptView {
    pub receipt: Receipt,
    pub jobs: Vec<Job>,
    pub deliveries: Vec<Redelivery>,
    pub divergences: Vec<[u8; 32]>,
    pub content_type: Option<String>,
    pub headers: Vec<(String, Bytes)>,
    pub url: Option<String>,
}

/// The provider sent a receipt's event again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redelivery {
    pub at: i64,
    pub source: String,
    pub secret: String,
    pub peer: String,
    pub retry_headers: Vec<(String, String)>,
    pub verdict: String,
}

/// A job with its history.
#[derive(Debug, Clone, PartialEq)]
pub struct JobView {
    pub job: Job,
    pub attempts: Vec<Attempt>,
}

/// A page of receipts, newest first.
#[derive(Debug, Clone, Default)]
pub struct ReceiptQuery {
    pub source: Option<String>,
    pub provider: Option<String>,
    pub account: Option<String>,
    pub event_id: Option<String>,
    pub event_type: Option<String>,
    pub mode: Option<Mode>,
    pub held: Option<bool>,
    /// Only receipts older than this one.
    pub before: Option<ReceiptId>,
    pub limit: u32,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, Default)]
pub struct JobQuery {
    pub subscription: Option<String>,
    pub state: Option<JobState>,
    pub reason: Option<JobReason>,
    pub before: Option<ReceiptId>,
    pub limit: u32,
}

/// A stored body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBody {
    pub content_type: String,
    pub body: Bytes,
}

/// A refused request, as the quarantine keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRejection {
    pub at: i64,
    pub source: String,
    pub code: String,
    pub detail: String,
    pub peer: String,
    pub method: String,
    pub path: String,
    /// Names only; values only of the allow-list.
    pub headers: Vec<(String, Bytes)>,
    /// The first bytes of the body, bounded.
    pub body: Bytes,
}

/// The quarantine's bounds.
#[derive(Debug, Clone, Copy)]
pub struct QuarantineBounds {
    pub count: u32,
    pub bytes: u64,
    pub age: Duration,
}

/// How long things are kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Bodies; those of live and review jobs stay longer.
    pub bodies: Duration,
    pub quarantine: QuarantineBounds,
}

/// What upkeep found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpkeepReport {
    /// Days of payload partitions made ahead; `None` where the backend has none.
    pub partition_days_ahead: Option<u32>,
    pub bodies_expired: u64,
    /// Counters that the hourly correction changed.
    pub counts_corrected: u64,
}

/// One thing `makbuz check` says of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFinding {
    pub severity: Severity,
    pub code: &'static str,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Ok,
    Warning,
    Error,
}
