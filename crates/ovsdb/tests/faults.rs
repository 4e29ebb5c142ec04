//! The client against servers that misbehave.

mod common;

use std::time::Duration;

use common::{block_on, config};
use ovsdb::jsonrpc::{FrameError, Framer, Message};
use ovsdb::{Client, Config, Event, Reason, Remote, Transaction};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

struct Fake {
    dir: TempDir,
    listener: UnixListener,
}

/// A connection to the client, spoken to in messages.
struct Peer {
    stream: UnixStream,
    framer: Framer,
}

impl Fake {
    fn new() -> Fake {
        let dir = TempDir::new().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        Fake { dir, listener }
    }

    fn client(&self, config: Config) -> Client {
        Client::new(config, vec![Remote::Unix(self.dir.path().join("sock"))], Default::default())
    }

    async fn accept(&self) -> Peer {
        Peer { stream: self.listener.accept().await.unwrap().0, framer: Framer::default() }
    }
}

impl Peer {
    async fn receive(&mut self) -> Value {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.framer.next_message().unwrap() {
                return message.to_json();
            }
            let n = self.stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the client closed the connection");
            self.framer.push(&buffer[..n]);
        }
    }

    async fn send(&mut self, json: Value) {
        self.stream.write_all(json.to_string().as_bytes()).await.unwrap();
    }

    async fn reply(&mut self, result: Value) -> Value {
        let request = self.receive().await;
        self.send(json!({"id": request["id"], "result": result, "error": null})).await;
        request
    }

    /// Answers what a session asks until it runs.
    async fn serve(&mut self) -> Value {
        let columns = json!({"name": {"type": "string"}});
        self.reply(json!({"name": "Open_vSwitch", "tables": {"Bridge": {"columns": columns}}})).await;
        let row = "00000000-0000-0000-0000-000000000001";
        self.reply(json!([false, row, {"Bridge": {row: {"initial": {"name": "br0"}}}}])).await
    }
}

/// The reason for which the client ends the connection.
async fn reason(client: &mut Client) -> Reason {
    loop {
        if let Event::Disconnected(reason) = client.next().await {
            return reason;
        }
    }
}

/// Sends `bytes` to a client that runs, and gives the reason for which it leaves. The client comes back.
fn after(bytes: &'static [u8], limits: Option<usize>) -> Reason {
    block_on(async {
        let fake = Fake::new();
        let mut config = config();
        if let Some(size) = limits {
            config.limits.size = size;
        }
        let mut client = fake.client(config);
        let server = async {
            let mut peer = fake.accept().await;
            peer.serve().await;
            // A client that has seen enough closes, which may cut this short.
            let _ = peer.stream.write_all(bytes).await;
            let mut back = fake.accept().await;
            drop(peer);
            back.serve().await;
            std::future::pending::<()>().await;
        };
        let test = async {
            assert!(matches!(client.next().await, Event::Synced(changes) if changes.len() == 1));
            let reason = reason(&mut client).await;
            assert_eq!(client.replica().rows("Bridge").count(), 1);
            assert_eq!(client.next().await, Event::Synced(ovsdb::ChangeSet::default()));
            reason
        };
        tokio::select! {
            reason = test => reason,
            () = server => unreachable!(),
        }
    })
}

#[test]
fn garbage() {
    assert!(matches!(
        after(b"HTTP/1.1 400 Bad Request\r\n", None),
        Reason::Frame(FrameError::Garbage { byte: b'H', .. })
    ));
    assert!(matches!(after(b"\0\0\0\0", None), Reason::Frame(FrameError::Garbage { byte: 0, .. })));
    assert!(matches!(after(b"{\"id\":}", None), Reason::Frame(FrameError::Json(_))));
    assert!(matches!(after(b"{\"id\":1}{\"x\":1}", None), Reason::Protocol(_)));
    assert!(matches!(after(b"{\"x\":1}", None), Reason::Frame(FrameError::Message(_))));
    assert!(matches!(after("{\"x\":[".repeat(1000).leak().as_bytes(), None), Reason::Frame(FrameError::TooDeep(_))));
    let update = br#"{"method":"update3","params":["Open_vSwitch","00000000-0000-0000-0000-000000000002",{"Bridge":{"00000000-0000-0000-0000-000000000001":{"modify":{"name":5}}}}],"id":null}"#;
    let reason = after(update, None);
    assert!(matches!(reason, Reason::Update(_)));
    assert!(
        reason.to_string().contains("Bridge 00000000-0000-0000-0000-000000000001 name: 5 where string"),
        "{reason}"
    );
}

#[test]
fn a_message_without_end() {
    let bytes: &'static [u8] = [&b"{\"a\":\""[..], &[b'x'; 300_000]].concat().leak();
    assert_eq!(after(bytes, Some(200_000)), Reason::Frame(FrameError::TooLarge(200_000)));
}

#[test]
fn half_a_message_and_the_end() {
    block_on(async {
        let fake = Fake::new();
        let mut client = fake.client(config());
        let server = async {
            let mut peer = fake.accept().await;
            peer.serve().await;
            peer.stream.write_all(b"{\"method\":\"upd").await.unwrap();
        };
        let (reason, ()) = tokio::join!(reason(&mut client), server);
        assert_eq!(reason, Reason::Closed);
    });
}

