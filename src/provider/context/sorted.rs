//! Many fields of a form as one text, for schemes that sign them sorted, or those that the request itself names.

use super::Problem;
use crate::provider::form::{Field, Form};

/// How `sorted-form` writes the fields.
#[derive(Debug, Clone)]
pub struct Sorted {
    pub order: Order,
    pub assign: String,
    pub join: String,
    pub unique: bool,
    pub names: bool,
    pub drop_empty: bool,
    pub prefix: Option<String>,
    pub exclude: Vec<String>,
    /// Bytes of values that get a backslash.
    pub escape: Vec<u8>,
}

/// In which order, and which fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    Received,
    ByName {
        ignore_case: bool,
    },
    /// Those that the field `by` lists; a list without all of `required` was cut by somebody.
    Named {
        by: String,
        separator: String,
        required: Vec<String>,
    },
}

impl Sorted {
    /// Whether the field's value is always signed as that field's: without the names, nothing says whose a value is.
    pub fn covers(&self, name: &str) -> bool {
        self.names
            && match &self.order {
                Order::Named { required, .. } => required.iter().any(|required| required == name),
                Order::Received | Order::ByName { .. } => self.keeps(name.as_bytes()),
            }
    }

    /// The fields as the scheme signs them.
    pub(super) fn write(&self, form: &Form<'_>) -> Result<Vec<u8>, Problem> {
        let mut fields = match &self.order {
            Order::Named { by, separator, required } => named(form, by, separator, required)?,
            Order::Received | Order::ByName { .. } => {
                form.pairs.iter().map(|pair| (&*pair.name, &*pair.value)).filter(|(name, _)| self.keeps(name)).collect()
            }
        };
        fields.retain(|(_, value)| !(self.drop_empty && value.is_empty()));
        match self.order {
            Order::ByName { ignore_case: false } => fields.sort_unstable(),
            Order::ByName { ignore_case: true } => fields.sort_by_cached_key(|(name, _)| name.to_ascii_lowercase()),
            Order::Received | Order::Named { .. } => {}
        }
        if self.unique {
            fields.dedup();
        }
        let mut text = Vec::new();
        for (index, (name, value)) in fields.into_iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(self.join.as_bytes());
            }
            if self.names {
                text.extend_from_slice(name);
                text.extend_from_slice(self.assign.as_bytes());
            }
            text.extend_from_slice(&escaped(value, &self.escape));
        }
        Ok(text)
    }

    fn keeps(&self, name: &[u8]) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| name.starts_with(prefix.as_bytes()))
            && !self.exclude.iter().any(|excluded| excluded.as_bytes() == name)
    }
}

/// A backslash before each of these bytes.
pub(super) fn escaped(value: &[u8], escape: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(value.len());
    for byte in value {
        if escape.contains(byte) {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// Name and value.
type Pair<'f> = (&'f [u8], &'f [u8]);

fn named<'f>(form: &'f Form<'_>, by: &str, separator: &str, required: &[String]) -> Result<Vec<Pair<'f>>, Problem> {
    let one = |name: &str| match form.get(name) {
        Field::One(value) => Ok(value),
        Field::Absent => Err(Problem::Absent(format!("form field {name}"))),
        Field::Twice => Err(Problem::Twice(format!("form field {name}"))),
    };
    let list = std::str::from_utf8(one(by)?).map_err(|_| Problem::NotText(by.to_owned()))?;
    let listed: Vec<&str> = list.split(separator).filter(|name| !name.is_empty()).collect();
    if let Some(missing) = required.iter().find(|required| !listed.contains(&required.as_str())) {
        return Err(Problem::Absent(format!("{missing} among the signed fields")));
    }
    let mut fields = Vec::new();
    for name in listed {
        let pair = form.pairs.iter().find(|pair| &*pair.name == name.as_bytes());
        fields.push((pair.map_or(&b""[..], |pair| &*pair.name), one(name)?));
    }
    Ok(fields)
}
