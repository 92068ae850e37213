//! Times in requests: strict for what is signed, lenient for what only informs.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::clock::MICROS_PER_SECOND;

/// Milliseconds have had twelve digits and more since 1973; seconds will not have them for 29,000 years.
const MILLIS_DIGITS_MIN: usize = 12;

/// How a time is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Millis,
    Iso8601,
    /// Either, told apart by the number of digits.
    SecondsOrMillis,
    /// Whatever it looks like; never for a signed time.
    Auto,
}

impl Unit {
    /// The unit of this name in a provider file.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "s" => Some(Self::Seconds),
            "ms" => Some(Self::Millis),
            "iso8601" => Some(Self::Iso8601),
            "s-or-ms" => Some(Self::SecondsOrMillis),
            "auto" => Some(Self::Auto),
            _ => None,
        }
    }

    /// Name in provider files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Iso8601 => "iso8601",
            Self::SecondsOrMillis => "s-or-ms",
            Self::Auto => "auto",
        }
    }

    /// `text` in UTC microseconds; `None` for anything that is not exactly one time in this unit.
    pub fn read(self, text: &[u8]) -> Option<i64> {
        match self {
            Self::Seconds => digits(text)?.checked_mul(MICROS_PER_SECOND),
            Self::Millis => digits(text)?.checked_mul(1000),
            Self::SecondsOrMillis if text.len() >= MILLIS_DIGITS_MIN => Self::Millis.read(text),
            Self::SecondsOrMillis => Self::Seconds.read(text),
            Self::Iso8601 => iso(std::str::from_utf8(text).ok()?),
            Self::Auto => auto(text),
        }
    }

    /// `micros` as this unit writes it.
    pub fn write(self, micros: i64) -> String {
        match self {
            Self::Seconds | Self::SecondsOrMillis | Self::Auto => (micros / MICROS_PER_SECOND).to_string(),
            Self::Millis => (micros / 1000).to_string(),
            Self::Iso8601 => iso_text(micros),
        }
    }
}

/// `micros` as `2026-01-02T03:04:05Z`, with a fraction if there is one.
pub fn iso_text(micros: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// Digits alone: no sign, no space, no leading zero, no fraction.
fn digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) || (text[0] == b'0' && text.len() > 1)
    {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn iso(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1000).ok()
}

fn auto(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if let Some(number) = digits(whole.as_bytes()) {
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        if whole.len() >= MILLIS_DIGITS_MIN {
            return number.checked_mul(1000);
        }
        let micros: i64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        return number.checked_mul(MICROS_PER_SECOND)?.checked_add(micros);
    }
    iso(text).or_else(|| iso(&format!("{text}Z"))).or_else(|| {
        // `+0200` without its colon.
        let cut = text.len().checked_sub(2)?;
        iso(&format!("{}:{}", text.get(..cut)?, text.get(cut..)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w071_garbage_is_no_time() {
        for text in [
            "abc",
            "",
            "1e9",
            "0x10",
            " 1700000000",
            "1700000000.5",
            "-1",
            "+1700000000",
            "99999999999999999999",
            "1700000000 ",
            "007",
        ] {
            assert_eq!(Unit::Seconds.read(text.as_bytes()), None, "{text}");
            assert_eq!(Unit::Millis.read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Unit::Seconds.read(b"1700000000"), Some(1_700_000_000_000_000));
        assert_eq!(Unit::Millis.read(b"1700000000123"), Some(1_700_000_000_123_000));
        assert_eq!(Unit::Seconds.read(b"999999999999999999"), None);
        assert_eq!(Unit::Iso8601.read(b"2023-11-14T22:13:20+00:00"), Some(1_700_000_000_000_000));
        assert_eq!(Unit::Iso8601.read(b"2023-11-14"), None);
    }

    #[test]
    fn what_only_informs_is_read_leniently() {
        for text in [
            "1700000000",
            "1700000000000",
            "1700000000.0",
            "2023-11-14T22:13:20Z",
            "2023-11-14T22:13:20",
            "2023-11-15T00:13:20+0200",
            "2023-11-15T00:13:20+02:00",
        ] {
            assert_eq!(Unit::Auto.read(text.as_bytes()), Some(1_700_000_000_000_000), "{text}");
        }
        assert_eq!(Unit::Auto.read(b"soon"), None);
    }

    #[test]
    fn writing_and_reading_agree() {
        let at = 1_700_000_000_000_000;
        for unit in [Unit::Seconds, Unit::Millis, Unit::Iso8601] {
            assert_eq!(unit.read(unit.write(at).as_bytes()), Some(at));
        }
    }
}
