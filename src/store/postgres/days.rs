//! Days of payload partitions: a day's table holds the bodies whose ids were made on it (UTC).

use uuid::Uuid;

/// Microseconds in a day.
pub(super) const DAY: i64 = 86_400_000_000;

/// A day, counted from 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Day(i64);

impl Day {
    /// The day of a moment in UTC microseconds.
    pub(super) fn of(at: i64) -> Self {
        Self(at.div_euclid(DAY))
    }

    pub(super) fn plus(self, days: u32) -> Self {
        Self(self.0 + i64::from(days))
    }

    /// Its first microsecond.
    pub(super) fn starts_at(self) -> i64 {
        self.0 * DAY
    }

    /// The microsecond after its last.
    pub(super) fn ends_at(self) -> i64 {
        self.plus(1).starts_at()
    }

    /// The smallest id of the day; that of the next day is the upper bound.
    pub(super) fn first_id(self) -> Uuid {
        let millis = u64::try_from(self.starts_at() / 1000).unwrap_or(0);
        Uuid::from_u64_pair(millis << 16, 0)
    }

    /// `payloads_20261130`: letters and digits only.
    pub(super) fn table(self) -> String {
        let seconds = self.starts_at() / 1_000_000;
        let date =
            time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH).date();
        format!("payloads_{:04}{:02}{:02}", date.year(), u8::from(date.month()), date.day())
    }

    /// The day whose table is called `name`.
    pub(super) fn from_table(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("payloads_").filter(|digits| digits.len() == 8)?;
        let month = time::Month::try_from(digits.get(4..6)?.parse::<u8>().ok()?).ok()?;
        let date =
            time::Date::from_calendar_date(digits.get(..4)?.parse().ok()?, month, digits.get(6..)?.parse().ok()?);
        Some(Self(date.ok()?.midnight().assume_utc().unix_timestamp().div_euclid(86_400)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::PayloadId;
    use crate::random::SeededRandom;

    #[test]
    fn a_day_holds_the_ids_of_its_first_and_last_millisecond_and_no_others() {
        let random = SeededRandom::new(7);
        let day = Day::of(1_796_083_200_000_000);
        assert_eq!(day.table(), "payloads_20261201");
        assert_eq!(Day::from_table("payloads_20261201"), Some(day));
        let holds = |at: i64| {
            let id = PayloadId::new(at, &random).0;
            day.first_id() <= id && id < day.plus(1).first_id()
        };
        assert!(holds(day.starts_at()) && holds(day.ends_at() - 1));
        assert!(!holds(day.starts_at() - 1) && !holds(day.ends_at()));
    }

    #[test]
    fn other_tables_are_no_days() {
        for name in
            ["payloads", "payloads_kept", "payloads_2026113", "payloads_20261301", "payloads_20260230", "receipts"]
        {
            assert_eq!(Day::from_table(name), None, "{name}");
        }
        assert_eq!(Day::from_table("payloads_20240229").map(Day::table).as_deref(), Some("payloads_20240229"));
    }
}
