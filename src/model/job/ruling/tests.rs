use super::*;
use crate::model::attempt::Trigger;
use crate::model::filter::Filter;
use crate::model::id::ReceiptId;
use crate::model::job::{JobKey, Lane};
use crate::model::retry::RetryPolicy;
use crate::model::subscription::{CompletesOn, Target};

const NOW: i64 = 1_700_000_000_000_000;

fn subscription() -> Subscription {
    Subscription {
        name: "billing".into(),
        filter: Filter::default(),
        target: Target::Amqp,
        retry: RetryPolicy::preset("standard").expect("a preset"),
        time_limit: None,
        completes_on: CompletesOn::Report,
        rearm: true,
    }
}

/// In its second series, which began with attempt 2 and is at attempt 3.
fn job(state: JobState) -> Job {
    Job {
        key: JobKey { receipt: ReceiptId(uuid::Uuid::nil()), subscription: "billing".into() },
        source: "eu".into(),
        state,
        attempt: 3,
        series: 2,
        series_attempts: 2,
        first_attempt_at: Some(NOW - 10_000_000),
        next_attempt_at: (state == JobState::Retrying).then_some(NOW + 1),
        leased_until: (state == JobState::Running).then_some(NOW + 1),
        handed_at: Some(NOW - 5_000_000),
        lane: Lane::Fresh,
        resource_key: None,
        turn_key: None,
        reason: (state == JobState::Review).then_some(JobReason::Exhausted),
        fingerprint: None,
        assignee: None,
        note: None,
        rearms: 0,
        created_at: NOW - 20_000_000,
        finished_at: state.is_ended().then_some(NOW - 1),
    }
}

fn report(attempt: i32, kind: OutcomeKind) -> Report<'static> {
    Report { attempt, kind, reason: None, message: None, retry_after: None, consumer: "worker" }
}

/// The row that an attempt has in the ordinary course of things.
fn row(job: &Job, attempt: i32) -> Option<Attempt> {
    let open = Attempt { attempt, ..Attempt::begun(job, Trigger::Retry, "billing".into(), NOW - 5_000_000) };
    let under_way = attempt == job.attempt && matches!(job.state, JobState::Queued | JobState::Running);
    match job.state {
        JobState::Running if under_way => Some(Attempt { outcome: Some(OutcomeKind::Started), ..open }),
        _ if under_way || attempt > job.attempt => Some(open),
        JobState::Completed if attempt == job.attempt => {
            Some(Attempt { outcome: Some(OutcomeKind::Completed), ended_at: Some(NOW - 1), ..open })
        }
        _ => Some(Attempt {
            outcome: Some(OutcomeKind::Failed),
            error_class: Some("failed".into()),
            ended_at: Some(NOW - 1),
            ..open
        }),
    }
}

#[test]
fn the_whole_table_of_states_and_reports() {
    const KINDS: [OutcomeKind; 4] =
        [OutcomeKind::Started, OutcomeKind::Completed, OutcomeKind::Failed, OutcomeKind::Rejected];
    // Each cell: started, completed, failed, rejected. A word is the state that the job moves to; `-` is recorded,
    // `=` said before, `?` no such attempt. Columns: attempt 4 (not begun), 3 (under way or the last), 2 (earlier in the
    // series), 1 (of the series before).
    let table = [
        (JobState::Queued, ["? ? ? ?", "running completed retrying review", "- completed = -", "- - = -"]),
        (JobState::Running, ["? ? ? ?", "= completed retrying review", "- completed = -", "- - = -"]),
        (JobState::Retrying, ["? ? ? ?", "- completed = -", "- completed = -", "- - = -"]),
        (JobState::Review, ["? ? ? ?", "- completed = -", "- completed = -", "- - = -"]),
        (JobState::Completed, ["? ? ? ?", "- = - -", "- - = -", "- - = -"]),
        (JobState::Superseded, ["? ? ? ?", "- - = -", "- - = -", "- - = -"]),
        (JobState::Dismissed, ["? ? ? ?", "- - = -", "- - = -", "- - = -"]),
        // Armed again and not handed out yet: nothing of the series before moves it.
        (JobState::Pending, ["? ? ? ?", "- - = -", "- - = -", "- - = -"]),
    ];
    for (state, cells) in table {
        let mut job = job(state);
        if state == JobState::Pending {
            job.series_attempts = 0;
        }
        for (attempt, cell) in [4, 3, 2, 1].into_iter().zip(cells) {
            let found = KINDS.map(|kind| {
                let row = row(&job, attempt);
                match rule(&job, row.as_ref(), &report(attempt, kind), Some(&subscription()), NOW, 0.5) {
                    Ruling::NoSuchAttempt => "?",
                    Ruling::Already => "=",
                    Ruling::Recorded(_) => "-",
                    Ruling::Applied { job, .. } => job.state.as_str(),
                }
            });
            assert_eq!(found.join(" "), cell, "{state:?}, attempt {attempt}");
        }
    }
}

#[test]
fn the_consumers_wish_sets_the_next_try_and_its_words_are_kept() {
    let job = job(JobState::Queued);
    let said = Report {
        reason: Some("db_away"),
        message: Some("connection refused"),
        retry_after: Some(Duration::from_secs(600)),
        ..report(3, OutcomeKind::Failed)
    };
    let Ruling::Applied { job, attempt } = rule(&job, None, &said, Some(&subscription()), NOW, 0.0) else {
        panic!("applied")
    };
    let due = job.next_attempt_at.expect("due");
    // 30 s is the schedule's wait; its jitter lies on the wish.
    assert_eq!(due - NOW, 603_000_000);
    assert_eq!(attempt.next_at, Some(due));
    assert_eq!(attempt.error_text.as_deref(), Some("db_away: connection refused"));
    assert_eq!((attempt.error_class.as_deref(), attempt.consumer.as_deref()), (Some("failed"), Some("worker")));
    assert_eq!(attempt.started_at, NOW - 5_000_000, "begun when it was handed out");
}

#[test]
fn jobs_in_review_of_one_cause_have_one_fingerprint() {
    let rejected = Report { reason: Some("unknown_order"), ..report(3, OutcomeKind::Rejected) };
    let Ruling::Applied { job, .. } = rule(&job(JobState::Queued), None, &rejected, Some(&subscription()), NOW, 0.0)
    else {
        panic!("applied")
    };
    assert_eq!((job.reason, job.fingerprint.as_deref()), (Some(JobReason::Rejected), Some("rejected:unknown_order")));
}

#[test]
fn each_different_late_report_is_kept_once_and_within_the_bound() {
    let job = job(JobState::Review);
    let mut row = row(&job, 3).expect("a row");
    let long = "x".repeat(TEXT_BYTES_MAX);
    for (message, recorded) in
        [("a", true), ("b", true), ("a", false), ("b", false), (long.as_str(), true), ("c", false)]
    {
        let late = Report { message: Some(message), ..report(3, OutcomeKind::Rejected) };
        match rule(&job, Some(&row), &late, Some(&subscription()), NOW, 0.0) {
            Ruling::Recorded(Some(kept)) if recorded => row = kept,
            Ruling::Already if !recorded => {}
            other => panic!("{message}: {other:?}"),
        }
    }
    assert!(row.error_text.as_deref().is_some_and(|text| text.starts_with("late rejected: a\nlate rejected: b\n")));
    assert!(row.error_text.is_some_and(|text| text.len() <= TEXT_BYTES_MAX));
}
