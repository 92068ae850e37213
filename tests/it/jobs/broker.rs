//! Reports over a real broker: acked after the commit, and heard again after the connection was lost.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel};
use makbuz::amqp::{Broker, Roles};
use makbuz::clock::SystemClock;
use makbuz::model::job::{JobKey, JobState};
use makbuz::model::outcome::OutcomeBody;
use makbuz::model::token::TokenKey;
use makbuz::process::{
    BrokerFeeds, BrokerQueues, ConsumerConfig, FeedConfig, OutcomeConsumer, QueueLook, ReportReader,
};
use makbuz::store::{Intake, Jobs, QuarantineBounds, Store};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{delivered, job, publish_all};
use crate::store::harness::billing;
use crate::support::rabbit::Rabbit;

const LONG: Duration = Duration::from_secs(30);

async fn send(channel: &Channel, exchange: &str, body: &[u8]) {
    let publish = channel.basic_publish(
        exchange.into(),
        "billing".into(),
        BasicPublishOptions::default(),
        body,
        BasicProperties::default().with_delivery_mode(2),
    );
    publish.await.expect("sent").await.expect("taken");
}

fn report(key: &TokenKey, of: &JobKey, attempt: i32, outcome: &str) -> Vec<u8> {
    let body = OutcomeBody {
        v: 1,
        receipt: of.receipt.to_string(),
        subscription: of.subscription.clone(),
        attempt: attempt.into(),
        token: key.token(of, attempt),
        outcome: outcome.to_owned(),
        reason: None,
        message: None,
        retry_after_s: None,
        already: None,
    };
    serde_json::to_vec(&body).expect("JSON")
}

/// Waits until the job is there; the store is asked again and again, because nobody tells of another process's commit.
async fn until(store: &Arc<dyn Store>, key: &JobKey, state: JobState) {
    let reached = async {
        while job(store, key).await.state != state {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, reached).await.unwrap_or_else(|_| panic!("the job never became {state:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_over_the_broker_are_heard_before_and_after_a_lost_connection() {
    let Some(rabbit) = Rabbit::with_vhost().await else { return };
    let (store, h) = crate::support::sqlite::fresh_store().await;
    let set = billing();
    let one = delivered(&store, &h, "evt_1", &set, "billing").await;
    let two = delivered(&store, &h, "evt_2", &set, "billing").await;
    publish_all(&store, &set).await;

    let stop = CancellationToken::new();
    let broker = Broker::new(rabbit.config(), vec!["billing".to_owned()], Roles::Consume, Arc::new(|| 0.0));
    let connection = tokio::spawn(broker.clone().run(stop.clone()));
    let key = TokenKey::new(store.token_key().await.expect("a key"));
    let bounds = QuarantineBounds { count: 10, bytes: 10_000, age: Duration::from_secs(3600) };
    let (jobs, intake): (Arc<dyn Jobs>, Arc<dyn Intake>) = (store.clone(), store.clone());
    let reader = ReportReader::new(key.clone());
    let consumer = OutcomeConsumer::new(ConsumerConfig::new(bounds), jobs, intake, reader, Arc::new(SystemClock));
    let feeds = BrokerFeeds::new(broker.consume_link(), FeedConfig::new(rabbit.names().outcomes()));
    let hearing = tokio::spawn(consumer.run(Box::new(feeds), set.clone(), stop.clone()));

    let mut state = broker.state();
    let declared = state.wait_for(|state| state.topology.is_some());
    timeout(LONG, declared).await.expect("in time").expect("the broker is kept");
    let exchange = rabbit.names().outcomes();
    let (_connection, channel) = rabbit.channel().await;
    send(&channel, &exchange, b"no report at all").await;
    send(&channel, &exchange, &report(&TokenKey::new([0; 32]), &one, 1, "completed")).await;
    send(&channel, &exchange, &report(&key, &one, 1, "failed")).await;
    until(&store, &one, JobState::Retrying).await;
    // They are kept after the commit of the good ones.
    let kept = async {
        while store.rejections(10).await.expect("read").len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, kept).await.expect("both bad reports are kept");
    let queues = BrokerQueues::new(broker.consume_link(), rabbit.names());
    assert_eq!(queues.ready("billing").await, Some(0));
    assert_eq!(queues.ready("nobody").await, None);

    let link = broker.consume_link().borrow().clone().expect("connected");
    link.condemn("the test cuts it");
    let (_connection, channel) = rabbit.channel().await;
    send(&channel, &exchange, &report(&key, &one, 1, "completed")).await;
    send(&channel, &exchange, &report(&key, &two, 1, "completed")).await;
    until(&store, &one, JobState::Completed).await;
    until(&store, &two, JobState::Completed).await;

    stop.cancel();
    timeout(LONG, hearing).await.expect("it ends when asked").expect("no panic");
    timeout(LONG, connection).await.expect("it ends when asked").expect("no panic");
    h.finish().await;
}
