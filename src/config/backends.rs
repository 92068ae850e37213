//! `[store]`, `[amqp]`, `[process]`, `[retention]` and `[log]`: what stands behind the listeners.

use std::time::Duration;

use super::reader::{Schema, Table, key};
use super::report::Place;
use super::secret::{self, Secret};

pub(crate) const STORE: Schema = Schema {
    title: "[store]",
    keys: &[
        key(
            "url",
            "URL",
            "sqlite://makbuz.db",
            "`sqlite://PATH` or `postgres://USER@HOST/DATABASE`; with a password only as `env:NAME` or `file:PATH`",
        ),
        key(
            "migrate",
            "`auto` or `manual`",
            "",
            "Whether `serve` brings the schema up to date; default `auto` on SQLite, `manual` (`makbuz migrate`) on PostgreSQL",
        ),
        key("connections", "number", "6", "PostgreSQL: pooled connections beside the writers"),
        key("writers", "number", "2", "PostgreSQL: connections that commit deliveries"),
        key("queue_events_max", "number", "4096", "Events that wait for a commit; past it 503"),
        key("queue_max", "size", "64MiB", "Bodies that wait for a commit; past it 503"),
        key("batch_events_max", "number", "256", "Events in one transaction; a delivery is never split"),
        key("batch_max", "size", "4MiB", "Bodies in one transaction; a delivery is never split"),
    ],
    later: &["encrypt", "spool", "managed_secrets"],
};

/// Which database.
#[derive(Debug, Clone)]
pub enum StoreUrl {
    Sqlite(std::path::PathBuf),
    /// The whole URL; it may hold a password.
    Postgres(Secret),
}

/// `[store]`.
#[derive(Debug, Clone)]
pub struct StoreSection {
    pub url: StoreUrl,
    pub migrate_at_start: bool,
    pub connections: u32,
    pub writers: u32,
    pub queue_events_max: usize,
    pub queue_bytes_max: usize,
    pub batch_events_max: usize,
    pub batch_bytes_max: usize,
}

pub(crate) fn read_store(table: &Table<'_>) -> StoreSection {
    let url = read_store_url(table);
    let migrate = table.optional("migrate", |text| match text {
        "auto" => Ok(true),
        "manual" => Ok(false),
        _ => Err(format!("{text:?} is none of \"auto\", \"manual\"")),
    });
    StoreSection {
        migrate_at_start: migrate.unwrap_or(matches!(url, StoreUrl::Sqlite(_))),
        url,
        connections: table.count("connections", 2..=1000),
        writers: table.count("writers", 1..=64),
        queue_events_max: table.count("queue_events_max", 1..=1_000_000) as usize,
        queue_bytes_max: table.size("queue_max", 1 << 20..=16 << 30),
        batch_events_max: table.count("batch_events_max", 1..=5000) as usize,
        batch_bytes_max: table.size("batch_max", 64 << 10..=64 << 20),
    }
}

fn read_store_url(table: &Table<'_>) -> StoreUrl {
    let place = table.place_of("url");
    let text = table.parsed("url", |text| Ok(text.to_owned()));
    let literal = Secret::new(text.clone().into_bytes(), "store.url");
    let url = if secret::is_reference(&text) { table.load_secret(&text, &place) } else { Some(literal) };
    let fallback = || StoreUrl::Sqlite(table.context().base.join("makbuz.db"));
    let Some(url) = url else { return fallback() };
    let Ok(plain) = std::str::from_utf8(url.expose()) else {
        table.mistake(&place, "`url` is not UTF-8");
        return fallback();
    };
    if let Some(path) = plain.strip_prefix("sqlite://") {
        if path.is_empty() || path.contains('?') {
            table.mistake(&place, "`url`: write sqlite://PATH, without options");
        }
        return StoreUrl::Sqlite(table.context().base.join(path));
    }
    if plain.starts_with("postgres://") || plain.starts_with("postgresql://") {
        refuse_open_password(table, "url", &text, &place);
        return StoreUrl::Postgres(url);
    }
    table.mistake(&place, "`url` begins with sqlite:// or postgres://");
    fallback()
}

