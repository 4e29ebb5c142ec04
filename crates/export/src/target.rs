//! Addresses of collectors: `10.0.0.1:6343`, `[fe80::1%2]:6343`.

use std::net::{IpAddr, SocketAddr};

/// What a target has to look like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not an address.
    #[error("{0:?} is no collector: IP:PORT or [IPV6]:PORT is one")]
    Syntax(String),
    /// There is no port.
    #[error("{0:?} has no port: IP:PORT or [IPV6]:PORT has one")]
    NoPort(String),
}

/// Parses the address of a collector. Without a port it has `default`, if there is one.
pub fn parse(text: &str, default: Option<u16>) -> Result<SocketAddr, Problem> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return if address.port() == 0 { Err(Problem::NoPort(text.into())) } else { Ok(address) };
    }
    let host = text.strip_suffix(':').unwrap_or(text);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip: IpAddr = host.parse().map_err(|_| Problem::Syntax(text.into()))?;
    match default {
        Some(port) => Ok(SocketAddr::new(ip, port)),
        None => Err(Problem::NoPort(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_both_families() {
        let good = [
            ("127.0.0.1:6343", Some(1), "127.0.0.1:6343"),
            ("[::1]:4739", None, "[::1]:4739"),
            ("127.0.0.1", Some(6343), "127.0.0.1:6343"),
            ("[::1]", Some(6343), "[::1]:6343"),
            ("::1", Some(6343), "[::1]:6343"),
            ("127.0.0.1:", Some(7), "127.0.0.1:7"),
        ];
        for (text, default, expected) in good {
            assert_eq!(parse(text, default), Ok(expected.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_target() {
        for text in ["", "xyzzy", "localhost:6343", "1.2.3.4:99999", "1.2.3:5", "[::1:5", "1.2.3.4:5:6"] {
            assert_eq!(parse(text, Some(1)), Err(Problem::Syntax(text.into())));
        }
        assert_eq!(parse("1.2.3.4", None), Err(Problem::NoPort("1.2.3.4".into())));
        assert_eq!(parse("1.2.3.4:0", Some(9)), Err(Problem::NoPort("1.2.3.4:0".into())));
    }
}
