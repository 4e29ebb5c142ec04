//! Addresses of OpenFlow controllers and listeners, in the syntax of ovs-vswitchd.conf.db(5).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port number that IANA has assigned to OpenFlow.
pub const OPENFLOW_PORT: u16 = 6653;

/// Where a controller is, or where Weir listens for one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// `tcp:HOST[:PORT]`: connect.
    Tcp(String, u16),
    /// `ssl:HOST[:PORT]`: connect, with TLS.
    Ssl(String, u16),
    /// `unix:FILE`: connect.
    Unix(PathBuf),
    /// `ptcp:[PORT][:HOST]`: listen, on all addresses by default.
    PassiveTcp(u16, Option<String>),
    /// `pssl:[PORT][:HOST]`: listen, with TLS.
    PassiveSsl(u16, Option<String>),
    /// `punix:FILE`: listen.
    PassiveUnix(PathBuf),
}

impl Target {
    /// Whether Weir listens rather than connects.
    pub fn is_passive(&self) -> bool {
        matches!(self, Target::PassiveTcp(..) | Target::PassiveSsl(..) | Target::PassiveUnix(_))
    }
}

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address of a controller: {problem}")]
pub struct TargetError {
    text: String,
    problem: &'static str,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let wrong = |problem| TargetError { text: text.into(), problem };
        const METHODS: &str = "it starts with tcp:, ssl:, unix:, ptcp:, pssl: or punix:";
        let (method, rest) = text.split_once(':').ok_or_else(|| wrong(METHODS))?;
        let path = || match rest {
            "" => Err(wrong("the name of the socket is missing")),
            _ => Ok(PathBuf::from(rest)),
        };
        let port = |text: &str| match text {
            "" => Ok(OPENFLOW_PORT),
            _ => text.parse().map_err(|_| wrong("the port is a number from 1 to 65535")),
        };
        match method {
            "tcp" | "ssl" => {
                let (host, number) = split_host(rest).ok_or_else(|| wrong("HOST[:PORT], IPv6 in brackets"))?;
                match (host, port(number)?) {
                    ("", _) => Err(wrong("the host is missing: HOST[:PORT]")),
                    (_, 0) => Err(wrong("the port is a number from 1 to 65535")),
                    (host, number) if method == "ssl" => Ok(Target::Ssl(host.into(), number)),
                    (host, number) => Ok(Target::Tcp(host.into(), number)),
                }
            }
            "ptcp" | "pssl" => {
                let (number, host) = rest.split_once(':').unwrap_or((rest, ""));
                let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
                let (number, host) = (port(number)?, (!host.is_empty()).then(|| host.to_owned()));
                Ok(if method == "pssl" { Target::PassiveSsl(number, host) } else { Target::PassiveTcp(number, host) })
            }
            "unix" => Ok(Target::Unix(path()?)),
            "punix" => Ok(Target::PassiveUnix(path()?)),
            _ => Err(wrong(METHODS)),
        }
    }
}

/// Cuts `HOST[:PORT]`; an IPv6 address stands in brackets.
fn split_host(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return Some((host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?));
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => None,
        Some(parts) => Some(parts),
        None => Some((text, "")),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracketed = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            Target::Tcp(host, port) => write!(f, "tcp:{}:{port}", bracketed(host)),
            Target::Ssl(host, port) => write!(f, "ssl:{}:{port}", bracketed(host)),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::PassiveTcp(port, None) => write!(f, "ptcp:{port}"),
            Target::PassiveTcp(port, Some(host)) => write!(f, "ptcp:{port}:{}", bracketed(host)),
            Target::PassiveSsl(port, None) => write!(f, "pssl:{port}"),
            Target::PassiveSsl(port, Some(host)) => write!(f, "pssl:{port}:{}", bracketed(host)),
            Target::PassiveUnix(path) => write!(f, "punix:{}", path.display()),
        }
    }
}

impl serde::Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for (text, shown) in [
            ("tcp:10.0.0.1", "tcp:10.0.0.1:6653"),
            ("tcp:[::1]:6633", "tcp:[::1]:6633"),
            ("tcp:controller.example:6633", "tcp:controller.example:6633"),
            ("ptcp:", "ptcp:6653"),
            ("ptcp:6633:127.0.0.1", "ptcp:6633:127.0.0.1"),
            ("ptcp:6633:[::1]", "ptcp:6633:[::1]"),
            ("ssl:[::1]", "ssl:[::1]:6653"),
            ("pssl:", "pssl:6653"),
            ("pssl:0:127.0.0.1", "pssl:0:127.0.0.1"),
            ("unix:/tmp/x", "unix:/tmp/x"),
            ("punix:/tmp/x", "punix:/tmp/x"),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), shown);
            assert_eq!(shown.parse::<Target>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for text in [
            "",
            "tcp",
            "tcp:",
            "tcp::80",
            "tcp:a:0",
            "tcp:a:99999",
            "tcp:::1:80",
            "tcp:[::1",
            "unix:",
            "ssl:",
            "pssl:x",
            "udp:a",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
