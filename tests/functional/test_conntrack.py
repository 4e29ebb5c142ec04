"""Connections between local stacks through stateful rules: which state their packets have, and what is known of them."""

import re
import socket
import struct
import sys

import pytest
from conftest import until
from lib.conntrack import (
    EST_IN, EST_OUT, FIREWALL, INVALID, NEIGHBOURS, NEW_IN, NEW_OUT, OTHER, PATIENCE, RELATED_IN, Lab, connect, exchange, hears, listen,
    make, refused, stream, udp,
)

BOTH = pytest.mark.parametrize("address", ["10.0.0.2", "fd00::2"], ids=["IPv4", "IPv6"])


def own(address):
    """The client's address of the same family."""
    return "fd00::1" if ":" in address else "10.0.0.1"


@pytest.fixture
def lab(ovs, net):
    lab = Lab(ovs, net)
    lab.flows(NEIGHBOURS, FIREWALL)
    return lab


@BOTH
def test_only_one_side_may_open_connections(lab, address):
    a, b = lab.hosts
    assert a.ping(address) == 3
    assert b.ping(own(address), wait=1) == 0
    for end in stream(a, b, address, 8000):
        end.close()
    with listen(a, own(address), 8000):
        assert refused(b, own(address), 8000)
    inside, outside = udp(a, own(address), 5000), udp(b, address, 6000)
    inside.settimeout(0.5)
    outside.sendto(b"unasked", (own(address), 5000))
    assert hears(inside) is None
    inside.settimeout(PATIENCE)
    inside.sendto(b"question", (address, 6000))
    data, peer = hears(outside)
    outside.sendto(data, peer)
    assert hears(inside)[0] == b"question"
    # The first of three pings, a SYN and a datagram open connections; three pings, two SYNs or more and a datagram fail to.
    assert lab.counts(NEW_OUT, 3) == 3
    assert lab.counts(NEW_IN, 6) >= 6
    assert lab.hits(INVALID) == lab.hits(OTHER) == 0


def test_files_come_by_http(lab, tmp_path):
    a, b = lab.hosts
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4000)
    b.start(sys.executable, "-m", "http.server", "--bind", "10.0.0.2", "--directory", tmp_path, "8000")
    got = tmp_path / "got"
    a.run("curl", "-sS", "--retry-connrefused", "--retry", "20", "--retry-delay", "1", "--max-time", "30",
          "-o", got, "http://10.0.0.2:8000/file")
    assert got.read_bytes() == (tmp_path / "file").read_bytes()
    assert lab.counts(EST_OUT, 3) and lab.counts(EST_IN, 3)


def echo_reply(identifier):
    """An ICMP echo reply that nobody has asked for."""
    body = struct.pack("!BBHHH", 0, 0, 0, identifier, 1)
    checksum = 0xffff - (sum(struct.unpack("!4H", body)) % 0xffff)
    return body[:2] + struct.pack("!H", checksum) + body[4:]


