//! The small language of provider files: what is signed, and where an id, a type or an account stands.
//!
//! `timestamp + '.' + body`, `json:/account ?? json:/context`, `form:status|lower`. A term names a part of the request,
//! `|` changes it, `+` joins, `??` takes the first that is there. providers/README.md is the reference.

use std::collections::BTreeMap;

use http::HeaderName;

use super::digest::Hash;
use super::json::Pointers;

/// Alternatives (`??`) of joined (`+`) pieces.
#[derive(Debug, Clone)]
pub struct Expr {
    pub alternatives: Vec<Vec<Piece>>,
}

/// A term and what is done to it.
#[derive(Debug, Clone)]
pub struct Piece {
    pub term: Term,
    pub pipes: Vec<Pipe>,
}

/// A part of a request or of a source's settings.
#[derive(Debug, Clone)]
pub enum Term {
    Body,
    Method,
    Url,
    Path,
    /// The whole query as received.
    QueryText,
    Suffix,
    /// `json` or `form`: how the body is read.
    Content,
    /// The signed time, its text as received.
    Timestamp,
    Secret,
    /// All form fields in the order that the scheme's `sorted` section says.
    SortedForm,
    Literal(Vec<u8>),
    Header(HeaderName),
    Query(String),
    Form(String),
    /// A value of a `k=v` list that carries the signature.
    Pair(String),
    Param(String),
    /// The text of the value at a pointer of the document (or of the batch item).
    Json(Place),
    /// The bytes of the value as sent.
    Slice(Place),
    Group(Expr),
}

/// A slot in the document's pointers or the item's.
#[derive(Debug, Clone)]
pub struct Place {
    pub item: bool,
    pub slot: usize,
    pub pointer: String,
}

/// A change of a piece's bytes.
#[derive(Debug, Clone)]
pub enum Pipe {
    /// Nothing there counts as empty text.
    Empty,
    /// Empty text counts as nothing there.
    Nonempty,
    Lower,
    Upper,
    Trim,
    Hex,
    Base64,
    Base64Url,
    Unbase64,
    Digest(Hash),
    /// A MAC with the source's first live secret, for computed answers.
    Hmac(Hash),
    /// What stands before the first of these bytes; absent without them.
    Until(Vec<u8>),
    /// What stands after the first of these bytes; absent without them.
    After(Vec<u8>),
    /// As a JSON string.
    Quote,
    /// Only short plain text passes: what a handshake may echo.
    Token,
}

/// A condition on a request.
#[derive(Debug, Clone)]
pub enum Condition {
    Present(Expr),
    Absent(Expr),
    Same(Expr, Expr),
    Differ(Expr, Expr),
}

/// What names may be used, and where pointers are collected.
pub struct Scope<'s> {
    pub document: &'s mut Pointers,
    pub item: &'s mut Pointers,
    /// Without a batch, `item:` is `json:`.
    pub batch: bool,
    pub params: &'s BTreeMap<String, bool>,
}

impl Expr {
    /// Reads an expression; the error is a sentence for the file's author.
    pub fn parse(text: &str, scope: &mut Scope<'_>) -> Result<Self, String> {
        let mut parser = Parser { text, at: 0, depth: 0, scope };
        let expr = parser.expr()?;
        parser.space();
        match parser.rest().chars().next() {
            None => Ok(expr),
            Some(next) => Err(format!("`{next}` was not expected in `{text}`")),
        }
    }

    /// Calls `visit` for every term, groups opened.
    pub fn visit(&self, visit: &mut dyn FnMut(&Term)) {
        for piece in self.alternatives.iter().flatten() {
            match &piece.term {
                Term::Group(inner) => inner.visit(visit),
                term => visit(term),
            }
        }
    }

    /// Whether a term of this kind stands in it.
    pub fn any(&self, wanted: impl Fn(&Term) -> bool) -> bool {
        let mut found = false;
        self.visit(&mut |term| found |= wanted(term));
        found
    }

