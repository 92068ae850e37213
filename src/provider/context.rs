//! A request as expressions see it: bytes borrowed, the body parsed at most once and only when something asks.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::HeaderName;
use subtle::ConstantTimeEq as _;

use super::Inbound;
use super::expr::{Condition, Expr, Piece, Pipe, Place, Term};
use super::form::Field;
use super::json::{self, Fault, Kind, Lookup, Scan};

mod document;
mod sorted;

pub use document::{Content, Document, Item, Json};
pub use sorted::{Order, Sorted};

/// Most bytes that a handshake may echo.
const TOKEN_BYTES_MAX: usize = 256;

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    Absent(String),
    Twice(String),
    HeaderTwice(String),
    /// A header that is not ASCII.
    HeaderNotText(String),
    /// Bytes that are no text.
    NotText(String),
    /// An object or array where a text or number belongs.
    WrongShape(String),
    Unparsable(Fault),
}

/// A value, or nothing there.
pub type Value<'c> = Option<Cow<'c, [u8]>>;

/// What expressions are evaluated against.
#[derive(Clone, Copy)]
pub struct Context<'a, 'd> {
    pub inbound: &'a Inbound<'d>,
    pub document: &'a Document<'d>,
    pub item: Option<&'a Item<'a>>,
    pub url: &'a str,
    pub timestamp: Option<&'a [u8]>,
    pub pairs: &'a [(String, String)],
    pub sorted: Option<&'a Sorted>,
    pub params: Params<'a>,
    /// The secret as configured, for messages that hold it.
    pub secret: Option<&'a [u8]>,
    /// The decoded key, for computed answers.
    pub key: Option<&'a [u8]>,
}

/// Looks up a param: the secret's own, the source's, the file's default.
#[derive(Clone, Copy)]
pub struct Params<'a> {
    pub own: Option<&'a super::ParamValues>,
    pub source: &'a super::ParamValues,
}

impl<'a> Params<'a> {
    /// The value of a param.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        use secrecy::ExposeSecret as _;
        let own = self.own.and_then(|own| own.get(name));
        own.or_else(|| self.source.get(name)).map(|value| value.expose_secret())
    }
}