def test_every_state_is_told_apart(lab):
    """new, est, rpl, rel and inv, each seen by a rule of its own."""
    a, b = lab.hosts
    s = udp(a, "10.0.0.1", 5000)
    s.connect(("10.0.0.2", 6000))
    s.send(b"nobody listens")
    with pytest.raises(ConnectionRefusedError):
        s.recv(100)
    assert lab.counts(RELATED_IN) == 1, "the ICMP error"
    assert lab.hits(NEW_OUT) == 1
    raw = make(b, "10.0.0.2", socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.sendto(echo_reply(77), ("10.0.0.1", 0))
    assert lab.counts(INVALID) == 1, "an answer without a question"
    assert a.ping("10.0.0.2", count=4) == 4
    assert lab.counts(EST_IN, 4) == 4
    # ping asks four times in one connection: the first is new, and the others are of a connection that has been answered.
    assert lab.counts(EST_OUT, 3) == 3
    assert lab.hits(NEW_OUT) == 2 and lab.hits(NEW_IN) == 0


def test_an_error_without_a_rule_for_related_packets_does_not_pass(lab):
    lab.ovs.ofctl("del-flows", "br0", f"cookie={RELATED_IN:#x}/-1")
    a, _ = lab.hosts
    s = udp(a, "10.0.0.1", 5000)
    s.settimeout(1)
    s.connect(("10.0.0.2", 6000))
    s.send(b"nobody listens")
    assert hears(s) is None
    assert lab.counts(OTHER) + lab.hits(EST_IN) == 1


def test_a_segment_outside_the_window_is_invalid(lab):
    """One with a wrong sequence number, from a host that knows the ports, does not reach the client."""
    a, b = lab.hosts
    client, server = stream(a, b, "10.0.0.2", 8000, source=5000)
    blind = make(b, "10.0.0.2", socket.SOCK_RAW, socket.IPPROTO_TCP)
    # A reset with a number that is off by far.
    segment = struct.pack("!HHIIBBHHH", 8000, 5000, 0x12345678, 0, 0x50, 4, 0, 0, 0)
    pseudo = socket.inet_aton("10.0.0.2") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 6, len(segment))
    checksum = 0xffff - (sum(struct.unpack(f"!{(len(pseudo) + len(segment)) // 2}H", pseudo + segment)) % 0xffff)
    blind.sendto(segment[:16] + struct.pack("!H", checksum) + segment[18:], ("10.0.0.1", 0))
    assert lab.counts(INVALID) == 1
    exchange(client, server)
    assert lab.connections("ESTABLISHED", "sport=5000")


def test_the_end_of_a_connection_is_seen(lab):
    a, b = lab.hosts

    def state(port):
        [line] = lab.connections(f"orig=(src=10.0.0.1,dst=10.0.0.2,sport={port},")
        return re.search(r"protoinfo=\(state=(\w+)\)", line)[1]

    def ends(port):
        lines = lab.ovs.appctl("dpctl/dump-conntrack", "-m").splitlines()
        [line] = [line for line in lines if f"orig=(src=10.0.0.1,dst=10.0.0.2,sport={port}," in line]
        return tuple(re.search(rf"state_{end}=(\w+)", line)[1] for end in ("orig", "reply"))

    client, server = stream(a, b, "10.0.0.2", 8000, source=5001)
    assert state(5001) == "ESTABLISHED"
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    # FIN_WAIT_2 when it is acknowledged, which may have been at once.
    until(lambda: ends(5001) in (("CLOSING", "ESTABLISHED"), ("FIN_WAIT_2", "ESTABLISHED")), what="the first FIN being seen")
    server.sendall(b"still half open")
    assert client.recv(100) == b"still half open"
    server.close(), client.close()
    until(lambda: state(5001) in ("TIME_WAIT", "FIN_WAIT_2", "LAST_ACK"), what="both FINs being seen")
    client, server = stream(a, b, "10.0.0.2", 8000, source=5002)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: state(5002) in ("CLOSED", "TIME_WAIT"), what="the reset being seen")
    with pytest.raises(ConnectionResetError):
        server.recv(1)


def test_ports_are_used_again(lab):
    """A connection between the same ports as one that has just ended."""
    a, b = lab.hosts
    for _ in range(5):
        client, server = stream(a, b, "10.0.0.2", 8000, source=5000)
        # The server ends first, so that its stack has the port in TIME_WAIT and the client may use its own again.
        server.close()
        assert client.recv(1) == b""
        client.close()
        until(lambda: ":5000" not in a.run("ss", "-Htan").stdout, what="the client's end being closed")
    assert lab.counts(NEW_OUT, 5) == 5 and lab.hits(INVALID) == 0


