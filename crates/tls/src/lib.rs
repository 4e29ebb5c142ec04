//! TLS as Open vSwitch's tools speak it (ovs-vswitchd(8), "Public Key Infrastructure Options").
//!
//! Both sides of a connection present a certificate, and each verifies that a CA which it trusts has signed the other's.
//! Names of hosts are not looked at: certificates of Open vSwitch's PKI name switches and controllers, not hosts.
//!
//! [`Tls`] holds what is configured, and makes streams of either side. The files are read by a thread of their own, as a
//! file system may keep it waiting, and at most once a second, so that renewed ones come into use by themselves. While they
//! cannot be used, what they held before stays in use.
//!
//! No session is resumed: each connection is verified by the files of its time, and nothing is kept for peers that have gone.
//!
//! - [`settings`]: which files, versions and ciphers; their text
//! - `files`: from the files to what rustls needs
//! - `verify`: who is trusted
//! - `bootstrap`: the CA that a peer sends, written to a file
//! - `pace`: how much time handshakes take
//! - `stream`: a stream of bytes for code that knows nothing of TLS
//! - `error`: what went wrong, in words

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

mod bootstrap;
mod error;
mod files;
mod pace;
pub mod settings;
mod stream;
mod verify;

pub use bootstrap::fuzz;
pub use error::Error;
pub use settings::{Ca, Settings};
pub use stream::Stream;

use files::Loaded;
use pace::{Charged, Pace};
use verify::AnyPeer;

/// How long what was read from files counts as new.
const FRESH: Duration = Duration::from_secs(1);

/// How to speak TLS, for all connections of a kind. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tls(Arc<Shared>);

/// Used by whoever makes connections, and by the thread that reads the files.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A thread has read the files.
    read: Notify,
    /// Handshakes of those who connect to us.
    pace: Pace,
}

#[derive(Debug, Default)]
struct State {
    settings: Arc<Settings>,
    /// What the files held when they could be used last, and what is wrong now, if they cannot be.
    loaded: Option<Arc<Loaded>>,
    problem: Option<Error>,
    /// When they were read last; `None`: they have to be read again.
    read_at: Option<Instant>,
    is_reading: bool,
}

impl State {
    /// What the files hold, unless they have to be read again.
    fn known(&self) -> Option<Result<Arc<Loaded>, Error>> {
        self.read_at.filter(|at| at.elapsed() < FRESH)?;
        match (&self.loaded, &self.problem) {
            (Some(loaded), _) => Some(Ok(loaded.clone())),
            (None, Some(problem)) => Some(Err(problem.clone())),
            (None, None) => None,
        }
    }
}

impl Tls {
    /// With these files.
    pub fn new(settings: Settings) -> Tls {
        let tls = Tls::default();
        tls.set(settings);
        tls
    }

    /// Takes other files for connections to come; those that there are stay.
    pub fn set(&self, settings: Settings) {
        *self.0.state.lock() = State { settings: Arc::new(settings), ..State::default() };
    }

