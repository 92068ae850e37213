//! Reads a table into a spec and goes on after a mistake: unknown keys are noted and skipped, a value of the wrong type
//! is noted, taken out, and the reading starts again.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use toml::Value;

use super::{Spec, SpecError};
use crate::provider::expr::nearest;

/// Reads a file's text; the spec is there unless the text is no TOML.
pub fn read(place: &str, text: &str) -> (Option<(Spec, toml::Table)>, Vec<SpecError>) {
    match text.parse::<toml::Table>() {
        Ok(table) => {
            let (spec, errors) = read_table(place, table.clone());
            (Some((spec, table)), errors)
        }
        Err(error) => (None, vec![SpecError::new(place, "", error.to_string().trim_end())]),
    }
}

/// Reads a table whose text has been looked at.
pub fn read_table(place: &str, table: toml::Table) -> (Spec, Vec<SpecError>) {
    let mut root = Value::Table(table);
    let mut errors = Vec::new();
    loop {
        let unknown = RefCell::new(Vec::new());
        let outcome = Spec::deserialize(Watch { value: root.clone(), path: String::new(), unknown: &unknown });
        let mistake = match outcome {
            Ok(spec) => {
                let unknown = unknown.into_inner();
                errors.extend(unknown.into_iter().map(|(key, reason)| SpecError::new(place, key, reason)));
                return (spec, errors);
            }
            Err(mistake) => mistake,
        };
        let path = mistake.path.unwrap_or_default();
        let removed = remove(&mut root, &path);
        errors.push(SpecError::new(place, path, mistake.reason));
        if !removed {
            return (Spec::default(), errors);
        }
    }
}

/// Takes the value at a path like `scheme[0].signature.from` out of the tree.
fn remove(root: &mut Value, path: &str) -> bool {
    let mut at = root;
    let mut steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']')).peekable();
    while let Some(step) = steps.next() {
        let last = steps.peek().is_none();
        let next = match at {
            Value::Table(table) if last => return table.remove(step).is_some(),
            Value::Array(items) if last => {
                let index = step.parse().unwrap_or(usize::MAX);
                return index < items.len() && {
                    items.remove(index);
                    true
                };
            }
            Value::Table(table) => table.get_mut(step),
            Value::Array(items) => step.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
            _ => None,
        };
        let Some(next) = next else { return false };
        at = next;
    }
    false
}

#[derive(Debug)]
struct Mistake {
    path: Option<String>,
    reason: String,
}

impl Mistake {
    fn at(mut self, path: &str) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Mistake {}

impl de::Error for Mistake {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self { path: None, reason: reason.to_string() }
    }
}

struct Watch<'u> {
    value: Value,
    path: String,
    unknown: &'u RefCell<Vec<(String, String)>>,
}

impl<'de> Deserializer<'de> for Watch<'_> {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let Self { value, path, unknown } = self;
        match value {
            Value::String(text) => visitor.visit_string(text),
            Value::Integer(number) => visitor.visit_i64(number),
            Value::Float(number) => visitor.visit_f64(number),
            Value::Boolean(flag) => visitor.visit_bool(flag),
            Value::Datetime(_) => Err(de::Error::custom("a date has no place here")),
            Value::Array(items) => {
                visitor.visit_seq(Items { items: items.into_iter().enumerate(), path: path.clone(), unknown })
            }
            Value::Table(table) => visitor.visit_map(Members { members: table.into_iter(), next: None, path, unknown }),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        let Value::Table(table) = &mut self.value else {
            return Err(de::Error::custom("a section is wanted here"));
        };
        table.retain(|key, _| {
            let known = fields.contains(&key);
            if !known {
                let reason = match nearest(key, fields.iter().copied()) {
                    Some(near) => format!("unknown key; did you mean `{near}`?"),
                    None => format!("unknown key; known are {}", fields.join(", ")),
                };
                self.unknown.borrow_mut().push((join(&self.path, key), reason));
            }
            known
        });
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Items<'u> {
    items: std::iter::Enumerate<std::vec::IntoIter<Value>>,
    path: String,
    unknown: &'u RefCell<Vec<(String, String)>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Mistake;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Mistake> {
        let Some((index, value)) = self.items.next() else { return Ok(None) };
        let path = format!("{}[{index}]", self.path);
        seed.deserialize(Watch { value, path: path.clone(), unknown: self.unknown })
            .map(Some)
            .map_err(|mistake| mistake.at(&path))
    }
}

struct Members<'u> {
    members: toml::map::IntoIter<String, Value>,
    next: Option<(String, Value)>,
    path: String,
    unknown: &'u RefCell<Vec<(String, String)>>,
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Mistake;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Mistake> {
        self.next = self.members.next();
        let Some((key, _)) = &self.next else { return Ok(None) };
        seed.deserialize(key.clone().into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Mistake> {
        let Some((key, value)) = self.next.take() else {
            return Err(de::Error::custom("a value without a key"));
        };
        let path = join(&self.path, &key);
        seed.deserialize(Watch { value, path: path.clone(), unknown: self.unknown })
            .map_err(|mistake| mistake.at(&path))
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
