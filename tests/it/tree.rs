//! Rules about the source tree itself: who imports whom, how long a file is, what must be declared, and that README
//! promises nothing that no test holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Lines of a file; the house asks for 400, the rest is room for a last test.
const LINES_MAX: usize = 450;

/// For everybody, beside what the table says.
const BASE: [&str; 2] = ["clock", "random"];

/// Who may import what of ours. ARCHITECTURE.md says why; who is not here may import nothing.
const IMPORTS: [(&str, &[&str]); 16] = [
    ("model", &[]),
    ("clock", &[]),
    ("random", &[]),
    ("metrics", &[]),
    ("lifecycle", &[]),
    ("telemetry", &[]),
    ("config", &["model"]),
    ("provider", &["model"]),
    ("store", &["model", "metrics"]),
    ("amqp", &["metrics", "lifecycle"]),
    ("edge", &["store", "model", "metrics", "lifecycle", "provider"]),
    ("outbox", &["store", "model", "metrics", "lifecycle", "amqp"]),
    ("process", &["store", "model", "metrics", "lifecycle", "provider", "amqp"]),
    ("reconcile", &["store", "model", "metrics", "lifecycle", "provider"]),
    ("admin", &["store", "model", "metrics", "lifecycle", "provider", "telemetry"]),
    ("consumer", &["model"]),
];

/// Crates that stay behind a seam.
const SEALED: [(&str, &[&str]); 2] =
    [("sqlx", &["store", "consumer"]), ("lapin", &["amqp", "outbox", "process", "consumer"])];

/// The metrics that dashboards and rules rely on; those of `reconcile` come with it.
const METRICS: [&str; 27] = [
    "makbuz_deliveries_total",
    "makbuz_rejections_total",
    "makbuz_duplicates_total",
    "makbuz_divergences_total",
    "makbuz_unmatched_total",
    "makbuz_held_total",
    "makbuz_outside_window_total",
    "makbuz_secret_matches_total",
    "makbuz_receipt_seconds",
    "makbuz_commit_seconds",
    "makbuz_commit_batch_events",
    "makbuz_publishes_total",
    "makbuz_publish_seconds",
    "makbuz_outbox_depth",
    "makbuz_oldest_unpublished_seconds",
    "makbuz_broker_blocked",
    "makbuz_jobs",
    "makbuz_oldest_unprocessed_seconds",
    "makbuz_oldest_review_seconds",
    "makbuz_processing_lag_seconds",
    "makbuz_occurred_lag_seconds",
    "makbuz_attempts_total",
    "makbuz_attempt_failures_total",
    "makbuz_repeated_failures",
    "makbuz_source_last_delivery_timestamp_seconds",
    "makbuz_partition_days_ahead",
    "makbuz_build_info",
];

/// A file below src/, its text, and its text without comments, literals and tests.
struct Source {
    path: PathBuf,
    module: Vec<String>,
    text: String,
    code: String,
}

