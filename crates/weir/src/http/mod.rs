//! The HTTP server of the daemon: reads only, off by default.
//!
//! It runs on the management thread, where what it shows is: an answer needs no lock between threads, and is made in the same pieces
//! and turns as the control socket's ([`turn`](crate::turn)), so that neither holds up the other. It is built on hyper alone: what
//! axum has beyond it wants state that can be sent to other threads, and the few paths there are fit a table.
//!
//! What bounds a peer: the number of connections, among which one that says nothing or does not read makes room for another
//! ([`Connections`](crate::connections::Connections)); the time for a request's head, the size of that, and the time in which it reads
//! nothing of its answer. A request's body is never read. Only `GET` and `HEAD` are answered.
//!
//! Who is answered, see [`access`]: whoever bears the token, where there is one; otherwise whoever reaches the socket, but no page of
//! another site in a browser of this machine. A file that is the same in every Weir ([`Route::is_public`]) is had without a token: a
//! browser that loads a page cannot bear one.
//!
//! - [`access`]: who is answered
//! - `body`: an answer's way to the peer
//! - `peer`: what a peer takes of its answers, and when it has all
//! - [`query`]: what stands behind the `?` of a request
//! - [`server`]: listens, and serves connections

use tokio::sync::oneshot;

use crate::unixctl::Pieces;
use crate::unixctl::command::Outcome;

pub mod access;
mod body;
mod peer;
pub mod query;
pub mod server;

pub use query::Query;
pub use server::Server;

/// A path that is answered, on context `C`.
pub struct Route<C: 'static> {
    /// The path, from its slash.
    pub path: &'static str,
    /// The media type of the answer.
    pub media_type: &'static str,
    /// It says nothing of the switch, so no token is asked for.
    pub is_public: bool,
    /// Another thread makes its answer ([`Answer::Later`]). There are few of these at a time: above that, it is not asked to.
    pub is_slow: bool,
    /// Makes the answer; the other argument is the query behind `?`, as it came. Runs on the management thread, so it is quick.
    pub run: fn(&C, Option<&str>) -> Answer,
}

/// What a path answers.
pub enum Answer {
    /// A text that is there, or what is wrong, in words.
    Now(Outcome),
    /// A long text, made as the peer reads it.
    Pieces(Pieces),
    /// A text, or what is wrong with the request, when another thread has done the work. Only of routes that are [slow](Route::is_slow).
    Later(oneshot::Receiver<Outcome>),
    /// What is wrong with the request, in words.
    Refused(String),
}
