//! What the commands print. Standard output carries results alone, so that it can be piped; everything else goes to
//! standard error. A reader that has left (`| head`) is no error.

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use serde::Serialize;

/// One line of the result.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Exact bytes of the result.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// The result for programs.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    say(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// One line for people, beside the result.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Rows under headings, as wide as their widest cell.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(headings: [&'static str; N]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.headings.len());
        self.rows.push(cells.map(|cell| plain(&cell)).to_vec());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let headings: Vec<String> = self.headings.iter().map(|&heading| heading.to_owned()).collect();
        let widths: Vec<usize> = (0..headings.len())
            .map(|column| self.rows.iter().chain([&headings]).map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        for (n, row) in [&headings].into_iter().chain(&self.rows).enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:<width$}  ")?;
            }
            let end = if n == self.rows.len() { "" } else { "\n" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A stranger's text must not move the cursor of an operator's terminal, or break a row.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `2026-12-01T10:00:00.123456Z` without its fraction.
pub(crate) fn short_time(moment: &str) -> String {
    match moment.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => moment.to_owned(),
    }
}

/// A dash for what is not there.
pub(crate) fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".to_owned())
}
