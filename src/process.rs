//! From "accepted" to "done": the scheduler hands out what is due and takes back what ran out of time, the outcomes consumer
//! hears what became of it over AMQP, and the pull functions do both for consumers that ask over HTTP. Decisions are in
//! `model`, their transactions in `store`; here is only when, and with whom.
//!
//! Every loop is a `step()`; `run()` calls it until it is asked to stop. A store's future is never dropped half way.

mod broker;
mod gauges;
mod lost;
mod outcomes;
mod pull;
mod pull_body;
mod reports;
mod scheduler;

pub use broker::{AmqpFeed, BrokerFeeds, BrokerQueues, FeedConfig, open_feed};
pub use gauges::{Gauges, start_metrics};
pub use lost::{LostConfig, LostWatch, QueueLook};
pub use outcomes::{ConsumerConfig, Feed, FeedError, Feeds, Incoming, OutcomeConsumer, Stepped};
pub use pull::{Pull, PullConfig, PullError};
pub use pull_body::{ClaimAnswer, ClaimBody, ClaimedBody, ExtendAnswer, ExtendBody, OutcomeAnswer};
pub use reports::{REPORT_BYTES_MAX, ReportReader, account};
pub use scheduler::{Scheduler, SchedulerConfig, SchedulerStep};

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
