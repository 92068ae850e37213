//! A definition bound to a source: secrets decoded, key schedules computed, everything that can be wrong found now.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use secrecy::{ExposeSecret as _, SecretSlice};
use zeroize::Zeroizing;

use super::definition::{Definition, Guard, Rules, Scheme, WINDOW};
use super::expr::{Condition, Expr, Term, nearest};
use super::key::{Mechanism, Prepared};
use super::spec::SpecError;
use super::{ParamValues, Rejection, RejectionCode, Reply, SourceSecret, SourceSettings};

/// Most secrets of one account that may be live at the same time.
pub const LIVE_SECRETS_MAX: usize = 3;

/// Headers that are kept whatever the provider.
const GENERIC_HEADERS: [&str; 10] = [
    "content-type",
    "content-encoding",
    "content-language",
    "date",
    "user-agent",
    "traceparent",
    "tracestate",
    "request-id",
    "x-request-id",
    "x-correlation-id",
];

/// A source's provider engine.
pub struct Inlet {
    pub(super) rules: Arc<Rules>,
    pub(super) secrets: Vec<BoundSecret>,
    pub(super) params: ParamValues,
    pub(super) guards: Vec<(Guard, Prepared)>,
    /// Which schemes may be used.
    pub(super) enabled: Vec<bool>,
    pub(super) tolerance: Option<Duration>,
    pub(super) replay_guard: bool,
    pub(super) source: String,
    pub(super) account: Option<String>,
    pub(super) url: Option<String>,
    pub(super) hold_malformed: bool,
    kept: Vec<HeaderName>,
    credential_queries: Vec<String>,
    methods: Vec<Method>,
}

/// A secret of the source, ready for use.
pub(super) struct BoundSecret {
    pub label: String,
    pub not_before: Option<i64>,
    pub not_after: Option<i64>,
    pub params: ParamValues,
    /// The account that this secret stands for.
    pub account: Option<String>,
    /// As configured, for messages that hold it.
    pub text: SecretSlice<u8>,
    /// For each scheme, the key if the secret belongs to it.
    pub keys: Vec<Option<BoundKey>>,
}

/// A secret as one scheme uses it.
pub(super) struct BoundKey {
    pub prepared: Prepared,
    pub decoded: Zeroizing<Vec<u8>>,
}

impl Definition {
    /// Binds a source; every mistake in its secrets and params is reported at once.
    pub fn bind(&self, settings: SourceSettings) -> Result<Inlet, Vec<SpecError>> {
        let mut binder = Binder { source: settings.name.clone(), errors: Vec::new() };
        let params = binder.params(&self.rules, &settings);
        let made;
        let rules = if self.rules.generic && binder.errors.is_empty() {
            let values = params
                .iter()
                .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value.expose_secret()).into_owned()));
            made = self.with_values(&values.collect())?;
            &made.rules
        } else {
            &self.rules
        };
        let enabled = binder.enabled(rules, &settings);
        let secrets = binder.secrets(rules, &enabled, &params, settings.secrets);
        let guards = binder.guards(rules, &params);
        let tolerance = binder.tolerance(rules, settings.tolerance, settings.window_strict);
        if !binder.errors.is_empty() {
            return Err(binder.errors);
        }
        Ok(Inlet {
            kept: kept_headers(rules),
            credential_queries: credential_queries(rules),
            methods: methods(rules),
            enabled,
            secrets,
            params,
            guards,
            tolerance,
            replay_guard: settings.replay_guard.unwrap_or(rules.window.replay_guard) && !self.unsigned(),
            source: settings.name,
            account: settings.account,
            url: settings.url,
            hold_malformed: settings.hold_malformed,
            rules: Arc::new(rules.clone()),
        })
    }
}

impl Inlet {
    /// The answer to an accepted delivery and to a duplicate.
    pub fn reply_accepted(&self) -> Reply {
        self.rules.accepted.clone()
    }

    /// The answer to a refused delivery; 503 where it is our own fault.
    pub fn reply_refused(&self, code: RejectionCode) -> Reply {
        self.rules.reply_refused(code)
    }

