//! The room for bodies that each client's address may take.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Semaphore;

/// The room that the bodies of each address may take, in bytes.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The room for those of one address.
    n_bytes: usize,
    /// A semaphore lives as long as a body holds some of it.
    used: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Shares {
    pub(crate) fn new(n_bytes: usize) -> Self {
        Self { n_bytes, used: Mutex::default() }
    }

    /// Bytes of the room of one address.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The room of this address.
    pub(crate) fn of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = used.get(&address).and_then(Weak::upgrade) {
            return share;
        }
        used.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.n_bytes));
        used.insert(address, Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn the_room_of_an_address_ends_with_its_bodies() {
        let shares = Shares::new(8);
        let held = shares.of(ip("192.0.2.1")).acquire_many_owned(6).await.expect("room");
        assert!(shares.of(ip("192.0.2.1")).try_acquire_many(3).is_err());
        assert!(shares.of(ip("192.0.2.2")).try_acquire_many(8).is_ok());
        drop(held);
        assert!(shares.of(ip("192.0.2.1")).try_acquire_many(8).is_ok());
        drop(shares.of(ip("192.0.2.3")));
        assert!(shares.used.lock().expect("the lock").len() <= 2);
    }
}
