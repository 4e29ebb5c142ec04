//! Who is answered.
//!
//! With a token, whoever bears it (RFC 6750 section 2.1). Without one, a web page could make a browser of this machine ask: its
//! script sees no answer of another origin, but if the page's own name is made to mean this machine ("DNS rebinding"), this server is
//! the page's origin. The browser then says that name in `Host`; so without a token, `Host` has to be an address or `localhost`. A Unix
//! socket is out of reach for browsers.

use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use subtle::ConstantTimeEq as _;

/// Most bytes of a token.
const MAX_TOKEN: u64 = 4096;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It bears no token, or another one.
    #[error("the token is missing or wrong: Authorization: Bearer TOKEN, with what the file http-token-file has")]
    Token,
    /// It is for a name.
    #[error(
        "the Host of the request is not an address or localhost, as a web page of another site could have it; \
         ask by address, or set http-token-file"
    )]
    Host,
}

/// What a request has to have.
#[derive(Clone, Copy, Debug)]
pub enum Rule<'a> {
    /// Nothing.
    Anybody,
    /// A `Host` that no other site can have.
    OwnHost,
    /// This token.
    Token(&'a [u8]),
}

impl Rule<'_> {
    /// Whether a request with these headers is answered.
    pub fn check(self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self {
            Rule::Anybody => Ok(()),
            Rule::OwnHost => {
                only(headers.get_all(HOST).iter()).filter(|host| is_own(host)).map(drop).ok_or(Refusal::Host)
            }
            Rule::Token(token) => {
                let given = only(headers.get_all(AUTHORIZATION).iter()).and_then(bearer);
                // What is compared takes as long wherever the difference is.
                let right = given.is_some_and(|given| bool::from(given.ct_eq(token)));
                if right { Ok(()) } else { Err(Refusal::Token) }
            }
        }
    }
}

/// The one value of a header, as text.
fn only<'a>(mut values: impl Iterator<Item = &'a HeaderValue>) -> Option<&'a str> {
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The token of `Bearer TOKEN`, whose first word is written in any case (RFC 9110 section 11.1).
fn bearer(value: &str) -> Option<&[u8]> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' ').as_bytes())
}

/// Whether a `Host` (RFC 9110 section 7.2) is an address or `localhost`, with a port or without.
fn is_own(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse().is_ok_and(|address: IpAddr| address.is_ipv6()),
        None => name.parse().is_ok_and(|address: IpAddr| address.is_ipv4()),
    };
    port.bytes().all(|b| b.is_ascii_digit()) && (address || name.eq_ignore_ascii_case("localhost"))
}

/// Reads the token from its file, without white space around it. A file that is none, such as a pipe, is not waited for.
pub fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("not a regular file"));
    }
    let mut token = Vec::new();
    file.take(MAX_TOKEN + 1).read_to_end(&mut token)?;
    if token.len() as u64 > MAX_TOKEN {
        return Err(wrong("longer than 4096 bytes"));
    }
    match token.trim_ascii() {
        [] => Err(wrong("it is empty; expected a token")),
        token => Ok(token.to_vec()),
    }
}

/// Entry point for fuzzing: any `Host` and `Authorization`. Returns whether both would be answered.
pub fn fuzz(data: &[u8]) -> bool {
    let (host, authorization) = data.split_at(data.len() / 2);
    let mut headers = HeaderMap::new();
    let values = (HeaderValue::from_bytes(host), HeaderValue::from_bytes(authorization));
    if let (Ok(host), Ok(authorization)) = values {
        headers.insert(HOST, host);
        headers.insert(AUTHORIZATION, authorization);
    }
    Rule::OwnHost.check(&headers).is_ok() && Rule::Token(b"secret").check(&headers).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(list: &[(hyper::header::HeaderName, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_host_is_an_address_or_localhost() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:6640",
            "[::1]",
            "[::1]:6640",
            "localhost",
            "LocalHost:1",
            "10.0.0.7:80",
            "localhost:",
        ] {
            assert_eq!(Rule::OwnHost.check(&headers(&[(HOST, own)])), Ok(()), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:6640",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            ":6640",
            "::1",
            "[127.0.0.1]",
            "127.0.0.1:80:80",
            "[::1",
            "::1]",
            "[::1]x",
            "localhost:x",
            "0x7f.1",
        ] {
            assert_eq!(Rule::OwnHost.check(&headers(&[(HOST, foreign)])), Err(Refusal::Host), "{foreign}");
        }
        assert_eq!(Rule::OwnHost.check(&headers(&[])), Err(Refusal::Host));
        assert_eq!(Rule::OwnHost.check(&headers(&[(HOST, "localhost"), (HOST, "evil.example")])), Err(Refusal::Host));
        assert_eq!(Rule::Anybody.check(&headers(&[(HOST, "evil.example")])), Ok(()));
    }

    #[test]
    fn the_token_is_the_whole_one() {
        let rule = Rule::Token(b"secret");
        for right in ["Bearer secret", "bearer secret", "BEARER  secret "] {
            assert_eq!(rule.check(&headers(&[(AUTHORIZATION, right), (HOST, "any.example")])), Ok(()), "{right}");
        }
        for wrong in
            ["Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret", "secret", "Basic secret", ""]
        {
            assert_eq!(rule.check(&headers(&[(AUTHORIZATION, wrong)])), Err(Refusal::Token), "{wrong}");
        }
        let twice = headers(&[(AUTHORIZATION, "Bearer secret"), (AUTHORIZATION, "Bearer secret")]);
        assert_eq!(rule.check(&twice), Err(Refusal::Token));
        assert_eq!(rule.check(&headers(&[])), Err(Refusal::Token));
    }

    #[test]
    fn a_token_is_read_from_a_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            read_token(&path).map_err(|e| e.to_string())
        };
        assert_eq!(read(" abc def\n"), Ok(b"abc def".to_vec()));
        assert!(read(" \n").unwrap_err().contains("empty"));
        assert_eq!(read(&"x".repeat(4096)), Ok(vec![b'x'; 4096]));
        assert!(read(&"x".repeat(4097)).unwrap_err().contains("longer"));
        assert!(read_token(dir.path()).is_err());
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(read_token(&fifo).unwrap_err().to_string(), "not a regular file");
    }

    proptest! {
        #[test]
        fn no_name_but_localhost_is_own(name in "[a-z0-9.:\\[\\]-]{0,24}") {
            let letters = name.bytes().any(|b| b.is_ascii_lowercase() && !(b'a'..=b'f').contains(&b));
            prop_assert!(!(is_own(&name) && letters) || name.starts_with("localhost"), "{}", name);
        }

        #[test]
        fn any_bytes_are_judged(data in any::<Vec<u8>>()) {
            prop_assert!(!fuzz(&data));
        }
    }
}
