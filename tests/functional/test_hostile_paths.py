"""Names of files that come from outside: none of them destroys a file, or leads out of the run directory."""

import json
import os
import socket
import stat
import struct
import subprocess

import pytest
from conftest import until
from lib.daemon import config
from test_vswitchd import dummy_bridge, ovs  # noqa: F401

FRAME = "ff" * 6 + "020000000001" + "88b5" + "00" * 46
PRECIOUS = "root:x:0:0:root:/root:/bin/sh\n" * 3

EXPECTED = [r"bridge br0: not (listening for|connecting to) the controller", r"bridge\.br0\.controllers: ",
            r"bridge\.br0\.port\.\w+: ", r"could not open network device \w+ \("]


class Targets:
    """Everything that a path may lead to, in a directory, and what it looks like now."""

    def __init__(self, directory, prefix):
        self.dir, self.prefix = directory, prefix
        self["regular"].write_text(PRECIOUS)
        self["capture"].write_bytes(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        self["empty"].touch()
        self["symlink"].symlink_to(self["regular"])
        self["dangling"].symlink_to(self["nowhere"])
        self["directory"].mkdir()
        os.mkfifo(self["fifo"])
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self["live"]))
        self.server.listen(64)
        self.server.setblocking(False)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self["dead"]))
        self["dead-symlink"].symlink_to(self["dead"])
        self.before = self.snapshot()

    def __getitem__(self, name):
        return self.dir / f"{self.prefix}{name}"

    def names(self):
        """All of them, and one that leads to nothing."""
        return sorted(self.before) + ["new"]

    def snapshot(self):
        def facts(path):
            s = path.lstat()
            regular = stat.S_ISREG(s.st_mode)
            return s.st_ino, s.st_mode, s.st_size, regular and (s.st_mtime_ns, path.read_bytes())
        found = self.dir.glob(f"{self.prefix}*")
        return {path.name.removeprefix(self.prefix): facts(path) for path in found}

    def check(self, what, but=()):
        """All is as it was, but for these."""
        now = self.snapshot()
        assert {k: now.get(k) for k in self.before.keys() | now.keys() if k not in but} == {
            k: v for k, v in self.before.items() if k not in but}, what

    def check_unreached(self, what):
        """Nobody has connected to the socket that is served."""
        with pytest.raises(BlockingIOError):
            self.server.accept()

    def close(self):
        self.server.close()


@pytest.fixture
def outside(tmp_path):
    targets = Targets(tmp_path, "x.")
    yield targets
    targets.close()


def forwards(ovs, count):  # noqa: F811
    """The bridge still does its work."""
    ovs.appctl("netdev-dummy/receive", "p1", FRAME)
    until(lambda: f"tx pkts={count}," in ovs.ofctl("dump-ports", "br0", "p2"), what="the frame at p2")


def controller(form):
    def name(ovs, path):  # noqa: F811
        ovs.expect(r"Not (adding Unix domain|connecting to) socket controller")
        known = len(ovs.log())
        ovs.vsctl("set-controller", "br0", form.format(path))
        said = [line for line in ovs.log()[known:].splitlines() if "Not adding" in line or "Not connecting" in line or "not connecting" in line or "listen" in line]
        return "\n".join(said), lambda: ovs.vsctl("del-controller", "br0")
    return name


def option(kind, text):
    key, _, value = text.partition("=")

    def name(ovs, path):  # noqa: F811
        ovs.vsctl("add-port", "br0", "p3", "--", "set", "interface", "p3", f"type={kind}",
                  f"options:{key}={json.dumps(value.format(path))}")
        said = ovs.get("interface", "p3", "error")
        return "" if said == "[]" else said, lambda: ovs.vsctl("del-port", "p3")
    return name


