//! What `serve` says when it stands.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::embedded::FOLDER;
use crate::config::{Config, StoreUrl};

/// Where to post, where to look, and a first tour to paste.
pub(super) fn embedded(edge: SocketAddr, admin: SocketAddr) -> String {
    let folder = std::env::current_dir().unwrap_or_default();
    tour(edge, admin, &folder, &program(&folder))
}

fn tour(edge: SocketAddr, admin: SocketAddr, folder: &Path, program: &str) -> String {
    let (version, folder) = (env!("CARGO_PKG_VERSION"), folder.display());
    format!(
        "
  makbuz {version}, embedded default: SQLite, no broker, one source, one subscription

  post to   http://{edge}/in/dev          signed as standard-webhooks
  look at   http://{admin}/readyz         and /metrics, /v1/receipts
  data      {folder}/{FOLDER}

  In another terminal:

    cd {folder}
    {program} send standard-webhooks --to http://{edge}/in/dev --secret file:{FOLDER}/source-secret
    {program} receipts list
    {program} jobs claim inbox --json > {FOLDER}/claim.json
    {program} jobs report {FOLDER}/claim.json completed
    {program} jobs list

  Ctrl-C stops it.
"
    )
}

/// The program as one can type it: by its path from here, where that is shorter.
fn program(folder: &Path) -> String {
    let Ok(path) = std::env::current_exe() else { return "makbuz".to_owned() };
    match path.strip_prefix(folder) {
        Ok(below) => PathBuf::from(".").join(below).display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

/// One line for the log.
pub(super) fn log(edge: Option<SocketAddr>, admin: Option<SocketAddr>, config: &Config) {
    let store = match &config.store.url {
        StoreUrl::Sqlite(_) => "sqlite",
        StoreUrl::Postgres(_) => "postgres",
    };
    let address =
        |address: Option<SocketAddr>| address.map_or_else(|| "none".to_owned(), |address| address.to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = config.file,
        edge = address(edge),
        admin = address(admin),
        store,
        broker = config.amqp.is_some(),
        sources = config.sources.len(),
        subscriptions = config.subscriptions.len(),
        "serving"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_names_the_addresses_that_were_bound() {
        let (edge, admin) = (SocketAddr::from(([127, 0, 0, 1], 4001)), SocketAddr::from(([127, 0, 0, 1], 4002)));
        let text = tour(edge, admin, Path::new("/srv/makbuz"), "./makbuz");
        for part in [
            "http://127.0.0.1:4001/in/dev",
            "http://127.0.0.1:4002/readyz",
            "cd /srv/makbuz\n",
            "./makbuz jobs claim inbox",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.lines().count() < 20, "it is short");
    }
}
