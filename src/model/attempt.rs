//! One run at a job, numbered from 1 for ever.

use serde::{Deserialize, Serialize};

use super::job::{Job, JobKey, Lane};
use super::outcome::OutcomeKind;

/// What set an attempt off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The first hand-over.
    First,
    /// The schedule, after a failure.
    Retry,
    /// A lease ran out.
    Rescue,
    /// An operator asked for this job again.
    Replay,
    /// An operator asked for many.
    Redrive,
    /// The provider sent the event again (C9).
    Redelivery,
    /// A held receipt was let go.
    Release,
}

impl Trigger {
    pub const ALL: [Self; 7] =
        [Self::First, Self::Retry, Self::Rescue, Self::Replay, Self::Redrive, Self::Redelivery, Self::Release];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Retry => "retry",
            Self::Rescue => "rescue",
            Self::Replay => "replay",
            Self::Redrive => "redrive",
            Self::Redelivery => "redelivery",
            Self::Release => "release",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trigger| trigger.as_str() == text)
    }
}

/// An attempt as stored; written when it is known to have begun or to have ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub key: JobKey,
    pub attempt: i32,
    pub series: i32,
    pub trigger: Trigger,
    /// Where it went: the queue, `pull`, or an address.
    pub target: String,
    /// UTC microseconds.
    pub started_at: i64,
    pub ended_at: Option<i64>,
    /// `Started` while it is open.
    pub outcome: Option<OutcomeKind>,
    /// The metric's reason: `no_outcome`, `failed`, `rejected`, `timeout` …
    pub error_class: Option<String>,
    /// The consumer's own words, at most 2 KiB.
    pub error_text: Option<String>,
    /// Who reported it.
    pub consumer: Option<String>,
    /// The report came after the attempt had already ended otherwise, or from an earlier attempt of the series.
    pub late: bool,
    /// When the next one is due, if this one failed and another follows.
    pub next_at: Option<i64>,
}

/// `error_class` of an attempt whose lease ran out, or that was never heard of again.
pub const NO_OUTCOME: &str = "no_outcome";

/// `consumer` of an attempt that ended with the broker's confirm. No token and no broker user is named with a `~`.
pub const BY_CONFIRM: &str = "~confirm";

/// `consumer` of a report that the relay makes of a dead-lettered message: nobody reported anything.
pub const BY_BROKER: &str = "~broker";

/// `error_class` of an open attempt that was published again n times, before n.
const LOST: &str = "lost_";

impl Attempt {
    /// The attempt that `job` is at, begun at `at` and not ended.
    pub fn begun(job: &Job, trigger: Trigger, target: String, at: i64) -> Self {
        Self {
            key: job.key.clone(),
            attempt: job.attempt,
            series: job.series,
            trigger,
            target,
            started_at: at,
            ended_at: None,
            outcome: None,
            error_class: None,
            error_text: None,
            consumer: None,
            late: false,
            next_at: None,
        }
    }

    /// What the next attempt of `job` will be begun by, written down ahead where nothing else remembers it: a `pull` job
    /// that a person or a resend has armed waits for its claim.
    pub fn armed(job: &Job, trigger: Trigger, target: String, at: i64) -> Self {
        Self { attempt: job.attempt + 1, ..Self::begun(job, trigger, target, at) }
    }

    /// The hand-over that no row tells of: a first attempt costs none, so that an event costs one write less.
    pub fn unwritten(job: &Job, attempt: i32, target: String) -> Self {
        let at = job.handed_at.unwrap_or(job.created_at);
        Self { attempt, ..Self::begun(job, Trigger::First, target, at) }
    }

    pub fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    /// How often its message was published again because it counted as lost.
    pub fn times_lost(&self) -> u32 {
        let class = self.error_class.as_deref().filter(|_| self.is_open());
        class.and_then(|class| class.strip_prefix(LOST)).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// One more publish because the last one counts as lost.
    pub fn lost_again(&mut self) {
        self.error_class = Some(format!("{LOST}{}", self.times_lost() + 1));
    }
}

/// Where a hand-over of `subscription` goes in the broker: its routing key.
pub fn queue_target(subscription: &str, lane: Lane) -> String {
    match lane {
        Lane::Fresh => subscription.to_owned(),
        Lane::Slow => format!("{subscription}.slow"),
    }
}
