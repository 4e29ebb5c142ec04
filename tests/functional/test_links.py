"""Devices that come, go and come back under the switch, and what the host has to do with a bridge unasked."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import until
from lib.net import run
from test_vswitchd import ovs  # noqa: F401

EXPECTED = [r"No such device\)?$", r"cannot .*: No such device"]


class Toml:
    """A bridge of `weir run`; `ports` are (name, type)."""

    def __init__(self, start, bridge, ports, local=False, settings=""):
        text = f'[[bridge]]\nname = "{bridge}"\nlocal = {str(local).lower()}\n'
        for number, (name, kind) in enumerate(ports, 1):
            text += f'[[bridge.port]]\nname = "{name}"\ntype = "{kind}"\nofport = {number}\n{settings}\n'
        self.weir, self.bridge = start(text), bridge
        self.ofctl, self.appctl = self.weir.ofctl, self.weir.appctl

    def port(self, name):
        return next(p for p in self.weir.json("ports")["ports"] if p["name"] == name)

    def error(self, name):
        return self.port(name)["error"]

    def ofport(self, name):
        return self.port(name)["ofport"]

    def mtu(self, name):
        return self.port(name)["mtu"]

    def pid(self):
        return self.weir.proc.pid

    def log(self):
        return self.weir.text()


class Database:
    """The same bridge of `weir vswitchd`."""

    def __init__(self, ovs, bridge, ports, settings=()):  # noqa: F811
        ovs.start()
        args = ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"]
        for number, (name, kind) in enumerate(ports, 1):
            args += ["--", "add-port", bridge, name, "--", "set", "interface", name, f"type={kind}",
                     f"ofport_request={number}", *settings]
        ovs.vsctl(*args, check=False)
        self.ovs, self.bridge, self.ofctl, self.appctl = ovs, bridge, ovs.ofctl, ovs.appctl
        self.log, self.pid = ovs.log, ovs.pid

    def error(self, name):
        value = self.ovs.get("interface", name, "error")
        return None if value == "[]" else value

    def ofport(self, name):
        return int(self.ovs.get("interface", name, "ofport"))

    def mtu(self, name):
        return until(lambda: int(self.ovs.get("interface", name, "mtu").strip("[]") or 0), what="the MTU")


@pytest.fixture(params=["toml", "database"])
def switch(request):
    """A function that starts a switch with ports, by either source of configuration."""
    if request.param == "toml":
        start = request.getfixturevalue("weir")
        return lambda bridge, ports, mtu=None, local=False: Toml(
            start, bridge, ports, local, f"mtu = {mtu}" if mtu else "")
    ovs = request.getfixturevalue("ovs")
    return lambda bridge, ports, mtu=None, local=True: Database(
        ovs, bridge, ports, [f"mtu_request={mtu}"] if mtu else [])


def counter(switch, name):
    return int(switch.appctl("coverage/read-counter", name))


def connect(switch, *pairs):
    """Flows between ports by number, and no others."""
    switch.ofctl("del-flows", switch.bridge)
    for a, b in pairs:
        switch.ofctl("add-flow", switch.bridge, f"in_port={a},actions={b}")
        switch.ofctl("add-flow", switch.bridge, f"in_port={b},actions={a}")


def make(host, address):
    """The veth pair of a host, anew and under its old names."""
    run("ip", "link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.ns)
    host.run("ip", "link", "set", "eth0", "up")
    host.run("ip", "addr", "add", address, "dev", "eth0")
    run("ip", "link", "set", host.port, "up")


def mtu(name):
    return int(Path(f"/sys/class/net/{name}/mtu").read_text())


@pytest.mark.parametrize("kind", ["system", "afpacket", "afxdp"])
def test_an_interface_made_again_stays_dead(switch, net, kind):
    a, b, c, d = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3, 4))
    s = switch(f"{net.tag}br", [(h.port, kind if h is a else "system") for h in (a, b, c, d)], mtu=1400)
    connect(s, (1, 2), (3, 4))
    assert a.ping("10.0.0.2") == 3
    others = c.pings("10.0.0.4")
    for _ in range(2):
        run("ip", "link", "del", a.port)
        error = until(lambda: s.error(a.port), what="the error")
        assert "No such device" in error
        assert s.ofport(a.port) == 1, "the port is there, as in OVS"
        make(a, "10.0.0.1/24")
        until(lambda: not s.error(a.port), what="the end of the error")
        assert a.ping("10.0.0.2") == 3, "the same flows name the same port"
        assert (s.ofport(a.port), mtu(a.port)) == (1, 1400)
    sent, answered = others.stop()
    assert sent == answered > 10, "the others' traffic is undisturbed"


def test_an_interface_that_appears_later_stays_unknown(switch, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    run("ip", "link", "del", a.port)
    s = switch(f"{net.tag}br", [(a.port, "system"), (b.port, "system")])
    assert "No such device" in s.error(a.port)
    if isinstance(s, Database):
        assert f"could not open network device {a.port} (No such device)" in s.ovs.vsctl("show")
        assert s.ofport(a.port) == -1
    make(a, "10.0.0.1/24")
    until(lambda: not s.error(a.port), what="the end of the error")
    connect(s, (1, 2))
    assert a.ping("10.0.0.2") == 3


def test_an_interface_that_comes_back_from_another_namespace_stays_dead(switch, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    here, there = f"{net.tag}here", f"{net.tag}there"
    s = switch(f"{net.tag}br", [(a.port, "system"), (b.port, "system")])
    connect(s, (1, 2))
    index = Path(f"/sys/class/net/{a.port}/ifindex").read_text()
    run("ip", "netns", "attach", here, os.getpid())
    run("ip", "netns", "add", there)
    try:
        for wait in (True, False):
            run("ip", "link", "set", a.port, "netns", there)
            if wait:
                until(lambda: s.error(a.port), what="the error")
            run("ip", "-n", there, "link", "set", a.port, "netns", here)
            run("ip", "link", "set", a.port, "up")
            assert Path(f"/sys/class/net/{a.port}/ifindex").read_text() == index, "it looks as before"
            until(lambda: not s.error(a.port) and a.ping("10.0.0.2", count=1, wait=1) == 1, what="traffic")
    finally:
        run("ip", "netns", "del", here)
        run("ip", "netns", "del", there)


def test_a_deleted_internal_device_stays_away(switch, net):
    a, name = net.host("10.9.8.1/24"), f"{net.tag}i"
    s = switch(f"{net.tag}br", [(a.port, "system"), (name, "internal")], mtu=1400, local=True)
    connect(s, (1, 2), (3, "LOCAL"))
    for device in (name, s.bridge):
        run("ip", "link", "del", device)
        until(lambda: Path(f"/sys/class/net/{device}").exists(), what=f"{device} being made again")
    run("ip", "link", "set", name, "up")
    run("ip", "addr", "add", "10.9.8.2/24", "dev", name)
    until(lambda: a.ping("10.9.8.2", count=1, wait=1) == 1, what="traffic")
    assert (s.ofport(name), mtu(name), s.error(name)) == (2, 1400, None)
    assert "LOCAL" in s.ofctl("show", s.bridge)


def test_a_flapping_device_piles_up_work(switch, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    s = switch(f"{net.tag}br", [(a.port, "system"), (b.port, "system")])
    connect(s, (1, 2))
    s.judged_late = 20  # The hosts' own multicast, at each of the changes.
    started, changes = time.monotonic(), 0
    while time.monotonic() - started < 3:
        run("ip", "link", "del", a.port)
        run("ip", "link", "add", a.port, "type", "veth", "peer", "name", "eth0", "netns", a.ns)
        changes += 1
    rounds = (time.monotonic() - started) / 0.2
    run("ip", "link", "del", a.port)
    make(a, "10.0.0.1/24")
    until(lambda: not s.error(a.port) and a.ping("10.0.0.2", count=1, wait=1) == 1, what="traffic")
    reopened = s.log().count("is there again")
    assert 1 <= reopened <= rounds + 5, f"{reopened} times for {changes} changes in {rounds:.0f} rounds"


def test_the_host_is_attached_to_a_bridge_unasked(switch, net):
    a, b, name = net.host("10.9.8.1/24"), net.host("10.9.8.2/24"), f"{net.tag}i"
    s = switch(f"{net.tag}br", [(a.port, "system"), (b.port, "system"), (name, "internal")], local=True)
    for device in (s.bridge, name):
        assert "state DOWN" in run("ip", "link", "show", device).stdout
        assert run("ip", "-6", "addr", "show", "dev", device).stdout == "", "no address that nobody asked for"
    shown = s.ofctl("show", s.bridge)
    for port in ("LOCAL", "3"):
        config, state = shown.split(f" {port}(")[1].splitlines()[1:3]
        assert (config.split(), state.split()) == (["config:", "PORT_DOWN"], ["state:", "LINK_DOWN"])
    # Floods: a broadcast goes to all four ports, two of which are down.
    before, sent = counter(s, "datapath_drop_port_down"), 20
    a.run("ping", "-n", "-b", "-c", sent, "-i", "0.01", "-W", "1", "10.9.8.255", check=False)
    assert counter(s, "datapath_drop_port_down") >= before + 2 * sent
    found = re.search(r"tx pkts=0, bytes=0, drop=(\d+), errs=0", s.ofctl("dump-ports", s.bridge, "LOCAL"))
    assert found and int(found[1]) >= sent, "nothing was tried with the device"
    s.ofctl("mod-port", s.bridge, s.bridge, "up")
    run("ip", "addr", "add", "10.9.8.9/24", "dev", s.bridge)
    assert a.ping("10.9.8.9") == 3
    s.ofctl("mod-port", s.bridge, s.bridge, "down")
    assert "state DOWN" in run("ip", "link", "show", s.bridge).stdout


@pytest.fixture
def veths(net):
    """A function that makes veth pairs, all by one command; the names of the ends for the switch."""
    made = []

    def batch(lines):
        run("ip", "-batch", "-", input="\n".join(lines) + "\n")

    def make_all(count):
        names = [f"{net.tag}v{n}" for n in range(count)]
        batch([f"link add {n} type veth peer name {n}x" for n in names])
        made.extend(names)
        batch([f"link set {n} up" for n in names])
        return names

    make_all.batch, make_all.names = batch, made
    yield make_all
    left = [n for n in made if Path(f"/sys/class/net/{n}").exists()]
    if left:
        batch([f"link del {n}" for n in left])


def test_the_kernel_is_asked_for_each_port(switch, net, veths):
    """However many ports there are, and however long they are there, the kernel is asked a few times."""
    names = veths(40)
    s = switch(f"{net.tag}br", [(n, "system") for n in names])
    until(lambda: all(f"({n})" in s.ofctl("show", s.bridge) for n in names), what="the ports")
    assert counter(s, "netlink_sent") <= 10
    before = counter(s, "netlink_sent")
    # Some rounds of the watch, of the datapath's maintenance, and one of the statistics.
    time.sleep(6)
    assert counter(s, "netlink_sent") == before


def test_devices_that_go_together_are_looked_for_one_by_one(switch, net, veths):
    names = veths(40)
    s = switch(f"{net.tag}br", [(n, "system") for n in names])
    before = counter(s, "netlink_sent")
    veths.batch([f"link del {n}" for n in names])
    until(lambda: all("No such device" in (s.error(n) or "") for n in (names[0], names[-1])), what="the errors")
    veths.batch([f"link add {n} type veth peer name {n}x" for n in names])
    until(lambda: not any(s.error(n) for n in (names[0], names[-1])), what="the end of the errors")
    until(lambda: s.log().count("is there again") >= len(names), what="all of them")
    assert s.log().count("No such device") <= 2 * len(names), "each is told of once"
    # A name that the table does not have is asked for once by each of the few attempts.
    assert counter(s, "netlink_sent") - before <= 4 * len(names)


def lost_events():
    """How many messages the sockets of rtnetlink had no room for."""
    lines = Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]
    return sum(int(line.split()[8]) for line in lines if line.split()[1] == "0")


def test_events_that_were_lost_leave_the_switch_wrong(switch, net, veths):
    """More events than the socket has room for: all interfaces are asked for anew, and the ports are right."""
    name, other = veths(2)
    s = switch(f"{net.tag}br", [(name, "system")])
    os.kill(s.pid(), signal.SIGSTOP)
    try:
        before = lost_events()
        while lost_events() == before:
            veths.batch([f"link set {other} mtu {1300 + n % 2}" for n in range(500)])
        veths.batch([f"link del {name}", f"link add {name} mtu 1321 type veth peer name {name}x"])
    finally:
        os.kill(s.pid(), signal.SIGCONT)
    until(lambda: "is there again" in s.log() and not s.error(name), what="the new device")
    assert counter(s, "netlink_overflow") > 0
    until(lambda: s.mtu(name) == 1321, what="the new MTU")
