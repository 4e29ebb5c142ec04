//! Which files, versions and ciphers TLS is to use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What is configured. Files are in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// The private key.
    pub private_key: Option<PathBuf>,
    /// The own certificate, and those between it and the CA.
    pub certificate: Option<PathBuf>,
    /// Whom to trust.
    pub ca: Option<Ca>,
    /// Certificates that peers are sent after the own one: the CA's, for peers that have not got it yet.
    pub peer_ca_cert: Option<PathBuf>,
    /// Versions of the protocol.
    pub versions: Versions,
    /// Ciphers of TLS 1.2.
    pub ciphers: Ciphers,
}

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ca {
    /// Peers whose certificate is signed by a CA in this file.
    File(PathBuf),
    /// The same, but when the file is not there, the CA that the first peer sends is written to it.
    Bootstrap(PathBuf),
    /// All, and listeners do not ask for a certificate.
    Unverified,
}

impl Ca {
    /// As options and the database have it: `none` is for not verifying peers.
    pub fn named(path: &Path, bootstrap: bool) -> Ca {
        match bootstrap {
            _ if path == Path::new("none") => Ca::Unverified,
            true => Ca::Bootstrap(path.into()),
            false => Ca::File(path.into()),
        }
    }

    /// Its file.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Ca::File(path) | Ca::Bootstrap(path) => Some(path),
            Ca::Unverified => None,
        }
    }
}

impl Settings {
    /// All files.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let own = [&mut self.private_key, &mut self.certificate, &mut self.peer_ca_cert].into_iter().flatten();
        own.chain(self.ca.as_mut().and_then(Ca::path_mut))
    }
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// 1.2.
    pub v1_2: bool,
    /// 1.3.
    pub v1_3: bool,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions { v1_2: true, v1_3: true }
    }
}

impl Versions {
    /// Reads `--ssl-protocols`: names with commas, spaces or tabs between them. Older versions than 1.2 are left out of a
    /// list, but cannot be all of it. What OVS has by default is this one's default, too, with 1.3 as there.
    pub fn parse(text: &str) -> Result<Versions, String> {
        if text == "TLSv1,TLSv1.1,TLSv1.2" {
            return Ok(Versions::default());
        }
        let mut versions = Versions { v1_2: false, v1_3: false };
        for word in text.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "tlsv1.3" => versions.v1_3 = true,
                "tlsv1.2" => versions.v1_2 = true,
                "tlsv1.1" | "tlsv1" => {}
                _ => return Err(format!("{word:?} is not a version of TLS: TLSv1.2 or TLSv1.3")),
            }
        }
        match versions {
            Versions { v1_2: false, v1_3: false } => {
                Err(format!("{text:?} has neither TLSv1.2 nor TLSv1.3, and others are not supported"))
            }
            _ => Ok(versions),
        }
    }
}

/// The ciphers of TLS 1.2 that there are, as OpenSSL calls them.
pub const CIPHERS: [&str; 6] = [
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// Which ciphers of TLS 1.2 may be used. Those of 1.3 always are, as with OpenSSL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ciphers(pub BTreeSet<&'static str>);

impl Default for Ciphers {
    fn default() -> Ciphers {
        Ciphers(CIPHERS.into())
    }
}

impl Ciphers {
    /// Reads `--ssl-ciphers`: names of [`CIPHERS`], `HIGH`, `ALL` or `DEFAULT` for all of them, and `!NAME` for what is not
    /// to be used, with colons, commas or spaces between them. What is not to be used and is not there anyway may be
    /// called by any name.
    pub fn parse(text: &str) -> Result<Ciphers, String> {
        let mut chosen = BTreeSet::new();
        let words = text.split([':', ',', ' ']).filter(|word| !word.is_empty());
        let (without, with): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with('!'));
        for word in with {
            match CIPHERS.iter().find(|name| **name == word) {
                Some(name) => drop(chosen.insert(*name)),
                None if ["HIGH", "ALL", "DEFAULT"].contains(&word) => chosen.extend(CIPHERS),
                None => return Err(format!("{word:?} is not a cipher that is supported: {}", CIPHERS.join(", "))),
            }
        }
        chosen.retain(|name| !without.iter().any(|word| &word[1..] == *name));
        match chosen.is_empty() {
            true => Err(format!("{text:?} leaves no cipher; there are {}", CIPHERS.join(", "))),
            false => Ok(Ciphers(chosen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions() {
        assert_eq!(Versions::parse("TLSv1,TLSv1.1,TLSv1.2"), Ok(Versions::default()));
        assert_eq!(Versions::parse("TLSv1.2"), Ok(Versions { v1_2: true, v1_3: false }));
        assert_eq!(Versions::parse("tlsv1.1, TLSv1.3"), Ok(Versions { v1_2: false, v1_3: true }));
        for wrong in ["", "TLSv1", "TLSv1.2,SSLv3"] {
            assert!(Versions::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ciphers() {
        assert_eq!(Ciphers::parse("HIGH:!aNULL:!MD5"), Ok(Ciphers::default()));
        let some = Ciphers::parse("ECDHE-RSA-AES128-GCM-SHA256").unwrap();
        assert_eq!(some.0.into_iter().collect::<Vec<_>>(), ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(Ciphers::parse("ALL:!ECDHE-RSA-AES128-GCM-SHA256").unwrap().0.len(), 5);
        for wrong in ["", "AES128-SHA", "ECDHE-RSA-AES128-GCM-SHA256:!ECDHE-RSA-AES128-GCM-SHA256"] {
            assert!(Ciphers::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_in_words(text in "[ -~é,:!]{0,40}") {
            prop_assert!(Versions::parse(&text).err().is_none_or(|e| !e.is_empty()));
            prop_assert!(Ciphers::parse(&text).err().is_none_or(|e| !e.is_empty()));
        }
    }
}
