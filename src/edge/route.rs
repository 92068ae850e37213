//! From a path to a source. Exact: nothing is decoded, normalised or redirected, so that no two readers of a path differ.

use std::collections::HashMap;
use std::sync::Arc;

use super::EdgeSource;

/// Longest `{account}` and longest rest of a path.
const PART_BYTES_MAX: usize = 512;

/// Where a request goes.
#[derive(Clone)]
pub(super) struct Routed {
    pub source: Arc<EdgeSource>,
    /// The alias by which the source was called, if by one.
    pub alias: Option<Arc<str>>,
    pub account: Option<String>,
    pub suffix: Option<String>,
}

/// What a known first part of a path stands for.
struct Entry {
    source: Arc<EdgeSource>,
    alias: Option<Arc<str>>,
}

/// All paths of one configuration.
pub(super) struct Routes {
    /// By name and by alias, after `/in/`.
    names: HashMap<String, Entry>,
    /// Extra paths to take over existing endpoints, without a trailing slash.
    paths: HashMap<String, Entry>,
}

impl Routes {
    pub fn new(sources: &[Arc<EdgeSource>]) -> Self {
        let (mut names, mut paths) = (HashMap::new(), HashMap::new());
        for source in sources {
            names.insert(source.name.to_string(), Entry { source: Arc::clone(source), alias: None });
            for alias in &source.aliases {
                names.insert(alias.to_string(), Entry { source: Arc::clone(source), alias: Some(Arc::clone(alias)) });
            }
            for path in &source.paths {
                let path = path.strip_suffix('/').filter(|short| !short.is_empty()).unwrap_or(path);
                paths.insert(path.to_owned(), Entry { source: Arc::clone(source), alias: None });
            }
        }
        Self { names, paths }
    }

    /// The source behind `path` and what else the path says; `None` is a 404.
    pub fn find(&self, path: &str) -> Option<Routed> {
        if path.contains('%') || path.contains("//") || path.contains("..") || path.contains('\\') {
            return None;
        }
        let path = path.strip_suffix('/').filter(|short| !short.is_empty()).unwrap_or(path);
        if let Some(rest) = path.strip_prefix("/in/") {
            let (name, rest) = rest.split_once('/').map_or((rest, None), |(name, rest)| (name, Some(rest)));
            if let Some(routed) = self.names.get(name).and_then(|entry| entry.take(rest)) {
                return Some(routed);
            }
        }
        self.find_extra(path)
    }

    /// The longest extra path that `path` is, or begins with.
    fn find_extra(&self, path: &str) -> Option<Routed> {
        if self.paths.is_empty() {
            return None;
        }
        if let Some(entry) = self.paths.get(path) {
            return entry.take(None);
        }
        path.rmatch_indices('/').find_map(|(at, _)| self.paths.get(&path[..at])?.take(Some(&path[at + 1..])))
    }
}

impl Entry {
    /// Reads what stands after the name: an account if and only if the source has it in the path, then a rest if and only
    /// if the provider's definition declares one.
    fn take(&self, rest: Option<&str>) -> Option<Routed> {
        let (account, suffix) = match (self.source.account_in_path, rest) {
            (false, rest) => (None, rest),
            (true, None) => return None,
            (true, Some(rest)) => match rest.split_once('/') {
                None => (Some(rest), None),
                Some((account, suffix)) => (Some(account), Some(suffix)),
            },
        };
        let fits = |part: Option<&str>| part.is_none_or(|part| !part.is_empty() && part.len() <= PART_BYTES_MAX);
        if !fits(account) || !fits(suffix) || (suffix.is_some() && !self.source.inlet.takes_suffix()) {
            return None;
        }
        Some(Routed {
            source: Arc::clone(&self.source),
            alias: self.alias.clone(),
            account: account.map(str::to_owned),
            suffix: suffix.map(str::to_owned),
        })
    }
}
