//! What an event is: its identity, account, type, time, its place in a batch; and what is no event at all.

use super::super::definition::{BATCH_MAX, Batch, EventRules, Handshake, HandshakeProof, Identity, Scheme, Unwrap};
use super::super::expr::{Expr, Term};
use super::super::json::Pointers;
use super::super::spec::Spec;
use super::super::time::Unit;
use super::{Builder, given};
use crate::model::receipt::Coverage;

impl Builder<'_> {
    pub(super) fn identity(&mut self, spec: &Spec, schemes: &[Scheme]) -> Identity {
        let identity = &spec.identity;
        let mode = given(identity.mode.as_ref()).unwrap_or("once").to_owned();
        self.one_of("identity.mode", &mode, &["once", "every-delivery"]);
        let every_delivery = mode == "every-delivery";
        let text = match given(identity.provider_ref.as_ref()) {
            None if every_delivery => "body|sha256|hex".to_owned(),
            _ => self.required("identity.provider_ref", identity.provider_ref.as_ref()),
        };
        let provider_ref = if text.is_empty() { None } else { self.expr("identity.provider_ref", &text) };
        let mut key = Vec::new();
        for (at, text) in identity.key.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            key.extend(self.expr(&format!("identity.key[{at}]"), text));
        }
        let provider_ref = provider_ref.unwrap_or(Expr { alternatives: Vec::new() });
        if key.is_empty() {
            key.push(provider_ref.clone());
        }
        let really = key.iter().all(|expr| covered(expr, schemes));
        if identity.signed.is_none() && !self.generic {
            self.error("identity.signed", "say whether everything in the key is signed");
        }
        let signed = identity.signed.unwrap_or(really);
        if signed && !really {
            self.error("identity.signed", "a part of the key is not covered by every scheme's signature");
        }
        let mut volatile = Vec::new();
        for (at, text) in identity.volatile.iter().enumerate() {
            let name = format!("identity.volatile[{at}]");
            match self.expr(&name, text) {
                Some(expr) if matches!(expr.plain(), Some(Term::Json(_) | Term::Form(_))) => volatile.push(expr),
                Some(_) => self.error(name, "is one `json:`, `item:` or `form:` place"),
                None => {}
            }
        }
        let ids = given(identity.ids.as_ref()).unwrap_or("account");
        self.one_of("identity.ids", ids, &["account", "global"]);
        Identity { provider_ref, key, signed, every_delivery, global: ids == "global", volatile }
    }

    pub(super) fn account_signed(&mut self, spec: &Spec, account: Option<&Expr>, schemes: &[Scheme]) -> bool {
        let Some(account) = account else { return true };
        let really = covered(account, schemes);
        match spec.account.signed {
            None if self.generic => {}
            None => self.error("account.signed", "say whether the account is signed"),
            Some(true) if !really => {
                self.error("account.signed", "the account is not covered by every scheme's signature");
            }
            Some(_) => {}
        }
        spec.account.signed.unwrap_or(really)
    }

    pub(super) fn event(&mut self, spec: &Spec) -> EventRules {
        let expr =
            |builder: &mut Self, key: &str, text: Option<&String>| given(text).and_then(|text| builder.expr(key, text));
        let event = &spec.event;
        let unit = given(event.occurred_unit.as_ref()).unwrap_or("auto").to_owned();
        self.one_of("event.occurred_unit", &unit, &["auto", "s", "ms", "iso8601"]);
        EventRules {
            event_type: expr(self, "event.type", event.r#type.as_ref()),
            known: event.known.clone(),
            occurred: expr(self, "event.occurred", event.occurred.as_ref()),
            occurred_unit: Unit::parse(&unit).unwrap_or(Unit::Auto),
            resource: expr(self, "event.resource", event.resource.as_ref()),
            version: expr(self, "event.version", event.version.as_ref()),
            mode: expr(self, "mode.from", spec.mode.from.as_ref()),
            live: spec.mode.live.clone(),
            test: spec.mode.test.clone(),
        }
    }

    pub(super) fn batch(&mut self, spec: &Spec, schemes: &[Scheme]) -> Option<Batch> {
        if let Some(at) = schemes.iter().position(|scheme| scheme.per_item && !self.batch) {
            self.error(format!("scheme[{at}].per_item"), "there are no items without a batch");
        }
        let batch = spec.batch.as_ref().filter(|_| self.batch)?;
        let pointer = batch.items.clone().unwrap_or_default();
        let slot = match self.document.add(&pointer) {
            Ok(slot) => slot,
            Err(error) => {
                self.error("batch.items", error.to_string());
                return None;
            }
        };
        let unwrap = given(batch.unwrap.as_ref()).and_then(|pointer| {
            let mut pointers = Pointers::default();
            match pointers.add(pointer) {
                Ok(slot) => Some(Unwrap { pointers, slot, pointer: pointer.to_owned() }),
                Err(error) => {
                    self.error("batch.unwrap", error.to_string());
                    None
                }
            }
        });
        let mixed = given(batch.mixed.as_ref()).unwrap_or("refuse");
        self.one_of("batch.mixed", mixed, &["refuse", "accept"]);
        let max = batch.max.unwrap_or(BATCH_MAX);
        if max == 0 || max > BATCH_MAX {
            self.error("batch.max", format!("is between 1 and {BATCH_MAX}"));
        }
        Some(Batch { slot, pointer, unwrap, accept_mixed: mixed == "accept", optional: batch.optional, max })
    }

    pub(super) fn handshakes(&mut self, spec: &Spec) -> Vec<Handshake> {
        let mut handshakes = Vec::new();
        for (at, handshake) in spec.handshake.iter().enumerate() {
            let key = |name: &str| format!("handshake[{at}].{name}");
            let proof = self.required(&key("signed"), handshake.signed.as_ref());
            self.one_of(&key("signed"), &proof, &["required", "optional", "no"]);
            let when = self.conditions(&key("when"), &handshake.when);
            let methods = self.methods(&key("methods"), &handshake.methods);
            let only_post = methods.iter().all(|method| *method == http::Method::POST);
            if handshake.when.is_empty() && only_post {
                self.error(key("when"), "a handshake that matches every POST would swallow the events");
            }
            let status = self.status(&key("status"), handshake.status, 200);
            handshakes.push(Handshake {
                name: self.required(&key("name"), handshake.name.as_ref()),
                methods,
                when,
                proof: match &*proof {
                    "optional" => HandshakeProof::Optional,
                    "no" => HandshakeProof::Never,
                    _ => HandshakeProof::Required,
                },
                status,
                content_type: handshake.content_type.clone(),
                body: given(handshake.body.as_ref()).and_then(|text| self.expr(&key("body"), text)),
            });
        }
        handshakes
    }
}

