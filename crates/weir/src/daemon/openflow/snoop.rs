//! Snooping: each bridge's snoop socket, where `ovs-ofctl snoop BRIDGE` finds it. Whoever connects to it gets a copy of all
//! messages from and to one of the bridge's controllers, also when that connects later. What it sends is not read by anybody.
//!
//! Sessions hand their messages to the controller's [`SnoopPoint`], which copies them for its snoopers: bounded queues that are written
//! by tasks of their own. As in Open vSwitch, a message that finds no room for a snooper is left out for that one. Where nobody
//! snoops, a message costs a look at an empty list. All this is on the management thread, but for the points, which sessions hold.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openflow::codec::{self, DecodeOptions};
use openflow::{Body, Hello, Message, Role, Version, Versions};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Peers, Task};
use crate::source::ControllerStatus;
use crate::unixctl::server::bind_unix;

/// Most snoopers of a bridge.
const MAX_SNOOPERS: usize = 8;

/// Most bytes that wait for a snooper.
const MAX_WAITING: usize = 1 << 20;

/// How long a snooper may take to say hello.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Where the messages of a controller are copied.
#[derive(Debug, Default)]
pub struct SnoopPoint {
    snoopers: Mutex<Vec<Arc<Queue>>>,
    /// How many there are.
    count: AtomicUsize,
}

/// Messages that wait for a snooper.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: VecDeque<u8>,
    /// The controller is there no more.
    is_closed: bool,
}

impl SnoopPoint {
    /// Copies a message for whoever snoops.
    pub fn copy(&self, message: &[u8]) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.snoopers.lock().iter().for_each(|queue| queue.push(message));
        }
    }

    /// Ends the snooping of a controller that is removed.
    pub fn close(&self) {
        for queue in self.snoopers.lock().drain(..) {
            queue.waiting.lock().is_closed = true;
            queue.changed.notify_one();
        }
        self.count.store(0, Ordering::Relaxed);
    }

    fn join(self: &Arc<SnoopPoint>) -> Snooper {
        let queue = Arc::<Queue>::default();
        let mut snoopers = self.snoopers.lock();
        snoopers.push(queue.clone());
        self.count.store(snoopers.len(), Ordering::Relaxed);
        drop(snoopers);
        Snooper { point: self.clone(), queue }
    }
}

impl Queue {
    fn push(&self, message: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.bytes.len() + message.len() <= MAX_WAITING {
            waiting.bytes.extend(message);
            self.changed.notify_one();
        }
    }

    /// All that waits. `None` when nothing will come any more.
    fn take(&self) -> Option<VecDeque<u8>> {
        let mut waiting = self.waiting.lock();
        let bytes = std::mem::take(&mut waiting.bytes);
        if bytes.is_empty() && waiting.is_closed { None } else { Some(bytes) }
    }
}

/// A snooper's place at a point.
struct Snooper {
    point: Arc<SnoopPoint>,
    queue: Arc<Queue>,
}

impl Drop for Snooper {
    fn drop(&mut self) {
        let mut snoopers = self.point.snoopers.lock();
        snoopers.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.point.count.store(snoopers.len(), Ordering::Relaxed);
    }
}

/// How interesting a controller is: most of all one that is primary.
pub fn preference(status: &ControllerStatus) -> u8 {
    match status.role.filter(|_| status.connections > 0) {
        Some(Role::Primary) => 3,
        Some(Role::Secondary) => 1,
        Some(_) => 2,
        None => 0,
    }
}

/// A bridge's snoop socket.
pub fn listen(path: &Path, peers: Rc<Peers>) -> Result<Task, String> {
    let (listener, file) = bind_unix(path).map_err(|e| format!("{}: cannot listen: {e}", path.display()))?;
    let accept = async move {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(_) if tasks.len() >= MAX_SNOOPERS => {
                        tracing::info!(bridge = peers.bridge.name(), "{MAX_SNOOPERS} snoop already: connection closed");
                    }
                    Ok((stream, _)) => {
                        let peers = peers.clone();
                        tasks.spawn_local(async move { serve(stream, &peers).await });
                    }
                    Err(e) => {
                        tracing::warn!(bridge = peers.bridge.name(), "cannot accept a connection that snoops: {e}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
            }
        }
    };
    Ok(Task::spawn(accept).with_file(file))
}