/// A password in the file would be in every copy of it.
fn refuse_open_password(table: &Table<'_>, name: &str, text: &str, place: &Place) {
    let from_file = matches!(place, Place::Line(_));
    let userinfo =
        text.split_once("://").and_then(|(_, rest)| rest.split('/').next()?.rsplit_once('@')).map(|(user, _)| user);
    if from_file && (userinfo.is_some_and(|user| user.contains(':')) || text.contains("password=")) {
        table.mistake(place, format!("`{name}` holds a password: give the URL as \"env:NAME\" or \"file:PATH\""));
    }
}

pub(crate) const AMQP: Schema = Schema {
    title: "[amqp]",
    keys: &[
        key(
            "url",
            "URL by `env:` or `file:`",
            "",
            "The broker; `amqp://` or `amqps://`. Without a password it may stand in the file",
        ),
        key("prefix", "name", "makbuz", "First part of every broker name; several installations can share a vhost"),
        key(
            "topology",
            "`declare` or `check`",
            "declare",
            "`declare` makes exchanges and queues; `check` only looks whether they are there",
        ),
        key(
            "broadcast",
            "true or false",
            "false",
            "Also publishes each event once to the topic exchange `{prefix}.events`, key `{provider}.{type}`, for listeners that nothing waits for",
        ),
        key("inline_max", "size", "256KiB", "Larger bodies go as `makbuz-body-url`"),
        key(
            "unroutable_after",
            "time",
            "1h",
            "How long a job waits for its queue to be bound before it goes to review",
        ),
        key(
            "confirm_max",
            "time",
            "10s",
            "Longest wait for a confirm; then the connection is given up, and the rows stay",
        ),
        key("batch", "number", "256", "Messages in one batch, which is confirmed before the next"),
    ],
    later: &["tls"],
};

/// `[amqp]`.
#[derive(Debug, Clone)]
pub struct AmqpSection {
    pub url: Secret,
    pub prefix: String,
    pub declare: bool,
    pub broadcast: bool,
    pub inline_max: usize,
    pub unroutable_after: Duration,
    pub confirm_max: Duration,
    pub batch: u32,
}

/// Reads `[amqp]`; `None` after a mistake in its URL, which is already noted.
pub(crate) fn read_amqp(table: &Table<'_>) -> Option<AmqpSection> {
    let text = table.required_text("url");
    let place = table.place_of("url");
    let url = if secret::is_reference(&text) {
        table.load_secret(&text, &place)
    } else {
        Some(Secret::new(text.clone().into_bytes(), "amqp.url"))
    };
    let good = |url: &Secret| url.expose().starts_with(b"amqp://") || url.expose().starts_with(b"amqps://");
    if url.as_ref().is_some_and(|url| !text.is_empty() && !good(url)) {
        table.mistake(&place, "`url` begins with amqp:// or amqps://");
    }
    refuse_open_password(table, "url", &text, &place);
    let rest = AmqpSection {
        url: Secret::new(Vec::new(), "amqp.url"),
        prefix: table.parsed("prefix", prefix),
        declare: table.choice("topology", &[("declare", true), ("check", false)]),
        broadcast: table.flag("broadcast"),
        inline_max: table.size("inline_max", 0..=8 << 20),
        unroutable_after: table.duration("unroutable_after", Duration::from_secs(30)..=Duration::from_secs(7 * 86_400)),
        confirm_max: table.duration("confirm_max", Duration::from_secs(1)..=Duration::from_secs(120)),
        batch: table.count("batch", 1..=4096),
    };
    url.map(|url| AmqpSection { url, ..rest })
}

/// Lower-case letters, digits, `-` and `.`: it stands before the dot of each broker name.
fn prefix(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text.len() <= 60
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} has other characters than a-z, 0-9, - and .")) }
}

