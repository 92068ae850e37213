//! One process owns the file: an operating system's lock on a file beside it, gone with the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Held as long as it lives.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

/// Takes the lock, or says who is in the way.
pub(super) fn take(database: &Path) -> Result<FileLock, StoreError> {
    let path = lock_path(database);
    let cannot = |error: std::io::Error| StoreError::Unavailable(format!("cannot lock {}: {error}", path.display()));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(FileLock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(format!(
            "{} is in use by another running makbuz; stop it, or use PostgreSQL to run several",
            database.display()
        ))),
        Err(TryLockError::Error(error)) => Err(cannot(error)),
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}
