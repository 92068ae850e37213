//! What an authentic delivery says: its events, or one that is held for a person. Nothing authentic is lost here.

use std::ops::Range;

use super::carrier::refusal;
use super::context::{Content, Context, Item, Json, Problem};
use super::definition::Batch;
use super::digest::{Hash, Running, sha256};
use super::expr::{Expr, Term};
use super::inlet::Inlet;
use super::json::{self, Kind, Lookup};
use super::verify::Proof;
use super::{ExtractedEvent, Rejection};
use crate::model::receipt::{Coverage, Flag, HoldReason, Mode};

/// Longest account, id and id with room for `@{receipt id}`; longer ones become their digest.
const ACCOUNT_BYTES_MAX: usize = 128;
const ID_BYTES_MAX: usize = 255;
const REF_IN_KEY_BYTES_MAX: usize = 218;
/// Longest text of the other facts; what is longer is cut.
const PROVIDER_REF_BYTES_MAX: usize = 1024;
const FACT_BYTES_MAX: usize = 255;
/// Type of events that name none.
const TYPE_UNKNOWN: &str = "unknown";

/// Where a batch's item stands.
pub(super) struct ItemPlace {
    pub pointer: String,
    /// In the JSON bytes.
    pub span: Range<usize>,
    /// In the body; `None` where the JSON is not the body itself.
    pub part: Option<Range<usize>>,
}

/// A fact that could not be read.
enum Trouble {
    /// The request is refused: a header stands there twice or is no text.
    Refused(Rejection),
    Held(HoldReason),
}

impl Inlet {
    /// The events of a delivery whose body is proved as a whole.
    pub(super) fn extract(
        &self,
        context: &Context<'_, '_>,
        proof: &Proof<'_>,
    ) -> Result<Vec<ExtractedEvent>, Rejection> {
        let bare = context.inbound.body.is_empty() && self.rules.empty_body;
        let json = match context.document.json() {
            Ok(json) => Some(json),
            Err(Problem::Unparsable(_)) if !bare => {
                return Ok(vec![self.held(context, proof, None, HoldReason::Unparsable)]);
            }
            Err(Problem::Twice(_)) => return Ok(vec![self.held(context, proof, None, HoldReason::IdTwice)]),
            Err(_) => None,
        };
        let Some((batch, json)) = self.rules.batch.as_ref().zip(json) else {
            if let Some(json) = json.filter(|_| context.document.content == Content::Json)
                && !self.rules.any_root
                && first_byte(&json.bytes) != Some(b'{')
            {
                return Ok(vec![self.held(context, proof, None, HoldReason::WrongShape)]);
            }
            return Ok(vec![self.event(context, proof, None)?]);
        };
        match self.items(context, json) {
            Some(items) if items.len() > batch.max => {
                Ok(vec![self.held(context, proof, None, HoldReason::BatchTooLarge)])
            }
            Some(items) if items.is_empty() => Ok(vec![self.held(context, proof, None, HoldReason::NoId)]),
            Some(items) => items.iter().map(|place| self.item_event(context, proof, json, place)).collect(),
            // The document is read as one item.
            None if batch.optional => match json::scan(&json.bytes, &self.rules.item) {
                Ok(scan) if first_byte(&json.bytes) == Some(b'{') => {
                    let item = Item { bytes: &json.bytes, scan };
                    Ok(vec![self.event(&Context { item: Some(&item), ..*context }, proof, None)?])
                }
                _ => Ok(vec![self.held(context, proof, None, HoldReason::WrongShape)]),
            },
            None => Ok(vec![self.held(context, proof, None, HoldReason::WrongShape)]),
        }
    }

    fn item_event(
        &self,
        context: &Context<'_, '_>,
        proof: &Proof<'_>,
        json: &Json<'_>,
        place: &ItemPlace,
    ) -> Result<ExtractedEvent, Rejection> {
        let bytes = &json.bytes[place.span.clone()];
        match json::scan(bytes, &self.rules.item) {
            Ok(scan) if first_byte(bytes) == Some(b'{') => {
                let item = Item { bytes, scan };
                self.event(&Context { item: Some(&item), ..*context }, proof, Some(place))
            }
            _ => Ok(self.held(context, proof, Some((place, bytes)), HoldReason::WrongShape)),
        }
    }