#[test]
fn modules_import_only_what_the_design_allows() {
    let sources = sources();
    let modules: BTreeSet<_> = sources.iter().filter_map(|source| source.module.first().cloned()).collect();
    let allowed: BTreeMap<_, _> = IMPORTS.into_iter().collect();
    let mut wrong = Vec::new();
    for source in &sources {
        let Some(own) = source.module.first() else { continue };
        for imported in imported_modules(source, &modules) {
            let fine = match own.as_str() {
                "cli" => true,
                _ if imported == *own || BASE.contains(&imported.as_str()) => true,
                own => allowed.get(own).is_some_and(|allowed| allowed.contains(&imported.as_str())),
            };
            if !fine {
                wrong.push(format!("{}: {own} imports {imported}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn database_and_broker_crates_stay_behind_their_seams() {
    let mut wrong = Vec::new();
    for source in sources() {
        let own = source.module.first().map_or("", String::as_str);
        for (krate, allowed) in SEALED {
            if words(&source.code).any(|word| word == krate) && !allowed.contains(&own) {
                wrong.push(format!("{} names {krate}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short_and_there_is_no_mod_rs() {
    let mut wrong = Vec::new();
    for path in files(&["src", "tests/it", "benches", "examples"], "rs") {
        let lines = read(&path).lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        if path.ends_with("mod.rs") {
            wrong.push(format!("{}: foo.rs beside foo/", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A test that cannot run says so by `support::skip`, which CI refuses; a word on stderr alone counts as passed.
#[test]
fn tests_that_cannot_run_say_so_by_skip_alone() {
    let own = ["tests/it/support.rs", "tests/it/tree.rs"].map(Path::new);
    let mut wrong = Vec::new();
    for path in files(&["tests/it"], "rs").into_iter().filter(|path| !own.iter().any(|own| path.ends_with(own))) {
        let lines = read(&path);
        let lines = lines.lines().filter(|line| line.contains("\"skip") && !line.contains("skip(\""));
        wrong.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_engine_knows_no_provider_by_name() {
    // The generic ones are named as the mechanisms are.
    let generic = ["hmac", "token", "basic"];
    let names = files(&["providers"], "toml")
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect::<Vec<_>>();
    let mut wrong = Vec::new();
    for source in sources() {
        for name in names.iter().filter(|name| !generic.contains(&name.as_str())) {
            let shapes = [
                format!("== \"{name}\""),
                format!("!= \"{name}\""),
                format!("\"{name}\" =>"),
                format!("\"{name}\" |"),
                format!("\"{name}\" =="),
            ];
            if let Some(shape) = shapes.iter().find(|shape| without_tests(&source.text).contains(shape.as_str())) {
                wrong.push(format!("{}: {shape}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let forbidden =
        [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat(), ["/ho", "me/"].concat(), ["\"resol", "ved\""].concat()];
    let mut wrong = Vec::new();
    for path in tracked_files() {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for word in forbidden.iter().filter(|word| text.contains(word.as_str())) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promised_metric_is_declared_and_every_metric_is_described() {
    let metrics = read(&root().join("src/metrics.rs"));
    let described: BTreeSet<_> = quoted(&metrics, "describe_").into_iter().collect();
    for name in METRICS {
        assert!(described.contains(name), "src/metrics.rs does not declare {name}");
    }
    for source in sources() {
        for family in ["counter!(", "gauge!(", "histogram!("] {
            for name in quoted(&source.text, family).into_iter().filter(|name| name.starts_with("makbuz_")) {
                assert!(described.contains(&name), "{}: {name} has no description", source.path.display());
                assert!(
                    source.path.ends_with("metrics.rs"),
                    "{}: {name} is not declared in metrics.rs",
                    source.path.display()
                );
            }
        }
    }
}

#[test]
fn every_line_of_the_contract_names_a_test_that_exists() {
    let readme = read(&root().join("README.md"));
    let mut code = String::new();
    for path in files(&["src", "tests/it"], "rs") {
        code.push_str(&read(&path));
    }
    for line in 1..=11 {
        let id = format!("C{line}");
        let rows: Vec<_> = readme.lines().filter(|row| first_cell(row) == id).collect();
        assert_eq!(rows.len(), 1, "README has one line for {id}");
        let tests = test_names(rows[0]);
        assert!(!tests.is_empty(), "{id} names no test");
        for test in tests {
            assert!(code.contains(&format!("fn {test}(")), "{id} names {test}, which does not exist");
        }
    }
}

/// The first cell of a table row, bold or not.
fn first_cell(row: &str) -> String {
    let cell = row.trim().strip_prefix('|').and_then(|rest| rest.split('|').next()).unwrap_or_default();
    cell.trim().trim_matches('*').to_owned()
}

/// What stands in backticks in a row's last cell and looks like a test's name, its path cut off.
fn test_names(row: &str) -> Vec<&str> {
    let cell = row.trim().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    let names = cell.split('`').skip(1).step_by(2).map(|name| name.rsplit("::").next().unwrap_or(name));
    names
        .filter(|name| {
            name.matches('_').count() >= 2
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut sources = Vec::new();
    for path in files(&["src"], "rs") {
        let inside = path.strip_prefix(&src).expect("below src").with_extension("");
        let module: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        // A module's tests stand in a file or folder of that name.
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        let module = if matches!(module[0].as_str(), "lib" | "main") { Vec::new() } else { module };
        let text = read(&path);
        let code = code_of(&without_tests(&text));
        sources.push(Source { path, module, text, code });
    }
    assert!(sources.len() > 20, "the tree was not found");
    sources
}

/// Top-level modules that a file reaches by `crate::…` or by enough `super::`.
fn imported_modules(source: &Source, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let mut starts = vec!["crate::".to_owned()];
    starts.push("super::".repeat(source.module.len()));
    let mut found = BTreeSet::new();
    for start in starts {
        for (at, _) in source.code.match_indices(&start) {
            // A longer chain of `super` was already counted from its beginning, or leaves the crate.
            if source.code[..at].ends_with("super::") {
                continue;
            }
            let rest = &source.code[at + start.len()..];
            let names = match rest.strip_prefix('{') {
                Some(group) => first_of_each(group),
                None => words(rest)
                    .next()
                    .into_iter()
                    .filter(|word| rest.starts_with(word))
                    .map(ToOwned::to_owned)
                    .collect(),
            };
            found.extend(names.into_iter().filter(|name| modules.contains(name)));
        }
    }
    found
}

/// The first word of each member of a `use` group.
fn first_of_each(group: &str) -> Vec<String> {
    let (mut depth, mut member, mut members) = (0_i32, String::new(), Vec::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(std::mem::take(&mut member)),
            c => member.push(c),
        }
    }
    members.push(member);
    members.iter().filter_map(|member| words(member).next().map(ToOwned::to_owned)).collect()
}

/// Cuts inline test modules, which end a file.
fn without_tests(text: &str) -> String {
    let end = text
        .match_indices("#[cfg(test)]")
        .find(|(at, _)| text[*at..].lines().nth(1).is_some_and(|next| next.trim_end().ends_with('{')));
    end.map_or(text, |(at, _)| &text[..at]).to_owned()
}

/// Rust without its comments and the insides of its literals.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|after| after.len() - after.trim_start_matches('#').len());
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(hashes) =
            raw.filter(|hashes| rest[1 + hashes..].starts_with('"') && !code.ends_with(is_word))
        {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = hashes + 2;
            rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
        } else if c == '"' {
            string_end(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'/'") {
            3
        } else {
            0
        };
        if skipped > 0 {
            code.push(' ');
            rest = &rest[skipped..];
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

/// Where a string literal at the beginning of `text` ends.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

/// The string literal that is the first argument after each `marker`, on the same line or the next.
fn quoted(text: &str, marker: &str) -> Vec<String> {
    let after = text.match_indices(marker).map(|(at, _)| &text[at + marker.len()..]);
    let literals = after.filter_map(|rest| {
        // A marker such as `describe_` ends inside of the macro's name.
        let rest = rest.trim_start_matches(|c| is_word(c) || matches!(c, '!' | '(')).trim_start();
        let literal = rest.strip_prefix('"')?;
        Some(literal[..literal.find('"')?].to_owned())
    });
    literals.collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below these folders with that extension.
fn files(folders: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        walk(&root().join(folder), &mut found);
    }
    found.retain(|path| path.extension().is_some_and(|given| given == extension));
    found.sort();
    found
}

/// What belongs to the tree: all files but those that builds and runs leave behind.
fn tracked_files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), ".git" | "target" | "node_modules" | "venv") || name.starts_with("makbuz-dev") {
            continue;
        }
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}

#[test]
fn the_reader_of_this_file_is_not_fooled() {
    let text = "use crate::store::{Intake};\nlet a = \"crate::edge\"; // crate::admin\nlet b = r#\"crate::cli \"x\" \"#;\nuse crate::{model::id, metrics};";
    let modules = ["store", "edge", "admin", "cli", "model", "metrics", "provider"].map(String::from).into();
    let source = Source {
        path: PathBuf::new(),
        module: vec!["edge".into(), "receive".into()],
        text: String::new(),
        code: code_of(text),
    };
    assert_eq!(imported_modules(&source, &modules), ["metrics", "model", "store"].map(String::from).into());
    let climbing = Source { code: "use super::super::provider::X; use super::store::Y;".into(), ..source };
    assert_eq!(imported_modules(&climbing, &modules), ["provider".to_owned()].into());
    assert_eq!(
        quoted(
            "describe_gauge!(\n    \"a\",\n \"b\"); describe_counter!(\"c\", \"d\"); gauge!(name, \"e\")",
            "describe_"
        ),
        ["a", "c"]
    );
    assert_eq!(test_names("| C1 | a promise | `store::a_test_name`, `not` |"), ["a_test_name"]);
}
