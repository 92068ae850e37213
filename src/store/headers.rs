//! Kept headers as one column: a JSON list, the values in base64, for they are bytes and not always text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// `[["name","base64 of the value"],…]` for kept headers, `[["name"],…]` for those of which only the name is kept.
pub(crate) fn to_json(kept: &[(String, Bytes)], dropped: &[String]) -> String {
    let kept = kept.iter().map(|(name, value)| vec![name.clone(), STANDARD.encode(value)]);
    let dropped = dropped.iter().map(|name| vec![name.clone()]);
    // Unwrap safety: lists of strings always serialise.
    serde_json::to_string(&kept.chain(dropped).collect::<Vec<_>>()).expect("strings are JSON")
}

/// The kept headers; `None` if the column holds something else.
pub(crate) fn parse(text: &str) -> Option<Vec<(String, Bytes)>> {
    let list: Vec<Vec<String>> = serde_json::from_str(text).ok()?;
    let kept = list.iter().filter_map(|entry| match entry.as_slice() {
        [name, value] => Some(STANDARD.decode(value).map(|value| (name.clone(), Bytes::from(value)))),
        _ => None,
    });
    kept.collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_bytes_and_bare_names_are_left_out() {
        let kept = vec![("x-a".to_owned(), Bytes::from_static(b"p\xffsh")), ("x-b".to_owned(), Bytes::new())];
        let text = to_json(&kept, &["cookie".to_owned()]);
        assert!(text.contains("[\"cookie\"]"));
        assert_eq!(parse(&text).unwrap(), kept);
        assert_eq!(parse("[[\"x\",\"?\"]]"), None);
    }
}
