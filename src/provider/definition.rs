//! A provider file, compiled: everything that is decided before a request comes.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderName, Method};

use super::carrier::Carrier;
use super::context::Sorted;
use super::expr::{Condition, Expr};
use super::json::Pointers;
use super::key::{KeyFormat, Mechanism};
use super::spec::Spec;
use super::time::Unit;
use super::{RejectionCode, Reply};
use crate::model::receipt::Coverage;

/// The rule for signed times: five minutes both sides.
pub const WINDOW: Duration = Duration::from_secs(300);
/// Most events that one delivery is split into.
pub const BATCH_MAX: usize = 5000;

/// What a source can be bound to.
#[derive(Debug, Clone)]
pub struct Definition {
    pub(super) rules: Rules,
    /// The file itself, for generic definitions that are made anew per source, and for descriptions.
    pub(super) table: toml::Table,
    pub(super) spec: Spec,
    /// File that it came from.
    pub(super) place: String,
}

/// The compiled rules of a definition.
#[derive(Debug, Clone)]
pub struct Rules {
    pub name: String,
    pub title: String,
    pub generic: bool,
    pub methods: Vec<Method>,
    pub content: ContentRule,
    pub payload_field: Option<String>,
    pub empty_body: bool,
    /// The document may be something else than an object.
    pub any_root: bool,
    pub suffix: bool,
    pub browser: bool,
    pub body_max: Option<u64>,
    pub headers: Vec<HeaderName>,
    pub retry_headers: Vec<HeaderName>,
    pub time_limit: Option<Duration>,
    pub params: BTreeMap<String, ParamRule>,
    pub document: Pointers,
    pub item: Pointers,
    pub schemes: Vec<Scheme>,
    pub guards: Vec<Guard>,
    pub window: Window,
    pub identity: Identity,
    pub account: Option<Expr>,
    pub account_signed: bool,
    pub event: EventRules,
    pub batch: Option<Batch>,
    pub handshakes: Vec<Handshake>,
    pub accepted: Reply,
    pub refused: Reply,
    pub templates: Vec<Template>,
}

/// How the body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRule {
    Json,
    Form,
    /// A form where the content type says so, else JSON.
    Either,
    Opaque,
}

/// A param of the file.
#[derive(Debug, Clone)]
pub struct ParamRule {
    pub about: String,
    pub required: bool,
    pub default: Option<String>,
    pub choices: Vec<String>,
}

/// One way to prove a delivery.
#[derive(Debug, Clone)]
pub struct Scheme {
    pub name: String,
    pub mechanism: Mechanism,
    /// Name of the mechanism as the file writes it.
    pub mechanism_name: String,
    pub key: KeyFormat,
    pub key_prefix: Option<String>,
    pub key_prefix_required: bool,
    pub optional: bool,
    pub optional_params: bool,
    pub when: Vec<Condition>,
    pub signed: Option<Expr>,
    pub coverage: Coverage,
    pub url_ports: bool,
    pub per_item: bool,
    pub carrier: Option<Carrier>,
    pub timestamp: Option<Timestamp>,
    pub checks: Vec<(Expr, Expr)>,
    pub sorted: Option<Sorted>,
    /// Params that its expressions name.
    pub params: Vec<String>,
}

/// Where the signed time stands.
#[derive(Debug, Clone)]
pub struct Timestamp {
    pub from: Expr,
    pub unit: Unit,
}

/// A second proof.
#[derive(Debug, Clone)]
pub struct Guard {
    pub name: String,
    pub mechanism: Mechanism,
    pub carrier: Carrier,
    pub param: String,
    pub required: bool,
}

/// How far a signed time may be off.
#[derive(Debug, Clone)]
pub struct Window {
    /// `None`: no time is signed.
    pub tolerance: Option<Duration>,
    pub reason: String,
    pub replay_guard: bool,
}

/// What makes an event the same event.
#[derive(Debug, Clone)]
pub struct Identity {
    pub provider_ref: Expr,
    pub key: Vec<Expr>,
    pub signed: bool,
    pub every_delivery: bool,
    pub global: bool,
    pub volatile: Vec<Expr>,
}

/// The other facts of an event.
#[derive(Debug, Clone)]
pub struct EventRules {
    pub event_type: Option<Expr>,
    pub known: Vec<String>,
    pub occurred: Option<Expr>,
    pub occurred_unit: Unit,
    pub resource: Option<Expr>,
    pub version: Option<Expr>,
    pub mode: Option<Expr>,
    pub live: Vec<String>,
    pub test: Vec<String>,
}

/// Several events in one delivery.
#[derive(Debug, Clone)]
pub struct Batch {
    pub slot: usize,
    pub pointer: String,
    /// Slot of the event inside an element, among the pointers of `unwrapped`.
    pub unwrap: Option<Unwrap>,
    pub accept_mixed: bool,
    pub optional: bool,
    pub max: usize,
}

