//! Listens where the configuration says, and serves connections. An address that cannot be had now is tried again.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ports::files::SocketFile;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use super::access::{Refusal, Rule, read_token};
use super::body::Body;
use super::peer::{Peer, PeerStream};
use super::{Answer, Route};
use crate::config::http::{Http, HttpAddress};
use crate::connections::{Connections, Slot};
use crate::unixctl::command::Outcome;
use crate::unixctl::server::bind_unix;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 32;

/// Bytes of answers that are kept for all of them together, beyond what hyper buffers.
const MAX_KEPT: usize = 32 << 20;

/// How long a request's head may take, from the moment at which the peer could send it. So long is an idle connection kept, too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of a request's head, and of what is kept of an answer beyond one piece.
const MAX_HEAD: usize = 16 << 10;

/// How long a peer may read nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long until an address that could not be had is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// How long until a connection is tried again that could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Most answers that other threads work on at a time, those included whose peers have gone meanwhile. So many connections wait for them
/// at most, and the others are free for what is answered at once.
const MAX_LATER: usize = 8;

/// What a page from here may load and do: only what is from here, and no script but those in files.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                              base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const TEXT: &str = "text/plain; charset=utf-8";

/// The server. Stays on the management thread; the settings come from any.
pub struct Server {
    rundir: PathBuf,
    settings: watch::Receiver<Http>,
    problem: RefCell<Option<String>>,
}

impl Server {
    /// A server, and where to set it. It listens once it is told to.
    pub fn new(rundir: &Path) -> (Server, watch::Sender<Http>) {
        let (sender, settings) = watch::channel(Http::default());
        (Server { rundir: rundir.into(), settings, problem: RefCell::default() }, sender)
    }

    /// Why it does not listen where it should.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Whether there is to be a server.
    pub fn is_wanted(&self) -> bool {
        self.settings.borrow().listen.is_some()
    }

    /// Serves for ever, within a [`tokio::task::LocalSet`]. When the settings change, all connections end.
    pub async fn serve<C: 'static>(&self, routes: &'static [Route<C>], context: Rc<C>) {
        let mut settings = self.settings.clone();
        loop {
            let wanted = settings.borrow_and_update().clone();
            *self.problem.borrow_mut() = None;
            tokio::select! {
                () = self.listen(&wanted, routes, &context) => {}
                Ok(()) = settings.changed() => {}
            }
        }
    }

    async fn listen<C: 'static>(&self, wanted: &Http, routes: &'static [Route<C>], context: &Rc<C>) {
        let Some(address) = &wanted.listen else { return std::future::pending().await };
        let listener = loop {
            match Listener::bind(address, &self.rundir).await {
                Ok(listener) => break listener,
                Err(e) => self.note(format!("http: cannot listen on {address}: {e}")),
            }
            tokio::time::sleep(RETRY).await;
        };
        *self.problem.borrow_mut() = None;
        tracing::info!("http: listening on {address}");
        if matches!(address, HttpAddress::Tcp(address) if !address.ip().to_canonical().is_loopback())
            && wanted.token_file.is_none()
        {
            tracing::warn!("http: other machines can read everything on {address}: http-token-file is not set");
        }
        let (connections, mut tasks) = (Connections::with_memory(MAX_CONNECTIONS, MAX_KEPT), JoinSet::new());
        let service = Rc::new(Service {
            routes,
            context: context.clone(),
            token_file: wanted.token_file.as_ref().map(|path| self.rundir.join(path)),
            is_local: matches!(address, HttpAddress::Unix(_)),
            later: Rc::default(),
        });
        loop {
            let stream = match listener.accept().await {
                Ok(stream) => stream,
                Err(e) => {
                    // Most likely there are no descriptors left. Some may be free soon.
                    tracing::warn!("http: cannot accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let slot = connections.admit().await;
            tasks.spawn_local(connection(stream, slot, service.clone()));
            while tasks.try_join_next().is_some() {}
            // Its task runs, and reads what has arrived, before another connection is taken.
            tokio::task::yield_now().await;
        }
    }

    /// Says what is wrong: in the log once, in reports as long as it is so.
    fn note(&self, problem: String) {
        let mut noted = self.problem.borrow_mut();
        if noted.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            *noted = Some(problem);
        }
    }
}

/// A listening socket.
enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Goes with it.
        _file: SocketFile,
    },
}

