//! What can go wrong with the store, by what the caller must do about it.

/// A store's failure. `code()` is stable; the text is for the log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The intake queue or its byte budget is full: 503, try again.
    #[error("the intake queue is full")]
    Busy,
    /// The database cannot be reached, is read-only, or refuses work.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// COMMIT was sent and no answer came: it may stand or not.
    #[error("the outcome of the commit is unknown: {0}")]
    UnknownOutcome(String),
    /// This one row cannot be stored as it is (a key locked elsewhere, a value the database refuses).
    #[error("the row was refused: {0}")]
    Row(String),
    /// No such job, receipt or body.
    #[error("not found")]
    NotFound,
    /// The body's retention is over.
    #[error("the body is gone")]
    BodyGone,
    /// The job is not where this move may start; the code says why.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// The schema in the database is not one for this binary.
    #[error("schema: {0}")]
    Schema(String),
    /// Another instance owns the database file (SQLite).
    #[error("in use: {0}")]
    InUse(String),
}

impl StoreError {
    /// Only this piece of work failed; the transaction around it, and the connection, are sound.
    pub fn is_of_the_work(&self) -> bool {
        matches!(self, Self::Row(_) | Self::NotFound | Self::BodyGone | Self::Refused(_))
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Unavailable(_) => "store_unavailable",
            Self::UnknownOutcome(_) => "commit_unknown",
            Self::Row(_) => "row_refused",
            Self::NotFound => "not_found",
            Self::BodyGone => "body_gone",
            Self::Refused(code) => code,
            Self::Schema(_) => "schema",
            Self::InUse(_) => "store_in_use",
        }
    }
}