impl<'a, 'd> Context<'a, 'd> {
    /// The value of an expression; `None` if no alternative is there.
    pub fn value(&self, expr: &'a Expr) -> Result<Value<'a>, Problem> {
        for pieces in &expr.alternatives {
            if let [piece] = &**pieces {
                if let Some(value) = self.piece(piece)? {
                    return Ok(Some(value));
                }
                continue;
            }
            let mut joined = Vec::new();
            let mut whole = true;
            for piece in pieces {
                match self.piece(piece)? {
                    Some(value) => joined.extend_from_slice(&value),
                    None => {
                        whole = false;
                        break;
                    }
                }
            }
            if whole {
                return Ok(Some(Cow::Owned(joined)));
            }
        }
        Ok(None)
    }

    /// The value as text.
    pub fn text(&self, expr: &'a Expr) -> Result<Option<Cow<'a, str>>, Problem> {
        let not_text = || Problem::NotText(describe(expr));
        Ok(match self.value(expr)? {
            None => None,
            Some(Cow::Borrowed(bytes)) => Some(Cow::Borrowed(std::str::from_utf8(bytes).map_err(|_| not_text())?)),
            Some(Cow::Owned(bytes)) => Some(Cow::Owned(String::from_utf8(bytes).map_err(|_| not_text())?)),
        })
    }

    /// Hands the expression's bytes to `sink` piece by piece, without joining them; everything must be there.
    pub fn feed(&self, expr: &'a Expr, sink: &mut dyn FnMut(&[u8])) -> Result<(), Problem> {
        if let [pieces] = &*expr.alternatives {
            for piece in pieces {
                match self.piece(piece)? {
                    Some(value) => sink(&value),
                    None => return Err(Problem::Absent(describe_term(&piece.term))),
                }
            }
            return Ok(());
        }
        match self.value(expr)? {
            Some(value) => sink(&value),
            None => return Err(Problem::Absent(describe(expr))),
        }
        Ok(())
    }

    /// Whether the condition holds; what cannot be read is not there.
    pub fn holds(&self, condition: &'a Condition) -> bool {
        let there = |expr| match self.value(expr) {
            Ok(value) => value.is_some(),
            // It stands there, though not as it should: the variant that reads it decides.
            Err(Problem::Absent(_) | Problem::Unparsable(_)) => false,
            Err(_) => true,
        };
        let same = |left, right| matches!((self.value(left), self.value(right)), (Ok(Some(left)), Ok(Some(right))) if bool::from(left.ct_eq(&right)));
        match condition {
            Condition::Present(expr) => there(expr),
            Condition::Absent(expr) => !there(expr),
            Condition::Same(left, right) => same(left, right),
            Condition::Differ(left, right) => !same(left, right),
        }
    }

    fn piece(&self, piece: &'a Piece) -> Result<Value<'a>, Problem> {
        let mut value = self.term(&piece.term)?;
        for pipe in &piece.pipes {
            value = self.pipe(pipe, value, &piece.term)?;
        }
        Ok(value)
    }

    fn term(&self, term: &'a Term) -> Result<Value<'a>, Problem> {
        let inbound = self.inbound;
        let borrowed = |bytes: &'a [u8]| Ok(Some(Cow::Borrowed(bytes)));
        match term {
            Term::Body => borrowed(inbound.body),
            Term::Method => borrowed(inbound.method.as_str().as_bytes()),
            Term::Url => borrowed(self.url.as_bytes()),
            Term::Path => borrowed(path_of(self.url).as_bytes()),
            Term::QueryText => Ok(inbound.query.map(|query| Cow::Borrowed(query.as_bytes()))),
            Term::Suffix => Ok(inbound.suffix.map(|suffix| Cow::Borrowed(suffix.as_bytes()))),
            Term::Content => borrowed(match self.document.content {
                Content::Json => b"json",
                Content::Form => b"form",
                Content::Opaque => b"opaque",
            }),
            Term::Timestamp => Ok(self.timestamp.map(Cow::Borrowed)),
            Term::Secret => Ok(self.secret.map(Cow::Borrowed)),
            // A form that is not read whole has no fields, and must not pass for one without.
            Term::SortedForm if self.document.form().overfull => Err(Problem::Twice("the form".to_owned())),
            Term::SortedForm => {
                let written = self.sorted.map(|sorted| sorted.write(self.document.form())).transpose()?;
                Ok(written.map(Cow::Owned))
            }
            Term::Literal(text) => borrowed(text),
            Term::Header(name) => self.header(name),
            Term::Query(name) => field(self.document.query().get(name), "query", name),
            Term::Form(name) => field(self.document.form().get(name), "form field", name),
            Term::Pair(name) => {
                let mut values = self.pairs.iter().filter(|(key, _)| key == name);
                match (values.next(), values.next()) {
                    (Some((_, value)), None) => borrowed(value.as_bytes()),
                    (None, _) => Ok(None),
                    _ => Err(Problem::Twice(name.clone())),
                }
            }
            Term::Param(name) => Ok(self.params.get(name).map(Cow::Borrowed)),
            Term::Json(place) => self.json(place, false),
            Term::Slice(place) => self.json(place, true),
            Term::Group(inner) => self.value(inner),
        }
    }

    fn header(&self, name: &HeaderName) -> Result<Value<'a>, Problem> {
        let mut values = self.inbound.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => match value.to_str() {
                Ok(text) => Ok(Some(Cow::Borrowed(trim(text).as_bytes()))),
                Err(_) => Err(Problem::HeaderNotText(format!("header {name}"))),
            },
            (Some(_), Some(_)) => Err(Problem::HeaderTwice(format!("header {name}"))),
        }
    }

    fn json(&self, place: &Place, raw: bool) -> Result<Value<'a>, Problem> {
        let (bytes, scan): (&'a [u8], &'a Scan) = match (place.item, self.item) {
            (true, Some(item)) => (item.bytes, &item.scan),
            (true, None) => return Ok(None),
            (false, _) => match self.document.json() {
                Ok(json) => (&json.bytes, &json.scan),
                Err(Problem::Absent(_)) => return Ok(None),
                Err(problem) => return Err(problem),
            },
        };
        let found = match scan.get(place.slot) {
            Lookup::Absent => return Ok(None),
            Lookup::Twice => return Err(Problem::Twice(place.pointer.clone())),
            Lookup::One(found) => found,
        };
        let text = &bytes[found.span.clone()];
        match found.kind {
            _ if raw => Ok(Some(Cow::Borrowed(text))),
            Kind::Null => Ok(None),
            Kind::Number | Kind::Bool => Ok(Some(Cow::Borrowed(text))),
            Kind::Object | Kind::Array => Err(Problem::WrongShape(place.pointer.clone())),
            Kind::String => match json::unquote(text) {
                Some(Cow::Borrowed(text)) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
                Some(Cow::Owned(text)) => Ok(Some(Cow::Owned(text.into_bytes()))),
                None => Err(Problem::NotText(place.pointer.clone())),
            },
        }
    }

    fn pipe(&self, pipe: &Pipe, value: Value<'a>, term: &Term) -> Result<Value<'a>, Problem> {
        let Some(value) = value else {
            return Ok(matches!(pipe, Pipe::Empty).then_some(Cow::Borrowed(&[])));
        };
        let owned = |bytes: Vec<u8>| Ok(Some(Cow::Owned(bytes)));
        match pipe {
            Pipe::Empty => Ok(Some(value)),
            Pipe::Nonempty => Ok((!value.is_empty()).then_some(value)),
            Pipe::Lower => owned(value.to_ascii_lowercase()),
            Pipe::Upper => owned(value.to_ascii_uppercase()),
            Pipe::Trim => owned(value.trim_ascii().to_vec()),
            Pipe::Reverse => owned(value.iter().rev().copied().collect()),
            Pipe::Escape(bytes) => owned(sorted::escaped(&value, bytes)),
            Pipe::Without(bytes) => owned(value.iter().filter(|byte| !bytes.contains(byte)).copied().collect()),
            Pipe::Hex => owned(hex::encode(value).into_bytes()),
            Pipe::Base64 => owned(STANDARD.encode(value).into_bytes()),
            Pipe::Base64Url => owned(URL_SAFE_NO_PAD.encode(value).into_bytes()),
            Pipe::Unbase64 => match STANDARD.decode(value) {
                Ok(bytes) => owned(bytes),
                Err(_) => Err(Problem::NotText(describe_term(term))),
            },
            Pipe::Digest(hash) => owned(hash.digest(&value)),
            Pipe::Hmac(hash) => Ok(self.key.map(|key| Cow::Owned(hash.mac(key, &value)))),
            Pipe::Until(mark) => Ok(find(&value, mark).map(|at| Cow::Owned(value[..at].to_vec()))),
            Pipe::After(mark) => Ok(find(&value, mark).map(|at| Cow::Owned(value[at + mark.len()..].to_vec()))),
            Pipe::Quote => match std::str::from_utf8(&value) {
                Ok(text) => owned(json::quote(text).into_bytes()),
                Err(_) => Err(Problem::NotText(describe_term(term))),
            },
            Pipe::Token => Ok(is_token(&value).then_some(value)),
            Pipe::Challenge => Ok(is_challenge(&value).then_some(value)),
        }
    }
}

fn field<'a>(field: Field<'a>, kind: &str, name: &str) -> Result<Value<'a>, Problem> {
    match field {
        Field::Absent => Ok(None),
        Field::One(value) => Ok(Some(Cow::Borrowed(value))),
        Field::Twice => Err(Problem::Twice(format!("{kind} {name}"))),
    }
}

