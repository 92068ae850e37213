//! The whole program as its users run it: a child process on real sockets, killed at random, cut off from its broker and
//! from its database, and stopped. What was answered 200 is the truth that everything else is held against.

mod bodies;
mod canary;
mod copies;
mod crash;
mod doubt;
mod examples;
mod outage;
mod outcomes;
mod secrets;
mod stop;

use super::support::broker::Broker;
use super::support::database::{Database, Store};
use super::support::process::Installation;

/// The secret of the source `pay`, and the consumer's token.
const SECRET: &str = "whsec_integration_0123456789";
const TOKEN: &str = "token-of-the-integration-tests";

/// One installation with its store and, for PostgreSQL, its broker.
struct House {
    installation: Installation,
    store: Store,
    /// Dropped after the program that uses them.
    services: Option<(Database, Broker)>,
}

impl House {
    /// The embedded default: SQLite, and a subscription that is claimed.
    fn embedded() -> Self {
        Self::embedded_with("", &[])
    }

    /// The same with more of a configuration, and more variables for it.
    fn embedded_with(more: &str, more_variables: &[(&str, &str)]) -> Self {
        let variables = [&[("PAY_SECRET", SECRET), ("TOKEN", TOKEN)], more_variables].concat();
        let installation = Installation::new(&(config("sqlite://makbuz.db", None) + more), &variables);
        let store = Store::sqlite(installation.folder());
        Self { installation, store, services: None }
    }

    /// Production: PostgreSQL and RabbitMQ; `None` where they are not.
    async fn production() -> Option<Self> {
        let (database, broker) = services().await?;
        let (store_url, amqp_url) = (database.url.clone(), broker.url.clone());
        Some(Self::behind(database, broker, &store_url, &amqp_url).await)
    }

    /// The same with more of a configuration, and more variables for it; `subscriptions` are all that it has then.
    async fn production_with(subscriptions: &[&str], more: &str, more_variables: &[(&str, &str)]) -> Option<Self> {
        let (database, broker) = (Database::create().await?, Broker::find(subscriptions)?);
        let (store_url, amqp_url) = (database.url.clone(), broker.url.clone());
        Some(Self::made(database, broker, [&store_url, &amqp_url], more, more_variables).await)
    }

    /// With other addresses for the program than for the test.
    async fn behind(database: Database, broker: Broker, store_url: &str, amqp_url: &str) -> Self {
        Self::made(database, broker, [store_url, amqp_url], "", &[]).await
    }

    async fn made(
        database: Database,
        broker: Broker,
        [store_url, amqp_url]: [&str; 2],
        more: &str,
        more_variables: &[(&str, &str)],
    ) -> Self {
        let usual = [("PAY_SECRET", SECRET), ("TOKEN", TOKEN), ("STORE_URL", store_url), ("AMQP_URL", amqp_url)];
        let config = config("env:STORE_URL", Some(&broker.prefix)) + more;
        let installation = Installation::new(&config, &[&usual, more_variables].concat());
        installation.migrate().await;
        let store = Store::Postgres(database.url.clone());
        Self { installation, store, services: Some((database, broker)) }
    }

    fn broker(&self) -> &Broker {
        &self.services.as_ref().expect("production has one").1
    }
}

async fn services() -> Option<(Database, Broker)> {
    let database = Database::create().await?;
    Some((database, Broker::find(&["all"])?))
}

/// One source of a provider that signs time and body, one subscription that takes everything.
fn config(store: &str, amqp_prefix: Option<&str>) -> String {
    let amqp = amqp_prefix
        .map(|prefix| format!("[amqp]\nurl = \"env:AMQP_URL\"\nprefix = \"{prefix}\"\n"))
        .unwrap_or_default();
    let target = if amqp_prefix.is_some() { "amqp" } else { "pull" };
    format!(
        r#"
[edge]
listen = "127.0.0.1:0"
answer_max = "2s"
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
{amqp}
[[source]]
name = "pay"
provider = "stripe"
secrets = ["env:PAY_SECRET"]
[[subscription]]
name = "all"
target = "{target}"
[[token]]
name = "consumer"
value = "env:TOKEN"
role = "consumer"
subscriptions = ["all"]
"#
    )
}
