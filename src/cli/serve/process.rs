//! The role `process`: due jobs, reports over AMQP, claims over HTTP.

use std::sync::Arc;

use tokio::sync::watch;

use super::broker::Started;
use super::pull::Served;
use super::{Parts, Role, keep};
use crate::admin::PullApi;
use crate::config::Config;
use crate::model::token::TokenKey;
use crate::process::{
    ConsumerConfig, LostConfig, LostWatch, OutcomeConsumer, Pull, PullConfig, ReportReader, Scheduler, SchedulerConfig,
    start_metrics,
};

/// Starts processing; returns what serves claims, for the listeners.
pub(super) fn start(parts: &Parts, broker: Option<&Started>) -> Option<Arc<dyn PullApi>> {
    if !parts.has(Role::Process) {
        return None;
    }
    start_metrics(&parts.subscriptions);
    start_scheduler(parts);
    if let Some(broker) = broker {
        start_outcomes(parts, broker);
        start_lost_watch(parts, broker);
    }
    Some(start_pull(parts))
}

fn start_scheduler(parts: &Parts) {
    let section = &parts.config.process;
    let config =
        SchedulerConfig { batch_max: section.hand_out_batch, pause: section.tick, ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(config, parts.store.clone(), Arc::clone(&parts.subscriptions));
    let (key, stop) = (parts.key.clone(), parts.lifecycle.stop().soft);
    parts.lifecycle.spawn("scheduler", async move {
        // Not before the store knows of the subscriptions.
        if key.wait(&stop).await.is_some() {
            scheduler.run(stop).await;
        }
    });
}

fn start_outcomes(parts: &Parts, broker: &Started) {
    let (feeds, key, stop) = (broker.feeds(), parts.key.clone(), parts.lifecycle.stop().soft);
    let (store, subscriptions, clock) =
        (Arc::clone(&parts.store), Arc::clone(&parts.subscriptions), Arc::clone(&parts.clock));
    let config = ConsumerConfig::new(keep::quarantine(&parts.config));
    let hold = broker.hold();
    parts.lifecycle.spawn("outcomes", async move {
        let _hold = hold;
        let Some(key) = key.wait(&stop).await else { return };
        let consumer = OutcomeConsumer::new(config, store.clone(), store, ReportReader::new(key), clock);
        consumer.run(feeds, subscriptions, stop).await;
    });
}

fn start_lost_watch(parts: &Parts, broker: &Started) {
    let subscriptions = Arc::clone(&parts.subscriptions);
    let watch = LostWatch::new(
        LostConfig::default(),
        parts.store.clone(),
        broker.queue_look(),
        subscriptions,
        Arc::clone(&parts.clock),
    );
    parts.lifecycle.spawn("lost", watch.run(parts.lifecycle.stop().soft));
}

fn start_pull(parts: &Parts) -> Arc<dyn PullApi> {
    let config = pull_config(&parts.config);
    let (store, subscriptions, clock) =
        (Arc::clone(&parts.store), Arc::clone(&parts.subscriptions), Arc::clone(&parts.clock));
    let (key, stop) = (parts.key.clone(), parts.lifecycle.stop().soft);
    let (ready, served) = watch::channel(None);
    parts.lifecycle.spawn("pull", async move {
        let Some(key) = key.wait(&stop).await else { return };
        let pull = Pull::new(config, store, subscriptions, TokenKey::clone(&key), clock, stop.clone());
        ready.send_replace(Some(Arc::new(pull)));
        stop.cancelled().await;
    });
    Arc::new(Served(served))
}

/// However many claims may wait: half of a listener's connections and places is for those that do not, such as reports and
/// probes.
fn pull_config(config: &Config) -> PullConfig {
    let section = &config.process;
    let half = config.admin.connections_max.min(config.admin.requests_max) / 2;
    PullConfig {
        claim_max: section.claim_max,
        wait_max: section.wait_max,
        waiting_max: section.waiting_max.min(half) as usize,
        lease_default: section.time_limit,
        ..PullConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Environment;

    fn waiting_max(text: &str) -> usize {
        let config = Config::parse(text, "makbuz.toml", Path::new(""), &Environment::default()).unwrap();
        pull_config(&config).waiting_max
    }

    #[test]
    fn claims_that_wait_never_take_more_than_half_of_a_listener() {
        assert_eq!(waiting_max(""), 128);
        assert_eq!(waiting_max("[process]\nwaiting_max = 7\n"), 7);
        assert_eq!(waiting_max("[admin]\nconnections_max = 10\n"), 5);
        assert_eq!(waiting_max("[admin]\nrequests_max = 20\n[process]\nwaiting_max = 5000\n"), 10);
    }
}
