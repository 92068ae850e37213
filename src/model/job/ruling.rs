//! What a report makes of a job: decided here, without a store, a clock or a broker.

use std::time::Duration;

use super::{Job, JobReason, JobState};
use crate::model::attempt::{Attempt, NO_OUTCOME, queue_target};
use crate::model::outcome::{OutcomeKind, TEXT_BYTES_MAX, bounded, words};
use crate::model::retry::Next;
use crate::model::subscription::Subscription;

/// A report, as far as the decision looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    pub attempt: i32,
    pub kind: OutcomeKind,
    pub reason: Option<&'a str>,
    pub message: Option<&'a str>,
    pub retry_after: Option<Duration>,
    pub consumer: &'a str,
}

/// What becomes of the report, and what is to be written.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one lives for a moment, for each report")]
pub enum Ruling {
    /// The attempt has not begun.
    NoSuchAttempt,
    /// Said before, word for word.
    Already,
    /// Only the history changes, if anything.
    Recorded(Option<Attempt>),
    /// The job moves. After a `completed`, hand-overs of the job that still wait are withdrawn.
    Applied { job: Job, attempt: Attempt },
}

/// How an attempt of a job that is under way ended without success.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// The metric's reason; becomes `error_class`.
    pub class: &'a str,
    /// What groups jobs of one cause, beside the reason.
    pub cause: Option<&'a str>,
    pub retry_after: Option<Duration>,
}

/// Rules on a report. `row` is the attempt's row if it has one; `subscription` is absent once it left the configuration.
pub fn rule(
    job: &Job,
    row: Option<&Attempt>,
    report: &Report<'_>,
    subscription: Option<&Subscription>,
    now: i64,
    random_fraction: f64,
) -> Ruling {
    if report.attempt < 1 || report.attempt > job.attempt {
        return Ruling::NoSuchAttempt;
    }
    if let Some(row) = row.filter(|row| !row.is_open()) {
        return rule_on_ended(job, row, report, now);
    }
    let target = || queue_target(&job.key.subscription, job.lane);
    let row = row.cloned().unwrap_or_else(|| Attempt::unwritten(job, report.attempt, target()));
    if report.kind == OutcomeKind::Started {
        return rule_on_start(job, row, report, subscription, now);
    }

    let under_way = report.attempt == job.attempt && matches!(job.state, JobState::Queued | JobState::Running);
    let mut ended = ended(row, report, now);
    match report.kind {
        OutcomeKind::Completed => {
            ended.late = !under_way;
            let completes = job.is_current_series(report.attempt);
            match job.completed(now).filter(|_| completes) {
                Some(job) => Ruling::Applied { job, attempt: ended },
                None => Ruling::Recorded(Some(ended)),
            }
        }
        _ if !under_way => {
            ended.late = true;
            Ruling::Recorded(Some(ended))
        }
        OutcomeKind::Rejected => match job.in_review(JobReason::Rejected, report.reason, None) {
            Some(job) => Ruling::Applied { job, attempt: ended },
            None => Ruling::Recorded(Some(ended)),
        },
        OutcomeKind::Failed | OutcomeKind::Started => {
            let ending = Ending { class: "failed", cause: report.reason, retry_after: report.retry_after };
            match end_failed(job, ended, &ending, subscription, now, random_fraction) {
                Some((job, attempt)) => Ruling::Applied { job, attempt },
                None => Ruling::NoSuchAttempt,
            }
        }
    }
}

/// Ends the attempt that is under way as failed: the job is due again, or has used up its tries and waits for a person.
/// `None` if no attempt is under way.
pub fn end_failed(
    job: &Job,
    row: Attempt,
    ending: &Ending<'_>,
    subscription: Option<&Subscription>,
    now: i64,
    random_fraction: f64,
) -> Option<(Job, Attempt)> {
    let tries = u32::try_from(job.series_attempts).unwrap_or(u32::MAX);
    let first = job.first_attempt_at.unwrap_or(now);
    let next = subscription.map_or(Next::Exhausted, |subscription| {
        subscription.retry.next(tries, first, now, ending.retry_after, random_fraction)
    });
    let mut attempt = Attempt {
        ended_at: Some(now),
        outcome: Some(OutcomeKind::Failed),
        error_class: Some(ending.class.to_owned()),
        ..row
    };
    let after = match next {
        Next::After(wait) => {
            let at = now.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
            attempt.next_at = Some(at);
            job.retrying(at)?
        }
        Next::Exhausted => {
            let note = subscription.is_none().then(|| "the subscription is no longer configured".to_owned());
            job.in_review(JobReason::Exhausted, ending.cause.or(Some(ending.class)), note)?
        }
    };
    Some((after, attempt))
}

