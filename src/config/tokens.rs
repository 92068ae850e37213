//! `[[token]]`: who may speak to the operators' and the consumers' listener.

use super::names;
use super::reader::{Schema, Table, key};
use super::report::Place;
use super::secret::Secret;
use crate::model::access::Role;

pub(crate) const TOKEN: Schema = Schema {
    title: "[[token]]",
    keys: &[
        key("name", "name", "", "Required; stands in the history as who did it"),
        key("value", "`env:`/`file:`", "", "Required; the bearer token, 16 bytes or more"),
        key("role", "`consumer`, `viewer`, `operator` or `admin`", "", "Required; what it may do"),
        key("subscriptions", "list of names", "[]", "A consumer's scope; required for `consumer`, refused for others"),
    ],
    later: &["sources", "expires"],
};

/// Shorter ones can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// One `[[token]]`.
#[derive(Debug, Clone)]
pub struct TokenSection {
    pub name: String,
    pub value: Secret,
    pub role: Role,
    pub subscriptions: Vec<(String, Place)>,
}

/// Reads a token; `None` after a mistake that is already noted.
pub(crate) fn read_token(table: &Table<'_>) -> Option<TokenSection> {
    let name = names::read(table, "name");
    let given = table.required_text("value");
    let value = if given.is_empty() { None } else { table.secret("value") };
    let role = table.required_text("role");
    let subscriptions = table.texts("subscriptions");
    if let Some(value) = value.as_ref().filter(|value| value.bytes() < TOKEN_BYTES_MIN) {
        table.mistake(&table.place_of("value"), format!("{value} has fewer than {TOKEN_BYTES_MIN} bytes"));
    }
    let printable = |value: &&Secret| !value.expose().iter().all(u8::is_ascii_graphic);
    if let Some(value) = value.as_ref().filter(printable) {
        table.mistake(
            &table.place_of("value"),
            format!("{value} has bytes that no header carries: use printable ASCII without spaces"),
        );
    }
    let known = Role::parse(&role);
    if known.is_none() && table.has("role") {
        table.mistake(
            &table.place_of("role"),
            format!("{role:?} is none of \"consumer\", \"viewer\", \"operator\", \"admin\""),
        );
    }
    match known {
        Some(Role::Consumer) if subscriptions.is_empty() => {
            table.mistake(&table.place, "a token of role consumer needs `subscriptions`");
        }
        Some(Role::Viewer | Role::Operator | Role::Admin) if !subscriptions.is_empty() => {
            table.mistake(&table.place_of("subscriptions"), "only tokens of role consumer have `subscriptions`");
        }
        _ => {}
    }
    Some(TokenSection { name, value: value?, role: known?, subscriptions })
}
