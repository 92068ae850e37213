//! The command line: a file per subcommand. `serve` is the composition root.
//!
//! Exit codes: 0 done, and all is well; 1 done, and it is not (a refusal, a mismatch, errors that `check` found) or it could
//! not be done; 2 wrong usage or a wrong configuration.

mod api;
mod catalog;
mod check;
mod claim;
mod jobs;
mod migrate;
mod open;
mod output;
mod providers;
mod receipts;
mod rejections;
mod serve;
#[cfg(test)]
mod tests;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Environment};

/// A webhook receiver gateway: every authentic event is kept, handed on, and seen to its end.
#[derive(Debug, Parser)]
#[command(name = "makbuz", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand knows.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The configuration; else $MAKBUZ_CONFIG, else ./makbuz.toml, else the embedded default
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of a running instance's operators' listener; else `[admin] listen`
    #[arg(long, global = true, value_name = "URL")]
    admin: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Receive, hand on, and see to its end: the service itself
    Serve(serve::ServeArgs),
    /// Try everything for real, and say everything that is wrong at once
    Check(check::CheckArgs),
    /// Bring the store's schema up to date
    Migrate(migrate::MigrateArgs),
    /// The providers that are known, and their vectors
    #[command(subcommand)]
    Providers(providers::ProvidersCommand),
    /// Say whether a saved request verifies, and why not
    Verify(verify::VerifyArgs),
    /// What was accepted, and what became of it
    #[command(subcommand)]
    Receipts(receipts::ReceiptsCommand),
    /// Processing: one job per receipt and subscription
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// The jobs that wait for a person
    #[command(subcommand)]
    Review(jobs::ReviewCommand),
    /// Recent refused requests
    Rejections(rejections::RejectionsArgs),
}

/// Parses the arguments and does what they say.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let environment = Environment::of_process();
    match runtime(&cli.command).and_then(|runtime| runtime.block_on(run(cli, environment))) {
        Ok(code) => code,
        Err(error) if error.is::<ConfigError>() => {
            output::complain(&error);
            ExitCode::from(2)
        }
        Err(error) => {
            output::complain(format_args!("makbuz: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli, environment: Environment) -> anyhow::Result<ExitCode> {
    let context = Context { common: cli.common, environment };
    match cli.command {
        Command::Serve(args) => serve::run(&context, args).await,
        Command::Check(args) => check::run(&context, args).await,
        Command::Migrate(args) => migrate::run(&context, args).await,
        Command::Providers(command) => providers::run(&context, command),
        Command::Verify(args) => verify::run(&context, &args),
        Command::Receipts(command) => receipts::run(&context, command).await,
        Command::Jobs(command) => jobs::run(&context, command).await,
        Command::Review(command) => jobs::run_review(&context, command).await,
        Command::Rejections(args) => rejections::run(&context, args).await,
    }
}

/// Many threads only where many things happen at once.
fn runtime(command: &Command) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    Ok(builder.enable_all().build()?)
}

/// What a subcommand runs in.
pub(crate) struct Context {
    pub common: Common,
    pub environment: Environment,
}

/// Where the configuration came from.
pub(crate) enum Found {
    File(Config),
    /// There is none: the embedded default, whose development files are in this folder.
    Embedded(Config),
}

impl Found {
    pub fn config(self) -> Config {
        match self {
            Self::File(config) | Self::Embedded(config) => config,
        }
    }
}

impl Context {
    /// The configuration, whole and right, or every mistake in it. The embedded default needs its generated secrets, which
    /// only `serve` makes.
    pub fn config(&self) -> Result<Found, ConfigError> {
        match self.config_file() {
            Some(path) => Config::load(&path, &self.environment).map(Found::File),
            None => serve::embedded::config(Path::new(""), &self.environment).map(Found::Embedded),
        }
    }

    /// The file that is asked for or there.
    pub fn config_file(&self) -> Option<PathBuf> {
        let asked = self.common.config.clone().or_else(|| self.environment.text("MAKBUZ_CONFIG").map(PathBuf::from));
        asked.or_else(|| Some(PathBuf::from("makbuz.toml")).filter(|path| path.exists()))
    }
}
