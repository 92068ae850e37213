//! `[edge]`, `[admin]` and `[consume]`: where the program listens, and every limit of it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::reader::{Schema, Table, address, key};

pub(crate) const EDGE: Schema = Schema {
    title: "[edge]",
    keys: &[
        key("listen", "address", "127.0.0.1:8080", "Where providers post"),
        key(
            "public_url",
            "URL",
            "",
            "The address that providers were told, without a path; needed by schemes that sign the URL",
        ),
        key(
            "trusted_proxies",
            "list of networks",
            "[]",
            "Proxies whose word is taken for the client's address, such as `\"10.0.0.0/8\"`",
        ),
        key(
            "forwarded_header",
            "`x-forwarded-for` or `forwarded`",
            "x-forwarded-for",
            "Which header those proxies write; the other is never read",
        ),
        key(
            "window",
            "`as-declared` or `strict`",
            "as-declared",
            "`strict` holds every source to five minutes, whatever its provider file says",
        ),
        key("body_max", "size", "5MiB", "Largest body; a provider file may state more, a source may say otherwise"),
        key("header_max", "size", "16KiB", "All headers of one request together"),
        key("bodies_max", "size", "128MiB", "All bodies together that are read and not yet committed; past it 503"),
        key("answer_max", "time", "8s", "Longest wait for the commit; past it 503 (a provider file may state less)"),
        key("first_byte_max", "time", "10s", "From the connection to the first byte of a request"),
        key("header_time_max", "time", "10s", "From the first byte to the end of the headers"),
        key("body_time_max", "time", "30s", "From the headers to the end of the body"),
        key("keep_alive_max", "time", "75s", "How long an idle connection stays open"),
        key("connections_max", "number", "2048", "Open connections in all"),
        key("connections_per_peer_max", "number", "512", "Open connections of one address, trusted proxies apart"),
        key("requests_max", "number", "1024", "Requests that are worked on at once; past it 503"),
        key(
            "client_share_percent",
            "number",
            "50",
            "How much of `requests_max` and `bodies_max` one client may have at once, by the address that a trusted proxy names; past it 503",
        ),
        key("stop_max", "time", "25s", "How long a stop waits for what is under way, in all stages"),
    ],
    later: &["tls", "http2"],
};

/// `[edge]`.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeSection {
    pub listen: SocketAddr,
    pub public_url: Option<String>,
    pub trusted_proxies: Vec<Network>,
    pub forwarded_rfc7239: bool,
    pub window_strict: bool,
    pub body_max: usize,
    pub header_max: usize,
    pub bodies_max: usize,
    pub answer_max: Duration,
    pub first_byte_max: Duration,
    pub header_time_max: Duration,
    pub body_time_max: Duration,
    pub keep_alive_max: Duration,
    pub connections_max: u32,
    pub connections_per_peer_max: u32,
    pub requests_max: u32,
    pub client_share_percent: u32,
    pub stop_max: Duration,
}

/// An address range, `10.0.0.0/8` or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Network {
    /// Reads `ADDRESS/PREFIX` or `ADDRESS`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network: write such as \"10.0.0.0/8\" or \"2001:db8::/32\"");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(widest), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix > widest { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn read_edge(table: &Table<'_>) -> EdgeSection {
    EdgeSection {
        listen: table.address("listen"),
        public_url: table.optional("public_url", base_url),
        trusted_proxies: read_networks(table),
        forwarded_rfc7239: table.choice("forwarded_header", &[("x-forwarded-for", false), ("forwarded", true)]),
        window_strict: table.choice("window", &[("as-declared", false), ("strict", true)]),
        body_max: table.size("body_max", 1024..=256 << 20),
        header_max: table.size("header_max", 4096..=1 << 20),
        bodies_max: table.size("bodies_max", 1 << 20..=16 << 30),
        answer_max: table.duration("answer_max", SECOND..=MINUTE),
        first_byte_max: table.duration("first_byte_max", SECOND..=MINUTE * 10),
        header_time_max: table.duration("header_time_max", SECOND..=MINUTE * 10),
        body_time_max: table.duration("body_time_max", SECOND..=MINUTE * 10),
        keep_alive_max: table.duration("keep_alive_max", SECOND..=MINUTE * 60),
        connections_max: table.count("connections_max", 1..=1_000_000),
        connections_per_peer_max: table.count("connections_per_peer_max", 1..=1_000_000),
        requests_max: table.count("requests_max", 1..=1_000_000),
        client_share_percent: table.count("client_share_percent", 1..=100),
        stop_max: table.duration("stop_max", SECOND..=MINUTE * 10),
    }
}

