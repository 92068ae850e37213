use super::*;

fn parse(text: &str) -> Result<Expr, String> {
    let params = BTreeMap::from([("merchant_salt".to_owned(), true)]);
    let (mut document, mut item) = (Pointers::default(), Pointers::default());
    Expr::parse(text, &mut Scope { document: &mut document, item: &mut item, batch: true, params: &params })
}

#[test]
fn reads_terms_pipes_joins_and_alternatives() {
    let expr = parse("json:/a ?? ('x:' + header:x-id|lower|sha256|hex + ';')|empty + form:b").expect("expr");
    assert_eq!(expr.alternatives.len(), 2);
    assert_eq!(expr.alternatives[1].len(), 2);
    assert!(matches!(expr.alternatives[1][0].term, Term::Group(_)));
    assert!(expr.any(|term| matches!(term, Term::Header(name) if name == "x-id")));
    assert!(matches!(parse(r"'it\'s\n'").expect("literal").plain(), Some(Term::Literal(text)) if text == b"it's\n"));
    assert!(
        matches!(parse("json:\"/a b|c\"").expect("quoted").plain(), Some(Term::Json(place)) if place.pointer == "/a b|c")
    );
}

#[test]
fn mistakes_are_named() {
    for (text, part) in [
        ("bodi", "did you mean `body`"),
        ("header", "needs an argument"),
        ("body:x", "takes no argument"),
        ("body|lowr", "did you mean `|lower`"),
        ("json:a", "not a JSON pointer"),
        ("param:merchant_sald", "did you mean `merchant_salt`"),
        ("'open", "not closed"),
        ("(body", "missing"),
        ("body body", "not expected"),
        ("header:a b", "not expected"),
        ("", "unknown"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}
