//! Dead letters. One that a consumer or the delivery limit put there is a failed attempt, if it is the current one; one
//! that merely expired, or fell out of a queue that was too short, is published again without an attempt.

use std::sync::Arc;
use std::time::Duration;

use lapin::message::Delivery;

use super::consume::consume;
use super::message::{read_death, read_hand_over};
use super::{Parts, RelayConfig, Stop};
use crate::amqp::{Broker, Names};
use crate::metrics::{self, DeadLetter};
use crate::model::attempt::BY_BROKER;
use crate::model::outcome::OutcomeKind;
use crate::store::{HandOver, OutcomeReport, OutcomeVerdict, StoreError};

/// Consumes `dead` until it is stopped.
pub(crate) async fn run(config: &RelayConfig, parts: Parts, broker: &Broker, stop: Stop) {
    let names = broker.config().names();
    let queue = names.dead();
    let ward = Ward { parts, names, delay: config.probe_every };
    consume(broker.consume_link(), queue, stop, |batch| ward.commit(batch)).await;
}

/// What a dead letter asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Case {
    Failed(OutcomeReport),
    /// Publish again, after the delay if true: its queue was too short.
    Again(HandOver, bool),
    NotOurs,
}

struct Ward {
    parts: Parts,
    names: Names,
    delay: Duration,
}

impl Ward {
    async fn commit(&self, batch: Arc<Vec<Delivery>>) -> bool {
        let (mut failed, mut now, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let mut unknown = 0;
        for delivery in batch.iter() {
            let hand_over = read_hand_over(&delivery.properties, delivery.routing_key.as_str());
            match classify(hand_over, read_death(&delivery.properties), &self.names) {
                Case::Failed(report) => failed.push(report),
                Case::Again(hand_over, false) => now.push(hand_over),
                Case::Again(hand_over, true) => later.push(hand_over),
                Case::NotOurs => {
                    unknown += 1;
                    let (key, bytes) = (delivery.routing_key.as_str(), delivery.data.len());
                    tracing::warn!(key, bytes, "a dead letter is not one of our jobs");
                }
            }
        }
        let again = now.len() + later.len();
        match self.record(failed, &now, &later).await {
            Ok((recorded, missed)) => {
                metrics::dead_letters(DeadLetter::Failed, recorded);
                metrics::dead_letters(DeadLetter::Republished, u64::try_from(again).unwrap_or(0));
                metrics::dead_letters(DeadLetter::Unknown, unknown + missed);
                true
            }
            Err(error) => {
                tracing::warn!(error.code = error.code(), error = %error, "dead letters wait for the store");
                false
            }
        }
    }

    /// Commits all of it; a second time does no harm. Returns how many reports found their attempt, and how many not.
    async fn record(
        &self,
        failed: Vec<OutcomeReport>,
        now: &[HandOver],
        later: &[HandOver],
    ) -> Result<(u64, u64), StoreError> {
        for (rows, delay) in [(now, Duration::ZERO), (later, self.delay)] {
            if !rows.is_empty() {
                self.parts.outbox.return_to_outbox(rows, delay).await?;
            }
        }
        let (mut recorded, mut missed) = (0, 0);
        if !failed.is_empty() {
            let keys: Vec<_> = failed.iter().map(|report| (report.key.clone(), report.attempt)).collect();
            let verdicts = self.parts.jobs.record_outcomes(failed, Arc::clone(&self.parts.subscriptions)).await?;
            for ((key, attempt), verdict) in keys.into_iter().zip(verdicts) {
                if matches!(verdict, OutcomeVerdict::NoSuchJob | OutcomeVerdict::NoSuchAttempt) {
                    missed += 1;
                    tracing::warn!(receipt.id = %key.receipt, subscription = key.subscription, attempt.number = attempt,
                        "a dead letter belongs to no job that is known");
                } else {
                    recorded += 1;
                }
            }
        }
        Ok((recorded, missed))
    }
}

fn classify(hand_over: Option<HandOver>, death: Option<(String, String)>, names: &Names) -> Case {
    let Some(hand_over) = hand_over else { return Case::NotOurs };
    let (queue, reason) = death.unwrap_or_default();
    if reason == "expired" {
        return Case::Again(hand_over, false);
    }
    // It never reached a consumer.
    if reason == "maxlen" || queue == names.unrouted() {
        return Case::Again(hand_over, true);
    }
    Case::Failed(OutcomeReport {
        key: hand_over.key,
        attempt: hand_over.attempt,
        kind: OutcomeKind::Failed,
        reason: Some("dead_letter".to_owned()),
        message: Some(format!("{} from {}", if reason.is_empty() { "dead-lettered" } else { &reason }, queue)),
        retry_after: None,
        consumer: BY_BROKER.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attempt::Trigger;
    use crate::model::id::ReceiptId;
    use crate::model::job::{JobKey, Lane};

    fn hand_over() -> HandOver {
        let receipt: ReceiptId = "01890000-0000-7000-8000-000000000001".parse().expect("an id");
        let key = JobKey { receipt, subscription: "billing".to_owned() };
        HandOver { key, attempt: 3, lane: Lane::Fresh, trigger: Trigger::Retry }
    }

    fn death(queue: &str, reason: &str) -> Option<(String, String)> {
        Some((queue.to_owned(), reason.to_owned()))
    }

    #[test]
    fn only_what_a_consumer_did_is_a_failed_attempt() {
        let names = Names::new("makbuz");
        for reason in ["rejected", "delivery_limit"] {
            let Case::Failed(report) = classify(Some(hand_over()), death("makbuz.billing", reason), &names) else {
                panic!("{reason} is a failure");
            };
            assert_eq!((report.attempt, report.kind), (3, OutcomeKind::Failed));
        }
        let again = classify(Some(hand_over()), death("makbuz.billing", "expired"), &names);
        assert_eq!(again, Case::Again(hand_over(), false));
        let short = classify(Some(hand_over()), death("makbuz.billing", "maxlen"), &names);
        assert_eq!(short, Case::Again(hand_over(), true));
        let ours = classify(Some(hand_over()), death("makbuz.unrouted", "delivery_limit"), &names);
        assert_eq!(ours, Case::Again(hand_over(), true));
        assert_eq!(classify(None, death("makbuz.billing", "rejected"), &names), Case::NotOurs);
    }
}
