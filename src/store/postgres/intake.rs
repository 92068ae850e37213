//! What the edge asks of the store.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{PostgresStore, quarantine};
use crate::store::{DeliveryVerdict, Intake, NewDelivery, NewRejection, QuarantineBounds, StoreError};

#[async_trait]
impl Intake for PostgresStore {
    fn submit(
        &self,
        delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError> {
        self.shared.gate.check()?;
        self.shared.queue.push(delivery)
    }

    async fn record_rejections(
        &self,
        rejections: Vec<NewRejection>,
        bounds: QuarantineBounds,
    ) -> Result<(), StoreError> {
        let rejections = Arc::new(rejections);
        self.commands
            .run("record_rejections", move |tx| {
                let rejections = rejections.clone();
                Box::pin(async move {
                    quarantine::record(tx, &rejections).await?;
                    quarantine::trim(tx, bounds).await
                })
            })
            .await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        if self.shared.queue.is_closed() {
            return Err(StoreError::Unavailable("stopping".to_owned()));
        }
        self.shared.gate.ready()
    }
}
