"""Faucet, a controller that nobody here wrote, runs small networks: VLANs, access lists, routing, mirrors, stacks of switches, and
several controllers at once. Hosts are namespaces with stacks of the kernel; what passes is what they say."""

import os
import re
import signal
import sys

import pytest
from conftest import until
from lib.faucet import Controller
from lib.net import Sniffer, run

# Python starts slowly on a machine that has other things to do.
pytestmark = pytest.mark.timeout(400)
# A test may end a controller, or cut its connection.
EXPECTED = [r"\|rconn\|WARN\|"]

VLANS = """
vlans:
  office: {vid: 100}
  guest: {vid: 200}
"""
ROUTED = """
vlans:
  office:
    vid: 100
    faucet_mac: "0e:00:00:00:10:01"
    faucet_vips: ["10.0.100.254/24", "fd00:100::254/64"]
    routes:
    - route: {ip_dst: "10.9.0.0/16", ip_gw: "10.0.100.2"}
    - route: {ip_dst: "fd00:9::/64", ip_gw: "fd00:100::2"}
  guest:
    vid: 200
    faucet_mac: "0e:00:00:00:20:01"
    faucet_vips: ["10.0.200.254/24", "fd00:200::254/64"]
routers:
  both: {vlans: [office, guest]}
"""
GAUGE = """
faucet_configs: [FAUCET]
watchers:
  states: {type: port_state, all_dps: true, db: prometheus}
  ports: {type: port_stats, all_dps: true, interval: 1, db: prometheus}
  flows: {type: flow_table, all_dps: true, interval: 1, db: prometheus}
  meters: {type: meter_stats, all_dps: true, interval: 1, db: meters}
dbs:
  meters: {type: text, file: METERS}
  prometheus: {type: prometheus, prometheus_addr: 127.0.0.1, prometheus_port: METRICS_PORT}
"""
# Answers every connection to these ports of `::` with what it was for.
SERVER = """
import selectors, socket, sys
ports = selectors.DefaultSelector()
for port in sys.argv[2:]:
    ports.register(socket.create_server((sys.argv[1], int(port)), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET),
                   selectors.EVENT_READ, port)
print('ready', flush=True)
while True:
    for key, _ in ports.select():
        connection, _ = key.fileobj.accept()
        connection.sendall(key.data.encode() * 50000)
        connection.close()
"""
CLIENT = """
import socket, sys
try:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))
    data = b''.join(iter(lambda: s.recv(1 << 16), b''))
    print('all' if data == sys.argv[2].encode() * 50000 else f'{len(data)} bytes')
except TimeoutError:
    print('timeout')
"""


class Network:
    """Hosts at the ports of bridges of one Weir, which Faucet runs."""

    def __init__(self, ovs, net, tmp_path):
        self.ovs, self.net, self.tmp_path = ovs, net, tmp_path
        self.meters = tmp_path / "meters"
        self.hosts, self.controllers, self.links = [], [], []
        ovs.start()

    def host(self, last, vlan=100, **kw):
        """A host whose addresses end in this number, and whose port has the number of its turn."""
        host = self.net.host(f"10.0.{vlan}.{last}/24", address6=f"fd00:{vlan}::{last}/64", **kw)
        host.run("ip", "route", "add", "default", "via", f"10.0.{vlan}.254")
        host.run("ip", "-6", "route", "add", "default", "via", f"fd00:{vlan}::254")
        host.address, host.address6 = f"10.0.{vlan}.{last}", f"fd00:{vlan}::{last}"
        self.hosts.append(host)
        return host

    def link(self):
        """Two devices that are joined, for two bridges."""
        ends = [f"{self.net.tag}l{len(self.links)}{end}" for end in "ab"]
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        self.links.append(ends)
        for end in ends:
            run("sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1")
            run("ip", "link", "set", end, "up")
        return ends

    def edge(self, trunk, **hosts):
        """A plain switch at the end of a link that carries tags: hosts by name, with the VLAN that each has an untagged port of."""
        args = ["add-br", "edge", "--", "set", "bridge", "edge", "datapath_type=netdev", "--", "add-port", "edge", trunk]
        for host, vlan in hosts.values():
            args += ["--", "add-port", "edge", host.port, f"tag={vlan}"]
            self.hosts.remove(host)
        self.ovs.vsctl(*args)

    def faucet(self, config, name="faucet"):
        faucet = Controller("faucet", self.tmp_path / name, config)
        self.controllers.append(faucet)
        return faucet.start()

    def gauge(self, faucet):
        gauge = Controller("gauge", self.tmp_path / "gauge", GAUGE.replace("FAUCET", str(faucet.config)).replace("METERS", str(self.meters)))
        self.controllers.append(gauge)
        return gauge.start()

    def bridge(self, *controllers, bridge="br0", dp_id=1, ports=None):
        """A bridge with all hosts, or these ports."""
        args = ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13",
                f"other_config:datapath-id={dp_id:016x}", "other_config:disable-in-band=true"]
        for n, port in enumerate(ports or [host.port for host in self.hosts], 1):
            args += ["--", "add-port", bridge, port, "--", "set", "interface", port, f"ofport_request={n}"]
        self.ovs.vsctl(*args, "--", "set-controller", bridge, *(c.target for c in controllers))
        for controller in controllers:
            if controller.program == "faucet":
                until(lambda: 1.0 in controller.metrics("dp_status", dp_id=f"0x{dp_id:x}"), 120, f"Faucet having set {bridge} up")

    def close(self):
        for controller in self.controllers:
            controller.kill()
        self.ovs.stop()
        for a, _ in self.links:
            run("ip", "link", "del", a, check=False)


