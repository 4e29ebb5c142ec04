"""Fragments between local stacks: each has the state and the translation of its datagram, and passes as it came."""

import re
import socket

import pytest
from conftest import until
from lib.conntrack import EST_IN, EST_OUT, FIREWALL, INVALID, NEIGHBOURS, NEW_IN, NEW_OUT, OTHER, Lab, hears, udp
from lib.net import inside
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import Ether
from scapy.packet import Raw

FAMILIES = pytest.mark.parametrize("near, far, outside", [
    ("10.0.0.1", "10.0.0.2", "10.0.0.100"), ("fd00::1", "fd00::2", "fd00::100"),
], ids=["IPv4", "IPv6"])

SNAT = """
table=0,priority=10,in_port=1,{ip},actions=ct(commit,table=1,zone=1,nat(src={outside}))
table=0,priority=10,in_port=2,{ip},actions=ct(table=2,zone=1,nat)
table=1,cookie=1,ct_state=+trk+snat,{ip},{field}_src={outside},actions=2
table=2,cookie=2,ct_state=+trk+est+rpl,{ip},{field}_dst={near},actions=1
table=2,cookie=3,priority=0,actions=drop
"""


def ping(host, address, size, count=3):
    """How many datagrams of this size come back."""
    return host.ping(address, count, 0.1, wait=2, size=size, fragments=True)


def status(lab, line):
    """A number of `dpctl/ipf-get-status`."""
    return int(re.search(rf"{line}: (\d+)", lab.ovs.appctl("dpctl/ipf-get-status"))[1])


@FAMILIES
def test_large_pings_pass_the_firewall(ovs, net, near, far, outside):
    lab = Lab(ovs, net)
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, FIREWALL)
    assert ping(a, far, 4000) == 3
    # Three fragments a datagram; those of the first are new.
    assert lab.counts(NEW_OUT, 3) == 3
    assert lab.counts(EST_OUT, 6) == 6 and lab.counts(EST_IN, 9) == 9
    version = "v6" if ":" in far else "v4"
    assert status(lab, f"{version} frags accepted") == status(lab, f"{version} frags completed") >= 18
    assert ping(b, near, 4000, count=1) == 0
    assert lab.counts(NEW_IN, 3) == 3
    assert lab.hits(INVALID) == lab.hits(OTHER) == 0


@FAMILIES
def test_large_pings_are_translated(ovs, net, near, far, outside):
    lab = Lab(ovs, net)
    a, b = lab.hosts
    lab.neighbour(b, outside, a.mac)
    six = ":" in far
    lab.flows(NEIGHBOURS, SNAT.format(ip="ipv6" if six else "ip", field="ipv6" if six else "nw", outside=outside, near=near))
    assert ping(a, far, 4000) == 3
    assert lab.counts(1, 9) == 9 and lab.counts(2, 9) == 9
    assert lab.hits(3) == 0
    # The checksum of a datagram of UDP is over all fragments.
    question, answer = udp(a, "::" if six else "0.0.0.0", 5000), udp(b, far, 6000)
    question.sendto(b"x" * 9000, (far, 6000))
    data, peer = hears(answer)
    assert data == b"x" * 9000 and peer[:2] == (outside, 5000)
    answer.sendto(b"y" * 20000, peer)
    assert hears(question)[0] == b"y" * 20000


def first_fragment(near, far):
    """The first fragment of a ping."""
    ether = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    if ":" in far:
        return bytes(ether / IPv6(src=near, dst=far) / IPv6ExtHdrFragment(id=9, m=1, nh=58) / Raw(bytes([128] + [0] * 1447)))
    return bytes(ether / IP(src=near, dst=far, flags="MF", id=9, proto=1) / Raw(bytes([8] + [0] * 1447)))


@FAMILIES
def test_a_datagram_that_is_never_whole_does_not_pass(ovs, net, near, far, outside):
    """The last fragment is lost: those before it wait, are counted, and go when their time is over."""
    lab = Lab(ovs, net)
    a, b = lab.hosts
    version = "v6" if ":" in far else "v4"
    lab.flows(NEIGHBOURS, FIREWALL)
    assert ping(a, far, 100, count=1) == 1
    sniffer = b.sniff("ip[6:2] & 0x3fff != 0 or ip6[6] == 44")
    with inside(a):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("eth0", 0))
    wire.send(first_fragment(near, far))
    until(lambda: status(lab, f"{version} frags accepted") == 1, what="the fragment being there")
    assert status(lab, "num frag") == 1 and status(lab, f"{version} frags completed") == 0
    until(lambda: a.ping(far, count=1) and status(lab, f"{version} frags expired") == 1, 40, "the fragment's end")
    assert status(lab, "num frag") == 0
    assert sniffer.seen() == ""


def test_fragments_pass_as_they_are_where_they_are_not_gathered(ovs, net):
    """dpctl/ipf-set-disabled: each fragment is looked at by itself; a later one has no ports, and is invalid."""
    lab = Lab(ovs, net)
    a, _ = lab.hosts
    lab.flows(NEIGHBOURS, FIREWALL)
    ovs.appctl("dpctl/ipf-set-disabled", "v4")
    assert ping(a, "10.0.0.2", 4000, count=1) == 0
    assert lab.counts(INVALID, 2) >= 2
    ovs.appctl("dpctl/ipf-set-enabled", "v4")
    assert ping(a, "10.0.0.2", 4000, count=1) == 1
