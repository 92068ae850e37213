//! `makbuz jobs claim` and `report`: a consumer by hand, to try a subscription out.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{Api, encoded};
use super::output::{self, plain, say};
use crate::admin::view::moment;

#[derive(Debug, Args)]
pub(crate) struct ClaimArgs {
    subscription: String,
    /// Jobs at most
    #[arg(long, default_value_t = 1)]
    max: u32,
    /// Seconds to wait for work when there is none
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    wait: u32,
    /// The API's answer as it is; `report` reads it
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// What `jobs claim --json` printed; `-` for standard input
    claimed: PathBuf,
    outcome: OutcomeWord,
    #[arg(long)]
    reason: Option<String>,
    #[arg(long)]
    message: Option<String>,
    /// Wish for the next try, in seconds
    #[arg(long, value_name = "SECONDS")]
    retry_after: Option<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OutcomeWord {
    Completed,
    /// Try again
    Failed,
    /// Do not try again
    Rejected,
}

impl OutcomeWord {
    fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }
}

pub(super) async fn claim(api: &Api, args: ClaimArgs) -> anyhow::Result<()> {
    let body = json!({ "max": args.max, "wait_s": args.wait });
    let answer = api.post(&format!("/v1/subscriptions/{}/claim", encoded(&args.subscription)), &body).await?;
    if args.json {
        return output::json(&answer);
    }
    let jobs = claimed(&answer)?;
    if jobs.is_empty() {
        output::complain("no work");
    }
    for job in jobs {
        let text = String::from_utf8_lossy(&STANDARD.decode(&job.body_base64)?).into_owned();
        say(format_args!(
            "{}  {}  attempt {}  until {}",
            job.receipt,
            plain(&job.event_type),
            job.attempt,
            moment(job.leased_until)
        ));
        say(plain(&text));
    }
    Ok(())
}

pub(super) async fn report(api: &Api, args: ReportArgs) -> anyhow::Result<()> {
    let mut text = String::new();
    if args.claimed.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(&args.claimed).with_context(|| args.claimed.display().to_string())?;
    }
    let answer: Value = serde_json::from_str(&text).context("not what `jobs claim --json` prints")?;
    let jobs = claimed(&answer)?;
    if jobs.is_empty() {
        bail!("the claim is empty: there was no work");
    }
    for job in jobs {
        let body = json!({
            "v": 1,
            "receipt": job.receipt,
            "subscription": job.subscription,
            "attempt": job.attempt,
            "token": job.token,
            "outcome": args.outcome.as_str(),
            "reason": args.reason,
            "message": args.message,
            "retry_after_s": args.retry_after,
        });
        let path = format!("/v1/jobs/{}/{}/outcome", encoded(&job.receipt), encoded(&job.subscription));
        let answer = api.post(&path, &body).await?;
        let state = answer["state"].as_str().map(|state| format!(", now {state}")).unwrap_or_default();
        say(format_args!(
            "{}  {}  {}{state}",
            job.receipt,
            job.subscription,
            answer["verdict"].as_str().unwrap_or("done")
        ));
    }
    Ok(())
}

/// What is needed here of a claimed job.
#[derive(Debug, Deserialize)]
struct Work {
    receipt: String,
    subscription: String,
    attempt: i32,
    token: String,
    event_type: String,
    leased_until: i64,
    body_base64: String,
}

fn claimed(answer: &Value) -> anyhow::Result<Vec<Work>> {
    serde_json::from_value(answer["jobs"].clone()).context("not what `jobs claim --json` prints")
}
