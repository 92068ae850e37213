//! Mistakes, overrides, secrets and the reference.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::model::access::Role;
use crate::model::subscription::{CompletesOn, Target};

fn parse(text: &str, environment: &Environment) -> Result<Config, ConfigError> {
    Config::parse(text, "makbuz.toml", Path::new("/nowhere"), environment)
}

/// The mistakes of a text, one a line.
fn mistakes(text: &str) -> Vec<String> {
    let environment = Environment::from([("S", "whsec_of_the_tests"), ("TOKEN", "0123456789abcdef0123")]);
    let error = parse(text, &environment).expect_err("mistakes");
    error.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn nothing_at_all_is_the_embedded_default() {
    let config = parse("", &Environment::default()).expect("defaults");
    assert_eq!(config.edge.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:8081");
    assert_eq!((config.edge.body_max, config.edge.answer_max), (5 << 20, Duration::from_secs(8)));
    assert!(matches!(&config.store.url, StoreUrl::Sqlite(path) if path == Path::new("/nowhere/makbuz.db")));
    assert!(config.store.migrate_at_start && config.amqp.is_none() && config.sources.is_empty());
}

#[test]
fn all_mistakes_are_told_at_once_with_their_lines() {
    let text = r#"[edge]
listne = "0.0.0.0:8080"
body_max = 5
answer_max = "8"
window = "wide"

[stor]
url = "sqlite://x.db"

[amqp]
url = "env:NOT_SET"

[[token]]
name = "Billing"
value = "TOKEN"
role = "consumer"

[[source]]
name = "events"
provider = "stripe"
secrets = ["whsec_in_the_open", "env:S", "env:S"]
ordering = 1
fetch = "always"

[[subscription]]
name = "billing"
filter = { sources = ["strpe"], types = ["inv*"] }
target = "http"
"#;
    let told = mistakes(text);
    let expected = [
        "makbuz.toml:2: unknown key `listne` in [edge]: did you mean `listen`?",
        "makbuz.toml:3: `body_max` is a text, in quotes and with its unit if it has one, not an integer",
        "makbuz.toml:4: `answer_max`: \"8\" is no time: write a number and a unit, such as \"8s\" (ms, s, min, h, d)",
        "makbuz.toml:5: `window`: \"wide\" is none of \"as-declared\", \"strict\"",
        "makbuz.toml:7: unknown section `stor`: did you mean `store`?",
        "makbuz.toml:11: the variable NOT_SET is not set",
        "makbuz.toml:13: a token of role consumer needs `subscriptions`",
        "makbuz.toml:14: \"Billing\" is no name: a lower-case letter, then letters, digits and `-`, 40 at most",
        "makbuz.toml:15: a secret is given as \"env:NAME\" or \"file:PATH\", never as itself",
        "makbuz.toml:19: \"events\" is a name of the broker's own: choose another",
        "makbuz.toml:21: a secret is given as \"env:NAME\" or \"file:PATH\", never as itself",
        "makbuz.toml:21: env:S has the same value as another secret of this source",
        "makbuz.toml:22: unknown key `ordering` in [[source]]",
        "makbuz.toml:23: `fetch` in [[source]] is not in this version yet",
        "makbuz.toml:27: `types`: `*` and `**` stand for whole parts, so `inv*` has to say the rest by parts too",
        "makbuz.toml:28: `target = \"http\"` is not in this version yet: use \"pull\" or \"amqp\"",
    ];
    assert_eq!(told, expected, "{told:#?}");
}

#[test]
fn names_that_meet_are_found() {
    let text = r#"
[[source]]
name = "a"
provider = "stripe"
paths = ["/hook"]
[[source]]
name = "b"
provider = "stripe"
aliases = ["a"]
paths = ["/hook/", "/in/x"]
[[subscription]]
name = "one"
target = "amqp"
filter = { sources = ["c", "bb"] }
[[token]]
name = "t"
value = "env:TOKEN"
role = "consumer"
subscriptions = ["on"]
[[token]]
name = "t"
value = "env:TOKEN"
role = "viewer"
"#;
    let told = mistakes(text).join("\n");
    for part in [
        "two sources are called \"a\"",
        "two sources have the path \"/hook\"",
        "\"/in/x\": `/in/` belongs to the sources' own paths",
        "subscription \"one\" has `target = \"amqp\"`, but there is no [amqp]",
        "makbuz.toml:14: there is no source \"bb\": did you mean \"b\"?",
        "there is no subscription \"on\": did you mean \"one\"?",
        "tokens \"t\" and \"t\" have the same value",
        "two tokens are called \"t\"",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
}

#[test]
fn broken_toml_is_a_mistake_with_its_line() {
    let told = mistakes("[edge]\nlisten = \n[admin\n");
    assert!(told.iter().any(|line| line.starts_with("makbuz.toml:2:")), "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("makbuz.toml:3:")), "{told:?}");
}

#[test]
fn a_key_that_stands_twice_is_refused() {
    let told = mistakes("[edge]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n");
    assert!(told[0].starts_with("makbuz.toml:3:") && told[0].contains("duplicate"), "{told:?}");
}

#[test]
fn a_whole_configuration_is_read() {
    let text = r#"
[edge]
listen = "[::]:80"
public_url = "https://hooks.example.com/"
trusted_proxies = ["10.0.0.0/8", "::1"]
[store]
url = "env:DATABASE"
[amqp]
url = "amqp://localhost/%2f"
topology = "check"
[process]
time_limit = "2min"
[[token]]
name = "billing-service"
value = "env:TOKEN"
role = "consumer"
subscriptions = ["billing"]
[[source]]
name = "stripe-eu"
provider = "stripe"
secrets = ["env:S"]
params = { merchant_id = "m", salt = "env:SALT" }
tolerance = "10min"
[[source.secret]]
value = "env:S2"
label = "next"
not_before = 2026-12-01T00:00:00Z
not_after = "2026-12-02T00:00:00+03:00"
[[subscription]]
name = "billing"
filter = { sources = ["stripe-eu"], types = ["invoice.*", "charge.**"], modes = ["live"] }
target = "pull"
[subscription.retry]
base = "1s"
factor = 2
attempts = 4
jitter = { min = 0.0, max = 0.5, sign = "both" }
[[subscription]]
name = "badges"
target = "amqp"
completes_on = "confirm"
rearm = "off"
retry = "short"
"#;
    let environment = Environment::from([
        ("TOKEN", "0123456789abcdef"),
        ("S", "one"),
        ("S2", "two"),
        ("SALT", "pepper"),
        ("DATABASE", "postgres://user:password@db/makbuz"),
    ]);
    let config = parse(text, &environment).unwrap();
    assert_eq!(config.edge.public_url.as_deref(), Some("https://hooks.example.com"));
    assert_eq!(config.edge.trusted_proxies[1].to_string(), "::1/128");
    assert!(
        matches!(&config.store.url, StoreUrl::Postgres(url) if url.expose().starts_with(b"postgres://user:password@"))
    );
    assert!(!config.store.migrate_at_start);
    assert!(!config.amqp.as_ref().unwrap().declare);
    assert_eq!((config.tokens[0].role, config.tokens[0].value.expose()), (Role::Consumer, &b"0123456789abcdef"[..]));
    let source = &config.sources[0];
    let labels: Vec<_> = source.secrets.iter().map(|secret| secret.label.as_str()).collect();
    assert_eq!(labels, ["S", "next"]);
    assert_eq!(source.secrets[1].not_before, Some(1_796_083_200_000_000));
    assert_eq!(source.secrets[1].not_after, Some(1_796_158_800_000_000));
    assert_eq!(source.params["salt"].expose(), b"pepper");
    assert_eq!(source.tolerance, Some(Duration::from_secs(600)));
    let [billing, badges] = &config.subscriptions[..] else { panic!("two") };
    assert_eq!(billing.subscription.retry.waits, [1, 2, 4].map(Duration::from_secs));
    assert_eq!(billing.subscription.time_limit, Some(Duration::from_secs(120)), "pull: [process] time_limit");
    assert_eq!(badges.subscription.time_limit, None, "amqp: none");
    assert_eq!((badges.subscription.target, badges.subscription.completes_on), (Target::Amqp, CompletesOn::Confirm));
    assert!(!badges.subscription.rearm && billing.subscription.rearm);
}

#[test]
fn variables_lie_over_the_file() {
    let environment = Environment::from([
        ("MAKBUZ_EDGE__LISTEN", "0.0.0.0:9000"),
        ("MAKBUZ_EDGE__TRUSTED_PROXIES", "10.0.0.0/8, 192.168.0.0/16"),
        ("MAKBUZ_EDGE__CONNECTIONS_MAX", "7"),
        ("MAKBUZ_AMQP__URL", "amqp://user:password@broker"),
        ("MAKBUZ_PORT", "tcp://10.0.0.1:80"),
    ]);
    let config = parse("[edge]\nlisten = \"127.0.0.1:1\"\n", &environment).unwrap();
    assert_eq!(config.edge.listen.to_string(), "0.0.0.0:9000");
    assert_eq!((config.edge.trusted_proxies.len(), config.edge.connections_max), (2, 7));
    assert_eq!(config.amqp.unwrap().url.expose(), b"amqp://user:password@broker");
}

#[test]
fn a_wrong_variable_is_named_as_the_place() {
    let environment = Environment::from([
        ("MAKBUZ_EDGE__LISTNE", "0.0.0.0:9000"),
        ("MAKBUZ_EDGE__BODY_MAX", "5"),
        ("MAKBUZ_EGDE__LISTEN", "x"),
        ("MAKBUZ_SOURCE__NAME", "x"),
    ]);
    let told = parse("", &environment).expect_err("mistakes").to_string();
    for part in [
        "MAKBUZ_EDGE__LISTNE: unknown key `listne` in [edge]: did you mean `listen`?",
        "MAKBUZ_EDGE__BODY_MAX: `body_max`: \"5\" is no size",
        "MAKBUZ_EGDE__LISTEN: unknown section `egde`: did you mean `edge`?",
        "MAKBUZ_SOURCE__NAME: `source` comes once for each, so no variable reaches it",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
}

fn source_with(reference: &str, environment: &Environment, base: &Path) -> Result<Config, ConfigError> {
    let text = format!("[[source]]\nname = \"s\"\nprovider = \"stripe\"\nsecrets = [\"{reference}\"]\n");
    Config::parse(&text, "makbuz.toml", base, environment)
}

#[test]
fn w040_one_newline_at_the_end_of_a_secret_is_cut_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (written, kept) in
        [(&b"test_secret\n"[..], &b"test_secret"[..]), (b"s\r\n", b"s"), (b"s\n\n", b"s\n"), (b" s \n", b" s ")]
    {
        std::fs::write(folder.path().join("secret"), written).unwrap();
        let config = source_with("file:secret", &Environment::default(), folder.path()).unwrap();
        assert_eq!(config.sources[0].secrets[0].value.expose(), kept);
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
        assert_eq!(
            config.warnings[0].within("makbuz.toml"),
            "makbuz.toml:4: file:secret ended in a newline, which was cut"
        );
    }
    let config = source_with("env:S", &Environment::from([("S", "test_secret\n")]), folder.path()).unwrap();
    assert_eq!((config.sources[0].secrets[0].value.expose(), config.warnings.len()), (&b"test_secret"[..], 1));
}

#[test]
fn w041_secrets_are_taken_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "ab+/c=&x %41\\n$HOME ş";
    std::fs::write(folder.path().join("secret"), secret).unwrap();
    let environment = Environment::from([("S", secret)]);
    for reference in ["env:S", "file:secret"] {
        let config = source_with(reference, &environment, folder.path()).unwrap();
        assert_eq!(config.sources[0].secrets[0].value.expose(), secret.as_bytes());
        assert!(config.warnings.is_empty());
    }
    // printf %s 'ab+/c=&x' | sha256sum | cut -c1-12
    assert_eq!(Secret::new(b"ab+/c=&x".to_vec(), "test").fingerprint(), "0426c8338ea7");
}

#[test]
fn empty_and_missing_secrets_refuse_to_load() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("blank"), " \n").unwrap();
    for (reference, why) in
        [("env:S", "env:S is empty"), ("file:blank", "file:blank is empty"), ("file:none", "file:none: No such file")]
    {
        let error =
            source_with(reference, &Environment::from([("S", "")]), folder.path()).expect_err("refused").to_string();
        assert!(error.starts_with(&format!("makbuz.toml:4: {why}")), "{error}");
    }
}

/// Stands for a secret wherever one can be written.
const CANARY: &str = "canary-6f1d0c9a-must-not-be-seen";

#[test]
fn no_secret_is_seen_in_debug_or_display_or_mistakes() {
    let text = r#"
[store]
url = "env:DATABASE"
[amqp]
url = "env:BROKER"
[[token]]
name = "t"
value = "env:CANARY"
role = "viewer"
[[source]]
name = "s"
provider = "stripe"
secrets = ["env:CANARY"]
params = { salt = "env:CANARY" }
"#;
    let database = format!("postgres://user:{CANARY}@db/makbuz");
    let broker = format!("amqp://user:{CANARY}@broker");
    let environment = Environment::from([("CANARY", CANARY), ("DATABASE", &database), ("BROKER", &broker)]);
    let config = parse(text, &environment).unwrap();
    for shown in [format!("{config:?}"), format!("{config:#?}"), format!("{}", config.tokens[0].value)] {
        assert!(!shown.contains(CANARY), "{shown}");
        assert!(shown.contains("env:CANARY"), "a secret is shown as its reference: {shown}");
    }
    // A mistake beside a secret, a secret where a reference belongs, and URLs with passwords in the file.
    for wrong in [
        format!(
            "[[source]]\nname = \"s\"\nprovider = \"p\"\nsecrets = [\"{CANARY}\"]\nparams = {{ a = \"env:{}\" }}",
            "NONE"
        ),
        format!("[[token]]\nname = \"t\"\nvalue = \"{CANARY}\"\nrole = \"viewer\""),
        format!("[store]\nurl = \"{database}\""),
        format!("[amqp]\nurl = \"{broker}\""),
        "[amqp]\nurl = \"env:CANARY\"".to_owned(),
        "[store]\nurl = \"env:CANARY\"".to_owned(),
    ] {
        let error = parse(&wrong, &environment).expect_err(&wrong);
        assert!(!error.to_string().contains(CANARY) && !format!("{error:?}").contains(CANARY), "{error}");
    }
}

#[test]
fn tokens_that_can_be_guessed_or_sent_by_no_client_are_refused() {
    let environment = Environment::from([("SHORT", "0123456789"), ("ODD", "0123456789 abcdef")]);
    let text = "[[token]]\nname = \"a\"\nvalue = \"env:SHORT\"\nrole = \"viewer\"\n[[token]]\nname = \"b\"\nvalue = \"env:ODD\"\nrole = \"boss\"\n";
    let told = parse(text, &environment).expect_err("mistakes").to_string();
    assert!(told.contains("makbuz.toml:3: env:SHORT has fewer than 16 bytes"), "{told}");
    assert!(told.contains("makbuz.toml:7: env:ODD has bytes that no header carries"), "{told}");
    assert!(told.contains("makbuz.toml:8: \"boss\" is none of"), "{told}");
}

#[test]
fn reading_never_panics_whatever_the_kinds_are() {
    let values = [
        "1",
        "-1",
        "1.5",
        "true",
        "\"x\"",
        "\"\"",
        "[]",
        "[1]",
        "[[]]",
        "{}",
        "{a=1}",
        "1979-05-27",
        "\"99999999999999999GiB\"",
    ];
    let schemas = SECTIONS.iter().chain(&LISTS);
    for schema in schemas {
        for key in schema.keys {
            for value in values {
                let _ = parse(&format!("{}\n{} = {value}\n", schema.title, key.name), &Environment::default());
                let _ = parse(&format!("{} = {value}\n", section_name(schema)), &Environment::default());
            }
        }
    }
    for key in [
        "filter = {types = 1, modes = [\"x\"], where = {}}",
        "retry = {jitter = 1, schedule = [1, \"x\"], base = \"1s\"}",
        "retry = {jitter = {min = 1.0, max = 0.0}}",
    ] {
        assert!(
            parse(&format!("[[subscription]]\nname = \"a\"\ntarget = \"pull\"\n{key}\n"), &Environment::default())
                .is_err(),
            "{key}"
        );
    }
}

const README_START: &str = "<!-- config reference -->\n";
const README_END: &str = "<!-- end of config reference -->";

/// With `MAKBUZ_WRITE_README=1` in the environment it brings the reference up to date instead.
#[test]
fn readme_lists_exactly_the_known_keys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(README_START).expect("the mark of its start");
    let (listed, after) = rest.split_once(README_END).expect("the mark of its end");
    if Environment::of_process().text("MAKBUZ_WRITE_README") == Some("1") {
        let whole = format!("{before}{README_START}{}\n{README_END}{after}", reference::markdown());
        std::fs::write(&path, whole).expect("written");
        return;
    }
    assert!(
        listed.trim() == reference::markdown().trim(),
        "README.md is behind: run this test with MAKBUZ_WRITE_README=1"
    );
}
