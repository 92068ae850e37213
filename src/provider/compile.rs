//! Spec → definition: every mistake is reported at once, with its file and key.

use std::collections::BTreeMap;

use http::HeaderName;

use super::definition::{Definition, Guard, ParamRule, Rules, WINDOW, Window};
use super::expr::{Condition, Expr, Piece, Scope, Term, nearest};
use super::json::Pointers;
use super::spec::{GuardSpec, ParamSpec, Spec, SpecError, read, read_table};
use crate::model::receipt::Coverage;

mod events;
mod requests;
mod schemes;

impl Definition {
    /// Compiles the text of a provider file; `place` names it in mistakes.
    pub fn compile(place: &str, text: &str) -> Result<Self, Vec<SpecError>> {
        let (read, errors) = read(place, text);
        let Some((spec, table)) = read else { return Err(errors) };
        let (spec, errors) = if spec.generic { with_samples(place, &spec, &table) } else { (spec, errors) };
        let rules = Builder::new(place, errors).rules(&spec)?;
        Ok(Self { rules, table, spec, place: place.to_owned() })
    }

    /// A generic definition with these values in the place of its `{{param}}`s.
    pub(super) fn with_values(&self, values: &BTreeMap<String, String>) -> Result<Self, Vec<SpecError>> {
        let table = fill_table(&self.table, values);
        let (spec, errors) = read_table(&self.place, table.clone());
        let rules = Builder::new(&self.place, errors).rules(&spec)?;
        Ok(Self { rules, table, spec, place: self.place.clone() })
    }
}

/// A generic file is checked with its defaults and examples.
fn with_samples(place: &str, spec: &Spec, table: &toml::Table) -> (Spec, Vec<SpecError>) {
    let mut values = BTreeMap::new();
    let mut missing = Vec::new();
    for (name, param) in &spec.params {
        match param.default.as_ref().or(param.example.as_ref()) {
            Some(value) => {
                values.insert(name.clone(), value.clone());
            }
            None => missing.push(SpecError::new(
                place,
                format!("params.{name}"),
                "a generic file's params need a default or an example",
            )),
        }
    }
    let (spec, mut errors) = read_table(place, fill_table(table, &values));
    errors.extend(missing);
    (spec, errors)
}

fn fill_table(table: &toml::Table, values: &BTreeMap<String, String>) -> toml::Table {
    let fill_entry = |(key, value): (&String, &toml::Value)| (key.clone(), fill(value, values));
    table.iter().map(fill_entry).collect()
}

fn fill(value: &toml::Value, values: &BTreeMap<String, String>) -> toml::Value {
    match value {
        toml::Value::String(text) if text.contains("{{") => {
            let mut filled = String::with_capacity(text.len());
            let mut rest = &**text;
            while let Some(at) = rest.find("{{") {
                filled.push_str(&rest[..at]);
                let (name, after) = rest[at + 2..].split_once("}}").unwrap_or((&rest[at + 2..], ""));
                filled.push_str(values.get(name).map_or("", String::as_str));
                rest = after;
            }
            filled.push_str(rest);
            toml::Value::String(filled)
        }
        toml::Value::Array(items) => toml::Value::Array(items.iter().map(|item| fill(item, values)).collect()),
        toml::Value::Table(table) => toml::Value::Table(fill_table(table, values)),
        other => other.clone(),
    }
}

/// Collects mistakes while it compiles.
struct Builder<'p> {
    place: &'p str,
    errors: Vec<SpecError>,
    document: Pointers,
    item: Pointers,
    batch: bool,
    /// What a generic file does not state is worked out.
    generic: bool,
    params: BTreeMap<String, bool>,
}

impl<'p> Builder<'p> {
    fn new(place: &'p str, errors: Vec<SpecError>) -> Self {
        Self {
            place,
            errors,
            document: Pointers::default(),
            item: Pointers::default(),
            batch: false,
            generic: false,
            params: BTreeMap::new(),
        }
    }

