//! A definition for people: what it expects, what it proves, what it answers.

use serde_json::{Value, json};

use super::definition::{ContentRule, Definition, Scheme};

impl Definition {
    /// One line: name, mechanisms, title.
    pub fn line(&self) -> String {
        let mut mechanisms: Vec<&str> = Vec::new();
        for scheme in &self.rules.schemes {
            if !mechanisms.contains(&&*scheme.mechanism_name) {
                mechanisms.push(&scheme.mechanism_name);
            }
        }
        format!("{:<24} {:<28} {}", self.rules.name, mechanisms.join(" or "), self.rules.title)
    }

    /// Everything that an operator may want to know, as JSON.
    pub fn describe(&self) -> Value {
        let rules = &self.rules;
        let spec = &self.spec;
        let tolerance = rules.window.tolerance.map(|window| humantime::format_duration(window).to_string());
        json!({
            "name": rules.name,
            "title": rules.title,
            "generic": rules.generic,
            "docs": spec.docs,
            "evidence": spec.evidence,
            "evidence_note": spec.evidence_note,
            "notes": spec.notes,
            "methods": rules.methods.iter().map(http::Method::as_str).collect::<Vec<_>>(),
            "content": match rules.content {
                ContentRule::Json => "json",
                ContentRule::Form => "form",
                ContentRule::Either => "either",
                ContentRule::Opaque => "opaque",
            },
            "suffix": rules.suffix,
            "carrier": if rules.browser { "browser" } else { "server" },
            "body_max": rules.body_max,
            "params": rules.params.iter().map(|(name, rule)| json!({
                "name": name, "about": rule.about, "required": rule.required, "default": rule.default, "choices": rule.choices,
            })).collect::<Vec<_>>(),
            "schemes": rules.schemes.iter().zip(&spec.scheme).map(|(scheme, spec)| json!({
                "name": scheme.name,
                "mechanism": scheme.mechanism_name,
                "coverage": scheme.coverage.as_str(),
                "signed": spec.signed,
                "signature": spec.signature.from,
                "encoding": spec.signature.encoding,
                "key": spec.key,
                "timestamp": scheme.timestamp.as_ref().map(|time| time.unit.as_str()),
                "when": spec.when,
                "only_if_chosen": scheme.optional,
            })).collect::<Vec<_>>(),
            "window": tolerance.clone().unwrap_or_else(|| "none".to_owned()),
            "window_reason": rules.window.reason,
            "held_to_five_minutes": rules.window.tolerance.is_some_and(|window| window <= super::WINDOW),
            "replay_guard": rules.window.replay_guard,
            "identity": {
                "provider_ref": spec.identity.provider_ref,
                "key": spec.identity.key,
                "signed": rules.identity.signed,
                "every_delivery": rules.identity.every_delivery,
                "ids": if rules.identity.global { "global" } else { "account" },
                "volatile": spec.identity.volatile,
            },
            "account": { "from": spec.account.from, "signed": rules.account_signed },
            "event": {
                "type": spec.event.r#type, "known": rules.event.known, "occurred": spec.event.occurred,
                "resource": spec.event.resource, "version": spec.event.version, "mode": spec.mode.from,
            },
            "batch": rules.batch.as_ref().map(|batch| json!({
                "items": batch.pointer, "max": batch.max, "mixed": if batch.accept_mixed { "accept" } else { "refuse" },
            })),
            "handshakes": rules.handshakes.iter().map(|handshake| &*handshake.name).collect::<Vec<_>>(),
            "guards": rules.guards.iter().map(|guard| &*guard.name).collect::<Vec<_>>(),
            "reply": { "status": rules.accepted.status.as_u16(), "body": String::from_utf8_lossy(&rules.accepted.body) },
            "refusal": { "status": rules.refused.status.as_u16() },
            "time_limit": spec.delivery.time_limit,
            "resends": spec.delivery.resends,
            "switch_off": spec.delivery.switch_off,
            "templates": self.template_types().collect::<Vec<_>>(),
        })
    }

    /// The same as plain text: one fact a line, nothing for what does not apply.
    pub fn describe_text(&self) -> String {
        let mut text = String::new();
        if let Value::Object(facts) = self.describe() {
            for name in ORDER {
                if let Some(value) = facts.get(*name) {
                    write_fact(&mut text, 0, name, value);
                }
            }
        }
        text
    }

    /// Whether any scheme that a source gets without asking is held to no window, or to a wider one than five minutes.
    pub fn outside_five_minutes(&self) -> bool {
        let timed = |scheme: &Scheme| scheme.timestamp.is_some();
        self.rules.window.tolerance.is_none_or(|window| window > super::WINDOW) || !self.rules.schemes.iter().all(timed)
    }
}

const ORDER: &[&str] = &[
    "name",
    "title",
    "docs",
    "evidence",
    "evidence_note",
    "methods",
    "content",
    "suffix",
    "carrier",
    "body_max",
    "params",
    "schemes",
    "guards",
    "window",
    "window_reason",
    "replay_guard",
    "identity",
    "account",
    "event",
    "batch",
    "handshakes",
    "reply",
    "refusal",
    "time_limit",
    "resends",
    "switch_off",
    "templates",
    "notes",
];

fn write_fact(text: &mut String, depth: usize, name: &str, value: &Value) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Null | Value::Bool(false) => {}
        Value::String(value) if value.is_empty() => {}
        Value::Array(items) if items.is_empty() => {}
        Value::String(value) => text.push_str(&format!("{indent}{name}: {value}\n")),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            // Sentences and addresses have commas of their own.
            if items.iter().any(|item| item.contains(' ') || item.contains("://")) {
                text.push_str(&format!("{indent}{name}:\n"));
                items.iter().for_each(|item| text.push_str(&format!("{indent}  {item}\n")));
            } else {
                text.push_str(&format!("{indent}{name}: {}\n", items.join(", ")));
            }
        }
        Value::Array(items) => {
            for item in items {
                let heading = format!("{} {}", name.trim_end_matches('s'), item["name"].as_str().unwrap_or_default());
                write_fact(text, depth, &heading, item);
            }
        }
        Value::Object(facts) => {
            text.push_str(&format!("{indent}{name}:\n"));
            // The name of one of several stands in its heading.
            for (name, value) in facts.iter().filter(|(name, _)| *name != "name") {
                write_fact(text, depth + 1, name, value);
            }
        }
        other => text.push_str(&format!("{indent}{name}: {other}\n")),
    }
}
