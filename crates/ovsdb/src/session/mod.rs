//! A client's session with a server, without sockets and clocks: bytes and times go in, bytes and events
//! come out.
//!
//! ```text
//! Waiting ─(backoff over)─▶ Connecting ─▶ Schema ─▶ Monitor ─▶ Running
//!    ▲                          │            │          │         │
//!    └──────────────────────────┴── failure ─┴──────────┴─────────┘
//! ```
//!
//! 1. **Schema**: `get_schema` shows that the database is there and what it has.
//! 2. The **lock**, if one is configured, is asked for together with the monitor, so that whether it is
//!    held is known when the contents are.
//! 3. **Monitor**: `monitor_cond_since`, then what older servers know.
//! 4. **Running**: changes are reported, transactions are taken.
//!
//! Whatever goes wrong ends the connection with a [`Reason`]; the replica keeps its contents meanwhile, and
//! the next connection reports the difference only.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;
use weir_time::Time;

use crate::change::ChangeSet;
use crate::jsonrpc::{FrameError, Framer, Limits, Message};
use crate::replica::{Method, Replica, Selection, UpdateError};
use crate::schema::{DatabaseSchema, SchemaError};
use crate::transaction::{Committed, DbError, Encoded, TransactError, Transaction};
use crate::types::{Uuid, describe};

/// How a session behaves. [`Config::new`] has the values that OVS uses.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the database.
    pub database: String,
    /// What to replicate.
    pub selection: Selection,
    /// Lock to hold while writing.
    pub lock: Option<String>,
    /// Silence after which the server is asked whether it is there, and again after which the connection
    /// is given up; none to never ask.
    pub probe: Option<Duration>,
    /// Pause before the first attempt to connect again; doubled from one failure to the next.
    pub min_backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long each step between connecting and running may take.
    pub step_timeout: Duration,
    /// What a server may send.
    pub limits: Limits,
    /// How many transactions may wait for their replies.
    pub max_in_flight: usize,
    /// How many bytes of answers to the server's own requests may wait for it to read them.
    pub max_unread_answers: usize,
}

impl Config {
    /// A session with `database` that replicates `selection`.
    pub fn new(database: &str, selection: Selection) -> Config {
        Config {
            database: database.to_owned(),
            selection,
            lock: None,
            probe: Some(Duration::from_secs(5)),
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(8),
            connect_timeout: Duration::from_secs(10),
            step_timeout: Duration::from_secs(60),
            limits: Limits::default(),
            max_in_flight: 1024,
            max_unread_answers: 1 << 20,
        }
    }

    /// Asks for a lock, and lets no transaction go ahead without it.
    pub fn with_lock(mut self, lock: &str) -> Config {
        self.lock = Some(lock.to_owned());
        self
    }
}

/// Why a connection ended or was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// It was not made.
    #[error("{0}")]
    Connect(String),
    /// It was not made in time.
    #[error("no connection after {} s", .0.as_secs_f64())]
    ConnectTimeout(Duration),
    /// The server closed it.
    #[error("connection closed by the server")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(String),
    /// The server does not speak JSON-RPC.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The server asks, and does not read what it is answered.
    #[error("more than {0} bytes of answers that the server does not read")]
    Unread(usize),
    /// Silence.
    #[error("no answer to an inactivity probe for {} s", .0.as_secs_f64())]
    Probe(Duration),
    /// A reply did not come.
    #[error("no reply to `{0}` for {after} s", after = .1.as_secs_f64())]
    StepTimeout(&'static str, Duration),
    /// The server refused a request of the session's own.
    #[error("{0}: {1}")]
    Refused(&'static str, DbError),
    /// The schema cannot be read.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// An update does not fit the replica.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A reply or notification not as the protocol has it.
    #[error("unexpected {0}")]
    Protocol(String),
    /// The server stopped the monitor: the database was removed or converted.
    #[error("the server canceled the monitor")]
    MonitorCanceled,
    /// The client asked for it.
    #[error("closed on request")]
    Requested,
}

/// Names a transaction until its result is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId(pub u64);

/// What a session reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The replica holds what the database holds. The changes are since the end of the last connection;
    /// for the first, they are the contents.
    Synced(ChangeSet),
    /// Rows changed.
    Changed(ChangeSet),
    /// The lock is held from now on.
    LockGained,
    /// The lock is no longer held.
    LockLost,
    /// A transaction ended.
    Transacted(TxnId, Result<Committed, TransactError>),
    /// A connection ended, or an attempt to make one.
    Disconnected(Reason),
}

