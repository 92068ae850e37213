//! Known requests with known verdicts.

use super::*;

fn run_folder(folder: &Path) -> (usize, Vec<String>) {
    let catalog = Catalog::embedded();
    let mut run = 0;
    let mut misses = Vec::new();
    for entry in std::fs::read_dir(folder).expect("vectors") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("vector");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let provider = value["provider"].as_str().expect("provider");
        if catalog.names().any(|name| name == provider) {
            run += 1;
            if let Err(reason) = run_vector(&catalog, &text) {
                misses.push(format!("{}: {reason}", path.display()));
            }
        }
    }
    (run, misses)
}

/// A folder with more vectors: named by the environment, or beside the repository or one of its parents.
fn larger_folder() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "a test's own switch, no setting of the program")]
    let named = std::env::var("MAKBUZ_VECTORS").ok().map(PathBuf::from);
    let parents = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|parent| parent.join("shared/vectors"));
    named.into_iter().chain(parents).find(|folder| folder.is_dir())
}

#[test]
fn vectors_have_their_verdicts() {
    let (run, misses) = run_folder(&fixtures());
    assert!(run >= 162, "only {run} vectors");
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

#[test]
fn vectors_beside_the_repository_have_their_verdicts() {
    let Some(folder) = larger_folder() else { return };
    let (_, misses) = run_folder(&folder);
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

#[test]
fn a_vector_that_lies_is_told() {
    let text = std::fs::read_to_string(fixtures().join("stripe-2.json")).expect("vector");
    let catalog = Catalog::embedded();
    let lies = [
        ("\"expect\": \"valid\"", "\"expect\": \"invalid\"", "must not be"),
        ("\"event_type\": \"charge.succeeded\"", "\"event_type\": \"x\"", "event_type is"),
        ("\"account\": \"acct_1032D82eZvKYlo2C\"", "\"account\": \"x\"", "account is"),
        ("\"secret\": \"whsec_test_secret\"", "\"secret\": \"other\"", "bad_signature"),
        ("\"timestamp_unix_or_null\": 1700000000", "\"timestamp_unix_or_null\": 1700009000", "stale"),
    ];
    for (true_text, lie, reason) in lies {
        assert!(text.contains(true_text), "{true_text}");
        let error = run_vector(&catalog, &text.replace(true_text, lie)).expect_err(lie);
        assert!(error.contains(reason), "{error}");
    }
}
