"""Streams at speed through stateful rules, with all that the stacks leave to their devices and with nothing of it."""

import json
import socket

import pytest
from conftest import until
from lib.conntrack import EST_IN, EST_OUT, FIREWALL, INVALID, NEIGHBOURS, NEW_IN, OTHER, Lab, hears, udp
from lib.exchange import checksum_errors

SNAT = """
table=0,priority=10,in_port=1,{ip},actions=ct(table=1,zone=1,nat)
table=0,priority=10,in_port=2,{ip},actions=ct(table=1,zone=1,nat)
table=1,in_port=1,ct_state=+trk+new,{ip},actions=ct(commit,zone=1,nat(src={outside})),2
table=1,cookie=0x15,in_port=1,ct_state=+trk+est,{ip},actions=2
table=1,cookie=0x16,in_port=2,ct_state=+trk+est+rpl,{ip},actions=1
table=1,cookie=0x10,priority=0,actions=drop
"""


def iperf3(lab, address, *options, seconds=2):
    """Bytes that a stream brought to the receiver."""
    a, b = lab.hosts
    server = b.start("iperf3", "-s", "-1", "-B", address)
    until(lambda: ":5201 " in b.run("ss", "-Hltn").stdout, what="iperf3 listening")
    said = json.loads(a.run("iperf3", "-J", "-c", address, "-t", seconds, *options).stdout)
    server.wait(30)
    return said["end"]["sum_received"]["bytes"]


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads", "none"])
@pytest.mark.parametrize("address", ["10.0.0.2", "fd00::2"], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("translated", [False, True], ids=["plain", "translated"])
@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
def test_a_stream_passes(ovs, net, offloads, address, translated, reverse):
    lab = Lab(ovs, net, offloads=offloads)
    a, b = lab.hosts
    six = ":" in address
    outside = "fd00::100" if six else "10.0.0.100"
    lab.neighbour(b, outside, a.mac)
    lab.flows(NEIGHBOURS, SNAT.format(ip="ipv6" if six else "ip", outside=outside) if translated else FIREWALL)
    assert iperf3(lab, address, *(["-R"] if reverse else [])) > 20_000_000
    data, acknowledgements = (EST_IN, EST_OUT) if reverse else (EST_OUT, EST_IN)
    packets, size = until(lambda: lab.count(data) if lab.count(data)[1] > 20_000_000 else None, what="the flow's counters")
    if offloads:
        assert size / packets > 3000, "super-frames pass whole"
    else:
        assert size / packets < 1515
    assert lab.hits(acknowledgements) > 10
    assert lab.hits(INVALID) == 0
    if not translated:
        assert lab.hits(NEW_IN) == lab.hits(OTHER) == 0
    assert checksum_errors(a) == checksum_errors(b) == 0


def test_parallel_streams_pass_in_both_directions(ovs, net):
    lab = Lab(ovs, net)
    lab.flows(NEIGHBOURS, FIREWALL)
    assert iperf3(lab, "10.0.0.2", "-P", "8", "--bidir") > 20_000_000
    assert len(lab.connections("dport=5201")) == 17
    assert lab.hits(INVALID) == lab.hits(NEW_IN) == lab.hits(OTHER) == 0


def test_datagrams_of_super_frames_pass(ovs, net):
    """UDP that the device cuts (UDP_SEGMENT) is one packet to the tracker."""
    lab = Lab(ovs, net)
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, FIREWALL)
    one, other = udp(a, "10.0.0.1", 5000), udp(b, "10.0.0.2", 6000)
    one.sendto(b"first", ("10.0.0.2", 6000))
    data, peer = hears(other)
    other.sendto(data, peer)
    hears(one)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    one.setsockopt(17, 103, 1000)
    for _ in range(10):
        one.sendto(bytes(20_000), ("10.0.0.2", 6000))
    assert [len(hears(other)[0]) for _ in range(200)] == [1000] * 200
    assert lab.counts(EST_OUT, 10) == 10
