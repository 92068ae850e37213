//! Which shards this relay holds, by lease. Two holders at once make duplicates, never losses; the lease is kept so that
//! they are rare.

use std::time::Duration;

use tokio::time::Instant;

use super::held::Held;
use crate::store::{Outbox, SHARDS, StoreError};

pub(crate) struct Shards {
    name: String,
    lease: Duration,
    renew_every: Duration,
    /// Those to work on; empty while no lease is certain.
    active: Vec<u8>,
    /// Beyond the fair share: given back as soon as nothing of them is in hand.
    leaving: Vec<u8>,
    until: Instant,
    renew_at: Instant,
}

impl Shards {
    pub fn new(name: String, lease: Duration, renew_every: Duration) -> Self {
        let now = Instant::now();
        Self { name, lease, renew_every, active: Vec::new(), leaving: Vec::new(), until: now, renew_at: now }
    }

    /// Shards to work on now; none once the lease has run out by our own clock.
    pub fn active(&self, now: Instant) -> &[u8] {
        if now < self.until { &self.active } else { &[] }
    }

    pub fn renew_at(&self) -> Instant {
        self.renew_at
    }

    /// Announces the relay, renews and takes shards when it is time.
    pub async fn keep(&mut self, outbox: &dyn Outbox, held: &Held) {
        let now = Instant::now();
        if now >= self.renew_at {
            self.renew_at = now + self.renew_every;
            match self.renew(outbox).await {
                // Counted from before the call: the store's lease began later.
                Ok(all) => self.divide(all, now + self.lease),
                Err(error) => {
                    tracing::warn!(error.code = error.code(), error = %error, "the relay's shards could not be renewed");
                }
            }
        }
        held.set_shards(self.active(Instant::now()));
    }

    /// Gives back what is beyond the share and no longer in hand.
    pub async fn let_leave(&mut self, outbox: &dyn Outbox, held: &Held) {
        let free: Vec<u8> = self.leaving.iter().copied().filter(|shard| !held.holds_any_of(*shard)).collect();
        if free.is_empty() {
            return;
        }
        if let Err(error) = outbox.release_shards(&self.name, &free).await {
            tracing::warn!(error.code = error.code(), error = %error, "shards could not be given back");
            return;
        }
        self.leaving.retain(|shard| !free.contains(shard));
    }

    /// Gives everything back.
    pub async fn release_all(&mut self, outbox: &dyn Outbox) {
        let all: Vec<u8> = self.active.drain(..).chain(self.leaving.drain(..)).collect();
        if !all.is_empty()
            && let Err(error) = outbox.release_shards(&self.name, &all).await
        {
            tracing::warn!(error.code = error.code(), error = %error, "shards could not be given back; their lease will end");
        }
    }

    async fn renew(&self, outbox: &dyn Outbox) -> Result<(Vec<u8>, usize), StoreError> {
        let alive = outbox.announce_relay(&self.name, self.lease).await?;
        let share = fair_share(alive);
        Ok((outbox.hold_shards(&self.name, share, self.lease).await?, usize::try_from(share).unwrap_or(usize::MAX)))
    }

    fn divide(&mut self, (mut all, share): (Vec<u8>, usize), until: Instant) {
        all.sort_unstable();
        // What is leaving keeps leaving; beyond it, the highest go.
        let (mut leaving, mut active): (Vec<u8>, Vec<u8>) =
            all.into_iter().partition(|shard| self.leaving.contains(shard));
        while active.len() > share {
            leaving.extend(active.pop());
        }
        while active.len() < share {
            // The others are fewer than we thought: keep it after all.
            let Some(back) = leaving.pop() else { break };
            active.push(back);
        }
        active.sort_unstable();
        self.active = active;
        self.leaving = leaving;
        self.until = until;
    }
}

/// ⌈32 / alive⌉.
fn fair_share(alive: u32) -> u32 {
    u32::from(SHARDS).div_ceil(alive.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> Shards {
        Shards::new("a".to_owned(), Duration::from_secs(5), Duration::from_secs(1))
    }

    #[test]
    fn the_shares_of_all_relays_cover_every_shard() {
        for alive in 1..=40 {
            assert!(fair_share(alive) * alive >= u32::from(SHARDS), "{alive}");
        }
        assert_eq!([fair_share(0), fair_share(1), fair_share(2), fair_share(3)], [32, 32, 16, 11]);
    }

    #[test]
    fn what_is_beyond_the_share_leaves_and_comes_back_if_the_share_grows() {
        let mut shards = shards();
        let until = Instant::now() + Duration::from_secs(5);
        shards.divide(((0..32).collect(), 32), until);
        assert_eq!(shards.active.len(), 32);
        shards.divide(((0..32).collect(), 16), until);
        assert_eq!((shards.active.len(), shards.leaving.len()), (16, 16));
        shards.divide(((0..32).collect(), 16), until);
        assert_eq!((shards.active.len(), shards.leaving.len()), (16, 16), "the same ones keep leaving");
        shards.divide(((0..16).collect(), 16), until);
        assert_eq!((shards.active.len(), shards.leaving.len()), (16, 0));
        shards.divide(((0..32).collect(), 32), until);
        assert_eq!((shards.active.len(), shards.leaving.len()), (32, 0));
    }

    #[test]
    fn nothing_is_worked_on_past_the_lease() {
        let mut shards = shards();
        let until = Instant::now() + Duration::from_secs(5);
        shards.divide((vec![1, 2], 32), until);
        assert_eq!(shards.active(until - Duration::from_millis(1)), [1, 2]);
        assert!(shards.active(until).is_empty());
    }
}
