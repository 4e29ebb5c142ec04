//! A session on a socket, driven by a tokio runtime.
//!
//! [`Client::next`] does all the work of the client while it is awaited, and can be cancelled at any time
//! (`select!`). Whoever cannot await it all the time, or has other work that must not wait while a long message
//! is read, lets a thread do so: [`Client::spawn`].

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tracing::{debug, info, warn};
use weir_time::{Clock, Time};

use crate::replica::Replica;
use crate::session::{Config, Event, Reason, Session, TxnId};
use crate::transaction::{Committed, TransactError, Transaction};
use crate::transport::{ConnectError, Remote, Stream, connect};

/// The machine's monotonic clock.
#[derive(Clone, Debug)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

/// Where a transaction's result goes.
type Answer = oneshot::Sender<Result<Committed, TransactError>>;

/// The result of a transaction, when it is there.
pub type Pending = oneshot::Receiver<Result<Committed, TransactError>>;

type Dialing = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

enum Link {
    Down,
    Dialing(Dialing),
    Up(Stream),
}

/// Sends transactions from anywhere.
#[derive(Clone, Debug)]
pub struct Handle(mpsc::UnboundedSender<(Transaction, Answer)>);

impl Handle {
    /// Sends a transaction; the result comes when the future is awaited. Transactions take effect in the
    /// order in which this was called.
    pub fn transact(
        &self,
        transaction: Transaction,
    ) -> impl Future<Output = Result<Committed, TransactError>> + Send + 'static {
        let (answer, result) = oneshot::channel();
        let sent = self.0.send((transaction, answer));
        async move {
            match sent {
                Ok(()) => result.await.unwrap_or(Err(TransactError::Lost)),
                Err(_) => Err(TransactError::NotConnected),
            }
        }
    }
}

/// A client of a database.
pub struct Client {
    session: Session,
    clock: Arc<dyn Clock>,
    remotes: Vec<Remote>,
    next_remote: usize,
    tls: Tls,
    link: Link,
    unflushed: bool,
    waiting: HashMap<TxnId, Answer>,
    handle: Handle,
    requests: mpsc::UnboundedReceiver<(Transaction, Answer)>,
    buffer: Box<[u8]>,
    /// How often in a row no connection was made.
    failures: u32,
}

/// How many attempts in a row to connect are logged.
const LOGGED_FAILURES: u32 = 5;

impl Client {
    /// A client of the server at one of `remotes`, which it tries in turn. Connecting begins when
    /// [`next`](Client::next) is awaited.
    pub fn new(config: Config, remotes: Vec<Remote>, tls: Tls) -> Client {
        Client::with_clock(config, remotes, tls, Arc::new(MonotonicClock::default()))
    }

    /// The same with another clock.
    pub fn with_clock(config: Config, remotes: Vec<Remote>, tls: Tls, clock: Arc<dyn Clock>) -> Client {
        let (sender, requests) = mpsc::unbounded_channel();
        Client {
            session: Session::new(config, clock.now()),
            clock,
            remotes,
            next_remote: 0,
            tls,
            link: Link::Down,
            unflushed: false,
            waiting: HashMap::new(),
            handle: Handle(sender),
            requests,
            buffer: vec![0; 1 << 16].into_boxed_slice(),
            failures: 0,
        }
    }

    /// The copy of the database.
    pub fn replica(&self) -> &Replica {
        self.session.replica()
    }

    /// True while the replica follows the database.
    pub fn is_synced(&self) -> bool {
        self.session.is_synced()
    }

