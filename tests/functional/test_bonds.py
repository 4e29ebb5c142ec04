"""Bonds, with real links: to a learning switch that knows nothing of bonds, and by LACP to another bond."""

import itertools
import re
from pathlib import Path

import pytest
from lib.net import run
from lib.wait import until

EXPECTED = [r"No such device\)?$", r"cannot .*: No such device", r"Network is down", r"No such device or address"]

#: A bond of links to another host, and a host.
BONDED = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "bond0"
{settings}
{members}
[[bridge.port]]
name = "{host.port}"
"""


def members(names, more=""):
    return "".join(f'[[bridge.port.interface]]\nname = "{name}"\n{more}\n' for name in names)


class Far:
    """A host behind a learning switch, which has several links to the bond: the kernel's bridge, without spanning tree."""

    counter = itertools.count()

    def __init__(self, net, address, links=2):
        self.host = net.host()
        self.links = [(self.host.port, "eth0")]
        # With an address of its own: otherwise it is that of a device, and changes with it.
        self.host.run("ip", "link", "add", "lan", "address", "02:00:00:00:00:01", "type", "bridge")
        for number in range(1, links):
            port = f"{net.tag}f{next(Far.counter)}"
            run("ip", "link", "add", port, "type", "veth", "peer", "name", f"eth{number}", "netns", self.host.ns)
            run("ip", "link", "set", port, "up")
            self.links.append((port, f"eth{number}"))
        for _, device in self.links:
            self.host.run("ip", "link", "set", device, "master", "lan", "up")
        self.host.run("ip", "addr", "add", address, "dev", "lan")
        self.host.run("ip", "link", "set", "lan", "up")

    @property
    def ports(self):
        return [port for port, _ in self.links]

    def set(self, number, state):
        device = self.links[number][1]
        self.host.run("ip", "link", "set", device, state)
        if state == "up":
            # The bridge hears of the carrier within a second, maybe later than the other end of the link.
            until(lambda: "state forwarding" in self.host.run("bridge", "link", "show", "dev", device).stdout, what="the bridge's port")

    def replace(self, number):
        """Deletes a link and makes one of the same name."""
        port, device = self.links[number]
        run("ip", "link", "del", port)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", self.host.ns)
        run("ip", "link", "set", port, "up")
        self.host.run("ip", "link", "set", device, "master", "lan", "up")


def enabled(weir, bond="bond0"):
    """The members that are enabled, and the active one."""
    text = weir.appctl("bond/show", bond)
    active = re.search(r"^member (\S+): enabled\n  active member$", text, re.M)
    return sorted(re.findall(r"^member (\S+): enabled$", text, re.M)), active and active[1]


def set_up(weir, net, settings, links=2):
    far, near = Far(net, "10.0.0.1/24", links), net.host("10.0.0.2/24")
    daemon = weir(BONDED.format(settings=settings, members=members(far.ports), host=near))
    until(lambda: len(enabled(daemon)[0]) == links, what="all members enabled")
    until(lambda: near.ping("10.0.0.1", 1) == 1, what="an answer")
    return daemon, far, near


@pytest.mark.parametrize("mode", ["active-backup", "balance-slb"])
def test_failover_loses_no_more_than_the_detection(weir, net, mode):
    """The kernel tells of a carrier that has gone within a second (linkwatch). From then on nothing is lost."""
    daemon, far, near = set_up(weir, net, f'bond-mode = "{mode}"')
    for lost in (0, 1):
        pings = near.pings("10.0.0.1", interval=0.01, wait=2)
        near.receives(20)
        far.set(lost, "down")
        until(lambda: enabled(daemon) == ([far.ports[1 - lost]], far.ports[1 - lost]), what="the failover")
        # Frames that come by a member that was not active are dropped until its flows have been looked at.
        daemon.appctl("revalidator/wait")
        assert near.ping("10.0.0.1", 100, 0.01) >= 99
        assert pings.stop()[1] >= 90, "before and after"
        far.set(lost, "up")
        until(lambda: len(enabled(daemon)[0]) == 2, what="both members")


@pytest.mark.parametrize("mode", ["active-backup", "balance-slb"])
def test_broadcasts_are_not_reflected_and_come_once(weir, net, mode):
    daemon, far, near = set_up(weir, net, f'bond-mode = "{mode}"')
    frames = ("-Q", "in", "icmp", "and", "ether", "broadcast")
    at_near, at_far = near.sniff(*frames), far.host.sniff(*frames, device="lan")
    for count in (5, 1):
        # The last one comes after all others.
        for host in (near, far.host):
            host.run("ping", "-b", "-n", "-c", count, "-i", "0.05", "-W", "0.1", "-s", count, "10.0.0.255", check=False)
    at_far.sees("length 9")
    at_near.sees("length 9")
    for sniffer, here, there in [(at_near, "10.0.0.2", "10.0.0.1"), (at_far, "10.0.0.1", "10.0.0.2")]:
        assert sniffer.seen().count(f"{there} > 10.0.0.255") == 6, "each once: " + sniffer.seen()
        assert f"{here} > 10.0.0.255" not in sniffer.seen(), "not one's own: " + sniffer.seen()
    assert daemon.json("drops")["drops"], "the copies by the other member"


