"""What an operator does with connections: limits, timeouts, dumps, flushes."""

import json
import re
import socket
import struct
from pathlib import Path

import pytest
from conftest import until
from lib.conntrack import FIREWALL, INVALID, NEIGHBOURS, NEW_IN, PATIENCE, Lab, connect, exchange, hears, listen, make, stream, udp
from lib.daemon import SCHEMA
from lib.net import run

ZONES = """
table=0,in_port=1,tcp,tp_dst=8005,actions=ct(table=1,zone=5)
table=0,in_port=2,tcp,tp_src=8005,actions=ct(table=1,zone=5)
table=0,priority=100,tcp,actions=ct(table=1,zone=6)
table=1,in_port=1,ct_state=+new,ct_zone=5,tcp,actions=ct(commit,zone=5),2
table=1,in_port=1,ct_state=+new,ct_zone=6,tcp,actions=ct(commit,zone=6),2
table=1,in_port=1,ct_state=+est,tcp,actions=2
table=1,in_port=2,ct_state=+est,tcp,actions=1
table=1,priority=0,actions=drop
"""


@pytest.fixture
def lab(ovs, net):
    return Lab(ovs, net)


def opened(lab, port, count):
    """Connections that come about of so many attempts; all stay open."""
    a, b = lab.hosts
    pairs = []
    with listen(b, "10.0.0.2", port) as server:
        server.settimeout(PATIENCE)
        for _ in range(count):
            try:
                client = connect(a, "10.0.0.2", port, timeout=2)
            except TimeoutError:
                continue
            pairs.append((client, server.accept()[0]))
    return pairs


def test_a_zone_has_a_limit(lab):
    lab.flows(NEIGHBOURS, ZONES)
    lab.ovs.appctl("dpctl/ct-set-limits", "default=10", "zone=5,limit=3")
    assert "zone=5,limit=3,count=0" in lab.ovs.appctl("dpctl/ct-get-limits", "zone=5")
    pairs = opened(lab, 8005, 5)
    assert len(pairs) == 3
    limits = lab.ovs.appctl("dpctl/ct-get-limits")
    assert "default limit=10" in limits and "zone=5,limit=3,count=3" in limits
    # Those that are there go on, and those of another zone have a limit of their own.
    exchange(*pairs[0])
    others = opened(lab, 8006, 12)
    assert len(others) == 10
    lab.ovs.appctl("dpctl/ct-set-limits", "zone=5,limit=4")
    assert len(opened(lab, 8005, 2)) == 1
    lab.ovs.appctl("dpctl/ct-del-limits", "zone=5")
    lab.ovs.appctl("dpctl/ct-set-limits", "default=0")
    assert len(opened(lab, 8005, 3)) == 3


def test_a_limit_in_the_database(ovs, net):
    """The schema of Open vSwitch 3.3 and later has a column for it."""
    schema = json.loads(Path(SCHEMA).read_text())
    number = {"type": "integer", "minInteger": 0, "maxInteger": (1 << 32) - 1}
    schema["tables"]["CT_Zone"]["columns"]["limit"] = {"type": {"key": number, "min": 0, "max": 1}}
    schema["version"] = "8.5.0"
    (ovs.dir / "schema").write_text(json.dumps(schema))
    run("ovsdb-client", "convert", ovs.db, ovs.dir / "schema")
    lab = Lab(ovs, net)
    lab.flows(NEIGHBOURS, ZONES)
    zone = {"op": "insert", "table": "CT_Zone", "row": {"limit": 2}, "uuid-name": "zone"}
    datapath = {"op": "insert", "table": "Datapath", "uuid-name": "datapath",
                "row": {"datapath_version": "0", "ct_zones": ["map", [[5, ["named-uuid", "zone"]]]]}}
    root = {"op": "update", "table": "Open_vSwitch", "where": [],
            "row": {"datapaths": ["map", [["netdev", ["named-uuid", "datapath"]]]]}}
    run("ovsdb-client", "transact", ovs.db, json.dumps(["Open_vSwitch", zone, datapath, root]))
    # Returns when the daemon has taken notice.
    ovs.vsctl("set", "Open_vSwitch", ".", "external_ids:touched=1")
    assert len(opened(lab, 8005, 4)) == 2
    assert "zone=5,limit=2,count=2" in ovs.appctl("dpctl/ct-get-limits", "zone=5")
    assert len(opened(lab, 8006, 4)) == 4

    # No command changes the limits of zones while the database has one.
    for command in (["ct-set-limits", "zone=5,limit=9"], ["ct-set-limits", "default=1"], ["ct-set-limits", "zone=6,limit=1"],
                    ["ct-del-limits", "zone=5"]):
        assert "the zone limits are set in unix:" in (refused := ovs.refusal("appctl", f"dpctl/{command[0]}", command[1]))
        assert "(Operation not permitted)" in refused
    assert "(Invalid argument)" in ovs.refusal("appctl", "dpctl/ct-set-limits", "zone=5"), "arguments come first"
    assert ovs.appctl("dpctl/ct-get-limits") == "default limit=0\nzone=5,limit=2,count=2\n"
    run("ovsdb-client", "transact", ovs.db, json.dumps(["Open_vSwitch", {
        "op": "update", "table": "CT_Zone", "where": [], "row": {"limit": ["set", []]}}]))
    ovs.vsctl("set", "Open_vSwitch", ".", "external_ids:touched=2")
    ovs.appctl("dpctl/ct-set-limits", "zone=6,limit=9")
    assert ovs.appctl("dpctl/ct-get-limits") == "default limit=0\nzone=6,limit=9,count=4\n"


