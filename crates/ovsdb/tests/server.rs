//! The client against a real ovsdb-server.

mod common;

use std::time::Duration;

use common::{Server, block_on, changed, client, config, finish, next, synced};
use ovsdb::{ChangeKind, Client, Datum, Event, Mutator, TransactError, Transaction, Uuid, Where, values};
use tokio::net::{UnixListener, UnixStream};

#[test]
fn initial_contents_and_changes_by_ovs_vsctl() {
    let server = Server::start();
    server.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "other_config:a=1", "other_config:b=2"]);
    block_on(async {
        let mut client = client(&server, config());
        let first = synced(&mut client).await;
        assert_eq!(client.session().method(), Some(ovsdb::replica::Method::MonitorCondSince));
        assert_eq!(first.table("Bridge").count(), 1);
        assert!(first.iter().all(|(_, _, change)| change.kind() == ChangeKind::Insert));
        let bridge = client.replica().find("Bridge", "name", "br0").unwrap().clone();
        assert_eq!(bridge.map_string("other_config", "a"), Some("1"));
        let root = client.replica().rows("Open_vSwitch").next().unwrap().clone();
        assert_eq!(root.references("bridges").collect::<Vec<_>>(), [bridge.uuid()]);
        let port = client.replica().row("Port", bridge.references("ports").next().unwrap()).unwrap();
        assert_eq!(port.string("name"), Some("br0"));

        // Sets and maps grow and shrink.
        server.vsctl(&["add-port", "br0", "p1", "trunks=1,2,3", "--", "set", "interface", "p1", "type=internal"]);
        let changes = changed(&mut client).await;
        let change = changes.get("Bridge", bridge.uuid()).unwrap();
        assert_eq!(change.old.as_ref().unwrap().references("ports").count(), 1);
        assert_eq!(change.new.as_ref().unwrap().references("ports").count(), 2);
        assert!(change.changed("ports") && !change.changed("name"));
        assert_eq!(changes.table("Interface").count(), 1);
        server.vsctl(&["set", "port", "p1", "trunks=2,4", "--", "set", "bridge", "br0", "other_config:a=9"]);
        changed(&mut client).await;
        let port = client.replica().find("Port", "name", "p1").unwrap();
        assert_eq!(port.integers("trunks").collect::<Vec<_>>(), [2, 4]);
        server.vsctl(&["remove", "bridge", "br0", "other_config", "b"]);
        changed(&mut client).await;
        let bridge = client.replica().find("Bridge", "name", "br0").unwrap();
        assert_eq!(bridge.string_pairs("other_config").collect::<Vec<_>>(), [("a", "9")]);
        // An optional value appears and goes.
        server.vsctl(&["set", "port", "p1", "tag=7"]);
        changed(&mut client).await;
        assert_eq!(client.replica().find("Port", "name", "p1").unwrap().integer("tag"), Some(7));
        server.vsctl(&["clear", "port", "p1", "tag"]);
        changed(&mut client).await;
        assert_eq!(client.replica().find("Port", "name", "p1").unwrap().integer("tag"), None);

        server.vsctl(&["del-br", "br0"]);
        let changes = changed(&mut client).await;
        assert_eq!(changes.table("Bridge").map(|(_, c)| c.kind()).collect::<Vec<_>>(), [ChangeKind::Delete]);
        assert_eq!(client.replica().rows("Interface").count(), 0);
    });
}

/// Inserts a bridge and puts it into the root row.
fn add_bridge(root: Uuid, name: &str) -> (Transaction, ovsdb::transaction::NewRow) {
    let mut txn = Transaction::new();
    let row = txn.insert("Bridge", values([("name", name.into())]));
    txn.mutate("Open_vSwitch", root, "bridges", Mutator::Insert, &row);
    (txn, row)
}

