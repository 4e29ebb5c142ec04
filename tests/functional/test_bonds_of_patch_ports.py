"""Bonds whose members are patch ports, in `balance-tcp`: connections share flows, are spread, and each stays with its member."""

import re
import struct
import subprocess

import pytest
from lib.pcap import read_pcap
from lib.wait import until

#: Two bridges of bonds that are joined by patch ports, each with a host.
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
lacp = "active"
lacp-time = "fast"
{right}
[[bridge.port]]
name = "{b.port}"
"""

SERVER = ("import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('10.0.0.2',7))\n"
          "while True:\n d,p=s.recvfrom(99)\n s.sendto(d,p)")
CLIENT = ("import socket\n"
          "for port in range({},{}):\n"
          " s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n s.settimeout(2)\n s.bind(('10.0.0.1',port))\n"
          " for n in range({}):\n  s.sendto(b'x',('10.0.0.2',7))\n  s.recv(9)\n s.close()\n")


def patches(names, peers):
    return "".join(f'[[bridge.port.interface]]\nname = "{name}"\ntype = "patch"\noptions = {{ peer = "{peer}" }}\n'
                   for name, peer in zip(names, peers))


def enabled(daemon, bond):
    return sorted(re.findall(r"^member (\S+): enabled$", daemon.appctl("bond/show", bond), re.M))


def test_connections_between_hosts(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    left, right = ["x0", "x1"], ["y0", "y1"]
    text = JOINED.format(left=patches(left, right), right=patches(right, left), a=a, b=b)
    daemon = weir(text)
    both = lambda: (enabled(daemon, "bond0"), enabled(daemon, "bond1"))
    until(lambda: both() == (left, right), 20, "LACP")
    until(lambda: a.ping("10.0.0.2", 1) == 1, what="an answer")
    server = b.start("python3", "-c", SERVER)
    until(lambda: "10.0.0.2:7" in b.run("ss", "-lun").stdout, what="the server")
    def sent(*ports):
        daemon.appctl("revalidator/wait")
        return [daemon.counters(port)["tx_pkts"] for port in ports]

    before = sent("x0", "x1")
    a.run("python3", "-c", CLIENT.format(20000, 20800, 3), timeout=120)
    flows = [flow for flow in daemon.appctl("dpctl/dump-flows").splitlines() if "ipv4(" in flow]
    first = [flow for flow in flows if flow.startswith("recirc_id(0),")]
    assert len([flow for flow in first if re.search(r"hash\(l4\(0\)\),recirc\(0x[0-9a-f]+\)$", flow)]) >= 2, first
    # In both directions; ARP and ping have some, too.
    assert len(first) <= 8 and 200 < len(flows) - len(first) <= 2 * 256, flows
    assert not any("udp(" in flow for flow in flows), flows
    by_member = [now - then for now, then in zip(sent("x0", "x1"), before)]
    assert sum(by_member) >= 2400 and min(by_member) > 800, by_member

    # A member goes, with connections that go on.
    busy = a.start("python3", "-c", "import socket\nwhile True:\n s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
                   " s.sendto(b'x',('10.0.0.2',7))\n s.close()\n")
    daemon.configure(JOINED.format(left=patches(["x0", "x2"], ["y0", "y2"]), right=patches(["y0", "y2"], ["x0", "x2"]), a=a, b=b))
    daemon.cli("reload")
    until(lambda: both() == (["x0", "x2"], ["y0", "y2"]), 20, "LACP by the new member")
    busy.terminate(), busy.wait()
    before = sent("x0", "x2")
    a.run("python3", "-c", CLIENT.format(21000, 21400, 2), timeout=120)
    by_member = [now - then for now, then in zip(sent("x0", "x2"), before)]
    assert sum(by_member) >= 800 and min(by_member) > 250, by_member
    assert server.poll() is None


@pytest.fixture
def switch(ovs, tmp_path):
    """br0 has a bond of patch ports to br1, which tells by its ports which member packets have come by: `out2` or `out3`."""
    ovs.start("--enable-dummy")
    patch = lambda name, peer, number: ["--", "set", "interface", name, "type=patch", f"options:peer={peer}",
                                        f"ofport_request={number}"]
    bond = lambda bridge, name, *members: ["--", "add-bond", bridge, name, *members, "bond_mode=balance-tcp", "lacp=active",
                                           "other_config:lacp-time=fast", "other_config:bond-rebalance-interval=0"]
    dummy = lambda bridge, name, number, *more: ["--", "add-port", bridge, name, "--", "set", "interface", name, "type=dummy",
                                                 f"ofport_request={number}", *more]
    bridges = [word for name in ("br0", "br1")
               for word in ("--", "add-br", name, "--", "set", "bridge", name, "datapath_type=dummy", "fail-mode=secure")]
    outs = {n: tmp_path / f"out{n}.pcap" for n in (2, 3)}
    ovs.vsctl(*bridges[1:], *bond("br0", "bond0", "x0", "x1"), *patch("x0", "y0", 1), *patch("x1", "y1", 2),
              *bond("br1", "bond1", "y0", "y1"), *patch("y0", "x0", 3), *patch("y1", "x1", 4),
              *dummy("br0", "in", 7), *dummy("br0", "side", 8), *dummy("br1", "out2", 5, f"options:tx_pcap={outs[2]}"),
              *dummy("br1", "out3", 6, f"options:tx_pcap={outs[3]}"))
    ovs.ofctl("add-flow", "br0", "priority=0,actions=NORMAL")
    for flow in ("in_port=3,actions=output:5", "in_port=4,actions=output:6"):
        ovs.ofctl("add-flow", "br1", flow)
    until(lambda: (enabled(ovs, "bond0"), enabled(ovs, "bond1")) == (["x0", "x1"], ["y0", "y1"]), 20, "LACP")
    ovs.outs = outs
    yield ovs


PACKET = ("in_port({}),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),"
          "ipv4(src=10.0.0.{},dst=10.0.1.1,proto=17,ttl=64,frag=no),udp(src={},dst=53)")
COUNT = 40


def spread(switch, send, marked=bytes([10, 0, 0])):
    """Sends packets of some connections, and returns the members by which they have left."""
    before = {n: len(read_pcap(path)) for n, path in switch.outs.items()}
    for n in range(COUNT):
        send(n)
    found = {}

    def arrived():
        found.clear()
        for member, path in switch.outs.items():
            for frame in read_pcap(path)[before[member]:]:
                at = frame.find(marked)
                if frame[12:14] != b"\x88\x09" and at >= 0:
                    found.setdefault(frame[at + 3], []).append(member)
        return len(found) == COUNT

    until(arrived, 20, "all packets")
    assert all(len(members) == 1 for members in found.values()), "each once"
    return {n: members[0] for n, members in found.items()}


def receive(switch, port="in", number=7):
    return lambda n: switch.appctl("netdev-dummy/receive", port, PACKET.format(number, n, 1000 + n))


def test_each_way_to_the_bond_leads_to_the_same_member(switch):
    """Packets of one connection leave by one member, whichever way they take through tables: the hash is of their headers."""
    wanted = spread(switch, receive(switch))
    assert set(wanted.values()) == {2, 3} and len(wanted) == COUNT
    assert spread(switch, receive(switch)) == wanted
    ways = {
        "resubmit": ["priority=9,udp,actions=resubmit(,5)", "table=5,actions=set_field:3->reg1,resubmit(,6)", "table=6,actions=NORMAL"],
        "clone": ["priority=9,udp,actions=clone(set_field:7->reg2,NORMAL),output:8"],
        "tracked": ["priority=9,udp,actions=ct(table=5,zone=3)", "table=5,actions=NORMAL"],
        "learn": ["priority=9,udp,actions=learn(table=9,hard_timeout=60,NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),NORMAL"],
        "length": ["priority=9,udp,actions=check_pkt_larger(1000)->reg0[0],resubmit(,5)", "table=5,reg0=0/1,actions=NORMAL",
                   "table=5,reg0=1/1,actions=NORMAL"],
        "action set": ["priority=9,udp,actions=write_actions(resubmit(,5))", "table=5,actions=NORMAL"],
    }
    for name, flows in ways.items():
        switch.ofctl("del-flows", "br0")
        for flow in flows:
            switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", flow)
        assert spread(switch, receive(switch)) == wanted, name
    switch.ofctl("del-flows", "br0")
    switch.ofctl("add-flow", "br0", "priority=0,actions=NORMAL")
    # Packet-outs, which come in where the tables would have had them.
    packets = {n: composed(n) for n in range(COUNT)}
    assert spread(switch, lambda n: switch.ofctl("packet-out", "br0", f"in_port=7,packet={packets[n]},actions=NORMAL")) == wanted
    # A group, a mirror's copies.
    switch.ofctl("-O", "OpenFlow13", "add-group", "br0", "group_id=1,type=select,bucket=actions=resubmit(,5)")
    switch.ofctl("add-flow", "br0", "table=5,actions=NORMAL")
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "priority=9,udp,actions=group:1")
    assert spread(switch, receive(switch)) == wanted
    switch.ofctl("del-flows", "br0", "udp")
    switch.ofctl("add-flow", "br0", "priority=9,udp,actions=output:8")
    switch.vsctl("--", "--id=@p", "get", "port", "bond0", "--", "--id=@s", "get", "port", "side", "--", "--id=@m", "create", "mirror", "name=m",
                 "select_dst_port=@s", "output_port=@p", "--", "set", "bridge", "br0", "mirrors=@m")
    assert spread(switch, receive(switch)) == wanted


def composed(n):
    """The n-th packet in hexadecimal."""
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes([10, 0, 0, n]), bytes([10, 0, 1, 1]))
    frame = bytes.fromhex("020000000002020000000001" "0800") + header + struct.pack("!HHHH", 1000 + n, 53, 8, 0)
    return frame.hex()


def test_a_controller_that_resumes(switch, tmp_path):
    """The pipeline waits for a controller, and goes on to the bond when that resumes it."""
    wanted = spread(switch, receive(switch))
    switch.ofctl("add-flow", "br0", "priority=9,udp,actions=controller(pause),NORMAL")
    monitor = subprocess.Popen(["ovs-ofctl", "-P", "nxt_packet_in2", "monitor", "br0", "resume"], env=switch.env,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: try_one(switch), 20, "a controller that resumes")
        assert spread(switch, receive(switch)) == wanted
    finally:
        monitor.terminate()
        monitor.wait()


def try_one(switch):
    """Whether a packet comes out."""
    before = sum(len(read_pcap(path)) for path in switch.outs.values())
    switch.appctl("netdev-dummy/receive", "in", PACKET.format(7, 250, 9))
    try:
        until(lambda: sum(len(read_pcap(path)) for path in switch.outs.values()) > before, 1, "it")
        return True
    except AssertionError:
        return False


def test_what_is_shown(switch):
    spread(switch, receive(switch))
    flows = switch.appctl("dpctl/dump-flows")
    assert len(re.findall(r"hash\(l4\(0\)\),recirc\(0x\w+\)", flows)) == 1, flows
    assert "lb_output" not in flows
    assert "bond may use recirculation: yes, Recirc-ID : 0\n" in switch.appctl("bond/show", "bond0")
    assert re.search(r"^bond0\tbalance-tcp\t0\tx0, x1$", switch.appctl("bond/list"), re.M)
    flow = "in_port=7,udp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.1.1,udp_src=1001,udp_dst=53"
    text = switch.appctl("ofproto/trace", "br0", flow)
    assert re.search(r"^recirc\(0x\w+\) - resume bond bond0 with dp_hash=0x\w+$", text, re.M), text
    assert 'bridge("br1")' in text.partition("resume bond")[2], text
    text = switch.cli("explain", "br0", flow).stdout
    assert re.search(r"^Comes back: recirc\(0x\w+\) - resume bond bond0 with dp_hash=", text, re.M) and "in bridge br1" in text, text
    switch.appctl("revalidator/wait")
    for name, bridge in (("x0", "br0"), ("y0", "br1")):
        counters = [switch.counters(port, bridge)["tx_pkts" if bridge == "br0" else "rx_pkts"] for port in (name, name[0] + "1")]
        assert sum(counters) >= COUNT and min(counters) > 5, counters
