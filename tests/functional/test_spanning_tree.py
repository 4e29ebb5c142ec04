"""Spanning trees, with real links: rings of Weir's bridges, and the kernel's bridge as a neighbour."""

import itertools
import json
import re

import pytest
from lib.net import run
from lib.wait import until

#: With the shortest times that the standard allows.
OPTIONS = {
    "stp": "{ stp-hello-time = 1, stp-max-age = 6, stp-forward-delay = 4 }",
    "rstp": "{ rstp-max-age = 6, rstp-forward-delay = 4 }",
}
#: Until all ports have their last state: max age and twice the forward delay, and as much again on a busy machine.
SETTLED = 60

#: What a device that goes has in the log.
EXPECTED = [r"No such device\)?$", r"cannot .*: No such device", r"Network is down", r"No such device or address",
            r"no interface of this name"]

_links = itertools.count()


class Link:
    """A veth pair between two bridges."""

    def __init__(self, net):
        number = next(_links)
        self.ends = tuple(f"{net.tag}l{number}{end}" for end in "ab")
        self.make()

    def make(self):
        a, b = self.ends
        run("ip", "link", "add", a, "type", "veth", "peer", "name", b)
        for end in self.ends:
            run("sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1", check=False)
            run("ip", "link", "set", end, "up")

    def set(self, state):
        run("ip", "link", "set", self.ends[0], state)

    def remove(self):
        run("ip", "link", "del", self.ends[0], check=False)


@pytest.fixture
def link(net):
    made = []

    def make():
        made.append(Link(net))
        return made[-1]

    yield make
    for each in made:
        each.remove()


def bridge(name, protocol, ports, options=None):
    ports = "".join(f'[[bridge.port]]\nname = "{port}"\n' for port in ports)
    how = f'spanning-tree = "{protocol}"\nspanning-tree-options = {options or OPTIONS.get(protocol, "{}")}\n'
    return f'[[bridge]]\nname = "{name}"\nlocal = false\n{how}{ports}'


def table(daemon, protocol, name):
    """Role and state of each port of a bridge."""
    text = daemon.appctl(f"{protocol}/show", name)
    rows = re.findall(r"^  (\S+) +(\w+) +(\w+) +\d+ +\d+\.\d+$", text, re.M)
    return {port: (role.lower(), state.lower()) for port, role, state in rows}


def states(daemon, protocol, names):
    return sorted(state for name in names for _, state in table(daemon, protocol, name).values())


class Ring:
    """Three bridges of one Weir, each with a host, and links between each two of them."""

    def __init__(self, weir, net, link, protocol):
        self.protocol, self.names = protocol, ["br0", "br1", "br2"]
        self.hosts = [net.host(f"10.0.0.{n}/24") for n in (1, 2, 3)]
        self.links = [link() for _ in range(3)]
        self.daemon = weir(self.config(protocol))

    def config(self, protocol):
        text = ""
        for n, (name, host) in enumerate(zip(self.names, self.hosts)):
            ports = [host.port, self.links[n].ends[0], self.links[n - 1].ends[1]]
            text += bridge(name, protocol, ports)
        return text

    def is_settled(self, blocked):
        """Whether all ports forward but for so many of the links'."""
        blocking = "blocking" if self.protocol == "stp" else "discarding"
        found = states(self.daemon, self.protocol, self.names)
        return found.count(blocking) == blocked and found.count("forwarding") == len(found) - blocked

    def settles(self, blocked):
        until(lambda: self.is_settled(blocked), SETTLED, f"{blocked} ports that block")


def copies(sniffer):
    """How often each broadcast ping came, by sender and number."""
    counts = {}
    for line in sniffer.seen().splitlines():
        if found := re.search(r"(\S+) > 10\.0\.0\.255: ICMP echo request, id (\d+), seq (\d+)", line):
            counts[found.groups()] = counts.get(found.groups(), 0) + 1
    return counts


