use proptest::prelude::*;

use super::*;

fn look(json: &str, pointer: &str) -> Option<String> {
    let mut pointers = Pointers::default();
    let slot = pointers.add(pointer).expect("pointer");
    match scan(json.as_bytes(), &pointers).expect("json").get(slot) {
        Lookup::One(found) => Some(json[found.span.clone()].to_owned()),
        Lookup::Absent => None,
        Lookup::Twice => Some("twice".to_owned()),
    }
}

#[test]
fn finds_values_by_pointer_with_their_exact_text() {
    let json = r#"{"a":{"b":[10,{"c":1e3}]}, "d/e":"x\n", "" : true,"id":18446744073709551616}"#;
    assert_eq!(look(json, "/a/b/1/c").as_deref(), Some("1e3"));
    assert_eq!(look(json, "/a/b/0").as_deref(), Some("10"));
    assert_eq!(look(json, "/d~1e").as_deref(), Some(r#""x\n""#));
    assert_eq!(look(json, "/").as_deref(), Some("true"));
    assert_eq!(look(json, "/id").as_deref(), Some("18446744073709551616"));
    assert_eq!(look(json, "/a/b").as_deref(), Some(r#"[10,{"c":1e3}]"#));
    assert_eq!(look(json, "").as_deref(), Some(json));
    assert_eq!(look(json, "/a/x"), None);
    assert_eq!(look("\u{feff}{\"id\":1}", "/id").as_deref(), Some("1"));
}

#[test]
fn w025_a_repeated_key_on_the_way_is_told() {
    assert_eq!(look(r#"{"id":"a","id":"b"}"#, "/id").as_deref(), Some("twice"));
    assert_eq!(look(r#"{"id":"a","\u0069d":"b"}"#, "/id").as_deref(), Some("twice"));
    assert_eq!(look(r#"{"data":{"id":1},"data":{}}"#, "/data/id").as_deref(), Some("twice"));
    assert_eq!(look(r#"{"x":1,"x":2,"id":"a"}"#, "/id").as_deref(), Some("\"a\""));
}

#[test]
fn w022_lone_surrogates_hurt_only_who_wants_them() {
    let json = r#"{"id":"s1","d":"\ud83d","e":"\ude0a\ud83d"}"#;
    assert_eq!(look(json, "/id").as_deref(), Some("\"s1\""));
    assert_eq!(unquote(br#""\ud83d""#), None);
    assert_eq!(unquote(br#""\ude0a\ud83d""#), None);
    assert_eq!(unquote(br#""\ud83d\ude0a\u0041\/""#).as_deref(), Some("\u{1f60a}A/"));
}

#[test]
fn refuses_what_is_no_json() {
    let none = Pointers::default();
    for bad in [
        "",
        " ",
        "{",
        "[1,]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "01",
        "1.",
        "1e",
        "-",
        "tru",
        "\"\u{1}\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "[1] 2",
        "{\"a\":1,}",
        "]",
        "}",
        "[}",
        "{]",
        "\"",
        "nul",
        "{1:2}",
    ] {
        assert!(scan(bad.as_bytes(), &none).is_err(), "{bad}");
    }
    assert_eq!(scan(b"\"\xff\"", &none).err(), Some(Fault::NotUtf8));
}

#[test]
fn depth_is_bounded_without_recursion() {
    let none = Pointers::default();
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(scan(nested(DEPTH_MAX).as_bytes(), &none).is_ok());
    assert!(scan(nested(DEPTH_MAX + 2).as_bytes(), &none).is_err());
    assert!(scan("[".repeat(1_000_000).as_bytes(), &none).is_err());
}

#[test]
fn elements_are_exact_slices() {
    let json = br#" [ {"a":"],["} , [1,[2]],"x\"y",  3 ]"#;
    let spans = elements(json, 1..json.len(), 10);
    let texts: Vec<_> = spans.into_iter().map(|span| std::str::from_utf8(&json[span]).expect("text")).collect();
    assert_eq!(texts, [r#"{"a":"],["}"#, "[1,[2]]", r#""x\"y""#, "3"]);
    assert_eq!(elements(b"[1,2,3,4]", 0..9, 2).len(), 3);
    assert!(elements(b"[]", 0..2, 2).is_empty());
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut pointers = Pointers::default();
        pointers.add("/id").expect("pointer");
        let _ = scan(&bytes, &pointers);
        let _ = unquote(&bytes);
    }

    #[test]
    fn agrees_with_a_full_parser(text in r#"[\[\]{}",:0-9eE.+\- antrufls\\]{0,24}"#) {
        let ours = scan(text.as_bytes(), &Pointers::default()).is_ok();
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn quoting_and_unquoting_agree(text in any::<String>()) {
        let quoted = quote(&text);
        let back = unquote(quoted.as_bytes());
        prop_assert_eq!(back.as_deref(), Some(&*text));
    }
}
