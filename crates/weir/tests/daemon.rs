//! Runs the binary with ports that need no privileges, and talks to it with its own client and, where
//! they are installed, with Open vSwitch's tools.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const CONFIG: &str = "
[[bridge]]
name = 'br0'
local = false
flows = ['priority=5,in_port=1,actions=output:2']
[[bridge.port]]
name = 'p1'
type = 'dummy'
[[bridge.port]]
name = 'p2'
type = 'dummy'
";

/// 46 bytes of UDP over IPv4.
const FRAME: &str = "020000000002020000000001080045000020000040004011266b0a0000010a00000203e80035000c0000deadbeef";

/// A running daemon with a run directory of its own. Killed when dropped.
struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    fn start(config: &str) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("weir.toml"), config).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(WEIR)
            .args(["run", "--rundir"])
            .args([dir.path(), &dir.path().join("weir.toml")])
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut daemon = Daemon { dir, child };
        daemon.until("it answers", |d| d.weir(&["show"]).status.success());
        daemon
    }

    fn until(&mut self, what: &str, condition: impl Fn(&Daemon) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !condition(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{what}: not within 20 s ({ended:?})\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn weir(&self, args: &[&str]) -> Output {
        Command::new(WEIR).arg("--rundir").arg(self.dir.path()).args(args).output().unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        success(self.weir(args))
    }

    fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.text(&[command, "--json"])).unwrap()
    }

    fn configure(&self, config: &str) {
        std::fs::write(self.dir.path().join("weir.toml"), config).unwrap();
    }

    /// The counters of a port, once the daemon has got round to the packets.
    fn port(&self, name: &str) -> Value {
        let ports = self.json("ports");
        ports["ports"].as_array().unwrap().iter().find(|p| p["name"] == name).cloned().unwrap_or(Value::Null)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end and returns the files that are left of sockets and pidfiles.
    fn end(mut self) -> Vec<PathBuf> {
        let end = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "weir does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}\n{}", self.log());
        let left = std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        left.filter(|path| !path.ends_with("log") && !path.ends_with("weir.toml")).collect()
    }

    /// Runs one of Open vSwitch's tools.
    fn ovs(&self, tool: &str, args: &[&str]) -> Output {
        testing::tools(&[tool]);
        Command::new(tool).arg("--timeout=20").args(args).env("OVS_RUNDIR", self.dir.path()).output().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn success(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn check(config: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, config).unwrap();
    Command::new(WEIR).arg("check").arg(Path::new("c.toml")).current_dir(dir.path()).output().unwrap()
}

#[test]
fn packets_are_forwarded_and_shown() {
    let mut weir = Daemon::start(CONFIG);
    for _ in 0..10 {
        weir.text(&["ctl", "netdev-dummy/receive", "p1", FRAME]);
    }
    weir.until("packets arrive", |d| d.port("p2")["statistics"]["tx_packets"] == 10);

    let flows = weir.text(&["flows"]);
    assert!(flows.contains("n_packets=10") && flows.contains("in_port=p1 actions=output:p2"), "{flows}");
    assert!(flows.contains("in_port(1)") && flows.contains("actions:2"), "{flows}");
    let filtered = weir.text(&["flows", "--bridge", "br0", "--table", "1", "--openflow-only"]);
    assert!(!filtered.contains("n_packets") && !filtered.contains("in_port("), "{filtered}");
    let data = weir.json("flows");
    assert_eq!(data["bridges"][0]["flows"][0]["packets"], 10);
    // As in OVS, a datapath flow does not count the packet that made it.
    assert_eq!(data["datapath"][0]["packets"], 9);

    let worker = weir.json("stats")["workers"][0].clone();
    assert_eq!(worker["packets"], 10);
    assert_eq!(worker["misses"].as_u64().unwrap() + hits(&worker), 10, "{worker}");
    assert!(weir.text(&["stats"]).contains("cycles per packet"));
    assert!(weir.text(&["show"]).contains("p2"));
    assert!(weir.text(&["ctl", "list-commands"]).contains("weir/show"));
}

fn hits(worker: &Value) -> u64 {
    ["simple_hits", "exact_hits", "megaflow_hits"].iter().map(|tier| worker[tier].as_u64().unwrap()).sum()
}

#[test]
fn reload_applies_the_difference_and_leaves_the_rest_alone() {
    let mut weir = Daemon::start(CONFIG);
    weir.text(&["ctl", "netdev-dummy/receive", "p1", FRAME]);
    weir.until("packets arrive", |d| d.port("p2")["statistics"]["tx_packets"] == 1);

    weir.configure(&CONFIG.replace("'p2'", "'p3'\ntag = 7"));
    weir.text(&["reload"]);
    assert_eq!(weir.port("p1")["statistics"]["rx_packets"], 1, "the port that did not change was left alone");
    assert_eq!(weir.port("p2"), Value::Null);
    assert_eq!(weir.port("p3")["tag"], 7);

    // A file with mistakes changes nothing, and says where they are.
    weir.configure(&format!("{CONFIG}[[[\n"));
    let output = weir.weir(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("weir.toml:12"), "{output:?}");
    assert_eq!(weir.port("p3")["tag"], 7);

    // By signal.
    weir.configure(CONFIG);
    weir.signal(Signal::HUP);
    weir.until("SIGHUP is heard", |d| d.port("p2") != Value::Null && d.port("p3") == Value::Null);
}

#[test]
fn a_port_that_fails_is_marked_and_tried_again() {
    let weir = Daemon::start(&format!("{CONFIG}[[bridge.port]]\nname = 'nosuch0'\n"));
    assert!(weir.text(&["show"]).contains("No such device"));
    let port = weir.port("nosuch0");
    assert!(port["error"].as_str().unwrap().contains("No such device"), "{port}");
    assert_eq!(weir.port("p1")["error"], Value::Null);
    assert_eq!(weir.weir(&["reload"]).status.code(), Some(1), "it is tried again, and fails again");
    weir.configure(&format!("{CONFIG}[[bridge.port]]\nname = 'nosuch0'\ntype = 'dummy'\n"));
    weir.text(&["reload"]);
    assert_eq!(weir.port("nosuch0")["error"], Value::Null);
}

#[test]
fn ends_by_signal_or_command_and_leaves_no_files() {
    let weir = Daemon::start(CONFIG);
    let second = weir.weir(&["run", weir.dir.path().join("weir.toml").to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("already running"), "{second:?}");
    weir.signal(Signal::TERM);
    assert_eq!(weir.end(), Vec::<PathBuf>::new());

    let weir = Daemon::start(CONFIG);
    weir.text(&["ctl", "exit"]);
    assert_eq!(weir.end(), Vec::<PathBuf>::new());
}

#[test]
fn commands_without_a_daemon_say_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["show", "flows", "stats", "ports", "reload"] {
        let output = Command::new(WEIR).arg(command).env("OVS_RUNDIR", dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("weir run"), "{output:?}");
    }
    assert_eq!(Command::new(WEIR).arg("frobnicate").output().unwrap().status.code(), Some(2));
}

#[test]
fn check_reports_each_mistake_with_its_line() {
    assert_eq!(check(CONFIG).status.code(), Some(0));
    let bad = CONFIG.replacen("type", "tpye", 1).replace("output:2", "ouput:2");
    let output = check(&format!("{bad}tag = 5000\n[workers]\ncores = [4095]\n"));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let starts: Vec<_> = stderr.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(starts, ["c.toml:5", "c.toml:8", "c.toml:12"], "{stderr}");
    let output = check("[workers]\ncores = [4095]\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("c.toml:2: workers.cores: core 4095"), "{output:?}");
}

#[test]
fn appctl_drives_weir() {
    let weir = Daemon::start(CONFIG);
    let commands = success(weir.ovs("ovs-appctl", &["-t", "weir", "list-commands"]));
    for command in ["exit", "version", "bridge/dump-flows", "fdb/show", "dpctl/dump-flows"] {
        assert!(commands.contains(&format!("\n  {command}")), "{commands}");
    }
    let run = |args: &[&str]| weir.ovs("ovs-appctl", &[&["-t", "weir"], args].concat());
    assert!(success(run(&["fdb/show", "br0"])).starts_with(" port  VLAN  MAC"));
    assert!(success(run(&["bridge/dump-flows", "br0"])).contains("priority=5,in_port=1,actions=output:2"));
    assert!(success(run(&["dpif/show"])).contains("    p1 1/1: (dummy)"));
    let wrong = run(&["no/such"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("\"no/such\" is not a valid command"), "{wrong:?}");
}

#[test]
fn ofctl_drives_weir() {
    let weir = Daemon::start(CONFIG);
    let run = |args: &[&str]| success(weir.ovs("ovs-ofctl", args));
    let show = run(&["show", "br0"]);
    assert!(show.contains("(p1)") && show.contains("(p2)"), "{show}");
    run(&["add-flow", "br0", "priority=9,ip,nw_dst=10.0.0.9,actions=drop"]);
    let flows = run(&["dump-flows", "br0"]);
    assert!(flows.contains("priority=9,ip,nw_dst=10.0.0.9 actions=drop"), "{flows}");
    run(&["-O", "OpenFlow13", "del-flows", "br0", "ip"]);
    assert!(!run(&["dump-flows", "br0"]).contains("10.0.0.9"));
}

/// A controller that says hello is shown as connected; one that hangs up is called again; one that says
/// nothing holds up nobody.
#[test]
fn controllers_are_called_until_they_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("controller");
    let listener = UnixListener::bind(&path).unwrap();
    let mut weir = Daemon::start(&CONFIG.replace("[[bridge.port]]\nname = 'p1'", &{
        format!("controllers = ['unix:{}', 'ptcp:0:127.0.0.1']\n[[bridge.port]]\nname = 'p1'", path.display())
    }));
    let connections = |d: &Daemon| {
        let show = d.json("show");
        let all = show["bridges"][0]["controllers"].as_array().unwrap().clone();
        all.iter().find(|c| c["target"].as_str().unwrap().starts_with("unix:")).unwrap()["connections"].clone()
    };

    let (mut silent, _) = listener.accept().unwrap();
    let mut hello = [0; 8];
    silent.read_exact(&mut hello).unwrap();
    assert_eq!(hello[1], 0, "the first message is a hello");
    assert_eq!(connections(&weir), 0, "nothing was agreed on yet");
    drop(silent);

    let started = Instant::now();
    let (mut polite, _) = listener.accept().unwrap();
    assert!(started.elapsed() > Duration::from_millis(500), "it is not called at once");
    polite.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    weir.until("the controller is connected", |d| connections(d) == 1);
    drop(polite);
    weir.until("its end is noticed", |d| connections(d) == 0);
    // The flows of the configuration survived the controllers, which clear the tables when they come.
    assert!(weir.text(&["flows"]).contains("in_port=p1"));
}
