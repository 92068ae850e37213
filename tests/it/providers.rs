//! Vectors and refusals for every provider file.

use std::path::{Path, PathBuf};

use makbuz::provider::{Catalog, run_vector};

mod events;
mod refusals;
mod rig;
mod roundtrip;
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