@pytest.mark.parametrize("protocol", ["rstp", "stp"])
def test_a_ring_has_no_loop_and_heals(net, link, weir, protocol):
    ring = Ring(weir, net, link, protocol)
    a, b, c = ring.hosts
    sniffers = [host.sniff("-Q", "in", "icmp[icmptype] = icmp-echo and ether broadcast") for host in ring.hosts]
    # From before the first port forwards until the end.
    shout = a.start("ping", "-b", "-n", "-i", "0.1", "-W", "0.1", "10.0.0.255")
    ring.settles(1)
    until(lambda: b.ping("10.0.0.3", 1) == 1, what="an answer")
    # A link of the root's: the one that blocks takes its place.
    ring.links[0].set("down")
    ring.settles(0)
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer by the other way")
    before = max(int(seq) for _, _, seq in copies(sniffers[1])) if copies(sniffers[1]) else 0
    until(lambda: any(int(seq) > before for _, _, seq in copies(sniffers[1])), what="broadcasts by the other way")
    ring.links[0].set("up")
    ring.settles(1)
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer once more")
    shout.kill()
    for sniffer, host in zip(sniffers, ring.hosts):
        assert set(copies(sniffer).values()) <= {1}, "each broadcast comes once: " + str(copies(sniffer))
    assert copies(sniffers[1]) and copies(sniffers[2]) and not copies(sniffers[0])


def test_switched_off_it_forwards_and_switched_on_it_does_not(net, link, weir):
    """Settings change while it runs. Without a spanning tree there must be no ring: a link of it is down."""
    ring = Ring(weir, net, link, "rstp")
    ring.settles(1)
    ring.links[2].set("down")
    ring.settles(0)
    ring.daemon.configure(ring.config("off"))
    ring.daemon.cli("reload")
    assert "No such RSTP object" in ring.daemon.refusal("appctl", "rstp/show", "br0")
    a, b, _ = ring.hosts
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer without a tree")
    ring.daemon.configure(ring.config("stp"))
    ring.daemon.cli("reload")
    ring.protocol = "stp"
    ring.links[2].set("up")
    ring.settles(1)
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer by STP")
    # Another root: the port that blocks is elsewhere then.
    text = ring.config("stp").replace("{ stp-hello", "{ stp-priority = 0, stp-hello", 1)
    ring.daemon.configure(text)
    ring.daemon.cli("reload")
    until(lambda: "This bridge is the root" in ring.daemon.appctl("stp/show", "br0"), what="the new root")
    ring.settles(1)
    assert all(role == "designated" for role, _ in table(ring.daemon, "stp", "br0").values())


class KernelBridge:
    """The kernel's bridge in a namespace, which speaks STP, with two links to a switch."""

    def __init__(self, net):
        self.host = net.host()
        second = f"{net.tag}k{next(_links)}"
        run("ip", "link", "add", second, "type", "veth", "peer", "name", "eth1", "netns", self.host.ns)
        run("ip", "link", "set", second, "up")
        self.ports = [self.host.port, second]
        times = ("stp_state", "1", "forward_delay", "400", "hello_time", "100", "max_age", "600")
        self.host.run("ip", "link", "add", "lan", "address", "02:00:00:00:00:77", "type", "bridge", *times)
        for device in ("eth0", "eth1"):
            self.host.run("ip", "link", "set", device, "master", "lan", "up")
        self.host.run("ip", "addr", "add", "10.0.0.1/24", "dev", "lan")
        self.host.run("ip", "link", "set", "lan", "up")

    def states(self):
        links = json.loads(self.host.run("ip", "-j", "-d", "link", "show", "master", "lan").stdout)
        return [each["linkinfo"]["info_slave_data"]["state"] for each in links]


