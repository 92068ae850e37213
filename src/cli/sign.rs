//! `makbuz sign`: one request, signed as the provider would, to look at or to paste.

use std::fmt::Write as _;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::json;

use super::Context;
use super::output::{self, say};
use super::signing::SigningArgs;
use crate::clock::{Clock, SystemClock};
use crate::config::Secret;
use crate::model::id::uuid_v7;
use crate::provider::{SignRequest, SignedRequest};
use crate::random::SystemRandom;

#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    #[command(flatten)]
    signing: SigningArgs,
    /// Where it will be sent
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080/in/SOURCE")]
    to: String,
    /// The URL that the provider would sign, if it is another
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// The event's id; a fresh one, if absent
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Method, URL, headers and body as JSON instead of a curl command
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, args: &SignArgs) -> anyhow::Result<ExitCode> {
    let url = args.public_url.as_deref().unwrap_or(&args.to);
    let signer = args.signing.signer(context, url)?;
    let now = SystemClock.now();
    let id = args.id.clone().unwrap_or_else(|| uuid_v7(now, &SystemRandom::new()).simple().to_string());
    let signed = signer.inlet.sign(&SignRequest {
        event_type: args.signing.event.as_deref(),
        body: signer.body.clone(),
        now,
        id: &id,
        private_key: signer.private_key.as_ref().map(Secret::expose),
        url,
        ..SignRequest::default()
    })?;
    if args.json {
        output::json(&as_json(&signed, &args.to))?;
    } else {
        say(as_curl(&signed, &args.to));
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(signed: &SignedRequest, to: &str) -> serde_json::Value {
    let headers: Vec<_> = signed
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    json!({
        "method": signed.method.as_str(),
        "url": signed.url(to),
        "headers": headers,
        "body_base64": STANDARD.encode(&signed.body),
    })
}

/// A command for a POSIX shell. A body that is no text comes out of base64.
fn as_curl(signed: &SignedRequest, to: &str) -> String {
    let mut command = String::new();
    let (body, data) = match std::str::from_utf8(&signed.body) {
        Ok(text) if !text.contains('\0') => (String::new(), quote(text)),
        _ => (format!("printf %s {} | base64 -d | ", quote(&STANDARD.encode(&signed.body))), "@-".to_owned()),
    };
    // Writing to a String cannot fail.
    let _ = write!(command, "{body}curl -i -X {} {}", signed.method, quote(&signed.url(to)));
    for (name, value) in &signed.headers {
        let _ =
            write!(command, " \\\n  -H {}", quote(&format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))));
    }
    // `--data-raw` reads no file, whatever the body begins with.
    let option = if data == "@-" { "--data-binary" } else { "--data-raw" };
    let _ = write!(command, " \\\n  {option} {data}");
    command
}

/// One word of a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, Method};

    use super::*;

    fn signed(body: &'static [u8]) -> SignedRequest {
        let mut headers = HeaderMap::new();
        headers.insert("x-signature", "it's".parse().unwrap());
        let suffix = Some("orders".to_owned());
        SignedRequest { method: Method::POST, suffix, query: None, headers, body: Bytes::from_static(body) }
    }

    #[test]
    fn a_curl_command_survives_quotes_and_leading_at_signs() {
        let command = as_curl(&signed(b"@it's"), "http://a/in/b");
        assert_eq!(
            command,
            "curl -i -X POST 'http://a/in/b/orders' \\\n  -H 'x-signature: it'\\''s' \\\n  --data-raw '@it'\\''s'"
        );
    }

    #[test]
    fn bytes_that_are_no_text_come_out_of_base64() {
        let command = as_curl(&signed(b"\xff\x00"), "http://a/in/b");
        assert!(command.starts_with("printf %s '/wA=' | base64 -d | curl ") && command.ends_with("--data-binary @-"));
        assert_eq!(as_json(&signed(b"\xff\x00"), "http://a/in/b")["body_base64"], "/wA=");
    }
}
