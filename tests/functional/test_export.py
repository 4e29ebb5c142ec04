"""sFlow, NetFlow and IPFIX of real traffic, as collectors see it that nobody here wrote."""

import socket
import struct
from collections import Counter
from math import sqrt

import pytest
from conftest import until
from lib.collectors import Accounting, Capture, Collector, free_port, shown
from lib.conntrack import NEIGHBOURS, Lab, udp

FORWARD = ["table=0,in_port=1,actions=2", "table=0,in_port=2,actions=1"]
IPV4, TCP, UDP = 0x0800, 6, 17


@pytest.fixture
def lab(ovs, net):
    return Lab(ovs, net, offloads=False)


@pytest.fixture
def collect():
    """A function that starts collectors; they end with the test."""
    started = []

    def start(make, *args, **kw):
        started.append(make(*args, **kw))
        return started[-1]

    yield start
    for collector in started:
        collector.close()


def export(lab, table, column, *settings):
    lab.ovs.vsctl("--", "--id=@it", "create", table, *settings, "--", "set", "bridge", "br0", f"{column}=@it")


def send(lab, count, size=100, port=7000):
    """Datagrams from the first host to the second one, as many as the switch has taken; others were lost before it."""
    a, b = lab.hosts[:2]
    with udp(a, "10.0.0.1", 6000) as client, udp(b, "10.0.0.2", port):
        client.sendto(bytes(size), ("10.0.0.2", port))
        before = lab.ovs.counters(1)["rx_pkts"]
        for n in range(count - 1):
            client.sendto(bytes(size), ("10.0.0.2", port))
            if n % 100 == 0:
                # The switch is to keep up.
                until(lambda: lab.ovs.counters(1)["rx_pkts"] >= before + n, what="the switch taking what was sent")
        until(lambda: lab.ovs.counters(1)["rx_pkts"] >= before + count - 1, what="the switch taking what was sent")


def lost(lab):
    """Samples that found no room, of all exporters."""
    counters = ("datapath_drop_sample_error", "export_queue_overflow")
    return sum(int(lab.ovs.appctl("coverage/read-counter", counter)) for counter in counters)


def within(found, lost, count, rate):
    """Whether an estimate of `count` packets from one in `rate` is one that can be. Of the samples that found no room, each
    may have been of others."""
    error = 5 * sqrt(count * (rate - 1))
    assert found - error <= count <= found + lost * rate + error, f"{found} of {count}, {lost} samples lost"


def ours(records, port=7000):
    return [record for record in records if record["dp"] == str(port)]


def total(records, column):
    return sum(int(record[column]) for record in records)


@pytest.mark.parametrize("rate", [1, 8])
def test_sflow_estimates_what_was_sent(lab, collect, rate):
    collector = collect(Collector, "sfcapd")
    export(lab, "sflow", "sflow", f'targets="{collector.target}"', f"sampling={rate}", "polling=0", "header=128")
    lab.flows(NEIGHBOURS, *FORWARD)
    send(lab, 4000)
    # The last datagram goes out with its agent.
    lab.ovs.vsctl("clear", "bridge", "br0", "sflow")
    records = ours(collector.records())
    packets = total(records, "ipkt")
    within(packets, lost(lab), 4000, rate)
    # Bytes of whole frames, with their check sequence or without.
    assert {round(int(record["ibyt"]) / int(record["ipkt"])) for record in records} <= {128, 142, 146}
    here, there = (str(socket.if_nametoindex(host.port)) for host in lab.hosts)
    assert {(record["in"], record["out"]) for record in records} == {(here, there)}


def test_netflow_counts_every_packet(lab, collect):
    collector = collect(Collector, "nfcapd")
    capture = collect(Capture, cflow=collector.port)
    export(lab, "netflow", "netflow", f'targets="{collector.target}"', "engine_type=3", "engine_id=4", "active_timeout=1")
    lab.flows(NEIGHBOURS, *FORWARD)
    send(lab, 1000)
    send(lab, 300, size=1000, port=7001)
    # Both ways, of one protocol without ports.
    assert lab.hosts[0].ping("10.0.0.2", count=10) == 10
    lab.ovs.appctl("revalidator/purge")
    lab.ovs.vsctl("clear", "bridge", "br0", "netflow")
    capture.stop()
    records = collector.records()
    for port, count, size in [(7000, 1000, 142), (7001, 300, 1042)]:
        of = ours(records, port)
        assert (total(of, "ipkt"), total(of, "ibyt")) == (count, count * size)
        assert {(r["sa"], r["da"], r["sp"], r["pr"], r["in"], r["out"]) for r in of} == {
            ("10.0.0.1", "10.0.0.2", "6000", "UDP", "1", "2")}
    pings = [record for record in records if record["pr"] == "ICMP"]
    assert sorted((r["sa"], r["in"], r["out"]) for r in pings if int(r["ipkt"])) and total(pings, "ipkt") == 20
    assert capture.problems() == ""
    # Records are numbered without a gap.
    expected = 0
    for sequence, count in capture.fields("cflow.sequence", "cflow.count"):
        assert int(sequence) == expected
        expected += int(count)
    assert expected == len(records)


