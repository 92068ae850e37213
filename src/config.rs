//! The configuration: one TOML file, variables laid over it, and the only reader of the environment.
//!
//! Every mistake is told at once, each with its line; a key that is not known is refused with the nearest one that is.
//! Defaults stand in the schemas, from which README.md's reference is made.

mod backends;
mod environment;
mod listeners;
mod names;
mod reader;
pub mod reference;
mod report;
mod secret;
mod sources;
mod subscriptions;
#[cfg(test)]
mod tests;
mod tokens;
mod units;

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use backends::{
    AmqpSection, LogFormat, LogSection, ProcessSection, ProvidersSection, RetentionSection, StoreSection, StoreUrl,
};
pub use environment::Environment;
pub use listeners::{AdminSection, ConsumeSection, EdgeSection, Network};
pub use report::{ConfigError, Place, Remark};
pub use secret::Secret;
pub use sources::{Redirect, SecretEntry, SourceSection};
pub use subscriptions::SubscriptionSection;
pub use tokens::{TOKEN_BYTES_MIN, TokenSection};

use reader::{Context, Schema, Table, nearest};
use report::Report;

/// The whole configuration, right in itself.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it was read from, for messages.
    pub file: String,
    pub edge: EdgeSection,
    pub admin: AdminSection,
    pub consume: ConsumeSection,
    pub store: StoreSection,
    /// Absent: no broker.
    pub amqp: Option<AmqpSection>,
    pub process: ProcessSection,
    pub retention: RetentionSection,
    pub providers: ProvidersSection,
    pub log: LogSection,
    pub tokens: Vec<TokenSection>,
    pub sources: Vec<SourceSection>,
    pub subscriptions: Vec<SubscriptionSection>,
    /// What is not wrong, but should be known.
    pub warnings: Vec<Remark>,
}

/// The sections that are plain tables; `MAKBUZ_SECTION__KEY` reaches these.
const SECTIONS: [&Schema; 9] = [
    &listeners::EDGE,
    &listeners::ADMIN,
    &listeners::CONSUME,
    &backends::STORE,
    &backends::AMQP,
    &backends::PROCESS,
    &backends::RETENTION,
    &backends::PROVIDERS,
    &backends::LOG,
];

/// The sections that come once for each thing.
const LISTS: [&Schema; 3] = [&tokens::TOKEN, &sources::SOURCE, &subscriptions::SUBSCRIPTION];

/// Sections of later versions.
const LATER: [&str; 5] = ["operation", "reconcile", "alerts", "reporter", "telemetry"];

impl Config {
    /// Reads a file.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let mistakes = vec![Remark { place: Place::File, text: format!("cannot be read: {error}") }];
            ConfigError { file: file.clone(), mistakes }
        })?;
        let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Self::parse(&text, &file, &base, environment)
    }

    /// Reads a text; `file` names it in messages, `base` is where relative paths start.
    pub fn parse(text: &str, file: &str, base: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let report = Report::new(text);
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let place = error.span().map_or(Place::File, |span| report.place(&span));
            report.mistake(&place, error.message().trim_end().replace('\n', ", "));
        }
        let context = Context { report: &report, environment, base };
        let overrides = environment.overrides();
        let config = Root { context: &context, table: document.get_ref(), overrides: &overrides }.read(file);
        let warnings = report.finish(file)?;
        // Unwrap safety: whatever keeps a section from being read is a mistake, and then `finish` has failed.
        let config = config.expect("nothing is missing without a mistake");
        Ok(Self { warnings, ..config })
    }

    /// The folder next to which relative paths are meant.
    pub fn base(&self) -> PathBuf {
        Path::new(&self.file).parent().map(Path::to_path_buf).unwrap_or_default()
    }
}

struct Root<'a> {
    context: &'a Context<'a>,
    table: &'a DeTable<'a>,
    overrides: &'a [(String, String, String)],
}

impl<'a> Root<'a> {
    fn read(&self, file: &str) -> Option<Config> {
        self.refuse_unknown_sections();
        let process = backends::read_process(&self.section(&backends::PROCESS).0);
        let (amqp_table, amqp_there) = self.section(&backends::AMQP);
        let amqp = if amqp_there { Some(backends::read_amqp(&amqp_table)) } else { None };
        amqp_table.skip();
        let limit = process.time_limit;
        let config = Config {
            file: file.to_owned(),
            edge: listeners::read_edge(&self.section(&listeners::EDGE).0),
            admin: listeners::read_admin(&self.section(&listeners::ADMIN).0),
            consume: listeners::read_consume(&self.section(&listeners::CONSUME).0),
            store: backends::read_store(&self.section(&backends::STORE).0),
            amqp: amqp.clone().flatten(),
            process,
            retention: backends::read_retention(&self.section(&backends::RETENTION).0),
            providers: backends::read_providers(&self.section(&backends::PROVIDERS).0),
            log: backends::read_log(&self.section(&backends::LOG).0),
            tokens: self.list(&tokens::TOKEN).iter().filter_map(tokens::read_token).collect(),
            sources: self.list(&sources::SOURCE).iter().map(sources::read_source).collect(),
            subscriptions: self
                .list(&subscriptions::SUBSCRIPTION)
                .iter()
                .filter_map(|table| subscriptions::read_subscription(table, limit))
                .collect(),
            warnings: Vec::new(),
        };
        check_whole(self.context, &config, amqp_there);
        Some(config)
    }