/// Cuts spaces and tabs around a header's value.
pub fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// Plain text that cannot be mistaken for a message that somebody signs: short, and no separators.
fn is_token(bytes: &[u8]) -> bool {
    (1..=TOKEN_BYTES_MAX).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte))
}

fn is_challenge(bytes: &[u8]) -> bool {
    (20..=32).contains(&bytes.len()) && bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

fn path_of(url: &str) -> &str {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let rest = &url[after_scheme..];
    let path = rest.find('/').map_or("/", |at| &rest[at..]);
    path.split(['?', '#']).next().unwrap_or(path)
}

/// What an expression names, for people.
pub fn describe(expr: &Expr) -> String {
    let mut names = Vec::new();
    expr.visit(&mut |term| names.push(describe_term(term)));
    names.join(", ")
}

fn describe_term(term: &Term) -> String {
    match term {
        Term::Header(name) => format!("header {name}"),
        Term::Query(name) => format!("query {name}"),
        Term::Form(name) => format!("form field {name}"),
        Term::Pair(name) => format!("part {name} of the signature"),
        Term::Param(name) => format!("param {name}"),
        Term::Json(place) | Term::Slice(place) => place.pointer.clone(),
        Term::Group(inner) => describe(inner),
        Term::Literal(_) => "literal".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}