    /// Whether a request that one of them accepts could be one that the other accepts: a secret is in both, or one needs none.
    pub fn shares_secret(&self, other: &Self) -> bool {
        let held = |text: &[u8]| other.secrets.iter().any(|secret| secret.text.expose_secret() == text);
        let unkeyed = self.secrets.is_empty() || other.secrets.is_empty();
        unkeyed || self.secrets.iter().any(|secret| held(secret.text.expose_secret()))
    }

    /// Headers whose values are stored; of all others only the name.
    pub fn kept_headers(&self) -> &[HeaderName] {
        &self.kept
    }

    /// Query fields that carry a proof: their values are never stored.
    pub fn credential_queries(&self) -> &[String] {
        &self.credential_queries
    }

    /// The provider's own time limit for an answer.
    pub fn answer_max(&self) -> Option<Duration> {
        self.rules.time_limit
    }

    /// The largest body that the provider sends, where it says so.
    pub fn body_max(&self) -> Option<u64> {
        self.rules.body_max
    }

    /// Methods that events and handshakes come with.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Whether a rest of the path belongs to the event.
    pub fn takes_suffix(&self) -> bool {
        self.rules.suffix
    }

    /// Whether customers' browsers carry the deliveries.
    pub fn carrier_browser(&self) -> bool {
        self.rules.browser
    }

    /// Whether each delivery is an event of its own.
    pub fn every_delivery(&self) -> bool {
        self.rules.identity.every_delivery
    }

    /// The window that signed times are held to; `None` where none is signed.
    pub fn tolerance(&self) -> Option<Duration> {
        self.tolerance
    }

    /// Labels of the source's secrets.
    pub fn secret_labels(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(|secret| &*secret.label)
    }

    /// The secrets that may prove a request at this moment, for the account that its path names.
    pub(super) fn live(&self, now: i64, path_account: Option<&str>) -> Result<Vec<&BoundSecret>, Rejection> {
        let in_time = |secret: &&BoundSecret| {
            secret.not_before.is_none_or(|from| from <= now) && secret.not_after.is_none_or(|until| now < until)
        };
        let mut live: Vec<_> = self.secrets.iter().filter(in_time).collect();
        if live.is_empty() && !self.secrets.is_empty() {
            return Err(Rejection::new(RejectionCode::NoSecret, "no secret of the source is valid now"));
        }
        if let Some(account) = path_account {
            let bound_to_others = live.iter().any(|secret| secret.account.is_some());
            live.retain(|secret| secret.account.as_deref().is_none_or(|own| own == account));
            if live.is_empty() && bound_to_others {
                return Err(Rejection::new(RejectionCode::UnknownAccount, "no secret for the account in the path"));
            }
        }
        Ok(live)
    }
}

struct Binder {
    source: String,
    errors: Vec<SpecError>,
}

impl Binder {
    fn error(&mut self, key: impl Into<String>, reason: impl Into<String>) {
        self.errors.push(SpecError::new(&self.source, key, reason));
    }