/// Serves a snooper until it goes, or the controller.
async fn serve(stream: UnixStream, peers: &Peers) {
    let bridge = peers.bridge.name();
    let Some(point) = peers.best_snoop_point() else {
        tracing::info!(bridge, "no controller connection to snoop");
        return;
    };
    // What comes while both say hello is not missed.
    let snooper = point.join();
    let served = async {
        let (mut reader, mut writer) = stream.into_split();
        let versions = peers.bridge.config().protocols;
        let version = versions.iter().last().unwrap_or(Version::V1_0);
        let hello = Message::new(version, 1, Body::Hello(Hello { versions }));
        writer.write_all(&codec::encode(&hello, DecodeOptions::default()).unwrap_or_default()).await.ok()?;
        tokio::time::timeout(HANDSHAKE, hear_hello(&mut reader, versions)).await.ok()??;
        tracing::info!(bridge, "a new connection snoops");
        let write = async {
            while let Some(mut bytes) = snooper.queue.take() {
                if bytes.is_empty() {
                    snooper.queue.changed.notified().await;
                } else {
                    writer.write_all(bytes.make_contiguous()).await.ok()?;
                }
            }
            Some(())
        };
        // Whatever it sends is read, and forgotten.
        let mut nobody = tokio::io::sink();
        let forget = tokio::io::copy(&mut reader, &mut nobody);
        tokio::select! {
            _ = write => {}
            _ = forget => {}
        }
        Some(())
    };
    if served.await.is_none() {
        tracing::debug!(bridge, "a connection that was to snoop has not agreed on a version");
    }
}

/// Reads a hello with a version in common. The others' messages come in the controller's version all the same.
async fn hear_hello(reader: &mut tokio::net::unix::OwnedReadHalf, versions: Versions) -> Option<Version> {
    let mut head = [0; codec::HEADER_LEN];
    reader.read_exact(&mut head).await.ok()?;
    let len = codec::frame_len(&head).ok()??;
    let mut bytes = vec![0; len];
    bytes[..codec::HEADER_LEN].copy_from_slice(&head);
    reader.read_exact(&mut bytes[codec::HEADER_LEN..]).await.ok()?;
    match codec::decode(&bytes, DecodeOptions::default()).ok()?.body {
        Body::Hello(hello) => hello.versions.negotiate(versions),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(snooper: &Snooper) -> Vec<u8> {
        snooper.queue.take().unwrap().into()
    }

    #[test]
    fn each_snooper_gets_the_messages_since_it_came_as_long_as_there_is_room() {
        let point = Arc::<SnoopPoint>::default();
        point.copy(&[1]);
        let first = point.join();
        point.copy(&[2]);
        let second = point.join();
        point.copy(&[3, 4]);
        assert_eq!((waits(&first), waits(&second)), (vec![2, 3, 4], vec![3, 4]));

        let long = vec![7; 60_000];
        (0..100).for_each(|_| point.copy(&long));
        drop(second);
        point.copy(&[5]);
        let waiting = waits(&first);
        assert_eq!(waiting.len() % long.len(), 1, "whole messages only");
        assert!(waiting.len() <= MAX_WAITING);
        assert_eq!(point.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_snooper_of_a_removed_controller_gets_what_waits_and_then_the_end() {
        let point = Arc::<SnoopPoint>::default();
        let snooper = point.join();
        point.copy(&[1]);
        point.close();
        point.copy(&[2]);
        assert_eq!(waits(&snooper), [1]);
        assert_eq!(snooper.queue.take(), None);
    }
}
