//! Reports of consumers.

use std::collections::BTreeSet;

use super::super::tx::Tx;
use super::apply;
use super::desk::Desk;
use crate::model::job::{INTAKE, JobKey, JobState, Report, Ruling, rule};
use crate::model::subscription::SubscriptionSet;
use crate::random::Random;
use crate::store::{OutcomeReport, OutcomeVerdict, StoreError};

/// Applies reports in order, each by the rules of [`rule`]; their tokens were checked by the caller.
pub(crate) async fn record_outcomes(
    tx: &mut dyn Tx,
    reports: &[OutcomeReport],
    subscriptions: &SubscriptionSet,
    random: &dyn Random,
) -> Result<Vec<OutcomeVerdict>, StoreError> {
    let now = tx.now().await?;
    // No consumer stands behind the reserved subscription.
    let keys: Vec<JobKey> =
        reports.iter().map(|report| &report.key).filter(|key| key.subscription != INTAKE).cloned().collect();
    let mut desk = Desk::lock(tx, &keys).await?;
    let mut verdicts = Vec::with_capacity(reports.len());
    let mut reporting = BTreeSet::new();
    for report in reports {
        let verdict = record(&mut desk, report, subscriptions, now, random);
        let known = !matches!(verdict, OutcomeVerdict::NoSuchJob | OutcomeVerdict::NoSuchAttempt);
        if known && !report.consumer.starts_with('~') {
            reporting.insert(report.key.subscription.as_str());
        }
        verdicts.push(verdict);
    }
    for subscription in reporting {
        tx.note_report(subscription).await?;
    }
    apply(tx, &desk.into_writes()).await?;
    Ok(verdicts)
}

fn record(
    desk: &mut Desk,
    report: &OutcomeReport,
    subscriptions: &SubscriptionSet,
    now: i64,
    random: &dyn Random,
) -> OutcomeVerdict {
    let Some(folder) = desk.folder(&report.key) else { return OutcomeVerdict::NoSuchJob };
    let facts = Report {
        attempt: report.attempt,
        kind: report.kind,
        reason: report.reason.as_deref(),
        message: report.message.as_deref(),
        retry_after: report.retry_after,
        consumer: &report.consumer,
    };
    let subscription = subscriptions.find(&report.key.subscription).map(AsRef::as_ref);
    let row = folder.row(report.attempt);
    match rule(&folder.job, row, &facts, subscription, now, random.next_fraction()) {
        Ruling::NoSuchAttempt => OutcomeVerdict::NoSuchAttempt,
        Ruling::Already => OutcomeVerdict::Already,
        Ruling::Recorded(attempt) => {
            if let Some(attempt) = attempt {
                folder.keep(attempt);
            }
            OutcomeVerdict::Recorded
        }
        Ruling::Applied { job, attempt } => {
            if job.state == JobState::Completed {
                folder.withdraw();
            }
            let state = job.state;
            folder.job = job;
            folder.keep(attempt);
            OutcomeVerdict::Applied(state)
        }
    }
}