# Where the database names a file: how, and what may be taken there of what lies in the run directory.
SOCKETS, CAPTURES, NOTHING = {"new", "dead"}, {"new", "empty", "capture"}, set()
PLACES = {
    "controller punix": (controller("punix:{}"), SOCKETS),
    "controller unix": (controller("unix:{}"), NOTHING),
    "dummy pstream": (option("dummy", "pstream=punix:{}"), SOCKETS),
    "dummy stream": (option("dummy", "stream=unix:{}"), NOTHING),
    "dummy tx_pcap": (option("dummy", "tx_pcap={}"), CAPTURES),
    "dummy rxq_pcap": (option("dummy-pmd", "rxq_pcap={}"), CAPTURES),
    "dummy pcap": (option("dummy-internal", "pcap={}"), CAPTURES),
    "pcap tx_pcap": (option("pcap", "tx_pcap={}"), CAPTURES),
    "pcap rx_pcap": (option("pcap", "rx_pcap={}"), NOTHING),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_database_names_files_elsewhere(ovs, outside, place):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    forwards(ovs, 1)
    up = os.path.relpath(outside.dir, ovs.dir)
    detours = [f"{ovs.dir}/{up}/x.regular", f"{ovs.dir}/br0./../{up}/x.regular", f"{ovs.dir}/../br0.new",
               f"{up}/x.regular", f"{ovs.dir}", f"{ovs.dir}x/br0.new", "/" + "x" * 200, f"{outside.dir}/x.a\nb"]
    for path in [*(str(outside[name]) for name in outside.names()), *detours]:
        said, undo = PLACES[place][0](ovs, path)
        assert str(ovs.dir) in said, f"{path!r}: what would be right is not said: {said!r}"
        undo()
        outside.check(path)
        outside.check_unreached(path)
    forwards(ovs, 2)
    assert not (ovs.dir.parent / "br0.new").exists()


@pytest.mark.parametrize("place", PLACES)
def test_the_database_names_files_of_the_run_directory(ovs, place):  # noqa: F811
    """Those may be named, and are not destroyed either."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    name, takes = PLACES[place]
    inside, taken = Targets(ovs.dir, "br0.x-"), set()
    try:
        for target in inside.names():
            said, undo = name(ovs, inside[target])
            if target in takes:
                taken.add(target)
                assert not said and inside[target].lstat(), f"{target}: {said!r}"
                assert stat.S_ISSOCK(inside[target].lstat().st_mode) == (takes is SOCKETS), target
            elif takes:
                assert inside[target].name in said, f"{target}: what is wrong is not said: {said!r}"
            inside.check(target, but=taken)
            undo()
            inside.check(target, but=taken)
            assert inside[target].exists() or takes is not CAPTURES or target not in takes, "a recording stays"
            assert not os.path.lexists(inside[target]) or takes is not SOCKETS or target not in takes, "a socket goes"
        forwards(ovs, 1)
    finally:
        inside.close()


def test_names_that_cannot_be_a_sockets_leave_the_bridge_alone(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    for path in [f"{ovs.dir}/br0.{'x' * 120}", f"{ovs.dir}/br0.a\nb", f"{ovs.dir}/br0.ü", f"{ovs.dir}/br0.x/"]:
        for place in ["controller punix", "dummy pstream"]:
            said, undo = PLACES[place][0](ovs, path)
            assert ("at most 107" in said) == (len(path) > 107), f"{path!r}: {said}"
            undo()
    forwards(ovs, 1)
    assert {path.name for path in ovs.dir.glob("br0.*")} == {"br0.mgmt", "br0.snoop"}


def test_with_dummies_files_may_be_elsewhere_and_are_not_destroyed(ovs, outside):  # noqa: F811
    """As OVS's own tests want it."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    for place, (name, takes) in PLACES.items():
        if place.startswith("controller"):
            continue
        for target in ["regular", "symlink", "fifo", "directory"]:
            said, undo = name(ovs, outside[target])
            assert bool(said) == bool(takes) or place == "pcap rx_pcap", f"{place} {target}: {said!r}"
            undo()
            outside.check(f"{place} {target}")
        for target in takes:
            said, undo = name(ovs, outside[target])
            assert not said, f"{place} {target}: {said!r}"
            undo()
        outside.close()
        for target in outside.before.keys() | {"new"}:
            remove(outside[target])
        outside.__init__(outside.dir, "x.")
    forwards(ovs, 1)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("option, takes", [
    ("--unixctl={}", SOCKETS),
    ("--pidfile={}", {"new", "empty", "stale"}),
])
def test_the_command_line_names_files(ovs, outside, option, takes):  # noqa: F811
    """A mistake there destroys nothing either."""
    outside["stale"].write_text("999999999\n")
    outside.before = outside.snapshot()
    for target in outside.names():
        log = ovs.dir / f"{target}.log"
        with open(log, "wb") as out:
            daemon = subprocess.Popen([ovs.name, ovs.db, option.format(outside[target])], env=ovs.env, stdout=out,
                                      stderr=out, stdin=subprocess.DEVNULL)
        try:
            if target in takes:
                until(lambda: outside.snapshot().get(target) != outside.before.get(target), what=f"{target} taken")
                control = ovs.dir / f"ovs-vswitchd.{daemon.pid}.ctl"
                until(lambda: control.exists() or takes is SOCKETS, what="a daemon that takes signals")
            else:
                assert daemon.wait(30) == 1 and outside[target].name in log.read_text(), log.read_text()
        finally:
            daemon.terminate()
            daemon.wait(30)
        assert target not in takes or not os.path.lexists(outside[target]), "it goes with the daemon"
        outside.before = {k: v for k, v in outside.before.items() if k not in takes or k != target}
        outside.check(target)


def test_arguments_that_are_not_utf8(ovs):  # noqa: F811
    for argument in [b"--unixctl=/\xff\xfe", b"--pidfile=/\xff", b"unix:/\xff"]:
        r = subprocess.run([bytes(ovs.name), argument], env=ovs.env, capture_output=True, timeout=10)
        assert r.returncode == 1 and b"panicked" not in r.stderr and r.stderr.strip(), r


@pytest.mark.parametrize("settings, takes", [
    ('controllers = ["punix:{}"]', SOCKETS),
    ('[[bridge.port]]\nname = "p3"\ntype = "dummy"\noptions = {{ pstream = "punix:{}" }}', SOCKETS),
    ('[[bridge.port]]\nname = "p3"\ntype = "dummy"\noptions = {{ tx_pcap = "{}" }}', CAPTURES),
    ('[[bridge.port]]\nname = "p3"\ntype = "pcap"\noptions = {{ tx_pcap = "{}" }}', CAPTURES),
])
def test_a_configuration_file_names_files(weir, outside, settings, takes):
    """It belongs to root, and may name any; what is no socket and no capture stays as it is."""
    bridge = '[[bridge]]\nname = "br0"\nlocal = false\n'
    w = weir(bridge)
    taken = set()
    for target in outside.names():
        known = len(w.text())
        w.configure(bridge + settings.format(outside[target]) + "\n")
        w.cli("reload", check=False)
        if target in takes:
            taken.add(target)
            assert os.path.lexists(outside[target]) and "x." not in w.text()[known:], w.text()[known:]
        else:
            assert outside[target].name in w.text()[known:], f"{target}: what is wrong is not said"
        outside.check(target, but=taken)
    w.configure(bridge)
    w.cli("reload")
    outside.check("the end", but=taken)


def test_files_that_never_end_hold_up_nothing(weir, tmp_path):
    """A FIFO that nobody writes to, and a device, for a configuration, for flows and for changes to compare."""
    w = weir(config([("p1", "dummy", "")]))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for file in (fifo, "/dev/zero", tmp_path):
        assert "not a regular file" in w.refusal("appctl", "dpctl/add-flows", str(file), timeout=20)
        for _ in range(3):
            refused = w.cli("diff", "br0", "--flows", file, check=False, timeout=20)
            assert refused.returncode == 2 and "not a regular file" in refused.stderr, refused
    good = w.config.rename(tmp_path / "good")
    os.mkfifo(w.config)
    w.expect("not a regular file")
    refused = w.cli("reload", check=False, timeout=20)
    assert refused.returncode == 1 and "not a regular file" in refused.stderr, refused
    good.rename(w.config)
    w.cli("reload", timeout=20)