/// What a peer is reached by.
trait Stream: AsyncRead + AsyncWrite {}
impl<S: AsyncRead + AsyncWrite> Stream for S {}

impl Listener {
    async fn bind(address: &HttpAddress, rundir: &Path) -> io::Result<Listener> {
        match address {
            HttpAddress::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            HttpAddress::Unix(path) => {
                let (listener, _file) = bind_unix(&rundir.join(path))?;
                Ok(Listener::Unix { listener, _file })
            }
        }
    }

    async fn accept(&self) -> io::Result<std::pin::Pin<Box<dyn Stream>>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Pieces are sent as they are made; without this they are only slower.
                let _ = stream.set_nodelay(true);
                Ok(Box::pin(stream))
            }
            Listener::Unix { listener, .. } => Ok(Box::pin(listener.accept().await?.0)),
        }
    }
}

/// What all connections share.
struct Service<C: 'static> {
    routes: &'static [Route<C>],
    context: Rc<C>,
    token_file: Option<PathBuf>,
    /// Browsers cannot reach it.
    is_local: bool,
    /// There is one more of it for each answer that another thread works on.
    later: Rc<()>,
}

/// Answers the requests of one peer, in order.
async fn connection<C: 'static>(stream: std::pin::Pin<Box<dyn Stream>>, slot: Slot, service: Rc<Service<C>>) {
    let peer = Peer::new(slot);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let answer = service_fn(|request: Request<Incoming>| {
        let (service, peer) = (service.clone(), peer.clone());
        peer.working();
        async move { Ok::<_, Infallible>(service.answer(&request, peer).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(PeerStream::new(stream, peer.clone())), answer);
    tokio::select! {
        ended = serving => drop(ended.inspect_err(|e| tracing::debug!("http: {e}"))),
        () = peer.lost() => tracing::debug!("http: a silent connection has made room for another"),
    }
}

impl<C> Service<C> {
    async fn answer(&self, request: &Request<Incoming>, peer: Rc<Peer>) -> Response<Body> {
        let outcome = self.content(request, &peer).await;
        let (status, media_type, body) = match outcome {
            Ok((media_type, body)) => (StatusCode::OK, media_type, body),
            Err((status, problem)) => (status, TEXT, Body::text(format!("{problem}\n"), peer)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        match status {
            StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            StatusCode::METHOD_NOT_ALLOWED => drop(headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"))),
            _ => {}
        }
        response
    }

    /// The answer with its media type, or the status and what is wrong.
    async fn content(
        &self,
        request: &Request<Incoming>,
        peer: &Rc<Peer>,
    ) -> Result<(&'static str, Body), (StatusCode, String)> {
        let route = self.routes.iter().find(|route| route.path == request.uri().path());
        self.check(request, route.is_some_and(|route| route.is_public)).await?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let problem = format!("{}: only GET and HEAD are answered", request.method());
            return Err((StatusCode::METHOD_NOT_ALLOWED, problem));
        }
        let Some(route) = route else {
            let paths: Vec<_> = self.routes.iter().map(|route| route.path).collect();
            return Err((StatusCode::NOT_FOUND, format!("nothing is here; there is: {}", paths.join(" "))));
        };
        let failed = |problem| (StatusCode::INTERNAL_SERVER_ERROR, problem);
        let refused = |problem| (StatusCode::BAD_REQUEST, problem);
        // Before there is any work: what is refused causes none.
        let working = route.is_slow.then(|| self.work()).transpose()?;
        let body = match (route.run)(&self.context, request.uri().query()) {
            Answer::Now(outcome) => Body::text(outcome.map_err(failed)?, peer.clone()),
            Answer::Pieces(pieces) => Body::pieces(pieces, peer.clone()),
            Answer::Later(answer) => {
                let ended = |_| failed("the thread that worked on this has ended; the log says why".into());
                Body::text(answered(answer, working).await.map_err(ended)?.map_err(refused)?, peer.clone())
            }
            Answer::Refused(problem) => return Err(refused(problem)),
        };
        Ok((route.media_type, body))
    }

    /// One more answer that another thread works on, until what this returns is dropped.
    fn work(&self) -> Result<Rc<()>, (StatusCode, String)> {
        if Rc::strong_count(&self.later) > MAX_LATER {
            let problem = format!("{MAX_LATER} requests that take some time are being worked on; ask again");
            return Err((StatusCode::SERVICE_UNAVAILABLE, problem));
        }
        Ok(self.later.clone())
    }

    /// Whether the peer is answered. The token is read each time, so that another one counts at once; by another thread, as a file system
    /// may keep it waiting.
    async fn check(&self, request: &Request<Incoming>, is_public: bool) -> Result<(), (StatusCode, String)> {
        let Some(path) = self.token_file.clone() else {
            let rule = if self.is_local { Rule::Anybody } else { Rule::OwnHost };
            return rule.check(request.headers()).map_err(|refusal| (StatusCode::FORBIDDEN, refusal.to_string()));
        };
        if is_public {
            return Ok(());
        }
        let read = tokio::task::spawn_blocking(move || (read_token(&path), path)).await;
        match read {
            Ok((Ok(token), _)) => Rule::Token(&token)
                .check(request.headers())
                .map_err(|refusal: Refusal| (StatusCode::UNAUTHORIZED, refusal.to_string())),
            Ok((Err(e), path)) => {
                tracing::warn!("http: cannot read the token in {}: {e}", path.display());
                Err((StatusCode::SERVICE_UNAVAILABLE, "the daemon cannot read its token; its log says why".into()))
            }
            // The runtime is ending.
            Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending".into())),
        }
    }
}

/// What another thread answers. It is `working` until it has answered, also where the peer goes before.
async fn answered(
    answer: oneshot::Receiver<Outcome>,
    working: Option<Rc<()>>,
) -> Result<Outcome, oneshot::error::RecvError> {
    let (sender, outcome) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let outcome = answer.await;
        drop(working);
        // Where the work has ended without an answer, the other end finds out as it is dropped.
        let _ = outcome.map(|outcome| sender.send(outcome));
    });
    outcome.await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    /// What has been begun, and where it is to be answered.
    #[derive(Default)]
    struct Work {
        begun: Cell<usize>,
        unanswered: RefCell<Vec<oneshot::Sender<Outcome>>>,
    }

    static ROUTES: &[Route<Work>] = &[Route {
        path: "/slow",
        media_type: TEXT,
        is_public: false,
        is_slow: true,
        run: |work, _| {
            let (sender, answer) = oneshot::channel();
            work.begun.set(work.begun.get() + 1);
            work.unanswered.borrow_mut().push(sender);
            Answer::Later(answer)
        },
    }];

    async fn ask(path: &Path) -> UnixStream {
        let mut peer = UnixStream::connect(path).await.unwrap();
        peer.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        peer
    }

    /// The first line of the answer.
    async fn status(peer: &mut UnixStream) -> String {
        let mut line = [0; 12];
        peer.read_exact(&mut line).await.unwrap();
        String::from_utf8_lossy(&line).into_owned()
    }

    #[tokio::test]
    async fn what_is_refused_is_not_begun_and_what_is_begun_counts_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (server, settings) = Server::new(dir.path());
        settings.send(Http { listen: Some(HttpAddress::Unix("http".into())), ..Http::default() }).unwrap();
        let (path, work) = (dir.path().join("http"), Rc::new(Work::default()));
        let test = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut peers = Vec::new();
            while work.begun.get() < MAX_LATER {
                peers.push(ask(&path).await);
                tokio::task::yield_now().await;
            }
            assert_eq!(status(&mut ask(&path).await).await, "HTTP/1.1 503");
            drop(peers);
            for _ in 0..20 {
                assert_eq!(status(&mut ask(&path).await).await, "HTTP/1.1 503");
            }
            assert_eq!(work.begun.get(), MAX_LATER);
            for sender in work.unanswered.take() {
                // Nobody waits for it.
                let _ = sender.send(Ok(String::new()));
            }
            tokio::task::yield_now().await;
            let mut last = ask(&path).await;
            while work.begun.get() == MAX_LATER {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            work.unanswered.take().pop().unwrap().send(Ok("done".into())).unwrap();
            assert_eq!(status(&mut last).await, "HTTP/1.1 200");
        };
        let both = async {
            tokio::select! {
                () = server.serve(ROUTES, work.clone()) => {}
                ended = tokio::time::timeout(Duration::from_secs(20), test) => ended.unwrap(),
            }
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }
}
