//! The configuration's reference, as README.md shows it: made from the schemas, so that it cannot say anything else.

use std::fmt::Write as _;

use super::reader::Schema;
use super::{LISTS, SECTIONS, sources, subscriptions};

/// Every table of the file with its keys, as Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for schema in all() {
        let title = if schema.title.starts_with('[') { format!("`{}`", schema.title) } else { schema.title.to_owned() };
        // Unwrap safety: writing to a String does not fail.
        let _ = write!(text, "\n{title}\n\n| key | value | default | |\n|---|---|---|---|\n");
        for key in schema.keys {
            let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
            let _ = writeln!(text, "| `{}` | {} | {default} | {} |", key.name, key.kind, key.help);
        }
    }
    text
}

fn all() -> impl Iterator<Item = &'static Schema> {
    let nested: [&Schema; 4] =
        [&sources::SECRET, &subscriptions::FILTER, &subscriptions::RETRY, &subscriptions::JITTER];
    SECTIONS.into_iter().chain(LISTS).chain(nested)
}
