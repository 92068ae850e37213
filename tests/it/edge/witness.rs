//! What the edge logs and counts while a test runs: on one thread, with a log and a recorder of the test's own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use metrics_exporter_prometheus::PrometheusHandle;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// One line of the log.
#[derive(Debug, Clone)]
pub struct Line {
    pub level: Level,
    pub message: String,
    fields: BTreeMap<String, String>,
}

impl Line {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// All that a reader of the log sees.
    pub fn text(&self) -> String {
        format!("{} {:?}", self.message, self.fields)
    }
}

/// Counters by name and labels, as `/metrics` has them.
pub type Counts = BTreeMap<String, u64>;

pub struct Witness {
    lines: Arc<Mutex<Vec<Line>>>,
    metrics: PrometheusHandle,
}

/// Runs `test` where all that the edge logs and counts is seen.
pub fn watched(test: impl AsyncFnOnce(&Witness)) {
    let recorder = makbuz::metrics::builder().unwrap().build_recorder();
    let witness = Witness { lines: Arc::default(), metrics: recorder.handle() };
    // Both the log and the recorder are the thread's: nothing may run on another one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let log = tracing_subscriber::registry().with(Log(Arc::clone(&witness.lines)));
    let run = || metrics::with_local_recorder(&recorder, || runtime.block_on(test(&witness)));
    tracing::subscriber::with_default(log, run);
}

impl Witness {
    /// The lines since the last call.
    pub fn lines(&self) -> Vec<Line> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    /// The lines since the last call that an operator sees by default.
    pub fn loud_lines(&self) -> Vec<Line> {
        self.lines().into_iter().filter(|line| line.level <= Level::INFO).collect()
    }

    pub fn counts(&self) -> Counts {
        let text = self.metrics.render();
        let series = text.lines().filter(|line| line.starts_with("makbuz_") && line.contains("_total"));
        series.filter_map(|line| line.rsplit_once(' ')).map(|(name, n)| (name.to_owned(), n.parse().unwrap())).collect()
    }

    /// What was counted since `before`, and how often.
    pub fn counted_since(&self, before: &Counts) -> Counts {
        let grown = |(name, n): (String, u64)| {
            let more = n - before.get(&name).copied().unwrap_or(0);
            (more > 0).then_some((name, more))
        };
        self.counts().into_iter().filter_map(grown).collect()
    }
}

/// Each of these series once.
pub fn once(series: &[String]) -> Counts {
    series.iter().map(|name| (name.clone(), 1)).collect()
}

pub fn delivery(source: &str, result: &str) -> String {
    format!("makbuz_deliveries_total{{source=\"{source}\",result=\"{result}\"}}")
}

pub fn rejection(source: &str, code: &str) -> String {
    format!("makbuz_rejections_total{{source=\"{source}\",code=\"{code}\"}}")
}

struct Log(Arc<Mutex<Vec<Line>>>);

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if !event.metadata().target().starts_with("makbuz") {
            return;
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        self.0.lock().unwrap().push(Line { level: *event.metadata().level(), message, fields: fields.0 });
    }
}

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