    /// The source's params with the file's defaults.
    fn params(&mut self, rules: &Rules, settings: &SourceSettings) -> ParamValues {
        let own = settings.secrets.iter().flat_map(|secret| secret.params.keys());
        for name in settings.params.keys().chain(own) {
            if rules.params.contains_key(name) || matches!(&**name, "scheme" | "account") {
                continue;
            }
            let known = rules.params.keys().map(String::as_str);
            let near = nearest(name, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.error(format!("params.{name}"), format!("`{}` takes no such param{near}", rules.name));
        }
        let mut params = ParamValues::new();
        for (name, rule) in &rules.params {
            let everywhere =
                !settings.secrets.is_empty() && settings.secrets.iter().all(|secret| secret.params.contains_key(name));
            if let Some(value) = settings.params.get(name) {
                let text = String::from_utf8_lossy(value.expose_secret()).into_owned();
                if text.trim().is_empty() && rule.required {
                    self.error(format!("params.{name}"), "is blank");
                }
                if !rule.choices.is_empty() && !rule.choices.contains(&text) {
                    self.error(format!("params.{name}"), format!("is not one of {}", rule.choices.join(", ")));
                }
                params.insert(name.clone(), value.clone());
            } else if let Some(default) = &rule.default {
                params.insert(name.clone(), default.clone().into_bytes().into());
            } else if rule.required && !everywhere {
                self.error(format!("params.{name}"), format!("is missing: {}", rule.about));
            }
        }
        params
    }

    fn enabled(&mut self, rules: &Rules, settings: &SourceSettings) -> Vec<bool> {
        let Some(wanted) = settings.params.get("scheme") else {
            return rules.schemes.iter().map(|scheme| !scheme.optional).collect();
        };
        let wanted = String::from_utf8_lossy(wanted.expose_secret()).into_owned();
        if !rules.schemes.iter().any(|scheme| scheme.name == wanted) {
            let known: Vec<_> = rules.schemes.iter().map(|scheme| &*scheme.name).collect();
            self.error("params.scheme", format!("`{wanted}` is not one of {}", known.join(", ")));
        }
        rules.schemes.iter().map(|scheme| scheme.name == wanted).collect()
    }

    fn secrets(
        &mut self,
        rules: &Rules,
        enabled: &[bool],
        params: &ParamValues,
        secrets: Vec<SourceSecret>,
    ) -> Vec<BoundSecret> {
        let proved = rules.schemes.iter().any(|scheme| scheme.mechanism != Mechanism::Unproved);
        match (proved, secrets.is_empty()) {
            (true, true) => self.error("secrets", "at least one is needed"),
            (false, false) => self.error("secrets", "this provider signs nothing, so a secret would prove nothing"),
            _ => {}
        }
        let bound: Vec<_> = secrets
            .into_iter()
            .enumerate()
            .map(|(at, secret)| self.secret(rules, enabled, params, at, secret))
            .collect();
        for (at, secret) in bound.iter().enumerate() {
            if bound[..at].iter().any(|other| other.label == secret.label) {
                self.error(format!("secrets[{at}].label"), format!("`{}` is there already", secret.label));
            }
            if overlapping(secret, &bound) > LIVE_SECRETS_MAX {
                let reason =
                    format!("more than {LIVE_SECRETS_MAX} secrets of one account would be live at the same time");
                self.error(format!("secrets[{at}]"), reason);
                break;
            }
        }
        bound
    }

    fn secret(
        &mut self,
        rules: &Rules,
        enabled: &[bool],
        params: &ParamValues,
        at: usize,
        secret: SourceSecret,
    ) -> BoundSecret {
        let text = secret.value.expose_secret();
        let mut reasons = Vec::new();
        let claimed = rules.schemes.iter().zip(enabled).any(|(scheme, on)| *on && claims(scheme, text));
        let mut keys = Vec::new();
        for (scheme, on) in rules.schemes.iter().zip(enabled) {
            let belongs = *on && (claims(scheme, text) || (!claimed && !scheme.key_prefix_required));
            let missing = |name: &&String| !params.contains_key(*name) && !secret.params.contains_key(*name);
            let lacking = scheme.params.iter().find(missing);
            let key = match lacking {
                _ if !belongs => None,
                Some(_) if scheme.optional_params => None,
                Some(name) => {
                    reasons.push(format!("scheme {} needs the param `{name}`", scheme.name));
                    None
                }
                None => bind_key(scheme, text).map_err(|reason| reasons.push(reason.to_owned())).ok(),
            };
            keys.push(key);
        }
        let key = format!("secrets[{at}] ({})", secret.label);
        if text.iter().all(u8::is_ascii_whitespace) {
            self.error(&*key, "is empty or blank");
        } else if keys.iter().all(Option::is_none) {
            reasons.dedup();
            let reason = if reasons.is_empty() { "belongs to no scheme".to_owned() } else { reasons.join("; or ") };
            self.error(&*key, reason);
        }
        if let (Some(from), Some(until)) = (secret.not_before, secret.not_after)
            && from >= until
        {
            self.error(key, "not_after is not later than not_before");
        }
        let account = secret.params.get("account");
        BoundSecret {
            account: account.map(|account| String::from_utf8_lossy(account.expose_secret()).into_owned()),
            label: secret.label,
            not_before: secret.not_before,
            not_after: secret.not_after,
            params: secret.params,
            keys,
            text: secret.value,
        }
    }

    fn guards(&mut self, rules: &Rules, params: &ParamValues) -> Vec<(Guard, Prepared)> {
        let mut guards = Vec::new();
        for guard in &rules.guards {
            let key = format!("params.{}", guard.param);
            match params.get(&guard.param) {
                Some(value) => match guard.mechanism.prepare(value.expose_secret()) {
                    Ok(prepared) => guards.push((guard.clone(), prepared)),
                    Err(reason) => self.error(key, reason),
                },
                None if guard.required => self.error(key, "is missing"),
                None => {}
            }
        }
        guards
    }

    fn tolerance(&mut self, rules: &Rules, own: Option<Duration>, strict: bool) -> Option<Duration> {
        let file = rules.window.tolerance;
        if own.is_some() && file.is_none() {
            self.error("tolerance", "this provider signs no time, so there is nothing to hold to a window");
        }
        let tolerance = file.map(|file| own.unwrap_or(file));
        if strict { tolerance.map(|tolerance| tolerance.min(WINDOW)) } else { tolerance }
    }
}

/// Whether a secret's prefix says that it belongs to this scheme.
fn claims(scheme: &Scheme, text: &[u8]) -> bool {
    scheme.key_prefix_required && scheme.key_prefix.as_ref().is_some_and(|prefix| text.starts_with(prefix.as_bytes()))
}

fn bind_key(scheme: &Scheme, text: &[u8]) -> Result<BoundKey, &'static str> {
    let bare = scheme.key_prefix.as_ref().and_then(|prefix| text.strip_prefix(prefix.as_bytes())).unwrap_or(text);
    let decoded = scheme.key.decode(bare)?;
    let prepared = scheme.mechanism.prepare(&decoded)?;
    Ok(BoundKey { prepared, decoded })
}

