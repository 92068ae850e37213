//! The environment, read once. Nothing else in the program looks at it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

/// A snapshot of the variables.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, Vec<u8>>);

impl Environment {
    /// The variables of this process; names that are not UTF-8 are left out.
    pub fn of_process() -> Self {
        let pairs = std::env::vars_os();
        Self(pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value.as_bytes().to_vec()))).collect())
    }

    /// The bytes of a variable, exactly.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// A variable as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.bytes(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// `(variable, section, key)` of every `MAKBUZ_SECTION__KEY`, in lower case. A name without `__` is no override:
    /// service links such as `MAKBUZ_PORT` come by themselves in some clusters.
    pub(crate) fn overrides(&self) -> Vec<(String, String, String)> {
        let named = self.0.keys().filter_map(|variable| {
            let (section, key) = variable.strip_prefix("MAKBUZ_")?.split_once("__")?;
            Some((variable.clone(), section.to_ascii_lowercase(), key.to_ascii_lowercase()))
        });
        named.collect()
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect())
    }
}