/// Whether every part of `expr` is covered by every scheme's signature.
fn covered(expr: &Expr, schemes: &[Scheme]) -> bool {
    schemes.iter().all(|scheme| {
        let mut all = true;
        expr.visit(&mut |term| all &= term_covered(term, scheme));
        all
    })
}

fn term_covered(term: &Term, scheme: &Scheme) -> bool {
    let names = |wanted: &dyn Fn(&Term) -> bool| scheme.signed.as_ref().is_some_and(|signed| signed.any(wanted));
    let fixed =
        |wanted: fn(&Term) -> bool, text: &str, same| scheme.when.iter().any(|when| when.fixes(wanted, text, same));
    let bare = fixed(|term| matches!(term, Term::Body), "", true);
    let content = |same| fixed(|term| matches!(term, Term::Content), "form", same);
    match term {
        Term::Literal(_) | Term::Param(_) | Term::Content => true,
        // Where there is no JSON (or no form) nothing of it can be unsigned.
        Term::Json(_) | Term::Slice(_) if bare || content(true) => true,
        Term::Form(_) if bare || content(false) => true,
        Term::Body | Term::Slice(_) => scheme.coverage == Coverage::Body,
        Term::Json(place) => {
            let same = |term: &Term| matches!(term, Term::Json(other) if other.pointer == place.pointer && other.item == place.item);
            scheme.coverage == Coverage::Body || names(&same)
        }
        Term::Form(name) => {
            let sorted = scheme.sorted.as_ref().is_some_and(|sorted| sorted.covers(name));
            let same = |term: &Term| {
                matches!(term, Term::Form(other) if other == name) || sorted && matches!(term, Term::SortedForm)
            };
            scheme.coverage == Coverage::Body || names(&same)
        }
        Term::Header(name) => names(&|term| matches!(term, Term::Header(other) if other == name)),
        Term::Timestamp | Term::Method => names(&|other| std::mem::discriminant(other) == std::mem::discriminant(term)),
        Term::Path | Term::Url | Term::QueryText | Term::Query(_) | Term::Suffix => {
            // Same kind of term, the name aside: a URL that is signed covers its path and its query too.
            names(&|other| matches!(other, Term::Url) || std::mem::discriminant(other) == std::mem::discriminant(term))
        }
        Term::SortedForm | Term::Pair(_) | Term::Secret | Term::Group(_) => false,
    }
}
