//! `makbuz check`: tries everything for real, and says everything at once.

mod findings;
mod outside;
mod sources;

use std::process::ExitCode;

use clap::Args;

use super::output::{self, Table, say};
use super::{Context, Found};
use crate::config::{Config, ConfigError};
use crate::store::Severity;
use findings::{Finding, Findings};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The findings as JSON
    #[arg(long)]
    json: bool,
}

/// 1 when there is an error, else 0: a warning is for a person, not for a pipeline.
pub(crate) async fn run(context: &Context, args: CheckArgs) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    match context.config() {
        Ok(found) => {
            if matches!(found, Found::Embedded(_)) {
                findings.ok("config", "no file: the embedded default");
            }
            look(&mut findings, &found.config()).await;
        }
        Err(error) => config_mistakes(&mut findings, &error),
    }
    if args.json {
        output::json(&findings.all())?;
    } else {
        print(findings.all());
    }
    Ok(if findings.worst() == Severity::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn look(findings: &mut Findings, config: &Config) {
    findings.ok(
        "config",
        format!("{}: sources {}, subscriptions {}", config.file, config.sources.len(), config.subscriptions.len()),
    );
    for warning in &config.warnings {
        findings.warning("config", warning.within(&config.file));
    }
    if !config.tokens.iter().any(|token| token.role >= crate::model::access::Role::Viewer) {
        findings
            .warning("tokens", "no [[token]] of role viewer, operator or admin: nobody can look at receipts and jobs");
    }
    sources::look(findings, config);
    outside::store(findings, config).await;
    outside::broker(findings, config).await;
}

fn config_mistakes(findings: &mut Findings, error: &ConfigError) {
    for mistake in &error.mistakes {
        findings.error("config", mistake.within(&error.file));
    }
}

fn print(findings: &[Finding]) {
    let mut table = Table::new(["", "WHAT", "FINDING"]);
    for finding in findings {
        table.row([finding.severity.to_owned(), finding.what.clone(), finding.text.clone()]);
    }
    say(table);
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    say(format_args!("\nerrors {}, warnings {}", count("error"), count("warn")));
}
