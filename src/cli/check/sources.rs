//! Providers, sources and filters: what can be judged without leaving the process.

use std::collections::BTreeMap;
use std::time::Duration;

use super::findings::Findings;
use crate::cli::catalog;
use crate::config::{Config, SourceSection, SubscriptionSection};
use crate::provider::{Catalog, Definition, Inlet, WINDOW};

pub(super) fn look(findings: &mut Findings, config: &Config) {
    let catalog = match catalog::catalog(config) {
        Ok(catalog) => catalog,
        Err(errors) => return errors.into_iter().for_each(|error| findings.error("providers", error)),
    };
    providers(findings, &catalog);
    let mut definitions = BTreeMap::new();
    for source in &config.sources {
        let what = format!("source {}", source.name);
        match catalog::bind(&catalog, source, &config.edge) {
            Err(errors) => errors.into_iter().for_each(|error| findings.error(what.clone(), error)),
            Ok((definition, inlet)) => {
                findings.ok(what.clone(), secrets(source));
                window(findings, &what, &definition, &inlet);
                every_delivery(findings, &what, source, config, &inlet);
                definitions.insert(source.name.as_str(), definition);
            }
        }
    }
    for entry in &config.subscriptions {
        filter(findings, config, entry, &definitions);
    }
    unheard(findings, config);
}

fn providers(findings: &mut Findings, catalog: &Catalog) {
    match catalog.check() {
        Ok(definitions) => findings.ok("providers", format!("{} provider files", definitions.len())),
        Err(errors) => errors.into_iter().for_each(|error| findings.error("providers", error.to_string())),
    }
}

/// Length and fingerprint tell secrets apart without showing them.
fn secrets(source: &SourceSection) -> String {
    let each = source
        .secrets
        .iter()
        .map(|entry| format!("{} ({} bytes, sha256 {})", entry.label, entry.value.bytes(), entry.value.fingerprint()));
    let listed = each.collect::<Vec<_>>().join(", ");
    let listed = if listed.is_empty() { "no secret".to_owned() } else { listed };
    format!("{}: {listed}", source.provider)
}

fn window(findings: &mut Findings, what: &str, definition: &Definition, inlet: &Inlet) {
    let (_, reason) = definition.window();
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match inlet.tolerance() {
        Some(tolerance) if tolerance <= WINDOW => {}
        Some(tolerance) => {
            findings.warning(
                what,
                format!("not held to five minutes but to {}{reason}", humantime::format_duration(whole(tolerance))),
            );
        }
        None => findings.warning(what, format!("not held to five minutes: no time is signed{reason}")),
    }
}

fn whole(span: Duration) -> Duration {
    Duration::from_secs(span.as_secs())
}

/// There the same event comes as many receipts, and only a key of its own tells the consumer so.
fn every_delivery(findings: &mut Findings, what: &str, source: &SourceSection, config: &Config, inlet: &Inlet) {
    if !inlet.every_delivery() {
        return;
    }
    for entry in &config.subscriptions {
        let filter = &entry.subscription.filter;
        let takes = (filter.sources.is_empty() || filter.sources.contains(&source.name))
            && (filter.providers.is_empty() || filter.providers.contains(&source.provider));
        if takes {
            let name = &entry.subscription.name;
            findings.warning(what, format!("every delivery is a receipt of its own, and subscription {name} has no operation key: its consumer must find repeats itself"));
        }
    }
}

/// A filter that can match nothing that its sources' providers are known to send.
fn filter(
    findings: &mut Findings,
    config: &Config,
    entry: &SubscriptionSection,
    definitions: &BTreeMap<&str, Definition>,
) {
    let subscription = &entry.subscription;
    let what = format!("subscription {}", subscription.name);
    let filter = &subscription.filter;
    let sources: Vec<&SourceSection> = config
        .sources
        .iter()
        .filter(|source| filter.sources.is_empty() || filter.sources.contains(&source.name))
        .filter(|source| filter.providers.is_empty() || filter.providers.contains(&source.provider))
        .collect();
    if sources.is_empty() {
        return findings.warning(what, "its filter names no source that is configured: it takes nothing");
    }
    for glob in &filter.types {
        let known: Vec<&[String]> =
            sources.iter().filter_map(|source| Some(definitions.get(source.name.as_str())?.known_types())).collect();
        // A provider that lists no types may send any.
        let judged = !known.is_empty() && known.iter().all(|types| !types.is_empty());
        if judged && !known.iter().flat_map(|types| types.iter()).any(|event_type| glob.matches(event_type)) {
            let text =
                format!("type {:?} matches none of the types that its providers are known to send", glob.as_str());
            findings.warning(what.clone(), text);
        }
    }
    findings.ok(what, format!("{}, sources {}", subscription.target.as_str(), sources.len()));
}

/// Sources whose events nobody takes.
fn unheard(findings: &mut Findings, config: &Config) {
    for source in &config.sources {
        let heard = config.subscriptions.iter().any(|entry| {
            let filter = &entry.subscription.filter;
            (filter.sources.is_empty() || filter.sources.contains(&source.name))
                && (filter.providers.is_empty() || filter.providers.contains(&source.provider))
        });
        if !heard {
            findings.warning(
                format!("source {}", source.name),
                "no subscription takes its events: they are kept, and nothing more",
            );
        }
    }
}