#[test]
fn transactions_and_their_results() {
    let server = Server::start();
    block_on(async {
        let mut client = client(&server, config());
        synced(&mut client).await;
        let root = client.replica().rows("Open_vSwitch").next().unwrap().uuid();

        let (mut txn, row) = add_bridge(root, "br0");
        txn.comment("two rows").update(
            "Open_vSwitch",
            root,
            values([("cur_cfg", 7.into()), ("ovs_version", "9".into()), ("of_the_future", 1.into())]),
        );
        txn.insert("Table_of_the_future", Vec::new());
        let (result, changes) = finish(&mut client, &txn).await;
        let committed = result.unwrap();
        let uuid = committed.inserted(&row).unwrap();
        assert_eq!(committed.count(1), 1);
        assert_eq!(committed.results[4], ovsdb::transaction::OpResult::Skipped);
        // The changes that a transaction made are there before its result.
        assert!(changes.get("Bridge", uuid).is_some());
        assert_eq!(client.replica().row("Open_vSwitch", root).unwrap().string("ovs_version"), Some("9"));
        assert_eq!(server.vsctl(&["get", "open_vswitch", ".", "cur_cfg"]).trim(), "7");
        assert_eq!(server.vsctl(&["list-br"]).trim(), "br0");

        // Many at once: order is kept.
        let pending: Vec<_> = (0..50)
            .map(|i| {
                let mut txn = Transaction::new();
                txn.expect("Open_vSwitch", root, values([("cur_cfg", (7 + i).into())]));
                txn.mutate("Open_vSwitch", root, "cur_cfg", Mutator::Add, 1);
                client.transact(&txn)
            })
            .collect();
        let all = async {
            for result in pending {
                result.await.unwrap().unwrap();
            }
        };
        tokio::pin!(all);
        loop {
            tokio::select! {
                () = &mut all => break,
                _ = client.next() => {}
            }
        }
        assert_eq!(client.replica().row("Open_vSwitch", root).unwrap().integer("cur_cfg"), Some(57));

        // Keys of maps, whether they exist or not.
        for value in ["1", "2"] {
            let mut txn = Transaction::new();
            txn.set_key("Bridge", uuid, "external_ids", "k", value);
            finish(&mut client, &txn).await.0.unwrap();
        }
        assert_eq!(client.replica().row("Bridge", uuid).unwrap().map_string("external_ids", "k"), Some("2"));

        // select, and deletion by condition.
        let mut txn = Transaction::new();
        txn.select("Bridge", Where::equal("name", "br0"), &["name"]);
        let (result, _) = finish(&mut client, &txn).await;
        let rows = ovsdb::transaction::OpResult::Rows(vec![serde_json::json!({"name": "br0"})]);
        assert_eq!(result.unwrap().results, [rows]);
        let mut txn = Transaction::new();
        txn.mutate("Open_vSwitch", root, "bridges", Mutator::Delete, Datum::set([uuid]));
        let (result, changes) = finish(&mut client, &txn).await;
        result.unwrap();
        assert_eq!(changes.get("Bridge", uuid).unwrap().kind(), ChangeKind::Delete);
    });
}

