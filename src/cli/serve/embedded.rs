//! The embedded default: no configuration, no broker, everything in `./makbuz-dev/`. It is an ordinary configuration text
//! over generated secrets, so that it can be copied out and grown.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::config::{Config, ConfigError, Environment};
use crate::random::Random;

/// Where all of it lies, under the working folder.
pub(crate) const FOLDER: &str = "makbuz-dev";
const SOURCE_SECRET: &str = "source-secret";
const OPERATOR_TOKEN: &str = "operator-token";

/// The configuration that stands in when there is none.
pub(crate) const TEXT: &str = r#"[store]
url = "sqlite://makbuz.db"

[[token]]
name = "operator"
value = "file:operator-token"
role = "operator"

[[source]]
name = "dev"
provider = "standard-webhooks"
secrets = ["file:source-secret"]

[[subscription]]
name = "inbox"
target = "pull"
"#;

/// Reads it; its secrets must be there.
pub(crate) fn config(working: &Path, environment: &Environment) -> Result<Config, ConfigError> {
    let folder = working.join(FOLDER);
    Config::parse(TEXT, "embedded default", &folder, environment)
}

/// Makes the folder and the secrets where they are not there yet, then reads it.
pub(crate) fn prepare(environment: &Environment, random: &dyn Random) -> anyhow::Result<Config> {
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder).with_context(|| FOLDER.to_owned())?;
    keep_or_make(&folder.join(SOURCE_SECRET), || format!("whsec_{}", STANDARD.encode(bytes(random))))?;
    keep_or_make(&folder.join(OPERATOR_TOKEN), || format!("mkb_{}", hex::encode(bytes(random))))?;
    Ok(config(Path::new(""), environment)?)
}

fn bytes(random: &dyn Random) -> [u8; 32] {
    let mut bytes = [0; 32];
    random.fill(&mut bytes);
    bytes
}

/// A file that only its owner reads; one that is there stays as it is, so that a restart changes nothing.
fn keep_or_make(path: &Path, make: impl FnOnce() -> String) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match opened {
        Ok(mut file) => file.write_all(make().as_bytes()).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_only_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        keep_or_make(&path, || "first".to_owned()).unwrap();
        keep_or_make(&path, || "second".to_owned()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_text_is_a_right_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        for name in [SOURCE_SECRET, OPERATOR_TOKEN] {
            std::fs::write(folder.path().join(FOLDER).join(name), "a-value-of-the-tests").unwrap();
        }
        let config = config(folder.path(), &Environment::default()).unwrap();
        assert_eq!(
            (config.sources[0].name.as_str(), config.subscriptions[0].subscription.name.as_str()),
            ("dev", "inbox")
        );
        assert_eq!(config.tokens[0].value.bytes(), 20);
    }
}
