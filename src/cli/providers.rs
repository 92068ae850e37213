//! `makbuz providers`: what is known, and whether it does what its vectors say.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Args, Subcommand};

use super::output::{self, complain, say};
use super::{Context, Found, catalog};
use crate::provider::Catalog;

#[derive(Debug, Subcommand)]
pub(crate) enum ProvidersCommand {
    /// One line each, the name first
    List(ListArgs),
    /// What one provider sends, signs and expects
    Show(ShowArgs),
    /// Run vectors with the clock pinned; one line for each that does not come out as it says
    Test(TestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// All facts of all of them
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    name: String,
    /// The facts as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    #[arg(required = true, value_name = "VECTOR.json")]
    vectors: Vec<PathBuf>,
}

pub(crate) fn run(context: &Context, command: ProvidersCommand) -> anyhow::Result<ExitCode> {
    let catalog = known(context)?;
    match command {
        ProvidersCommand::List(args) => list(&catalog, &args),
        ProvidersCommand::Show(args) => show(&catalog, &args),
        ProvidersCommand::Test(args) => Ok(test(&catalog, &args)),
    }
}

/// Those of the binary; with a configuration, also those of its folder.
pub(super) fn known(context: &Context) -> anyhow::Result<Catalog> {
    if context.config_file().is_none() {
        return Ok(Catalog::embedded());
    }
    let config = match context.config()? {
        Found::File(config) | Found::Embedded(config) => config,
    };
    catalog::catalog(&config).map_err(|errors| anyhow!(errors.join("\n")))
}

fn list(catalog: &Catalog, args: &ListArgs) -> anyhow::Result<ExitCode> {
    let definitions = catalog.check().map_err(|errors| anyhow!(joined(&errors)))?;
    if args.json {
        output::json(&definitions.iter().map(crate::provider::Definition::describe).collect::<Vec<_>>())?;
    } else {
        definitions.iter().for_each(|definition| say(definition.line()));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(catalog: &Catalog, args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let definition = catalog.get(&args.name).map_err(|errors| anyhow!(joined(&errors)))?;
    if args.json {
        output::json(&definition.describe())?;
    } else {
        say(definition.describe_text().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

fn test(catalog: &Catalog, args: &TestArgs) -> ExitCode {
    let mut missed = 0;
    for path in &args.vectors {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let outcome = text.and_then(|text| crate::provider::run_vector(catalog, &text));
        if let Err(miss) = outcome {
            missed += 1;
            say(format_args!("{}: {miss}", path.display()));
        }
    }
    complain(format_args!("{} of {} vectors as expected", args.vectors.len() - missed, args.vectors.len()));
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(super) fn joined(errors: &[crate::provider::SpecError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
