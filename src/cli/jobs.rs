//! `makbuz jobs` and `makbuz review`: processing, and what a person may do about it.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Context;
use super::api::{Api, encoded, query};
use super::claim::{self, ClaimArgs, ReportArgs};
use super::output::{self, Table, or_dash, plain, say, short_time};
use super::receipts::{jobs_table, say_next};
use crate::admin::view::{JobDetailJson, JobJson};
use crate::model::job::INTAKE;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Newest first
    List(ListArgs),
    /// One job with its attempts
    Show(ShowArgs),
    /// Run a job again, under the rules of today
    Replay(ActArgs),
    /// Close a job that waits in review, unprocessed
    Dismiss(DismissArgs),
    /// Let a held receipt go to its subscriptions
    Release(ReleaseArgs),
    /// Take work of a `pull` subscription under a lease
    Claim(ClaimArgs),
    /// Report the outcome of claimed work
    Report(ReportArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReviewCommand {
    /// Newest first
    List(ReviewArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// pending, queued, running, retrying, completed, superseded, review or dismissed
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    which: ReviewArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    #[arg(long)]
    subscription: Option<String>,
    /// exhausted, rejected, held …
    #[arg(long)]
    reason: Option<String>,
    /// Only jobs of older receipts than this one
    #[arg(long, value_name = "RECEIPT")]
    before: Option<String>,
    /// 1 to 500
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// The API's answer as it is
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    receipt: String,
    subscription: String,
    /// The API's answer as it is
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ActArgs {
    receipt: String,
    subscription: String,
    /// Kept in the history; required for jobs that were completed or dismissed
    #[arg(long)]
    why: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DismissArgs {
    receipt: String,
    subscription: String,
    /// Kept in the history
    #[arg(long)]
    why: String,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    receipt: String,
    /// Kept in the history
    #[arg(long)]
    why: Option<String>,
}

pub(crate) async fn run(context: &Context, command: JobsCommand) -> anyhow::Result<ExitCode> {
    let api = Api::reach(context).await?;
    let done = match command {
        JobsCommand::List(ListArgs { state, which }) => list(&api, "/v1/jobs", state, which).await,
        JobsCommand::Show(args) => show(&api, &args).await,
        JobsCommand::Replay(ActArgs { receipt, subscription, why }) => {
            act(&api, &receipt, &subscription, "replay", why).await
        }
        JobsCommand::Dismiss(DismissArgs { receipt, subscription, why }) => {
            act(&api, &receipt, &subscription, "dismiss", Some(why)).await
        }
        JobsCommand::Release(ReleaseArgs { receipt, why }) => act(&api, &receipt, INTAKE, "replay", why).await,
        JobsCommand::Claim(args) => claim::claim(&api, args).await,
        JobsCommand::Report(args) => claim::report(&api, args).await,
    };
    api.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

pub(crate) async fn run_review(context: &Context, command: ReviewCommand) -> anyhow::Result<ExitCode> {
    let ReviewCommand::List(which) = command;
    let api = Api::reach(context).await?;
    let done = list(&api, "/v1/review", None, which).await;
    api.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn list(api: &Api, route: &str, state: Option<String>, which: ReviewArgs) -> anyhow::Result<()> {
    let query = query(&[
        ("subscription", which.subscription),
        ("state", state),
        ("reason", which.reason),
        ("before", which.before),
        ("limit", Some(which.limit.to_string())),
    ]);
    let answer = api.get(&format!("{route}{query}")).await?;
    if which.json {
        return output::json(&answer);
    }
    let jobs: Vec<JobJson> = serde_json::from_value(answer["jobs"].clone())?;
    if jobs.is_empty() {
        output::complain(if route == "/v1/review" { "nothing waits for a person" } else { "no jobs" });
    } else {
        say(jobs_table(&jobs));
    }
    say_next(&answer);
    Ok(())
}

async fn show(api: &Api, args: &ShowArgs) -> anyhow::Result<()> {
    let answer = api.get(&format!("/v1/jobs/{}/{}", encoded(&args.receipt), encoded(&args.subscription))).await?;
    if args.json {
        return output::json(&answer);
    }
    let detail: JobDetailJson = serde_json::from_value(answer)?;
    say(jobs_table(std::slice::from_ref(&detail.job)));
    if let Some(note) = &detail.job.note {
        say(format_args!("\nnote: {}", plain(note)));
    }
    if detail.attempts.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["ATTEMPT", "SERIES", "TRIGGER", "STARTED", "ENDED", "OUTCOME", "CONSUMER", "ERROR"]);
    for attempt in &detail.attempts {
        let late = if attempt.late { " (late)" } else { "" };
        table.row([
            attempt.attempt.to_string(),
            attempt.series.to_string(),
            attempt.trigger.clone(),
            short_time(&attempt.started_at),
            attempt.ended_at.as_deref().map_or_else(|| "-".to_owned(), short_time),
            format!("{}{late}", attempt.outcome.as_deref().unwrap_or("-")),
            or_dash(attempt.consumer.as_ref()),
            or_dash(attempt.error_text.as_ref().or(attempt.error_class.as_ref())),
        ]);
    }
    say("");
    say(table);
    Ok(())
}

async fn act(api: &Api, receipt: &str, subscription: &str, verb: &str, why: Option<String>) -> anyhow::Result<()> {
    let path = format!("/v1/jobs/{}/{}/{verb}", encoded(receipt), encoded(subscription));
    let answer = api.post(&path, &json!({ "why": why })).await?;
    match &answer["subscriptions"] {
        Value::Array(subscriptions) if subscriptions.is_empty() => say("released; no subscription takes it"),
        Value::Array(subscriptions) => {
            let names: Vec<_> = subscriptions.iter().filter_map(Value::as_str).collect();
            say(format_args!("released to {}", names.join(", ")));
        }
        _ => say(answer["verdict"].as_str().unwrap_or("done")),
    }
    Ok(())
}
