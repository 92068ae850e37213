//! `makbuz verify`: whether a saved request verifies, and why not.
//!
//! It may show more than a caller of the edge ever learns, but never the right signature: that would make it a forger's tool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Context;
use super::output::{plain, say};
use super::providers;
use crate::clock::{Clock, MICROS_PER_SECOND, SystemClock};
use crate::config::Secret;
use crate::provider::{Inbound, Received, SourceSecret, SourceSettings};

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    provider: String,
    /// The request's headers, one `Name: value` a line
    #[arg(long, value_name = "FILE")]
    headers: PathBuf,
    /// The request's body, byte for byte
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// env:NAME or file:PATH; may come several times
    #[arg(long, value_name = "REFERENCE")]
    secret: Vec<String>,
    /// What the scheme needs beside the secret, as NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
    #[arg(long, default_value = "POST")]
    method: String,
    /// The whole public URL, with its query, as the provider was told it
    #[arg(long, default_value = "https://localhost/")]
    url: String,
    /// When it arrived: a time with a zone, or Unix seconds; now, if absent
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

/// 0 when it verifies, 1 when it does not.
pub(crate) fn run(context: &Context, args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let definition =
        providers::known(context)?.get(&args.provider).map_err(|errors| anyhow!(providers::joined(&errors)))?;
    let inlet = definition.bind(settings(context, args)?).map_err(|errors| anyhow!(providers::joined(&errors)))?;
    let headers = read_headers(&args.headers)?;
    let body = Bytes::from(std::fs::read(&args.body).with_context(|| args.body.display().to_string())?);
    let method: Method = args.method.parse().with_context(|| format!("{:?} is no method", args.method))?;
    let inbound = Inbound {
        method: &method,
        url: &args.url,
        query: args.url.split_once('?').map(|(_, query)| query),
        path_account: None,
        suffix: None,
        headers: &headers,
        body: &body,
        arrived_at: arrived_at(args.at.as_deref())?,
    };
    match inlet.receive(&inbound) {
        Ok(Received::Handshake(reply)) => {
            say(format_args!("a handshake: it is answered {} and leaves no receipt", reply.status));
            Ok(ExitCode::SUCCESS)
        }
        Ok(Received::Events(verified)) => {
            let by = &verified.verified_by;
            say(format_args!("verifies: {}, secret {:?}, covers {}", by.mechanism, by.secret, by.coverage.as_str()));
            for event in &verified.events {
                say(format_args!(
                    "event {}  type {}  account {}",
                    plain(&event.event_id),
                    plain(&event.event_type),
                    plain(&event.account)
                ));
            }
            let refused = verified.refused_items;
            if refused > 0 {
                say(format_args!("{refused} items of the batch do not verify"));
            }
            Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(rejection) => {
            say(format_args!("does not verify: {} ({})", rejection.code.code(), plain(&rejection.detail)));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn settings(context: &Context, args: &VerifyArgs) -> anyhow::Result<SourceSettings> {
    let mut secrets = Vec::new();
    for reference in &args.secret {
        let value = Secret::load(reference, &context.environment, Path::new("")).map_err(|why| anyhow!(why))?;
        secrets.push(SourceSecret {
            label: reference.clone(),
            value: value.share(),
            not_before: None,
            not_after: None,
            params: std::collections::BTreeMap::new(),
        });
    }
    let mut params = std::collections::BTreeMap::new();
    for param in &args.param {
        let (name, value) = param.split_once('=').with_context(|| format!("--param {param:?} is not NAME=VALUE"))?;
        params.insert(name.to_owned(), value.as_bytes().to_vec().into());
    }
    Ok(SourceSettings {
        name: "verify".to_owned(),
        secrets,
        params,
        account: None,
        account_in_path: false,
        tolerance: None,
        window_strict: false,
        url: args.url.split('?').next().map(str::to_owned),
        hold_malformed: true,
        replay_guard: None,
    })
}

/// `Name: value` lines, the value's bytes as they are; empty lines and a request line are passed over.
fn read_headers(path: &Path) -> anyhow::Result<HeaderMap> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut headers = HeaderMap::new();
    for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || (n == 0 && line.windows(5).any(|part| part == b"HTTP/")) {
            continue;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            bail!("{}:{}: no `Name: value`", path.display(), n + 1);
        };
        let value = line[colon + 1..].trim_ascii();
        let place = || format!("{}:{}", path.display(), n + 1);
        let name = HeaderName::from_bytes(&line[..colon]).with_context(place)?;
        headers.append(name, HeaderValue::from_bytes(value).with_context(place)?);
    }
    Ok(headers)
}

/// UTC microseconds.
fn arrived_at(text: Option<&str>) -> anyhow::Result<i64> {
    let Some(text) = text else { return Ok(SystemClock.now()) };
    if let Ok(seconds) = text.parse::<i64>() {
        return seconds.checked_mul(MICROS_PER_SECOND).context("--at is too far away");
    }
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .with_context(|| format!("--at {text:?}: a time with a zone, or Unix seconds"))?;
    Ok(i64::try_from(at.unix_timestamp_nanos() / 1000)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_given_in_seconds_or_with_a_zone() {
        assert_eq!(arrived_at(Some("1700000000")).unwrap(), 1_700_000_000_000_000);
        assert_eq!(arrived_at(Some("2023-11-14T22:13:20Z")).unwrap(), 1_700_000_000_000_000);
        assert!(arrived_at(Some("yesterday")).is_err());
    }

    #[test]
    fn headers_are_read_line_by_line_with_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        std::fs::write(&path, b"POST /in/x HTTP/1.1\r\nX-Sign: a=b \r\nx-sign: c\r\nX-Raw: \xff\r\n\r\n").unwrap();
        let headers = read_headers(&path).unwrap();
        assert_eq!(headers.get_all("x-sign").iter().collect::<Vec<_>>(), ["a=b", "c"]);
        assert_eq!(headers["x-raw"].as_bytes(), b"\xff");
        std::fs::write(&path, "no colon").unwrap();
        assert!(read_headers(&path).unwrap_err().to_string().ends_with("headers:1: no `Name: value`"));
    }
}
