//! `[[subscription]]`, its filter and its retry policy.

use std::time::Duration;

use super::names;
use super::reader::{Schema, Table, key};
use super::report::Place;
use super::units;
use crate::model::filter::{Filter, Glob};
use crate::model::receipt::Mode;
use crate::model::retry::{Jitter, RetryLimits, RetryPolicy, TRIES_MAX};
use crate::model::subscription::{CompletesOn, Subscription, Target};

pub(crate) const SUBSCRIPTION: Schema = Schema {
    title: "[[subscription]]",
    keys: &[
        key("name", "name", "", "Required; its queue is `makbuz.NAME`"),
        key("filter", "table", "", "Which events: `{ sources, providers, accounts, modes, types }`; absent: all"),
        key("target", "`amqp` or `pull`", "", "Required; a queue of the broker, or claimed over HTTP"),
        key("retry", "name or table", "standard", "`standard`, `short`, `capped`, `day`, or `[subscription.retry]`"),
        key(
            "time_limit",
            "time",
            "",
            "From the claim (`pull`, default `[process] time_limit`) or from `started` (`amqp`, default none) to the outcome",
        ),
        key(
            "completes_on",
            "`report` or `confirm`",
            "report",
            "`confirm` (only `amqp`): done when the broker has it, for consumers that do not report",
        ),
        key(
            "rearm",
            "`review` or `off`",
            "review",
            "Whether a provider's resend arms a job again that ran out of tries",
        ),
    ],
    later: &[
        "url",
        "sign_with",
        "headers",
        "retry_statuses",
        "rate",
        "concurrency",
        "shadow",
        "ordering",
        "settle",
        "skew",
        "on_review",
        "fetch",
        "operation_key",
        "alert",
        "private_addresses",
    ],
};

pub(crate) const FILTER: Schema = Schema {
    title: "`filter`",
    keys: &[
        key("sources", "list of names", "[]", "Sources, by name"),
        key("providers", "list of names", "[]", "Providers, by name"),
        key("accounts", "list of texts", "[]", "Accounts, exactly"),
        key("modes", "list of `live`, `test`, `unknown`", "[]", "Live or test traffic"),
        key("types", "list of globs", "[]", "Event types: `.` and `/` part them, `*` is one part, `**` any number"),
    ],
    later: &["where"],
};

pub(crate) const RETRY: Schema = Schema {
    title: "[subscription.retry]",
    keys: &[
        key(
            "schedule",
            "list of times",
            "[]",
            "Waits before the second, third … try; or else `base`, `factor`, `cap` and `attempts`",
        ),
        key("base", "time", "5s", "Wait before the second try"),
        key("factor", "number", "4.0", "Each wait is the one before times this"),
        key("cap", "time", "6h", "No wait is longer, before jitter"),
        key("attempts", "number", "7", "Tries in all, the first included"),
        key("jitter", "table", "", "`{ min, max, sign }`: fractions of the wait; default 0.1, 0.2, `plus`"),
        key("total_max", "time", "24h", "From the first try to the start of the last"),
        key("retry_after_max", "time", "1h", "Most that a consumer's `retry_after_s` may ask for"),
    ],
    later: &[],
};

pub(crate) const JITTER: Schema = Schema {
    title: "`jitter`",
    keys: &[
        key("min", "fraction", "0.1", "Least"),
        key("max", "fraction", "0.2", "Most"),
        key("sign", "`plus` or `both`", "plus", "`both` also shortens waits"),
    ],
    later: &[],
};

/// One `[[subscription]]`, and where its names stand.
#[derive(Debug, Clone)]
pub struct SubscriptionSection {
    pub subscription: Subscription,
    pub place: Place,
    /// Names of sources in the filter, to be found among the sources.
    pub(crate) sources: Vec<(String, Place)>,
}

/// Reads a subscription; `None` after a mistake that is already noted.
pub(crate) fn read_subscription(table: &Table<'_>, time_limit: Duration) -> Option<SubscriptionSection> {
    let name = names::read(table, "name");
    let (filter, sources) = table
        .table("filter")
        .map(|(inner, place)| read_filter(&Table::of(table.context(), &FILTER, inner, place)))
        .unwrap_or_default();
    let target = read_target(table);
    let retry = read_retry(table);
    let limit = table.optional("time_limit", limit);
    let completes_on =
        table.choice("completes_on", &[("report", CompletesOn::Report), ("confirm", CompletesOn::Confirm)]);
    let rearm = table.choice("rearm", &[("review", true), ("off", false)]);
    let target = target?;
    if completes_on == CompletesOn::Confirm && target != Target::Amqp {
        table.mistake(&table.place_of("completes_on"), "only `target = \"amqp\"` can complete on the broker's confirm");
    }
    let time_limit = if target == Target::Pull { limit.or(Some(time_limit)) } else { limit };
    let subscription = Subscription { name, filter, target, retry, time_limit, completes_on, rearm };
    Some(SubscriptionSection { subscription, place: table.place.clone(), sources })
}