/// What a reply will be to.
#[derive(Debug)]
enum Pending {
    Schema,
    Lock,
    Monitor(Method),
    Transaction(Encoded),
    Probe,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Schema,
    Monitor,
    Running(Method),
}

/// A connection.
#[derive(Debug)]
struct Online {
    stage: Stage,
    since: Time,
    stage_since: Time,
    framer: Framer,
    pending: BTreeMap<u64, Pending>,
    received: Time,
    probed: Option<Time>,
    /// Bytes of answers that were put in the output since it was empty.
    answered: usize,
}

#[derive(Debug)]
enum ConnectionState {
    Waiting { until: Time },
    Connecting { since: Time },
    Online(Box<Online>),
}

/// A session. The driver opens a connection when [`wants_connection`](Session::wants_connection) says so,
/// closes it as soon as [`is_connected`](Session::is_connected) is false, moves bytes, and calls
/// [`tick`](Session::tick) at [`deadline`](Session::deadline).
#[derive(Debug)]
pub struct Session {
    config: Config,
    state: ConnectionState,
    backoff: Duration,
    replica: Replica,
    schema: Option<DatabaseSchema>,
    missing: Vec<String>,
    has_lock: bool,
    next_id: u64,
    output: Vec<u8>,
    written: usize,
    events: VecDeque<Event>,
}

impl Session {
    /// A session that wants its first connection at once.
    pub fn new(config: Config, now: Time) -> Session {
        Session {
            backoff: config.min_backoff,
            config,
            state: ConnectionState::Waiting { until: now },
            replica: Replica::new(),
            schema: None,
            missing: Vec::new(),
            has_lock: false,
            next_id: 1,
            output: Vec::new(),
            written: 0,
            events: VecDeque::new(),
        }
    }

    /// The copy of the database.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The schema of the server last connected to.
    pub fn schema(&self) -> Option<&DatabaseSchema> {
        self.schema.as_ref()
    }

    /// Tables (`T`) and columns (`T:C`) selected that the server does not have.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// True while the replica follows the database.
    pub fn is_synced(&self) -> bool {
        matches!(&self.state, ConnectionState::Online(online) if matches!(online.stage, Stage::Running(_)))
    }

    /// The way in which the server reports changes, once it does.
    pub fn method(&self) -> Option<Method> {
        match &self.state {
            ConnectionState::Online(online) => match online.stage {
                Stage::Running(method) => Some(method),
                _ => None,
            },
            _ => None,
        }
    }

    /// True while the configured lock is held.
    pub fn has_lock(&self) -> bool {
        self.has_lock
    }