    /// Connects over a stream to a peer that listens at `host`.
    ///
    /// Where the CA certificate had to be taken from the peer, it has been written to its file, and the error is
    /// [`Error::Bootstrapped`]: whoever connects again does so with a peer that is verified.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<Stream, Error> {
        let loaded = self.loaded().await?;
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            // It is told to the peer only.
            Err(_) => ServerName::from(stream.peer_addr().map_err(|e| Error::handshake(e, &loaded.ca))?.ip()),
        };
        let Some(ca_file) = &loaded.bootstrap else {
            let connected = TlsConnector::from(loaded.client.clone()).connect(name, stream).await;
            return Ok(Stream::client(connected.map_err(|e| Error::handshake(e, &loaded.ca))?));
        };
        let first_use = Arc::new(AnyPeer::default());
        let mut config = (*loaded.client).clone();
        config.dangerous().set_certificate_verifier(first_use.clone());
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        // The handshake has shown that the peer has the key of its certificate. Nothing else is said on this connection.
        drop(connected.map_err(|e| Error::handshake(e, &loaded.ca))?);
        let ca = bootstrap::of_chain(&first_use.chain())?;
        let file = ca_file.clone();
        let written = files::on_thread(move || bootstrap::write(&file, &ca)).await?;
        self.0.state.lock().read_at = None;
        written?;
        tracing::info!("successfully bootstrapped CA cert to {}", ca_file.display());
        Err(Error::Bootstrapped(ca_file.clone()))
    }

    /// Takes a peer that has connected. It may take as long as it likes. Many at a time take turns, for a part of the thread's time.
    pub async fn accept(&self, stream: TcpStream) -> Result<Stream, Error> {
        let loaded = self.loaded().await?;
        loaded.server.clone()?;
        // Costs nothing before the peer has said hello, and little then.
        let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await;
        let hello = hello.map_err(|e| Error::handshake(e, &loaded.ca))?;
        let pace = &self.0.pace;
        let turn = pace.turn().await;
        let loaded = self.loaded().await?;
        let server = loaded.server.clone()?;
        let future = pace.charged(|| hello.into_stream(server));
        drop(turn);
        let accepted = Charged { future, pace }.await;
        Ok(Stream::server(accepted.map_err(|e| Error::handshake(e, &loaded.ca))?))
    }

    /// What the files hold, not older than [`FRESH`].
    async fn loaded(&self) -> Result<Arc<Loaded>, Error> {
        loop {
            let mut read = std::pin::pin!(self.0.read.notified());
            read.as_mut().enable();
            {
                let mut state = self.0.state.lock();
                if let Some(known) = state.known() {
                    return known;
                }
                if !state.is_reading {
                    let (shared, settings) = (self.0.clone(), state.settings.clone());
                    let thread = std::thread::Builder::new().name("tls-files".into());
                    thread.spawn(move || shared.read_files(settings)).map_err(|e| Error::thread(&e))?;
                    state.is_reading = true;
                }
            }
            read.await;
        }
    }
}

impl Shared {
    fn read_files(&self, settings: Arc<Settings>) {
        let outcome = files::load(&settings);
        let mut state = self.state.lock();
        // Others may have been set meanwhile; then they are read by whoever waits for them.
        if Arc::ptr_eq(&state.settings, &settings) {
            state.is_reading = false;
            state.read_at = Some(Instant::now());
            match outcome {
                Ok(loaded) => (state.loaded, state.problem) = (Some(Arc::new(loaded)), None),
                Err(problem) => {
                    // A CA that is there, even one that cannot be read, is not to be had from a peer any more.
                    state.loaded = state.loaded.take().filter(|loaded| loaded.bootstrap.is_none());
                    if state.loaded.is_some() && state.problem.as_ref() != Some(&problem) {
                        tracing::warn!("{problem}; what was read before stays in use");
                    }
                    state.problem = Some(problem);
                }
            }
        }
        drop(state);
        self.read.notify_waiters();
    }
}

/// What went wrong on a connection that was made, in words.
fn in_words(error: &io::Error) -> Option<String> {
    error::of_rustls(error).map(|error| error::words(error, &None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn without_files_it_says_which_are_missing() {
        let error = block_on(Tls::default().loaded()).unwrap_err();
        assert_eq!(error.to_string(), "TLS needs a private key, a certificate and a CA certificate");
    }

    #[test]
    fn other_settings_are_in_use_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let missing = |name: &str| Settings {
            private_key: Some(directory.path().join(name)),
            certificate: Some(directory.path().join(name)),
            ca: Some(Ca::Unverified),
            ..Settings::default()
        };
        let tls = Tls::new(missing("first"));
        assert!(block_on(tls.loaded()).unwrap_err().to_string().contains("first"));
        tls.set(missing("second"));
        assert!(block_on(tls.loaded()).unwrap_err().to_string().contains("second"));
    }
}
