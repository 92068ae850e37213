//! Reads the text of an expression; every error is a sentence for the file's author.

use super::{Expr, Piece, Pipe, Place, Scope, Term, nearest};
use crate::provider::digest::Hash;

pub(super) struct Parser<'t, 'p, 's> {
    text: &'t str,
    at: usize,
    depth: usize,
    scope: &'p mut Scope<'s>,
}

impl<'t, 'p, 's> Parser<'t, 'p, 's> {
    /// Begins at the start of `text`.
    pub fn new(text: &'t str, scope: &'p mut Scope<'s>) -> Self {
        Self { text, at: 0, depth: 0, scope }
    }

    pub fn expr(&mut self) -> Result<Expr, String> {
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
            ("reverse", None) => Ok(Pipe::Reverse),
            ("escape", Some(text)) if text.is_ascii() => Ok(Pipe::Escape(text.into_bytes())),
            ("without", Some(text)) if text.is_ascii() => Ok(Pipe::Without(text.into_bytes())),
            ("hex", None) => Ok(Pipe::Hex),
            ("base64", None) => Ok(Pipe::Base64),
            ("base64url", None) => Ok(Pipe::Base64Url),
            ("unbase64", None) => Ok(Pipe::Unbase64),
            ("quote", None) => Ok(Pipe::Quote),
            ("token", None) => Ok(Pipe::Token),
            ("challenge", None) => Ok(Pipe::Challenge),
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

    pub fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    pub fn take(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
        }
        there
    }

    pub fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }
}

const PIPES: [&str; 24] = [
    "empty",
    "nonempty",
    "lower",
    "upper",
    "trim",
    "reverse",
    "escape",
    "without",
    "hex",
    "base64",
    "base64url",
    "unbase64",
    "quote",
    "token",
    "challenge",
    "until",
    "after",
    "md5",
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