def test_zones_know_nothing_of_each_other(ovs, net):
    """Two hosts with the same addresses have connections with the same ports, each pair in a zone."""
    lab = Lab(ovs, net, 4)
    a, b, c, d = lab.hosts
    for host, n in ((c, 1), (d, 2)):
        host.run("ip", "addr", "flush", "dev", "eth0")
        host.run("ip", "addr", "add", f"10.0.0.{n}/24", "dev", "eth0")
    lab.neighbour(a, "10.0.0.2", b.mac), lab.neighbour(b, "10.0.0.1", a.mac)
    lab.neighbour(c, "10.0.0.2", d.mac), lab.neighbour(d, "10.0.0.1", c.mac)
    lab.flows("""
        table=0,in_port=1,ip,actions=load:7->NXM_NX_REG0[0..15],load:2->NXM_NX_REG1[],resubmit(,1)
        table=0,in_port=2,ip,actions=load:7->NXM_NX_REG0[0..15],load:1->NXM_NX_REG1[],resubmit(,1)
        table=0,in_port=3,ip,actions=load:8->NXM_NX_REG0[0..15],load:4->NXM_NX_REG1[],resubmit(,1)
        table=0,in_port=4,ip,actions=load:8->NXM_NX_REG0[0..15],load:3->NXM_NX_REG1[],resubmit(,1)
        table=1,ip,actions=ct(table=2,zone=NXM_NX_REG0[0..15])
        table=2,cookie=7,ct_zone=7,ct_state=+new,in_port=1,ip,actions=ct(commit,zone=NXM_NX_REG0[0..15]),output:NXM_NX_REG1[]
        table=2,cookie=8,ct_zone=8,ct_state=+new,in_port=3,ip,actions=ct(commit,zone=NXM_NX_REG0[0..15]),output:NXM_NX_REG1[]
        table=2,ct_state=+est,ip,actions=output:NXM_NX_REG1[]""")
    one, two = stream(a, b, "10.0.0.2", 8000, source=5000), stream(c, d, "10.0.0.2", 8000, source=5000)
    exchange(*one), exchange(*two)
    assert (lab.counts(7), lab.counts(8)) == (1, 1)
    assert len(lab.connections("sport=5000", "zone=7")) == len(lab.connections("sport=5000", "zone=8")) == 1
    ovs.appctl("dpctl/flush-conntrack", "zone=8")
    assert len(lab.connections("sport=5000", "zone=7")) == 1 and not lab.connections("zone=8")
    exchange(*one)
    # The server cannot go on, as its side opens no connections.
    two[1].sendall(b"lost")
    two[0].settimeout(1)
    with pytest.raises(TimeoutError):
        two[0].recv(100)


def test_force_turns_a_connection_round(lab):
    """A connection that port 2 opened, and that port 1 then claims as its own."""
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, """
        table=0,in_port=1,udp,tp_dst=7000,actions=ct(commit,force,zone=1),2
        table=0,in_port=1,udp,actions=2
        table=0,in_port=2,udp,actions=ct(table=1,zone=1)
        table=1,cookie=1,in_port=2,ct_state=+new,udp,actions=ct(commit,zone=1),1
        table=1,cookie=2,in_port=2,ct_state=+est-rpl,udp,actions=1
        table=1,cookie=3,in_port=2,ct_state=+rpl,udp,actions=1""")
    one, other = udp(a, "10.0.0.1", 5000), udp(b, "10.0.0.2", 7000)
    other.sendto(b"first", ("10.0.0.1", 5000))
    assert hears(one) and lab.counts(1) == 1
    assert lab.connections("orig=(src=10.0.0.2,dst=10.0.0.1,sport=7000,dport=5000")
    one.sendto(b"mine", ("10.0.0.2", 7000))
    assert hears(other)
    assert lab.connections("orig=(src=10.0.0.1,dst=10.0.0.2,sport=5000,dport=7000")
    assert not lab.connections("orig=(src=10.0.0.2")
    other.sendto(b"a reply now", ("10.0.0.1", 5000))
    assert hears(one) and lab.counts(3) == 1 and lab.hits(2) == 0


