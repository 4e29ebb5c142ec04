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


@pytest.mark.parametrize("kind", ["group", "meter"])
def test_many_are_deleted_with_the_flows_that_use_them_before_the_barrier_reply(switch, tmp_path, kind):
    shared = {"group": "group_id={},type=indirect,bucket=output:2", "meter": "meter={},pktps,band=type=drop,rate=9"}[kind]
    action = {"group": "actions=group:{}", "meter": "actions=meter:{},output:2"}[kind]
    ofctl = lambda *words: switch.ofctl("-O", "OpenFlow15", *words)
    ofctl("del-flows", "br0")
    with open(tmp_path / "messages", "w", encoding="ascii") as file:
        file.writelines(f"group {shared.format(n)}\n" for n in range(1, 301) if kind == "group")
        file.writelines(f"flow add priority=9,reg0={n},{action.format(n % 300 + 1)}\n" for n in range(3000))
    if kind == "meter":
        for n in range(1, 301):
            ofctl("add-meter", "br0", shared.format(n))
    ofctl("bundle", "br0", str(tmp_path / "messages"))
    ofctl("add-flow", "br0", "priority=1,actions=output:3")
    assert "flow_count=3001" in ofctl("dump-aggregate", "br0")
    switch.appctl("netdev-dummy/receive", "p1", "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)")
    # One, with ten flows, and then all.
    ofctl(*{"group": ["del-groups", "br0", "group_id=7"], "meter": ["del-meter", "br0", "meter=7"]}[kind])
    assert "flow_count=2991" in ofctl("dump-aggregate", "br0")
    ofctl(f"del-{kind}s", "br0")
    assert "flow_count=1" in ofctl("dump-aggregate", "br0")
    left = ofctl({"group": "dump-groups", "meter": "dump-meters"}[kind], "br0")
    assert "=8" not in left and "=300" not in left, left
