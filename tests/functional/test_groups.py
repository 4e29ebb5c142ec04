"""Select groups, as ovs-ofctl makes them: the datapath hashes, and few flows serve all connections."""

import re

import pytest
from lib.daemon import dummy_bridge


@pytest.fixture
def switch(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2", "p3")
    return ovs


def test_the_datapath_hashes(switch):
    switch.ofctl("-O", "OpenFlow13", "add-group", "br0", "group_id=7,type=select,bucket=weight:1,output:2,"
                 "bucket=weight:3,output:3")
    switch.ofctl("-O", "OpenFlow13", "del-flows", "br0")
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "ip,actions=group:7")
    flow = "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),ipv4(src=10.0.0.{},dst=10.0.1.1,proto=6),tcp(src=1)"
    for n in range(64):
        switch.appctl("netdev-dummy/receive", "p1", flow.format(n))
    flows = switch.appctl("dpctl/dump-flows").splitlines()[1:]
    assert len([flow for flow in flows if flow.endswith("actions:hash(sym_l4(0)),recirc(0x1)")]) == 1, flows
    places = [flow for flow in flows if re.match(r"recirc_id\(0x1\),dp_hash\(0x[0-9a-f]+/0xf\)|"
                                                 r"recirc_id\(0x1\),dp_hash\(0/0xf\)", flow)]
    assert len(places) == len(flows) - 1 <= 16, flows
    stats = switch.ofctl("-O", "OpenFlow13", "dump-group-stats", "br0", "group_id=7")
    counts = [int(n) for n in re.findall(r"bucket\d:packet_count=(\d+)", stats)]
    assert sum(counts) == 64 and 0 < counts[0] < counts[1], stats
