//! One round, and the figures that come of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Plan;
use super::contender::{Contender, Mode, Services};
use super::load;

/// Long enough for pools, plans and caches to be warm.
const WARM_UP: Duration = Duration::from_secs(2);
/// Longest wait for the last message to be in its queue.
const DRAIN_MAX: Duration = Duration::from_secs(120);

/// What was measured.
#[derive(Clone)]
pub struct Figures {
    accepted_per_second: f64,
    /// Accepted, divided by the time until the last of them was in its queue; without a broker the same as above.
    finished_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The contender's own time on a processor, hand-over included, for each event.
    cpu_us_per_event: f64,
    idle_mib: f64,
    loaded_mib: f64,
    cold_start_ms: f64,
}

/// Starts a contender, loads it, waits until everything is handed over, and stops it.
pub async fn round(services: &Services, contender: Contender, mode: Mode, plan: Plan) -> Result<Figures> {
    let running = services.start(contender, mode).await?;
    let pid = running.pid()?;
    let idle_mib = resident_mib(pid)?;
    let warm_up = load::run(running.address, plan, WARM_UP).await?;
    drain(services, contender, mode, warm_up.accepted).await?;

    let cpu_before = cpu_seconds(pid)?;
    let began = Instant::now();
    let outcome = load::run(running.address, plan, plan.span).await?;
    let loaded_mib = resident_mib(pid)?;
    drain(services, contender, mode, warm_up.accepted + outcome.accepted).await?;
    let finished = if mode == Mode::Full { began.elapsed() } else { outcome.span };
    let cpu = cpu_seconds(pid)? - cpu_before;
    let cold_start = running.cold_start;
    running.stop().await?;
    services.clear(contender).await?;

    ensure!(outcome.accepted > 100, "only {} accepted", outcome.accepted);
    let accepted = outcome.accepted as f64;
    Ok(Figures {
        accepted_per_second: accepted / outcome.span.as_secs_f64(),
        finished_per_second: accepted / finished.as_secs_f64(),
        p50_ms: percentile_ms(&outcome.latencies, 0.50),
        p99_ms: percentile_ms(&outcome.latencies, 0.99),
        cpu_us_per_event: cpu * 1e6 / accepted,
        idle_mib,
        loaded_mib,
        cold_start_ms: cold_start.as_secs_f64() * 1e3,
    })
}

/// Waits until that many messages are in the contender's queue.
async fn drain(services: &Services, contender: Contender, mode: Mode, messages: u64) -> Result<()> {
    if mode == Mode::Intake {
        return Ok(());
    }
    let until = Instant::now() + DRAIN_MAX;
    loop {
        let depth = services.queue_depth(contender).await?;
        if depth >= messages {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{depth} of {messages} messages reached the queue");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Figures {
    /// Name and value, as the report shows them.
    pub fn rows(&self) -> [(&'static str, f64); 8] {
        [
            ("accepted per second", self.accepted_per_second),
            ("accepted and queued per second", self.finished_per_second),
            ("answer p50, ms", self.p50_ms),
            ("answer p99, ms", self.p99_ms),
            ("CPU per event, µs", self.cpu_us_per_event),
            ("resident idle, MiB", self.idle_mib),
            ("resident loaded, MiB", self.loaded_mib),
            ("cold start, ms", self.cold_start_ms),
        ]
    }

    pub fn line(&self) -> String {
        self.rows().map(|(name, value)| format!("{name} {value:.2}")).join("; ")
    }

    /// The median of each figure by itself.
    pub fn medians(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
            (values[low] + values[high]) / 2.0
        };
        Self {
            accepted_per_second: of(|figures| figures.accepted_per_second),
            finished_per_second: of(|figures| figures.finished_per_second),
            p50_ms: of(|figures| figures.p50_ms),
            p99_ms: of(|figures| figures.p99_ms),
            cpu_us_per_event: of(|figures| figures.cpu_us_per_event),
            idle_mib: of(|figures| figures.idle_mib),
            loaded_mib: of(|figures| figures.loaded_mib),
            cold_start_ms: of(|figures| figures.cold_start_ms),
        }
    }
}

fn percentile_ms(sorted: &[u64], fraction: f64) -> f64 {
    let index = ((sorted.len() - 1) as f64 * fraction).round() as usize;
    sorted[index] as f64 / 1e3
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("VmRSS")? / 1024.0)
}

/// User and system time so far. Linux counts it in hundredths of a second, whatever the kernel's own tick.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("stat")?.1;
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Ok(ticks / 100.0)
}
