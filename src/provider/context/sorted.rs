//! All fields of a form as one text, for schemes that sign them sorted.

use crate::provider::form::Form;

/// How `sorted-form` writes the fields.
#[derive(Debug, Clone)]
pub struct Sorted {
    pub by_name: bool,
    pub assign: String,
    pub join: String,
    pub unique: bool,
    pub names: bool,
    pub drop_empty: bool,
    pub prefix: Option<String>,
    pub exclude: Vec<String>,
}

impl Sorted {
    /// The fields as the scheme signs them.
    pub(super) fn write(&self, form: &Form<'_>) -> Vec<u8> {
        let kept = |name: &[u8]| {
            self.prefix.as_ref().is_none_or(|prefix| name.starts_with(prefix.as_bytes()))
                && !self.exclude.iter().any(|excluded| excluded.as_bytes() == name)
        };
        let mut fields: Vec<(&[u8], &[u8])> = form
            .pairs
            .iter()
            .map(|pair| (&*pair.name, &*pair.value))
            .filter(|(name, value)| kept(name) && !(self.drop_empty && value.is_empty()))
            .collect();
        if self.by_name {
            fields.sort_unstable();
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
            text.extend_from_slice(value);
        }
        text
    }
}
