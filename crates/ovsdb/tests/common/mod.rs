//! A real `ovsdb-server` in a directory of its own, and Debian's tools to change its database.

#![allow(dead_code)] // Each test binary uses another part.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ovsdb::{ChangeSet, Client, Config, Event, Remote, Selection};
use tempfile::TempDir;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A server; killed when dropped.
pub struct Server {
    pub dir: TempDir,
    child: Option<Child>,
    extra: Vec<String>,
}

impl Server {
    /// Creates a database with one row in `Open_vSwitch` and serves it.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// The same with more options for ovsdb-server.
    pub fn start_with(extra: &[&str]) -> Server {
        testing::tools(&["ovsdb-server", "ovsdb-tool", "ovsdb-client", "ovs-vsctl"]);
        testing::file(SCHEMA);
        let dir = TempDir::new().unwrap();
        run(Command::new("ovsdb-tool").arg("create").arg(dir.path().join("db")).arg(SCHEMA));
        let extra = extra.iter().map(|s| s.to_string()).collect();
        let mut server = Server { dir, child: None, extra };
        server.up();
        server.vsctl(&["init"]);
        server
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.path("sock").display())
    }

    pub fn remote(&self) -> Remote {
        self.address().parse().unwrap()
    }

    /// Starts the process and waits until it listens.
    pub fn up(&mut self) {
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("ovsdb-server")
            .env("PATH", format!("{path}:/usr/sbin"))
            .arg(format!("--remote=punix:{}", self.path("sock").display()))
            .arg(format!("--unixctl={}", self.path("ctl").display()))
            .arg(format!("--log-file={}", self.path("log").display()))
            .args(&self.extra)
            .arg(self.path("db"))
            .current_dir(self.dir.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let end = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(self.path("sock")).is_err() {
            assert!(Instant::now() < end, "ovsdb-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the process, as by `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
            let _ = std::fs::remove_file(self.path("sock"));
        }
    }

    /// Stops or continues the process.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child.as_ref().unwrap());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// `ovs-vsctl --no-wait` on this database.
    pub fn vsctl(&self, args: &[&str]) -> String {
        run(Command::new("ovs-vsctl").arg("--no-wait").arg(format!("--db={}", self.address())).args(args))
    }

    /// `ovsdb-client transact` on this database.
    pub fn transact(&self, operations: &str) -> String {
        run(Command::new("ovsdb-client")
            .args(["transact", &self.address()])
            .arg(format!("[\"Open_vSwitch\",{operations}]")))
    }

    /// `ovsdb-client dump` of one column, as JSON.
    pub fn dump(&self, table: &str, column: &str) -> String {
        run(Command::new("ovsdb-client").args([
            "-f",
            "csv",
            "--no-heading",
            "dump",
            &self.address(),
            "Open_vSwitch",
            table,
            column,
        ]))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a tool to its end and returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a switch replicates.
pub fn selection() -> Selection {
    Selection::new().all("Open_vSwitch").all("Bridge").all("Port").all("Interface").all("Controller")
}

/// A configuration that connects again quickly.
pub fn config() -> Config {
    let mut config = Config::new("Open_vSwitch", selection());
    config.min_backoff = Duration::from_millis(50);
    config.max_backoff = Duration::from_millis(200);
    config
}

pub fn client(server: &Server, config: Config) -> Client {
    Client::new(config, vec![server.remote()], Default::default())
}

/// Runs a test on a runtime of one thread, for at most 30 s.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("test takes 30 s") })
}

/// The next event that is not an end of a connection.
pub async fn next(client: &mut Client) -> Event {
    loop {
        match client.next().await {
            Event::Disconnected(_) => {}
            event => return event,
        }
    }
}

/// Waits until the client is synchronized.
pub async fn synced(client: &mut Client) -> ChangeSet {
    loop {
        if let Event::Synced(changes) = client.next().await {
            return changes;
        }
    }
}

/// Waits for a change.
pub async fn changed(client: &mut Client) -> ChangeSet {
    match client.next().await {
        Event::Changed(changes) => changes,
        event => panic!("{event:?} instead of a change"),
    }
}

/// Waits for a transaction's result while the client runs; gives the changes reported meanwhile.
pub async fn finish(
    client: &mut Client,
    transaction: &ovsdb::Transaction,
) -> (Result<ovsdb::Committed, ovsdb::TransactError>, ChangeSet) {
    let mut pending = client.transact(transaction);
    let mut changes = ChangeSet::default();
    loop {
        tokio::select! {
            biased;
            result = &mut pending => return (result.unwrap(), changes),
            event = client.next() => if let Event::Changed(more) = event { changes.merge(more) },
        }
    }
}
