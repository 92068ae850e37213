use super::*;

const GOOD: &str = r#"
name = "acme"
title = "Acme"
docs = ["https://acme.example/docs"]
evidence = "docs"

[params.salt]
about = "the salt"
example = "x"

[[scheme]]
mechanism = "hmac-sha256"
signed = "timestamp + '.' + body"
coverage = "body"
signature = { from = "header:acme-signature", name = "s", encoding = "hex" }
timestamp = { from = "pair:t" }

[identity]
provider_ref = "json:/id"
signed = true

[[template]]
type = "a"
body = '{"id":"{id}"}'
"#;

fn mistakes(changes: &[(&str, &str)]) -> Vec<String> {
    let mut text = GOOD.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    match Definition::compile("acme.toml", &text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_small_file_compiles() {
    assert_eq!(mistakes(&[]), Vec::<String>::new());
}

#[test]
fn all_mistakes_of_a_file_come_at_once() {
    let all = mistakes(&[
        ("\"hmac-sha256\"", "\"hmac-sha265\""),
        ("title = \"Acme\"", "titel = \"Acme\""),
        ("json:/id", "jsn:/id"),
        ("signed = true", "ids = \"globl\""),
        ("type = \"a\"", "type = 5"),
    ]);
    for part in [
        "acme.toml: titel: unknown key; did you mean `title`?",
        "acme.toml: title: is missing",
        "scheme[0].mechanism: `hmac-sha265` is not one of",
        "identity.provider_ref: `jsn` is unknown in `jsn:/id`; did you mean `json`?",
        "identity.ids: `globl` is not one of",
        "identity.signed: say whether",
        "template[0].type: ",
    ] {
        assert!(all.iter().any(|error| error.contains(part)), "{part} in {all:#?}");
    }
}

#[test]
fn what_would_be_unsafe_does_not_compile() {
    for (from, to, part) in [
        ("'.' + body", "'.' + json:/id", "`body` is stated, but what is signed covers `fields`"),
        ("timestamp + '.' + body", "body", "this time is not signed"),
        ("timestamp = { from = \"pair:t\" }", "", "no time is signed: say `none`"),
        ("provider_ref = \"json:/id\"", "provider_ref = \"header:x-id\"", "not covered by every scheme"),
        ("\"hmac-sha256\"", "\"hash-sha256\"", "proves nothing unless the secret is in it"),
        ("[identity]", "[window]\ncheck = \"1h\"\n[identity]", "wider than five minutes states why"),
        ("[identity]", "[account]\nfrom = \"header:x-shop\"\nsigned = true\n[identity]", "the account is not covered"),
        ("[identity]", "[request]\nheaders = [\"Authorization\"]\n[identity]", "never kept"),
        ("[identity]", "[reply]\nstatus = 302\n[identity]", "is a 2xx"),
        ("[identity]", "[reply]\nrefused_status = 200\n[identity]", "is a 4xx"),
        (
            "[identity]",
            "[[scheme]]\nmechanism = \"none\"\ncoverage = \"none\"\n[identity]",
            "let every forgery fall through",
        ),
        ("[identity]", "[[handshake]]\nname = \"x\"\nsigned = \"no\"\n[identity]", "would swallow the events"),
        ("'.' + body", "'.' + body + param:sald", "did you mean `salt`"),
    ] {
        let all = mistakes(&[(from, to)]);
        assert!(all.iter().any(|error| error.contains(part)), "{part} in {all:#?}");
    }
}

#[test]
fn a_wider_window_with_its_reason_compiles() {
    let stated = "[window]\ncheck = \"1h\"\ntolerance_reason = \"resends keep their first time\"\n[identity]";
    assert_eq!(mistakes(&[("[identity]", stated)]), Vec::<String>::new());
}

/// The reference's whole file is one.
#[test]
fn the_readme_s_file_compiles() {
    let readme = include_str!("../../../providers/README.md");
    let file = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a file");
    let compiled = Definition::compile("acme.toml", file);
    assert!(compiled.is_ok(), "{:#?}", compiled.err());
}

/// Mechanisms that no shipped file uses yet: each example of the reference, put into a small file, compiles.
#[test]
fn the_readme_s_examples_compile() {
    let readme = include_str!("../../../providers/README.md");
    let examples: Vec<&str> = readme
        .split_once("## One example per mechanism")
        .expect("section")
        .1
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(examples.len() >= 15);
    for example in examples {
        let (head, sections) = match example.find("[[").or_else(|| example.find("\n[")) {
            Some(at) => example.split_at(at),
            None => (example, ""),
        };
        let defaults = [
            ("mechanism", "\"hmac-sha256\""),
            ("signed", "\"timestamp + '.' + body + '.' + form:x|empty\""),
            ("signature", "{ from = \"header:s\", encoding = \"hex\" }"),
        ];
        let stated = |name: &str| {
            head.lines().any(|line| line.starts_with(name) && line[name.len()..].trim_start().starts_with('='))
        };
        let mut scheme = head.to_owned();
        for (name, value) in defaults {
            if !stated(name) {
                scheme.push_str(&format!("\n{name} = {value}"));
            }
        }
        let file = format!(
            "name = \"x\"\ntitle = \"X\"\ndocs = [\"d\"]\nevidence = \"docs\"\ngeneric = true\n[params]\nsalt = {{ about = \"a\", example = \"e\" }}\n\
             basic_auth = {{ about = \"a\", example = \"e\" }}\nverify_token = {{ about = \"a\", example = \"e\" }}\nkey_id = {{ about = \"a\", example = \"e\" }}\n{}\n{}\n{sections}\n\
             [[template]]\ntype = \"t\"\nbody = \"b\"\n",
            if sections.contains("[[scheme]]") { String::new() } else { format!("[[scheme]]\n{scheme}") },
            if sections.contains("[identity]") {
                ""
            } else {
                "[batch]\nitems = \"/items\"\n[identity]\nprovider_ref = \"json:/id\""
            },
        );
        let compiled = Definition::compile("x.toml", &file);
        assert!(compiled.is_ok(), "{file}\n{:#?}", compiled.err());
    }
}
