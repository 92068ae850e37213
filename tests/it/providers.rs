//! Vectors and refusals for every provider file.

use std::path::{Path, PathBuf};

use makbuz::provider::{Catalog, run_vector};

mod answers;
mod command;
mod events;
mod every;
mod facts;
mod mechanisms;
mod refusals;
mod rig;
mod roundtrip;
mod settings;
mod vectors;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vectors")
}

#[test]
fn every_file_of_the_folder_is_embedded_and_compiles() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("providers");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("providers folder")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    files.sort();
    let catalog = Catalog::embedded();
    assert_eq!(catalog.names().collect::<Vec<_>>(), files);
    match catalog.check() {
        Ok(definitions) => assert_eq!(definitions.len(), files.len()),
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

#[test]
fn descriptions_name_what_matters() {
    let catalog = Catalog::embedded();
    for name in catalog.names() {
        let definition = catalog.get(name).expect(name);
        let line = definition.line();
        assert!(line.starts_with(name), "{line}");
        let text = definition.describe_text();
        for fact in ["name: ", "window: ", "provider_ref: ", "mechanism: ", "status: "] {
            assert!(text.contains(fact), "{name} has no {fact}:\n{text}");
        }
        assert!(definition.describe()["templates"].as_array().is_some_and(|templates| !templates.is_empty()), "{name}");
    }
    let described = catalog.get("github").expect("github").describe();
    assert_eq!(described["held_to_five_minutes"], false);
    assert_eq!(catalog.get("stripe").expect("stripe").describe()["held_to_five_minutes"], true);
}

/// Inlets are shared by all connections.
#[test]
fn inlets_and_definitions_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<makbuz::provider::Inlet>();
    crosses::<makbuz::provider::Definition>();
    crosses::<Catalog>();
}

#[test]
fn the_operator_s_folder_adds_and_replaces() {
    let folder = tempfile::tempdir().expect("folder");
    let stripe =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/stripe.toml")).expect("file");
    std::fs::write(folder.path().join("stripe.toml"), stripe.replace("title = \"Stripe", "title = \"Ours: Stripe"))
        .expect("write");
    std::fs::write(folder.path().join("mine.toml"), stripe.replace("name = \"stripe\"", "name = \"mine\""))
        .expect("write");
    std::fs::write(folder.path().join("broken.toml"), "name = \"brokn\"\nnonsense = 1\n").expect("write");
    std::fs::write(folder.path().join("notes.txt"), "no provider").expect("write");
    let mut catalog = Catalog::embedded();
    catalog.add_folder(folder.path()).expect("folder");
    assert!(catalog.get("stripe").expect("stripe").title().starts_with("Ours"));
    assert_eq!(catalog.get("mine").expect("mine").name(), "mine");
    let errors = catalog.get("broken").expect_err("broken");
    assert!(errors.iter().any(|error| error.key == "nonsense" && error.place.ends_with("broken.toml")), "{errors:?}");
    assert!(catalog.check().is_err());
    let missing = catalog.get("strip").expect_err("missing");
    assert!(missing[0].reason.contains("did you mean `stripe`"), "{}", missing[0]);
    assert!(catalog.add_folder(&folder.path().join("nowhere")).is_err());
}

#[test]
fn filters_are_held_against_known_types() {
    let catalog = Catalog::embedded();
    let stripe = catalog.get("stripe").expect("stripe");
    assert!(stripe.may_send("invoice.*") && stripe.may_send("charge.**") && stripe.may_send("**"));
    assert!(!stripe.may_send("invoce.*"));
    assert!(catalog.get("token").expect("token").may_send("anything"));
}
