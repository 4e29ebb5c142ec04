"""A running Weir, configured by a file (`weir run`: `Weir`) or by a database (`weir vswitchd`: `Ovs`).

Both have the same methods: `cli`, `json`, `ofctl`, `appctl`, `refusal`, `counters`, `log`, `stop`, `close`; the one with
a database has `vsctl` and `get` as well. `close`, which the fixtures call, checks what has to be true after any test.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from .net import run
from .wait import until

ROOT = Path(__file__).resolve().parents[2]
WEIR = Path(os.environ.get("WEIR", ROOT / "target/release/weir"))
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


def alive(pid):
    """Whether a process runs; one that only waits to be reaped does not. The first thread can have ended before others,
    which hold the process's files for as long as they are there."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def check_account(text):
    """Of "received 1, injected 0, ...; sent 1, ..., dropped 1, REASON 1": what came is what went."""
    n = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", text.partition(";")[0])}
    came = n.pop("received") + n.pop("injected") + n.pop("copied")
    assert not n, text
    n = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", text.partition(";")[2])}
    went = n.pop("sent") + n.pop("refused") + n.pop("punted") + n.pop("joined", 0)
    dropped = n.pop("dropped")
    n.pop("came", None), n.pop("went", None)
    assert dropped == sum(n.values()), f"each drop has a reason: {text}"
    assert came == went + dropped, f"packets are missing, or too many: {text}"


def totals(items, counts):
    """The sums that are not zero, by name, of the (name, number) pairs that `counts` has for each item."""
    sums = Counter()
    for item in items:
        sums.update(dict(counts(item)))
    return +sums


class Daemon:
    """What the two have in common: a directory of their own, and the tools that talk to the daemon."""

    #: Name of the program, of its pidfile and of its control socket.
    program = None

    def __init__(self, prefix, expected=()):
        self.dir = Path(tempfile.mkdtemp(prefix=prefix))
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), OVS_LOGDIR=str(self.dir), OVS_DBDIR=str(self.dir))
        #: Daemons that have to say at their end what became of their packets.
        self.owed = 0
        #: Whether the workers' counters have been cleared.
        self.cleared = False
        #: How many packets may be told under another reason than the one they were dropped for: a test that changes flows
        #: under traffic sets it.
        self.judged_late = 0
        #: What may be in the log as a warning or an error.
        self.expected = list(expected)

    def pid(self):
        return int((self.dir / f"{self.program}.pid").read_text())

    def running(self):
        """Whether there is a daemon; its pidfile may be left of one that was killed."""
        try:
            return alive(self.pid())
        except (OSError, ValueError):
            return False

    def cli(self, *args, **kw):
        """`weir COMMAND`, which asks this daemon."""
        return run(WEIR, "--socket", self.dir / f"{self.program}.{self.pid()}.ctl", *args, env=self.env, **kw)

    def json(self, *args):
        return json.loads(self.cli(*args, "--json").stdout)

    def ofctl(self, *args, version=None, **kw):
        flag = ["-O", f"OpenFlow{version}"] if version else []
        return run("ovs-ofctl", *flag, *args, env=self.env, **kw).stdout

    def appctl(self, *args, **kw):
        self.cleared |= args[0] == "dpif-netdev/pmd-stats-clear"
        return run("ovs-appctl", "-t", self.program, *args, env=self.env, **kw).stdout

    def refusal(self, tool, *args, **kw):
        """What `tool` ("appctl" or "ofctl") says where it has to fail."""
        target = ["-t", self.program] if tool == "appctl" else []
        r = run(f"ovs-{tool}", *target, *args, env=self.env, check=False, **kw)
        assert r.returncode != 0, r
        return r.stderr

    def counters(self, port, bridge="br0"):
        """What OpenFlow tells of a port: {"rx_pkts": 1, "tx_bytes": 60, ...}."""
        text = self.ofctl("dump-ports", f"unix:{self.dir}/{bridge}.mgmt", port, version=13)
        return {f"{way}_{key}": int(n) for way, line in re.findall(r"\b(rx|tx) (.*)", text)
                for key, n in re.findall(r"(\w+)=(\d+)", line)}

    def excuse(self, why):
        """A daemon that this test started will not account for its packets, for a reason."""
        assert why
        self.owed -= 1

    def expect(self, pattern):
        """What this test does is a reason for such a warning or error in the log."""
        self.expected.append(pattern)

    def check_drops(self):
        """That each drop has an address: the rows of `weir drops` add up to what the workers have counted, for each reason.
        Packets may still come meanwhile. Where flows change under traffic, packets that come meanwhile are counted as what the
        flow becomes (docs/drops.md)."""
        seen = []
        late = self.judged_late
        between = lambda before, told, after: all(before[reason] * 0.99 - late <= told[reason] <= after[reason] * 1.01 + late
                                                  for reason in told | before | after)

        def agree():
            # Who has a database may have no bridge, and nobody answers while the daemon ends.
            try:
                answers = [self.cli(command, "--json", check=False) for command in ("stats", "drops", "stats")]
            except FileNotFoundError:  # its pidfile has gone
                return True
            if any(answer.returncode for answer in answers):
                return not self.running()
            before, rows, after = (json.loads(answer.stdout) for answer in answers)
            seen[:] = [before, rows, after]
            inside = [row for row in rows["drops"] if row["stage"] not in ("device", "transmit")]
            counted = [totals([*stats["workers"], *filter(None, [stats.get("ended")])], lambda worker: worker["drops"].items())
                       for stats in (before, after)]
            told = totals(inside, lambda row: [(row["reason"], row["packets"])])
            # What a device drops for an ingress filter has a row, and no worker sees it.
            filtered = [n.pop("ingress_filter", 0) for n in (told, *counted)]
            return between(counted[0], told, counted[1]) and filtered[0] >= filtered[1]

        if not self.running() or self.cleared:
            return
        try:
            until(agree, what="that each drop has an address")
        except AssertionError as e:
            raise AssertionError(f"{e}: {seen}") from None

    def check_log(self, log):
        """What has to be true after any test: no thread has panicked, and nothing is wrong that the test did not expect;
        each daemon has accounted for its packets, and none is missing or too many; no buffer is missing."""
        assert "panicked" not in log, log
        # What the library of DPDK says depends on the machine.
        wrong = re.findall(r".*\|(?!dpdk|fatal_signal)[\w()-]+\|(?:WARN|ERR|EMER)\|.*", log)
        wrong = [line for line in wrong if not any(re.search(p, line) for p in self.expected)]
        assert not wrong, "unexpected (say daemon.expect(PATTERN) where the test causes it):\n" + "\n".join(wrong)
        accounts = re.findall(r"\|packets: (.*)", log)
        assert len(accounts) >= self.owed, f"{len(accounts)} of {self.owed} accounts of packets\n{log}"
        for account in accounts:
            check_account(account)
        assert len(re.findall(r"\|pool frames: all buffers are free", log)) == len(accounts), log
        assert not re.search(r"\|pool .* in use by nobody", log), log


