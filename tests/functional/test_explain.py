"""`weir explain`: what decides what becomes of a packet, and what would decide otherwise."""

import subprocess

import pytest
from conftest import WEIR, until
from lib.daemon import config

#: A datagram 10.0.0.1:7 > 10.0.0.9:53 in hexadecimal.
UDP = ("020000000002020000000001080045000020000040004011265f0a0000010a000009"
       "00070035000c0000deadbeef")


@pytest.fixture
def switch(weir):
    """Three dummy ports, p1 to p3, of which p3 is an access port of VLAN 20."""
    return weir(config([("p1", "dummy", "ofport = 1"), ("p2", "dummy", "ofport = 2"), ("p3", "dummy", "ofport = 3\ntag = 20")],
                       more='fail_mode = "secure"'))


def flows(w, *texts):
    for text in texts:
        w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", text, version=13)


def receive(w, port="p1", source=1, frame=None):
    w.appctl("netdev-dummy/receive", port, frame or f"in_port({port[1:]}),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),"
             f"eth_type(0x0800),ipv4(src=10.0.0.{source},dst=10.0.0.9,proto=17,tos=0,ttl=64,frag=no),udp(src=7,dst=53)")


def refusal(w, *args):
    """What `weir explain` says where it has to fail."""
    result = w.cli("explain", *args, check=False)
    assert result.returncode == 1 and not result.stdout, result
    return result.stderr


def decisions(passed):
    """Table, priority and cookie of each rule that decides, and the cookie of the one below it."""
    steps = [step for step in passed["steps"] if "rule" in step]
    return [(s["rule"]["table"], s["rule"]["priority"], s["rule"]["cookie"], s["next"]["cookie"] if "next" in s else None)
            for s in steps]


def test_each_table_tells_its_rule_and_the_one_below(switch):
    w = switch
    flows(w, "cookie=0x11,priority=100,in_port=1,actions=resubmit(,1)", "cookie=0x12,priority=5,actions=drop",
          "cookie=0x13,table=1,priority=50,udp,actions=dec_ttl,output:2", "cookie=0x14,table=1,priority=40,ip,actions=output:3")
    out = w.json("explain", "br0", "in_port=p1,udp,nw_src=10.0.0.1,nw_ttl=64")
    (only,) = out["passes"]
    assert decisions(only) == [(0, 100, 0x11, 0x12), (1, 50, 0x13, 0x14)]
    assert out["port"] | {"dp_port": 0} == {"name": "p1", "ofport": 1, "dp_port": 0, "vlan_mode": "trunk",
                                            "mode": "a trunk port of all VLANs", "is_up": True}
    assert only["outcome"]["outputs"] == [{"port": "p2", "rewrites": "set(ipv4(ttl=63))"}]
    assert "served_by" not in only
    text = w.cli("explain", "br0", "in_port=p1,udp,nw_src=10.0.0.1,nw_ttl=64").stdout
    for line in ("Port p1 (OpenFlow port 1, datapath port ", "table 0 finds the rule priority=100,cookie=0x11,in_port=p1",
                 "(without it: priority=40,cookie=0x14,ip actions=output:p3)", "To p2: after set(ipv4(ttl=63)).",
                 "Outcome: forwarded to p2", "Served by: no datapath flow now"):
        assert line in text, text