@pytest.fixture
def network(ovs, net, tmp_path):
    network = Network(ovs, net, tmp_path)
    yield network
    network.close()


class Here:
    """Where the switch is, as a host that something can be started at."""

    ns = "here"

    def __init__(self, net):
        # What is started here ends with a host.
        self.procs = net.hosts[0].procs

    @staticmethod
    def cmd(*cmd):
        return [*map(str, cmd)]


def switch(interfaces, dp_id=1, name="sw1", more=""):
    """The part of a configuration that is about a switch; interfaces by number."""
    lines = [f"  {name}:", f"    dp_id: {dp_id}", "    hardware: Open vSwitch" if "hardware" not in more else "", more, "    interfaces:"]
    return "\n".join(lines + [f"      {n}: {{{text}}}" for n, text in enumerate(interfaces, 1)]) + "\n"


def reaches(a, address):
    """Pings arrive, after the first ones that wait for addresses to be learnt."""
    until(lambda: a.ping(address, count=1, wait=1), 20, f"{a.ns} reaching {address}")
    until(lambda: a.ping(address, count=5, wait=1) == 5, 20, f"five pings of {a.ns} to {address} in a row")


def serve(host, address, *ports):
    server = host.start(sys.executable, "-c", SERVER, address, *map(str, ports))
    assert server.stdout.readline() == "ready\n", server.stderr.read()


def fetch(host, address, port, timeout=20):
    """What comes of a connection: "all" that the server sends, or "timeout"."""
    return host.run(sys.executable, "-c", CLIENT, address, port, timeout).stdout.strip()


@pytest.mark.parametrize("kind", ["hardware: Open vSwitch", "hardware: Open vSwitch TFM", "group_table: true"])
def test_vlans(network, net, kind):
    """Untagged and tagged ports of two VLANs; with tables that Faucet defines by table features, and with floods by groups."""
    h1, h2, g1, far, far_guest = (network.host(n, vlan) for n, vlan in ((1, 100), (2, 100), (3, 200), (9, 100), (9, 200)))
    trunk, end = network.link()
    network.edge(end, office=(far, 100), guest=(far_guest, 200))
    # As if both were one network: what keeps them apart is the switch.
    for host, other in ((h1, 200), (g1, 100)):
        host.run("ip", "addr", "add", f"10.0.{other}.3{host is h1:d}/24", "dev", "eth0")
    faucet = network.faucet(VLANS + "dps:\n" + switch(
        ["native_vlan: office", "native_vlan: office", "native_vlan: guest", "tagged_vlans: [office, guest]"], more="    " + kind))
    network.bridge(faucet, ports=[h1.port, h2.port, g1.port, trunk])
    reaches(h1, h2.address)
    reaches(h1, h2.address6)
    reaches(h2, far.address)
    reaches(g1, far_guest.address6)
    sniffer, at_h2 = Sniffer(Here(net), "vlan and (icmp or arp)", device=end), h2.sniff("arp")
    assert h1.ping(g1.address, count=2, wait=1) == 0, "another VLAN"
    reaches(far, h1.address)
    assert re.search(r"vlan 100, .*10.0.100.9 > 10.0.100.1: ICMP echo request", sniffer.seen()), sniffer.seen()
    # What h1 asked the whole network came to its own VLAN, by name, and to nobody else.
    assert re.search(rf"{h1.mac} > ff:ff:ff:ff:ff:ff, ethertype 802.1Q .* vlan 100, .*who-has {g1.address}", sniffer.seen())
    assert not re.search(rf"{h1.mac}.* vlan 200", sniffer.seen())
    at_h2.sees(f"who-has {g1.address}")
    assert faucet.metrics("vlan_hosts_learned", vlan="100") == [3] and faucet.metrics("vlan_hosts_learned", vlan="200") == [2]
    serve(h2, h2.address, 80)
    assert fetch(h1, h2.address, 80) == "all"
    faucet.check()


