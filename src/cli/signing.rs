//! What `sign` and `send` share: a provider bound to the secrets that were named on the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::Args;

use super::{Context, providers};
use crate::config::Secret;
use crate::provider::{Inlet, SourceSecret, SourceSettings};

#[derive(Debug, Args)]
pub(crate) struct SigningArgs {
    /// Whose requests: a name of `makbuz providers list`
    pub provider: String,
    /// env:NAME or file:PATH; the first one that can, signs
    #[arg(long, value_name = "REFERENCE")]
    pub secret: Vec<String>,
    /// env:NAME or file:PATH of the private key, where the secret is a public one
    #[arg(long, value_name = "REFERENCE")]
    pub private_key: Option<String>,
    /// What the scheme needs beside the secret, as NAME=VALUE; env: and file: are read
    #[arg(long, value_name = "NAME=VALUE")]
    pub param: Vec<String>,
    /// Type of the event; the provider's first template, if absent
    #[arg(long, value_name = "TYPE")]
    pub event: Option<String>,
    /// A body of your own instead of the template's
    #[arg(long, value_name = "FILE")]
    pub body: Option<PathBuf>,
}

/// A provider that can sign, and what it signs.
pub(crate) struct Signer {
    pub inlet: Inlet,
    pub private_key: Option<Secret>,
    pub body: Option<Bytes>,
}

impl SigningArgs {
    /// Binds the provider; `url` is what URL-signed schemes sign.
    pub fn signer(&self, context: &Context, url: &str) -> anyhow::Result<Signer> {
        let load = |reference: &str| {
            Secret::load(reference, &context.environment, Path::new("")).map_err(|why| anyhow!("{reference}: {why}"))
        };
        let mut secrets = Vec::new();
        for reference in &self.secret {
            secrets.push(SourceSecret {
                label: reference.clone(),
                value: load(reference)?.share(),
                not_before: None,
                not_after: None,
                params: BTreeMap::new(),
            });
        }
        let mut params = BTreeMap::new();
        for param in &self.param {
            let (name, value) =
                param.split_once('=').with_context(|| format!("--param {param:?} is not NAME=VALUE"))?;
            let value = match value.starts_with("env:") || value.starts_with("file:") {
                true => load(value)?.share(),
                false => value.as_bytes().to_vec().into(),
            };
            params.insert(name.to_owned(), value);
        }
        let settings = SourceSettings {
            name: "test".to_owned(),
            secrets,
            params,
            account: None,
            account_in_path: false,
            // What is signed is checked against the very time it was signed at.
            tolerance: None,
            window_strict: false,
            url: Some(url.to_owned()),
            hold_malformed: true,
            replay_guard: None,
        };
        let known = providers::known(context)?;
        let definition = known.get(&self.provider).map_err(|errors| anyhow!(providers::joined(&errors)))?;
        let inlet = definition.bind(settings).map_err(|errors| anyhow!(providers::joined(&errors)))?;
        let body = match &self.body {
            Some(path) => Some(Bytes::from(std::fs::read(path).with_context(|| path.display().to_string())?)),
            None => None,
        };
        let private_key = self.private_key.as_deref().map(load).transpose()?;
        Ok(Signer { inlet, private_key, body })
    }
}
