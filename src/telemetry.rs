//! Logs. Rules for whoever writes a line:
//!
//! - A message that never changes, and fields: `source`, `provider`, `receipt.id`, `event.id`, `event.type`,
//!   `attempt.number`, `subscription`, `error.code`. Units and qualifiers last (`body_bytes`, `took_ms`).
//! - Never a body, a secret, a signature, an `Authorization` or `Cookie` header, a query string as received, or the
//!   `Debug` of a connection URI.
//! - `error`: a person must act now. `warn`: a person should look. `info`: what an operator asks for later; refused
//!   requests are `info`, strangers are no emergency. `debug`: for whoever works on the code.
//! - A failure is logged once, where it is handled.

use std::io::IsTerminal;

use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Quiet where libraries print what may be a secret: lapin's returned messages carry whole payloads, its `io_loop` and
/// sqlx's statements print parameters at low levels, and hyper warns of every client that leaves. A broker that goes away is
/// our own one warning; lapin has half a dozen errors for it.
const SAFE: &str = "lapin::returned_messages=off,lapin=off,sqlx=warn,hyper=error,rustls=warn";

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people on a terminal, JSON otherwise.
    #[default]
    Auto,
    Human,
    Json,
}

/// What is logged, and how.
#[derive(Debug, Clone, Default)]
pub struct TelemetryConfig {
    pub format: LogFormat,
    /// Directives of tracing's filter (`info`, `makbuz=debug`, …), laid over the safe defaults; empty for `info`.
    pub filter: String,
}

/// A filter that tracing does not understand.
#[derive(Debug, thiserror::Error)]
#[error("the log filter is wrong: {0}")]
pub struct TelemetryError(String);

/// Starts logging to standard error for the whole process, panics included.
pub fn start(config: &TelemetryConfig) -> Result<(), TelemetryError> {
    let terminal = std::io::stderr().is_terminal();
    let human = match config.format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let registry = tracing_subscriber::registry().with(filter(&config.filter)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    let started = if human {
        registry.with(lines.with_ansi(terminal)).try_init()
    } else {
        registry.with(lines.json().flatten_event(true).with_current_span(true).with_span_list(false)).try_init()
    };
    started.map_err(|error| TelemetryError(error.to_string()))?;
    // The text of a panic may quote the data that caused it; its place is enough to find the bug.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        error!(panic.location = place, "panicked");
    }));
    Ok(())
}

/// The safe defaults, and what was asked for on top. `lapin::returned_messages` cannot be turned on.
fn filter(asked: &str) -> Result<EnvFilter, TelemetryError> {
    let asked = if asked.trim().is_empty() { "info" } else { asked };
    let filter = EnvFilter::builder()
        .parse(format!("info,{SAFE},{asked}"))
        .map_err(|error| TelemetryError(error.to_string()))?;
    // Unwrap safety: a constant that the tests parse.
    Ok(filter.add_directive("lapin::returned_messages=off".parse().expect("a directive")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_messages_stay_off_whatever_is_asked() {
        for asked in ["", "trace", "lapin=trace", "lapin::returned_messages=trace"] {
            let filter = filter(asked).unwrap().to_string();
            assert!(filter.contains("lapin::returned_messages=off"), "{asked}: {filter}");
            assert!(!filter.contains("lapin::returned_messages=trace"), "{asked}: {filter}");
        }
    }

    #[test]
    fn a_wrong_filter_is_said_so() {
        assert!(filter("makbuz=loud").is_err());
    }

    #[test]
    fn libraries_that_print_secrets_are_quiet_by_default() {
        let filter = filter("debug").unwrap().to_string();
        assert!(filter.contains("sqlx=warn") && filter.contains("lapin=off"), "{filter}");
    }
}