    /// The places of a batch's items, at most one over the limit; `None` if there is no array.
    pub(super) fn items(&self, context: &Context<'_, '_>, json: &Json<'_>) -> Option<Vec<ItemPlace>> {
        let batch = self.rules.batch.as_ref()?;
        let found = match json.scan.get(batch.slot) {
            Lookup::One(found) if found.kind == Kind::Array => found,
            _ => return None,
        };
        let whole = context.document.content == Content::Json;
        let elements = json::elements(&json.bytes, found.span.clone(), batch.max);
        let place = |(index, span): (usize, Range<usize>)| {
            let (pointer, span) = unwrapped(batch, &json.bytes, index, span);
            ItemPlace { pointer, part: whole.then(|| span.clone()), span }
        };
        Some(elements.into_iter().enumerate().map(place).collect())
    }

    /// One event; what cannot be read of it holds it.
    pub(super) fn event(
        &self,
        context: &Context<'_, '_>,
        proof: &Proof<'_>,
        place: Option<&ItemPlace>,
    ) -> Result<ExtractedEvent, Rejection> {
        let mut facts = match self.facts(context, proof) {
            Ok(facts) => facts,
            Err(Trouble::Refused(rejection)) => return Err(rejection),
            Err(Trouble::Held(reason)) => {
                let bytes = context.item.map(|item| item.bytes);
                return Ok(self.held(context, proof, place.zip(bytes), reason));
            }
        };
        facts.pointer = place.map(|place| place.pointer.clone());
        facts.part = place.and_then(|place| place.part.clone());
        facts.item_sha256 = self.content_digest(context);
        // What cannot be read may be asked for all the same; whose event it is stays a person's question.
        if !self.hold_malformed {
            facts.hold = facts.hold.filter(|hold| *hold == HoldReason::AccountMismatch);
        }
        Ok(facts)
    }

