//! Form-encoded bytes: names and values decoded exactly once, as bytes, in the order received.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// Most fields that are read: memory stays bounded before anything is proved.
pub const FIELDS_MAX: usize = 4096;

/// The pairs of a form body or a query.
#[derive(Debug, Default)]
pub struct Form<'a> {
    pub pairs: Vec<Pair<'a>>,
    /// There were more fields than are read; then none counts.
    pub overfull: bool,
}

/// One `name=value`.
#[derive(Debug)]
pub struct Pair<'a> {
    pub name: Cow<'a, [u8]>,
    pub value: Cow<'a, [u8]>,
    /// The pair as it came.
    pub raw: &'a [u8],
}

/// What a form has under a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'f> {
    Absent,
    One(&'f [u8]),
    /// More than once, or in a form with too many fields to tell.
    Twice,
}

impl<'a> Form<'a> {
    /// Splits at `&`; a `+` is a space, a broken `%` stays as it is.
    pub fn parse(bytes: &'a [u8]) -> Self {
        let mut raws = bytes.split(|byte| *byte == b'&').filter(|raw| !raw.is_empty());
        let pairs: Vec<_> = raws
            .by_ref()
            .take(FIELDS_MAX)
            .map(|raw| {
                let cut = raw.iter().position(|byte| *byte == b'=');
                let (name, value) = cut.map_or((raw, &raw[raw.len()..]), |at| (&raw[..at], &raw[at + 1..]));
                Pair { name: decode(name), value: decode(value), raw }
            })
            .collect();
        if raws.next().is_some() { Self { pairs: Vec::new(), overfull: true } } else { Self { pairs, overfull: false } }
    }

    /// The one value under `name`.
    pub fn get(&self, name: &str) -> Field<'_> {
        if self.overfull {
            return Field::Twice;
        }
        let mut values = self.pairs.iter().filter(|pair| &*pair.name == name.as_bytes());
        match (values.next(), values.next()) {
            (None, _) => Field::Absent,
            (Some(pair), None) => Field::One(&pair.value),
            (Some(_), Some(_)) => Field::Twice,
        }
    }
}

fn decode(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&b'+') {
        return percent_decode(bytes).into();
    }
    let spaced: Vec<u8> = bytes.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

/// `bytes` as a form value.
pub fn encode(bytes: &[u8]) -> String {
    form_urlencoded::byte_serialize(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w010_percent_and_plus_are_decoded_once() {
        let form = Form::parse(b"payload=%7B%22a%22%3A%22x%2By%22%7D&b=1+2&c&=d&e=%zz&b2=%2525");
        assert_eq!(form.get("payload"), Field::One(br#"{"a":"x+y"}"#));
        assert_eq!(form.get("b"), Field::One(b"1 2"));
        assert_eq!(form.get("c"), Field::One(b""));
        assert_eq!(form.get("e"), Field::One(b"%zz"));
        assert_eq!(form.get("b2"), Field::One(b"%25"));
        assert_eq!(form.get("nope"), Field::Absent);
    }

    #[test]
    fn a_repeated_name_is_told() {
        assert_eq!(Form::parse(b"a=1&a=1").get("a"), Field::Twice);
    }

    #[test]
    fn too_many_fields_are_none() {
        let text = b"a=1&".repeat(FIELDS_MAX);
        let form = Form::parse(&text);
        assert_eq!((form.pairs.len(), form.overfull), (FIELDS_MAX, false));
        let text = b"a=1&".repeat(FIELDS_MAX + 1);
        let form = Form::parse(&text);
        assert_eq!((form.pairs.len(), form.get("a"), form.get("b")), (0, Field::Twice, Field::Twice));
    }

    #[test]
    fn encode_and_decode_agree() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = format!("a={}", encode(&bytes));
        assert_eq!(Form::parse(text.as_bytes()).get("a"), Field::One(&bytes));
    }
}
