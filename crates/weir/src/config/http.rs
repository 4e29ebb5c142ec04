//! The HTTP server: where it listens, and whom it answers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

/// What is wanted of the HTTP server (`http`, `http-token-file`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Http {
    /// Where it listens; without an address there is none.
    pub listen: Option<HttpAddress>,
    /// The file with the token that requests have to bear.
    pub token_file: Option<PathBuf>,
}

/// Where the HTTP server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum HttpAddress {
    /// `IP:PORT`.
    Tcp(SocketAddr),
    /// `unix:PATH`, in the run directory where it is relative.
    Unix(PathBuf),
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpAddressError {
    /// It is not one.
    #[error("{0:?} is no address for HTTP; expected IP:PORT (IPv6 in brackets) or unix:PATH")]
    Syntax(String),
    /// Others than this machine could reach it.
    #[error(
        "{0} can be reached from other machines, which http-allow-remote = true has to allow; 127.0.0.1 and [::1] cannot"
    )]
    Remote(SocketAddr),
}

impl HttpAddress {
    /// Reads an address. Without `allow_remote`, it has to be one that other machines cannot reach.
    pub fn parse(text: &str, allow_remote: bool) -> Result<HttpAddress, HttpAddressError> {
        let wrong = || HttpAddressError::Syntax(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(HttpAddress::Unix(path.into())) };
        }
        let address: SocketAddr = text.parse().map_err(|_| wrong())?;
        match address {
            _ if address.port() == 0 => Err(wrong()),
            _ if address.ip().to_canonical().is_loopback() || allow_remote => Ok(HttpAddress::Tcp(address)),
            _ => Err(HttpAddressError::Remote(address)),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpAddress::Tcp(address) => address.fmt(f),
            HttpAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<HttpAddress> for String {
    fn from(address: HttpAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_this_machine_unless_others_are_allowed() {
        for (text, alone, remote) in [
            ("127.0.0.1:6640", true, true),
            ("127.9.9.9:6640", true, true),
            ("[::1]:6640", true, true),
            ("[::ffff:127.0.0.1]:6640", true, true),
            ("unix:weir.http", true, true),
            ("unix:/run/weir.http", true, true),
            ("0.0.0.0:6640", false, true),
            ("[::]:6640", false, true),
            ("[::ffff:10.0.0.1]:6640", false, true),
            ("10.0.0.1:6640", false, true),
            ("", false, false),
            ("unix:", false, false),
            ("127.0.0.1", false, false),
            ("127.0.0.1:0", false, false),
            ("127.0.0.1:65536", false, false),
            ("localhost:6640", false, false),
            ("::1:6640", false, false),
            (":6640", false, false),
        ] {
            let parsed = HttpAddress::parse(text, false);
            assert_eq!(parsed.is_ok(), alone, "{text}: {parsed:?}");
            let parsed = HttpAddress::parse(text, true);
            assert_eq!(parsed.is_ok(), remote, "{text}: {parsed:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_it_was(text in "(unix:)?[0-9a-f.:\\[\\]/]{0,24}|.*") {
            match HttpAddress::parse(&text, true) {
                Ok(address) => prop_assert_eq!(HttpAddress::parse(&address.to_string(), true), Ok(address)),
                Err(e) => prop_assert!(e.to_string().contains("expected")),
            }
        }
    }
}