class Weir(Daemon):
    """`weir run`."""

    program = "weir"

    def __init__(self, config, env=None, start=True, expected=()):
        super().__init__("weir-test-", expected)
        self.config = self.dir / "weir.toml"
        self.env.update(env or {})
        self.proc = None
        self.configure(config)
        if start:
            self.start()

    def configure(self, config):
        self.config.write_text(config)

    def start(self):
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen([WEIR, "run", self.config], env=self.env, stdout=log, stderr=log,
                                         stdin=subprocess.DEVNULL)
        try:
            until(lambda: self.proc.poll() is not None or self.cli("show", check=False).returncode == 0,
                  what="weir run answering")
            assert self.proc.poll() is None, self.log()
            self.owed += 1
        except BaseException:
            self.stop()
            raise

    def cli(self, *args, **kw):
        # It finds its daemon by OVS_RUNDIR.
        return run(WEIR, *args, env=self.env, **kw)

    def log(self):
        return (self.dir / "log").read_text()

    text = log

    def signal(self, number):
        self.proc.send_signal(number)

    def kill(self):
        """As a crash does."""
        self.excuse("killed")
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(30)
            except subprocess.TimeoutExpired:
                self.proc.send_signal(signal.SIGKILL)
                self.proc.wait()
                raise AssertionError("weir did not end on SIGTERM:\n" + self.log())

    def close(self):
        try:
            if self.proc:
                try:
                    self.check_drops()
                finally:
                    self.stop()
                self.check_log(self.log())
        finally:
            if self.proc and self.proc.poll() is None:
                self.proc.kill()
                self.proc.wait()
            shutil.rmtree(self.dir, ignore_errors=True)


