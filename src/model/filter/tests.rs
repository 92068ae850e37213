use proptest::prelude::*;

use super::*;

fn takes(pattern: &str, event_type: &str) -> bool {
    pattern.parse::<Glob>().expect("a pattern").matches(event_type)
}

#[test]
fn a_star_is_one_part_and_two_stars_are_any_number() {
    for (pattern, event_type, expected) in [
        ("invoice.paid", "invoice.paid", true),
        ("invoice.paid", "invoice.paid.late", false),
        ("invoice.paid", "invoice", false),
        ("invoice.paid", "Invoice.paid", false),
        ("invoice.*", "invoice.paid", true),
        ("invoice.*", "invoice", false),
        ("invoice.*", "invoice.item.made", false),
        ("*.paid", "invoice.paid", true),
        ("charge.**", "charge.dispute.closed", true),
        ("charge.**", "charge", true),
        ("charge.**", "charged", false),
        ("**", "", true),
        ("**", "a.b/c", true),
        ("*", "ping", true),
        ("*", "a.b", false),
        ("**.closed", "charge.dispute.closed", true),
        ("**.closed", "closed", true),
        ("**.closed", "charge.closed.again", false),
        ("a.**.b.*.c", "a.b.x.b.y.c", true),
        ("a.**.b.**.c", "a.b.c", true),
        ("a.**.b.**.c", "a.c.b", false),
        ("**.a.**.a", "a.b.a.b", false),
        ("**.a.**.a", "a.b.a.b.a", true),
        ("orders/*", "orders/create", true),
        ("orders/*", "orders.create", true),
        ("orders.**", "orders/create/x", true),
    ] {
        assert_eq!(takes(pattern, event_type), expected, "{pattern} on {event_type}");
    }
}

#[test]
fn a_pattern_that_means_nothing_is_refused_with_its_code() {
    for (pattern, code) in [
        ("", "pattern_empty"),
        ("invoice..paid", "pattern_empty"),
        ("invoice.", "pattern_empty"),
        ("invoice_*", "pattern_mixed_part"),
        ("invoice.***", "pattern_mixed_part"),
    ] {
        assert_eq!(pattern.parse::<Glob>().expect_err("refused").code(), code, "{pattern}");
    }
    assert_eq!("a".repeat(256).parse::<Glob>(), Err(GlobError::TooLong));
    assert_eq!(vec!["**"; 33].join(".").parse::<Glob>(), Err(GlobError::TooLong));
    let errors = Filter::compile_types(["ok.*", "a..b", "c_*"]).expect_err("two are bad");
    assert_eq!(errors.len(), 2, "all mistakes at once");
}

#[test]
fn each_list_has_to_name_the_event_and_an_empty_one_takes_all() {
    let facts = EventFacts {
        source: "eu",
        provider: "stripe",
        account: "acct_1",
        mode: Mode::Live,
        event_type: "invoice.paid",
    };
    assert!(Filter::default().takes(&facts));
    let all = Filter {
        sources: vec!["eu".into(), "us".into()],
        providers: vec!["stripe".into()],
        accounts: vec!["acct_1".into()],
        modes: vec![Mode::Live],
        types: Filter::compile_types(["invoice.*"]).expect("patterns"),
    };
    assert!(all.takes(&facts));
    assert!(!all.takes(&EventFacts { source: "asia", ..facts }));
    assert!(!all.takes(&EventFacts { provider: "github", ..facts }));
    assert!(!all.takes(&EventFacts { account: "acct_2", ..facts }));
    assert!(!all.takes(&EventFacts { mode: Mode::Test, ..facts }));
    assert!(!all.takes(&EventFacts { event_type: "charge.paid", ..facts }));
}

/// The slow and plain way to say what a pattern means.
fn means(pattern: &[&str], parts: &[&str]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => (0..=parts.len()).any(|n| means(rest, &parts[n..])),
        (Some((&"*", rest)), Some((_, others))) => means(rest, others),
        (Some((literal, rest)), Some((part, others))) => literal == part && means(rest, others),
        _ => false,
    }
}

proptest! {
    #[test]
    fn the_match_agrees_with_the_plain_meaning(
        pattern in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "**"]), 1..7),
        parts in prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..8),
    ) {
        prop_assert_eq!(takes(&pattern.join("."), &parts.join("/")), means(&pattern, &parts));
    }
}