    fn section(&self, schema: &'static Schema) -> (Table<'a>, bool) {
        let name = section_name(schema);
        let value = self.table.iter().find(|(key, _)| key.get_ref() == name);
        let context = self.context;
        let mut table = match value {
            Some((key, value)) => {
                let place = context.report.place(&key.span());
                match value.get_ref() {
                    DeValue::Table(inner) => Table::of(context, schema, inner, place),
                    _ => {
                        context.report.mistake(&place, format!("`{name}` is a section: write {}", schema.title));
                        Table::open(context, schema)
                    }
                }
            }
            None => Table::open(context, schema),
        };
        let from = self.overrides.partition_point(|(_, section, _)| section.as_str() < name);
        let to = self.overrides.partition_point(|(_, section, _)| section.as_str() <= name);
        let mine = &self.overrides[from..to];
        table.override_with(mine);
        (table, value.is_some() || !mine.is_empty())
    }

    fn list(&self, schema: &'static Schema) -> Vec<Table<'a>> {
        let name = section_name(schema);
        let context = self.context;
        let Some((key, value)) = self.table.iter().find(|(key, _)| key.get_ref() == name) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            context.report.mistake(
                &context.report.place(&key.span()),
                format!("`{name}` comes once for each: write {}", schema.title),
            );
            return Vec::new();
        };
        let tables = items.iter().filter_map(|item: &Spanned<DeValue<'_>>| {
            let place = context.report.place(&item.span());
            let DeValue::Table(inner) = item.get_ref() else {
                context.report.mistake(&place, format!("`{name}` is a table: write {}", schema.title));
                return None;
            };
            Some(Table::of(context, schema, inner, place))
        });
        tables.collect()
    }

    fn refuse_unknown_sections(&self) {
        let known = || SECTIONS.iter().chain(&LISTS).map(|schema| section_name(schema));
        let refuse = |name: &str, place: &Place| {
            let text = if LATER.contains(&name) {
                format!("section `{name}` is not in this version yet")
            } else {
                match nearest(name, known()) {
                    Some(near) => format!("unknown section `{name}`: did you mean `{near}`?"),
                    None => format!("unknown section `{name}`"),
                }
            };
            self.context.report.mistake(place, text);
        };
        for (key, _) in self.table {
            if !known().any(|name| key.get_ref() == name) {
                refuse(key.get_ref(), &self.context.report.place(&key.span()));
            }
        }
        for (variable, section, _) in self.overrides {
            let place = Place::Variable(variable.clone());
            if LISTS.iter().any(|schema| section_name(schema) == section) {
                self.context
                    .report
                    .mistake(&place, format!("`{section}` comes once for each, so no variable reaches it"));
            } else if !known().any(|name| section == name) {
                refuse(section, &place);
            }
        }
    }
}

/// `edge` of `[edge]`.
fn section_name(schema: &Schema) -> &'static str {
    schema.title.trim_matches(['[', ']'])
}

/// What no section can see alone: names that meet.
fn check_whole(context: &Context<'_>, config: &Config, amqp_there: bool) {
    let report = context.report;
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for source in &config.sources {
        for name in std::iter::once(&source.name).chain(&source.aliases) {
            if !name.is_empty() && seen.contains(&("source", name)) {
                report.mistake(&source.place, format!("two sources are called {name:?}"));
            }
            seen.push(("source", name));
        }
        for path in &source.paths {
            if seen.contains(&("path", path)) {
                report.mistake(&source.place, format!("two sources have the path {path:?}"));
            }
            seen.push(("path", path));
        }
    }
    for entry in &config.subscriptions {
        let (name, place) = (&entry.subscription.name, &entry.place);
        if !name.is_empty() && seen.contains(&("subscription", name)) {
            report.mistake(place, format!("two subscriptions are called {name:?}"));
        }
        seen.push(("subscription", name));
        if !amqp_there && entry.subscription.target == crate::model::subscription::Target::Amqp {
            report.mistake(place, format!("subscription {name:?} has `target = \"amqp\"`, but there is no [amqp]"));
        }
        for (source, place) in &entry.sources {
            refuse_unknown_name(
                context,
                "source",
                source,
                config.sources.iter().map(|source| source.name.as_str()),
                place,
            );
        }
    }
    check_tokens(context, config);
}

fn check_tokens(context: &Context<'_>, config: &Config) {
    for (n, token) in config.tokens.iter().enumerate() {
        let earlier = &config.tokens[..n];
        if let Some(other) = earlier.iter().find(|other| other.value.expose() == token.value.expose()) {
            context
                .report
                .mistake(&Place::File, format!("tokens {:?} and {:?} have the same value", other.name, token.name));
        }
        if earlier.iter().any(|other| other.name == token.name) {
            context.report.mistake(&Place::File, format!("two tokens are called {:?}", token.name));
        }
        for (name, place) in &token.subscriptions {
            let known = config.subscriptions.iter().map(|entry| entry.subscription.name.as_str());
            refuse_unknown_name(context, "subscription", name, known, place);
        }
    }
}

fn refuse_unknown_name<'n>(
    context: &Context<'_>,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n str> + Clone,
    place: &Place,
) {
    if known.clone().any(|other| other == name) {
        return;
    }
    let text = match nearest(name, known) {
        Some(near) => format!("there is no {what} {name:?}: did you mean {near:?}?"),
        None => format!("there is no {what} {name:?}"),
    };
    context.report.mistake(place, text);
}