/// The attempt had its ending. Only a `completed` changes anything more than the history.
fn rule_on_ended(job: &Job, row: &Attempt, report: &Report<'_>, now: i64) -> Ruling {
    if report.kind == OutcomeKind::Started {
        return Ruling::Recorded(None);
    }
    let said = words(report.reason, report.message);
    if row.outcome == Some(report.kind) && row.error_class.as_deref() != Some(NO_OUTCOME) && row.error_text == said {
        return Ruling::Already;
    }
    if report.kind == OutcomeKind::Completed && row.outcome != Some(OutcomeKind::Completed) {
        let completes = job.is_current_series(report.attempt);
        if let Some(job) = job.completed(now).filter(|_| completes) {
            let attempt = Attempt {
                outcome: Some(OutcomeKind::Completed),
                ended_at: Some(now),
                late: true,
                next_at: None,
                error_text: appended(row, report, said),
                consumer: Some(bounded(report.consumer, CONSUMER_BYTES_MAX)),
                ..row.clone()
            };
            return Ruling::Applied { job, attempt };
        }
    }
    match appended(row, report, said) {
        text if text == row.error_text => Ruling::Already,
        error_text => Ruling::Recorded(Some(Attempt { late: true, error_text, ..row.clone() })),
    }
}

fn rule_on_start(
    job: &Job,
    row: Attempt,
    report: &Report<'_>,
    subscription: Option<&Subscription>,
    now: i64,
) -> Ruling {
    if row.outcome == Some(OutcomeKind::Started) {
        return Ruling::Already;
    }
    let attempt = Attempt {
        outcome: Some(OutcomeKind::Started),
        started_at: now,
        consumer: Some(bounded(report.consumer, CONSUMER_BYTES_MAX)),
        error_class: None,
        ..row
    };
    let limit = subscription.and_then(|subscription| subscription.time_limit);
    let until = limit.map(|limit| now.saturating_add(i64::try_from(limit.as_micros()).unwrap_or(i64::MAX)));
    match job.started(until).filter(|_| report.attempt == job.attempt) {
        Some(job) => Ruling::Applied { job, attempt },
        None => Ruling::Recorded(Some(attempt)),
    }
}

fn ended(row: Attempt, report: &Report<'_>, now: i64) -> Attempt {
    let class = match report.kind {
        OutcomeKind::Failed | OutcomeKind::Rejected => Some(report.kind.as_str().to_owned()),
        OutcomeKind::Started | OutcomeKind::Completed => None,
    };
    Attempt {
        ended_at: Some(now),
        outcome: Some(report.kind),
        error_class: class,
        error_text: words(report.reason, report.message),
        consumer: Some(bounded(report.consumer, CONSUMER_BYTES_MAX)),
        ..row
    }
}

/// The row's text with one line more for a report that came after the ending; each different report is kept once.
fn appended(row: &Attempt, report: &Report<'_>, said: Option<String>) -> Option<String> {
    let line = match said {
        Some(said) => format!("late {}: {said}", report.kind.as_str()),
        None => format!("late {}", report.kind.as_str()),
    };
    let Some(before) = &row.error_text else { return Some(bounded(&line, TEXT_BYTES_MAX)) };
    if before.ends_with(&line) || before.contains(&format!("{line}\n")) || before.len() >= TEXT_BYTES_MAX {
        return Some(before.clone());
    }
    Some(bounded(&format!("{before}\n{line}"), TEXT_BYTES_MAX))
}

const CONSUMER_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests;