@pytest.mark.parametrize("protocol", ["rstp", "stp"])
@pytest.mark.parametrize("root", ["weir", "kernel"])
def test_the_kernels_bridge_as_a_neighbour(weir, net, protocol, root):
    """Two links are a loop: the one of the two that is not the root blocks one of them. RSTP speaks STP there."""
    kernel, near = KernelBridge(net), net.host("10.0.0.2/24")
    priority = 0 if root == "weir" else 61440
    options = OPTIONS[protocol].replace("{", f"{{ {protocol}-priority = {priority},")
    daemon = weir(bridge("br0", protocol, [*kernel.ports, near.port], options))

    def blocked():
        mine = table(daemon, protocol, "br0")
        here = [mine.get(port, ("", ""))[1] for port in kernel.ports]
        return here, kernel.states()

    def is_settled():
        here, there = blocked()
        blocking = ["blocking" if protocol == "stp" else "discarding", "forwarding"]
        one, all_of = sorted(here) == sorted(blocking), here == ["forwarding"] * 2
        if root == "weir":
            return all_of and sorted(there) == ["blocking", "forwarding"]
        return one and there == ["forwarding"] * 2

    until(is_settled, SETTLED, what="one port that blocks")
    until(lambda: near.ping("10.0.0.1", 1) == 1, what="an answer")
    at_lan = kernel.host.sniff("-Q", "in", "icmp[icmptype] = icmp-echo and ether broadcast", device="lan")
    near.run("ping", "-b", "-n", "-c", "10", "-i", "0.05", "-W", "0.1", "10.0.0.255", check=False)
    until(lambda: len(copies(at_lan)) == 10, what="broadcasts")
    assert set(copies(at_lan).values()) == {1}, copies(at_lan)
    run("ip", "link", "del", kernel.ports[1])
    until(lambda: near.ping("10.0.0.1", 1) == 1, SETTLED, what="an answer by what is left")


def test_tshark_reads_what_is_sent(weir, net):
    """Each protocol's BPDUs are whole, and have what was configured."""
    host = net.host("10.0.0.1/24")
    fields = ("stp.version", "stp.type", "stp.root.prio", "stp.hello", "stp.max_age", "stp.port", "eth.src")
    want = {"stp": ("0", "0x00"), "rstp": ("2", "0x02")}
    daemon = weir(bridge("br0", "off", [host.port]))
    mac = run("cat", f"/sys/class/net/{host.port}/address").stdout.strip()
    for protocol in ("stp", "rstp"):
        options = OPTIONS[protocol].replace("{", f"{{ {protocol}-priority = 8192,")
        daemon.configure(bridge("br0", protocol, [host.port], options))
        daemon.cli("reload")
        args = [word for field in fields for word in ("-e", field)]
        out = host.run("tshark", "-Q", "-l", "-ni", "eth0", "-c", "3", "-f", "ether dst 01:80:c2:00:00:00", "-Y", "stp",
                       "-T", "fields", *args).stdout
        lines = [line.split("\t") for line in out.splitlines()]
        assert lines, "no BPDU"
        for version, kind, priority, hello, age, port, source in lines:
            assert (int(version, 0), int(kind, 0)) == tuple(int(text, 0) for text in want[protocol])
            assert (int(priority), float(age), int(port, 0) & 0xff) == (8192, 6, 1)
            assert float(hello) == (1 if protocol == "stp" else 2) and source == mac


FLOOD = """
import socket, struct, sys, time
bpdu = bytes.fromhex("0180c2000000" + "020000000666" + "0027" + "424203" + "0000020e" + "7001020000000666" + "00000000"
                     + "7001020000000666" + "8001" + "0000" + "0600" + "0200" + "0400" + "00")
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
n = 0
while True:
    n += 1
    frame = bytearray(bpdu.ljust(60, b"\\0"))
    # Another root each time, each with a change of the topology.
    frame[21] |= n & 1
    frame[24:30] = struct.pack(">IH", n & 0xffffffff, 1)
    try:
        s.send(frame)
    except OSError:
        pass
"""


