"""Multicast snooping, with the kernel's IGMP and MLD: members get what they have asked for, and others do not."""

import re
import textwrap

import pytest
from lib.daemon import dummy_bridge
from lib.net import run
from lib.wait import until

SNOOPING = """
[[bridge]]
name = "br0"
local = {local}
mcast-snooping = true
{settings}
"""

PORT = """
[[bridge.port]]
name = "{host.port}"
ofport = {number}
{settings}
"""

#: A program that joins groups, tells so, and stays until its input ends: it then leaves them, one for each line.
JOIN = """
import socket, struct, sys
sockets = []
for group in sys.argv[1:]:
    if ":" in group:
        s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        index = socket.if_nametoindex("eth0")
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + struct.pack("@I", index))
    else:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton("0.0.0.0"))
    sockets.append(s)
print("joined", flush=True)
for s, line in zip(sockets, sys.stdin):
    s.close()
    print("left", flush=True)
"""

#: A program that sends datagrams to groups, one for each argument.
SEND = """
import socket, sys
for group in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in group else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.sendto(b"to " + group.encode(), (group, 5000))
"""

#: A program that sends frames that scapy makes from an expression, each argument one.
SCAPY = """
import sys
from scapy.all import *
from scapy.contrib.igmp import IGMP
from scapy.contrib.igmpv3 import *
for frame in sys.argv[1:]:
    sendp(eval(frame), iface="eth0", verbose=False)
"""


class Site:
    """A switch that snoops, and hosts."""

    def __init__(self, weir, net, hosts=4, settings="", local=False, ports=None):
        self.hosts = [net.host(f"10.0.0.{n}/24", address6=f"fd00::{n}/64") for n in range(1, hosts + 1)]
        for host in self.hosts:
            host.run("ip", "route", "add", "224.0.0.0/4", "dev", "eth0")
        config = SNOOPING.format(settings=settings, local=str(local).lower())
        for number, host in enumerate(self.hosts, 1):
            config += PORT.format(host=host, number=number, settings=(ports or {}).get(number, ""))
        self.daemon = weir(config)

    def groups(self):
        """Ports by the groups that they are members of; of routers by `querier`."""
        groups = {}
        for line in self.daemon.appctl("mdb/show", "br0").splitlines()[1:]:
            port, _, group, _ = line.split()
            groups.setdefault(group, set()).add(port)
        return groups

    def learns(self, group, ports, what="members"):
        until(lambda: self.groups().get(group, set()) == set(ports), 20, f"{what} {ports} of {group}")


def join(host, *groups):
    """Has a host join groups. It leaves one for each line that it gets."""
    proc = host.start("python3", "-c", textwrap.dedent(JOIN), *groups, stdin=-1)
    assert proc.stdout.readline() == "joined\n", proc.stderr.read()
    return proc


def leave(proc):
    proc.stdin.write("\n")
    proc.stdin.flush()
    assert proc.stdout.readline() == "left\n"


def send(host, *groups):
    host.run("python3", "-c", SEND, *groups)


def scapy(host, *frames):
    host.run(".venv/bin/python", "-c", SCAPY, *frames)


@pytest.mark.parametrize("version", ["igmp2", "igmp3", "mld2"])
def test_members_get_what_others_do_not(weir, net, version):
    """Until they leave. Of groups that nobody has asked for, all get the packets."""
    site = Site(weir, net)
    member, other, source, _ = site.hosts
    number = "2" if version == "igmp2" else "0"
    for host in (member, other):
        host.run("sysctl", "-qw", f"net.ipv4.conf.eth0.force_igmp_version={number}")
    group, open_group = ("ff0e::1:1", "ff0e::2:2") if version == "mld2" else ("239.1.1.1", "239.2.2.2")
    sniffers = [host.sniff("udp", "port", "5000") for host in (member, other)]
    joined = join(member, group)
    site.learns(group, ["1"])
    send(source, group, open_group)
    # The second one comes later, to all.
    for sniffer in sniffers:
        sniffer.sees(f"> {open_group}.5000")
    assert f"> {group}.5000" in sniffers[0].seen()
    assert f"> {group}.5000" not in sniffers[1].seen()
    # Another one joins: the flow that there is for the group changes.
    join(other, group)
    site.learns(group, ["1", "2"])
    send(source, group)
    sniffers[1].sees(f"> {group}.5000")
    before = len(sniffers[0].sees(f"> {group}.5000"))
    leave(joined)
    site.learns(group, ["2"])
    send(source, group, open_group)
    until(lambda: sniffers[0].seen().count(f"> {open_group}.5000") == 2, what="the packet after it")
    assert sniffers[0].seen().count(f"> {group}.5000") == before
    until(lambda: sniffers[1].seen().count(f"> {group}.5000") == 2, what="the packet for the one that stayed")


