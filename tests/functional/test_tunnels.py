"""Weir's tunnels to Linux's own devices, both ways, with what can be set."""

import re
import sys

import pytest
from conftest import until
from lib.exchange import exchange
from lib.pcap import read_pcap
from lib.tunnel import Capture, send

FAMILIES = pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])


def talk(one, other):
    """All kinds of packets go both ways."""
    assert one.vm.ping(other.in4) == 3 and other.vm.ping(one.in4) == 3
    exchange(one.vm, other.vm, other.in4)
    exchange(other.vm, one.vm, one.in6)


@FAMILIES
def test_streams_and_datagrams_go_both_ways(lab, six):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.outside(six)}", "key=7")
    linux.vxlan(weir, six=six)
    talk(weir, linux)
    until(lambda: weir.vsctl("get", "interface", "vx", "status") ==
          "{tunnel_egress_iface=br-phy, tunnel_egress_iface_carrier=up}", what="the egress interface")

    def counted():
        return {way: int(n) for way, n in re.findall(r"([rt]x_bytes)=(\d+)", weir.get("interface", "vx", "statistics"))}

    # A million bytes each way, twice.
    until(lambda: sum(counted().values()) > 4_000_000, 15, "statistics")
    assert all(2_000_000 < n < 3_000_000 for n in counted().values()), counted()


@pytest.mark.parametrize("kind, options, device", [
    ("gre", ["key=7"], ["gretap", "key", "7"]),
    ("gre", ["key=7", "csum=true", "seq=true"], ["gretap", "key", "7", "csum", "seq"]),
    ("ip6gre", ["key=7"], ["ip6gretap", "key", "7"]),
    ("erspan", ["key=7", "erspan_ver=1", "erspan_idx=3"], ["erspan", "seq", "key", "7", "erspan_ver", "1", "erspan", "3"]),
    ("erspan", ["key=7", "erspan_ver=2", "erspan_dir=0", "erspan_hwid=4"],
     ["erspan", "seq", "key", "7", "erspan_ver", "2", "erspan_dir", "ingress", "erspan_hwid", "4"]),
    ("ip6erspan", ["key=7", "erspan_ver=1", "erspan_idx=3"],
     ["ip6erspan", "seq", "key", "7", "erspan_ver", "1", "erspan", "3"]),
    ("geneve", ["key=7"], ["geneve", "id", "7"]),
], ids=lambda value: value[0] + "-" + value[-1] if isinstance(value, list) else None)
def test_other_types_go_both_ways_where_the_kernel_has_them(lab, kind, options, device):
    weir, linux = lab.pair("linux")
    six = "6" in kind
    local = [] if kind == "geneve" else ["local", linux.outside(six)]
    linux.device(device[0], "remote", weir.outside(six), *local, *device[1:])
    weir.tunnel("t", kind, f"remote_ip={linux.outside(six)}", *options)
    talk(weir, linux)


@FAMILIES
def test_checksums_of_udp_are_verified_and_sent(lab, six):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.outside(six)}", "key=7", "csum=true")
    linux.vxlan(weir, 7, "udpcsum", six=six)
    # The checksum of UDP is at its sixth byte; zero is none.
    field = "ip6[46:2]" if six else "udp[6:2]"
    without = linux.host.sniff(f"src host {weir.outside(six)} and {field} = 0 and {'ip6 proto' if six else 'ip proto'} 17")
    talk(weir, linux)
    assert without.seen() == ""


ECHO = """
import socket, sys
u = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
u.bind((sys.argv[1], 9100))
print("ready", flush=True)
while True:
    u.sendto(*u.recvfrom(2000))
"""

ASK = """
import socket, sys
u = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(20)
u.connect((sys.argv[1], 9100))
for n in range(int(sys.argv[2])):
    u.send(b"%d" % n)
    assert u.recv(2000) == b"%d" % n
print("done")
"""