#[test]
fn errors_name_the_operation() {
    let server = Server::start();
    block_on(async {
        let mut client = client(&server, config());
        assert_eq!(client.transact(&Transaction::new()).await.unwrap(), Err(TransactError::NotConnected));
        synced(&mut client).await;
        let root = client.replica().rows("Open_vSwitch").next().unwrap().uuid();
        let replica = client.replica().clone();

        // Somebody else changes what a transaction relies on.
        server.vsctl(&["set", "open_vswitch", ".", "next_cfg=5"]);
        let mut txn = Transaction::new();
        txn.verify(&replica, "Open_vSwitch", root, &["next_cfg"]);
        txn.update("Open_vSwitch", root, values([("cur_cfg", 5.into())]));
        match finish(&mut client, &txn).await.0 {
            Err(TransactError::Operation { index: 0, operation: "wait", error }) => assert!(error.is_conflict()),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.replica().row("Open_vSwitch", root).unwrap().integer("cur_cfg"), Some(0));
        let mut txn = Transaction::new();
        txn.verify(client.replica(), "Open_vSwitch", root, &["next_cfg", "external_ids", "bridges"]);
        txn.update("Open_vSwitch", root, values([("cur_cfg", 5.into())]));
        finish(&mut client, &txn).await.0.unwrap();
        // A row that does not exist is not as expected, one that exists is.
        for (row, there) in [(root, true), (Uuid(1), false)] {
            let mut txn = Transaction::new();
            txn.expect("Open_vSwitch", row, Vec::new());
            assert_eq!(finish(&mut client, &txn).await.0.is_ok(), there);
        }

        // A value out of range: the operation. A missing reference: the commit.
        let mut txn = Transaction::new();
        txn.comment("first");
        txn.insert("Port", values([("name", "p".into()), ("tag", 5000.into())]));
        match finish(&mut client, &txn).await.0 {
            Err(TransactError::Operation { index: 1, operation: "insert", error }) => {
                assert_eq!(error.name, "constraint violation");
            }
            other => panic!("{other:?}"),
        }
        let mut txn = Transaction::new();
        txn.update("Open_vSwitch", root, values([("bridges", Uuid(7).into())]));
        match finish(&mut client, &txn).await.0 {
            Err(TransactError::Commit(error)) => assert_eq!(error.name, "referential integrity violation"),
            other => panic!("{other:?}"),
        }
        // A lock that nobody holds.
        let mut txn = Transaction::new();
        txn.assert_lock("nobody");
        match finish(&mut client, &txn).await.0 {
            Err(TransactError::Operation { index: 0, operation: "assert", error }) => assert!(error.is_not_owner()),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn two_clients_and_one_lock() {
    let server = Server::start();
    block_on(async {
        let mut one = client(&server, config().with_lock("ovs_vswitchd"));
        assert_eq!(next(&mut one).await, Event::LockGained);
        synced(&mut one).await;
        let mut two = client(&server, config().with_lock("ovs_vswitchd"));
        synced(&mut two).await;
        assert!(one.has_lock() && !two.has_lock());
        let root = one.replica().rows("Open_vSwitch").next().unwrap().uuid();
        let mut txn = Transaction::new();
        txn.update("Open_vSwitch", root, values([("cur_cfg", 1.into())]));
        assert_eq!(finish(&mut two, &txn).await.0, Err(TransactError::NotLocked));
        assert_eq!(finish(&mut one, &txn).await.0.unwrap().count(0), 1);
        assert!(matches!(next(&mut two).await, Event::Changed(_)));
        // Without the lock on purpose.
        finish(&mut two, txn.clone().without_lock()).await.0.unwrap();

        // The second gets the lock when the first goes.
        drop(one);
        assert_eq!(next(&mut two).await, Event::LockGained);
        finish(&mut two, &txn).await.0.unwrap();

        // A thief.
        let mut thief = std::process::Command::new("ovsdb-client")
            .args(["steal", &server.address(), "ovs_vswitchd"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(next(&mut two).await, Event::LockLost);
        assert_eq!(finish(&mut two, &txn).await.0, Err(TransactError::NotLocked));
        thief.kill().unwrap();
        thief.wait().unwrap();
        assert_eq!(next(&mut two).await, Event::LockGained);
    });
}

#[test]
fn restart_of_the_server_loses_nothing() {
    let mut server = Server::start();
    server.vsctl(&["add-br", "keep", "--", "add-br", "gone"]);
    block_on(async {
        let mut client = client(&server, config().with_lock("ovs_vswitchd"));
        synced(&mut client).await;
        let keep = client.replica().find("Bridge", "name", "keep").unwrap().clone();
        server.kill();
        assert_eq!(client.next().await, Event::LockLost);
        assert!(matches!(client.next().await, Event::Disconnected(_)));
        assert!(!client.is_synced() && !client.has_lock());
        // The contents stay while there is no server.
        assert_eq!(client.replica().rows("Bridge").count(), 2);
        let failed = client.next().await;
        assert!(matches!(&failed, Event::Disconnected(ovsdb::Reason::Connect(text)) if text.contains("sock")));
        assert_eq!(client.transact(&Transaction::new()).await.unwrap(), Err(TransactError::NotConnected));

        // Changes while this client is away.
        server.up();
        server.vsctl(&["del-br", "gone", "--", "add-br", "new"]);
        assert_eq!(next(&mut client).await, Event::LockGained);
        let mut changes = match next(&mut client).await {
            Event::Synced(changes) => changes,
            event => panic!("{event:?}"),
        };
        while client.replica().find("Bridge", "name", "new").is_none() {
            changes.merge(changed(&mut client).await);
        }
        // Only the difference is reported; what is as before is the same row in memory.
        assert!(changes.get("Bridge", keep.uuid()).is_none());
        let kinds: Vec<_> = changes.table("Bridge").map(|(_, c)| c.kind()).collect();
        assert_eq!(kinds.len(), 2);
        assert!(kinds.contains(&ChangeKind::Insert) && kinds.contains(&ChangeKind::Delete));
        assert!(std::sync::Arc::ptr_eq(client.replica().row("Bridge", keep.uuid()).unwrap(), &keep));

        // A clean restart without changes is a Synced without changes.
        server.kill();
        server.up();
        assert!(synced(&mut client).await.is_empty());
    });
}

#[test]
fn a_transaction_in_flight_when_the_connection_ends_is_lost() {
    let mut server = Server::start();
    block_on(async {
        let mut client = client(&server, config());
        synced(&mut client).await;
        let root = client.replica().rows("Open_vSwitch").next().unwrap().uuid();
        server.signal(rustix::process::Signal::STOP);
        let mut txn = Transaction::new();
        txn.update("Open_vSwitch", root, values([("cur_cfg", 1.into())]));
        let mut pending = client.transact(&txn);
        assert!(tokio::time::timeout(Duration::from_millis(50), client.next()).await.is_err());
        server.kill();
        assert!(matches!(client.next().await, Event::Disconnected(_)));
        assert_eq!(pending.try_recv().unwrap(), Err(TransactError::Lost));
    });
}

#[test]
fn silence_ends_a_connection_and_life_comes_back() {
    let server = Server::start();
    block_on(async {
        let mut config = config();
        config.probe = Some(Duration::from_millis(150));
        let mut client = client(&server, config);
        synced(&mut client).await;
        // Probes are answered: nothing happens for a while.
        assert!(tokio::time::timeout(Duration::from_millis(800), client.next()).await.is_err());
        server.signal(rustix::process::Signal::STOP);
        assert!(matches!(client.next().await, Event::Disconnected(ovsdb::Reason::Probe(_))));
        server.signal(rustix::process::Signal::CONT);
        assert!(synced(&mut client).await.is_empty());
    });
}

#[test]
fn a_database_that_is_not_there_is_named() {
    let server = Server::start();
    block_on(async {
        let mut config = config();
        config.database = "Elsewhere".to_owned();
        let mut client = client(&server, config);
        let Event::Disconnected(reason) = client.next().await else { panic!("no end of the connection") };
        assert!(reason.to_string().contains("unknown database Elsewhere"), "{reason}");
    });
}

#[test]
fn columns_that_the_server_does_not_have_are_reported() {
    let server = Server::start();
    block_on(async {
        let mut config = config();
        config.selection = config.selection.columns("Mirror", &["name", "colour"]).all("Spaceship");
        let mut client = client(&server, config);
        synced(&mut client).await;
        assert_eq!(client.session().missing(), ["Mirror:colour", "Spaceship"]);
        assert!(client.replica().table("Spaceship").is_none());
        assert_eq!(client.replica().table("Mirror").unwrap().layout().columns.len(), 1);
    });
}

#[test]
fn a_client_in_a_thread() {
    let server = Server::start();
    block_on(async {
        let mut events = client(&server, config()).spawn().unwrap();
        // It needs nothing of this thread, which may be busy, and keeps nothing from it.
        let begun = std::time::Instant::now();
        while !events.state().synced {
            assert!(begun.elapsed() < Duration::from_secs(20), "not in step with the database");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(events.next().await, Event::Synced(_)));
        let root = events.state().replica.rows("Open_vSwitch").next().unwrap().uuid();
        let handle = events.handle();
        // Nobody takes events meanwhile: they become one.
        for i in 1..=20 {
            let mut txn = Transaction::new();
            txn.update("Open_vSwitch", root, values([("cur_cfg", i.into())]));
            handle.transact(txn).await.unwrap();
        }
        let Event::Changed(changes) = events.next().await else { panic!("no change") };
        let change = changes.get("Open_vSwitch", root).unwrap();
        assert_eq!(change.old.as_ref().unwrap().integer("cur_cfg"), Some(0));
        assert_eq!(change.new.as_ref().unwrap().integer("cur_cfg"), Some(20));
        assert!(events.state().synced);
        assert!(tokio::time::timeout(Duration::from_millis(20), events.next()).await.is_err());
        // The thread ends with the receiver.
        drop(events);
        assert_eq!(handle.transact(Transaction::new()).await, Err(TransactError::NotConnected));
    });
}

/// Passes bytes between the client and the server, and answers some methods as an old server would.
async fn old_server(listener: UnixListener, real: std::path::PathBuf, unknown: &'static [&'static str]) {
    use ovsdb::jsonrpc::{Framer, Message};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut near, _) = listener.accept().await.unwrap();
    let mut far = UnixStream::connect(real).await.unwrap();
    let (mut framer, mut a, mut b) = (Framer::default(), [0; 4096], [0; 4096]);
    loop {
        let mut out = Vec::new();
        tokio::select! {
            n = near.read(&mut a) => {
                let n = n.unwrap();
                if n == 0 { return }
                framer.push(&a[..n]);
                while let Some(message) = framer.next_message().unwrap() {
                    match message {
                        Message::Request { method, id, .. } if unknown.contains(&method.as_str()) => {
                            let error = Message::Reply { result: Err("unknown method".into()), id };
                            let mut out = Vec::new();
                            error.emit(&mut out);
                            near.write_all(&out).await.unwrap();
                        }
                        message => message.emit(&mut out),
                    }
                }
                far.write_all(&out).await.unwrap();
            }
            n = far.read(&mut b) => {
                let n = n.unwrap();
                if n == 0 { return }
                near.write_all(&b[..n]).await.unwrap();
            }
        }
    }
}

#[test]
fn older_servers_are_followed_by_their_methods() {
    use ovsdb::replica::Method;
    let unknown: [(&'static [&'static str], Method); 2] =
        [(&["monitor_cond_since"], Method::MonitorCond), (&["monitor_cond_since", "monitor_cond"], Method::Monitor)];
    for (unknown, method) in unknown {
        let server = Server::start();
        server.vsctl(&["add-br", "br0"]);
        block_on(async {
            let path = server.path("old");
            let listener = UnixListener::bind(&path).unwrap();
            tokio::spawn(old_server(listener, server.path("sock"), unknown));
            let mut old = Client::new(config(), vec![ovsdb::Remote::Unix(path)], Default::default());
            let mut new = client(&server, config());
            synced(&mut old).await;
            synced(&mut new).await;
            assert_eq!(old.session().method(), Some(method));
            for command in [
                &["add-port", "br0", "p1", "trunks=5,6,7"][..],
                &["set", "port", "p1", "trunks=6,8", "tag=3", "external_ids:x=y"],
                &["set", "port", "p1", "external_ids:x=z", "external_ids:w=v", "--", "clear", "port", "p1", "tag"],
                &["remove", "port", "p1", "external_ids", "w"],
                &["del-port", "p1"],
                &["del-br", "br0"],
            ] {
                server.vsctl(command);
                assert_eq!(changed(&mut old).await, changed(&mut new).await, "{command:?}");
            }
        });
    }
}

#[test]
fn tcp_and_a_list_of_remotes() {
    let server = Server::start_with(&["--remote=ptcp:0:127.0.0.1"]);
    let log = std::fs::read_to_string(server.path("log")).unwrap();
    let port = log.lines().find_map(|l| l.split_once("listening on port ")).map(|(_, p)| p.trim().to_owned()).unwrap();
    block_on(async {
        let list = format!("unix:{}, tcp:127.0.0.1:{port}", server.path("nobody").display());
        let remotes = ovsdb::Remote::parse_list(&list).unwrap();
        let mut client = Client::new(config(), remotes, Default::default());
        assert!(matches!(client.next().await, Event::Disconnected(ovsdb::Reason::Connect(_))));
        assert!(matches!(client.next().await, Event::Synced(_)));
    });
}