def test_routing_between_vlans(network):
    """Faucet answers for the routers' addresses, finds the hosts, and the switch routes; also by a gateway that is a host."""
    h1, h2, g1 = network.host(1), network.host(2), network.host(3, vlan=200)
    h2.run("ip", "addr", "add", "10.9.0.1/32", "dev", "lo")
    h2.run("ip", "addr", "add", "fd00:9::1/128", "dev", "lo")
    faucet = network.faucet(ROUTED + "dps:\n" + switch(["native_vlan: office", "native_vlan: office", "native_vlan: guest"]))
    network.bridge(faucet)
    for host, vlan in ((h1, 100), (g1, 200)):
        reaches(host, f"10.0.{vlan}.254")
        reaches(host, f"fd00:{vlan}::254")
    sniffer = g1.sniff("-v", "icmp or icmp6")
    reaches(h1, g1.address)
    reaches(h1, g1.address6)
    # By the router: its address, and one hop.
    assert re.search(r"0e:00:00:00:20:01 > .*ttl 63.*\n.*10.0.100.1 > 10.0.200.3: ICMP echo request", sniffer.seen()), sniffer.seen()
    assert re.search(r"0e:00:00:00:20:01 > .*hlim 63.*fd00:100::1 > fd00:200::3: .*echo request", sniffer.seen()), sniffer.seen()
    reaches(g1, "10.9.0.1")
    reaches(g1, "fd00:9::1")
    serve(g1, g1.address, 80)
    assert fetch(h1, g1.address, 80) == "all"
    serve(h2, "fd00:9::1", 80)
    assert fetch(g1, "fd00:9::1", 80) == "all"
    faucet.check()


ACLS = """
acls:
  access:
  - rule: {eth_type: 0x800, ip_proto: 6, tcp_dst: 23, actions: {allow: 0}}
  - rule: {eth_type: 0x86dd, ip_proto: 6, tcp_dst: 23, actions: {allow: 0}}
  - rule: {eth_type: 0x800, ip_proto: 6, tcp_dst: 81, actions: {output: {set_fields: [{eth_dst: "SINK"}, {ipv4_dst: 10.9.9.9}], port: 3}}}
  - rule: {eth_type: 0x800, ip_proto: 6, tcp_dst: 82, actions: {allow: 1, mirror: 3}}
  - rule: {eth_type: 0x800, ip_proto: 6, tcp_dst: 83, actions: {output: {vlan_vid: 77, ports: [3]}}}
  - rule: {eth_type: 0x800, ip_proto: 1, actions: {allow: 1, meter: slow}}
  - rule: {actions: {allow: 1}}
  away:
  - rule: {eth_type: 0x800, ipv4_dst: 10.0.100.66, actions: {allow: 0}}
  - rule: {actions: {allow: 1}}
meters:
  slow: {meter_id: 1, entry: {flags: PKTPS, bands: [{type: DROP, rate: 5, burst_size: 5}]}}
vlans:
  office: {vid: 100, acls_in: [away]}
"""