pub(crate) const PROCESS: Schema = Schema {
    title: "[process]",
    keys: &[
        key("time_limit", "time", "5min", "Lease of a claimed job, where its subscription says nothing"),
        key("claim_max", "number", "100", "Most jobs that one claim takes"),
        key("wait_max", "time", "30s", "Longest that a claim waits for work"),
        key(
            "waiting_max",
            "number",
            "128",
            "Claims that wait for work at once; past it a claim answers at once with what is there. Never more than half of `[admin] connections_max` or `requests_max`",
        ),
        key("hand_out_batch", "number", "200", "Due jobs that are handed out in one transaction"),
        key("tick", "time", "500ms", "Between two looks for due jobs and for leases that ran out"),
    ],
    later: &["concurrency", "breaker"],
};

/// `[process]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSection {
    pub time_limit: Duration,
    pub claim_max: u32,
    pub wait_max: Duration,
    pub waiting_max: u32,
    pub hand_out_batch: u32,
    pub tick: Duration,
}

pub(crate) fn read_process(table: &Table<'_>) -> ProcessSection {
    ProcessSection {
        time_limit: table.duration("time_limit", Duration::from_secs(1)..=Duration::from_secs(86_400)),
        claim_max: table.count("claim_max", 1..=1000),
        wait_max: table.duration("wait_max", Duration::ZERO..=Duration::from_secs(60)),
        waiting_max: table.count("waiting_max", 0..=500_000),
        hand_out_batch: table.count("hand_out_batch", 1..=5000),
        tick: table.duration("tick", Duration::from_millis(20)..=Duration::from_secs(60)),
    }
}

pub(crate) const RETENTION: Schema = Schema {
    title: "[retention]",
    keys: &[
        key(
            "bodies",
            "time",
            "90d",
            "How long bodies are kept; those of live and review jobs stay longer, receipts and keys for ever",
        ),
        key("rejections_age", "time", "7d", "How long refused requests are kept"),
        key("rejections_count", "number", "10000", "How many of them"),
        key("rejections_bytes", "size", "64MiB", "How much of them"),
    ],
    later: &["keys", "attempts"],
};

/// `[retention]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSection {
    pub bodies: Duration,
    pub rejections_age: Duration,
    pub rejections_count: u32,
    pub rejections_bytes: usize,
}

pub(crate) fn read_retention(table: &Table<'_>) -> RetentionSection {
    let day = Duration::from_secs(86_400);
    RetentionSection {
        bodies: table.duration("bodies", day..=day * 3660),
        rejections_age: table.duration("rejections_age", day / 24..=day * 400),
        rejections_count: table.count("rejections_count", 0..=1_000_000),
        rejections_bytes: table.size("rejections_bytes", 0..=16 << 30),
    }
}

pub(crate) const PROVIDERS: Schema = Schema {
    title: "[providers]",
    keys: &[key(
        "folder",
        "path",
        "",
        "Further provider files (`*.toml`); one of the same name stands in for the binary's own",
    )],
    later: &[],
};

/// `[providers]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvidersSection {
    pub folder: Option<std::path::PathBuf>,
}

pub(crate) fn read_providers(table: &Table<'_>) -> ProvidersSection {
    let base = table.context().base;
    ProvidersSection { folder: table.optional("folder", |text| Ok(base.join(text))) }
}

pub(crate) const LOG: Schema = Schema {
    title: "[log]",
    keys: &[
        key(
            "level",
            "filter",
            "info",
            "`error`, `warn`, `info`, `debug`, `trace`, or such as `info,makbuz::outbox=debug`",
        ),
        key("format", "`auto`, `text` or `json`", "auto", "`auto` is `text` on a terminal, else `json`"),
    ],
    later: &["otlp"],
};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Auto,
    Text,
    Json,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSection {
    pub level: String,
    pub format: LogFormat,
}

pub(crate) fn read_log(table: &Table<'_>) -> LogSection {
    LogSection {
        level: table.parsed("level", |text| Ok(text.to_owned())),
        format: table
            .choice("format", &[("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)]),
    }
}
