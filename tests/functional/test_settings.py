"""Settings of the database that have no other test of their own, each by what it changes."""

import re

from conftest import until
from lib.daemon import dummy_bridge
from lib.net import run


def frame(n):
    """A broadcast from an address of its own."""
    return f"ffffffffffff0200000000{n:02x}0800" + "00" * 46


def learnt(ovs):  # noqa: F811
    return re.findall(r"02:00:00:00:00:\w\w", ovs.appctl("fdb/show", "br0"))


def test_mtu_request(ovs):  # noqa: F811
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "Interface", "p1", "mtu_request=2000")
    assert ovs.get("Interface", "p1", "mtu") == "2000"
    ovs.vsctl("set", "Interface", "br0", "mtu_request=1300")
    assert ovs.get("Interface", "br0", "mtu") == "1300"
    # What is longer than the MTU of the port that it would leave by is dropped there.
    ovs.ofctl("add-flow", "br0", "in_port=p1,actions=p2")
    long = "0200000000020200000000010800" + "00" * 1700
    ovs.appctl("netdev-dummy/receive", "p1", long)
    sent = lambda: int(re.search(r"tx pkts=(\d+)", ovs.ofctl("dump-ports", "br0", "p2"))[1])
    assert sent() == 0
    ovs.vsctl("set", "Interface", "p2", "mtu_request=1800")
    ovs.appctl("netdev-dummy/receive", "p1", long)
    until(lambda: sent() == 1, what="a frame that fits")


def test_mac_table_size(ovs):  # noqa: F811
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    for n in range(1, 21):
        ovs.appctl("netdev-dummy/receive", "p1", frame(n))
    assert len(set(learnt(ovs))) == 20
    ovs.vsctl("set", "bridge", "br0", "other_config:mac-table-size=10")
    for n in range(21, 26):
        ovs.appctl("netdev-dummy/receive", "p1", frame(n))
    assert len(set(learnt(ovs))) == 10 and "02:00:00:00:00:19" in learnt(ovs)


def test_vlan_limit(ovs):  # noqa: F811
    """With a limit of one, the second tag is payload."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    tagged_twice = "ffffffffffff020000000001" + "81000064" + "810000c8" + "0800" + "00" * 46
    ovs.ofctl("add-flow", "br0", "table=0,priority=9,in_port=p1,dl_type=0x8100,actions=strip_vlan,p2")

    def matched():
        ovs.appctl("netdev-dummy/receive", "p1", tagged_twice)
        return int(re.search(r"n_packets=(\d+).*priority=9", ovs.ofctl("dump-flows", "br0"))[1])

    def traced():
        flow = "in_port(1),eth_type(0x8100),vlan(vid=100,pcp=0),encap(eth_type(0x8100),vlan(vid=200,pcp=0)," \
               "encap(eth_type(0x0800),ipv4(frag=no)))"
        return "priority 9" in ovs.appctl("ofproto/trace", "ovs-dummy", flow)

    assert matched() == 1 and traced(), "one is the default, as in OVS"
    assert "vlan(vid=100,pcp=0)" in ovs.appctl("dpctl/dump-flows")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:vlan-limit=2")
    assert matched() == 1 and not traced(), "two tags are parsed"
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:vlan-limit=1")
    assert matched() == 2 and traced()


def test_workers_are_shown_and_queues_spread_anew(ovs):  # noqa: F811
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "options:n_rxq=2")
    queues = lambda: sorted(re.findall(r"port: p1\s+queue-id:\s+(\d)", ovs.appctl("dpif-netdev/pmd-rxq-show")))
    until(lambda: queues() == ["0", "1"], what="two queues")
    ovs.appctl("dpif-netdev/pmd-rxq-rebalance")
    assert queues() == ["0", "1"], "none is lost"
    for n in range(1, 4):
        ovs.appctl("netdev-dummy/receive", "p1", frame(n))
    perf = ovs.appctl("dpif-netdev/pmd-perf-show")
    assert re.search(r"pmd thread numa_id \d+ core_id \d+", perf), perf
    assert sum(map(int, re.findall(r"Rx packets:\s+(\d+)", perf))) >= 3, perf


def test_options_of_the_kernel_datapath_are_taken(ovs):  # noqa: F811
    ovs.start("--enable-dummy", "--disable-system", "--disable-system-route", "--no-self-confinement")
    dummy_bridge(ovs, "p1")
    assert "p1" in run("ovs-ofctl", "show", "br0", env=ovs.env).stdout