def test_marks_and_labels_are_kept_and_matched(lab):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, """
        table=0,ip,actions=ct(table=1,zone=1)
        table=1,priority=20,in_port=1,ct_state=+new,tcp,tp_dst=8000,actions=ct(commit,zone=1,exec(\
set_field:0x50/0xf0->ct_mark,set_field:0xabc00000000000000/0xfff00000000000000->ct_label)),2
        table=1,priority=20,in_port=1,ct_state=+new,tcp,tp_dst=8001,actions=ct(commit,zone=1,exec(\
set_field:0x7->ct_mark)),2
        table=1,priority=15,cookie=1,in_port=2,ct_mark=0x50/0xf0,ct_label=0xa0000000000000000/0xf0000000000000000,tcp,\
actions=ct(commit,zone=1,exec(set_field:0x3/0xf->ct_mark)),1
        table=1,priority=15,cookie=2,in_port=2,ct_mark=7,ct_label=0,tcp,actions=1
        table=1,priority=10,cookie=3,in_port=1,ct_state=+est,tcp,actions=2""")
    stream(a, b, "10.0.0.2", 8000, source=5000)
    stream(a, b, "10.0.0.2", 8001, source=5001)
    assert lab.counts(1) and lab.counts(2) and lab.counts(3)
    [line] = lab.connections("sport=5000")
    assert "mark=83," in line and "labels=0xabc00000000000000" in line, "a reply has changed the lower half of the mark"
    [line] = lab.connections("sport=5001")
    assert "mark=7," in line and "labels" not in line


def test_ct_clear_forgets(lab):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, """
        table=0,in_port=1,icmp,actions=ct(commit,table=1,zone=3,exec(set_field:9->ct_mark))
        table=1,cookie=1,ct_state=+trk+new,ct_zone=3,ct_mark=9,ct_nw_src=10.0.0.1,icmp,actions=ct_clear,resubmit(,2)
        table=1,ct_state=+trk+est,ct_zone=3,ct_mark=9,icmp,actions=ct_clear,resubmit(,2)
        table=2,cookie=2,ct_state=-trk,ct_zone=0,ct_mark=0,icmp,actions=2
        table=2,cookie=3,priority=0,actions=drop
        table=0,in_port=2,icmp,actions=1""")
    assert a.ping("10.0.0.2") == 3
    assert lab.counts(1) and lab.counts(2, 3) == 3 and lab.hits(3) == 0


def test_the_original_tuple_is_matched_in_both_directions(lab):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, """
        table=0,ip,actions=ct(table=1,zone=1)
        table=0,ipv6,actions=ct(table=1,zone=1)
        table=1,in_port=1,ct_state=+new,ip,actions=ct(commit,zone=1),2
        table=1,in_port=1,ct_state=+new,ipv6,actions=ct(commit,zone=1),2
        table=1,in_port=1,ct_state=+est,ip,actions=2
        table=1,in_port=1,ct_state=+est,ipv6,actions=2
        table=1,cookie=4,in_port=2,ct_state=+est,ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=6,ct_tp_src=5000,\
ct_tp_dst=8000,ip,actions=1
        table=1,cookie=6,in_port=2,ct_state=+est,ct_ipv6_src=fd00::1,ct_ipv6_dst=fd00::2,ct_nw_proto=6,ct_tp_src=5000,\
ct_tp_dst=8000,ipv6,actions=1""")
    stream(a, b, "10.0.0.2", 8000, source=5000)
    stream(a, b, "fd00::2", 8000, source=5000)
    assert lab.counts(4) and lab.counts(6)
    with listen(b, "10.0.0.2", 8001):
        with pytest.raises(TimeoutError):
            connect(a, "10.0.0.2", 8001, 5000, timeout=3)


def test_a_connection_goes_on_where_its_rules_change(lab):
    """Established packets stop at once when the rule that let them pass goes, and go on when it comes back."""
    a, b = lab.hosts
    client, server = stream(a, b, "10.0.0.2", 8000)
    lab.ovs.ofctl("del-flows", "br0", f"cookie={EST_OUT:#x}/-1")
    client.sendall(b"waits")
    server.settimeout(0.7)
    with pytest.raises(TimeoutError):
        server.recv(100)
    lab.flows(NEIGHBOURS, FIREWALL)
    server.settimeout(PATIENCE)
    assert server.recv(100) == b"waits"
    exchange(client, server)