fn read_target(table: &Table<'_>) -> Option<Target> {
    let text = table.required_text("target");
    let place = table.place_of("target");
    match text.as_str() {
        "amqp" => Some(Target::Amqp),
        "pull" => Some(Target::Pull),
        "http" => {
            table.mistake(&place, "`target = \"http\"` is not in this version yet: use \"pull\" or \"amqp\"");
            None
        }
        _ if !table.has("target") => None,
        other => {
            table.mistake(&place, format!("`target`: {other:?} is none of \"amqp\", \"pull\""));
            None
        }
    }
}

fn read_filter(table: &Table<'_>) -> (Filter, Vec<(String, Place)>) {
    let texts = |name| table.texts(name).into_iter().map(|(text, _)| text).collect::<Vec<_>>();
    let sources = table.texts("sources");
    let mut modes = Vec::new();
    for (text, place) in table.texts("modes") {
        match text.as_str() {
            "live" | "test" | "unknown" => modes.push(Mode::parse(&text)),
            _ => table.mistake(&place, format!("{text:?} is none of \"live\", \"test\", \"unknown\"")),
        }
    }
    let mut types: Vec<Glob> = Vec::new();
    for (text, place) in table.texts("types") {
        match text.parse() {
            Ok(glob) => types.push(glob),
            Err(why) => table.mistake(&place, format!("`types`: {why}")),
        }
    }
    let filter = Filter {
        sources: sources.iter().map(|(name, _)| name.clone()).collect(),
        providers: texts("providers"),
        accounts: texts("accounts"),
        modes,
        types,
    };
    (filter, sources)
}

fn limit(text: &str) -> Result<Duration, String> {
    let span = units::duration(text)?;
    let most = Duration::from_secs(7 * 86_400);
    if span >= Duration::from_secs(1) && span <= most {
        Ok(span)
    } else {
        Err(format!("{text} is not from 1s to 7days"))
    }
}

fn read_retry(table: &Table<'_>) -> RetryPolicy {
    if table.has("retry") && !table.is_text("retry") {
        let own = table
            .table("retry")
            .and_then(|(inner, place)| read_policy(&Table::of(table.context(), &RETRY, inner, place)));
        // After a mistake any policy will do: nothing runs with it.
        return own.unwrap_or_else(standard);
    }
    table.parsed("retry", |text| {
        RetryPolicy::preset(text)
            .ok_or_else(|| format!("{text:?} is none of \"standard\", \"short\", \"capped\", \"day\""))
    })
}

fn standard() -> RetryPolicy {
    // Unwrap safety: a test of the presets makes each of them.
    RetryPolicy::preset("standard").expect("a preset")
}

fn read_policy(table: &Table<'_>) -> Option<RetryPolicy> {
    let day = Duration::from_secs(86_400);
    let mut schedule = Vec::new();
    for (text, place) in table.texts("schedule") {
        match units::duration(&text) {
            Ok(wait) => schedule.push(wait),
            Err(why) => table.mistake(&place, format!("`schedule`: {why}")),
        }
    }
    let base = table.duration("base", Duration::from_millis(100)..=day);
    let factor = table.fraction("factor", 1.0..=100.0).unwrap_or(4.0);
    let cap = table.duration("cap", Duration::from_millis(100)..=day * 7);
    let attempts = table.count("attempts", 1..=u32::try_from(TRIES_MAX).unwrap_or(u32::MAX)) as usize;
    let jitter =
        table.table("jitter").map(|(inner, place)| read_jitter(&Table::of(table.context(), &JITTER, inner, place)));
    let limits = RetryLimits {
        jitter: jitter.unwrap_or(Jitter::STANDARD),
        total_max: table.duration("total_max", Duration::from_secs(1)..=day * 30),
        retry_after_max: table.duration("retry_after_max", Duration::from_secs(1)..=day),
    };
    let made = if table.has("schedule") {
        if let Some(other) = ["base", "factor", "cap", "attempts"].into_iter().find(|name| table.has(name)) {
            table.mistake(&table.place_of(other), format!("`schedule` and `{other}` both say when: keep one"));
        }
        RetryPolicy::schedule(schedule, limits)
    } else {
        RetryPolicy::exponential(base, factor, cap, attempts, limits)
    };
    made.map_err(|why| table.mistake(&table.place, why.to_string())).ok()
}

fn read_jitter(table: &Table<'_>) -> Jitter {
    Jitter {
        min: table.fraction("min", 0.0..=1.0).unwrap_or(Jitter::STANDARD.min),
        max: table.fraction("max", 0.0..=1.0).unwrap_or(Jitter::STANDARD.max),
        both: table.choice("sign", &[("plus", false), ("both", true)]),
    }
}
