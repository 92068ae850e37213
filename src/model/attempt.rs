//! One run at a job, numbered from 1 for ever.

use serde::{Deserialize, Serialize};

use super::job::JobKey;
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
