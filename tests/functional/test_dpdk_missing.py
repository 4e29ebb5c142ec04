"""A machine without DPDK's libraries: Weir runs there, and says what is missing to those who ask for DPDK."""

import re
import stat
from pathlib import Path

import lib.daemon
import pytest
from lib.daemon import WEIR
from lib.net import run
from test_dpdk import Switch, driver

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
VHOST = LIBRARIES / "librte_vhost.so.23"

EXPECTED = ["DPDK could not be initialised"]


class Hidden:
    """The libraries of a machine without DPDK, as directory, and the shell command that mounts it in the place of this
    machine's. `others`: for libraries of DPDK what is found there instead."""

    def __init__(self, directory, others=()):
        if not VHOST.exists():
            pytest.fail("librte-vhost23 is not installed; run scripts/setup.sh test")
        self.real, self.made = directory / "libraries", directory / "without"
        self.real.mkdir()
        self.made.mkdir()
        for name in (entry.name for entry in LIBRARIES.iterdir()):
            if not name.startswith("librte_"):
                (self.made / name).symlink_to(self.real / name)
        for name, other in dict(others).items():
            (self.made / name).symlink_to(self.real / other)
        self.mount = f"mount --bind {LIBRARIES} {self.real} && mount --bind {self.made} {LIBRARIES} && "

    @staticmethod
    def show(pid):
        """They are installed, as a running daemon sees it."""
        # With the process's root, which may be another one than its namespace's.
        run("nsenter", "-t", pid, "-m", "-r", "umount", "-l", LIBRARIES)


@pytest.fixture
def hidden():
    """A function that makes a Switch, not started yet, that has no libraries of DPDK."""
    made = []

    def make(others=(), **config):
        s = Switch(**config)
        made.append(s)
        script = s.name.read_text()
        assert 'exec "$0"' in script
        s.name.write_text(script.replace('exec "$0"', Hidden(s.dir, others).mount + 'exec "$0"'))
        return s

    yield make
    for s in made:
        s.close()


def dpdk_ports(s):
    s.bridge()
    s.add("p1", "net_null0,no-rx=1")
    s.vsctl("add-port", "br0", "v1", "--", "set", "interface", "v1", "type=dpdkvhostuserclient",
            f"options:vhost-server-path={s.dir}/v1.sock")
    return ["p1", "v1"]


def test_program_needs_no_library_of_dpdk():
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", WEIR).stdout)
    assert "libc.so.6" in needed
    assert not [name for name in needed if "rte_" in name or "numa" in name], needed


def test_without_libraries_the_daemon_runs_and_says_what_is_missing(hidden):
    s = hidden()
    s.start()
    assert s.get("open", ".", "dpdk_initialized") == "false"
    assert s.get("open", ".", "dpdk_version") == "none"
    assert "dpdk" not in s.get("open", ".", "iface_types")
    missing = "librte_vhost.so.23: cannot open shared object file"
    assert re.search(rf"\|ERR\|Unable to initialize DPDK: .*{missing}.*apt install librte-vhost23", s.log())
    for port in dpdk_ports(s):
        assert missing in s.error(port) and "apt install librte-vhost23" in s.error(port)
    for command in [["dpdk/lcore-list"], ["netdev-dpdk/detach", "net_null0"]]:
        assert missing in s.refusal("appctl", *command)
    # All else works.
    s.ip("link", "add", "va", "type", "veth", "peer", "name", "vb")
    s.vsctl("add-port", "br0", "va")
    assert s.error("va") == "[]"


def test_libraries_that_come_later_are_found_without_a_restart(hidden):
    driver("null")
    s = hidden()
    s.start()
    ports = dpdk_ports(s)
    assert all("librte_vhost.so.23" in s.error(port) for port in ports)
    Hidden.show(s.pid())
    s.configure(dpdk_init="false")
    assert all("DPDK is not initialised" in s.error(port) for port in ports)
    s.configure(dpdk_init="true")
    s.vsctl("set", "Open_vSwitch", ".", "external_ids:again=1")
    assert s.get("open", ".", "dpdk_initialized") == "true", s.log()
    assert s.get("open", ".", "dpdk_version").startswith("DPDK 2")
    assert [s.error(port) for port in ports] == ["[]", "[]"]


def test_libraries_of_another_version_are_refused(hidden):
    """A library that has its name, and lacks what is wanted of it."""
    everything = {path.name: path.name for path in LIBRARIES.glob("librte_*")}
    s = hidden(everything | {"librte_ethdev.so.23": "librte_ring.so.23"})
    s.start()
    assert s.get("open", ".", "dpdk_initialized") == "false"
    assert re.search(r"Unable to initialize DPDK: the libraries of DPDK [\d.]+ cannot be loaded: .*undefined symbol: rte_", s.log()), s.log()
    assert all("cannot be loaded" in s.error(port) for port in dpdk_ports(s))


def test_missing_libraries_are_no_error_to_a_try(hidden):
    s = hidden(**{"dpdk-init": "try"})
    s.start()
    assert "|WARN|Unable to initialize DPDK" in s.log() and "|ERR|Unable" not in s.log()


def test_toml_without_libraries_forwards(weir, net, tmp_path, monkeypatch):
    """`weir run`, of a file that wants DPDK, too."""
    wrapper = tmp_path / "weir"
    wrapper.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{Hidden(tmp_path).mount}exec \"$0\" \"$@\"' {WEIR} \"$@\"\n")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(lib.daemon, "WEIR", wrapper)
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(f"""
[dpdk]
init = true

[[bridge]]
name = "br0"
local = false
port = [
    {{ name = "{a.port}" }},
    {{ name = "{b.port}" }},
    {{ name = "p1", type = "dpdk", options = {{ dpdk-devargs = "net_null0" }} }},
    {{ name = "v1", type = "dpdkvhostuserclient", options = {{ vhost-server-path = "{tmp_path}/v1.sock" }} }},
]
""")
    assert a.ping("10.0.0.2") == 3
    errors = {port["name"]: port["error"] for bridge in w.json("show")["bridges"] for port in bridge["ports"]}
    assert all("librte_vhost.so.23" in errors[name] for name in ("p1", "v1")), errors
    assert not errors[a.port]
