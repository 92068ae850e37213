//! Who is at the other end: the TCP peer, or, behind a proxy that we were told to trust, the address that it names.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// An address block of `trusted_proxies`: `10.0.0.0/8`, `::1`, `fd00::/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text that is no address block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address or address block (like 10.0.0.0/8)")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong())?
            }
            Some(_) => return Err(wrong()),
        };
        if prefix > longest { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.prefix);
                own.to_bits().checked_shr(shift) == other.to_bits().checked_shr(shift)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - u32::from(self.prefix);
                own.to_bits().checked_shr(shift) == other.to_bits().checked_shr(shift)
            }
            _ => false,
        }
    }
}

/// Which header our proxies write. The other one is never read: a proxy hands on what a stranger put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardedHeader {
    #[default]
    XForwardedFor,
    Forwarded,
}

/// The proxies whose word is taken for the client's address.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    pub networks: Vec<Network>,
    pub header: ForwardedHeader,
}

impl TrustedProxies {
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The client's address: from the right, the first that is no trusted proxy. What does not parse ends the walk.
    pub fn client(&self, tcp_peer: SocketAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = tcp_peer.ip().to_canonical();
        if !self.trusts(client) {
            return client;
        }
        let name = match self.header {
            ForwardedHeader::XForwardedFor => X_FORWARDED_FOR,
            ForwardedHeader::Forwarded => FORWARDED,
        };
        let lines: Vec<&str> = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("")).collect();
        for hop in lines.iter().flat_map(|line| line.split(',')).rev() {
            let node = match self.header {
                ForwardedHeader::XForwardedFor => Some(hop),
                ForwardedHeader::Forwarded => forwarded_for(hop),
            };
            let Some(address) = node.and_then(parse_node) else { break };
            client = address;
            if !self.trusts(client) {
                break;
            }
        }
        client
    }
}

/// The `for` of one `Forwarded` element, without its quotes.
fn forwarded_for(element: &str) -> Option<&str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    })
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:443`.
fn parse_node(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            let port = after.strip_prefix(':');
            if !after.is_empty() && port.is_none_or(|port| port.parse::<u16>().is_err()) {
                return None;
            }
            IpAddr::V6(inside.parse::<Ipv6Addr>().ok()?)
        }
        None => text.parse::<IpAddr>().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))?,
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(header: ForwardedHeader) -> TrustedProxies {
        let networks = ["10.0.0.0/8", "::1"].iter().map(|text| text.parse().unwrap()).collect();
        TrustedProxies { networks, header }
    }

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, line.parse().unwrap());
        }
        headers
    }

    #[test]
    fn networks_parse_and_contain() {
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        let block: Network = "192.168.4.0/22".parse().unwrap();
        assert!(block.contains("192.168.7.255".parse().unwrap()) && !block.contains("192.168.8.0".parse().unwrap()));
        assert!(block.contains("::ffff:192.168.5.5".parse().unwrap()), "an IPv4 address in IPv6 dress is the same");
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "example.com", "10.0.0.0/8/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    // W-065
    #[test]
    fn only_a_trusted_proxy_is_believed() {
        let headers = headers("x-forwarded-for", &["198.51.100.1"]);
        let proxies = proxies(ForwardedHeader::XForwardedFor);
        assert_eq!(proxies.client("203.0.113.5:99".parse().unwrap(), &headers).to_string(), "203.0.113.5");
        assert_eq!(proxies.client("10.1.1.1:99".parse().unwrap(), &headers).to_string(), "198.51.100.1");
    }

    // W-065
    #[test]
    fn brackets_ports_and_chains_survive() {
        let proxies = proxies(ForwardedHeader::XForwardedFor);
        for (lines, client) in [
            (&["[2001:db8::1]:443"][..], "2001:db8::1"),
            (&["[2001:db8::1]"], "2001:db8::1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["198.51.100.7:8080"], "198.51.100.7"),
            (&["6.6.6.6, 198.51.100.7, 10.9.9.9"], "198.51.100.7"),
            (&["6.6.6.6", "198.51.100.7", "10.9.9.9"], "198.51.100.7"),
            (&["198.51.100.7, not an address, 10.9.9.9"], "10.9.9.9"),
            (&[""], "10.1.1.1"),
            (&["[2001:db8::1"], "10.1.1.1"),
            (&["[2001:db8::1]x"], "10.1.1.1"),
        ] {
            let found = proxies.client("10.1.1.1:99".parse().unwrap(), &headers("x-forwarded-for", lines));
            assert_eq!(found.to_string(), client, "{lines:?}");
        }
    }

    #[test]
    fn the_forwarded_header_is_read_only_where_it_was_chosen() {
        let mut both = headers("forwarded", &["for=\"[2001:db8::2]:1\";proto=https, for=10.2.2.2"]);
        both.append("x-forwarded-for", "6.6.6.6".parse().unwrap());
        let peer = "10.1.1.1:99".parse().unwrap();
        assert_eq!(proxies(ForwardedHeader::Forwarded).client(peer, &both).to_string(), "2001:db8::2");
        assert_eq!(proxies(ForwardedHeader::XForwardedFor).client(peer, &both).to_string(), "6.6.6.6");
    }
}