    fn facts(&self, context: &Context<'_, '_>, proof: &Proof<'_>) -> Result<ExtractedEvent, Trouble> {
        let rules = &self.rules;
        let mut flags = self.flags(proof);
        let key = self.key(context)?;
        let provider_ref = text(context, &rules.identity.provider_ref)?;
        let provider_ref = provider_ref.filter(|text| !text.is_empty()).ok_or(Trouble::Held(HoldReason::NoId))?;
        let named = match &rules.account {
            Some(account) => text(context, account)?.filter(|account| !account.is_empty()),
            None => None,
        };
        let (account, hold) = self.account(context, proof, named, &mut flags);
        let event_type = match &rules.event.event_type {
            Some(expr) => match text(context, expr) {
                Ok(event_type) => event_type,
                Err(Trouble::Held(HoldReason::IdTwice)) => return Err(Trouble::Held(HoldReason::IdTwice)),
                Err(Trouble::Held(_)) => None,
                Err(refused) => return Err(refused),
            },
            None => None,
        };
        let limit = if rules.identity.every_delivery { REF_IN_KEY_BYTES_MAX } else { ID_BYTES_MAX };
        let id = if rules.identity.every_delivery { &provider_ref } else { &key };
        let optional = |expr: &Option<Expr>| expr.as_ref().and_then(|expr| text(context, expr).ok().flatten());
        let occurred = optional(&rules.event.occurred);
        let mode = optional(&rules.event.mode);
        let names = |list: &[String]| mode.as_ref().is_some_and(|mode| list.contains(mode));
        let event_id = bounded(id, limit, &mut flags);
        // The store makes the key of an every-delivery event from the reference, so that has to fit as well.
        let provider_ref = if rules.identity.every_delivery {
            event_id.clone()
        } else {
            cut(clean(&provider_ref), PROVIDER_REF_BYTES_MAX)
        };
        let fact =
            |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| cut(clean(&text), FACT_BYTES_MAX));
        Ok(ExtractedEvent {
            event_id,
            account: bounded(&account, ACCOUNT_BYTES_MAX, &mut flags),
            provider_ref,
            mode: match (names(&rules.event.live), names(&rules.event.test)) {
                (true, false) => Mode::Live,
                (false, true) => Mode::Test,
                _ => Mode::Unknown,
            },
            event_type: fact(event_type).unwrap_or_else(|| TYPE_UNKNOWN.to_owned()),
            occurred_at: occurred.and_then(|text| rules.event.occurred_unit.read(text.as_bytes())),
            resource_key: fact(optional(&rules.event.resource)),
            resource_version: fact(optional(&rules.event.version)),
            pointer: None,
            part: None,
            item_sha256: [0; 32],
            flags,
            hold,
            proof: None,
        })
    }

    /// The identity: its parts joined by `|`, a part's own `|` escaped so that no two keys look alike.
    fn key(&self, context: &Context<'_, '_>) -> Result<String, Trouble> {
        let parts = &self.rules.identity.key;
        let mut key = String::new();
        let mut empty = true;
        for (at, part) in parts.iter().enumerate() {
            let part = text(context, part)?.ok_or(Trouble::Held(HoldReason::NoId))?;
            empty &= part.is_empty();
            if at > 0 {
                key.push('|');
            }
            if parts.len() > 1 && part.contains(['|', '\\']) {
                key.push_str(&part.replace('\\', "\\\\").replace('|', "\\|"));
            } else {
                key.push_str(&part);
            }
        }
        if empty { Err(Trouble::Held(HoldReason::NoId)) } else { Ok(key) }
    }

    /// Whose event it is: the path's or the secret's account first, then the event's own, then the source's.
    fn account(
        &self,
        context: &Context<'_, '_>,
        proof: &Proof<'_>,
        named: Option<String>,
        flags: &mut Vec<Flag>,
    ) -> (String, Option<HoldReason>) {
        let secrets = proof.secret.and_then(|secret| secret.account.as_deref());
        if let Some(expected) = context.inbound.path_account.or(secrets) {
            let other = named.is_some_and(|named| named != expected);
            return (expected.to_owned(), other.then_some(HoldReason::AccountMismatch));
        }
        if let Some(named) = named {
            if !self.rules.account_signed {
                flags.push(Flag::AccountUnsigned);
            }
            return (named, None);
        }
        let fallback = match &self.account {
            Some(account) => account.clone(),
            None if self.rules.identity.global => String::new(),
            None => format!("@{}", self.source),
        };
        (fallback, None)
    }

    fn flags(&self, proof: &Proof<'_>) -> Vec<Flag> {
        let marks = [
            (!proof.scheme.mechanism.signs() || proof.scheme.coverage == Coverage::None, Flag::Unsigned),
            (proof.outside_window, Flag::OutsideWindow),
            (self.rules.identity.every_delivery, Flag::EveryDelivery),
        ];
        marks.into_iter().filter_map(|(on, flag)| on.then_some(flag)).collect()
    }

    /// An authentic event that cannot be read: kept whole under its digest.
    pub(super) fn held(
        &self,
        context: &Context<'_, '_>,
        proof: &Proof<'_>,
        item: Option<(&ItemPlace, &[u8])>,
        reason: HoldReason,
    ) -> ExtractedEvent {
        let bytes = item.map_or(&**context.inbound.body, |(_, bytes)| bytes);
        let digest = sha256(bytes);
        let id = format!("sha256:{}", hex::encode(digest));
        let mut flags = self.flags(proof);
        let named = |expr: &Option<Expr>| expr.as_ref().and_then(|expr| text(context, expr).ok().flatten());
        let account = named(&self.rules.account).filter(|account| !account.is_empty());
        let (account, _) = self.account(context, proof, account, &mut flags);
        let printed = text(context, &self.rules.identity.provider_ref).ok().flatten();
        let printed = printed.filter(|text| !text.is_empty() && !self.rules.identity.every_delivery);
        let provider_ref = printed.map_or_else(|| id.clone(), |text| cut(clean(&text), PROVIDER_REF_BYTES_MAX));
        let event_type = named(&self.rules.event.event_type).filter(|text| !text.is_empty());
        ExtractedEvent {
            account: bounded(&account, ACCOUNT_BYTES_MAX, &mut flags),
            event_id: id,
            provider_ref,
            mode: Mode::Unknown,
            event_type: event_type.map_or_else(|| TYPE_UNKNOWN.to_owned(), |text| cut(clean(&text), FACT_BYTES_MAX)),
            occurred_at: None,
            resource_key: None,
            resource_version: None,
            pointer: item.map(|(place, _)| place.pointer.clone()),
            part: item.and_then(|(place, _)| place.part.clone()),
            item_sha256: digest,
            flags,
            hold: self.hold_malformed.then_some(reason),
            proof: None,
        }
    }

    /// SHA-256 of the event's bytes without the values of its volatile fields.
    fn content_digest(&self, context: &Context<'_, '_>) -> [u8; 32] {
        let volatile = &self.rules.identity.volatile;
        let (bytes, scan) = match (context.item, context.document.content) {
            (Some(item), _) => (item.bytes, Some(&item.scan)),
            (None, Content::Json) => (&**context.inbound.body, context.document.json().ok().map(|json| &json.scan)),
            (None, _) => (&**context.inbound.body, None),
        };
        let mut running = Running::plain(Hash::Sha256);
        if volatile.is_empty() {
            return sha256(bytes);
        }
        let Some(scan) = scan else {
            let left_out = |name: &[u8]| {
                volatile.iter().any(|expr| matches!(expr.plain(), Some(Term::Form(form)) if form.as_bytes() == name))
            };
            for pair in context.document.form().pairs.iter().filter(|pair| !left_out(&pair.name)) {
                running.update(pair.raw);
                running.update(b"&");
            }
            return array(running);
        };
        let in_item = context.item.is_some();
        let mut spans: Vec<Range<usize>> = volatile
            .iter()
            .filter_map(|expr| match expr.plain() {
                Some(Term::Json(place)) if place.item == in_item => match scan.get(place.slot) {
                    Lookup::One(found) => Some(found.span.clone()),
                    _ => None,
                },
                _ => None,
            })
            .collect();
        spans.sort_unstable_by_key(|span| span.start);
        let mut at = 0;
        for span in spans {
            running.update(bytes.get(at..span.start).unwrap_or_default());
            at = at.max(span.end);
        }
        running.update(&bytes[at..]);
        array(running)
    }
}