/// How many secrets of the same account are live at the moment when this one begins.
fn overlapping(secret: &BoundSecret, all: &[BoundSecret]) -> usize {
    let start = secret.not_before.unwrap_or(i64::MIN);
    all.iter()
        .filter(|other| other.account == secret.account)
        .filter(|other| {
            other.not_before.unwrap_or(i64::MIN) <= start && other.not_after.is_none_or(|until| start < until)
        })
        .count()
}

/// Query fields that a scheme or a guard takes its proof from, and those that anything compares with a secret or a param.
fn credential_queries(rules: &Rules) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |expr: &Expr| {
        expr.visit(&mut |term| {
            if let Term::Query(name) = term {
                names.push(name.clone());
            }
        });
    };
    let carriers = rules.schemes.iter().filter_map(|scheme| scheme.carrier.as_ref());
    carriers.chain(rules.guards.iter().map(|guard| &guard.carrier)).for_each(|carrier| add(&carrier.from));
    let own = |expr: &Expr| expr.any(|term| matches!(term, Term::Secret | Term::Param(_)));
    let conditions = rules.schemes.iter().flat_map(|scheme| &scheme.when);
    let conditions = conditions.chain(rules.handshakes.iter().flat_map(|handshake| &handshake.when));
    let compared = conditions.filter_map(|condition| match condition {
        Condition::Same(left, right) | Condition::Differ(left, right) => Some((left, right)),
        Condition::Present(_) | Condition::Absent(_) => None,
    });
    let checks = rules.schemes.iter().flat_map(|scheme| &scheme.checks).map(|(left, right)| (left, right));
    for (left, right) in compared.chain(checks).filter(|(left, right)| own(left) || own(right)) {
        add(left);
        add(right);
    }
    names
}

fn kept_headers(rules: &Rules) -> Vec<HeaderName> {
    let generic = GENERIC_HEADERS.iter().map(|name| HeaderName::from_static(name));
    let mut kept: Vec<_> = generic.chain(rules.headers.iter().chain(&rules.retry_headers).cloned()).collect();
    kept.sort_by(|left, right| left.as_str().cmp(right.as_str()));
    kept.dedup();
    kept
}

fn methods(rules: &Rules) -> Vec<Method> {
    let mut methods = rules.methods.clone();
    for method in rules.handshakes.iter().flat_map(|handshake| &handshake.methods) {
        if !methods.contains(method) {
            methods.push(method.clone());
        }
    }
    methods
}
