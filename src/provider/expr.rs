//! The small language of provider files: what is signed, and where an id, a type or an account stands.
//!
//! `timestamp + '.' + body`, `json:/account ?? json:/context`, `form:status|lower`. A term names a part of the request,
//! `|` changes it, `+` joins, `??` takes the first that is there. providers/README.md is the reference.

use std::collections::BTreeMap;

use http::HeaderName;

use super::digest::Hash;
use super::json::Pointers;

mod parser;

use parser::Parser;

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
    /// The bytes backwards.
    Reverse,
    /// A backslash before each of these bytes.
    Escape(Vec<u8>),
    /// Without these bytes.
    Without(Vec<u8>),
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
    /// Only 20 to 32 small hex digits pass: what a handshake may sign, as nothing that is signed otherwise looks like it.
    Challenge,
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
        let mut parser = Parser::new(text, scope);
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

    /// Whether each alternative ends with a term of this kind.
    pub fn ends_with(&self, wanted: impl Fn(&Term) -> bool) -> bool {
        self.alternatives.iter().all(|pieces| pieces.last().is_some_and(|piece| wanted(&piece.term)))
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
        let mut parser = Parser::new(text, scope);
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
