//! Secrets: read byte for byte from a variable or a file, and never printed.

use std::fmt;
use std::path::Path;

use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};

use super::environment::Environment;

/// A value that no log, error or debug print shows. It is known by where it came from (`env:NAME`, `file:PATH`).
#[derive(Clone)]
pub struct Secret {
    value: SecretSlice<u8>,
    origin: String,
}

impl Secret {
    /// Wraps bytes that did not come from the configuration, such as a generated development secret.
    pub fn new(value: Vec<u8>, origin: impl Into<String>) -> Self {
        Self { value: SecretSlice::from(value), origin: origin.into() }
    }

    /// Reads `env:NAME` or `file:PATH` (relative to `base`), as the configuration does.
    pub fn load(reference: &str, environment: &Environment, base: &Path) -> Result<Self, String> {
        load(reference, environment, base).map(|loaded| loaded.secret)
    }

    /// The bytes themselves; hand them on to whoever signs or compares, and to nobody else.
    pub fn expose(&self) -> &[u8] {
        self.value.expose_secret()
    }

    /// The bytes in the wrapper that the engine takes.
    pub fn share(&self) -> SecretSlice<u8> {
        self.value.clone()
    }

    /// Where it was read: `env:NAME` or `file:PATH`.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.expose().len()
    }

    /// The first 12 hex digits of its SHA-256, to tell values apart without showing them; the same as
    /// `printf %s "$SECRET" | sha256sum | cut -c1-12`.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(self.expose());
        hex::encode(digest)[..12].to_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.origin)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

/// What reading a reference gave: the secret, and a warning if a newline was cut off its end.
pub(crate) struct Loaded {
    pub secret: Secret,
    pub warning: Option<String>,
}

/// Whether the text has the shape of a reference (and is not the secret itself).
pub(crate) fn is_reference(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("file:")
}

/// Reads `env:NAME` or `file:PATH` (relative to `base`). One newline at the end is cut, with a warning: `echo` writes
/// one, and no provider signs with it. All other bytes stay, spaces within and around included. The error names the
/// reference, never what it holds, and never a text that may itself be the secret.
pub(crate) fn load(reference: &str, environment: &Environment, base: &Path) -> Result<Loaded, String> {
    let mut value = if let Some(name) = reference.strip_prefix("env:") {
        environment.bytes(name).ok_or_else(|| format!("the variable {name} is not set"))?.to_vec()
    } else if let Some(path) = reference.strip_prefix("file:") {
        read_file(&base.join(path)).map_err(|error| format!("{reference}: {error}"))?
    } else {
        return Err("a secret is given as \"env:NAME\" or \"file:PATH\", never as itself".to_owned());
    };
    let cut = cut_newline(&mut value);
    if value.iter().all(u8::is_ascii_whitespace) {
        return Err(format!("{reference} is empty"));
    }
    let warning = cut.then(|| format!("{reference} ended in a newline, which was cut"));
    Ok(Loaded { secret: Secret::new(value, reference), warning })
}

/// More than any key or certificate has.
const FILE_BYTES_MAX: u64 = 64 * 1024;

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes are more than a secret has"));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

fn cut_newline(value: &mut Vec<u8>) -> bool {
    let cut = value.last() == Some(&b'\n');
    if cut {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    cut
}
