//! The SQL of one transaction's statements. Each text is static and has its name in its first line; each function is one
//! round trip unless it says otherwise, and leaves what an error means to its caller.

pub(super) mod bodies;
pub(super) mod due;
pub(super) mod intake;
pub(super) mod jobs;
pub(super) mod outbox;
pub(super) mod repeats;

use crate::model::job::JobKey;
use uuid::Uuid;

/// Job keys as two arrays.
fn key_columns<'a>(keys: impl IntoIterator<Item = &'a JobKey>) -> (Vec<Uuid>, Vec<&'a str>) {
    keys.into_iter().map(|key| (key.receipt.0, key.subscription.as_str())).unzip()
}