    /// The lone term without pipes, if that is all it is.
    pub fn plain(&self) -> Option<&Term> {
        match &*self.alternatives {
            [pieces] => match &**pieces {
                [piece] if piece.pipes.is_empty() => Some(&piece.term),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Condition {
    /// `EXPR`, `!EXPR`, `EXPR == EXPR`, `EXPR != EXPR`.
    pub fn parse(text: &str, scope: &mut Scope<'_>) -> Result<Self, String> {
        let mut parser = Parser { text, at: 0, depth: 0, scope };
        parser.space();
        let absent = parser.take("!");
        let left = parser.expr()?;
        parser.space();
        let condition = if absent {
            Self::Absent(left)
        } else if parser.take("==") {
            Self::Same(left, parser.expr()?)
        } else if parser.take("!=") {
            Self::Differ(left, parser.expr()?)
        } else {
            Self::Present(left)
        };
        parser.space();
        if parser.rest().is_empty() {
            Ok(condition)
        } else {
            Err(format!("`{}` was not expected in `{text}`", parser.rest()))
        }
    }

    /// Whether it says that the term is (or is not) this literal.
    pub fn fixes(&self, wanted: impl Fn(&Term) -> bool, text: &str, same: bool) -> bool {
        let (left, right) = match self {
            Self::Same(left, right) if same => (left, right),
            Self::Differ(left, right) if !same => (left, right),
            _ => return false,
        };
        left.plain().is_some_and(wanted)
            && matches!(right.plain(), Some(Term::Literal(literal)) if literal == text.as_bytes())
    }
}

struct Parser<'t, 'p, 's> {
    text: &'t str,
    at: usize,
    depth: usize,
    scope: &'p mut Scope<'s>,
}

impl<'t> Parser<'t, '_, '_> {
    fn expr(&mut self) -> Result<Expr, String> {
        let mut alternatives = vec![self.joined()?];
        loop {
            self.space();
            if !self.take("??") {
                return Ok(Expr { alternatives });
            }
            alternatives.push(self.joined()?);
        }
    }

    fn joined(&mut self) -> Result<Vec<Piece>, String> {
        let mut pieces = vec![self.piece()?];
        loop {
            self.space();
            if !self.take("+") {
                return Ok(pieces);
            }
            pieces.push(self.piece()?);
        }
    }

    fn piece(&mut self) -> Result<Piece, String> {
        self.space();
        let term = if self.take("(") {
            self.depth += 1;
            if self.depth > 8 {
                return Err(format!("too many brackets in `{}`", self.text));
            }
            let inner = self.expr()?;
            self.space();
            if !self.take(")") {
                return Err(format!("a `)` is missing in `{}`", self.text));
            }
            self.depth -= 1;
            Term::Group(inner)
        } else if self.rest().starts_with('\'') {
            Term::Literal(self.quoted('\'')?.into_bytes())
        } else {
            self.term()?
        };
        let mut pipes = Vec::new();
        loop {
            self.space();
            if !self.take("|") {
                return Ok(Piece { term, pipes });
            }
            self.space();
            pipes.push(self.pipe()?);
        }
    }

    fn term(&mut self) -> Result<Term, String> {
        let word = self.word();
        let argument = if self.take(":") { Some(self.argument()?) } else { None };
        match (word, argument) {
            ("body", None) => Ok(Term::Body),
            ("method", None) => Ok(Term::Method),
            ("url", None) => Ok(Term::Url),
            ("path", None) => Ok(Term::Path),
            ("query", None) => Ok(Term::QueryText),
            ("suffix", None) => Ok(Term::Suffix),
            ("content", None) => Ok(Term::Content),
            ("timestamp", None) => Ok(Term::Timestamp),
            ("secret", None) => Ok(Term::Secret),
            ("sorted-form", None) => Ok(Term::SortedForm),
            ("header", Some(name)) => {
                name.parse().map(Term::Header).map_err(|_| format!("`{name}` is not a header's name"))
            }
            ("query", Some(name)) => Ok(Term::Query(name)),
            ("form", Some(name)) => Ok(Term::Form(name)),
            ("pair", Some(name)) => Ok(Term::Pair(name)),
            ("param", Some(name)) => match nearest(&name, self.scope.params.keys().map(String::as_str)) {
                _ if self.scope.params.contains_key(&name) => Ok(Term::Param(name)),
                Some(near) => Err(format!("the file declares no param `{name}`; did you mean `{near}`?")),
                None => Err(format!("the file declares no param `{name}`")),
            },
            ("json" | "item", Some(pointer)) => self.place(word, pointer).map(Term::Json),
            ("slice", Some(pointer)) => self.place("json", pointer).map(Term::Slice),
            ("item-slice", Some(pointer)) => self.place("item", pointer).map(Term::Slice),
            (word, argument) => Err(unknown_term(word, argument.is_some(), self.text)),
        }
    }

    fn place(&mut self, word: &str, pointer: String) -> Result<Place, String> {
        let item = word == "item" && self.scope.batch;
        let pointers = if item { &mut *self.scope.item } else { &mut *self.scope.document };
        let slot = pointers.add(&pointer).map_err(|error| format!("`{pointer}`: {error}"))?;
        Ok(Place { item, slot, pointer })
    }

    fn pipe(&mut self) -> Result<Pipe, String> {
        let word = self.word();
        let argument = if self.take(":") { Some(self.argument()?) } else { None };
        let hash = |name: &str| Hash::parse(name);
        match (word, argument) {
            ("empty", None) => Ok(Pipe::Empty),
            ("nonempty", None) => Ok(Pipe::Nonempty),
            ("lower", None) => Ok(Pipe::Lower),
            ("upper", None) => Ok(Pipe::Upper),
            ("trim", None) => Ok(Pipe::Trim),
            ("hex", None) => Ok(Pipe::Hex),
            ("base64", None) => Ok(Pipe::Base64),
            ("base64url", None) => Ok(Pipe::Base64Url),
            ("unbase64", None) => Ok(Pipe::Unbase64),
            ("quote", None) => Ok(Pipe::Quote),
            ("token", None) => Ok(Pipe::Token),
            ("until", Some(text)) if !text.is_empty() => Ok(Pipe::Until(text.into_bytes())),
            ("after", Some(text)) if !text.is_empty() => Ok(Pipe::After(text.into_bytes())),
            (word, None) if hash(word).is_some() => hash(word).map(Pipe::Digest).ok_or_else(String::new),
            (word, None) if word.strip_prefix("hmac-").and_then(hash).is_some() => {
                word.strip_prefix("hmac-").and_then(hash).map(Pipe::Hmac).ok_or_else(String::new)
            }
            (word, _) => Err(match nearest(word, PIPES.iter().copied()) {
                Some(near) => format!("`|{word}` is unknown in `{}`; did you mean `|{near}`?", self.text),
                None => format!("`|{word}` is unknown in `{}`", self.text),
            }),
        }
    }

    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn argument(&mut self) -> Result<String, String> {
        match self.rest().chars().next() {
            Some(mark @ ('\'' | '"')) => self.quoted(mark),
            _ => {
                let rest = self.rest();
                let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '|' | ')' | '+')).unwrap_or(rest.len());
                self.at += end;
                Ok(rest[..end].to_owned())
            }
        }
    }

    fn quoted(&mut self, mark: char) -> Result<String, String> {
        let mut text = String::new();
        let rest = self.rest();
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, next)) = chars.next() {
            match next {
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, other)) => text.push(other),
                    None => break,
                },
                next if next == mark => {
                    self.at += at + mark.len_utf8();
                    return Ok(text);
                }
                next => text.push(next),
            }
        }
        Err(format!("a `{mark}` is not closed in `{}`", self.text))
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
        }
        there
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }
}

const PIPES: [&str; 19] = [
    "empty",
    "nonempty",
    "lower",
    "upper",
    "trim",
    "hex",
    "base64",
    "base64url",
    "unbase64",
    "quote",
    "token",
    "until",
    "after",
    "sha1",
    "sha256",
    "sha384",
    "sha512",
    "hmac-sha256",
    "hmac-sha1",
];

const TERMS: [&str; 20] = [
    "body",
    "method",
    "url",
    "path",
    "query",
    "suffix",
    "content",
    "timestamp",
    "secret",
    "sorted-form",
    "header",
    "form",
    "pair",
    "param",
    "json",
    "item",
    "slice",
    "item-slice",
    "query:NAME",
    "literal",
];

fn unknown_term(word: &str, argument: bool, text: &str) -> String {
    if TERMS.contains(&word) {
        let what = if argument { "takes no argument" } else { "needs an argument after `:`" };
        return format!("`{word}` {what} in `{text}`");
    }
    match nearest(word, TERMS.iter().copied()) {
        Some(near) => format!("`{word}` is unknown in `{text}`; did you mean `{near}`?"),
        None => format!("`{word}` is unknown in `{text}`; literal text stands in single quotes"),
    }
}

/// The known name that is most like `name`, if one is.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    known
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
