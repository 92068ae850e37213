//! The legal moves of a job, in one `match`, and what each of them does to the row.

use super::{Job, JobReason, JobState, Lane};

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// Into the outbox: a new attempt begins.
    HandOut,
    /// Leased by a consumer that asked: a new attempt begins.
    Lease,
    /// A consumer says that it has begun.
    Start,
    /// The effect happened, whenever the report came.
    Complete,
    /// The attempt failed and another follows.
    Retry,
    /// A person has to look.
    Review,
    /// A newer version was completed instead.
    Supersede,
    /// A person closes it unprocessed.
    Dismiss,
    /// A resend, or a person, wants it run again.
    Arm,
    /// As [`Move::Arm`], of a job that had ended or is with a queue: only with a reason.
    ArmAnyway,
    /// The message came back from the broker, or is nowhere, after the job had gone on by its confirm or a `started`.
    TakeBack,
}

impl Move {
    pub const ALL: [Self; 11] = [
        Self::HandOut,
        Self::Lease,
        Self::Start,
        Self::Complete,
        Self::Retry,
        Self::Review,
        Self::Supersede,
        Self::Dismiss,
        Self::Arm,
        Self::ArmAnyway,
        Self::TakeBack,
    ];
}

impl JobState {
    /// The state after a move; `None` where the move is not legal.
    pub fn after(self, made: Move) -> Option<Self> {
        use JobState::{Completed, Dismissed, Pending, Queued, Retrying, Review, Running, Superseded};
        match (self, made) {
            (Pending | Retrying, Move::HandOut) => Some(Queued),
            (Pending | Retrying, Move::Lease) => Some(Running),
            (Queued, Move::Start) => Some(Running),
            // A late `completed` ends these too: the effect is there, whatever we had made of the silence.
            (Queued | Running | Retrying | Review, Move::Complete) => Some(Completed),
            (Queued | Running, Move::Retry) => Some(Retrying),
            (Pending | Queued | Running | Retrying, Move::Review) => Some(Review),
            (Pending | Retrying, Move::Supersede) => Some(Superseded),
            (Review, Move::Dismiss) => Some(Dismissed),
            (Review | Superseded, Move::Arm) => Some(Pending),
            (Completed | Dismissed | Queued | Running, Move::ArmAnyway) => Some(Pending),
            (Completed | Running, Move::TakeBack) => Some(Queued),
            _ => None,
        }
    }
}

impl Job {
    /// Hands the job to the broker: the next attempt begins.
    pub fn handed_out(&self, lane: Lane, now: i64) -> Option<Self> {
        Some(Self { handed_at: Some(now), lane, ..self.begun(Move::HandOut, now)? })
    }

    /// Leases the job to a consumer that asked: the next attempt begins.
    pub fn leased(&self, now: i64, until: i64) -> Option<Self> {
        Some(Self { leased_until: Some(until), ..self.begun(Move::Lease, now)? })
    }

    /// The consumer of a queued job has begun; it has until `until`, if its subscription has a time limit.
    pub fn started(&self, until: Option<i64>) -> Option<Self> {
        Some(Self { leased_until: until, ..self.moved(Move::Start)? })
    }

    /// The effect happened.
    pub fn completed(&self, now: i64) -> Option<Self> {
        Some(Self { finished_at: Some(now), reason: None, fingerprint: None, ..self.moved(Move::Complete)? })
    }

    /// The attempt failed; the next one is due at `at`.
    pub fn retrying(&self, at: i64) -> Option<Self> {
        Some(Self { next_attempt_at: Some(at), ..self.moved(Move::Retry)? })
    }

    /// A person has to look. Jobs with one fingerprint have one cause.
    pub fn in_review(&self, reason: JobReason, cause: Option<&str>, note: Option<String>) -> Option<Self> {
        let fingerprint = match cause {
            Some(cause) => format!("{}:{cause}", reason.code()),
            None => reason.code().to_owned(),
        };
        let note = note.or_else(|| self.note.clone());
        Some(Self { reason: Some(reason), fingerprint: Some(fingerprint), note, ..self.moved(Move::Review)? })
    }

    /// A person closes it unprocessed.
    pub fn dismissed(&self, now: i64, note: String) -> Option<Self> {
        let reason = Some(JobReason::Dismissed);
        Some(Self { finished_at: Some(now), reason, note: Some(note), ..self.moved(Move::Dismiss)? })
    }

    /// Its confirm had completed it, or a consumer had begun, but no queue has the message: it is on its way again, in the
    /// same attempt. Not while a lease runs: that has an end of its own.
    pub fn taken_back(&self) -> Option<Self> {
        if self.leased_until.is_some() {
            return None;
        }
        Some(Self { finished_at: None, ..self.moved(Move::TakeBack)? })
    }

    /// A held receipt's `~intake` job ends because its receipt was let go. No attempt of it ever begins.
    pub fn released(&self, now: i64) -> Self {
        Self {
            state: JobState::Completed,
            reason: Some(JobReason::Released),
            fingerprint: None,
            finished_at: Some(now),
            ..self.clone()
        }
    }

    /// A new series begins, due at once; attempt numbers go on. Not while a lease runs.
    pub fn armed(&self, now: i64) -> Option<Self> {
        let made = match self.state {
            JobState::Completed | JobState::Dismissed | JobState::Queued | JobState::Running => Move::ArmAnyway,
            _ => Move::Arm,
        };
        if self.leased_until.is_some() {
            return None;
        }
        Some(Self {
            series: self.series + 1,
            series_attempts: 0,
            first_attempt_at: None,
            next_attempt_at: Some(now),
            handed_at: None,
            lane: Lane::Fresh,
            reason: None,
            fingerprint: None,
            finished_at: None,
            ..self.moved(made)?
        })
    }

    fn begun(&self, made: Move, now: i64) -> Option<Self> {
        Some(Self {
            attempt: self.attempt + 1,
            series_attempts: self.series_attempts + 1,
            first_attempt_at: if self.series_attempts == 0 { Some(now) } else { self.first_attempt_at },
            ..self.moved(made)?
        })
    }

    /// The state moved, and with it what may only stand in the old one.
    fn moved(&self, made: Move) -> Option<Self> {
        let state = self.state.after(made)?;
        Some(Self { state, leased_until: None, next_attempt_at: None, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_of_states_and_moves() {
        // Columns in the order of `Move::ALL`; a dot is an illegal move, a letter the state after it.
        let table = [
            (JobState::Pending, "q r . . . v s . . . ."),
            (JobState::Queued, ". . r c t v . . . p ."),
            (JobState::Running, ". . . c t v . . . p q"),
            (JobState::Retrying, "q r . c . v s . . . ."),
            (JobState::Completed, ". . . . . . . . . p q"),
            (JobState::Superseded, ". . . . . . . . p . ."),
            (JobState::Review, ". . . c . . . d p . ."),
            (JobState::Dismissed, ". . . . . . . . . p ."),
        ];
        let letter = |state: Option<JobState>| match state {
            None => '.',
            Some(JobState::Pending) => 'p',
            Some(JobState::Queued) => 'q',
            Some(JobState::Running) => 'r',
            Some(JobState::Retrying) => 't',
            Some(JobState::Completed) => 'c',
            Some(JobState::Superseded) => 's',
            Some(JobState::Review) => 'v',
            Some(JobState::Dismissed) => 'd',
        };
        assert_eq!(table.map(|(state, _)| state), JobState::ALL);
        for (state, row) in table {
            let found: Vec<String> = Move::ALL.map(|made| letter(state.after(made)).to_string()).to_vec();
            assert_eq!(found.join(" "), row, "{state:?}");
        }
    }
}
