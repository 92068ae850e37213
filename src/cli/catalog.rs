//! The providers that are known, and sources bound to them.

use crate::config::{EdgeSection, SourceSection};
use crate::provider::{Inlet, SourceSecret, SourceSettings};

/// All definitions, by name.
pub(crate) struct Catalog;

impl Catalog {
    /// The provider files that are part of the binary.
    pub fn built_in() -> anyhow::Result<Self> {
        anyhow::bail!("the provider engine is merged in later")
    }

    /// A source bound to its provider's definition, or all that is wrong with it.
    pub fn bind(&self, source: &SourceSection, edge: &EdgeSection) -> Result<Inlet, Vec<String>> {
        let _ = settings(source, edge);
        Err(Vec::new())
    }
}

/// What a definition needs to know of a source.
fn settings(source: &SourceSection, edge: &EdgeSection) -> SourceSettings {
    let secrets = source.secrets.iter().map(|entry| SourceSecret {
        label: entry.label.clone(),
        value: entry.value.share(),
        not_before: entry.not_before,
        not_after: entry.not_after,
        params: entry.params.iter().map(|(name, value)| (name.clone(), value.share())).collect(),
    });
    SourceSettings {
        name: source.name.clone(),
        secrets: secrets.collect(),
        params: source.params.iter().map(|(name, value)| (name.clone(), value.share())).collect(),
        account: source.account.clone(),
        account_in_path: source.account_in_path,
        tolerance: source.tolerance,
        window_strict: edge.window_strict,
        url: source.url.clone().or_else(|| edge.public_url.as_ref().map(|base| format!("{base}/in/{}", source.name))),
        hold_malformed: source.hold_malformed,
        replay_guard: source.replay_guard,
    }
}