/// The event inside a batch's element, if it is wrapped.
fn unwrapped(batch: &Batch, bytes: &[u8], index: usize, span: Range<usize>) -> (String, Range<usize>) {
    let pointer = format!("{}/{index}", batch.pointer);
    if let Some(unwrap) = &batch.unwrap
        && let Ok(scan) = json::scan(&bytes[span.clone()], &unwrap.pointers)
        && let Lookup::One(found) = scan.get(unwrap.slot)
    {
        let inner = span.start + found.span.start..span.start + found.span.end;
        return (format!("{pointer}{}", unwrap.pointer), inner);
    }
    (pointer, span)
}

/// The text of an expression, or what its absence of text means for the event.
fn text(context: &Context<'_, '_>, expr: &Expr) -> Result<Option<String>, Trouble> {
    // The expression outlives the request; its text does not have to.
    match context.text(expr) {
        Ok(text) => Ok(text.map(std::borrow::Cow::into_owned)),
        Err(problem @ (Problem::HeaderTwice(_) | Problem::HeaderNotText(_))) => Err(Trouble::Refused(refusal(problem))),
        Err(Problem::Absent(_)) => Ok(None),
        Err(Problem::Twice(_)) => Err(Trouble::Held(HoldReason::IdTwice)),
        Err(Problem::NotText(_) | Problem::WrongShape(_)) => Err(Trouble::Held(HoldReason::WrongShape)),
        Err(Problem::Unparsable(_)) => Ok(None),
    }
}

/// The text if a key column can hold it, else its digest.
fn bounded(text: &str, limit: usize, flags: &mut Vec<Flag>) -> String {
    if text.len() <= limit && !text.contains('\0') {
        return text.to_owned();
    }
    if !flags.contains(&Flag::IdDigested) {
        flags.push(Flag::IdDigested);
    }
    format!("sha256:{}", hex::encode(sha256(text.as_bytes())))
}

/// No store keeps a NUL in text.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

fn first_byte(json: &[u8]) -> Option<u8> {
    let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
    json.trim_ascii_start().first().copied()
}

fn array(running: Running) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(&running.finish());
    digest
}
