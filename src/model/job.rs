//! One receipt's processing for one subscription: its states, its legal moves, and the row that holds them.

mod moves;
mod ruling;

use serde::{Deserialize, Serialize};

use super::id::ReceiptId;
use super::receipt::Receipt;

pub use moves::Move;
pub use ruling::{Ending, Report, Ruling, end_failed, rule};

/// The reserved subscription whose one job keeps a held receipt in review until a person releases it.
pub const INTAKE: &str = "~intake";

/// `job_counts` keeps the outbox's depth under this name, beside the states.
pub const OUTBOX_COUNT: &str = "~outbox";

/// `job_counts` keeps the number of live jobs with two or more failed attempts under this name.
pub const FAILING_COUNT: &str = "~failing";

/// Which job: one per receipt and subscription.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    pub receipt: ReceiptId,
    pub subscription: String,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits for its time, its turn or its fetch; a `pull` job may be claimed.
    Pending,
    /// Handed to the broker, or in the outbox on its way there.
    Queued,
    /// Leased, or reported `started`.
    Running,
    /// Failed and due again at `next_attempt_at`.
    Retrying,
    Completed,
    /// A newer version of the same resource was completed instead.
    Superseded,
    /// Waits for a person.
    Review,
    /// Closed unprocessed by a person.
    Dismissed,
}

impl JobState {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Queued,
        Self::Running,
        Self::Retrying,
        Self::Completed,
        Self::Superseded,
        Self::Review,
        Self::Dismissed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Completed => "completed",
            Self::Superseded => "superseded",
            Self::Review => "review",
            Self::Dismissed => "dismissed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Still to be processed by itself: what `makbuz_oldest_unprocessed_seconds` looks at.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Queued | Self::Running | Self::Retrying)
    }

    /// Has a `finished_at`: nothing more happens unless a person or a late report moves it.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Superseded | Self::Dismissed)
    }
}

/// Why a job waits in review, or ended as it did; the stable `reason` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobReason {
    /// The series used up its tries or its time.
    Exhausted,
    /// No queue takes the message.
    Unroutable,
    /// Handed out and never heard of again.
    NoOutcome,
    /// The consumer said: do not try again.
    Rejected,
    /// The target's answer is never tried again (a 4xx, a redirect).
    Permanent,
    /// The same signed content came under another, unsigned id.
    Suspect,
    /// Same key, other content.
    Divergent,
    /// The receipt is held; its `hold_reason` says why.
    Held,
    /// A held receipt was let go (a completed `~intake` job).
    Released,
    /// The broker refuses the message for its size.
    TooLarge,
    /// The stored body is gone.
    BodyGone,
    /// A person closed it.
    Dismissed,
}

impl JobReason {
    pub const ALL: [Self; 12] = [
        Self::Exhausted,
        Self::Unroutable,
        Self::NoOutcome,
        Self::Rejected,
        Self::Permanent,
        Self::Suspect,
        Self::Divergent,
        Self::Held,
        Self::Released,
        Self::TooLarge,
        Self::BodyGone,
        Self::Dismissed,
    ];

    pub fn code(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Unroutable => "unroutable",
            Self::NoOutcome => "no_outcome",
            Self::Rejected => "rejected",
            Self::Permanent => "permanent",
            Self::Suspect => "suspect",
            Self::Divergent => "divergent",
            Self::Held => "held",
            Self::Released => "released",
            Self::TooLarge => "too_large",
            Self::BodyGone => "body_gone",
            Self::Dismissed => "dismissed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == text)
    }

    /// A provider's resend may arm the job again (contract C9).
    pub fn rearms(self) -> bool {
        matches!(self, Self::Exhausted | Self::Unroutable | Self::NoOutcome)
    }
}

/// Which queue a hand-over takes: old trouble never holds up fresh events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    Fresh,
    /// From the third retry on.
    Slow,
}

impl Lane {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Slow => "slow",
        }
    }

    /// The lane that `text` names; anything else is fresh.
    pub fn parse(text: &str) -> Self {
        if text == "slow" { Self::Slow } else { Self::Fresh }
    }
}

/// A job as stored. Times are UTC microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub key: JobKey,
    /// The source through which its filter took the event.
    pub source: String,
    pub state: JobState,
    /// Number of the attempt that is under way or was the last one; 0 before the first.
    pub attempt: i32,
    /// 1, then one more with each replay or re-arm.
    pub series: i32,
    /// Attempts begun in this series. An attempt belongs to it if `attempt > job.attempt - job.series_attempts`.
    pub series_attempts: i32,
    /// First try of this series.
    pub first_attempt_at: Option<i64>,
    /// When a pending or retrying job is due.
    pub next_attempt_at: Option<i64>,
    /// Set exactly while running under a lease.
    pub leased_until: Option<i64>,
    /// When a queued job was handed out.
    pub handed_at: Option<i64>,
    pub lane: Lane,
    pub resource_key: Option<String>,
    pub turn_key: Option<String>,
    pub reason: Option<JobReason>,
    pub fingerprint: Option<String>,
    pub assignee: Option<String>,
    pub note: Option<String>,
    /// How often a resend armed it again, in all.
    pub rearms: i32,
    pub created_at: i64,
    /// Set exactly in the ended states.
    pub finished_at: Option<i64>,
}

impl Job {
    /// A job that waits for its first attempt, of an event that came through `source`; `now` in UTC microseconds.
    pub fn first(receipt: &Receipt, subscription: &str, source: &str, now: i64) -> Self {
        Self {
            key: JobKey { receipt: receipt.id, subscription: subscription.to_owned() },
            source: source.to_owned(),
            state: JobState::Pending,
            attempt: 0,
            series: 1,
            series_attempts: 0,
            first_attempt_at: None,
            next_attempt_at: None,
            leased_until: None,
            handed_at: None,
            lane: Lane::Fresh,
            resource_key: receipt.resource_key.clone(),
            turn_key: None,
            reason: None,
            fingerprint: None,
            assignee: None,
            note: None,
            rearms: 0,
            created_at: now,
            finished_at: None,
        }
    }

    /// Whether `attempt` was begun in the job's current series.
    pub fn is_current_series(&self, attempt: i32) -> bool {
        attempt > self.attempt - self.series_attempts && attempt <= self.attempt
    }
    /// Live, with two or more failed attempts in its series.
    pub fn keeps_failing(&self) -> bool {
        let under_way = matches!(self.state, JobState::Queued | JobState::Running);
        self.state.is_live() && self.series_attempts - i32::from(under_way) >= 2
    }
}