    fn rules(mut self, spec: &Spec) -> Result<Rules, Vec<SpecError>> {
        self.batch = spec
            .batch
            .as_ref()
            .is_some_and(|batch| given(batch.items.as_ref()).is_some() || batch.items.as_deref() == Some(""));
        self.generic = spec.generic;
        self.params = spec.params.iter().map(|(name, param)| (name.clone(), is_required(param))).collect();
        let name = self.required("name", spec.name.as_ref());
        if !is_name(&name) {
            self.error("name", "small letters, digits and `-`, starting with a letter, at most 40");
        }
        if spec.docs.is_empty() {
            self.error("docs", "at least one page or source that the facts come from");
        }
        let title = self.required("title", spec.title.as_ref());
        let evidence = self.required("evidence", spec.evidence.as_ref());
        self.one_of("evidence", &evidence, &["sdk", "docs", "third-party", "formula", "general"]);
        let schemes = self.schemes(spec);
        let window = self.window(spec, &schemes);
        let identity = self.identity(spec, &schemes);
        let account = given(spec.account.from.as_ref()).and_then(|text| self.expr("account.from", text));
        let account_signed = self.account_signed(spec, account.as_ref(), &schemes);
        let event = self.event(spec);
        let batch = self.batch(spec, &schemes);
        let handshakes = self.handshakes(spec);
        let guards = spec.guard.iter().enumerate().filter_map(|(at, guard)| self.guard(at, guard)).collect();
        let (accepted, refused) = self.replies(spec);
        let request = &spec.request;
        let methods = self.methods("request.methods", &request.methods);
        let rules = Rules {
            name,
            title,
            generic: spec.generic,
            content: self.content(spec),
            payload_field: request.payload_field.clone(),
            empty_body: request.empty_body,
            any_root: self.any_root(spec),
            suffix: request.suffix,
            browser: self.browser(spec),
            body_max: given(request.body_max.as_ref()).and_then(|text| self.size("request.body_max", text)),
            headers: self.header_names("request.headers", &request.headers),
            retry_headers: self.header_names("request.retry_headers", &request.retry_headers),
            time_limit: given(spec.delivery.time_limit.as_ref())
                .and_then(|text| self.span("delivery.time_limit", text)),
            params: self.param_rules(spec),
            schemes,
            guards,
            window,
            identity,
            account,
            account_signed,
            event,
            batch,
            handshakes,
            accepted,
            refused,
            templates: spec
                .template
                .iter()
                .enumerate()
                .map(|(at, template)| self.template(at, template, &methods))
                .collect(),
            methods,
            document: std::mem::take(&mut self.document),
            item: std::mem::take(&mut self.item),
        };
        if rules.templates.is_empty() {
            self.error("template", "at least one event for test requests");
        }
        if self.errors.is_empty() { Ok(rules) } else { Err(self.errors) }
    }

    fn error(&mut self, key: impl Into<String>, reason: impl Into<String>) {
        let error = SpecError::new(self.place, key, reason);
        // One mistake per key: what follows from a wrong value is no news.
        if !self.errors.iter().any(|known| known.key == error.key) {
            self.errors.push(error);
        }
    }

    fn required(&mut self, key: &str, value: Option<&String>) -> String {
        match given(value) {
            Some(value) => value.to_owned(),
            None => {
                self.error(key, "is missing");
                String::new()
            }
        }
    }

    fn one_of(&mut self, key: &str, value: &str, known: &[&str]) {
        if !value.is_empty() && !known.contains(&value) {
            let near = nearest(value, known.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
            self.error(key, format!("`{value}` is not one of {}{}", known.join(", "), near.unwrap_or_default()));
        }
    }

    fn expr(&mut self, key: &str, text: &str) -> Option<Expr> {
        let mut scope =
            Scope { document: &mut self.document, item: &mut self.item, batch: self.batch, params: &self.params };
        match Expr::parse(text, &mut scope) {
            Ok(expr) => Some(expr),
            Err(reason) => {
                self.error(key, reason);
                None
            }
        }
    }

    fn conditions(&mut self, key: &str, texts: &[String]) -> Vec<Condition> {
        let mut conditions = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let mut scope =
                Scope { document: &mut self.document, item: &mut self.item, batch: self.batch, params: &self.params };
            match Condition::parse(text, &mut scope) {
                Ok(condition) => conditions.push(condition),
                Err(reason) => self.error(format!("{key}[{at}]"), reason),
            }
        }
        conditions
    }

