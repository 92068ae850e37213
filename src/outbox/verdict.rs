//! What became of each message of a batch: pure, so that the client library's trap has its test here.
//!
//! lapin hangs a returned message on whichever confirm completes next. So a confirm's own attachment says nothing about
//! its message: all returns of the batch are gathered behind the barrier and matched by what they say they are.

use std::collections::HashSet;

use super::message::Identity;
use crate::metrics::PublishResult;

/// What the broker said of one delivery tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirm {
    Ack,
    Nack,
    /// The channel or connection ended first.
    Lost,
    /// Nothing in time.
    Timeout,
}

/// What became of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowResult {
    /// Its own confirm came, and it did not come back.
    Confirmed,
    /// The queue is full, or the broker could not take it.
    Nacked,
    /// It came back: no queue, and no alternate exchange, took it.
    Unrouted,
    /// The broker closes the channel over this one message.
    Refused,
    /// Nobody knows; it stays, and goes out again.
    Lost,
    /// Nobody knows, and the broker was silent too long.
    Timeout,
    /// It never left.
    NotSent,
}

impl RowResult {
    /// For `makbuz_publishes_total`; what never left is not counted.
    pub fn counted_as(self) -> Option<PublishResult> {
        Some(match self {
            Self::Confirmed => PublishResult::Confirmed,
            Self::Nacked | Self::Refused => PublishResult::Nacked,
            Self::Unrouted => PublishResult::Unrouted,
            Self::Lost => PublishResult::Lost,
            Self::Timeout => PublishResult::Timeout,
            Self::NotSent => return None,
        })
    }
}

/// One result for each row. A return that fits no row of the batch makes every result unknown.
pub(crate) fn results(sent: &[Identity], confirms: &[Confirm], returned: &[Identity]) -> Vec<RowResult> {
    let known: HashSet<&Identity> = sent.iter().collect();
    if returned.iter().any(|back| !known.contains(back)) {
        return vec![RowResult::Lost; sent.len()];
    }
    let back: HashSet<&Identity> = returned.iter().collect();
    let of = |(row, confirm): (&Identity, &Confirm)| match confirm {
        Confirm::Ack if back.contains(row) => RowResult::Unrouted,
        Confirm::Ack => RowResult::Confirmed,
        Confirm::Nack => RowResult::Nacked,
        Confirm::Lost => RowResult::Lost,
        Confirm::Timeout => RowResult::Timeout,
    };
    sent.iter().zip(confirms).map(of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(n: usize) -> Identity {
        Identity { message_id: format!("m{n}"), routing_key: "billing".to_owned(), attempt: 1 }
    }

    #[test]
    fn a_return_on_a_neighbours_confirm_does_not_confirm_its_own_row() {
        let sent = [row(0), row(1), row(2)];
        // lapin gave message 2 back with the confirm of message 0: positions mean nothing.
        let got = results(&sent, &[Confirm::Ack; 3], &[row(2)]);
        assert_eq!(got, [RowResult::Confirmed, RowResult::Confirmed, RowResult::Unrouted]);
    }

    #[test]
    fn the_same_job_for_another_subscription_or_attempt_is_another_message() {
        let other_key = Identity { routing_key: "mail".to_owned(), ..row(0) };
        let other_attempt = Identity { attempt: 2, ..row(0) };
        let got = results(&[row(0), other_key.clone(), other_attempt], &[Confirm::Ack; 3], &[other_key]);
        assert_eq!(got, [RowResult::Confirmed, RowResult::Unrouted, RowResult::Confirmed]);
    }

    #[test]
    fn a_return_that_nobody_sent_confirms_nothing() {
        assert_eq!(results(&[row(0)], &[Confirm::Ack], &[row(9)]), [RowResult::Lost]);
    }

    proptest! {
        #[test]
        fn only_an_acked_row_that_did_not_come_back_is_confirmed(
            rows in proptest::collection::vec((0_u8..4, any::<bool>()), 0..64),
        ) {
            let sent: Vec<_> = (0..rows.len()).map(row).collect();
            let confirms: Vec<_> = rows.iter().map(|(n, _)| match n {
                0 => Confirm::Ack, 1 => Confirm::Nack, 2 => Confirm::Lost, _ => Confirm::Timeout,
            }).collect();
            let returned: Vec<_> = (0..rows.len()).rev().filter(|n| rows[*n].1).map(row).collect();
            let got = results(&sent, &confirms, &returned);
            for (n, result) in got.iter().enumerate() {
                let right = confirms[n] == Confirm::Ack && !rows[n].1;
                prop_assert_eq!(*result == RowResult::Confirmed, right);
            }
        }
    }
}