def test_many_connections_at_once(lab):
    a, b = lab.hosts
    with listen(b, "10.0.0.2", 8000) as server:
        pairs = [(connect(a, "10.0.0.2", 8000), server.accept()[0]) for _ in range(300)]
    for client, end in pairs:
        end.settimeout(PATIENCE)
        exchange(client, end)
    assert len(lab.connections("dport=8000", "ESTABLISHED")) == 300
    assert int(lab.ovs.appctl("dpctl/ct-get-nconns")) == 300
    assert lab.hits(INVALID) == lab.hits(OTHER) == 0


def test_what_is_done_beside_tracking_is_done_on_the_short_way(ovs, net, tmp_path):
    """Packets are copied, tracked, routed, tracked in another zone, metered and spread by a hash: all of it by one look-up for each."""
    lab = Lab(ovs, net, count=3)
    a, b, _ = lab.hosts
    ovs.ofctl("add-meter", "br0", "meter=1,kbps,band=type=drop,rate=100000000", version=13)
    ovs.ofctl("add-group", "br0", "group_id=1,type=select,selection_method=dp_hash,bucket=output:2,bucket=output:2", version=15)
    lab.flows(NEIGHBOURS, """
        table=0,priority=10,ip,actions=3,ct(zone=1,table=1)
        table=1,priority=50,cookie=0x20,in_port=1,ip,ct_state=+trk+new,actions=ct(commit,zone=1),dec_ttl,ct(zone=2,table=2)
        table=1,priority=40,cookie=0x21,ip,ct_state=+trk+est,actions=dec_ttl,ct(zone=2,table=2)
        table=2,priority=50,in_port=1,ip,ct_state=+trk+new,actions=ct(commit,zone=2),group:1
        table=2,priority=40,in_port=1,ip,ct_state=+trk+est,actions=ct_clear,resubmit(,3)
        table=2,priority=40,in_port=2,ip,ct_state=+trk+est,actions=1
        table=3,actions=meter:1,group:1
    """)
    inside, outside = udp(a, "10.0.0.1", 5000), udp(b, "10.0.0.2", 6000)
    outside.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
    inside.connect(("10.0.0.2", 6000)), outside.connect(("10.0.0.1", 5000))

    def asked_and_answered(count):
        for n in range(count):
            inside.send(b"question %d" % n)
            data, ancillary, _, _ = outside.recvmsg(100, 100)
            assert (data, struct.unpack("i", ancillary[0][2])) == (b"question %d" % n, (63,))
            outside.send(data)
            assert inside.recv(100) == data

    def recirculated():
        return int(re.search(r"^datapath_recirculated .* total: (\d+)$", ovs.appctl("coverage/show"), re.M)[1])

    def copied():
        return int(re.search(r"tx pkts=(\d+)", ovs.ofctl("dump-ports", "br0", "3"))[1])

    asked_and_answered(5)
    before, copies_before = recirculated(), lab.hits(0x21)
    asked_and_answered(100)
    assert recirculated() - before < 20
    assert lab.counts(0x21, copies_before + 200) == copies_before + 200
    # Segments of TCP, as large as local stacks make them.
    (tmp_path / "file").write_bytes(bytes(range(256)) * 20000)
    b.start(sys.executable, "-m", "http.server", "--bind", "10.0.0.2", "--directory", tmp_path, "8000")
    got = tmp_path / "got"
    a.run("curl", "-sS", "--retry-connrefused", "--retry", "20", "--retry-delay", "1", "--max-time", "30", "-o", got, "http://10.0.0.2:8000/file")
    assert got.read_bytes() == (tmp_path / "file").read_bytes()
    tracked = [line for line in lab.connections("tcp") if "dport=8000" in line]
    assert {re.search(r"zone=(\d)", line)[1] for line in tracked} == {"1", "2"}
    until(lambda: copied() >= lab.hits(0x20) + lab.hits(0x21))