def test_netflow_tells_where_packets_go(ovs, net, collect):
    lab = Lab(ovs, net, count=3, offloads=False)
    collector = collect(Collector, "nfcapd")
    export(lab, "netflow", "netflow", f'targets="{collector.target}"')
    lab.flows(NEIGHBOURS, "table=0,in_port=1,udp,tp_dst=7001,actions=drop", "table=0,in_port=1,udp,tp_dst=7002,actions=2,3",
              "table=0,in_port=1,udp,tp_dst=7003,actions=flood", "table=0,in_port=1,udp,tp_dst=7004,actions=ct(table=1)",
              "table=1,actions=2")
    for port in range(7001, 7005):
        send(lab, 5, port=port)
    lab.ovs.appctl("revalidator/purge")
    lab.ovs.vsctl("clear", "bridge", "br0", "netflow")
    outputs = Counter()
    for record in collector.records():
        outputs[record["dp"], record["out"]] += int(record["ipkt"])
    # A later pass decides on what is tracked.
    assert outputs == {("7001", "65533"): 5, ("7002", "65534"): 5, ("7003", "65535"): 5, ("7004", "0"): 5}


@pytest.mark.parametrize("rate", [1, 8])
def test_ipfix_of_a_bridge_estimates_what_was_sent(lab, collect, rate):
    collector = collect(Collector, "nfcapd")
    capture = collect(Capture, cflow=collector.port)
    export(lab, "ipfix", "ipfix", f'targets="{collector.target}"', f"sampling={rate}", "cache_active_timeout=60",
           "cache_max_flows=100", "obs_domain_id=7", "obs_point_id=8", "other_config:enable-output-sampling=false",
           "other_config:virtual_obs_id=here")
    lab.flows(NEIGHBOURS, *FORWARD)
    send(lab, 4000)
    # What is in the cache goes out with the exporter.
    lab.ovs.vsctl("clear", "bridge", "br0", "ipfix")
    capture.stop()
    of = ours(collector.records())
    within(total(of, "ipkt"), lost(lab), 4000, rate)
    assert total(of, "ibyt") == total(of, "ipkt") * 128, "bytes of IP"
    assert capture.problems() == ""
    domains = {domain for [domain] in capture.fields("cflow.od_id", filter="cflow.version == 10")}
    # What an exporter says about itself is of no domain.
    assert domains == {"0", "7"}


#: By format: the collector, the columns of its row, one packet in how many is sampled, and bytes beyond a datagram's own.
ACCOUNTED = {
    # A frame as on the wire, with its check sequence.
    "sflow": ("sfacctd", ["sampling=8", "polling=0"], 8, 46),
    "netflow": ("nfacctd", ["active_timeout=0"], 1, 42),
    "ipfix": ("nfacctd", ["sampling=8", "cache_active_timeout=60", "cache_max_flows=100",
                          "other_config:enable-output-sampling=false"], 8, 28),
}


@pytest.mark.parametrize("format", ACCOUNTED)
def test_pmacct_adds_up_what_was_sent(lab, collect, format):
    program, settings, rate, headers = ACCOUNTED[format]
    collector = collect(Accounting, program)
    export(lab, format, format, f'targets="{collector.target}"', *settings)
    lab.flows(NEIGHBOURS, *FORWARD)
    send(lab, 2000)
    send(lab, 1000, size=1000, port=7001)
    lab.ovs.appctl("revalidator/purge")
    # What is left goes out with the exporter.
    lab.ovs.vsctl("clear", "bridge", "br0", format)
    records = collector.records()
    for port, count, size in [(7000, 2000, 100), (7001, 1000, 1000)]:
        of = [record for record in records if record["port_dst"] == port]
        assert {(r["ip_src"], r["ip_dst"], r["port_src"], r["ip_proto"]) for r in of} == {("10.0.0.1", "10.0.0.2", 6000, "udp")}
        within(total(of, "packets"), lost(lab), count, rate)
        assert total(of, "bytes") == total(of, "packets") * (size + headers)