def test_all_connections_have_a_limit(lab):
    lab.flows(NEIGHBOURS, ZONES)
    assert int(lab.ovs.appctl("dpctl/ct-get-maxconns")) >= 1_000_000
    lab.ovs.appctl("dpctl/ct-set-maxconns", "4")
    assert int(lab.ovs.appctl("dpctl/ct-get-maxconns")) == 4
    pairs = opened(lab, 8005, 6)
    assert len(pairs) == 4 == int(lab.ovs.appctl("dpctl/ct-get-nconns"))
    exchange(*pairs[0])
    lab.ovs.appctl("dpctl/ct-set-maxconns", "100")
    assert len(opened(lab, 8006, 3)) == 3


def test_timeout_policies(lab):
    """Connections of a zone end when the policy says so, and those of others do not."""
    lab.flows(NEIGHBOURS, """
        table=0,in_port=1,udp,tp_dst=6005,actions=ct(commit,zone=5),2
        table=0,in_port=1,udp,tp_dst=6006,actions=ct(commit,zone=6),2
        table=0,in_port=2,udp,tp_src=6005,actions=ct(table=1,zone=5)
        table=1,ct_state=+est,udp,actions=1""")
    a, b = lab.hosts
    lab.ovs.vsctl("--", "--id=@m", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".",
                  "datapaths:netdev=@m")
    lab.ovs.vsctl("add-zone-tp", "netdev", "zone=5", "udp_first=3", "udp_single=3", "udp_multiple=4")
    one = udp(a, "10.0.0.1", 5000)
    others = {port: udp(b, "10.0.0.2", port) for port in (6005, 6006)}

    def ends():
        """How soon the connection of zone 5 ends; that of zone 6 has to be there still."""
        for port, other in others.items():
            one.sendto(b"?", ("10.0.0.2", port))
            assert hears(other)
        assert lab.connections("dport=6005", "zone=5") and lab.connections("dport=6006", "zone=6")
        until(lambda: not lab.connections("dport=6005"), 20, "the end of the connection")
        assert lab.connections("dport=6006")

    ends()
    # With an answer it lasts longer, but not for the usual half a minute.
    one.sendto(b"?", ("10.0.0.2", 6005))
    data, peer = hears(others[6005])
    others[6005].sendto(data, peer)
    assert hears(one)
    until(lambda: not lab.connections("dport=6005"), 20, "the end of the connection")
    lab.ovs.vsctl("del-zone-tp", "netdev", "zone=5")
    one.sendto(b"?", ("10.0.0.2", 6005))
    assert hears(others[6005])
    with pytest.raises(AssertionError):
        until(lambda: not lab.connections("dport=6005"), 4)


def flushed(lab, how):
    """Whether the client's connection is gone: its server gets no more through."""
    a, b = lab.hosts
    one, other = udp(a, "10.0.0.1", 5000), udp(b, "10.0.0.2", 6000)
    one.sendto(b"?", ("10.0.0.2", 6000))
    data, peer = hears(other)
    other.sendto(data, peer)
    assert hears(one)
    how()
    one.settimeout(0.7)
    other.sendto(data, peer)
    return hears(one) is None


@pytest.mark.parametrize("words, gone", [
    ([], True), (["zone=1"], True), (["zone=2"], False),
    (["ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=5000,ct_tp_dst=6000"], False),
    (["zone=1", "ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=5000,ct_tp_dst=6000"], True),
    (["zone=1", "ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=5001,ct_tp_dst=6000"], False),
], ids=["all", "zone", "other zone", "tuple of zone 0", "tuple", "other tuple"])
def test_connections_are_flushed(lab, words, gone):
    lab.flows(NEIGHBOURS, FIREWALL)
    def how():
        if gone or words == ["zone=2"]:
            lab.ovs.appctl("dpctl/flush-conntrack", *words)
        else:
            lab.ovs.expect("conntrack.*Must flush tuple using the original pre-NATed tuple")
            assert "No such file" in lab.ovs.refusal("appctl", "dpctl/flush-conntrack", *words)

    assert flushed(lab, how) is gone


@pytest.mark.parametrize("words, gone", [
    (["ct-flush", "br0"], True), (["ct-flush", "br0", "zone=2"], False),
    (["ct-flush", "br0", "zone=1", "ct_nw_src=10.0.0.1"], True), (["ct-flush", "br0", "ct_nw_src=10.0.0.7"], False),
    (["ct-flush-zone", "br0", "1"], True), (["ct-flush-zone", "br0", "2"], False),
], ids=lambda words: " ".join(words) if isinstance(words, list) else "")
def test_connections_are_flushed_by_a_controller(lab, words, gone):
    lab.flows(NEIGHBOURS, FIREWALL)
    assert flushed(lab, lambda: lab.ovs.ofctl(*words, version=13)) is gone