@FAMILIES
def test_connections_are_tracked_in_front_of_a_tunnel_and_behind_it(lab, six):
    """The machine may begin connections, and nobody may begin one to it. Once they are established, their packets are classified
    once on their way in, and, over IPv4, once behind the tunnel."""
    weir, other = lab.pair("weir")
    t = weir.tunnel("t", "geneve", f"remote_ip={other.out4}", "key=7")
    other.tunnel("t", "geneve", f"remote_ip={weir.out4}", "key=7")
    other.direct("t")
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    ways = [(vm, t), (t, vm)]
    weir.flows(*(f"in_port={a},priority=1,actions={b}" for a, b in ways),
               *(f"in_port={a},priority=2,{ip},ct_state=-trk,actions=ct(table=1)" for a, _ in ways for ip in ("ip", "tcp6", "udp6")),
               *(f"table=1,in_port={a},ct_state=+trk+est,{ip},actions={b}" for a, b in ways for ip in ("ip", "ipv6")),
               *(f"table=1,in_port={vm},ct_state=+trk+new,{ip},actions=ct(commit),{t}" for ip in ("ip", "ipv6")))
    exchange(weir.vm, other.vm, other.in6 if six else other.in4)
    assert other.vm.ping(weir.in4, count=1, wait=1) == 0
    server = other.vm.start(sys.executable, "-c", ECHO, other.in6 if six else other.in4)
    assert server.stdout.readline() == "ready\n"

    def recirculated(questions):
        """How often packets were classified again for so many questions with their answers."""
        count = lambda: sum(map(int, re.findall(r"packet recirculations: (\d+)", weir.appctl("dpif-netdev/pmd-stats-show"))))
        before = count()
        assert weir.vm.run(sys.executable, "-c", ASK, other.in6 if six else other.in4, questions).stdout == "done\n"
        return count() - before

    asked = 200
    # Neighbours ask for each other now and then. Addresses of IPv6 leave no room for the tunnel in what the cache compares.
    assert recirculated(asked) < (2.2 if six else 1.2) * asked
    weir.appctl("dpctl/ct-disable-fusing")
    assert recirculated(asked) >= 3 * asked
    server.kill()
    server.communicate()