/// The event inside a batch's element.
#[derive(Debug, Clone)]
pub struct Unwrap {
    pub pointers: Pointers,
    pub slot: usize,
    pub pointer: String,
}

/// When a handshake's request must be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeProof {
    /// Like an event.
    Required,
    /// A signature that is there must be right.
    Optional,
    Never,
}

/// A request that is answered and makes no receipt.
#[derive(Debug, Clone)]
pub struct Handshake {
    pub name: String,
    pub methods: Vec<Method>,
    pub when: Vec<Condition>,
    pub proof: HandshakeProof,
    pub status: http::StatusCode,
    pub content_type: Option<String>,
    pub body: Option<Expr>,
}

/// A realistic event for test requests.
#[derive(Debug, Clone)]
pub struct Template {
    pub event_type: String,
    pub method: Method,
    pub suffix: Option<String>,
    pub content_type: Option<String>,
    pub headers: Vec<(HeaderName, String)>,
    pub body: String,
}

impl Definition {
    /// Name, which is also the file's.
    pub fn name(&self) -> &str {
        &self.rules.name
    }

    /// Name for people.
    pub fn title(&self) -> &str {
        &self.rules.title
    }

    /// The event types that the file knows; empty where it names none.
    pub fn known_types(&self) -> &[String] {
        &self.rules.event.known
    }

    /// The window of the file, `None` where no time is signed, and why it is not five minutes.
    pub fn window(&self) -> (Option<Duration>, &str) {
        (self.rules.window.tolerance, &self.rules.window.reason)
    }

    /// Whether each delivery is an event of its own.
    pub fn every_delivery(&self) -> bool {
        self.rules.identity.every_delivery
    }

    /// Whether the provider proves nothing at all.
    pub fn unsigned(&self) -> bool {
        self.rules.schemes.iter().all(|scheme| scheme.mechanism == Mechanism::Unproved)
    }

    /// The params that the file declares: name, whether it must be given, what it is.
    pub fn params(&self) -> impl Iterator<Item = (&str, bool, &str)> {
        self.rules.params.iter().map(|(name, rule)| (&**name, rule.required, &*rule.about))
    }

    /// Names of the schemes; a source's param `scheme` may pick one.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.rules.schemes.iter().map(|scheme| &*scheme.name)
    }

    /// Event types that have a template for test requests.
    pub fn template_types(&self) -> impl Iterator<Item = &str> {
        self.rules.templates.iter().map(|template| &*template.event_type)
    }
}

impl Rules {
    /// The refusal's answer.
    pub fn reply_refused(&self, code: RejectionCode) -> Reply {
        use http::StatusCode;
        let plain = |status| Reply { status, content_type: None, body: bytes::Bytes::new() };
        match code {
            RejectionCode::NoSecret => plain(StatusCode::SERVICE_UNAVAILABLE),
            RejectionCode::Method => plain(StatusCode::METHOD_NOT_ALLOWED),
            RejectionCode::Suffix | RejectionCode::UnknownAccount => plain(StatusCode::NOT_FOUND),
            _ => self.refused.clone(),
        }
    }
}

impl Definition {
    /// Whether a filter's type glob can match anything that the file knows; true where it names no types.
    pub fn may_send(&self, glob: &str) -> bool {
        let known = self.known_types();
        known.is_empty() || known.iter().any(|known| overlap(&parts(glob), &parts(known)))
    }
}

fn parts(glob: &str) -> Vec<&str> {
    glob.split(['.', '/']).collect()
}

/// Whether two globs have a type in common.
fn overlap(left: &[&str], right: &[&str]) -> bool {
    match (left, right) {
        ([], []) => true,
        (["**", rest @ ..], other) | (other, ["**", rest @ ..]) => {
            (0..=other.len()).any(|skipped| overlap(rest, &other[skipped..]))
                || (!other.is_empty() && other.contains(&"**"))
        }
        ([left, lefts @ ..], [right, rights @ ..]) => {
            (left == right || *left == "*" || *right == "*") && overlap(lefts, rights)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{overlap, parts};

    #[test]
    fn globs_overlap_where_a_type_fits_both() {
        for (left, right) in [
            ("charge.succeeded", "charge.**"),
            ("charge.*", "charge.succeeded"),
            ("**", "push"),
            ("invoice.**", "invoice.paid"),
            ("*.paid", "invoice.**"),
            ("orders/*", "orders/**"),
            ("customer.subscription.*", "customer.**"),
        ] {
            assert!(overlap(&parts(left), &parts(right)), "{left} {right}");
            assert!(overlap(&parts(right), &parts(left)), "{right} {left}");
        }
        for (left, right) in [("push", "pull_request"), ("charge.x", "invoice.**"), ("a.*", "a"), ("a.b.c", "a.*")] {
            assert!(!overlap(&parts(left), &parts(right)), "{left} {right}");
            assert!(!overlap(&parts(right), &parts(left)), "{right} {left}");
        }
    }
}
