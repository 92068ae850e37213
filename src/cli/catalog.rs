//! Sources of the configuration, bound to the definitions of their providers.

use std::collections::BTreeMap;

use crate::config::{Config, EdgeSection, Secret, SourceSection};
use crate::provider::{Catalog, Definition, Inlet, SourceSecret, SourceSettings};

/// The provider files of the binary, and those of `[providers] folder`.
pub(crate) fn catalog(config: &Config) -> Result<Catalog, Vec<String>> {
    let mut catalog = Catalog::embedded();
    if let Some(folder) = &config.providers.folder {
        catalog.add_folder(folder).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    }
    Ok(catalog)
}

/// A source bound to its provider's definition, or all that is wrong with it.
pub(crate) fn bind(
    catalog: &Catalog,
    source: &SourceSection,
    edge: &EdgeSection,
) -> Result<(Definition, Inlet), Vec<String>> {
    let texts = |errors: Vec<crate::provider::SpecError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let definition = catalog.get(&source.provider).map_err(texts)?;
    let inlet = definition.bind(settings(source, edge)).map_err(texts)?;
    if inlet.carrier_browser() != source.redirect.is_some() {
        let why = if inlet.carrier_browser() {
            "needs `redirect`: a browser carries its form"
        } else {
            "has no use for `redirect`"
        };
        return Err(vec![format!("provider {:?} {why}", source.provider)]);
    }
    Ok((definition, inlet))
}

/// What a definition needs to know of a source.
fn settings(source: &SourceSection, edge: &EdgeSection) -> SourceSettings {
    let secrets = source.secrets.iter().map(|entry| SourceSecret {
        label: entry.label.clone(),
        value: entry.value.share(),
        not_before: entry.not_before,
        not_after: entry.not_after,
        params: shared(&entry.params),
    });
    SourceSettings {
        name: source.name.clone(),
        secrets: secrets.collect(),
        params: shared(&source.params),
        account: source.account.clone(),
        account_in_path: source.account_in_path,
        tolerance: source.tolerance,
        window_strict: edge.window_strict,
        url: source.url.clone().or_else(|| edge.public_url.as_ref().map(|base| format!("{base}/in/{}", source.name))),
        hold_malformed: source.hold_malformed,
        replay_guard: source.replay_guard,
    }
}

fn shared(params: &BTreeMap<String, Secret>) -> BTreeMap<String, secrecy::SecretSlice<u8>> {
    params.iter().map(|(name, value)| (name.clone(), value.share())).collect()
}
