//! Connections to a server: `unix:FILE`, `tcp:HOST:PORT`, `ssl:HOST:PORT` (ovsdb(7), "Active connection
//! methods").

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The port where none is given (RFC 7047 section 4).
pub const DEFAULT_PORT: u16 = 6640;

/// A connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// By the operating system or the peer.
    #[error("{remote}: {error}")]
    Io {
        /// Where to.
        remote: Remote,
        /// What is wrong.
        error: io::Error,
    },
    /// A file that TLS needs cannot be used.
    #[error("{file}: {problem}")]
    File {
        /// Its path.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The remote wants TLS, and no key and certificates are configured.
    #[error("{0}: TLS needs a private key, a certificate and a CA certificate")]
    NoTls(Remote),
    /// TLS cannot be set up with these files.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Text that does not name a server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a server: expected unix:FILE, tcp:HOST[:PORT] or ssl:HOST[:PORT]")]
pub struct RemoteError(pub String);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS over TCP.
    Ssl {
        /// Name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Remote {
    /// Reads remotes separated by commas: the members of a cluster.
    pub fn parse_list(text: &str) -> Result<Vec<Remote>, RemoteError> {
        text.split(',').map(|part| part.trim().parse()).collect()
    }
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Remote, RemoteError> {
        let wrong = || RemoteError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        if kind == "unix" && !rest.is_empty() {
            return Ok(Remote::Unix(rest.into()));
        }
        let (host, port) = split_host(rest).ok_or_else(wrong)?;
        match kind {
            "tcp" => Ok(Remote::Tcp { host, port }),
            "ssl" => Ok(Remote::Ssl { host, port }),
            _ => Err(wrong()),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`.
fn split_host(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(DEFAULT_PORT), |p| p.parse().ok().filter(|&p| p != 0))?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, host, port) = match self {
            Remote::Unix(path) => return write!(f, "unix:{}", path.display()),
            Remote::Tcp { host, port } => ("tcp", host, port),
            Remote::Ssl { host, port } => ("ssl", host, port),
        };
        match host.contains(':') {
            true => write!(f, "{kind}:[{host}]:{port}"),
            false => write!(f, "{kind}:{host}:{port}"),
        }
    }
}

/// The files for TLS, as `--private-key`, `--certificate` and `--ca-cert` name them. They are read anew for
/// each connection, so that renewed certificates come into use by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Private key, PEM.
    pub private_key: PathBuf,
    /// Own certificate and those between it and the CA, PEM.
    pub certificate: PathBuf,
    /// Certificate of the CA that signed the server's, PEM.
    pub ca_cert: PathBuf,
}

impl TlsFiles {
    fn load(&self) -> Result<ClientConfig, ConnectError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca_cert)? {
            roots.add(certificate)?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| file_error(&self.ca_cert, e))?;
        let key = PrivateKeyDer::from_pem_file(&self.private_key).map_err(|e| file_error(&self.private_key, e))?;
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyName(verifier)))
            .with_client_auth_cert(certificates(&self.certificate)?, key)?)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let list = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let list = list.map_err(|e| file_error(file, e))?;
    if list.is_empty() { Err(file_error(file, "no certificate")) } else { Ok(list) }
}

fn file_error(file: &Path, problem: impl fmt::Display) -> ConnectError {
    ConnectError::File { file: file.to_owned(), problem: problem.to_string() }
}

/// Verifies that the CA signed the server's certificate, whatever name it is for: certificates of Open
/// vSwitch's PKI name switches and controllers, not hosts.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is the last thing that is looked at.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
    /// Over TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to a server.
pub async fn connect(remote: &Remote, tls: Option<&TlsFiles>) -> Result<Stream, ConnectError> {
    let io = |error| ConnectError::Io { remote: remote.clone(), error };
    match remote {
        Remote::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map_err(io),
        Remote::Tcp { host, port } => tcp(host, *port).await.map(Stream::Tcp).map_err(io),
        Remote::Ssl { host, port } => {
            let config = tls.ok_or_else(|| ConnectError::NoTls(remote.clone()))?.load()?;
            let name = ServerName::try_from(host.clone()).map_err(|e| io(io::Error::other(e)))?;
            let stream = tcp(host, *port).await.map_err(io)?;
            let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(io)?;
            Ok(Stream::Tls(Box::new(stream)))
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Requests are small, and somebody waits for each.
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Tls(s) => Pin::new(s.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_flush(cx),
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_read_and_printed() {
        for (text, printed) in [
            ("unix:/run/db.sock", "unix:/run/db.sock"),
            ("tcp:127.0.0.1", "tcp:127.0.0.1:6640"),
            ("tcp:db.example:1234", "tcp:db.example:1234"),
            ("ssl:[::1]:7", "ssl:[::1]:7"),
            ("ssl:[fe80::1]", "ssl:[fe80::1]:6640"),
        ] {
            let remote: Remote = text.parse().unwrap();
            assert_eq!(remote.to_string(), printed);
            assert_eq!(printed.parse(), Ok(remote));
        }
        for wrong in [
            "",
            "unix:",
            "tcp:",
            "tcp::1",
            "tcp:a:b",
            "tcp:a:0",
            "tcp:a:99999",
            "tcp:[::1",
            "tcp:[::1]1",
            "udp:a",
            "/x",
        ] {
            assert!(wrong.parse::<Remote>().is_err(), "{wrong}");
        }
        assert_eq!(Remote::parse_list("tcp:a,ssl:b:1").unwrap().len(), 2);
        assert!(Remote::parse_list("tcp:a,").is_err());
    }
}
