//! What each client has of something that all share, so that one alone cannot have it all: connections, requests at work,
//! bytes of bodies. A client is an address; an IPv6 address is its /64, which one host can fill alone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

/// What all clients have. One that has nothing is not in it, so it is bounded by what there is to be had.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<IpAddr, usize>>);

/// What one request or connection of a client has; given back when dropped.
#[derive(Debug)]
pub(super) struct Part {
    shares: Arc<Shares>,
    client: IpAddr,
    has: usize,
    /// What the client may have in all its parts together.
    max: usize,
}

impl Shares {
    /// A part of `client`'s, empty as yet.
    pub fn of(self: &Arc<Self>, client: IpAddr, max: usize) -> Part {
        let client = match client.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        };
        Part { shares: Arc::clone(self), client, has: 0, max }
    }

    /// One for `client`, unless it has `max` already.
    pub fn one(self: &Arc<Self>, client: IpAddr, max: usize) -> Option<Part> {
        let mut part = self.of(client, max);
        part.grow(1).then_some(part)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.0.lock().expect("not poisoned")
    }
}

impl Part {
    /// Takes `more`, all or nothing; false if that is past the client's share.
    pub fn grow(&mut self, more: usize) -> bool {
        let mut shares = self.shares.lock();
        let has = shares.get(&self.client).copied().unwrap_or(0);
        let fits = has.checked_add(more).filter(|sum| *sum <= self.max);
        if let Some(sum) = fits
            && more > 0
        {
            shares.insert(self.client, sum);
            self.has += more;
        }
        fits.is_some()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut shares = self.shares.lock();
        if let Some(has) = shares.get_mut(&self.client) {
            *has -= self.has;
            if *has == 0 {
                shares.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_own_share_and_gives_it_back() {
        let shares = Arc::new(Shares::default());
        let client: IpAddr = "2001:db8::1".parse().unwrap();
        let first = shares.one(client, 2).unwrap();
        let second = shares.one("2001:db8::ffff".parse().unwrap(), 2).unwrap();
        assert!(shares.one(client, 2).is_none(), "one /64 is one client");
        assert!(shares.one("2001:db8:0:1::1".parse().unwrap(), 2).is_some());
        drop(first);
        assert!(shares.one(client, 2).is_some());
        drop(second);
        assert!(shares.lock().is_empty(), "no entry stays behind");
    }

    #[test]
    fn the_parts_of_one_client_grow_into_one_share() {
        let shares = Arc::new(Shares::default());
        let client: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let (mut a, mut b) = (shares.of(client, 10), shares.of("192.0.2.1".parse().unwrap(), 10));
        assert!(shares.lock().is_empty());
        assert!(a.grow(6) && b.grow(4) && !a.grow(1) && a.grow(0));
        drop(a);
        assert!(b.grow(6) && !b.grow(usize::MAX));
        drop(b);
        assert!(shares.lock().is_empty());
    }
}
