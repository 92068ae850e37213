//! Runs the gateway and the hand-written service in one go, in turns, under the same load, and prints both and their
//! ratios. Everything shares this machine: the database, the broker, the load, and whoever is measured. The third column is
//! the hand-written service without its store, with messages like the gateway's: what the load, HTTP and the broker alone
//! allow here, so no ratio can pass it.
//!
//! Variables: MAKBUZ and BASELINE (the two binaries), DATABASE_URL, AMQP_URL; ROUNDS (3), SPAN (10 seconds), CONNECTIONS (64),
//! BODY (1024 bytes), MODES ("full intake"); ONLY=makbuz, ONLY=baseline or ONLY="no store" runs one of them, for a profiler, and compares nothing.

#[path = "compare/contender.rs"]
mod contender;
#[path = "compare/load.rs"]
mod load;
#[path = "compare/measure.rs"]
mod measure;

use std::time::Duration;

use anyhow::{Context, Result};

use contender::{Contender, Mode, Services};
use measure::Figures;

/// What is asked of each round.
#[derive(Clone, Copy)]
pub struct Plan {
    pub connections: usize,
    pub body_bytes: usize,
    pub span: Duration,
}

#[tokio::main]
async fn main() -> Result<()> {
    let rounds: usize = number("ROUNDS", 3)?;
    let plan = Plan {
        connections: number("CONNECTIONS", 64)?,
        body_bytes: number("BODY", 1024)?,
        span: Duration::from_secs(number("SPAN", 10)?),
    };
    let services = Services::from_variables()?;
    let modes = std::env::var("MODES").unwrap_or_else(|_| "full intake".into());
    for mode in modes.split_whitespace() {
        let mode = Mode::parse(mode).with_context(|| format!("MODES: {mode}"))?;
        compare(&services, mode, rounds, plan).await?;
    }
    Ok(())
}

const CONTENDERS: [Contender; 3] = [Contender::Baseline, Contender::Gateway, Contender::Bare];

async fn compare(services: &Services, mode: Mode, rounds: usize, plan: Plan) -> Result<()> {
    let only = std::env::var("ONLY").ok();
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..rounds {
        // In turns, and each first as often as the other: a disk that slows down hurts both.
        for turn in 0..CONTENDERS.len() {
            let at = (round + turn) % CONTENDERS.len();
            let contender = CONTENDERS[at];
            if only.as_deref().is_some_and(|only| only != contender.name()) {
                continue;
            }
            let measured = measure::round(services, contender, mode, plan).await?;
            eprintln!("{} {} round {round}: {}", mode.name(), contender.name(), measured.line());
            figures[at].push(measured);
        }
    }
    if only.is_some() {
        return Ok(());
    }
    report(mode, rounds, plan, &figures.map(|rounds| Figures::medians(&rounds)));
    Ok(())
}

fn report(mode: Mode, rounds: usize, plan: Plan, [baseline, gateway, bare]: &[Figures; 3]) {
    println!(
        "\n{}: medians of {rounds} rounds of {} s, {} connections, {} byte bodies",
        mode.title(),
        plan.span.as_secs(),
        plan.connections,
        plan.body_bytes
    );
    println!("{:<34}{:>12}{:>12}{:>9}{:>12}{:>9}", "", "baseline", "makbuz", "ratio", "no store", "ratio");
    for (((name, base), (_, ours)), (_, bare)) in baseline.rows().into_iter().zip(gateway.rows()).zip(bare.rows()) {
        println!("{name:<34}{base:>12.2}{ours:>12.2}{:>8.2}x{bare:>12.2}{:>8.2}x", ours / base, bare / base);
    }
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name}: {text} is no number")),
        Err(_) => Ok(default),
    }
}
