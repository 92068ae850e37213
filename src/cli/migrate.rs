//! `makbuz migrate`: brings the store's schema up to date.

use std::process::ExitCode;

use clap::Args;

use super::output::say;
use super::{Context, open};
use crate::clock::SystemClock;
use crate::config::StoreUrl;
use crate::random::SystemRandom;
use crate::store::postgres;
use crate::store::sqlite::SqliteStore;

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {}

pub(crate) async fn run(context: &Context, _: MigrateArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?.config();
    let random = SystemRandom::new();
    let steps = match &config.store.url {
        StoreUrl::Sqlite(path) => {
            SqliteStore::migrate(&open::sqlite(&config, path), &SystemClock, &random).await? as usize
        }
        StoreUrl::Postgres(url) => {
            let done = postgres::migrate(&open::postgres_url(url)?, &random).await?;
            for step in &done {
                say(format_args!("applied {step}"));
            }
            done.len()
        }
    };
    say(match steps {
        0 => "the schema is up to date".to_owned(),
        1 => "1 step applied".to_owned(),
        steps => format!("{steps} steps applied"),
    });
    Ok(ExitCode::SUCCESS)
}
