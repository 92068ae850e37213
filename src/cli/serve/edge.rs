//! The role `edge`: sources bound to their providers, and the listener.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{anyhow, bail};

use super::{Parts, Role, bind, keep};
use crate::cli::catalog;
use crate::config::{Config, SourceSection};
use crate::edge::{Edge, EdgeConfig, EdgeSource, ForwardedHeader, Redirects, TrustedProxies};

/// Binds the sources and listens; all that is wrong with any of them is told at once.
pub(super) async fn start(parts: &Parts) -> anyhow::Result<Option<SocketAddr>> {
    if !parts.has(Role::Edge) {
        return Ok(None);
    }
    let sources = sources(&parts.config)?;
    let edge = Edge::new(
        config(&parts.config)?,
        sources,
        Arc::clone(&parts.subscriptions),
        parts.store.clone(),
        Arc::clone(&parts.clock),
        Arc::clone(&parts.random),
    );
    let (listener, address) = bind(parts.config.edge.listen, "[edge] listen").await?;
    parts.lifecycle.spawn("edge", Arc::new(edge).serve(listener, parts.lifecycle.stop()));
    Ok(Some(address))
}

pub(super) fn config(config: &Config) -> anyhow::Result<EdgeConfig> {
    let edge = &config.edge;
    let networks = edge.trusted_proxies.iter().map(|network| network.to_string().parse()).collect::<Result<_, _>>()?;
    let header = if edge.forwarded_rfc7239 { ForwardedHeader::Forwarded } else { ForwardedHeader::XForwardedFor };
    Ok(EdgeConfig {
        public_url: edge.public_url.clone(),
        trusted_proxies: TrustedProxies { networks, header },
        connections_max: edge.connections_max as usize,
        connections_per_peer_max: edge.connections_per_peer_max as usize,
        requests_max: edge.requests_max as usize,
        client_share_percent: edge.client_share_percent,
        first_byte_limit: edge.first_byte_max,
        header_limit: edge.header_time_max,
        body_limit: edge.body_time_max,
        keep_alive_limit: edge.keep_alive_max,
        header_bytes_max: edge.header_max,
        body_max: edge.body_max as u64,
        bytes_max: edge.bodies_max as u64,
        answer_max: edge.answer_max,
        quarantine: keep::quarantine(config),
        ..EdgeConfig::default()
    })
}

/// Every configured source, bound.
fn sources(config: &Config) -> anyhow::Result<Vec<Arc<EdgeSource>>> {
    let catalog = catalog::catalog(config).map_err(|errors| anyhow!(errors.join("\n")))?;
    let (mut bound, mut mistakes) = (Vec::new(), Vec::new());
    for source in &config.sources {
        match catalog::bind(&catalog, source, &config.edge) {
            Ok((_, inlet)) => bound.push(edge_source(source, inlet)),
            Err(why) => mistakes.extend(why.into_iter().map(|why| format!("source {:?}: {why}", source.name))),
        }
    }
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    guard_together(&mut bound);
    Ok(bound.into_iter().map(Arc::new).collect())
}

/// Gives each source those of its provider at which a request captured from it would pass as well, directly or over a third.
fn guard_together(sources: &mut [EdgeSource]) {
    let mut groups: Vec<BTreeSet<usize>> = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        let shares = |other: &usize| {
            let other: &EdgeSource = &sources[*other];
            other.provider == source.provider && other.inlet.shares_secret(&source.inlet)
        };
        let (joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.iter().any(shares));
        groups = apart;
        groups.push(joined.into_iter().flatten().chain([at]).collect());
    }
    for group in groups {
        // What a source was called before counts as well: its older receipts bear that name.
        let mut names: Vec<Arc<str>> = Vec::new();
        for at in &group {
            names.push(Arc::clone(&sources[*at].name));
            names.extend(sources[*at].aliases.iter().map(Arc::clone));
        }
        names.sort_unstable();
        let names: Arc<[Arc<str>]> = names.into();
        for at in group {
            sources[at].guard_sources = Arc::clone(&names);
        }
    }
}

fn edge_source(source: &SourceSection, inlet: crate::provider::Inlet) -> EdgeSource {
    EdgeSource {
        name: source.name.as_str().into(),
        provider: source.provider.as_str().into(),
        inlet: Arc::new(inlet),
        guard_sources: Arc::new([source.name.as_str().into()]),
        aliases: source.aliases.iter().map(|alias| alias.as_str().into()).collect(),
        paths: source.paths.clone(),
        account_in_path: source.account_in_path,
        body_max: source.body_max.map(|bytes| bytes as u64),
        url: source.url.clone(),
        redirects: source.redirect.clone().map(|redirect| Redirects {
            accepted: redirect.accepted,
            refused: redirect.refused,
            later: redirect.later,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Environment;

    #[test]
    fn sources_that_share_a_secret_are_guarded_together_and_others_apart() {
        let source = |name: &str, provider: &str, secrets: &str| {
            let secrets: Vec<String> = secrets.split(' ').map(|name| format!("\"env:{name}\"")).collect();
            format!("[[source]]\nname = \"{name}\"\nprovider = \"{provider}\"\nsecrets = [{}]\n", secrets.join(", "))
        };
        let text = [
            source("org", "github", "ONE"),
            source("repo", "github", "TWO"),
            source("both", "github", "TWO THREE"),
            source("third", "github", "THREE") + "aliases = [\"old\"]\n",
            source("pay", "stripe", "ONE"),
        ]
        .concat();
        let environment = Environment::from([
            ("ONE", "whsec_c2VjcmV0IG51bWJlciBvbmUu"),
            ("TWO", "whsec_c2VjcmV0IG51bWJlciB0d28u"),
            ("THREE", "whsec_c2VjcmV0IG51bWJlciAzLi4u"),
        ]);
        let config = Config::parse(&text, "makbuz.toml", Path::new("/nowhere"), &environment).expect("a configuration");
        let found = sources(&config).expect("bound");
        let among = |name: &str| {
            let source = found.iter().find(|source| &*source.name == name).expect("configured");
            source.guard_sources.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(among("org"), "org");
        assert_eq!(among("repo"), "both old repo third", "over a third one that shares with both");
        assert_eq!(among("third"), among("repo"));
        assert_eq!(among("pay"), "pay", "never across providers");
    }
}