def test_a_querier_is_found_and_gets_reports_and_unregistered_groups(weir, net):
    """With flooding of these off, nobody else gets them."""
    site = Site(weir, net, settings="mcast-snooping-disable-flood-unregistered = true")
    router, member, other, source = site.hosts
    scapy(router, 'Ether(dst="01:00:5e:00:00:01")/IP(src="10.0.0.1",dst="224.0.0.1",ttl=1,options=[IPOption_Router_Alert()])'
                  '/IGMP(type=0x11,mrcode=20,gaddr="0.0.0.0")')
    site.learns("querier", ["1"], "routers")
    reports = [host.sniff("ip", "proto", "2", "or", "udp", "port", "5000") for host in (router, other)]
    join(member, "239.1.1.1")
    site.learns("239.1.1.1", ["2"])
    reports[0].sees("igmp")
    send(source, "239.9.9.9", "224.0.0.200")
    # What is for a local group comes to all.
    reports[1].sees("> 224.0.0.200.5000")
    reports[0].sees("> 239.9.9.9.5000")
    assert "239.9.9.9" not in reports[1].seen()
    assert "239.1.1.1" not in reports[1].seen(), "another host's report"
    assert {"239.1.1.1", "querier"} <= site.groups().keys()
    assert site.daemon.appctl("mdb/flush", "br0") == "table successfully flushed\n"
    # Stacks may report groups of IPv6 at any time.
    assert not {"239.1.1.1", "querier"} & site.groups().keys()


def test_ports_that_get_all_and_the_local_port_as_member(weir, net):
    site = Site(weir, net, 3, local=True, settings="mcast-snooping-disable-flood-unregistered = true",
                ports={2: "mcast-snooping-flood = true\nmcast-snooping-flood-reports = true"})
    source, flooded, other = site.hosts
    seen = [host.sniff("ip", "proto", "2", "or", "udp", "port", "5000") for host in (flooded, other)]
    run("ip", "addr", "add", "10.0.0.100/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    run("ip", "maddr", "show", "dev", "br0")
    run("ip", "addr", "add", "239.3.3.3/32", "dev", "br0", "autojoin")
    site.learns("239.3.3.3", ["LOCAL"])
    before = int(run("cat", "/sys/class/net/br0/statistics/rx_packets").stdout)
    send(source, "239.3.3.3", "239.4.4.4", "224.0.0.200")
    seen[1].sees("> 224.0.0.200.5000")
    seen[0].sees("> 239.3.3.3.5000")
    seen[0].sees("> 239.4.4.4.5000")
    seen[0].sees("igmp")
    until(lambda: int(run("cat", "/sys/class/net/br0/statistics/rx_packets").stdout) >= before + 2, what="at br0")
    assert not re.search(r"> 239\.[34]", seen[1].seen())


def test_what_a_port_joins_without_end_is_its_own_loss(weir, net):
    """A host joins 100 000 groups, and sends messages that are wrong: others keep theirs, and get them; new flows of others come up."""
    site = Site(weir, net, settings="mcast-snooping-table-size = 100")
    guest, member, source, _ = site.hosts
    joined = join(member, *(f"239.1.1.{n}" for n in range(1, 11)))
    wanted = {f"239.1.1.{n}": {"2"} for n in range(1, 11)}
    until(lambda: site.groups().items() >= wanted.items(), what="ten groups")
    flood = guest.start("python3", "-c", textwrap.dedent("""
        import socket, struct
        def sum16(data):
            total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
            total = (total & 0xffff) + (total >> 16)
            return ~(total + (total >> 16)) & 0xffff
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        s.bind(("eth0", 0))
        mac = bytes.fromhex("020000000099")
        ip = bytes.fromhex("46c00000000040000102000000000000e000001694040000")
        for first in range(0, 100000, 100):
            records = b"".join(struct.pack("!BBHI", 4, 0, 0, 0xe8000000 + n) for n in range(first, first + 100))
            igmp = struct.pack("!BBHHH", 0x22, 0, 0, 0, 100) + records
            igmp = igmp[:2] + struct.pack("!H", sum16(igmp)) + igmp[4:]
            header = bytearray(ip)
            header[2:4] = struct.pack("!H", 24 + len(igmp))
            header[12:16] = bytes([10, 0, 0, 1])
            header[10:12] = struct.pack("!H", sum16(bytes(header)))
            frame = bytes.fromhex("01005e000016") + mac + b"\\x08\\x00" + bytes(header)
            s.send(frame + igmp)
            # With a checksum that is wrong, and cut short.
            s.send(frame + igmp[:2] + b"\\0\\0" + igmp[4:])
            s.send(frame + igmp[:50])
        print("done", flush=True)
        """))
    # While it lasts, new flows of others are made.
    seen = member.sniff("udp", "port", "5000")
    for n in range(1, 4):
        send(source, f"239.1.1.{n}")
        seen.sees(f"> 239.1.1.{n}.5000")
    assert flood.stdout.readline() == "done\n", flood.stderr.read()
    until(lambda: "1" in set().union(*site.groups().values()), what="the guest's own groups")
    groups = site.groups()
    assert len(groups) <= 100
    assert groups.items() >= wanted.items()
    # The others have what neighbour discovery joins.
    assert sum(ports == {"1"} for ports in groups.values()) > 70
    for n in range(4, 11):
        send(source, f"239.1.1.{n}")
        seen.sees(f"> 239.1.1.{n}.5000")
    coverage = site.daemon.appctl("coverage/show")
    assert int(re.search(r"^mcast_snooping_bad .*total: (\d+)", coverage, re.M)[1]) > 0
    joined.kill()


def test_commands_of_a_bridge_that_does_not_snoop(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    for command in ("mdb/show", "mdb/flush"):
        assert "multicast snooping is disabled" in ovs.refusal("appctl", command, "br0")
    ovs.vsctl("set", "Bridge", "br0", "mcast_snooping_enable=true")
    assert ovs.appctl("mdb/show", "br0") == " port  VLAN  GROUP                Age\n"
    assert ovs.appctl("mdb/flush") == "table successfully flushed\n"