def test_the_action_sample_reaches_its_collector_set(lab, collect):
    collector, other = collect(Collector, "nfcapd"), collect(Collector, "nfcapd")
    for id, target in [(5, collector.target), (6, other.target)]:
        lab.ovs.vsctl("--", "--id=@i", "create", "ipfix", f'targets="{target}"', "cache_active_timeout=60",
                      "cache_max_flows=100", "--", "--id=@br", "get", "bridge", "br0", "--", "create",
                      "flow_sample_collector_set", f"id={id}", "bridge=@br", "ipfix=@i")
    sample = "sample(probability={},collector_set_id={},obs_domain_id=1,obs_point_id=2)"
    lab.flows(NEIGHBOURS, f"table=0,in_port=1,udp,tp_dst=7000,actions={sample.format(16384, 5)},2",
              f"table=0,in_port=1,udp,tp_dst=7001,actions=2,{sample.format(65535, 6)}",
              f"table=0,in_port=1,udp,tp_dst=7002,actions=ct(table=1)", f"table=1,actions={sample.format(65535, 6)},2")
    send(lab, 4000)
    lost_first = lost(lab)
    send(lab, 100, port=7001)
    send(lab, 100, port=7002)
    lost_second = lost(lab) - lost_first
    flows = lab.ovs.ofctl("dump-ipfix-flow", "br0")
    assert "collector set 5" in flows.lower() or "id   5" in flows, flows
    lab.ovs.vsctl("--all", "destroy", "flow_sample_collector_set")
    until(lambda: "collector set" not in shown(lab.ovs)[0], what="the end of the exporters")
    first, second = ours(collector.records()), other.records()
    within(total(first, "ipkt"), lost_first, 4000, 4)
    assert total(ours(second), "ipkt") == 0
    within(total(ours(second, 7001) + ours(second, 7002), "ipkt"), lost_second, 200, 1)
    assert {record["dp"] for record in second if record["pr"] == "UDP"} == {"7001", "7002"}


def frame(ethertype, payload, tags=()):
    head = b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1"
    for tag in tags:
        head += struct.pack("!HH", 0x8100, tag)
    return head + struct.pack("!H", ethertype) + payload


def ipv4(protocol, payload):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0xb8, 20 + len(payload), 1, 0, 64, protocol, 0,
                       socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2"))
    return head + payload


def ipv6(protocol, payload):
    ends = socket.inet_pton(socket.AF_INET6, "fd00::1") + socket.inet_pton(socket.AF_INET6, "fd00::2")
    return struct.pack("!IHBB", 0x6b812345, len(payload), protocol, 64) + ends + payload


def kinds():
    """Frames of all kinds that have a template or a structure of their own, and some that are not whole."""
    tcp = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, 0x50, 0x12, 100, 0, 0)
    upper = [(6, tcp), (17, struct.pack("!HHHH", 1, 2, 8, 0)), (132, struct.pack("!HHII", 1, 2, 3, 0)), (1, b"\x08\0\0\0\0\0\0\1"),
             (58, b"\x80\0\0\0\0\0\0\1"), (47, b"\0\0\x08\0")]
    for tags in [(), (0xa005,)]:
        for protocol, payload in upper:
            yield frame(0x0800, ipv4(protocol, payload), tags)
            yield frame(0x86dd, ipv6(protocol, payload), tags)
        yield frame(0x0806, bytes(28), tags)
        yield frame(0x8847, struct.pack("!I", 0x12345140) + ipv4(17, upper[1][1]), tags)
        yield frame(0x0800, ipv4(6, tcp)[:30], tags)
        yield frame(0x0800, b"\x45", tags)
        yield frame(0x88b5, bytes(1400), tags)


