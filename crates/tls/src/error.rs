//! What went wrong, in words for the log and for `last_error` of the Controller row.

use std::io;
use std::path::{Path, PathBuf};

use rustls::{AlertDescription, CertificateError};

/// A connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Files are not configured.
    #[error("TLS needs a private key, a certificate and a CA certificate")]
    NotConfigured,
    /// A file cannot be used.
    #[error("{}: {problem}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Key, certificate and settings do not fit each other, or the peer.
    #[error("TLS: {0}")]
    Tls(String),
    /// A thread that reads files cannot be started.
    #[error("cannot start a thread that reads the files for TLS: {0}")]
    Thread(String),
    /// The CA certificate is not there yet, which a peer is to send that is connected to.
    #[error("the CA certificate {} has not been obtained from a peer yet", .0.display())]
    NoCaYet(PathBuf),
    /// The peer has not sent a CA certificate.
    #[error("could not bootstrap CA cert: {0}")]
    Bootstrap(&'static str),
    /// The CA certificate that the peer has sent was written to this file.
    #[error("the CA certificate was written to {}; the connection is to be made again", .0.display())]
    Bootstrapped(PathBuf),
}

impl Error {
    pub(crate) fn file(file: &Path, problem: impl std::fmt::Display) -> Error {
        Error::File { file: file.to_owned(), problem: problem.to_string() }
    }

    pub(crate) fn thread(error: &io::Error) -> Error {
        Error::Thread(error.to_string())
    }

    /// A handshake has failed; `ca` is the file of the CAs that are trusted.
    pub(crate) fn handshake(error: io::Error, ca: &Option<PathBuf>) -> Error {
        Error::Tls(match of_rustls(&error) {
            Some(error) => words(error, ca),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the peer has closed the connection during the handshake".into()
            }
            None => error.to_string(),
        })
    }
}

/// What rustls says, if it was rustls.
pub(crate) fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

pub(crate) fn words(error: &rustls::Error, ca: &Option<PathBuf>) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => match ca {
            Some(ca) => format!("the peer's certificate is not signed by a CA in {}", ca.display()),
            None => "the peer's certificate is not signed by a CA that is trusted".into(),
        },
        rustls::Error::InvalidCertificate(e) => format!("the peer's certificate cannot be used: {e}"),
        rustls::Error::NoCertificatesPresented => "the peer presents no certificate".into(),
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the peer does not trust the CA of the certificate that it was shown".into()
        }
        rustls::Error::AlertReceived(alert) => format!("the peer refuses the connection: alert {alert:?}"),
        rustls::Error::InvalidMessage(e) => format!("the peer does not speak TLS ({e:?})"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_found_within_an_error_of_the_stream() {
        let error = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        let text = Error::handshake(error, &Some("/a/ca.pem".into())).to_string();
        assert_eq!(text, "TLS: the peer's certificate is not signed by a CA in /a/ca.pem");
        let text = Error::handshake(io::ErrorKind::UnexpectedEof.into(), &None).to_string();
        assert!(text.contains("during the handshake"), "{text}");
    }
}