def test_access_lists(network):
    """Of ports and of a VLAN: dropped, let pass, sent elsewhere with other addresses or a tag, mirrored, metered."""
    h1, h2, sink = network.host(1), network.host(2), network.host(3, mac="02:00:00:00:00:77")
    h2.run("ip", "addr", "add", "10.0.100.66/24", "dev", "eth0")
    faucet = network.faucet(ACLS.replace("SINK", sink.mac) + "dps:\n" + switch(
        ["native_vlan: office, acls_in: [access]", "native_vlan: office", "output_only: true"]))
    gauge = network.gauge(faucet)
    network.bridge(faucet, gauge)
    # One at a time: more of them in a row would exceed the meter until it is left alone.
    until(lambda: h2.ping(h1.address, wait=1, count=1) == 1, 20, "an answer of h1")
    serve(h2, h2.address, 23, 80, 81, 82, 83)
    serve(h2, h2.address6, 23, 80)
    sniffer = sink.sniff("tcp or vlan")
    assert fetch(h1, h2.address, 80) == "all" and fetch(h1, h2.address6, 80) == "all"
    assert fetch(h1, h2.address, 23, 1.5) == "timeout" and fetch(h1, h2.address6, 23, 1.5) == "timeout"
    assert fetch(h1, h2.address, 82) == "all"
    assert fetch(h1, h2.address, 81, 1.5) == "timeout"
    assert fetch(h1, h2.address, 83, 1.5) == "timeout"
    sniffer.sees("10.0.100.2.83")
    seen = sniffer.seen()
    assert ".23:" not in seen and ".80:" not in seen, seen
    assert re.search(r"10.0.100.1.\d+ > 10.0.100.2.82: Flags \[S\]", seen), seen
    assert re.search(r"> 02:00:00:00:00:77, .* 10.0.100.1.\d+ > 10.9.9.9.81: Flags \[S\]", seen), seen
    assert re.search(r"vlan 77, .* 10.0.100.1.\d+ > 10.0.100.2.83: Flags \[S\]", seen), seen
    assert h1.ping("10.0.100.66", count=2, wait=1) == 0, "the VLAN's own list"
    # Many at once: some pass, and most do not.
    passed = h1.ping(h2.address, count=100, window=100, wait=1)
    assert 1 <= passed < 90, passed
    dropped = lambda: re.findall(r"\tsw1-1-packet-band-count\t(\d+)$", network.meters.read_text(), re.M)
    until(lambda: int((dropped() or [0])[-1]) >= 100 - passed - 10, 20, "Gauge seeing what the meter dropped")
    faucet.check()
    gauge.check()


def test_port_mirroring(network):
    """What h1 sends and gets goes to the mirror's port as well, once; what others say to each other does not."""
    h1, h2, h3, tap = (network.host(n) for n in (1, 2, 3, 4))
    faucet = network.faucet(VLANS + "dps:\n" + switch(
        ["native_vlan: office", "native_vlan: office", "native_vlan: office", "mirror: [1], output_only: true"]))
    network.bridge(faucet)
    reaches(h1, h2.address)
    reaches(h2, h3.address)
    sniffer = tap.sniff("icmp")
    assert h2.ping(h3.address, count=3) == 3 and h1.ping(h2.address, count=3) == 3
    sniffer.sees("seq 3,")
    until(lambda: sniffer.seen().count("echo reply") == 3, what="three answers in the mirror")
    seen = sniffer.seen()
    assert seen.count("10.0.100.1 > 10.0.100.2: ICMP echo request") == 3, seen
    assert seen.count("10.0.100.2 > 10.0.100.1: ICMP echo reply") == 3, seen
    assert "10.0.100.3" not in seen, seen
    faucet.check()


def test_faucet_and_gauge(network):
    """Two controllers at one bridge: Gauge sees ports come and go, and counts, while Faucet runs the network."""
    h1, h2 = network.host(1), network.host(2)
    faucet = network.faucet(VLANS + "dps:\n" + switch(["native_vlan: office"] * 2))
    gauge = network.gauge(faucet)
    network.bridge(faucet, gauge)
    reaches(h1, h2.address)
    came = network.ovs.counters(h1.port)["rx_pkts"]
    assert came >= 6
    until(lambda: sum(gauge.metrics("of_port_rx_packets", port="1")) >= came, 120, "Gauge counting what h1 sent")

    def counted():
        """What Gauge says of the flow to h2. The packets before it was there are in no flow."""
        h1.ping(h2.address, count=1)
        return sum(gauge.metrics("flow_packet_count_eth_dst", eth_dst=h2.mac))

    until(lambda: counted() >= 6, 120, "Gauge counting the flow to h2")
    assert faucet.metrics("port_status", port="2") == [1]
    h2.run("ip", "link", "set", "eth0", "down")
    until(lambda: faucet.metrics("port_status", port="2") == [0], 20, "Faucet seeing the port down")
    until(lambda: not [line for line in network.ovs.ofctl("dump-flows", "br0", version=13).splitlines() if h2.mac in line],
          what="Faucet forgetting what was at the port")
    h2.run("ip", "link", "set", "eth0", "up")
    until(lambda: faucet.metrics("port_status", port="2") == [1], 20, "Faucet seeing the port up")
    reaches(h2, h1.address)
    faucet.check()
    gauge.check()