def test_tshark_finds_nothing_wrong(lab, collect):
    flow, sample = free_port(), free_port()
    # Somebody listens, so that nothing is refused.
    listeners = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for listener, port in zip(listeners, (flow, sample)):
        listener.bind(("127.0.0.1", port))
    capture = collect(Capture, cflow=flow, sflow=sample)
    export(lab, "sflow", "sflow", f'targets="127.0.0.1:{sample}"', "sampling=1", "polling=1", "header=64")
    export(lab, "ipfix", "ipfix", f'targets="127.0.0.1:{flow}"', "sampling=1", "other_config:virtual_obs_id=" + "x" * 300)
    export(lab, "netflow", "netflow", f'targets="127.0.0.1:{flow}"')
    lab.flows("table=0,in_port=1,mpls,actions=push_mpls:0x8847,set_field:77->mpls_label,2", "table=0,priority=1,in_port=1,actions=2",
              "table=0,in_port=2,actions=drop")
    a, _ = lab.hosts
    from lib.net import inside
    with inside(a):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        raw.bind(("eth0", 0))
    count = 0
    for one in kinds():
        raw.send(one)
        count += 1
        if count % 20 == 0:
            # Not more at once than the port's ring takes.
            until(lambda: lab.ovs.counters(1)["rx_pkts"] >= count, what="the frames so far")
    raw.close()
    until(lambda: lab.ovs.counters(1)["rx_pkts"] >= count, what="the frames")
    # Two polls of the counters of each port.
    until(lambda: shown(lab.ovs)[1][f"127.0.0.1:{sample}"][0] >= 3, what="three datagrams")
    for column in ("ipfix", "netflow", "sflow"):
        lab.ovs.vsctl("clear", "bridge", "br0", column)
    capture.stop()
    assert capture.problems() == ""
    versions = Counter(version for [version] in capture.fields("cflow.version", filter="cflow"))
    assert set(versions) == {"5", "10"}
    # tshark says of each set which template it has: none is unknown.
    assert "No template found" not in capture.tshark("-V", "-Y", "cflow.version == 10")
    samples = sum(len(types.split(",")) for [types] in capture.fields("sflow_245.sampletype", filter="sflow"))
    assert samples >= count
    for listener in listeners:
        listener.close()


def test_a_collector_that_is_not_there_costs_nothing_and_gets_templates_when_it_comes(lab, collect):
    lab.ovs.expect("collector .* cannot be reached")
    port = free_port()
    export(lab, "ipfix", "ipfix", f'targets=["127.0.0.1:{port}","203.0.113.9:4739"]', "sampling=1")
    lab.flows(NEIGHBOURS, *FORWARD)
    a, _ = lab.hosts
    assert a.ping("10.0.0.2", count=20) == 20
    target = f"127.0.0.1:{port}"
    until(lambda: shown(lab.ovs)[1][target][2] > 0, what="a datagram that is refused")
    until(lambda: f"collector {target} cannot be reached: connection refused" in lab.ovs.log().lower(), 20,
          "a line in the log")
    collector = collect(Collector, "nfcapd", port)
    before = shown(lab.ovs)[1][target][2]
    assert a.ping("10.0.0.2", count=20) == 20
    until(lambda: f"collector {target} has no more errors" in lab.ovs.log(), 60, "its end in the log")
    assert shown(lab.ovs)[1][target][2] <= before + 1
    # Templates have gone out long ago; now they have come again.
    records = [record for record in collector.records() if record["pr"] == "ICMP"]
    assert total(records, "ipkt") >= 30


def test_settings_change_under_traffic(lab, collect):
    collector = collect(Collector, "sfcapd")
    lab.flows(NEIGHBOURS, *FORWARD)
    a, _ = lab.hosts
    ping = a.pings("10.0.0.2", interval=0.01)
    for rate in (1, 2, 64, 1, 3):
        export(lab, "sflow", "sflow", f'targets="{collector.target}"', f"sampling={rate}")
        export(lab, "ipfix", "ipfix", f'targets="127.0.0.1:{free_port()}"', f"sampling={rate}")
        export(lab, "netflow", "netflow", f'targets="127.0.0.1:{free_port()}"')
        for column in ("sflow", "ipfix", "netflow"):
            lab.ovs.vsctl("clear", "bridge", "br0", column)
    sent, answered = ping.stop()
    assert sent == answered > 10
    until(lambda: "sFlow" not in lab.ovs.appctl("dpctl/dump-flows"), what="flows without samples")
    assert shown(lab.ovs)[0] == ""


def test_targets_that_are_none_are_refused_in_the_log(ovs, net):
    ovs.expect("is no collector")
    ovs.expect("there are no collectors")
    lab = Lab(ovs, net)
    export(lab, "sflow", "sflow", 'targets="nowhere.example:6343"', "sampling=1")
    until(lambda: "is no collector" in ovs.log(), what="the reason")
    assert shown(ovs)[0] == ""
    lab.flows(NEIGHBOURS, *FORWARD)
    assert lab.hosts[0].ping("10.0.0.2") == 3
