//! What a consumer reports of an attempt: the body that AMQP and HTTP share.

use serde::{Deserialize, Serialize};

/// How an attempt went, in the consumer's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeKind {
    Started,
    Completed,
    /// Try again.
    Failed,
    /// Do not try again.
    Rejected,
}

impl OutcomeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Started, Self::Completed, Self::Failed, Self::Rejected].into_iter().find(|kind| kind.as_str() == text)
    }
}
