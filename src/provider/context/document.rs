//! The body of a request, parsed at most once and only when something asks.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::Problem;
use crate::provider::Inbound;
use crate::provider::form::{Field, Form};
use crate::provider::json::{self, Pointers, Scan};

/// How the body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Json,
    Form,
    Opaque,
}

/// The body, parsed on demand.
pub struct Document<'a> {
    pub content: Content,
    body: &'a [u8],
    query: &'a [u8],
    payload_field: Option<&'a str>,
    pointers: &'a Pointers,
    form: OnceCell<Form<'a>>,
    query_form: OnceCell<Form<'a>>,
    json: OnceCell<Result<Json<'a>, Problem>>,
}

/// JSON bytes and what was found in them.
pub struct Json<'a> {
    pub bytes: Cow<'a, [u8]>,
    pub scan: Scan,
}

impl<'a> Document<'a> {
    /// A body read as `content`; `payload_field` is the form field with the JSON document.
    pub fn new(
        inbound: &Inbound<'a>,
        content: Content,
        payload_field: Option<&'a str>,
        pointers: &'a Pointers,
    ) -> Self {
        Self {
            content,
            body: inbound.body,
            query: inbound.query.unwrap_or_default().as_bytes(),
            payload_field,
            pointers,
            form: OnceCell::new(),
            query_form: OnceCell::new(),
            json: OnceCell::new(),
        }
    }

    /// The body's form fields; none if it is no form.
    pub fn form(&self) -> &Form<'a> {
        self.form.get_or_init(|| match self.content {
            Content::Form => Form::parse(self.body),
            Content::Json | Content::Opaque => Form::default(),
        })
    }

    /// The query's fields.
    pub(super) fn query(&self) -> &Form<'a> {
        self.query_form.get_or_init(|| Form::parse(self.query))
    }

    /// The JSON document, wherever it stands.
    pub fn json(&self) -> Result<&Json<'a>, Problem> {
        let read = || {
            let bytes = match (self.content, self.payload_field) {
                (Content::Json, _) => Cow::Borrowed(self.body),
                (Content::Form, Some(name)) => match self.form().get(name) {
                    Field::One(value) => Cow::Owned(value.to_vec()),
                    Field::Absent => return Err(Problem::Absent(format!("form field {name}"))),
                    Field::Twice => return Err(Problem::Twice(format!("form field {name}"))),
                },
                _ => return Err(Problem::Absent("a JSON document".to_owned())),
            };
            let scan = json::scan(&bytes, self.pointers).map_err(Problem::Unparsable)?;
            Ok(Json { bytes, scan })
        };
        self.json.get_or_init(read).as_ref().map_err(Clone::clone)
    }
}

/// One item of a batch.
pub struct Item<'a> {
    pub bytes: &'a [u8],
    pub scan: Scan,
}
