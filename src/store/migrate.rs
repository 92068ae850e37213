//! Which schema this binary needs, which it refuses, and what is still to be applied. The backends give the SQL, the lock
//! and the table `schema_migrations (number, name, checksum, min_binary, applied_at)`; the decisions are here, once.

use sha2::{Digest, Sha256};

use super::StoreError;

/// The newest schema number that this binary knows.
pub const BINARY_SCHEMA: u32 = 1;

/// Name in `settings` of the key from which lease tokens are made; `migrate` makes it.
pub const TOKEN_KEY_SETTING: &str = "token_key";

/// One step of the schema; the numbers and names are the same on every backend.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub number: u32,
    pub name: &'static str,
    pub sql: &'static str,
    /// The oldest binary, by its [`BINARY_SCHEMA`], that may run on the schema once this step is applied.
    pub min_binary: u32,
}

impl Migration {
    /// SHA-256 of the SQL: a step that was applied is never rewritten.
    pub fn checksum(&self) -> [u8; 32] {
        Sha256::digest(self.sql.as_bytes()).into()
    }
}

/// A row of `schema_migrations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub number: u32,
    pub checksum: [u8; 32],
    pub min_binary: u32,
}

/// What is still to be applied, in order. Fails where this binary must not touch the schema.
pub fn pending<'a>(applied: &[Applied], known: &'a [Migration], binary: u32) -> Result<Vec<&'a Migration>, StoreError> {
    allow(applied, binary)?;
    for step in applied {
        if let Some(migration) = known.iter().find(|migration| migration.number == step.number)
            && migration.checksum() != step.checksum
        {
            return Err(StoreError::Schema(format!(
                "migration {} ({}) was applied with other text than this binary has",
                step.number, migration.name
            )));
        }
    }
    let newest = applied.iter().map(|step| step.number).max().unwrap_or(0);
    Ok(known.iter().filter(|migration| migration.number > newest).collect())
}

/// Refuses a schema that does not allow this binary.
pub fn allow(applied: &[Applied], binary: u32) -> Result<(), StoreError> {
    let needed = applied.iter().map(|step| step.min_binary).max().unwrap_or(0);
    if needed > binary {
        return Err(StoreError::Schema(format!(
            "the database needs a binary of schema {needed} or newer, and this one is of schema {binary}"
        )));
    }
    Ok(())
}

/// Refuses a schema on which something is still to be applied, for binaries that do not migrate by themselves.
pub fn complete(applied: &[Applied], known: &[Migration], binary: u32) -> Result<(), StoreError> {
    match pending(applied, known, binary)?.first() {
        Some(next) => Err(StoreError::Schema(format!(
            "migration {} ({}) is not applied: run `makbuz migrate`",
            next.number, next.name
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Migration; 2] = [
        Migration { number: 1, name: "schema", sql: "one", min_binary: 1 },
        Migration { number: 2, name: "more", sql: "two", min_binary: 1 },
    ];

    fn applied(migration: &Migration) -> Applied {
        Applied { number: migration.number, checksum: migration.checksum(), min_binary: migration.min_binary }
    }

    #[test]
    fn only_what_is_newer_is_pending() {
        assert_eq!(pending(&[], &KNOWN, 2).unwrap().len(), 2);
        assert_eq!(pending(&[applied(&KNOWN[0])], &KNOWN, 2).unwrap()[0].number, 2);
        assert!(complete(&[applied(&KNOWN[0])], &KNOWN, 2).is_err());
        assert!(complete(&[applied(&KNOWN[0]), applied(&KNOWN[1])], &KNOWN, 2).is_ok());
    }

    #[test]
    fn an_older_binary_runs_on_a_newer_schema_only_if_that_allows_it() {
        let newer = Applied { number: 3, checksum: [0; 32], min_binary: 2 };
        assert!(pending(std::slice::from_ref(&newer), &KNOWN, 2).unwrap().is_empty());
        let error = pending(&[newer], &KNOWN, 1).unwrap_err();
        assert_eq!(error.code(), "schema");
    }

    #[test]
    fn rewritten_history_is_refused() {
        let other = Applied { number: 1, checksum: [7; 32], min_binary: 1 };
        assert_eq!(pending(&[other], &KNOWN, 2).unwrap_err().code(), "schema");
    }
}
