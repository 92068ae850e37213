//! A delivery that waits for its commit. Whoever stops waiting (the answer's limit, a sender that left) leaves the commit
//! alone, and the body's share of the budget stays taken until the commit is answered.

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::body::Share;
use crate::store::{DeliveryVerdict, StoreError};

type Heard = oneshot::Receiver<Result<DeliveryVerdict, StoreError>>;

pub(super) struct Ticket {
    waits: Option<(Heard, Share)>,
    orphans: TaskTracker,
}

/// Why there is no verdict.
#[derive(Debug)]
pub(super) enum NoVerdict {
    /// The limit came first.
    Late,
    Store(StoreError),
}

impl Ticket {
    pub fn new(heard: Heard, share: Share, orphans: &TaskTracker) -> Self {
        Self { waits: Some((heard, share)), orphans: orphans.clone() }
    }

    /// The verdict, if it comes before `deadline`.
    pub async fn wait(mut self, deadline: Instant) -> Result<DeliveryVerdict, NoVerdict> {
        let Some((heard, _)) = &mut self.waits else { return Err(NoVerdict::Late) };
        let Ok(answer) = timeout_at(deadline, heard).await else { return Err(NoVerdict::Late) };
        self.waits = None;
        match answer {
            Ok(verdict) => verdict.map_err(NoVerdict::Store),
            Err(_gone) => Err(NoVerdict::Store(StoreError::UnknownOutcome("the writer went away".to_owned()))),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some((heard, share)) = self.waits.take()
            && let Ok(runtime) = Handle::try_current()
        {
            self.orphans.spawn_on(
                async move {
                    // Nobody is left to answer; what counts is that it is over.
                    let _ = heard.await;
                    drop(share);
                },
                &runtime,
            );
        }
    }
}
