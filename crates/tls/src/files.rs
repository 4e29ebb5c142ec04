//! From the files to what rustls needs.
//!
//! A client that may write to the database names the files. So a file has to be an ordinary one of a reasonable size: what
//! reading it could wait for, or never end with, is refused.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::settings::{Ca, Ciphers, Settings, Versions};
use crate::verify::{AnyName, AnyPeer};

/// The largest file.
const MAX_SIZE: u64 = 1 << 20;

/// What the files hold.
#[derive(Debug)]
pub struct Loaded {
    /// For connections to peers.
    pub client: Arc<ClientConfig>,
    /// For peers that connect; an error where they cannot be verified yet.
    pub server: Result<Arc<ServerConfig>, Error>,
    /// The file of the CAs, for errors.
    pub ca: Option<PathBuf>,
    /// The CA is to be had from the peer, and written to this file.
    pub bootstrap: Option<PathBuf>,
}

/// Reads the files.
pub fn load(settings: &Settings) -> Result<Loaded, Error> {
    let Settings { private_key: Some(key), certificate: Some(certificate), ca: Some(ca), .. } = settings else {
        return Err(Error::NotConfigured);
    };
    let own = Own { settings, key, certificate };
    let (file, bootstrap) = match ca {
        Ca::Unverified => {
            let server = own.server(ServerVerifier::None)?;
            return Ok(Loaded { client: own.client(None)?, server: Ok(server), ca: None, bootstrap: None });
        }
        Ca::File(file) => (file, false),
        Ca::Bootstrap(file) => (file, crate::broken("bootstrap") || !file.exists()),
    };
    if bootstrap {
        let server = Err(Error::NoCaYet(file.clone()));
        return Ok(Loaded { client: own.client(None)?, server, ca: None, bootstrap: Some(file.clone()) });
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|e| Error::file(file, e))?;
    }
    let roots = Arc::new(roots);
    let server = own.server(if crate::broken("verify") { ServerVerifier::None } else { ServerVerifier::Roots(file, roots.clone()) })?;
    Ok(Loaded { client: own.client(Some((file, roots)))?, server: Ok(server), ca: Some(file.clone()), bootstrap: None })
}

/// Whom a listener trusts.
enum ServerVerifier<'a> {
    None,
    Roots(&'a Path, Arc<RootCertStore>),
}

/// What both sides have in common.
struct Own<'a> {
    settings: &'a Settings,
    key: &'a Path,
    certificate: &'a Path,
}

impl Own<'_> {
    fn client(&self, trusted: Option<(&Path, Arc<RootCertStore>)>) -> Result<Arc<ClientConfig>, Error> {
        let provider = provider(&self.settings.ciphers);
        let verifier: Arc<dyn ServerCertVerifier> = match trusted {
            Some((file, roots)) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                Arc::new(AnyName(verifier.map_err(|e| Error::file(file, e))?))
            }
            None => Arc::new(AnyPeer::default()),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions(self.settings.versions))
            .map_err(|e| self.unusable(e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let (chain, key) = self.identity()?;
        let mut config = config.with_client_auth_cert(chain, key).map_err(|e| self.unusable(e))?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn server(&self, verifier: ServerVerifier<'_>) -> Result<Arc<ServerConfig>, Error> {
        let provider = provider(&self.settings.ciphers);
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions(self.settings.versions))
            .map_err(|e| self.unusable(e))?;
        let config = match verifier {
            ServerVerifier::None => config.with_no_client_auth(),
            ServerVerifier::Roots(file, roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                config.with_client_cert_verifier(verifier.map_err(|e| Error::file(file, e))?)
            }
        };
        let (chain, key) = self.identity()?;
        let mut config = config.with_single_cert(chain, key).map_err(|e| self.unusable(e))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The certificates that peers are sent, and the key.
    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let mut chain = certificates(self.certificate)?;
        if let Some(file) = &self.settings.peer_ca_cert {
            chain.extend(certificates(file)?);
        }
        let problem = "no private key in PEM that can be used (one with a password cannot)";
        let key = PrivateKeyDer::from_pem_slice(&read(self.key)?);
        Ok((chain, key.map_err(|e| Error::file(self.key, format!("{problem}: {e}")))?))
    }

    fn unusable(&self, error: rustls::Error) -> Error {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                Error::file(self.key, format!("it is not the key of {}", self.certificate.display()))
            }
            other => Error::file(self.key, other),
        }
    }
}

fn provider(ciphers: &Ciphers) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some() || ciphers.0.contains(name(suite.suite())));
    Arc::new(provider)
}

/// The name of a cipher of TLS 1.2 as OpenSSL has it.
fn name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        _ => "",
    }
}

fn versions(wanted: Versions) -> Vec<&'static SupportedProtocolVersion> {
    let all = [(wanted.v1_3, &rustls::version::TLS13), (wanted.v1_2, &rustls::version::TLS12)];
    all.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, version)| version).collect()
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(file)?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let list = list.map_err(|e| Error::file(file, format!("not certificates in PEM: {e}")))?;
    if list.is_empty() { Err(Error::file(file, "no certificate in PEM")) } else { Ok(list) }
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let failed = |problem: String| Error::file(file, problem);
    // Opening a pipe would wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(file);
    let opened = opened.map_err(|e| failed(format!("cannot open it: {e}")))?;
    let metadata = opened.metadata().map_err(|e| failed(e.to_string()))?;
    if !metadata.is_file() {
        return Err(failed("it is not an ordinary file".into()));
    }
    let mut bytes = Vec::new();
    opened.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(|e| failed(format!("cannot read it: {e}")))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(failed(format!("it is larger than {MAX_SIZE} bytes")));
    }
    Ok(bytes)
}

/// Does what a file system may keep waiting.
pub async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let (reply, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tls-files".into());
    thread
        .spawn(move || {
            // The receiver may have been dropped.
            let _ = reply.send(work());
        })
        .map_err(|e| Error::thread(&e))?;
    answer.await.map_err(|_| Error::Thread("it has ended".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::CIPHERS;

    #[test]
    fn every_cipher_has_a_name() {
        let provider = provider(&Ciphers::default());
        let mut names: Vec<_> =
            provider.cipher_suites.iter().filter(|s| s.tls13().is_none()).map(|s| name(s.suite())).collect();
        names.sort_unstable();
        let mut all = CIPHERS;
        all.sort_unstable();
        assert_eq!(names, all);
    }

    #[test]
    fn only_ordinary_files_of_a_reasonable_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        std::fs::File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("larger"));
        std::fs::File::create(&path).unwrap().set_len(MAX_SIZE).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_SIZE);
        assert!(certificates(&path).unwrap_err().to_string().contains("no certificate"));
        assert!(read(Path::new("/dev/zero")).unwrap_err().to_string().contains("ordinary"));
        assert!(read(directory.path()).unwrap_err().to_string().contains("ordinary"));
        assert!(read(Path::new("/nonexistent/x")).unwrap_err().to_string().contains("/nonexistent/x: cannot open"));
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&pipe).unwrap_err().to_string().contains("ordinary"));
    }
}
