"""ofproto/trace through Debian's ovs-appctl, and `weir trace`."""

import pytest

CONFIG = """
[[bridge]]
name = "br0"
local = false
fail_mode = "secure"
[[bridge.port]]
name = "p1"
type = "dummy"
[[bridge.port]]
name = "p2"
type = "dummy"
[[bridge.port]]
name = "p3"
type = "dummy"
"""
# Ethernet, 10.0.0.1 -> 10.0.0.2, UDP 1000 -> 53.
UDP = ("020000000002020000000001080045000020000040004011266b0a0000010a000002"
       "03e80035000c0000deadbeef")


@pytest.fixture
def switch(weir):
    switch = weir(CONFIG)
    for flow in ("priority=100,in_port=1,actions=resubmit(,1)", "table=1,cookie=0x5,udp,actions=dec_ttl,output:2",
                 "in_port=2,actions=NORMAL"):
        switch.ofctl("add-flow", "br0", flow)
    return switch


def test_layout(switch):
    out = switch.appctl("ofproto/trace", "br0", "in_port=1,udp,nw_ttl=9")
    assert out.splitlines()[1:8] == [
        "", 'bridge("br0")', "-------------", " 0. in_port=1, priority 100", "    resubmit(,1)",
        " 1. udp, priority 32768, cookie 0x5", "    dec_ttl"], out
    lines = out.splitlines()
    assert lines[0].startswith("Flow: udp,in_port=1,vlan_tci=0x0000,") and "nw_ttl=9" in lines[0]
    assert lines[-3].startswith("Final flow: udp,in_port=1,") and "nw_ttl=8" in lines[-3]
    assert lines[-2] == "Megaflow: recirc_id=0,eth,udp,in_port=1,nw_ttl=9,nw_frag=no"
    assert lines[-1].startswith("Datapath actions: set(ipv4(ttl=8)),")


def test_forms(switch):
    named = switch.appctl("ofproto/trace", "br0", "in_port=1", UDP, "--names").splitlines()
    assert named[0].startswith("Flow: udp,in_port=p1,") and "nw_src=10.0.0.1" in named[0]
    assert named[-1] == "Datapath actions: set(ipv4(ttl=63)),p2"
    same = switch.appctl("ofproto/trace", "netdev@ovs-netdev", "in_port(p1)", UDP, "--names").splitlines()
    assert same == named
    assert switch.appctl("ofproto/trace", "in_port(p1)", UDP, "--names").splitlines() == named
    for args, error in [(["br0", "in_port(p1)"], "Cannot find the datapath"), (["br9", "in_port=1"], "unknown bridge"),
                        (["in_port=1"], "or the bridge name was omitted"), (["in_port(4242)"], "no OpenFlow port"),
                        (["br0", "in_port=1", "zz"], "Trailing garbage in packet data")]:
        with pytest.raises(AssertionError, match=error):
            switch.appctl("ofproto/trace", *args)


def test_a_datapath_flow_is_traced_with_the_values_that_it_shows(switch):
    """As they stand in a dump, with masks: it is a packet with these values that is meant."""
    flow = "in_port(p1),eth(),eth_type(0x0800),ipv4(src=10.1.2.3/255.0.0.0,proto=17,ttl=9/0,frag=no)"
    lines = switch.appctl("ofproto/trace", flow).splitlines()
    assert "nw_src=10.1.2.3," in lines[0] and "nw_ttl=9," in lines[0], lines
    assert lines[-1].startswith("Datapath actions: set(ipv4(ttl=8)),"), lines


def test_effects(switch):
    flow = "in_port=2,dl_src=50:54:00:00:00:07,dl_dst=ff:ff:ff:ff:ff:ff"
    assert "no learned MAC" in switch.appctl("ofproto/trace", "br0", flow)
    assert "50:54" not in switch.appctl("fdb/show", "br0")
    out = switch.appctl("ofproto/trace", "br0", flow, "-generate")
    assert " -> learned that 50:54:00:00:00:07 is on port p2 in VLAN 0" in out
    assert "50:54:00:00:00:07" in switch.appctl("fdb/show", "br0")


def test_weir_trace(switch):
    flow = "in_port=1,udp,nw_ttl=9"
    assert switch.cli("trace", "br0", flow).stdout == switch.appctl("ofproto/trace", "br0", flow)
    data = switch.json("trace", "br0", flow)
    (bridge,) = data["steps"]
    assert bridge["kind"] == "bridge" and bridge["steps"][0]["text"] == " 0. in_port=1, priority 100"
    assert data["megaflow"].startswith("recirc_id=0,eth,udp")
