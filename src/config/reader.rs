//! Reads tables by their declared keys. A default is parsed from the same text that the reference shows, so the two
//! cannot differ, and a wrong value costs one remark and never ends the reading.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::report::{Place, Report};
use super::secret::{self, Secret};
use super::units;

/// One key that a section knows, as the reference in README.md shows it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// What kind of value it takes: `size`, `time`, `address` …
    pub kind: &'static str,
    /// Its default as one would write it; empty where there is none.
    pub default: &'static str,
    pub help: &'static str,
}

pub(crate) const fn key(name: &'static str, kind: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, kind, default, help }
}

/// What a kind of table may hold.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// As written in the file: `[edge]`, `[[source]]`.
    pub title: &'static str,
    pub keys: &'static [Key],
    /// Keys that a later version takes; refused with words of their own.
    pub later: &'static [&'static str],
}

/// What all tables of one reading share.
pub(crate) struct Context<'a> {
    pub report: &'a Report,
    pub environment: &'a Environment,
    /// Folder of the file: relative paths start there.
    pub base: &'a Path,
}

/// One table that is being read.
pub(crate) struct Table<'a> {
    context: &'a Context<'a>,
    schema: &'static Schema,
    values: BTreeMap<&'a str, Value<'a>>,
    /// Where the table begins.
    pub place: Place,
    asked: RefCell<BTreeSet<&'static str>>,
}

/// A value and where it stands.
#[derive(Clone)]
pub(crate) struct Value<'a> {
    raw: Raw<'a>,
    pub place: Place,
}

#[derive(Clone)]
enum Raw<'a> {
    Toml(&'a DeValue<'a>),
    /// From a variable: text, whatever the kind.
    Text(&'a str),
}

impl<'a> Table<'a> {
    /// A table that is not in the file.
    pub fn open(context: &'a Context<'a>, schema: &'static Schema) -> Self {
        Self::build(context, schema, None, Place::File)
    }

    /// Opens a table and refuses the keys that its schema does not know.
    pub fn of(context: &'a Context<'a>, schema: &'static Schema, table: &'a DeTable<'a>, place: Place) -> Self {
        Self::build(context, schema, Some(table), place)
    }

