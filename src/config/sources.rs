//! `[[source]]` and `[[source.secret]]`: inlets, their providers and their secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml::de::{DeTable, DeValue};

use super::listeners::base_url;
use super::names;
use super::reader::{Context, Schema, Table, key};
use super::report::Place;
use super::secret::{self, Secret};
use super::units;

pub(crate) const SOURCE: Schema = Schema {
    title: "[[source]]",
    keys: &[
        key("name", "name", "", "Required; its path is `/in/NAME`"),
        key("provider", "name", "", "Required; a name of `makbuz providers list`"),
        key("secrets", "list of `env:`/`file:`", "[]", "The provider's secrets; each of them may sign"),
        key("secret", "tables", "", "`[[source.secret]]`, where more must be said of a secret"),
        key(
            "params",
            "table",
            "",
            "What the scheme needs beside the secret, such as `{ merchant_id = \"…\" }`; values may be `env:`/`file:`",
        ),
        key("url", "URL", "", "The public URL, for schemes that sign it; default `[edge] public_url` and the path"),
        key("account", "text", "", "Account of events that name none; default `@NAME`"),
        key("account_in_path", "true or false", "false", "The path is `/in/NAME/ACCOUNT`"),
        key("paths", "list of paths", "[]", "Further exact paths, to take over existing endpoints"),
        key("aliases", "list of names", "[]", "Former names: `/in/ALIAS` still works"),
        key(
            "redirect",
            "table",
            "",
            "Where a customer's browser is sent: `{ accepted, refused, later }`, for browser-carried providers",
        ),
        key(
            "tolerance",
            "time",
            "",
            "Allowed gap between the signed time and the arrival; default as the provider file says",
        ),
        key("body_max", "size", "", "Largest body; default the larger of `[edge] body_max` and the provider file's"),
        key("malformed", "`hold` or `deliver`", "hold", "What becomes of authentic events that cannot be read"),
        key(
            "replay_guard",
            "true or false",
            "",
            "Whether the same signed content under a new unsigned id is held; default as the provider file says",
        ),
    ],
    later: &["fetch", "reconcile", "allow_from"],
};

pub(crate) const SECRET: Schema = Schema {
    title: "[[source.secret]]",
    keys: &[
        key("value", "`env:`/`file:`", "", "Required; the secret"),
        key("label", "text", "", "Its name in metrics and receipts; default the variable's or the file's name"),
        key("not_before", "time with zone", "", "Verifies nothing before, such as `2026-12-01T00:00:00Z`"),
        key("not_after", "time with zone", "", "Verifies nothing after"),
        key("params", "table", "", "Laid over the source's `params`"),
    ],
    later: &[],
};

const REDIRECT: Schema = Schema {
    title: "`redirect`",
    keys: &[
        key("accepted", "URL", "", "Required; the form is authentic and kept"),
        key("refused", "URL", "", "Required; the form did not verify"),
        key("later", "URL", "", "Required; our own fault, after three tries"),
    ],
    later: &["declined"],
};

/// One `[[source]]`.
#[derive(Debug, Clone)]
pub struct SourceSection {
    pub name: String,
    pub provider: String,
    pub secrets: Vec<SecretEntry>,
    pub params: BTreeMap<String, Secret>,
    pub url: Option<String>,
    pub account: Option<String>,
    pub account_in_path: bool,
    pub paths: Vec<String>,
    pub aliases: Vec<String>,
    pub redirect: Option<Redirect>,
    pub tolerance: Option<Duration>,
    pub body_max: Option<usize>,
    pub hold_malformed: bool,
    pub replay_guard: Option<bool>,
    /// Where it stands, for what only `check` can find wrong.
    pub place: Place,
}

/// One secret of a source. Times are UTC microseconds.
#[derive(Debug, Clone)]
pub struct SecretEntry {
    pub label: String,
    pub value: Secret,
    pub not_before: Option<i64>,
    pub not_after: Option<i64>,
    pub params: BTreeMap<String, Secret>,
}

/// Where a customer's browser goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub accepted: String,
    pub refused: String,
    pub later: String,
}

pub(crate) fn read_source(table: &Table<'_>) -> SourceSection {
    let name = names::read(table, "name");
    let mut secrets = Vec::new();
    for (reference, place) in table.texts("secrets") {
        let value = table.load_secret(&reference, &place);
        secrets.extend(value.map(|value| (SecretEntry::plain(default_label(&reference), value), place)));
    }
    for (inner, place) in table.tables("secret") {
        let inner = Table::of(table.context(), &SECRET, inner, place.clone());
        secrets.extend(read_secret(&inner).map(|entry| (entry, place)));
    }
    let section = SourceSection {
        provider: table.required_text("provider"),
        secrets: refuse_repeated(table, secrets),
        params: table
            .table("params")
            .map(|(params, place)| read_params(table.context(), params, &place))
            .unwrap_or_default(),
        url: table.optional("url", base_url),
        account: table.optional("account", account),
        account_in_path: table.flag("account_in_path"),
        paths: read_paths(table),
        aliases: table
            .texts("aliases")
            .into_iter()
            .filter_map(|(alias, place)| names::check(table, &alias, &place))
            .collect(),
        redirect: table
            .table("redirect")
            .map(|(inner, place)| read_redirect(&Table::of(table.context(), &REDIRECT, inner, place))),
        tolerance: table.optional("tolerance", tolerance),
        body_max: table.optional("body_max", body_max),
        hold_malformed: table.choice("malformed", &[("hold", true), ("deliver", false)]),
        replay_guard: table.optional_flag("replay_guard"),
        place: table.place.clone(),
        name,
    };
    if section.account_in_path && section.account.is_some() {
        table.mistake(&table.place_of("account"), "`account` and `account_in_path` both say whose events they are");
    }
    section
}

