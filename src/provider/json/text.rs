//! JSON strings and their text.

use std::borrow::Cow;

/// The text of a quoted string; `None` if it holds a lone surrogate or is no string.
pub fn unquote(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let inner = std::str::from_utf8(inner).ok()?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = rest.as_bytes().get(at + 1)?;
        let mut used = at + 2;
        text.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (value, length) = unicode_escape(&rest[at..])?;
                used = at + length;
                value
            }
            other => char::from(*other),
        });
        rest = &rest[used..];
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

/// The character of the `\uXXXX` (or the pair) at the start of `text`, and how many bytes it takes.
fn unicode_escape(text: &str) -> Option<(char, usize)> {
    let unit = |at: usize| text.get(at..at + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let first = unit(2)?;
    if !(0xd800..0xe000).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let second = if text.get(6..8) == Some("\\u") { unit(8)? } else { return None };
    if first >= 0xdc00 || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    Some((char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))?, 12))
}

/// `text` as a JSON string, quotes included.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
