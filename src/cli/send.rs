//! `makbuz send`: signed test requests, from one to a load; duplicates and forgeries among them if wished. [`load`] is
//! the same for tests and benches.

mod link;
pub mod load;
pub mod summary;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use self::load::Load;
use super::Context;
use super::output::{self, say};
use super::signing::SigningArgs;
use crate::clock::SystemClock;
use crate::random::SystemRandom;

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    signing: SigningArgs,
    /// The source's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080/in/dev")]
    to: String,
    /// The URL that the provider would sign, if it is another
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Requests to send
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Requests a second; as fast as answers come, if absent
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    rate: Option<f64>,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Percent that repeat a request that was sent before
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = parse_percent)]
    duplicates: f64,
    /// Percent that are changed after signing and must be refused
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = parse_percent)]
    tamper: f64,
    /// The account in the path, for sources with `account_in_path`
    #[arg(long)]
    account: Option<String>,
    /// The summary as JSON
    #[arg(long)]
    json: bool,
}

/// 0 when everything authentic got its 2xx and nothing else did.
pub(crate) async fn run(context: &Context, args: &SendArgs) -> anyhow::Result<ExitCode> {
    let to = with_account(&args.to, args.account.as_deref());
    let url = args.public_url.as_deref().map_or_else(|| to.clone(), |url| with_account(url, args.account.as_deref()));
    let signer = args.signing.signer(context, &url)?;
    let bar = progress(args.count, args.json);
    let seen = bar.clone();
    let load = Load {
        inlet: Arc::new(signer.inlet),
        to,
        public_url: url,
        event_type: args.signing.event.clone(),
        body: signer.body,
        private_key: signer.private_key.map(|key| key.expose().to_vec()),
        count: args.count,
        rate: args.rate,
        connections: usize::from(args.connections),
        duplicates: args.duplicates / 100.0,
        tamper: args.tamper / 100.0,
        clock: Arc::new(SystemClock),
        random: Arc::new(SystemRandom::new()),
        on_answer: Some(Arc::new(move |_: &load::Sent| seen.inc(1))),
    };
    let summary = load::run(load).await?;
    bar.finish_and_clear();
    if args.json {
        output::json(&summary.to_json())?;
    } else {
        say(&summary);
    }
    Ok(if summary.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// On a terminal only, and never between a program and its JSON.
fn progress(count: u64, hidden: bool) -> ProgressBar {
    if hidden || count < 2 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(count);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}  {per_sec}  {eta}") {
        bar.set_style(style);
    }
    bar
}

fn with_account(url: &str, account: Option<&str>) -> String {
    account.map_or_else(|| url.to_owned(), |account| format!("{}/{account}", url.trim_end_matches('/')))
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("{text:?} is no number"))?;
    if (0.0..=100.0).contains(&percent) { Ok(percent) } else { Err("between 0 and 100".to_owned()) }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err("more than 0".to_owned()) }
}