def test_a_tag_goes_through_the_tunnel(lab):
    """The machine is in VLAN 5, whose frames have tags in the tunnel."""
    weir, linux = lab.pair("linux")
    weir.vsctl("set", "port", "vm0", "tag=5")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    # Its own stack has no devices for VLANs.
    inside = linux.host.sniff("vlan", device="tun0")
    weir.vm.run("ip", "neigh", "add", linux.in4, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    weir.vm.ping(linux.in4, count=1, wait=1)
    [line] = inside.sees("ICMP echo request")
    assert "vlan 5" in line and "10.9.0.1 > 10.9.0.2" in line
    machine = weir.vm.sniff("ether proto 0x88b5")
    head = bytes.fromhex(weir.vm.mac.replace(":", "") + "020000000099")
    for tag, body in (("", b"none"), ("81000006", b"six"), ("81000005", b"five"), ("8100a005", b"prio")):
        send(linux.host, [head + bytes.fromhex(tag + "88b5") + body.ljust(46, b".")], "tun0")
    until(lambda: machine.seen().count("0x88b5") == 2, what="frames of VLAN 5")
    assert "802.1Q" not in machine.seen()


def test_keys_and_remotes_are_for_the_flows_to_say(lab):
    """One port of flows for two tunnels: which one is told by what it says of received packets."""
    weir, linux = lab.pair("linux")
    number = weir.tunnel("vx", "vxlan", "remote_ip=flow", "key=flow")
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    weir.host.run("ip", "addr", "add", "172.31.0.101/24", "dev", "br-phy")
    for vni, net in ((7, 0), (8, 1)):
        linux.vxlan(weir, vni, name=f"tun{net}", inner=False)
        linux.host.run("ip", "addr", "add", f"10.9.{net}.2/24", "dev", f"tun{net}")
    weir.vm.run("ip", "addr", "add", "10.9.1.1/24", "dev", "eth0")
    to = f"set_field:{linux.out4}->tun_dst,output:{number}"
    weir.flows(f"in_port={vm},ip,nw_dst=10.9.0.0/24,actions=set_field:7->tun_id,{to}",
               f"in_port={vm},ip,nw_dst=10.9.1.0/24,actions=set_field:8->tun_id,{to}",
               f"in_port={vm},arp,arp_tpa=10.9.0.0/24,actions=set_field:7->tun_id,{to}",
               f"in_port={vm},arp,arp_tpa=10.9.1.0/24,actions=set_field:8->tun_id,{to}",
               f"cookie=7,in_port={number},tun_id=7,tun_src={linux.out4},tun_dst={weir.out4},ip,nw_src=10.9.0.2,actions={vm}",
               f"cookie=8,in_port={number},tun_id=8,tun_src={linux.out4},tun_dst={weir.out4},ip,nw_src=10.9.1.2,actions={vm}",
               f"in_port={number},arp,actions={vm}")
    assert weir.vm.ping("10.9.0.2") == 3 and weir.vm.ping("10.9.1.2") == 3
    until(lambda: (weir.hits(7), weir.hits(8)) == (3, 3), what="three packets from each tunnel")
    # A rule that misdirects: what is for one tunnel goes into the other.
    weir.flows(f"in_port={vm},ip,nw_dst=10.9.0.0/24,actions=set_field:8->tun_id,{to}",
               f"in_port={number},ip,actions={vm}")
    assert weir.vm.ping("10.9.0.2", wait=1) == 0


def test_tunnels_share_a_port_of_udp(lab):
    """Two keys to one host, and another host."""
    weir, linux = lab.pair("linux")
    linux.vxlan(weir, 7)
    linux.vxlan(weir, 8, name="tun1", inner=False)
    linux.host.run("ip", "addr", "add", "10.9.1.2/24", "dev", "tun1")
    # The same host under another name.
    linux.host.run("ip", "addr", "add", "172.31.0.77/24", "dev", "eth0")
    linux.device("vxlan", "id", 7, "local", "172.31.0.77", "remote", weir.out4, "dstport", 4788, "dev", "eth0", name="tun2",
                 inner=False)
    linux.host.run("ip", "addr", "add", "10.9.2.2/24", "dev", "tun2")
    ports = [weir.tunnel("a", "vxlan", f"remote_ip={linux.out4}", "key=7"),
             weir.tunnel("b", "vxlan", f"remote_ip={linux.out4}", "key=8", f"local_ip={weir.out4}"),
             weir.tunnel("c", "vxlan", "remote_ip=172.31.0.77", "key=7", "dst_port=4788")]
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    flows = []
    for n, port in enumerate(ports):
        weir.vm.run("ip", "addr", "replace", f"10.9.{n}.1/24", "dev", "eth0")
        flows += [f"in_port={vm},ip,nw_dst=10.9.{n}.2,actions={port}", f"in_port={vm},arp,arp_tpa=10.9.{n}.2,actions={port}",
                  f"cookie={n + 1},in_port={port},ip,nw_src=10.9.{n}.2,actions={vm}", f"in_port={port},arp,actions={vm}"]
    weir.flows(*flows)
    for n in range(3):
        assert weir.vm.ping(f"10.9.{n}.2") == 3
        until(lambda: weir.hits(n + 1) == 3, what="the answers")
    shown = weir.appctl("tnl/ports/show")
    assert "vxlan_sys_4789 (4789) ref_cnt=2" in shown and "vxlan_sys_4788 (4788) ref_cnt=1" in shown


def test_what_the_outer_header_inherits_is_seen_on_the_wire(lab):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    assert weir.vm.ping(linux.in4) == 3

    def seen(*options, ping=()):
        """TOS, TTL and flags of the outer header, with such options of the port and of ping(8)."""
        number = weir.vsctl("get", "interface", "vx", "ofport")
        weir.vsctl("set", "interface", "vx", *(f"options:{option}" for option in options))
        assert weir.vsctl("get", "interface", "vx", "ofport") == number, "the port keeps its number"
        wire = linux.host.sniff("-v", f"udp port 4789 and src host {weir.out4}")
        weir.vm.run("ping", "-c", 1, "-W", 2, *ping, linux.in4)
        wire.sees("ICMP echo request")
        before = wire.seen().partition("ICMP echo request")[0]
        # The last but one: the last is of the request itself. What came before may be ARP.
        tos, ttl, flags = re.findall(r"\(tos (\w+),.*?ttl (\d+), .*?flags \[(\w+)\]", before)[-2]
        return int(tos, 16), int(ttl), flags

    assert seen("df_default=true") == (0, 64, "DF")
    assert seen("df_default=false") == (0, 64, "none")
    assert seen("df_default=true", "tos=0x20", "ttl=9") == (0x20, 9, "DF")
    # ECN is inherited always.
    assert seen("tos=0x20", ping=["-Q", "0x4a"]) == (0x22, 9, "DF")
    assert seen("tos=inherit", "ttl=inherit", ping=["-Q", "0x48", "-t", 33]) == (0x48, 33, "DF")
    # What is broken at the other end is seen: the key is another one now.
    weir.vsctl("set", "interface", "vx", "options:key=8")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.vsctl("set", "interface", "vx", "options:key=7")
    assert weir.vm.ping(linux.in4) == 3


def test_the_local_address_is_the_one_that_is_set(lab):
    weir, linux = lab.pair("linux")
    weir.host.run("ip", "addr", "add", "172.31.0.101/24", "dev", "br-phy")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "local_ip=172.31.0.101", "key=7")
    linux.device("vxlan", "id", 7, "local", linux.out4, "remote", "172.31.0.101", "dstport", 4789, "dev", "eth0")
    assert weir.vm.ping(linux.in4) == 3 and linux.vm.ping(weir.in4) == 3
    # To another address of its own no tunnel leads. The device says nothing by itself.
    linux.host.run("ip", "link", "del", "tun0")
    linux.host.run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
    linux.vxlan(weir, inner=False)
    with weir.counts("datapath_drop_invalid_tnl_port", 1):
        send(linux.host, [bytes.fromhex("020000000001020000000099" "88b5").ljust(60)], "tun0")