def test_a_flood_of_bpdus_holds_up_nobody(weir, net, tmp_path):
    hostile, a, b = net.host(), net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    other = (bridge("br0", "rstp", [hostile.port]) + bridge("br1", "rstp", [a.port, b.port]))
    daemon = weir(other)
    until(lambda: states(daemon, "rstp", ["br1"]) == ["forwarding"] * 2, SETTLED, "forwarding")
    script = tmp_path / "flood.py"
    script.write_text(FLOOD)
    hostile.start("python3", str(script))
    until(lambda: daemon.counters(hostile.port)["rx_pkts"] > 20_000, SETTLED, "a flood")
    assert a.ping("10.0.0.2", 100, 0.01) >= 99
    # Neither the commands nor the other tree have to wait.
    assert states(daemon, "rstp", ["br1"]) == ["forwarding"] * 2
    before = daemon.counters(hostile.port)["rx_pkts"]
    until(lambda: daemon.counters(hostile.port)["rx_pkts"] > before + 20_000, SETTLED, "the flood going on")
    assert a.ping("10.0.0.2", 100, 0.01) >= 99


def test_a_device_goes_away_and_comes_back(net, link, weir):
    a, b, wire = net.host("10.0.0.1/24"), net.host("10.0.0.2/24"), link()
    config = bridge("br0", "rstp", [a.port, wire.ends[0]]) + bridge("br1", "rstp", [b.port, wire.ends[1]])
    daemon = weir(config)
    until(lambda: a.ping("10.0.0.2", 1) == 1, SETTLED, what="an answer")
    wire.remove()
    until(lambda: wire.ends[0] not in table(daemon, "rstp", "br0"), SETTLED, "the port gone")
    wire.make()
    until(lambda: a.ping("10.0.0.2", 1) == 1, SETTLED, what="an answer by the new device")


def test_columns_and_descriptions(ovs, net):
    """By the database: both enabled is RSTP; what a bridge and its ports say of themselves; OpenFlow's bits."""
    host, none = net.host(), net.host()
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "stp_enable=true",
              "other_config:stp-forward-delay=4", "other_config:stp-max-age=6", "other_config:stp-priority=0x1000",
              "other_config:hwaddr=02:00:00:00:00:aa")
    ovs.vsctl("add-port", "br0", host.port, "--", "set", "port", host.port, "other_config:stp-port-num=7")
    ovs.vsctl("add-port", "br0", none.port, "--", "set", "port", none.port, "other_config:stp-enable=false")
    until(lambda: "stp_state=forwarding" in ovs.vsctl("get", "port", host.port, "status").replace('"', ""), SETTLED, "STP")
    status = ovs.vsctl("get", "port", host.port, "status").replace('"', "")
    assert f"stp_port_id={0x8007}" in status and "stp_role=designated" in status and "stp_sec_in_state=" in status
    until(lambda: "stp_tx_count=" in ovs.vsctl("get", "port", host.port, "statistics"), SETTLED, "statistics")
    of_bridge = ovs.vsctl("get", "bridge", "br0", "status").replace('"', "")
    assert "stp_bridge_id=1000.0200000000aa" in of_bridge and "stp_root_path_cost=0" in of_bridge
    assert ovs.vsctl("get", "port", none.port, "status").strip() == "{}"
    assert "STP_FORWARD" in ovs.ofctl("show", "br0")
    ovs.expect("mutually exclusive")
    ovs.vsctl("set", "bridge", "br0", "rstp_enable=true")
    until(lambda: "Forwarding" in ovs.vsctl("get", "port", host.port, "rstp_status"), SETTLED, "RSTP")
    until(lambda: "rstp_tx_count=" in ovs.vsctl("get", "port", host.port, "rstp_statistics"), SETTLED, "statistics")
    assert "rstp_root_id" in ovs.vsctl("get", "bridge", "br0", "rstp_status")
    until(lambda: ovs.vsctl("get", "port", host.port, "status").strip() == "{}", SETTLED, "nothing of STP")
    ovs.vsctl("set", "bridge", "br0", "rstp_enable=false", "stp_enable=false")
    until(lambda: ovs.vsctl("get", "port", host.port, "rstp_status").strip() == "{}", SETTLED, "nothing of RSTP")
    assert ovs.vsctl("get", "port", host.port, "rstp_statistics").strip() == "{}"
    assert "STP_" not in ovs.ofctl("show", "br0")