def test_a_member_device_goes_away_and_comes_back(weir, net):
    daemon, far, near = set_up(weir, net, 'bond-mode = "balance-slb"')
    far.replace(0)
    until(lambda: enabled(daemon)[0] == sorted(far.ports), what="the new device")
    far.set(1, "down")
    until(lambda: enabled(daemon) == ([far.ports[0]], far.ports[0]), what="the other one gone")
    until(lambda: near.ping("10.0.0.1", 1) == 1, what="an answer by the new device")


def test_links_are_monitored_by_mii(weir, net):
    """A device is dormant: there is a link, but the kernel says that nothing can be sent yet."""
    daemon, far, near = set_up(weir, net, 'bond-mode = "active-backup"')
    one, other = far.ports
    text = daemon.config.read_text()
    monitored = text.replace('bond-mode', 'bond-detect-mode = "miimon"\nbond-miimon-interval-ms = 50\nbond-mode')
    state = Path(f"/sys/class/net/{one}/operstate")

    def dormant():
        until(lambda: state.read_text() == "up\n", what="a link")
        run("ip", "link", "set", one, "mode", "dormant", "state", "dormant")
        assert state.read_text() == "dormant\n"

    dormant()
    until(lambda: enabled(daemon) == ([other], other), what="the other one alone")
    daemon.configure(monitored)
    daemon.cli("reload")
    until(lambda: enabled(daemon)[0] == sorted(far.ports), what="a link, as the driver says")
    for lost, left in [(0, other), (1, one)]:
        far.set(lost, "down")
        until(lambda: enabled(daemon) == ([left], left), what="the failover")
        until(lambda: near.ping("10.0.0.1", 1) == 1, what="an answer")
        far.set(lost, "up")
        until(lambda: len(enabled(daemon)[0]) == 2, what="both members")
    # So is a device that comes in the place of another one.
    far.replace(0)
    until(lambda: len(enabled(daemon)[0]) == 2, what="the new device")
    dormant()
    assert near.ping("10.0.0.1", 50, 0.02) == 50
    assert enabled(daemon)[0] == sorted(far.ports)
    daemon.configure(text)
    daemon.cli("reload")
    until(lambda: enabled(daemon) == ([other], other), what="the kernel's word")


def test_a_bond_becomes_a_single_interface_and_back(weir, net):
    daemon, far, near = set_up(weir, net, "bond-mode = \"active-backup\"")
    text = daemon.config.read_text()
    single = text.replace(members(far.ports), members(far.ports[:1]))
    pings = near.pings("10.0.0.1")
    for configured, count in [(single, 0), (text, 2), (single, 0), (text, 2)]:
        daemon.configure(configured)
        daemon.cli("reload")
        until(lambda: daemon.appctl("bond/show").count("\nmember ") == count, what=f"{count} members")
    sent, answered = pings.stop()
    assert answered >= sent - 10, "the member that stays goes on"


def test_thirty_two_members(weir, net):
    daemon, far, near = set_up(weir, net, 'bond-mode = "balance-slb"', links=32)
    assert len(daemon.appctl("dpif-netdev/bond-show").splitlines()) == 257
    for number in range(1, 32):
        far.set(number, "down")
    until(lambda: enabled(daemon) == ([far.ports[0]], far.ports[0]), what="one member left")
    until(lambda: near.ping("10.0.0.1", 1) == 1, what="an answer")


def test_commands(weir, net):
    daemon, far, near = set_up(weir, net, 'bond-mode = "balance-slb"')
    first, second = sorted(far.ports)
    name, mode, number, names = daemon.appctl("bond/list").splitlines()[1].split("\t")
    assert (name, mode, number, sorted(names.split(", "))) == ("bond0", "balance-slb", "0", [first, second])
    active = enabled(daemon)[1]
    assert daemon.appctl("bond/set-active-member", "bond0", active) == "no change\n"
    other = second if active == first else first
    assert daemon.appctl("bond/set-active-slave", "bond0", other) == "done\n"
    assert enabled(daemon)[1] == other
    bucket = daemon.appctl("bond/hash", near.mac).strip()
    assert daemon.appctl("bond/migrate", "bond0", bucket, first) == "migrated\n"
    for words, refusal in [(("bond/show", "no"), "no such bond"), (("bond/migrate", "bond0", "x", first), "bad hash"),
                           (("bond/set-active-member", "bond0", "no"), "no such member"),
                           (("bond/hash", "zz"), "invalid mac")]:
        assert refusal in daemon.refusal("appctl", *words)


