//! Store and broker: tried for real.

use std::collections::BTreeSet;

use super::findings::Findings;
use crate::amqp;
use crate::cli::{open, serve};
use crate::config::{Config, StoreUrl};
use crate::random::SystemRandom;
use crate::store::{ReceiptQuery, Store, StoreError, postgres};

/// Receipts that are looked at for sources that went.
const LOOKED_AT: u32 = 500;

pub(super) async fn store(findings: &mut Findings, config: &Config) {
    if let StoreUrl::Postgres(url) = &config.store.url {
        let state = match open::postgres_url(url) {
            Ok(url) => postgres::schema_state(&url, &SystemRandom::new()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = state {
            return findings.error("store", why);
        }
    }
    if let StoreUrl::Sqlite(path) = &config.store.url
        && !path.exists()
    {
        return findings.warning("store", format!("{} is not there yet: `makbuz serve` makes it", path.display()));
    }
    let store = match open::existing_store(config).await {
        Ok(store) => store,
        Err(error) => return could_not_open(findings, &error),
    };
    match store.check().await {
        Ok(found) => found.into_iter().for_each(|found| findings.add(found.severity, "store", found.text)),
        Err(error) => findings.error("store", error.to_string()),
    }
    sources_that_went(findings, config, store.as_ref()).await;
    store.close().await;
}

fn could_not_open(findings: &mut Findings, error: &anyhow::Error) {
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::InUse(_)) => {
            findings.ok("store", "a running instance has it open; `/readyz` of that instance says how it is");
        }
        _ => findings.error("store", format!("{error:#}")),
    }
}

/// A renamed source makes the events of both names different ones, unless it says whose account they have.
async fn sources_that_went(findings: &mut Findings, config: &Config, store: &dyn Store) {
    let receipts = match store.receipts(ReceiptQuery { limit: LOOKED_AT, ..ReceiptQuery::default() }).await {
        Ok(receipts) => receipts,
        Err(error) => return findings.error("store", format!("receipts cannot be read: {error}")),
    };
    let configured: BTreeSet<&str> = config.sources.iter().map(|source| source.name.as_str()).collect();
    let seen: BTreeSet<&str> = receipts.iter().map(|view| view.receipt.source.as_str()).collect();
    for gone in seen.difference(&configured) {
        let text = format!(
            "the store has its receipts, and the configuration does not have it; if it was renamed, the new one needs `account = \"@{gone}\"`"
        );
        findings.warning(format!("source {gone}"), text);
    }
}

pub(super) async fn broker(findings: &mut Findings, config: &Config) {
    let Some(section) = &config.amqp else { return findings.ok("broker", "none is configured") };
    let queues = serve::broker::queues(config);
    let config = serve::broker::config(section);
    let link = match amqp::connect(&config, "check").await {
        Ok(link) => link,
        Err(error) => return findings.error("broker", error.to_string()),
    };
    match amqp::apply_topology(&link, &config, &queues).await {
        Ok(problems) if problems.is_empty() => {
            findings
                .ok("broker", format!("reachable, and its exchanges and {} queues are right", 2 * queues.len() + 3));
        }
        Ok(problems) => {
            for problem in problems {
                findings.error("broker", format!("{}: {}", problem.name, problem.text));
            }
        }
        Err(error) => findings.error("broker", error.to_string()),
    }
    link.close().await;
}
