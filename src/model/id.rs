//! Ids as types of their own: UUIDv7, made by the application so that a skipped insert burns no sequence number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::random::Random;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id whose order follows `now` (UTC microseconds).
            pub fn new(now: i64, random: &dyn Random) -> Self {
                Self(uuid_v7(now, random))
            }

            /// The moment in the id, in UTC microseconds, rounded down to milliseconds.
            pub fn created_at(&self) -> i64 {
                let (high, _) = self.0.as_u64_pair();
                i64::try_from(high >> 16).unwrap_or(i64::MAX / 1000) * 1000
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id!(
    /// A receipt's id; also `message_id` in the broker and the `Makbuz-Receipt` header.
    ReceiptId
);
id!(
    /// A stored body's id; its time picks the partition.
    PayloadId
);
id!(
    /// One hand-over that waits for the broker.
    OutboxId
);

/// A UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits.
pub fn uuid_v7(now: i64, random: &dyn Random) -> Uuid {
    let mut tail = [0; 10];
    random.fill(&mut tail);
    let millis = u64::try_from(now / 1000).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid()
}
