"""Mirrors as the database has them: what is copied where, and what is counted."""

from conftest import until
from lib.daemon import dummy_bridge
from lib.pcap import frames

MACS = "ffffffffffff" "020000000001"
BODY = "88b5" + "00" * 46


def mirror(ovs, *settings):
    ovs.vsctl("--", "--id=@out", "get", "port", "out", "--", "--id=@a", "get", "port", "a", "--", "--id=@m", "create", "mirror",
              "name=m", *settings, "--", "set", "bridge", "br0", "mirrors=@m")


def prepare(ovs):
    ovs.start()
    dummy_bridge(ovs, "a", "b", "out")
    ovs.vsctl("set", "open", ".", "other_config:stats-update-interval=5000")
    captures = {name: ovs.dir / f"{name}.pcap" for name in ("a", "b", "out")}
    for name, path in captures.items():
        ovs.vsctl("set", "interface", name, f"options:tx_pcap={path}")
    return lambda name: frames(captures[name])


def statistics(ovs):
    return ovs.vsctl("get", "mirror", "m", "statistics").strip()


def test_what_a_port_receives_is_copied_and_counted(ovs):
    left = prepare(ovs)
    mirror(ovs, "select_src_port=@a", "output_port=@out")
    for n in range(1, 4):
        ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
        until(lambda: len(left("out")) == n, what="the copy")
    assert left("out")[0] == MACS + BODY and len(left("b")) == 3
    # What the others receive is not copied, nor does the port of the mirror do anything else.
    ovs.appctl("netdev-dummy/receive", "b", MACS + BODY)
    until(lambda: len(left("a")) == 1, what="the frame at the other port")
    assert len(left("out")) == 3
    until(lambda: statistics(ovs) == "{tx_bytes=180, tx_packets=3}", seconds=20, what="the statistics")
    # Counting goes on where the mirror is changed.
    ovs.vsctl("set", "mirror", "m", "snaplen=20")
    until(lambda: "trunc(20)" in ovs.appctl("ofproto/trace", "br0", "in_port=a,dl_dst=ff:ff:ff:ff:ff:ff"), what="the change")
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: len(left("out")) == 4, what="the copy that is cut")
    assert left("out")[3] == (MACS + BODY)[:40]
    until(lambda: "tx_packets=4" in statistics(ovs), seconds=20, what="the statistics")


def test_copies_go_into_a_vlan(ovs):
    left = prepare(ovs)
    ovs.vsctl("set", "port", "out", "trunks=99", "--", "set", "bridge", "br0", "flood_vlans=99")
    mirror(ovs, "select_dst_port=@a", "output_vlan=99")
    ovs.appctl("netdev-dummy/receive", "b", MACS + BODY)
    until(lambda: left("out") == [MACS + "81000063" + BODY], what="the copy")
    assert left("a")[0] == MACS + BODY
    until(lambda: "tx_packets=1" in statistics(ovs), seconds=20, what="the statistics")
