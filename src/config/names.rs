//! Names of sources and subscriptions: they become paths, queues, labels and keys, so they are few characters and for ever.

use super::reader::Table;
use super::report::Place;

/// Names that the broker's own exchanges and queues have.
const RESERVED: [&str; 5] = ["dead", "outcomes", "unrouted", "jobs", "events"];
const BYTES_MAX: usize = 40;

/// What is wrong with a name, if anything: `[a-z][a-z0-9-]{0,39}` and not reserved.
pub(crate) fn fault(name: &str) -> Option<String> {
    let shape = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !shape {
        return Some(format!(
            "{name:?} is no name: a lower-case letter, then letters, digits and `-`, {BYTES_MAX} at most"
        ));
    }
    RESERVED.contains(&name).then(|| format!("{name:?} is a name of the broker's own: choose another"))
}

/// Notes what is wrong with a name, or returns it.
pub(crate) fn check(table: &Table<'_>, name: &str, place: &Place) -> Option<String> {
    match fault(name) {
        None => Some(name.to_owned()),
        Some(why) => {
            table.mistake(place, why);
            None
        }
    }
}

/// Reads a required name; it is returned even if it is wrong, so that what follows can speak of it.
pub(crate) fn read(table: &Table<'_>, key: &'static str) -> String {
    let name = table.required_text(key);
    if table.has(key) && !name.is_empty() {
        check(table, &name, &table.place_of(key));
    } else if table.has(key) {
        table.mistake(&table.place_of(key), format!("`{key}` is empty"));
    }
    name
}