def test_a_flushed_stream_is_picked_up_by_the_side_that_may_open(lab):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, FIREWALL)
    client, server = stream(a, b, "10.0.0.2", 8000)
    lab.ovs.appctl("dpctl/flush-conntrack")
    server.sendall(b"from outside")
    client.settimeout(0.7)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert lab.counts(NEW_IN) >= 1
    client.settimeout(PATIENCE)
    client.sendall(b"from inside")
    assert server.recv(100) == b"from inside"
    assert client.recv(100) == b"from outside", "sent again"
    exchange(client, server)


def test_dumps_and_statistics(lab):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, FIREWALL)
    kept = [stream(a, b, "10.0.0.2", 8000, source=5000), stream(a, b, "fd00::2", 8000, source=5000)]
    assert a.ping("10.0.0.2", count=1) == 1
    datagram = udp(a, "10.0.0.1", 5001)
    datagram.connect(("10.0.0.2", 6000))
    receiver = udp(b, "10.0.0.2", 6000)
    datagram.send(b"?")
    assert hears(receiver)
    dump = lab.ovs.appctl("dpctl/dump-conntrack").splitlines()
    assert len(dump) == 4
    assert ("tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=5000,dport=8000),reply=(src=10.0.0.2,dst=10.0.0.1,sport=8000,"
            "dport=5000),zone=1,protoinfo=(state=ESTABLISHED)") in dump
    assert ("tcp,orig=(src=fd00::1,dst=fd00::2,sport=5000,dport=8000),reply=(src=fd00::2,dst=fd00::1,sport=8000,"
            "dport=5000),zone=1,protoinfo=(state=ESTABLISHED)") in dump
    assert ("udp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=5001,dport=6000),reply=(src=10.0.0.2,dst=10.0.0.1,sport=6000,"
            "dport=5001),zone=1") in dump
    [icmp] = [line for line in dump if line.startswith("icmp,")]
    assert re.fullmatch(r"icmp,orig=\(src=10.0.0.1,dst=10.0.0.2,id=(\d+),type=8,code=0\),"
                        r"reply=\(src=10.0.0.2,dst=10.0.0.1,id=\1,type=0,code=0\),zone=1", icmp)
    assert lab.ovs.appctl("dpctl/dump-conntrack", "zone=2") == ""
    assert len(lab.ovs.appctl("dpctl/dump-conntrack", "zone=1").splitlines()) == 4
    assert "timeout=" in lab.ovs.appctl("dpctl/dump-conntrack", "-s")
    assert int(lab.ovs.appctl("dpctl/ct-get-nconns")) == 4
    statistics = lab.ovs.appctl("dpctl/ct-stats-show", "-m")
    assert "Total: 4" in statistics and "TCP: 2" in statistics and "UDP: 1" in statistics and "ICMP: 1" in statistics
    assert "[ESTABLISHED]=2" in statistics
    for pair in kept:
        exchange(*pair)


def test_liberal_mode_ignores_sequence_numbers(lab):
    """dpctl/ct-disable-tcp-seq-chk."""
    a, b = lab.hosts
    # With scaled windows, one number of sixty is in the window, whatever it is.
    for host in lab.hosts:
        host.run("sysctl", "-qw", "net.ipv4.tcp_window_scaling=0")
    lab.flows(NEIGHBOURS, FIREWALL)
    assert "enabled" in lab.ovs.appctl("dpctl/ct-get-tcp-seq-chk")
    lab.ovs.appctl("dpctl/ct-disable-tcp-seq-chk")
    assert "disabled" in lab.ovs.appctl("dpctl/ct-get-tcp-seq-chk")
    client, _ = stream(a, b, "10.0.0.2", 8000, source=5000)
    sniffer = a.sniff("tcp dst port 5000")
    segment(b, 8000, 5000, 0x12345678)
    sniffer.sees("win 999")
    lab.ovs.appctl("dpctl/ct-enable-tcp-seq-chk")
    segment(b, 8000, 5000, 0x12345678)
    assert lab.counts(INVALID) == 1
    client.close()


def segment(host, source, destination, sequence):
    """An acknowledgement with this sequence number, from 10.0.0.2 to 10.0.0.1."""
    text = struct.pack("!HHIIBBHHH", source, destination, sequence, 1, 0x50, 0x10, 999, 0, 0)
    pseudo = socket.inet_aton("10.0.0.2") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 6, len(text))
    checksum = 0xffff - sum(struct.unpack(f"!{(len(pseudo) + len(text)) // 2}H", pseudo + text)) % 0xffff
    make(host, "10.0.0.2", socket.SOCK_RAW, 6).sendto(text[:16] + struct.pack("!H", checksum) + text[18:], ("10.0.0.1", 0))