    /// True while the configured lock is held.
    pub fn has_lock(&self) -> bool {
        self.session.has_lock()
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sends transactions from elsewhere. Whoever awaits their results must not be the one that awaits
    /// [`next`](Client::next), since nothing moves meanwhile.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sends a transaction. The result comes while [`next`](Client::next) is awaited, after the event of
    /// the changes that it made has been put in line.
    pub fn transact(&mut self, transaction: &Transaction) -> Pending {
        let (answer, result) = oneshot::channel();
        self.submit(transaction, answer);
        result
    }

    /// Ends the connection, if there is one, and makes a new one.
    pub fn reconnect(&mut self) {
        self.session.disconnect(self.clock.now(), Reason::Requested);
    }

    /// Waits for the next event. [`Event::Transacted`] is none of them: results go to who sent the
    /// transaction.
    pub async fn next(&mut self) -> Event {
        loop {
            while let Some(event) = self.session.poll_event() {
                if let Some(event) = self.deliver(event) {
                    return event;
                }
            }
            let now = self.clock.now();
            self.session.tick(now);
            self.follow_session(now);
            let pause = self
                .session
                .deadline()
                .filter(|_| !self.remotes.is_empty())
                .map(|at| tokio::time::sleep(at.since(now)));
            let mut pause = pin!(pause);
            poll_fn(|cx| {
                let due = pause.as_mut().as_pin_mut().is_some_and(|p| p.poll(cx).is_ready());
                if self.poll_requests(cx) | self.poll_link(cx) | due { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// Answers who waits for a transaction; passes other events on.
    fn deliver(&mut self, event: Event) -> Option<Event> {
        match &event {
            Event::Transacted(id, result) => {
                if let Some(answer) = self.waiting.remove(id) {
                    // Who asked may have lost interest.
                    let _ = answer.send(result.clone());
                }
                return None;
            }
            // A server that is restarted, or not there yet, is nothing to be warned of.
            Event::Disconnected(reason @ Reason::Closed) => info!("database: {reason}"),
            Event::Disconnected(reason @ (Reason::Connect(_) | Reason::ConnectTimeout(_))) => {
                self.failures = self.failures.saturating_add(1);
                match self.failures {
                    ..LOGGED_FAILURES => info!("database: {reason}"),
                    LOGGED_FAILURES => info!("database: {reason}; more attempts in the background are not logged"),
                    _ => debug!("database: {reason}"),
                }
            }
            Event::Disconnected(reason) => warn!("database: {reason}"),
            Event::Synced(_) => {
                let schema = self.session.schema();
                self.failures = 0;
                info!("database {}: connected", schema.map_or("", |s| &s.name));
                if !self.session.missing().is_empty() {
                    info!("database: its schema does not have {}", self.session.missing().join(", "));
                }
            }
            Event::LockGained => info!("database: lock acquired"),
            Event::LockLost => info!("database: lock lost"),
            Event::Changed(changes) => debug!("database: {} rows changed", changes.len()),
        }
        Some(event)
    }

    /// Closes and opens the socket as the session wants it.
    fn follow_session(&mut self, now: Time) {
        if !self.session.is_connected() && !self.session.is_connecting() {
            self.link = Link::Down;
            self.unflushed = false;
        }
        if self.session.wants_connection(now) && !self.remotes.is_empty() {
            let remote = self.remotes[self.next_remote % self.remotes.len()].clone();
            self.next_remote = self.next_remote.wrapping_add(1);
            let tls = self.tls.clone();
            debug!("database: connecting to {remote}");
            self.link = Link::Dialing(Box::pin(async move { connect(&remote, &tls).await }));
            self.session.connecting(now);
        }
    }

    fn submit(&mut self, transaction: &Transaction, answer: Answer) {
        match self.session.transact(transaction) {
            Ok(id) => drop(self.waiting.insert(id, answer)),
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    /// Takes transactions from handles. True if there was one.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> bool {
        match self.requests.poll_recv(cx) {
            Poll::Ready(Some((transaction, answer))) => {
                self.submit(&transaction, answer);
                true
            }
            _ => false,
        }
    }

    /// Moves bytes. True if there is something to look at.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.link {
            Link::Down => false,
            Link::Dialing(dialing) => match dialing.as_mut().poll(cx) {
                Poll::Pending => false,
                Poll::Ready(outcome) => {
                    let now = self.clock.now();
                    match outcome {
                        Ok(stream) => {
                            self.link = Link::Up(stream);
                            self.session.connected(now);
                        }
                        Err(error) => self.session.disconnect(now, Reason::Connect(error.to_string())),
                    }
                    true
                }
            },
            Link::Up(_) => self.poll_stream(cx),
        }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> bool {
        let Link::Up(stream) = &mut self.link else { return false };
        let mut stream = Pin::new(stream);
        let failure = loop {
            if self.session.output().is_empty() {
                // TLS may hold bytes back until it is flushed.
                match self.unflushed.then(|| stream.as_mut().poll_flush(cx)) {
                    Some(Poll::Ready(Err(error))) => break Some(error),
                    Some(Poll::Ready(Ok(()))) => self.unflushed = false,
                    Some(Poll::Pending) | None => {}
                }
                break None;
            }
            match stream.as_mut().poll_write(cx, self.session.output()) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.session.sent(n);
                    self.unflushed = true;
                }
                Poll::Ready(Ok(_)) => break Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(error)) => break Some(error),
                Poll::Pending => break None,
            }
        };
        let reason = match failure {
            Some(error) => Reason::Io(error.to_string()),
            None => {
                let mut buffer = ReadBuf::new(&mut self.buffer);
                match stream.as_mut().poll_read(cx, &mut buffer) {
                    Poll::Pending => return false,
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() => Reason::Closed,
                    Poll::Ready(Ok(())) => {
                        self.session.received(self.clock.now(), buffer.filled());
                        return true;
                    }
                    Poll::Ready(Err(error)) => Reason::Io(error.to_string()),
                }
            }
        };
        self.session.disconnect(self.clock.now(), reason);
        true
    }

    /// Lets a thread of its own drive the client, since a message with a hundred thousand rows takes some time. Events that
    /// nobody takes are merged, so that a slow receiver costs no more memory than the rows that changed.
    ///
    /// # Errors
    /// The system gives no thread, or nothing to wait with.
    pub fn spawn(mut self) -> io::Result<Events> {
        let inbox = Arc::new(Inbox::default());
        let handle = self.handle();
        let (sender, state) = watch::channel(Snapshot::default());
        let (stop, mut stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let drive = {
            let inbox = inbox.clone();
            async move {
                // Nothing is sent: it is over when the other end has gone.
                while let Some(event) = unless(&mut stopped, self.next()).await {
                    sender.send_replace(Snapshot {
                        replica: self.replica().clone(),
                        synced: self.is_synced(),
                        has_lock: self.has_lock(),
                    });
                    inbox.push(event);
                }
            }
        };
        let run = move || {
            runtime.block_on(drive);
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(THREAD.into()).spawn(run)?;
        Ok(Events { inbox, state, handle, stop: Some(stop), thread: Some(thread) })
    }
}

/// Name of the thread that drives a client.
pub const THREAD: &str = "database";

/// The outcome of `work`, unless it is time to stop.
async fn unless<T>(stopped: &mut oneshot::Receiver<()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        _ = stopped => None,
        outcome = work => Some(outcome),
    }
}

/// What is known of the database: a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The copy of the database.
    pub replica: Replica,
    /// True while it follows the database.
    pub synced: bool,
    /// True while the configured lock is held.
    pub has_lock: bool,
}

/// Events that wait for the receiver. The thread pushes, the receiver takes; neither holds the lock for long.
#[derive(Default)]
struct Inbox {
    events: Mutex<VecDeque<Event>>,
    news: Notify,
}

impl Inbox {
    fn push(&self, event: Event) {
        let mut events = self.events.lock();
        match (events.back_mut(), event) {
            (Some(Event::Changed(earlier) | Event::Synced(earlier)), Event::Changed(later)) => earlier.merge(later),
            // Attempts to connect again and again, and nobody looks: the last reason is enough.
            (Some(Event::Disconnected(earlier)), Event::Disconnected(later)) => *earlier = later,
            (_, event) => events.push_back(event),
        }
        self.news.notify_one();
    }
}

/// The receiving end of a client that a thread drives. The thread ends when this is dropped.
pub struct Events {
    inbox: Arc<Inbox>,
    state: watch::Receiver<Snapshot>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Waits for the next event; can be cancelled at any time.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.inbox.events.lock().pop_front() {
                return event;
            }
            self.inbox.news.notified().await;
        }
    }

    /// The state of the moment, which may be ahead of the events.
    pub fn state(&self) -> Snapshot {
        self.state.borrow().clone()
    }

    /// Sees the state from elsewhere.
    pub fn watch(&self) -> watch::Receiver<Snapshot> {
        self.state.clone()
    }

    /// Sends transactions.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}
