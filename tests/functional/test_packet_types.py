"""Packets of other types than Ethernet, through Debian's ovs-ofctl: NSH and MPLS before whole frames, and off again."""

import pytest
from lib.wait import until

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
    return weir(CONFIG)


def sent_bytes(switch, port):
    line = switch.ofctl("dump-ports", "br0", port).splitlines()[-1]
    return int(line.split("bytes=")[1].split(",")[0])


def add(switch, *flows):
    for flow in flows:
        switch.ofctl("add-flow", "br0", flow, version="13")


def test_nsh(switch):
    add(switch, "in_port=1,ip,actions=encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,encap(ethernet),"
        "set_field:02:00:00:00:00:07->eth_dst,output:2",
        "in_port=2,dl_type=0x894f,nsh_spi=0x1234,actions=decap(),decap(),output:3")
    assert "encap(nsh(md_type=1)),set_field:0x1234->nsh_spi" in switch.ofctl("dump-flows", "br0", version="13")
    for _ in range(3):
        switch.appctl("netdev-dummy/receive", "p1", UDP)
    # The frame, 24 bytes of NSH, and Ethernet.
    assert sent_bytes(switch, "p2") == 3 * (len(UDP) // 2 + 24 + 14)
    nsh = "02000000000702000000000189" + "4f" + "0fc60103001234ff" + "00" * 16
    for _ in range(3):
        switch.appctl("netdev-dummy/receive", "p2", nsh + UDP)
    assert sent_bytes(switch, "p3") == 3 * (len(UDP) // 2)
    flows = switch.appctl("dpctl/dump-flows")
    assert "push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x1234,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0),push_eth(" in flows
    assert "pop_eth,pop_nsh(),recirc(" in flows


def test_mpls(switch):
    add(switch, "in_port=1,actions=encap(mpls),set_field:5->mpls_label,encap(ethernet),output:2",
        "in_port=2,mpls,mpls_label=5,actions=decap(),decap(packet_type(ns=0,type=0)),output:3")
    switch.appctl("netdev-dummy/receive", "p1", UDP)
    assert sent_bytes(switch, "p2") == len(UDP) // 2 + 4 + 14
    switch.appctl("netdev-dummy/receive", "p2", "02000000000702000000000188470000" + "5140" + UDP)
    assert sent_bytes(switch, "p3") == len(UDP) // 2
    assert "add_mpls(label=5,tc=0,ttl=64,bos=1,eth_type=0x8847)" in switch.appctl("dpctl/dump-flows")


def test_labels_of_packets_that_may_have_none(switch):
    """OpenFlow 1.0 lets a flow pop labels without a match that says that there are any; later versions do not."""
    switch.ofctl("add-flow", "br0", "in_port=1,actions=pop_mpls:0x0800,output:2", version="10")
    switch.appctl("netdev-dummy/receive", "p1", UDP)
    assert sent_bytes(switch, "p2") == len(UDP) // 2, "what has no label stays as it is"
    switch.appctl("netdev-dummy/receive", "p1", UDP[:24] + "8847" + "00005140" + UDP[28:])
    assert sent_bytes(switch, "p2") == 2 * (len(UDP) // 2)


def test_a_packet_out_without_ethernet(switch):
    add(switch, "packet_type=(1,0x800),nw_dst=10.0.0.2,actions=encap(ethernet),output:2", "ip,actions=output:3")
    packet = f"in_port=controller packet={UDP[28:]} packet_type(1,0x800) actions=table"
    switch.ofctl("packet-out", "br0", packet, version="15")
    until(lambda: sent_bytes(switch, "p2") == len(UDP) // 2, what="the packet")
    assert sent_bytes(switch, "p3") == 0
