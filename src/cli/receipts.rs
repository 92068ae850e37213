//! `makbuz receipts`: what was accepted.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Context;
use super::api::{Api, encoded, query};
use super::output::{self, Table, or_dash, plain, say, short_time};
use crate::admin::view::{JobJson, ReceiptJson};

#[derive(Debug, Subcommand)]
pub(crate) enum ReceiptsCommand {
    /// Newest first
    List(ListArgs),
    /// One receipt with its jobs and redeliveries
    Show(ShowArgs),
    /// The exact bytes, to standard output
    Body(BodyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[arg(long)]
    source: Option<String>,
    #[arg(long)]
    provider: Option<String>,
    #[arg(long)]
    account: Option<String>,
    #[arg(long)]
    event_id: Option<String>,
    /// The event's type, exactly
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// live, test or unknown
    #[arg(long)]
    mode: Option<String>,
    /// Only those that are kept from consumers until a person looks
    #[arg(long)]
    held: bool,
    /// Only older ones than this receipt
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
    /// The API's answer as it is
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BodyArgs {
    receipt: String,
    /// The whole delivery instead of the event's own part
    #[arg(long)]
    whole: bool,
}

pub(crate) async fn run(context: &Context, command: ReceiptsCommand) -> anyhow::Result<ExitCode> {
    let api = Api::reach(context).await?;
    let done = match command {
        ReceiptsCommand::List(args) => list(&api, args).await,
        ReceiptsCommand::Show(args) => show(&api, &args).await,
        ReceiptsCommand::Body(args) => body(&api, &args).await,
    };
    api.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn list(api: &Api, args: ListArgs) -> anyhow::Result<()> {
    let path = query(&[
        ("source", args.source),
        ("provider", args.provider),
        ("account", args.account),
        ("event_id", args.event_id),
        ("event_type", args.event_type),
        ("mode", args.mode),
        ("held", args.held.then(|| "true".to_owned())),
        ("before", args.before),
        ("limit", Some(args.limit.to_string())),
    ]);
    let answer = api.get(&format!("/v1/receipts{path}")).await?;
    if args.json {
        return output::json(&answer);
    }
    let receipts: Vec<ReceiptJson> = serde_json::from_value(answer["receipts"].clone())?;
    let mut table = Table::new(["RECEIPT", "RECEIVED", "SOURCE", "TYPE", "ACCOUNT", "EVENT", "SENT", "JOBS"]);
    for receipt in &receipts {
        table.row([
            receipt.id.clone(),
            short_time(&receipt.received_at),
            receipt.source.clone(),
            receipt.event_type.clone(),
            receipt.account.clone(),
            receipt.provider_ref.clone(),
            format!("{}×", receipt.duplicates + 1),
            jobs_in_short(receipt),
        ]);
    }
    if table.is_empty() {
        output::complain("no receipts");
    } else {
        say(table);
    }
    say_next(&answer);
    Ok(())
}

/// `billing completed, badges review`; the reason where it is held; a dash where nobody wanted it.
fn jobs_in_short(receipt: &ReceiptJson) -> String {
    if let Some(reason) = &receipt.hold_reason {
        return format!("held: {reason}");
    }
    let jobs: Vec<_> = receipt.jobs.iter().map(|job| format!("{} {}", job.subscription, job.state)).collect();
    if jobs.is_empty() { "-".to_owned() } else { jobs.join(", ") }
}

pub(super) fn say_next(answer: &Value) {
    if let Some(next) = answer["next"].as_str() {
        output::complain(format_args!("more: --before {next}"));
    }
}

async fn show(api: &Api, args: &ShowArgs) -> anyhow::Result<()> {
    let answer = api.get(&format!("/v1/receipts/{}", encoded(&args.receipt))).await?;
    if args.json {
        return output::json(&answer);
    }
    let receipt: ReceiptJson = serde_json::from_value(answer)?;
    let proof = receipt
        .verified_by
        .as_ref()
        .map(|by| format!("{}, secret {:?}, covers {}", by.mechanism, by.secret, by.coverage));
    let facts: [(&str, Option<String>); 14] = [
        ("receipt", Some(receipt.id.clone())),
        ("received", Some(receipt.received_at.clone())),
        ("occurred", receipt.occurred_at.clone()),
        ("source", Some(format!("{} ({})", receipt.source, receipt.provider))),
        ("account", Some(receipt.account.clone())),
        ("event", Some(receipt.event_id.clone())),
        ("type", Some(receipt.event_type.clone())),
        ("mode", Some(receipt.mode.clone())),
        ("resource", receipt.resource_key.clone()),
        ("verified by", proof),
        ("flags", Some(receipt.flags.join(", ")).filter(|flags| !flags.is_empty())),
        ("held", receipt.hold_reason.clone()),
        ("duplicates", Some(receipt.duplicates.to_string())),
        ("divergences", Some(receipt.divergences.len()).filter(|n| *n > 0).map(|n| n.to_string())),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            say(format_args!("{name:<12} {}", plain(&value)));
        }
    }
    for delivery in &receipt.deliveries {
        say(format_args!(
            "{:<12} {} {} from {}",
            "again",
            short_time(&delivery.at),
            plain(&delivery.verdict),
            plain(&delivery.peer)
        ));
    }
    if !receipt.jobs.is_empty() {
        say("");
        say(jobs_table(&receipt.jobs));
    }
    Ok(())
}

/// Jobs, one a row.
pub(super) fn jobs_table(jobs: &[JobJson]) -> Table {
    let mut table = Table::new(["RECEIPT", "SUBSCRIPTION", "STATE", "ATTEMPT", "SINCE", "NEXT", "REASON"]);
    for job in jobs {
        table.row([
            job.receipt.clone(),
            job.subscription.clone(),
            job.state.clone(),
            job.attempt.to_string(),
            short_time(&job.created_at),
            job.next_attempt_at.as_deref().map_or_else(|| "-".to_owned(), short_time),
            or_dash(job.reason.as_ref()),
        ]);
    }
    table
}

async fn body(api: &Api, args: &BodyArgs) -> anyhow::Result<()> {
    let whole = if args.whole { "?whole=true" } else { "" };
    let bytes = api.get_bytes(&format!("/v1/receipts/{}/body{whole}", encoded(&args.receipt))).await?;
    output::bytes(&bytes);
    Ok(())
}