    fn param_rules(&mut self, spec: &Spec) -> BTreeMap<String, ParamRule> {
        let mut rules = BTreeMap::new();
        for (name, param) in &spec.params {
            let key = format!("params.{name}");
            if matches!(&**name, "scheme" | "account") {
                self.error(&key, "this name is taken: every source has it");
            }
            if let (Some(default), false) = (&param.default, param.choices.is_empty()) {
                let choices: Vec<_> = param.choices.iter().map(String::as_str).collect();
                self.one_of(&key, default, &choices);
            }
            let rule = ParamRule {
                about: self.required(&format!("{key}.about"), param.about.as_ref()),
                required: is_required(param),
                default: param.default.clone(),
                choices: param.choices.clone(),
            };
            rules.insert(name.clone(), rule);
        }
        rules
    }

    fn guard(&mut self, at: usize, guard: &GuardSpec) -> Option<Guard> {
        let key = format!("guard[{at}]");
        let name = self.required(&format!("{key}.name"), guard.name.as_ref());
        let param = self.required(&format!("{key}.param"), guard.param.as_ref());
        if !param.is_empty() && !self.params.contains_key(&param) {
            self.error(format!("{key}.param"), format!("the file declares no param `{param}`"));
        }
        let mechanism = self.second_mechanism(&format!("{key}.mechanism"), guard.mechanism.as_ref())?;
        let from = given(guard.from.as_ref()).unwrap_or("header:authorization").to_owned();
        let from = self.expr(&format!("{key}.from"), &from)?;
        Some(Guard {
            name,
            mechanism,
            carrier: schemes::secret_carrier(mechanism, from),
            param,
            required: guard.required,
        })
    }

    fn window(&mut self, spec: &Spec, schemes: &[super::definition::Scheme]) -> Window {
        let timed = !schemes.is_empty() && schemes.iter().all(|scheme| scheme.timestamp.is_some());
        let reason = spec.window.tolerance_reason.clone().unwrap_or_default();
        let tolerance = match given(spec.window.check.as_ref()) {
            Some("none") => None,
            Some(text) => self.span("window.check", text),
            None if timed => Some(WINDOW),
            None if self.generic => None,
            None => {
                self.error("window.check", "no time is signed: say `none`, and whether the replay guard is on");
                None
            }
        };
        if tolerance.is_some() && !timed {
            self.error("window.check", "not every scheme signs a time");
        }
        if tolerance.is_some_and(|tolerance| tolerance > WINDOW) && reason.is_empty() {
            self.error("window.tolerance_reason", "a window wider than five minutes states why");
        }
        if tolerance.is_none() && spec.window.replay_guard.is_none() && !self.generic {
            self.error("window.replay_guard", "without a signed time, say whether the replay guard is on");
        }
        let replay_guard = spec.window.replay_guard.unwrap_or(false);
        if replay_guard && schemes.iter().all(|scheme| !scheme.mechanism.signs()) {
            self.error("window.replay_guard", "nothing is signed that could be recognised");
        }
        for (at, scheme) in schemes.iter().enumerate() {
            if !replay_guard && scheme.coverage == Coverage::Fields && scheme.signed.as_ref().is_some_and(borderless) {
                let reason = format!(
                    "must be on: scheme[{at}] signs two values with nothing between them, so digits may move from one to the other"
                );
                self.error("window.replay_guard", reason);
            }
        }
        Window { tolerance, reason, replay_guard }
    }
}

#[cfg(test)]
mod tests;

/// Whether a header's value is a secret: such are never stored, whatever a file says.
pub(super) fn is_credential(name: &HeaderName) -> bool {
    const NAMES: [&str; 7] = [
        "authorization",
        "cookie",
        "proxy-authorization",
        "set-cookie",
        "x-api-key",
        "x-auth-token",
        "x-github-encoded-secret",
    ];
    NAMES.contains(&name.as_str())
}

/// Whether two values of the request stand side by side in what is signed. A param or the secret is a border: the sender
/// of a request does not choose it.
fn borderless(signed: &Expr) -> bool {
    let open = |piece: &Piece| !matches!(piece.term, Term::Literal(_) | Term::Param(_) | Term::Secret);
    signed.alternatives.iter().any(|pieces| pieces.windows(2).any(|pair| pair.iter().all(open)))
}

/// A value that is there and not empty.
fn given(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|text| !text.is_empty())
}

fn is_required(param: &ParamSpec) -> bool {
    param.required.unwrap_or(param.default.is_none())
}

fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}
