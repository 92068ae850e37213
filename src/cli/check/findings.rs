//! What `check` found.

use serde::Serialize;

use crate::store::Severity;

/// One thing that is as it should be, or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// `ok`, `warn`, `error`.
    pub severity: &'static str,
    /// `config`, `store`, `source stripe-eu` …
    pub what: String,
    pub text: String,
}

/// All of them, in the order in which they were looked for.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    all: Vec<Finding>,
    worst: Option<Severity>,
}

impl Findings {
    pub fn ok(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.add(Severity::Ok, what, text);
    }

    pub fn warning(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.add(Severity::Warning, what, text);
    }

    pub fn error(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.add(Severity::Error, what, text);
    }

    pub fn add(&mut self, severity: Severity, what: impl Into<String>, text: impl Into<String>) {
        self.worst = self.worst.max(Some(severity));
        let word = match severity {
            Severity::Ok => "ok",
            Severity::Warning => "warn",
            Severity::Error => "error",
        };
        self.all.push(Finding { severity: word, what: what.into(), text: text.into() });
    }

    pub fn all(&self) -> &[Finding] {
        &self.all
    }

    pub fn worst(&self) -> Severity {
        self.worst.unwrap_or(Severity::Ok)
    }
}