def test_a_group_policy_travels(lab):
    weir, linux = lab.pair("linux")
    number = weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7", "exts=gbp")
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    linux.vxlan(weir, 7, "gbp")
    weir.flows(f"in_port={vm},actions=set_field:0x1234->tun_gbp_id,{number}", f"cookie=1,in_port={number},tun_gbp_id=0x77,actions={vm}",
               f"cookie=2,priority=1,in_port={number},actions={vm}")
    wire = linux.host.sniff("-x", f"udp port 4789 and src host {weir.out4}")
    assert weir.vm.ping(linux.in4) == 3
    # Flags G and I, and the group behind them.
    wire.sees("8800 1234")
    # Linux tells it by the mark of what is sent; ping(8) can set one.
    linux.vm.run("ping", "-c", 3, "-i", "0.1", "-m", 0x77, weir.in4)
    until(lambda: weir.hits(1) == 3, what="packets of the group")
    assert weir.hits(2) >= 3


def test_a_port_goes_on_with_other_options(lab):
    """Remote address, UDP port and type are changed while it is in use."""
    weir, linux = lab.pair("linux")
    number = weir.tunnel("t", "vxlan", "remote_ip=172.31.0.99", "key=7")
    linux.vxlan(weir, port=4788)
    weir.know(linux)
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.vsctl("set", "interface", "t", f"options:remote_ip={linux.out4}")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.vsctl("set", "interface", "t", "options:dst_port=4788")
    assert weir.vm.ping(linux.in4) == 3
    weir.vsctl("set", "interface", "t", "type=geneve")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.vsctl("set", "interface", "t", "type=vxlan")
    assert weir.vm.ping(linux.in4) == 3
    assert weir.vsctl("get", "interface", "t", "ofport") == number
    assert "vxlan_sys_4789" not in weir.appctl("tnl/ports/show")


