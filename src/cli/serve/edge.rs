//! The role `edge`: sources bound to their providers, and the listener.

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
            Ok((_, inlet)) => bound.push(Arc::new(edge_source(source, inlet))),
            Err(why) => mistakes.extend(why.into_iter().map(|why| format!("source {:?}: {why}", source.name))),
        }
    }
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    Ok(bound)
}

fn edge_source(source: &SourceSection, inlet: crate::provider::Inlet) -> EdgeSource {
    EdgeSource {
        name: source.name.as_str().into(),
        provider: source.provider.as_str().into(),
        inlet: Arc::new(inlet),
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
