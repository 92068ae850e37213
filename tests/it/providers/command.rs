//! `makbuz sign` and `makbuz verify` for every provider that ships, as a person at a shell has them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use makbuz::provider::Catalog;
use serde_json::Value;

use super::rig::Rig;
use crate::support::process::BINARY;

#[test]
fn every_shipped_provider_signs_at_the_shell_what_it_verifies_there() {
    let folder = tempfile::Builder::new().prefix("makbuz-it-").tempdir().expect("a folder");
    let mut run = 0;
    for name in Catalog::embedded().names() {
        let rig = Rig::new(name);
        let mut common = Vec::new();
        if let Some(secret) = &rig.secret {
            common.push(format!("--secret=file:{}", keep(folder.path(), "secret", secret.secret.as_bytes())));
        }
        for (param, value) in rig.definition.example_params() {
            let value = String::from_utf8(secrecy::ExposeSecret::expose_secret(&value).to_vec()).expect("text");
            common.push(format!("--param={param}={value}"));
        }
        let mut sign = vec!["sign".to_owned(), name.to_owned(), "--json".to_owned()];
        if let Some(key) = rig.secret.as_ref().and_then(|secret| secret.private_key.as_ref()) {
            sign.push(format!("--private-key=file:{}", keep(folder.path(), "private", key)));
        }
        let signed: Value =
            serde_json::from_slice(&must(folder.path(), &[sign, common.clone()].concat()).stdout).expect("JSON");

        let mut headers = String::new();
        for header in signed["headers"].as_array().expect("headers") {
            let pair = header.as_array().expect("a pair");
            writeln!(headers, "{}: {}", pair[0].as_str().expect("a name"), pair[1].as_str().expect("a value"))
                .expect("text");
        }
        let body = STANDARD.decode(signed["body_base64"].as_str().expect("a body")).expect("base64");
        let verify = vec![
            "verify".to_owned(),
            name.to_owned(),
            format!("--headers={}", keep(folder.path(), "headers", headers.as_bytes())),
            format!("--body={}", keep(folder.path(), "body", &body)),
            format!("--method={}", signed["method"].as_str().expect("a method")),
            format!("--url={}", signed["url"].as_str().expect("a URL")),
        ];
        must(folder.path(), &[verify, common].concat());
        run += 1;
    }
    assert!(run > 90, "only {run} providers");
}

/// Writes a file, and gives its name in the folder.
fn keep(folder: &Path, name: &str, bytes: &[u8]) -> String {
    std::fs::write(folder.join(name), bytes).expect("a file");
    name.to_owned()
}

fn must(folder: &Path, arguments: &[String]) -> Output {
    let output =
        Command::new(BINARY).args(arguments).current_dir(folder).env_clear().output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}