    /// True while there is a connection for the driver to serve.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, ConnectionState::Online(_))
    }

    /// True if the driver is to connect now.
    pub fn wants_connection(&self, now: Time) -> bool {
        matches!(self.state, ConnectionState::Waiting { until } if until <= now)
    }

    /// True between [`connecting`](Session::connecting) and its outcome.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, ConnectionState::Connecting { .. })
    }

    /// The driver has begun to connect.
    pub fn connecting(&mut self, now: Time) {
        self.state = ConnectionState::Connecting { since: now };
    }

    /// The driver has connected.
    pub fn connected(&mut self, now: Time) {
        self.output.clear();
        self.written = 0;
        self.state = ConnectionState::Online(Box::new(Online {
            stage: Stage::Schema,
            since: now,
            stage_since: now,
            framer: Framer::new(self.config.limits),
            pending: BTreeMap::new(),
            received: now,
            probed: None,
            answered: 0,
        }));
        self.request("get_schema", json!([self.config.database]), Pending::Schema);
    }

    /// Ends the connection, or the attempt to make one.
    pub fn disconnect(&mut self, now: Time, reason: Reason) {
        let pause = match std::mem::replace(&mut self.state, ConnectionState::Waiting { until: now }) {
            // It was over before.
            ConnectionState::Waiting { until } => {
                self.state = ConnectionState::Waiting { until };
                return;
            }
            ConnectionState::Connecting { .. } => self.double_backoff(),
            ConnectionState::Online(online) => {
                for (id, pending) in online.pending {
                    if matches!(pending, Pending::Transaction(_)) {
                        self.events.push_back(Event::Transacted(TxnId(id), Err(TransactError::Lost)));
                    }
                }
                let lasted = now.since(online.since);
                if matches!(online.stage, Stage::Running(_)) && lasted >= self.backoff {
                    self.backoff = self.config.min_backoff;
                    self.backoff
                } else {
                    self.double_backoff()
                }
            }
        };
        self.state = ConnectionState::Waiting { until: now + pause };
        self.output.clear();
        self.written = 0;
        self.set_lock(false);
        if matches!(reason, Reason::Update(_)) {
            // The replica and the database went apart: compare everything.
            self.replica.forget_last_txn();
        }
        self.events.push_back(Event::Disconnected(reason));
    }

    /// The pause now, twice as long for the next time.
    fn double_backoff(&mut self) -> Duration {
        let pause = self.backoff;
        self.backoff = (self.backoff * 2).min(self.config.max_backoff);
        pause
    }

    /// Bytes to send.
    pub fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// The driver has sent `n` bytes of the output.
    pub fn sent(&mut self, n: usize) {
        self.written = (self.written + n).min(self.output.len());
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            if let ConnectionState::Online(online) = &mut self.state {
                online.answered = 0;
            }
        }
    }

    /// What happened; none if everything is reported.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`tick`](Session::tick) is due; none if only the driver can bring news.
    pub fn deadline(&self) -> Option<Time> {
        match &self.state {
            ConnectionState::Waiting { until } => Some(*until),
            ConnectionState::Connecting { since } => Some(*since + self.config.connect_timeout),
            ConnectionState::Online(online) => {
                let probe = self.config.probe.map(|probe| online.probed.unwrap_or(online.received) + probe);
                let step = match online.stage {
                    Stage::Running(_) => None,
                    _ => Some(online.stage_since + self.config.step_timeout),
                };
                probe.into_iter().chain(step).min()
            }
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        match &self.state {
            ConnectionState::Connecting { since } if now >= *since + self.config.connect_timeout => {
                self.disconnect(now, Reason::ConnectTimeout(self.config.connect_timeout));
            }
            ConnectionState::Online(online) => {
                let step = match online.stage {
                    Stage::Schema => Some("get_schema"),
                    Stage::Monitor => Some("monitor"),
                    Stage::Running(_) => None,
                };
                if let Some(step) = step
                    && now >= online.stage_since + self.config.step_timeout
                {
                    return self.disconnect(now, Reason::StepTimeout(step, self.config.step_timeout));
                }
                let Some(probe) = self.config.probe else { return };
                match online.probed {
                    Some(probed) if now >= probed + probe => self.disconnect(now, Reason::Probe(probe)),
                    None if now >= online.received + probe => {
                        self.request("echo", json!([]), Pending::Probe);
                        if let ConnectionState::Online(online) = &mut self.state {
                            online.probed = Some(now);
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Takes bytes that the server sent.
    pub fn received(&mut self, now: Time, bytes: &[u8]) {
        let ConnectionState::Online(online) = &mut self.state else { return };
        online.received = now;
        online.probed = None;
        online.framer.push(bytes);
        while let ConnectionState::Online(online) = &mut self.state {
            let done = match online.framer.next_message() {
                Ok(None) => return,
                Ok(Some(message)) => self.handle(now, message),
                Err(error) => Err(error.into()),
            };
            if let Err(reason) = done {
                self.disconnect(now, reason);
            }
        }
    }

    /// Sends a transaction. Its result comes as [`Event::Transacted`], after the changes that it made.
    pub fn transact(&mut self, transaction: &Transaction) -> Result<TxnId, TransactError> {
        let (ConnectionState::Online(online), Some(schema)) = (&self.state, &self.schema) else {
            return Err(TransactError::NotConnected);
        };
        if !matches!(online.stage, Stage::Running(_)) {
            return Err(TransactError::NotConnected);
        }
        if online.pending.len() >= self.config.max_in_flight {
            return Err(TransactError::Busy(online.pending.len()));
        }
        let lock = self.config.lock.as_deref().filter(|_| !transaction.is_without_lock());
        if lock.is_some() && !self.has_lock {
            return Err(TransactError::NotLocked);
        }
        let (params, encoded) = transaction.encode(schema, lock);
        Ok(TxnId(self.request("transact", params, Pending::Transaction(encoded))))
    }

    fn request(&mut self, method: &str, params: Value, pending: Pending) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        Message::request(method, params, id).emit(&mut self.output);
        if let ConnectionState::Online(online) = &mut self.state {
            online.pending.insert(id, pending);
        }
        id
    }

    fn handle(&mut self, now: Time, message: Message) -> Result<(), Reason> {
        if let Some(reply) = message.echo_reply() {
            return self.answer(&reply);
        }
        match message {
            Message::Request { id, .. } => self.answer(&Message::Reply { result: Err(json!("unknown method")), id }),
            Message::Notification { method, params } => self.handle_notification(&method, &params),
            Message::Reply { result, id } => {
                let ConnectionState::Online(online) = &mut self.state else { return Ok(()) };
                match id.as_u64().and_then(|id| online.pending.remove(&id).map(|p| (id, p))) {
                    Some((id, pending)) => self.handle_reply(now, id, pending, result),
                    None => Err(Reason::Protocol(format!("reply to a request {} that was not made", describe(&id)))),
                }
            }
        }
    }

    /// Answers a request. To read no more until the server reads would not do: it may not read while it has something to send.
    fn answer(&mut self, reply: &Message) -> Result<(), Reason> {
        let ConnectionState::Online(online) = &mut self.state else { return Ok(()) };
        let most = self.config.max_unread_answers;
        if online.answered > most {
            return Err(Reason::Unread(most));
        }
        let before = self.output.len();
        reply.emit(&mut self.output);
        online.answered += self.output.len() - before;
        Ok(())
    }

    fn handle_notification(&mut self, method: &str, params: &Value) -> Result<(), Reason> {
        let first = params.get(0).unwrap_or(&Value::Null);
        let mine = *first == json!(self.config.database);
        let running = self.method();
        match method {
            "locked" | "stolen" if self.config.lock.as_deref() == first.as_str() => {
                self.set_lock(method == "locked");
                Ok(())
            }
            "monitor_canceled" if mine => Err(Reason::MonitorCanceled),
            _ if mine && running.is_some_and(|m| m.notification() == method) => {
                let method = running.unwrap_or(Method::Monitor);
                let (txn, updates) = match method {
                    Method::MonitorCondSince => (txn_id(params.get(1))?, params.get(2)),
                    _ => (None, params.get(1)),
                };
                let changes = self.replica.update(method, txn, updates.unwrap_or(&Value::Null))?;
                if !changes.is_empty() {
                    self.events.push_back(Event::Changed(changes));
                }
                Ok(())
            }
            // Servers may send what this client does not know.
            _ => Ok(()),
        }
    }

    fn handle_reply(
        &mut self,
        now: Time,
        id: u64,
        pending: Pending,
        result: Result<Value, Value>,
    ) -> Result<(), Reason> {
        let refused = |what| move |error: &Value| Reason::Refused(what, DbError::from_json(error));
        match pending {
            Pending::Probe => Ok(()),
            Pending::Schema => {
                let schema = DatabaseSchema::parse(result.as_ref().map_err(refused("get_schema"))?)?;
                self.missing = self.replica.prepare(&schema, &self.config.selection);
                self.schema = Some(schema);
                self.enter(now, Stage::Monitor);
                if let Some(lock) = self.config.lock.clone() {
                    self.request("lock", json!([lock]), Pending::Lock);
                }
                self.request_monitor(Method::MonitorCondSince);
                Ok(())
            }
            Pending::Lock => {
                let reply = result.as_ref().map_err(refused("lock"))?;
                match reply.get("locked").and_then(Value::as_bool) {
                    Some(locked) => self.set_lock(locked),
                    None => return Err(Reason::Protocol(format!("reply to `lock`: {}", describe(reply)))),
                }
                Ok(())
            }
            Pending::Monitor(method) => match (result, method.fallback()) {
                (Ok(contents), _) => self.load(now, method, &contents),
                (Err(error), Some(older)) if DbError::from_json(&error).name == "unknown method" => {
                    self.request_monitor(older);
                    Ok(())
                }
                (Err(error), _) => Err(refused(method.name())(&error)),
            },
            Pending::Transaction(encoded) => {
                self.events.push_back(Event::Transacted(TxnId(id), encoded.decode(&result)));
                Ok(())
            }
        }
    }

    fn request_monitor(&mut self, method: Method) {
        let Some(schema) = &self.schema else { return };
        let requests = self.replica.monitor_requests(schema);
        // The database's name serves as the monitor's.
        let mut params = json!([self.config.database, self.config.database, requests]);
        if let (Method::MonitorCondSince, Value::Array(params)) = (method, &mut params) {
            params.push(json!(self.replica.last_txn().unwrap_or(Uuid::ZERO).to_string()));
        }
        self.request(method.name(), params, Pending::Monitor(method));
    }

    /// Takes the contents from the reply to the monitor request.
    fn load(&mut self, now: Time, method: Method, reply: &Value) -> Result<(), Reason> {
        let changes = match method {
            Method::Monitor | Method::MonitorCond => self.replica.load(method, None, reply)?,
            Method::MonitorCondSince => {
                let (Some(found), Some(updates)) = (reply.get(0).and_then(Value::as_bool), reply.get(2)) else {
                    return Err(Reason::Protocol(format!("reply to `{}`: {}", method.name(), describe(reply))));
                };
                let txn = txn_id(reply.get(1))?;
                if found {
                    self.replica.update(method, txn, updates)?
                } else {
                    self.replica.load(method, txn, updates)?
                }
            }
        };
        self.enter(now, Stage::Running(method));
        self.events.push_back(Event::Synced(changes));
        Ok(())
    }

    fn enter(&mut self, now: Time, stage: Stage) {
        if let ConnectionState::Online(online) = &mut self.state {
            online.stage = stage;
            online.stage_since = now;
        }
    }

    fn set_lock(&mut self, held: bool) {
        if held != self.has_lock {
            self.has_lock = held;
            self.events.push_back(if held { Event::LockGained } else { Event::LockLost });
        }
    }
}

fn txn_id(json: Option<&Value>) -> Result<Option<Uuid>, Reason> {
    let json = json.unwrap_or(&Value::Null);
    let uuid = json.as_str().and_then(|s| s.parse().ok());
    uuid.map(Some).ok_or_else(|| Reason::Protocol(format!("transaction id {}", describe(json))))
}

#[cfg(test)]
mod tests;