def test_the_flow_and_the_cache_that_serve_it(switch):
    w = switch
    flows(w, "cookie=0x11,priority=9,udp,nw_src=10.0.0.1,actions=output:2")
    for _ in range(5):
        receive(w)
    until(lambda: w.counters("p2")["tx_pkts"] == 5)
    served = w.json("explain", "--port", "p1", UDP)["passes"][0]
    flow = served["served_by"]
    assert flow["is_current"] and flow["packets"] == 4 and flow["actions"] == "p2", flow
    assert flow["bytes"] == 4 * (flow["bytes"] // 4) and flow["age_s"] >= flow["idle_s"] >= 0
    # The caches take one in some of the flows that the megaflow table finds.
    (tier,) = served["tiers"]
    assert tier["tier"] in ("tier 1 (header cache)", "tier 2 (megaflow)"), tier
    assert flow["ufid"] in w.appctl("dpctl/dump-flows", "-m")
    # Looking has counted nothing, and a packet of another source is served by nothing.
    assert w.json("explain", "--port", "p1", UDP)["passes"][0]["served_by"]["packets"] == 4
    assert "served_by" not in w.json("explain", "br0", "in_port=p1,udp,nw_src=10.0.0.2")["passes"][0]


def test_what_it_says_is_what_happens(switch):
    """The outcome of each packet beside what comes out for it."""
    w = switch
    flows(w, "priority=9,udp,nw_src=10.0.0.1,actions=output:2,output:3", "priority=9,udp,nw_src=10.0.0.2,actions=in_port",
          "priority=9,udp,nw_src=10.0.0.3,actions=drop", "priority=9,udp,nw_src=10.0.0.4,actions=mod_vlan_vid:20,NORMAL")
    for source in range(1, 6):
        flow = f"in_port=p1,udp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.{source},nw_dst=10.0.0.9"
        said = w.json("explain", "br0", flow)["passes"][0]["outcome"]
        before = {port: w.counters(port)["tx_pkts"] for port in ("p1", "p2", "p3")}
        dropped = sum(row["packets"] for row in w.json("drops")["drops"])
        receive(w, source=source)

        def happened():
            sent = [port for port, count in before.items() if w.counters(port)["tx_pkts"] > count]
            drops = sum(row["packets"] for row in w.json("drops")["drops"]) > dropped
            return sent, drops

        expected = (sorted(output["port"] for output in said["outputs"]), "dropped" in said)
        assert expected[0] or expected[1]
        until(lambda: happened() == expected, what=f"{expected} of source {source} instead of {happened()}")


def test_vlan_modes_groups_and_meters_are_named(switch):
    w = switch
    mgmt = f"unix:{w.dir}/br0.mgmt"
    w.ofctl("add-meter", mgmt, "meter=7,pktps,burst,bands=type=drop,rate=1,burst_size=1", version=13)
    w.ofctl("add-group", mgmt, "group_id=4,type=all,bucket=output:2,bucket=output:3", version=13)
    flows(w, "priority=9,udp,actions=meter:7,group:4", "priority=8,actions=NORMAL")
    steps = w.json("explain", "br0", "in_port=p1,udp")["passes"][0]["steps"]
    kinds = [step["kind"] for step in steps]
    assert kinds.count("bucket") == 2 and kinds.count("meter") == 1 and kinds.count("group") == 1, steps
    said = w.cli("explain", "br0", "in_port=p3,icmp,dl_dst=02:00:00:00:00:09").stdout
    assert "port p3 is an access port of VLAN 20: the packet without a VLAN tag belongs to VLAN 20" in said, said
    assert "port p2, a trunk port of all VLANs, sends the packet of VLAN 20 with VLAN tag 20" in said, said
    refused = w.json("explain", "br0", "in_port=p3,icmp,dl_vlan=5,dl_dst=02:00:00:00:00:09")["passes"][0]
    assert refused["outcome"]["dropped"]["reason"] == "vlan_not_allowed", refused
    assert refused["dropped_by"]["flow"]["flow"]["priority"] == 8
    assert w.appctl("fdb/show", "br0").count("\n") == 1, "nothing is learnt"


def test_packets_that_a_tap_has_written(switch, tmp_path):
    w, file = switch, tmp_path / "seen.pcapng"
    flows(w, "cookie=0x21,priority=9,udp,nw_src=10.0.0.1,actions=output:2", "cookie=0x22,priority=8,udp,actions=drop")
    tap = subprocess.Popen([WEIR, "tap", "-w", file, "-c", "3"], env=w.env, stderr=subprocess.PIPE, text=True)
    assert "looking at packets" in tap.stderr.readline()
    receive(w, source=1)
    receive(w, source=2)
    assert tap.wait(20) == 0
    tap.stderr.close()
    first = w.json("explain", file)
    assert first["port"]["name"] == "p1" and decisions(first["passes"][0]) == [(0, 9, 0x21, 0x22)]
    third = w.json("explain", f"{file}:3")
    assert decisions(third["passes"][0]) == [(0, 8, 0x22, None)]
    assert third["passes"][0]["outcome"]["dropped"]["reason"] == "rule"
    assert "packet 2 was on its way out" in refusal(w, f"{file}:2")
    assert "there is no packet 4; the file has 3" in refusal(w, f"{file}:4")


def test_connections_come_back(switch):
    w = switch
    flows(w, "priority=9,ip,ct_state=-trk,actions=ct(table=1)", "table=1,priority=7,ip,ct_state=+trk+new,actions=drop",
          "table=1,priority=8,ip,ct_state=+trk+est,actions=output:2")
    new = w.json("explain", "br0", "in_port=p1,udp")["passes"]
    established = w.json("explain", "br0", "in_port=p1,udp", "--ct-next", "trk,est")["passes"]
    assert [len(passes) for passes in (new, established)] == [2, 2]
    assert new[1]["outcome"]["dropped"]["reason"] == "rule"
    assert [output["port"] for output in established[1]["outcome"]["outputs"]] == ["p2"]
    assert "est" in established[1]["heading"]


@pytest.mark.parametrize("args, error", [
    (["br9", "in_port=1"], "br9: unknown bridge"),
    (["--port", "p9", UDP], "p9: no port has this name"),
    ([UDP], "--port"),
    (["br0", "nonsense"], "Bad openflow flow syntax"),
    (["br0", "nw_src=10.0.0.0/8"], "has a mask"),
    (["br0", "/etc/passwd"], "not a capture file"),
    (["br0", "in_port=1", "--ct-next", "x"], "unknown connection tracking state flag"),
])
def test_mistakes_are_explained(switch, args, error):
    assert error in refusal(switch, *args)