    fn build(context: &'a Context<'a>, schema: &'static Schema, table: Option<&'a DeTable<'a>>, place: Place) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in table.into_iter().flatten() {
            let at = context.report.place(&name.span());
            if is_known(context, schema, name.get_ref(), &at) {
                values.insert(name.get_ref().as_ref(), Value { raw: Raw::Toml(value.get_ref()), place: at });
            }
        }
        Self { context, schema, values, place, asked: RefCell::default() }
    }

    /// Lays the values of variables over those of the file.
    pub fn override_with(&mut self, pairs: &'a [(String, String, String)]) {
        for (variable, _, name) in pairs {
            let place = Place::Variable(variable.clone());
            if !is_known(self.context, self.schema, name, &place) {
                continue;
            }
            match self.context.environment.text(variable) {
                Some(text) => {
                    self.values.insert(name.as_str(), Value { raw: Raw::Text(text), place });
                }
                None => self.context.report.mistake(&place, "is not UTF-8"),
            }
        }
    }

    /// Says that the table is not read on purpose.
    pub fn skip(&self) {
        self.asked.borrow_mut().extend(self.schema.keys.iter().map(|key| key.name));
    }

    pub fn mistake(&self, place: &Place, text: impl Into<String>) {
        self.context.report.mistake(place, text);
    }

    pub fn context(&self) -> &'a Context<'a> {
        self.context
    }

    /// Where the key stands, or else its table.
    pub fn place_of(&self, name: &str) -> Place {
        self.values.get(name).map_or_else(|| self.place.clone(), |value| value.place.clone())
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value of a key that the schema declares.
    pub fn value(&self, name: &'static str) -> Option<Value<'a>> {
        debug_assert!(self.schema.keys.iter().any(|key| key.name == name), "{} has no key {name}", self.schema.title);
        self.asked.borrow_mut().insert(name);
        self.values.get(name).cloned()
    }

    pub fn text(&self, name: &'static str) -> Option<String> {
        let value = self.value(name)?;
        match value.raw {
            Raw::Text(text) => Some(text.to_owned()),
            Raw::Toml(DeValue::String(text)) => Some(text.clone().into_owned()),
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "a text", other);
                None
            }
        }
    }

    /// A TOML date-time, or a text that may be one.
    pub fn datetime(&self, name: &'static str) -> Option<String> {
        match self.value(name)?.raw {
            Raw::Toml(DeValue::Datetime(at)) => Some(at.to_string()),
            _ => self.text(name),
        }
    }

    /// A text that must be there.
    pub fn required_text(&self, name: &'static str) -> String {
        if !self.has(name) {
            self.mistake(&self.place, format!("{} needs `{name}`", self.schema.title));
        }
        self.text(name).unwrap_or_default()
    }

    /// What `parse` makes of the text, or of the declared default.
    pub fn parsed<T>(&self, name: &'static str, parse: impl Fn(&str) -> Result<T, String>) -> T {
        let given = self.text(name).and_then(|text| match parse(&text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.mistake(&self.place_of(name), format!("`{name}`: {why}"));
                None
            }
        });
        given.unwrap_or_else(|| {
            // Unwrap safety: a test reads every section without a file, and so parses every default.
            parse(self.default_of(name)).expect("the declared default is right")
        })
    }

    /// The same for a key without a default.
    pub fn optional<T>(&self, name: &'static str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name)?;
        parse(&text).map_err(|why| self.mistake(&self.place_of(name), format!("`{name}`: {why}"))).ok()
    }

    pub fn address(&self, name: &'static str) -> SocketAddr {
        self.parsed(name, address)
    }

    pub fn duration(&self, name: &'static str, range: RangeInclusive<Duration>) -> Duration {
        self.parsed(name, |text| within(units::duration(text)?, &range, |d| humantime::format_duration(*d).to_string()))
    }

    pub fn size(&self, name: &'static str, range: RangeInclusive<u64>) -> usize {
        let bytes = self.parsed(name, |text| within(units::size(text)?, &range, |bytes| units::size_text(*bytes)));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// A whole number within `range`.
    pub fn count(&self, name: &'static str, range: RangeInclusive<u32>) -> u32 {
        let parse = |text: &str| {
            let number = text
                .parse()
                .map_err(|_| format!("{text} is no whole number from {} to {}", range.start(), range.end()))?;
            within(number, &range, u32::to_string)
        };
        let given = self.value(name).and_then(|value| match value.raw {
            Raw::Text(text) => Some(text.to_owned()),
            Raw::Toml(DeValue::Integer(number)) if number.radix() == 10 => Some(number.as_str().to_owned()),
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "a whole number", other);
                None
            }
        });
        let number = given.and_then(|text| {
            parse(&text).map_err(|why| self.mistake(&self.place_of(name), format!("`{name}`: {why}"))).ok()
        });
        // Unwrap safety: a test parses every default.
        number.unwrap_or_else(|| parse(self.default_of(name)).expect("the declared default is right"))
    }

    /// A fraction within `range`.
    pub fn fraction(&self, name: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.value(name)?;
        let text = match value.raw {
            Raw::Text(text) => text,
            Raw::Toml(DeValue::Float(number)) => number.as_str(),
            Raw::Toml(DeValue::Integer(number)) => number.as_str(),
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "a number", other);
                return None;
            }
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            self.mistake(&value.place, format!("`{name}`: {text} is not from {} to {}", range.start(), range.end()));
        }
        number
    }

    pub fn flag(&self, name: &'static str) -> bool {
        self.optional_flag(name).unwrap_or_else(|| self.default_of(name) == "true")
    }

    pub fn optional_flag(&self, name: &'static str) -> Option<bool> {
        let value = self.value(name)?;
        match value.raw {
            Raw::Text("true") | Raw::Toml(DeValue::Boolean(true)) => Some(true),
            Raw::Text("false") | Raw::Toml(DeValue::Boolean(false)) => Some(false),
            Raw::Text(_) => {
                self.mistake(&value.place, format!("`{name}` is true or false"));
                None
            }
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "true or false", other);
                None
            }
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, name: &'static str, words: &[(&str, T)]) -> T {
        self.parsed(name, |text| {
            words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
                let all: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                format!("{text:?} is none of {}", all.join(", "))
            })
        })
    }

    /// A list of texts, each with its place; in a variable they are parted by commas.
    pub fn texts(&self, name: &'static str) -> Vec<(String, Place)> {
        let Some(value) = self.value(name) else { return Vec::new() };
        match value.raw {
            Raw::Text(text) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                parts.map(|part| (part.to_owned(), value.place.clone())).collect()
            }
            Raw::Toml(DeValue::Array(items)) => items.iter().filter_map(|item| self.item_text(name, item)).collect(),
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "a list of texts", other);
                Vec::new()
            }
        }
    }

    fn item_text(&self, name: &str, item: &Spanned<DeValue<'_>>) -> Option<(String, Place)> {
        let place = self.context.report.place(&item.span());
        match item.get_ref() {
            DeValue::String(text) => Some((text.clone().into_owned(), place)),
            other => {
                self.wrong_kind(&place, name, "a list of texts", other);
                None
            }
        }
    }

    /// A secret by reference. A variable that overrides may also hold it itself.
    pub fn secret(&self, name: &'static str) -> Option<Secret> {
        let text = self.text(name)?;
        let place = self.place_of(name);
        if let (Place::Variable(variable), false) = (&place, secret::is_reference(&text)) {
            return self.load_secret(&format!("env:{variable}"), &place);
        }
        self.load_secret(&text, &place)
    }

    /// Reads a reference, and notes what is wrong with it.
    pub fn load_secret(&self, reference: &str, place: &Place) -> Option<Secret> {
        match secret::load(reference, self.context.environment, self.context.base) {
            Ok(loaded) => {
                if let Some(warning) = loaded.warning {
                    self.context.report.warning(place, warning);
                }
                Some(loaded.secret)
            }
            Err(why) => {
                self.mistake(place, why);
                None
            }
        }
    }

    /// The table under a key, written `[a.b]` or inline.
    pub fn table(&self, name: &'static str) -> Option<(&'a DeTable<'a>, Place)> {
        let value = self.value(name)?;
        match value.raw {
            Raw::Toml(DeValue::Table(table)) => Some((table, value.place)),
            Raw::Toml(other) => {
                self.wrong_kind(&value.place, name, "a table", other);
                None
            }
            Raw::Text(_) => {
                self.mistake(&value.place, "a table cannot come from a variable");
                None
            }
        }
    }

    /// The tables under a key, written `[[a]]`.
    pub fn tables(&self, name: &'static str) -> Vec<(&'a DeTable<'a>, Place)> {
        let Some(value) = self.value(name) else { return Vec::new() };
        let Raw::Toml(DeValue::Array(items)) = value.raw else {
            self.mistake(&value.place, format!("`{name}` is written as [[{name}]], once for each"));
            return Vec::new();
        };
        let tables = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some((table, self.context.report.place(&item.span()))),
            other => {
                self.wrong_kind(&self.context.report.place(&item.span()), name, "a table", other);
                None
            }
        });
        tables.collect()
    }

    /// Whether the value is a text and not a table.
    pub fn is_text(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| matches!(value.raw, Raw::Text(_) | Raw::Toml(DeValue::String(_))))
    }

    fn default_of(&self, name: &str) -> &'static str {
        self.schema.keys.iter().find(|key| key.name == name).map_or("", |key| key.default)
    }

    fn wrong_kind(&self, place: &Place, name: &str, wanted: &str, found: &DeValue<'_>) {
        let hint = match found {
            DeValue::Integer(_) | DeValue::Float(_) if wanted == "a text" => {
                ", in quotes and with its unit if it has one"
            }
            _ => "",
        };
        self.mistake(place, format!("`{name}` is {wanted}{hint}, not {}", article(found.type_str())));
    }
}

