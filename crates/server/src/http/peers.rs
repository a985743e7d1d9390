//! The clients at the other end of connections: their addresses, also behind proxies, and how many connections each
//! has.

use axum::http::HeaderMap;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// The header to which each proxy appends the address that it was connected from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    address: IpAddr,
    /// The proxies that are believed.
    proxies: Arc<[IpNet]>,
}

impl Peer {
    pub(crate) fn new(address: IpAddr, proxies: &Arc<[IpNet]>) -> Self {
        Self { address: address.to_canonical(), proxies: proxies.clone() }
    }

    /// The address whose share this connection counts to; `None` for a trusted proxy, which has
    /// the connections of many clients.
    pub(crate) fn counted(&self) -> Option<IpAddr> {
        (!self.trusts(self.address)).then(|| network(self.address))
    }

    /// The address whose share a request with these headers counts to: the last one of
    /// `X-Forwarded-For` that is no trusted proxy, if a trusted proxy sent it. `None` if such a
    /// proxy names nobody.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        if !self.trusts(self.address) {
            return Some(network(self.address));
        }
        let lines = headers.get_all(FORWARDED_FOR);
        let lines = lines.iter().map(|line| line.to_str().unwrap_or_default());
        let mut hops: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
        hops.retain(|hop| !hop.is_empty());
        for hop in hops.into_iter().rev() {
            match parse(hop) {
                Some(address) if self.trusts(address) => {}
                Some(address) => return Some(network(address)),
                // The proxy did not write this, so nothing before it is believed either.
                None => return Some(self.address),
            }
        }
        None
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|range| range.contains(&address))
    }
}

/// An address, with or without a port.
fn parse(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let address = bare.parse().ok();
    let address = address.or_else(|| hop.parse().ok().map(|address: SocketAddr| address.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

/// An address of IPv4, or the network of one of IPv6: whoever has one address of such a network mostly has all.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

/// How many connections there are from each address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection among those from its address.
#[derive(Debug)]
pub(crate) struct Place {
    addresses: Addresses,
    of: IpAddr,
}

impl Addresses {
    /// Counts a connection, unless there are as many from its address as may be.
    pub(crate) fn enter(&self, of: IpAddr, most: usize) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&of).copied().unwrap_or(0);
        if count >= most {
            return None;
        }
        counts.insert(of, count + 1);
        Some(Place { addresses: self.clone(), of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn peer(address: &str) -> Peer {
        let proxies = ["10.0.0.0/8", "fd00::1/128"].map(|range| range.parse().expect("a range"));
        Peer::new(ip(address), &Arc::from(proxies.to_vec()))
    }

    #[test]
    fn connections_are_counted_by_address() {
        let addresses = Addresses::default();
        let enter = |text: &str| {
            addresses.enter(Peer::new(ip(text), &Arc::default()).counted().expect("a client"), 2)
        };
        let (first, second) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(first.is_some() && second.is_some() && enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some());
        drop(second);
        assert!(enter("10.0.0.1").is_some());
        // A network of IPv6 counts as one.
        let v6 = (enter("2001:db8::1"), enter("2001:db8::ffff:2"));
        assert!(v6.0.is_some() && v6.1.is_some() && enter("2001:db8::3").is_none());
        assert!(enter("2001:db8:0:1::1").is_some());
        drop((first, v6));
        assert!(addresses.0.lock().expect("the lock").is_empty());
    }

    #[test]
    fn a_trusted_proxy_names_the_client() {
        let client = |address: &str, lines: &[&str]| {
            let headers = lines.iter().map(|line| {
                (FORWARDED_FOR.parse().expect("a name"), line.parse().expect("a value"))
            });
            peer(address).client(&headers.collect())
        };
        assert_eq!(peer("10.1.2.3").counted(), None);
        assert_eq!(peer("192.0.2.1").counted(), Some(ip("192.0.2.1")));
        for (lines, want) in [
            (&[][..], None),
            (&["10.0.0.9"], None),
            (&["192.0.2.7"], Some("192.0.2.7")),
            (&["192.0.2.7:4711"], Some("192.0.2.7")),
            (&["[2001:db8::5]:80"], Some("2001:db8::")),
            (&["[2001:db8::5]"], Some("2001:db8::")),
            (&["198.51.100.1, 192.0.2.7,10.0.0.9"], Some("192.0.2.7")),
            (&["198.51.100.1", "192.0.2.7", "10.0.0.9, fd00::1"], Some("192.0.2.7")),
            (&["198.51.100.1, somebody"], Some("10.1.2.3")),
        ] {
            assert_eq!(client("10.1.2.3", lines), want.map(ip), "{lines:?}");
            assert_eq!(client("::ffff:10.1.2.3", lines), want.map(ip), "{lines:?}");
            // The header of anybody else says nothing.
            assert_eq!(client("192.0.2.1", lines), Some(ip("192.0.2.1")), "{lines:?}");
        }
    }
}
