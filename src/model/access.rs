//! Who asks, and what that lets them do.

/// What a token is for; each role may do what the ones before it may, but for `consumer`, which is a world of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Claims and reports the jobs of its own subscriptions, and reads their bodies.
    Consumer,
    /// Reads everything, bodies apart.
    Viewer,
    /// Also reads bodies, replays, dismisses, pauses.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Consumer, Self::Viewer, Self::Operator, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token's name, for the history and the audit.
    pub name: String,
    pub role: Role,
    /// A consumer's scope: the subscriptions whose jobs are its business.
    pub subscriptions: Vec<String>,
}

impl Caller {
    /// May claim and report jobs of `subscription` (each report also needs the attempt's own token).
    pub fn may_consume(&self, subscription: &str) -> bool {
        match self.role {
            Role::Consumer => self.subscriptions.iter().any(|name| name == subscription),
            Role::Viewer => false,
            Role::Operator | Role::Admin => true,
        }
    }

    /// May look at receipts, jobs and rejections.
    pub fn may_view(&self) -> bool {
        self.role >= Role::Viewer
    }

    /// May replay, dismiss and read bodies.
    pub fn may_operate(&self) -> bool {
        self.role >= Role::Operator
    }
}
