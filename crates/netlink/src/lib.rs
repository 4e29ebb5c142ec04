//! Sockets of rtnetlink(7): requests to the kernel, and its word of what has changed.
//!
//! | module | what it is |
//! |---|---|
//! | [`requests`] | a socket that asks: one request at a time, and dumps of whole tables |
//! | [`events`] | a socket that is told of changes, and knows when it has missed some |
//! | [`message`] | the messages in a datagram |
//!
//! What messages say is read by those who use it. They are written by netlink-packet-route.

use std::sync::atomic::AtomicU64;

pub mod events;
pub mod message;
pub mod requests;

pub use events::{Event, Events};
pub use requests::Requests;

/// Datagrams that were sent to the kernel. Of all sockets.
pub static SENT: AtomicU64 = AtomicU64::new(0);
/// Datagrams that came from it.
pub static RECEIVED: AtomicU64 = AtomicU64::new(0);
/// Events that it had no room for: how often some were lost.
pub static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

/// Room for one datagram at first. The kernel sends an interface in one message, by far the longest part of
/// which are the virtual functions of a NIC, and those only to who asks for them.
const BUFFER: usize = 64 * 1024;

/// Receives a datagram and returns its whole length, which may be more than there is room for.
fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8], flags: i32) -> std::io::Result<usize> {
    retry(|| socket.recv(&mut &mut *buffer, flags | libc::MSG_TRUNC))
}

/// Calls a system call again that a signal has interrupted.
fn retry<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
