//! What a database error means for the transaction it struck, and what the caller hears of it.

use crate::store::StoreError;

/// What must follow a failed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// Serialization failure or deadlock: run the transaction again.
    Again,
    /// One of the rows is at fault: split the batch.
    Row,
    /// A row or a table is locked elsewhere for too long: intake splits the batch, so that one key alone waits; for all
    /// others the store is away for now.
    Locked,
    /// A body's day has no partition yet: make it, run the transaction again.
    MissingDay,
    /// The server is a standby or set read-only: throw the connection away.
    ReadOnly,
    /// The connection is of no more use.
    Lost,
    /// The server refused for a reason of its own (no space, no such table, statement timeout).
    Refused,
}

impl Failure {
    /// What `error` means.
    pub(super) fn of(error: &sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = error else {
            return match error {
                sqlx::Error::Encode(_) => Self::Row,
                sqlx::Error::RowNotFound | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Self::Refused,
                _ => Self::Lost,
            };
        };
        let code = database.code().unwrap_or_default();
        // The message is in the server's language; the routing error is the only 23514 on the table without a constraint.
        if code == "23514" && database.table() == Some("payloads") && database.constraint().is_none() {
            return Self::MissingDay;
        }
        match &*code {
            "40001" | "40P01" => Self::Again,
            "55P03" => Self::Locked,
            "54000" => Self::Row,
            "25006" => Self::ReadOnly,
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => Self::Lost,
            _ if code.starts_with("22") || code.starts_with("23") => Self::Row,
            _ if code.starts_with("08") => Self::Lost,
            _ => Self::Refused,
        }
    }

    /// Whether the connection may serve again after a ROLLBACK.
    pub(super) fn spares_connection(self) -> bool {
        !matches!(self, Self::ReadOnly | Self::Lost)
    }
}

/// What the caller hears.
pub(super) fn store_error(error: &sqlx::Error) -> StoreError {
    match Failure::of(error) {
        Failure::Row | Failure::Locked => StoreError::Row(error.to_string()),
        Failure::ReadOnly => StoreError::Unavailable(format!("the database is read-only: {error}")),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// The failure of a COMMIT whose answer did not come, or came as an error.
pub(super) fn commit_error(error: &sqlx::Error) -> StoreError {
    StoreError::UnknownOutcome(error.to_string())
}