#: Two bridges whose bonds are joined, each with a host.
JOINED = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "bond0"
bond-mode = "balance-tcp"
lacp = "active"
lacp-time = "fast"
{left}
[[bridge.port]]
name = "{a.port}"
[[bridge]]
name = "br1"
local = false
[[bridge.port]]
name = "bond1"
bond-mode = "balance-tcp"
lacp = "passive"
lacp-time = "fast"
{right}
[[bridge.port]]
name = "{b.port}"
"""


@pytest.fixture
def joined(weir, net):
    """The daemon, its links and the hosts."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    links = [(f"{net.tag}l{n}", f"{net.tag}r{n}") for n in range(2)]
    for left, right in links:
        run("ip", "link", "add", left, "type", "veth", "peer", "name", right)
        run("ip", "link", "set", left, "up")
        run("ip", "link", "set", right, "up")
    lefts, rights = zip(*links)
    yield weir(JOINED.format(left=members(lefts), right=members(rights), a=a, b=b)), links, a, b
    for left, _ in links:
        run("ip", "link", "del", left, check=False)


def test_bonds_negotiate_by_lacp_and_spread_connections(joined):
    daemon, links, a, b = joined
    until(lambda: len(enabled(daemon, "bond0")[0]) == 2 and len(enabled(daemon, "bond1")[0]) == 2, 20, "LACP")
    shown = daemon.appctl("lacp/show", "bond0")
    assert "status: active negotiated" in shown and shown.count("current attached") == 2, shown
    assert "lacp_status: negotiated" in daemon.appctl("bond/show", "bond0")
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer")
    before = [daemon.counters(left)["tx_pkts"] for left, _ in links]
    server = b.start("python3", "-c", "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('10.0.0.2',7))\n"
                     "while True:\n d,p=s.recvfrom(99)\n s.sendto(d,p)")
    client = ("import socket\n"
              "for port in range(20000,20100):\n"
              " s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n s.settimeout(20)\n s.bind(('10.0.0.1',port))\n"
              " for n in range(5):\n  s.sendto(b'x',('10.0.0.2',7))\n  s.recv(9)\n")
    until(lambda: "10.0.0.2:7" in b.run("ss", "-lun").stdout, what="the server")
    a.run("python3", "-c", client, timeout=120)
    assert server.poll() is None
    sent = [daemon.counters(left)["tx_pkts"] - n for (left, _), n in zip(links, before)]
    assert sum(sent) >= 500 and min(sent) > 100, sent
    assert "lb_output(" in daemon.appctl("dpctl/dump-flows")
    # The buckets, as OVS shows its flows for them.
    flow = (r"^table_id=254, duration=\d+s, n_packets=(\d+), n_bytes=(\d+), "
            r"priority=20,recirc_id=0x\w+,dp_hash=(\w+)/0xff,actions=output:\d+$")
    flows = re.findall(flow, daemon.appctl("bridge/dump-flows", "br0"), re.M)
    assert {int(bucket, 16) for _, _, bucket in flows} == set(range(256)), flows
    packets, size = (sum(int(flow[n]) for flow in flows) for n in (0, 1))
    assert 500 <= packets <= sum(daemon.counters(left)["tx_pkts"] for left, _ in links) and size >= 43 * packets, flows
    assert "dp_hash" not in daemon.ofctl("dump-flows", "br0"), "OpenFlow does not show them"


def test_failover_of_balance_tcp_revalidates_nothing(joined):
    daemon, links, a, b = joined
    until(lambda: len(enabled(daemon, "bond0")[0]) == 2 and len(enabled(daemon, "bond1")[0]) == 2, 20, "LACP")
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer")
    pings = a.pings("10.0.0.2", interval=0.01, wait=2)
    until(lambda: a.received() > 5, what="traffic")
    run("ip", "link", "set", links[0][0], "down")
    until(lambda: enabled(daemon, "bond0")[0] == [links[1][0]] and enabled(daemon, "bond1")[0] == [links[1][1]], what="the failover")
    assert a.ping("10.0.0.2", 100, 0.01) >= 99
    assert pings.stop()[1] >= 90, "before and after"
    run("ip", "link", "set", links[0][0], "up")
    until(lambda: len(enabled(daemon, "bond0")[0]) == 2 and len(enabled(daemon, "bond1")[0]) == 2, 20, "LACP again")


def test_a_partner_that_goes_silent_is_given_up(joined):
    """With `lacp-time = "fast"`, three seconds without a frame."""
    daemon, links, a, b = joined
    until(lambda: len(enabled(daemon, "bond0")[0]) == 2, 20, "LACP")
    text = daemon.config.read_text()
    daemon.configure(text.replace('lacp = "passive"', 'lacp = "off"'))
    daemon.cli("reload")
    until(lambda: enabled(daemon, "bond0")[0] == [], 20, "no partner")
    until(lambda: "lacp_status: configured" in daemon.appctl("bond/show", "bond0"), 20, "no partner at all")
    assert a.ping("10.0.0.2", 1, wait=1) == 0
    daemon.configure(text)
    daemon.cli("reload")
    until(lambda: len(enabled(daemon, "bond0")[0]) == 2 and len(enabled(daemon, "bond1")[0]) == 2, 45, "LACP again: an active end without partner sends each 30 seconds")
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer")