def test_two_faucets(network):
    """The same configuration in both: one dies, the other goes on, and learns who comes then; the first comes back."""
    hosts = h1, h2, late = network.host(1), network.host(2), network.host(3)
    config = VLANS + "dps:\n" + switch(["native_vlan: office"] * 3)
    one, two = network.faucet(config, "one"), network.faucet(config, "two")
    late.run("ip", "link", "set", "eth0", "down")
    network.bridge(one, two)
    reaches(h1, h2.address)
    assert "role" in network.ovs.vsctl("--columns=role,is_connected", "list", "controller")
    one.kill()
    until(lambda: "false" in network.ovs.vsctl("--columns=is_connected", "list", "controller"), what="Weir seeing it gone")
    assert h1.ping(h2.address, count=5) == 5, "the flows stay"
    late.run("ip", "link", "set", "eth0", "up")
    reaches(late, h1.address)
    until(lambda: two.metrics("vlan_hosts_learned", vlan="100") == [3], 20, "the second Faucet learning")
    one.start()
    until(lambda: "false" not in network.ovs.vsctl("--columns=is_connected", "list", "controller"), 30, "the first one's return")
    until(lambda: one.metrics("dp_status", dp_id="0x1") == [1], 120, "the first one having set the bridge up again")
    for a in hosts:
        for b in hosts:
            if a is not b:
                reaches(a, b.address)
    one.check()
    two.check()


def test_a_changed_configuration(network):
    """SIGHUP: Faucet changes only what is different. A host changes its VLAN; a connection of others goes on."""
    h1, h2, h3 = network.host(1), network.host(2), network.host(3)
    config = VLANS + "dps:\n" + switch(["native_vlan: office", "native_vlan: office", "native_vlan: guest"])
    faucet = network.faucet(config)
    network.bridge(faucet)
    reaches(h1, h2.address)
    assert h3.ping(h1.address, count=2, wait=1) == 0
    pings = h1.pings(h2.address, interval=0.05)
    faucet.configure(config.replace("guest}", "office}").replace("{native_vlan: guest", "{native_vlan: office"))
    os.kill(faucet.proc.pid, signal.SIGHUP)
    reaches(h3, h1.address)
    sent, answered = pings.stop()
    assert sent == answered
    faucet.check()


def test_a_stack_of_switches(network):
    """Two bridges joined by two links: Faucet finds them by LLDP, blocks none, floods by the root, and reroutes when one is cut."""
    h1, h2, g1, g2 = network.host(1), network.host(2), network.host(3, vlan=200), network.host(4, vlan=200)
    stack = ["stack: {dp: %s, port: 3}", "stack: {dp: %s, port: 4}"]
    ends = lambda dp: ["native_vlan: office", "native_vlan: guest"] + [text % dp for text in stack]
    # Frames go each time that Faucet advertises itself; a link is lost with three of them.
    lldp = "    fast_advertise_interval: 1\n    lldp_beacon: {send_interval: 1, max_per_interval: 5}\n"
    faucet = network.faucet(VLANS + "dps:\n" + switch(ends("sw2"), 1, "sw1", "    stack: {priority: 1}\n" + lldp) +
                            switch(ends("sw1"), 2, "sw2", lldp))
    links = [network.link(), network.link()]
    network.bridge(faucet, bridge="br0", dp_id=1, ports=[h1.port, g1.port, links[0][0], links[1][0]])
    network.bridge(faucet, bridge="br1", dp_id=2, ports=[h2.port, g2.port, links[0][1], links[1][1]])
    for name in ("sw1", "sw2"):
        until(lambda: faucet.metrics("port_stack_state", dp_name=name, port="3") == [3.0] and
              faucet.metrics("port_stack_state", dp_name=name, port="4") == [3.0], 40, f"Faucet knowing both links of {name}")
    reaches(h1, h2.address)
    reaches(g1, g2.address6)
    assert h1.ping(g2.address, count=2, wait=1) == 0
    run("ip", "link", "set", links[0][0], "down")
    until(lambda: faucet.metrics("port_stack_state", dp_name="sw1", port="3") != [3.0], 40, "Faucet seeing the link cut")
    reaches(h1, h2.address)
    reaches(g1, g2.address)
    faucet.check()
