//! The job flows, written once for both backends.

use std::time::Duration;

use super::tx::Tx;
use super::{
    ClaimRequest, ClaimedJob, ConfirmedRow, HandOver, OutcomeReport, OutcomeVerdict, ReplayRequest, ReplayVerdict, StoreError,
};
use crate::model::id::OutboxId;
use crate::model::job::{JobKey, JobReason};
use crate::model::subscription::SubscriptionSet;
use crate::random::Random;

fn missing<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("not merged".to_owned()))
}

macro_rules! stub {
    ($name:ident($($arg:ident: $kind:ty),*) -> $out:ty) => {
        pub(crate) async fn $name(tx: &mut dyn Tx, $($arg: $kind),*) -> Result<$out, StoreError> {
            let _ = (tx, $($arg),*);
            missing()
        }
    };
}

stub!(record_outcomes(reports: &[OutcomeReport], subscriptions: &SubscriptionSet, random: &dyn Random) -> Vec<OutcomeVerdict>);
stub!(claim_jobs(claim: &ClaimRequest, subscriptions: &SubscriptionSet, random: &dyn Random) -> Vec<ClaimedJob>);
stub!(extend_lease(job: &JobKey, attempt: i32, lease: Duration) -> ());
stub!(hand_out_due(limit: u32, subscriptions: &SubscriptionSet, random: &dyn Random) -> u32);
stub!(rescue_expired(limit: u32, subscriptions: &SubscriptionSet, random: &dyn Random) -> u32);
stub!(republish_lost(subscription: &str, older_than: Duration, times: u32, limit: u32, random: &dyn Random) -> u32);
stub!(replay(jobs: &[JobKey], replay: &ReplayRequest, subscriptions: &SubscriptionSet, random: &dyn Random) -> Vec<ReplayVerdict>);
stub!(dismiss(job: &JobKey, actor: &str, why: &str) -> ());
stub!(complete_confirmed(confirmed: &[ConfirmedRow]) -> ());
stub!(return_to_outbox(returned: &[HandOver], delay: Duration, random: &dyn Random) -> ());
stub!(give_up_outbox(rows: &[OutboxId], reason: JobReason, note: &str) -> u64);
stub!(rearm_on_redelivery(keys: &[JobKey], subscriptions: &SubscriptionSet, random: &dyn Random) -> Vec<JobKey>);