class Database:
    """An ovsdb-server with the schema of Open vSwitch in `dir`, and ovs-vsctl."""

    def __init__(self, dir, env):
        self.dir, self.env = dir, env
        self.db = f"unix:{dir}/db.sock"
        self.server = None
        run("ovsdb-tool", "create", dir / "conf.db", SCHEMA, env=env)
        self.start_server()
        self.vsctl("--no-wait", "init")

    def start_server(self, *options):
        with open(self.dir / "ovsdb-server.out", "ab") as log:
            self.server = subprocess.Popen(
                ["ovsdb-server", self.dir / "conf.db", f"--remote=punix:{self.dir}/db.sock", "-vconsole:off",
                 f"--unixctl={self.dir}/ovsdb.ctl", *options], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log)
        until(lambda: run("ovs-appctl", "-t", self.dir / "ovsdb.ctl", "version", env=self.env,
                          check=False).returncode == 0 and (self.dir / "db.sock").exists(),
              what="ovsdb-server listening")

    def stop_server(self):
        if self.server.poll() is None:
            self.server.terminate()
            self.server.wait(30)

    def vsctl(self, *args, timeout=30, **kw):
        """ovs-vsctl, which waits until the change is in force (unless told not to)."""
        return run("ovs-vsctl", f"--db={self.db}", f"--timeout={timeout}", *args, env=self.env, **kw).stdout.strip()

    def get(self, table, record, column):
        return self.vsctl("get", table, record, column).strip('"')


def scratch_database(dir):
    """A database in `dir` that no daemon reads."""
    return Database(dir, dict(os.environ, OVS_RUNDIR=str(dir), OVS_LOGDIR=str(dir), OVS_DBDIR=str(dir)))


class Ovs(Daemon, Database):
    """A directory with an ovsdb-server, and the daemon under the name ovs-vswitchd."""

    program = "ovs-vswitchd"

    def __init__(self, expected=()):
        Daemon.__init__(self, "weir-vs-", expected)
        self.name = self.dir / "ovs-vswitchd"
        self.name.symlink_to(WEIR)
        self.daemons = []
        Database.__init__(self, self.dir, self.env)

    def start(self, *options, check=True):
        """`ovs-vswitchd --detach`, which returns when the configuration is in force."""
        r = run(self.name, self.db, "--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off", *options,
                env=self.env, check=check, timeout=60)
        if r.returncode == 0:
            self.daemons.append(self.pid())
            self.owed += 1
        return r

    def foreground(self, *options):
        """A daemon that stays in the foreground."""
        with open(self.dir / "foreground.log", "ab") as log:
            p = subprocess.Popen([self.name, self.db, *options], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=log)
        self.daemons.append(p.pid)
        return p

    def kill(self, number=9):
        pid = self.pid()
        self.excuse("killed")
        os.kill(pid, number)
        until(lambda: not alive(pid), what="the daemon's end")

    def log(self):
        return (self.dir / "ovs-vswitchd.log").read_text()

    def stop(self):
        for pid in self.daemons:
            if alive(pid):
                os.kill(pid, 15)
        until(lambda: not any(alive(pid) for pid in self.daemons), what="the daemons' end")

    def close(self):
        try:
            try:
                self.check_drops()
            finally:
                self.stop()
            self.check_log("".join(p.read_text() for p in self.dir.glob("*.log")))
        finally:
            self.stop_server()
            until(self.none_left, what="the end of what the test started")
            shutil.rmtree(self.dir, ignore_errors=True)

    def none_left(self):
        """Kills what still runs in this run directory: a monitor and the daemon that it started anew, too."""
        left = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.fsencode(self.dir) in (process / "cmdline").read_bytes() and alive(process.name):
                    left.append(int(process.name))
                    os.kill(left[-1], 9)
            except OSError:
                pass
        return not left


def dummy_bridge(ovs, *ports):
    """br0 with dummy ports."""
    args = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy"]
    for port in ports:
        args += ["--", "add-port", "br0", port, "--", "set", "interface", port, "type=dummy"]
    ovs.vsctl(*args)


def config(ports, local=False, bridge="br0", more=""):
    """A configuration file with one bridge; ports are (name, type, TOML of the rest)."""
    text = f'[[bridge]]\nname = "{bridge}"\nlocal = {str(local).lower()}\n{more}\n'
    for name, kind, rest in ports:
        text += f'[[bridge.port]]\nname = "{name}"\ntype = "{kind}"\n{rest}\n'
    return text