impl SecretEntry {
    fn plain(label: String, value: Secret) -> Self {
        Self { label, value, not_before: None, not_after: None, params: BTreeMap::new() }
    }
}

fn read_secret(table: &Table<'_>) -> Option<SecretEntry> {
    let reference = table.required_text("value");
    let value = if reference.is_empty() { None } else { table.load_secret(&reference, &table.place_of("value")) };
    let label = table.optional("label", label).unwrap_or_else(|| default_label(&reference));
    let (not_before, not_after) = (moment(table, "not_before"), moment(table, "not_after"));
    if let (Some(start), Some(end)) = (not_before, not_after)
        && start >= end
    {
        table.mistake(&table.place_of("not_after"), "`not_after` is not later than `not_before`");
    }
    let params =
        table.table("params").map(|(params, place)| read_params(table.context(), params, &place)).unwrap_or_default();
    value.map(|value| SecretEntry { label, value, not_before, not_after, params })
}

/// Two entries with one value or one label would hide which of them matched.
fn refuse_repeated(table: &Table<'_>, entries: Vec<(SecretEntry, Place)>) -> Vec<SecretEntry> {
    let mut kept: Vec<SecretEntry> = Vec::new();
    for (entry, place) in entries {
        if kept.iter().any(|other| {
            other.value.expose() == entry.value.expose() && other.params.is_empty() && entry.params.is_empty()
        }) {
            table.mistake(&place, format!("{} has the same value as another secret of this source", entry.value));
        } else if kept.iter().any(|other| other.label == entry.label) {
            table.mistake(
                &place,
                format!("another secret of this source is labelled {:?} too: give a `label`", entry.label),
            );
        }
        kept.push(entry);
    }
    kept
}

/// Values of `params` are texts; a reference is read as a secret.
fn read_params(context: &Context<'_>, params: &DeTable<'_>, place: &Place) -> BTreeMap<String, Secret> {
    let mut read = BTreeMap::new();
    for (name, value) in params {
        let at = context.report.place(&name.span());
        let name = name.get_ref().to_string();
        let DeValue::String(text) = value.get_ref() else {
            context.report.mistake(&at, format!("`params.{name}` is a text, in quotes"));
            continue;
        };
        if !secret::is_reference(text) {
            read.insert(name, Secret::new(text.as_bytes().to_vec(), "params"));
            continue;
        }
        match secret::load(text, context.environment, context.base) {
            Ok(loaded) => {
                loaded.warning.into_iter().for_each(|warning| context.report.warning(place, warning));
                read.insert(name, loaded.secret);
            }
            Err(why) => context.report.mistake(&at, why),
        }
    }
    read
}

fn read_paths(table: &Table<'_>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    for (path, place) in table.texts("paths") {
        let plain =
            path.starts_with('/') && path.len() > 1 && path.len() <= 512 && !path.contains(['?', '#', ' ', '{', '*']);
        if !plain {
            table.mistake(&place, format!("{path:?} is no path: it begins with `/` and has no query and no pattern"));
        } else if path == "/in" || path.starts_with("/in/") {
            table.mistake(&place, format!("{path:?}: `/in/` belongs to the sources' own paths"));
        } else if !seen.insert(path.trim_end_matches('/').to_owned()) {
            table.mistake(&place, format!("{path:?} stands here twice"));
        }
    }
    seen.into_iter().collect()
}

fn read_redirect(table: &Table<'_>) -> Redirect {
    let read = |name| {
        if !table.has(name) {
            table.mistake(&table.place, format!("`redirect` needs `{name}`"));
        }
        table.optional(name, redirect_url).unwrap_or_default()
    };
    Redirect { accepted: read("accepted"), refused: read("refused"), later: read("later") }
}

fn redirect_url(text: &str) -> Result<String, String> {
    let good = text
        .parse::<http::Uri>()
        .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is no http(s) URL")) }
}

fn default_label(reference: &str) -> String {
    let name = reference.split_once(':').map_or(reference, |(_, name)| name);
    name.rsplit('/').next().unwrap_or(name).chars().take(LABEL_CHARS_MAX).collect()
}

const LABEL_CHARS_MAX: usize = 60;

fn label(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text.chars().count() <= LABEL_CHARS_MAX
        && text != "store"
        && !text.contains(char::is_control);
    if good {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is no label: 1 to {LABEL_CHARS_MAX} characters, and not \"store\""))
    }
}

fn account(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 128 {
        Err("an account has 1 to 128 bytes".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

fn tolerance(text: &str) -> Result<Duration, String> {
    let span = units::duration(text)?;
    let most = Duration::from_secs(400 * 86_400);
    if span >= Duration::from_secs(1) && span <= most {
        Ok(span)
    } else {
        Err(format!("{text} is not from 1s to 400days"))
    }
}

fn body_max(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    if (1024..=256 << 20).contains(&bytes) {
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    } else {
        Err(format!("{text} is not from 1KiB to 256MiB"))
    }
}

fn moment(table: &Table<'_>, name: &'static str) -> Option<i64> {
    let text = table.datetime(name)?;
    match OffsetDateTime::parse(&text, &Rfc3339) {
        Ok(at) => i64::try_from(at.unix_timestamp_nanos() / 1000).ok(),
        Err(_) => {
            table.mistake(
                &table.place_of(name),
                format!("`{name}`: {text} is no time with a zone, such as 2026-12-01T00:00:00Z"),
            );
            None
        }
    }
}
