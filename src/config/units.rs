//! Times and sizes with units, and what is said when the unit is missing.

use std::time::Duration;

const SIZES: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// `5MiB`, `64KiB`, `200B`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no size: write a number and a unit, such as \"5MiB\" (B, KiB, MiB, GiB, KB, MB, GB)");
    let (unit, factor) = SIZES.into_iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: u64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// `8s`, `250ms`, `5min`, `1h 30min`, `90d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is no time: write a number and a unit, such as \"8s\" (ms, s, min, h, d)"))
}

/// A size as people write it; exact.
pub(crate) fn size_text(bytes: u64) -> String {
    let whole = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match whole.into_iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}