def test_what_was_learnt_behind_a_tunnel_stays(lab):
    """The port is NORMAL's, and its options change."""
    weir, linux = lab.pair("linux")
    number = weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7").strip()
    linux.vxlan(weir)
    weir.know(linux)
    assert weir.vm.ping(linux.in4) == 3

    def learnt():
        return re.findall(rf"^ +{number} .*$", weir.appctl("fdb/show", "br-int"), re.M)

    assert learnt()
    for option in ["tos=0x20", "dst_port=4788", "dst_port=4789", "key=8"]:
        weir.vsctl("set", "interface", "vx", f"options:{option}")
        assert learnt() and weir.vsctl("get", "interface", "vx", "ofport").strip() == number, option
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.vsctl("set", "interface", "vx", "options:key=7")
    assert weir.vm.ping(linux.in4) == 3
    assert weir.appctl("tnl/ports/show").count("vxlan_sys") == 1, "what was for the other UDP port is gone"


def test_two_tunnels_change_places(lab):
    """In one transaction, each gets the options that the other one has."""
    weir, linux = lab.pair("linux")
    weir.expect("same config|conflict")
    for key in (7, 8):
        weir.tunnel(f"vx{key}", "vxlan", f"remote_ip={linux.out4}", f"key={key}")
    linux.vxlan(weir)
    weir.direct("vx7")
    assert weir.vm.ping(linux.in4) == 3
    weir.vsctl("set", "interface", "vx7", "options:key=8", "--", "set", "interface", "vx8", "options:key=7")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.direct("vx8")
    assert weir.vm.ping(linux.in4) == 3
    # One that would be the other's double is refused until the other one has gone.
    weir.vsctl("set", "interface", "vx7", "options:key=7")
    assert weir.vsctl("get", "interface", "vx7", "error").strip() != "[]"
    assert weir.vm.ping(linux.in4) == 3
    weir.vsctl("del-port", "vx8")
    assert weir.vsctl("get", "interface", "vx7", "error").strip() == "[]"
    weir.direct("vx7")
    assert weir.vm.ping(linux.in4) == 3


@FAMILIES
def test_what_is_too_long_is_fragmented_or_dropped_as_the_df_bit_says(lab, tmp_path, six):
    """A machine that takes no account of the tunnel: its packets are as long as the underlay's MTU."""
    weir, linux = lab.pair("linux")
    weir.host.run("ip", "link", "set", "vm0", "mtu", 1500)
    weir.vm.run("ip", "link", "set", "eth0", "mtu", 1500)
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.outside(six)}", "key=7")
    linux.vxlan(weir, six=six)
    weir.know(linux)
    weir.direct("vx")

    def pings(size, count=5):
        """What is asked in one piece; the answers are fragmented before they enter the tunnel."""
        return weir.vm.ping(linux.in4, count, 0.02, wait=2, size=size, fragments=True)

    until(lambda: pings(100, 1) == 1, what="a short ping")
    with weir.counts("datapath_drop_too_big", 5):
        assert pings(1472) == 0
    weir.vsctl("set", "interface", "vx", "options:df_default=false")
    until(lambda: pings(1472, 1) == 1, what="a ping that is fragmented")
    filter = "ip6[6] == 44" if six else "ip[6:2] & 0x3fff != 0"
    capture = Capture(linux.host, tmp_path / "outer.pcap", f"src {weir.outside(six)} and {filter}")
    assert pings(1472) == 5
    until(lambda: len(read_pcap(capture.path)) >= 10, what="the pieces")
    capture.stop()
    assert [len(frame) for frame in read_pcap(capture.path)] == [1510, 144] * 5 if six else [1514, 84] * 5
    talk(weir, linux)