fn read_networks(table: &Table<'_>) -> Vec<Network> {
    let texts = table.texts("trusted_proxies").into_iter();
    let read = texts.filter_map(|(text, place)| Network::parse(&text).map_err(|why| table.mistake(&place, why)).ok());
    read.collect()
}

pub(crate) const ADMIN: Schema = Schema {
    title: "[admin]",
    keys: &[
        key(
            "listen",
            "address",
            "127.0.0.1:8081",
            "The operators' listener: API, `/metrics`, `/livez`, `/readyz`; never open it to the internet",
        ),
        key(
            "connections_max",
            "number",
            "256",
            "Open connections, those of `[consume]` counted apart; past it the one that is idle longest is closed for the next",
        ),
        key(
            "idle_max",
            "time",
            "60s",
            "From the connection, or the last answer, to the end of the next request's headers",
        ),
        key("header_max", "size", "16KiB", "All headers of one request together"),
        key("body_max", "size", "256KiB", "Largest request body"),
        key("body_time_max", "time", "10s", "From the headers to the end of the body"),
        key(
            "requests_max",
            "number",
            "256",
            "Requests that are worked on at once, of each listener; past it 503. Health and metrics are not counted",
        ),
    ],
    later: &["tls", "panel"],
};

/// `[admin]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminSection {
    pub listen: SocketAddr,
    pub connections_max: u32,
    pub idle_max: Duration,
    pub header_max: usize,
    pub body_max: usize,
    pub body_time_max: Duration,
    pub requests_max: u32,
}

pub(crate) fn read_admin(table: &Table<'_>) -> AdminSection {
    AdminSection {
        listen: table.address("listen"),
        connections_max: table.count("connections_max", 1..=1_000_000),
        idle_max: table.duration("idle_max", SECOND..=MINUTE * 60),
        header_max: table.size("header_max", 8192..=1 << 20),
        body_max: table.size("body_max", 1024..=64 << 20),
        body_time_max: table.duration("body_time_max", SECOND..=MINUTE * 10),
        requests_max: table.count("requests_max", 1..=1_000_000),
    }
}

pub(crate) const CONSUME: Schema = Schema {
    title: "[consume]",
    keys: &[
        key(
            "listen",
            "address",
            "",
            "A listener of its own for consumers: only claim, extend, outcome and bodies; absent: `[admin] listen` serves them",
        ),
        key(
            "public_url",
            "URL",
            "",
            "The address under which consumers reach it, for body URLs; default `http://` and the listener's address",
        ),
    ],
    later: &["tls"],
};

/// `[consume]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumeSection {
    pub listen: Option<SocketAddr>,
    pub public_url: Option<String>,
}

pub(crate) fn read_consume(table: &Table<'_>) -> ConsumeSection {
    ConsumeSection { listen: table.optional("listen", address), public_url: table.optional("public_url", base_url) }
}

/// An absolute http(s) URL without query or fragment; a slash at the end is cut.
pub(crate) fn base_url(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no URL: write such as \"https://hooks.example.com\"");
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let good_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    if !good_scheme || uri.host().is_none_or(str::is_empty) || uri.query().is_some() || text.contains('#') {
        return Err(wrong());
    }
    Ok(text.trim_end_matches('/').to_owned())
}