#[test]
fn a_message_in_many_pieces() {
    block_on(async {
        let fake = Fake::new();
        let mut client = fake.client(config());
        let update = br#"{"id":null,"method":"update3","params":["Open_vSwitch","00000000-0000-0000-0000-000000000002",{"Bridge":{"00000000-0000-0000-0000-000000000001":{"modify":{"name":"br}1"}}}}]}"#;
        let server = async {
            let mut peer = fake.accept().await;
            peer.serve().await;
            for byte in update {
                peer.stream.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            peer
        };
        let test = async {
            assert!(matches!(client.next().await, Event::Synced(_)));
            assert!(matches!(client.next().await, Event::Changed(_)));
            assert!(client.replica().find("Bridge", "name", "br}1").is_some());
        };
        tokio::join!(test, server);
    });
}

#[test]
fn a_server_that_says_nothing() {
    block_on(async {
        let fake = Fake::new();
        let mut config = config();
        config.probe = Some(Duration::from_millis(100));
        let mut client = fake.client(config);
        let silent = async {
            let peer = fake.accept().await;
            fake.accept().await.serve().await;
            drop(peer);
        };
        let test = async {
            let first = reason(&mut client).await;
            assert!(matches!(client.next().await, Event::Synced(_)));
            first
        };
        let (first, ()) = tokio::join!(test, silent);
        assert!(matches!(first, Reason::Probe(_)));
    });
}

/// The socket's buffer is full, and the rest waits; when the server reads on, everything is there in order.
#[test]
fn a_server_that_reads_late() {
    block_on(async {
        let fake = Fake::new();
        let mut client = fake.client(config());
        let server = async {
            let mut peer = fake.accept().await;
            peer.serve().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            for _ in 0..40 {
                let request = peer.receive().await;
                let comment = request["params"][1]["comment"].as_str().unwrap();
                assert_eq!(comment.len(), 50_000);
                peer.send(json!({"id": request["id"], "result": [{}], "error": null})).await;
            }
            std::future::pending::<()>().await;
        };
        let test = async {
            assert!(matches!(client.next().await, Event::Synced(_)));
            let mut txn = Transaction::new();
            txn.comment(&"c".repeat(50_000));
            let mut pending: Vec<_> = (0..40).map(|_| client.transact(&txn)).collect();
            let last = pending.pop().unwrap();
            tokio::select! {
                event = client.next() => panic!("{event:?}"),
                result = last => result.unwrap().unwrap(),
            };
            for mut earlier in pending {
                assert!(earlier.try_recv().unwrap().is_ok());
            }
        };
        tokio::select! {
            () = test => {}
            () = server => unreachable!(),
        }
    });
}

/// A server that knows the last transaction sends only what came after it.
#[test]
fn resuming_from_the_last_transaction() {
    block_on(async {
        let fake = Fake::new();
        let mut client = fake.client(config());
        let server = async {
            let mut peer = fake.accept().await;
            let request = peer.serve().await;
            assert_eq!(request["params"][3], json!("00000000-0000-0000-0000-000000000000"));
            drop(peer);
            let mut peer = fake.accept().await;
            let columns = json!({"name": {"type": "string"}});
            peer.reply(json!({"name": "Open_vSwitch", "tables": {"Bridge": {"columns": columns}}})).await;
            let row = "00000000-0000-0000-0000-000000000002";
            let request = peer.reply(json!([true, row, {"Bridge": {row: {"insert": {"name": "br1"}}}}])).await;
            assert_eq!(request["params"][3], json!("00000000-0000-0000-0000-000000000001"));
            std::future::pending::<()>().await;
        };
        let test = async {
            assert!(matches!(client.next().await, Event::Synced(_)));
            assert_eq!(reason(&mut client).await, Reason::Closed);
            let Event::Synced(changes) = client.next().await else { panic!("not synchronized") };
            assert_eq!((changes.len(), client.replica().rows("Bridge").count()), (1, 2));
        };
        tokio::select! {
            () = test => {}
            () = server => unreachable!(),
        }
    });
}

/// A client that is dropped while it dials, waits or reads leaves nothing behind; one whose `next` is
/// cancelled loses nothing.
#[test]
fn cancelled_at_any_time() {
    block_on(async {
        let fake = Fake::new();
        let mut client = fake.client(config());
        let server = async {
            let mut peer = fake.accept().await;
            peer.serve().await;
            for i in 0..20 {
                let name = format!("br{i}");
                let row = "00000000-0000-0000-0000-000000000001";
                let update = json!({"Bridge": {row: {"modify": {"name": name}}}});
                let message = Message::Notification {
                    method: "update3".to_owned(),
                    params: json!(["Open_vSwitch", row, update]),
                };
                let text = message.to_json().to_string();
                let (head, tail) = text.as_bytes().split_at(text.len() / 2);
                peer.stream.write_all(head).await.unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
                peer.stream.write_all(tail).await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let test = async {
            let mut seen = 0;
            while seen < 20 {
                if let Ok(event) = tokio::time::timeout(Duration::from_millis(1), client.next()).await {
                    match event {
                        Event::Synced(_) => {}
                        // The first name is the one that the row has already.
                        Event::Changed(_) => seen += 1,
                        event => panic!("{event:?}"),
                    }
                }
                if client.replica().find("Bridge", "name", "br19").is_some() {
                    break;
                }
            }
            assert!(seen >= 18, "{seen}");
        };
        tokio::select! {
            () = test => {}
            () = server => unreachable!(),
        }
    });
}