#[cfg(debug_assertions)]
impl Drop for Table<'_> {
    /// A key that the reference promises and nobody reads would be ignored in silence.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let asked = self.asked.borrow();
        let ignored: Vec<_> =
            self.schema.keys.iter().map(|key| key.name).filter(|name| !asked.contains(name)).collect();
        debug_assert!(ignored.is_empty(), "{} declares keys that nobody reads: {ignored:?}", self.schema.title);
    }
}

/// Parses an address to listen on.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no address: write IP:PORT, such as \"127.0.0.1:8080\" or \"[::]:8080\""))
}

/// The known name nearest to a mistyped one.
pub(crate) fn nearest<'n>(wrong: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let scored = known.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    scored.filter(|(distance, name)| *distance <= 1 + name.len() / 3).min().map(|(_, name)| name)
}

fn is_known(context: &Context<'_>, schema: &Schema, name: &str, place: &Place) -> bool {
    if schema.keys.iter().any(|key| key.name == name) {
        return true;
    }
    let title = schema.title;
    let text = if schema.later.contains(&name) {
        format!("`{name}` in {title} is not in this version yet")
    } else {
        match nearest(name, schema.keys.iter().map(|key| key.name)) {
            Some(near) => format!("unknown key `{name}` in {title}: did you mean `{near}`?"),
            None => format!("unknown key `{name}` in {title}"),
        }
    };
    context.report.mistake(place, text);
    false
}

fn within<T: PartialOrd>(value: T, range: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> Result<T, String> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("{} is not from {} to {}", show(&value), show(range.start()), show(range.end())))
}

fn article(kind: &str) -> String {
    let an = kind.starts_with(['a', 'i', 'o']);
    format!("{} {kind}", if an { "an" } else { "a" })
}
