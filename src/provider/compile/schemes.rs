//! Schemes: what is signed, with which key, and where the signature stands.

use super::super::carrier::{Carrier, Encoding};
use super::super::context::{Order, Sorted};
use super::super::definition::{Scheme, Timestamp};
use super::super::expr::{Expr, Term};
use super::super::key::{KeyFormat, Mechanism};
use super::super::spec::{SchemeSpec, SignatureSpec, SortedSpec, Spec};
use super::super::time::Unit;
use super::{Builder, given};
use crate::model::receipt::Coverage;

const MECHANISMS: [&str; 20] = [
    "hmac-sha1",
    "hmac-sha256",
    "hmac-sha384",
    "hmac-sha512",
    "hash-md5",
    "hash-sha1",
    "hash-sha256",
    "hash-sha384",
    "hash-sha512",
    "ed25519",
    "ecdsa-p256-sha256",
    "ecdsa-p256-sha256-fixed",
    "rsa-sha1",
    "rsa-sha256",
    "rsa-sha512",
    "rsa-pss-sha256",
    "rsa-pss-sha512",
    "token",
    "basic",
    "none",
];

impl Builder<'_> {
    pub(super) fn schemes(&mut self, spec: &Spec) -> Vec<Scheme> {
        if spec.scheme.is_empty() {
            self.error("scheme", "at least one; a provider that proves nothing says `mechanism = \"none\"`");
        }
        let schemes: Vec<_> =
            spec.scheme.iter().enumerate().filter_map(|(at, scheme)| self.scheme(at, scheme)).collect();
        for (at, scheme) in schemes.iter().enumerate() {
            if schemes[..at].iter().any(|other| other.name == scheme.name) {
                self.error(format!("scheme[{at}].name"), format!("`{}` is there already", scheme.name));
            }
        }
        let unproved = schemes.iter().any(|scheme| scheme.mechanism == Mechanism::Unproved);
        if unproved && schemes.len() > 1 {
            self.error("scheme", "`none` beside another mechanism would let every forgery fall through to it");
        }
        schemes
    }

    fn scheme(&mut self, at: usize, spec: &SchemeSpec) -> Option<Scheme> {
        let key = |name: &str| format!("scheme[{at}].{name}");
        let mechanism_name = self.required(&key("mechanism"), spec.mechanism.as_ref());
        self.one_of(&key("mechanism"), &mechanism_name, &MECHANISMS);
        let mechanism = Mechanism::parse(&mechanism_name)?;
        let signed = given(spec.signed.as_ref()).and_then(|text| self.expr(&key("signed"), text));
        if mechanism.signs() && given(spec.signed.as_ref()).is_none() {
            self.error(key("signed"), "is missing: what does the signature cover?");
        }
        let timestamp = self.timestamp(at, spec, signed.as_ref());
        let mut checks = Vec::new();
        for (index, check) in spec.check.iter().enumerate() {
            let left = self.required(&format!("scheme[{at}].check[{index}].left"), check.left.as_ref());
            let right = self.required(&format!("scheme[{at}].check[{index}].right"), check.right.as_ref());
            let left = self.expr(&format!("scheme[{at}].check[{index}].left"), &left);
            let right = self.expr(&format!("scheme[{at}].check[{index}].right"), &right);
            checks.extend(left.zip(right));
        }
        let scheme = Scheme {
            name: given(spec.name.as_ref()).unwrap_or(&mechanism_name).to_owned(),
            mechanism,
            key: self.key_format(at, spec, mechanism),
            key_prefix: given(spec.key_prefix.as_ref()).map(str::to_owned),
            key_prefix_required: spec.key_prefix_required,
            optional: spec.optional,
            optional_params: spec.optional_params,
            when: self.conditions(&key("when"), &spec.when),
            coverage: self.coverage(at, spec, mechanism, signed.as_ref(), &checks),
            url_ports: spec.url_ports,
            per_item: spec.per_item,
            carrier: self.carrier(at, &spec.signature, mechanism),
            timestamp,
            sorted: spec.sorted.as_ref().map(|sorted| self.sorted(at, sorted)),
            params: params_of(signed.iter().chain(checks.iter().flat_map(|(left, right)| [left, right]))),
            checks,
            signed,
            mechanism_name,
        };
        if scheme.signed.as_ref().is_some_and(|signed| signed.any(|term| matches!(term, Term::SortedForm)))
            && scheme.sorted.is_none()
        {
            self.error(key("sorted"), "`sorted-form` needs this section");
        }
        if let (Mechanism::Plain(_), Some(signed)) = (mechanism, &scheme.signed)
            && !signed.any(|term| matches!(term, Term::Secret))
        {
            self.error(key("signed"), "a plain hash proves nothing unless the secret is in it");
        }
        Some(scheme)
    }

    fn key_format(&mut self, at: usize, spec: &SchemeSpec, mechanism: Mechanism) -> KeyFormat {
        let name = given(spec.key.as_ref());
        let key = format!("scheme[{at}].key");
        match name {
            None if mechanism.public() => {
                self.error(key, "is missing: hex, base64 or public-key");
                KeyFormat::PublicKey
            }
            None => KeyFormat::Text,
            Some(name) => {
                self.one_of(&key, name, &["utf8", "hex", "base64", "sha1", "public-key"]);
                KeyFormat::parse(name).unwrap_or(KeyFormat::Text)
            }
        }
    }

    fn carrier(&mut self, at: usize, spec: &SignatureSpec, mechanism: Mechanism) -> Option<Carrier> {
        if mechanism == Mechanism::Unproved {
            return None;
        }
        let key = |name: &str| format!("scheme[{at}].signature.{name}");
        let from = match (given(spec.from.as_ref()), mechanism) {
            (None, Mechanism::Basic) => "header:authorization".to_owned(),
            (from, _) => self.required(&key("from"), from.map(str::to_owned).as_ref()),
        };
        let from = self.expr(&key("from"), &from)?;
        if !mechanism.signs() {
            let mut carrier = secret_carrier(mechanism, from);
            if let (Mechanism::Token, Some(prefix)) = (mechanism, given(spec.prefix.as_ref())) {
                carrier.prefix = prefix.to_owned();
            }
            return Some(carrier);
        }
        let one_char = |builder: &mut Self, name: &str, text: Option<&String>| {
            let text = text.filter(|text| !text.is_empty())?;
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(one), None) => Some(one),
                _ => {
                    builder.error(key(name), "is one character");
                    None
                }
            }
        };
        let name = given(spec.name.as_ref()).map(str::to_owned);
        let name_param = given(spec.name_param.as_ref()).map(str::to_owned);
        if name_param.as_ref().is_some_and(|name| !self.params.contains_key(name)) {
            self.error(key("name_param"), "is a param that the file declares");
        }
        let listed = name.is_some() || name_param.is_some();
        let separator = one_char(self, "separator", spec.separator.as_ref()).or(listed.then_some(','));
        let assign = one_char(self, "assign", spec.assign.as_ref()).unwrap_or('=');
        let encoding = self.required(&key("encoding"), spec.encoding.as_ref());
        self.one_of(&key("encoding"), &encoding, &["hex", "base64", "base64url", "base64-hex"]);
        Some(Carrier {
            from,
            prefix: spec.prefix.clone().unwrap_or_default(),
            prefix_any_case: false,
            separator,
            assign,
            name,
            name_param,
            encoding: Encoding::parse(&encoding).unwrap_or(Encoding::Hex),
            repeated: spec.repeated,
        })
    }

    pub(super) fn second_mechanism(&mut self, key: &str, name: Option<&String>) -> Option<Mechanism> {
        let name = self.required(key, name);
        self.one_of(key, &name, &["basic", "token"]);
        Mechanism::parse(&name).filter(|mechanism| matches!(mechanism, Mechanism::Basic | Mechanism::Token))
    }

    fn timestamp(&mut self, at: usize, spec: &SchemeSpec, signed: Option<&Expr>) -> Option<Timestamp> {
        let from = given(spec.timestamp.from.as_ref())?;
        let unit_name = given(spec.timestamp.unit.as_ref()).unwrap_or("s");
        let key = format!("scheme[{at}].timestamp");
        self.one_of(&format!("{key}.unit"), unit_name, &["s", "ms", "s-or-ms", "iso8601"]);
        let from = self.expr(&format!("{key}.from"), from)?;
        let in_body = from.any(|term| matches!(term, Term::Json(_) | Term::Form(_)));
        let covered = |signed: &Expr| {
            signed.any(|term| matches!(term, Term::Timestamp))
                || (in_body && signed.any(|term| matches!(term, Term::Body)))
        };
        if signed.is_some_and(|signed| !covered(signed)) {
            self.error(format!("{key}.from"), "this time is not signed, so it proves nothing");
        }
        Some(Timestamp {
            from,
            unit: Unit::parse(unit_name).filter(|unit| *unit != Unit::Auto).unwrap_or(Unit::Seconds),
        })
    }

    fn coverage(
        &mut self,
        at: usize,
        spec: &SchemeSpec,
        mechanism: Mechanism,
        signed: Option<&Expr>,
        checks: &[(Expr, Expr)],
    ) -> Coverage {
        let is_body = |expr: &Expr| expr.any(|term| matches!(term, Term::Body));
        let whole = signed.is_some_and(is_body) || checks.iter().any(|(left, right)| is_body(left) || is_body(right));
        let coverage = match (mechanism.signs(), whole) {
            (false, _) => Coverage::None,
            (true, true) => Coverage::Body,
            (true, false) => Coverage::Fields,
        };
        match given(spec.coverage.as_ref()) {
            // Signing a time or an id alone covers nothing of the body.
            Some("none") => Coverage::None,
            Some(stated) if stated == coverage.as_str() => coverage,
            None if self.generic => coverage,
            None => {
                self.error(format!("scheme[{at}].coverage"), "is missing: body, fields or none");
                coverage
            }
            Some(stated) => {
                let reason = format!("`{stated}` is stated, but what is signed covers `{}`", coverage.as_str());
                self.error(format!("scheme[{at}].coverage"), reason);
                coverage
            }
        }
    }

    fn sorted(&mut self, at: usize, spec: &SortedSpec) -> Sorted {
        let order = given(spec.order.as_ref()).unwrap_or("name");
        let key = |name: &str| format!("scheme[{at}].sorted.{name}");
        self.one_of(&key("order"), order, &["name", "received", "named"]);
        let order = match (order, given(spec.named_by.as_ref())) {
            ("named", Some(by)) => {
                if spec.required.is_empty() {
                    self.error(key("required"), "say which fields must be among those that the request names");
                }
                Order::Named {
                    by: by.to_owned(),
                    separator: given(spec.separator.as_ref()).unwrap_or(",").to_owned(),
                    required: spec.required.clone(),
                }
            }
            ("named", None) => {
                self.error(key("named_by"), "say which field lists the signed ones");
                Order::Received
            }
            ("received", _) => Order::Received,
            _ => Order::ByName { ignore_case: spec.ignore_case },
        };
        Sorted {
            order,
            escape: spec.escape.clone().into_bytes(),
            assign: spec.assign.clone(),
            join: spec.join.clone(),
            unique: spec.unique,
            names: spec.names.unwrap_or(true),
            drop_empty: spec.drop_empty,
            prefix: given(spec.prefix.as_ref()).map(str::to_owned),
            exclude: spec.exclude.clone(),
        }
    }
}

/// How a presented secret is written.
pub(super) fn secret_carrier(mechanism: Mechanism, from: Expr) -> Carrier {
    let basic = mechanism == Mechanism::Basic;
    Carrier {
        from,
        prefix: if basic { "Basic ".to_owned() } else { String::new() },
        prefix_any_case: true,
        separator: None,
        assign: '=',
        name: None,
        name_param: None,
        encoding: Encoding::Text,
        repeated: false,
    }
}

fn params_of<'e>(exprs: impl Iterator<Item = &'e Expr>) -> Vec<String> {
    let mut params = Vec::new();
    for expr in exprs {
        expr.visit(&mut |term| {
            if let Term::Param(name) = term {
                params.push(name.clone());
            }
        });
    }
    params
}
