"""The VLAN modes of ports, by what leaves them."""

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.pcap import frames

MACS = "ffffffffffff" "020000000001"
BODY = "88b5" + "00" * 46
TAG = lambda vid, tpid="8100": f"{tpid}{vid:04x}"


@pytest.mark.parametrize("mode, sent, left", [
    # What an access port of VLAN 10 and one of VLAN 20 send leaves a port with this configuration.
    (["vlan_mode=access", "tag=10"], 10, ""),
    (["vlan_mode=access", "tag=10"], 20, None),
    (["vlan_mode=trunk", "trunks=10"], 10, TAG(10)),
    (["vlan_mode=trunk", "trunks=10"], 20, None),
    (["trunks=20,30"], 20, TAG(20)),
    (["vlan_mode=native-tagged", "tag=10"], 10, TAG(10)),
    (["vlan_mode=native-tagged", "tag=10"], 20, TAG(20)),
    (["vlan_mode=native-untagged", "tag=10"], 10, ""),
    (["vlan_mode=native-untagged", "tag=10"], 20, TAG(20)),
    (["vlan_mode=native-untagged", "tag=10", "trunks=30"], 20, None),
    (["vlan_mode=dot1q-tunnel", "tag=10"], 10, ""),
    (["vlan_mode=dot1q-tunnel", "tag=10"], 20, None),
])
def test_what_leaves_a_port(ovs, mode, sent, left):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "a10", "a20", "all")
    ovs.vsctl("set", "port", "a10", "tag=10", "--", "set", "port", "a20", "tag=20")
    capture, every = ovs.dir / "out.pcap", ovs.dir / "all.pcap"
    ovs.vsctl("add-port", "br0", "out", *mode, "--", "set", "interface", "out", "type=dummy",
              f"options:tx_pcap={capture}", "--", "set", "interface", "all", f"options:tx_pcap={every}")
    ovs.appctl("netdev-dummy/receive", f"a{sent}", MACS + BODY)
    until(lambda: frames(every) == [MACS + TAG(sent) + BODY], what="the frame at the port that carries all")
    assert frames(capture) == ([] if left is None else [MACS + left + BODY])


@pytest.mark.parametrize("mode, tag, to", [
    # A frame with this tag that comes in at such a port is in this VLAN.
    (["vlan_mode=access", "tag=10"], "", 10),
    (["vlan_mode=access", "tag=10"], TAG(10), None),
    (["vlan_mode=trunk", "trunks=10"], TAG(10), 10),
    (["vlan_mode=trunk", "trunks=10"], TAG(20), None),
    (["vlan_mode=native-tagged", "tag=10"], "", 10),
    (["vlan_mode=native-untagged", "tag=20"], "", 20),
    (["vlan_mode=native-untagged", "tag=20"], TAG(10), 10),
])
def test_what_comes_in_at_a_port(ovs, mode, tag, to):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "a10", "a20")
    captures = {vid: ovs.dir / f"{vid}.pcap" for vid in (10, 20)}
    for vid, path in captures.items():
        ovs.vsctl("set", "port", f"a{vid}", f"tag={vid}", "--", "set", "interface", f"a{vid}",
                  f"options:tx_pcap={path}")
    ovs.vsctl("add-port", "br0", "in", *mode, "--", "set", "interface", "in", "type=dummy")
    ovs.appctl("netdev-dummy/receive", "in", MACS + tag + BODY)
    for vid, path in captures.items():
        assert frames(path) == ([MACS + BODY] if vid == to else [])


@pytest.mark.parametrize("limit", ["1", "2"])
@pytest.mark.parametrize("tpid, ethertype", [("88a8", None), ("8100", "802.1q")])
@pytest.mark.parametrize("tags", ["", TAG(5), TAG(0x6005) + TAG(7), TAG(5) + TAG(7) + TAG(0x2008)])
def test_a_tunnel_loses_no_tag(ovs, limit, tpid, ethertype, tags):  # noqa: F811
    """The service tag goes around all tags that a frame has, however many are matched, and comes off again."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "in", "trunk", "out")
    ovs.vsctl("set", "Open_vSwitch", ".", f"other_config:vlan-limit={limit}")
    captures = {name: ovs.dir / f"{name}.pcap" for name in ("in", "trunk", "out")}
    for name, path in captures.items():
        ovs.vsctl("set", "interface", name, f"options:tx_pcap={path}")
    for name in ("in", "out"):
        ovs.vsctl("set", "port", name, "vlan_mode=dot1q-tunnel", "tag=100")
        if ethertype:
            ovs.vsctl("set", "port", name, f"other_config:qinq-ethtype={ethertype}")
    service = TAG(100, tpid)
    for _ in range(2):
        ovs.appctl("netdev-dummy/receive", "in", MACS + tags + BODY)
    until(lambda: len(frames(captures["out"])) == 2, what="the frame at the other tunnel port")
    assert frames(captures["trunk"]) == [MACS + service + tags + BODY] * 2
    assert frames(captures["out"]) == [MACS + tags + BODY] * 2
    ovs.appctl("netdev-dummy/receive", "trunk", MACS + service + tags + BODY)
    until(lambda: len(frames(captures["out"])) == 3, what="the frame without its service tag")
    assert frames(captures["in"]) == [MACS + tags + BODY]
    assert frames(captures["out"])[-1] == MACS + tags + BODY


def test_protected_ports_do_not_reach_each_other(ovs):
    ovs.start()
    dummy_bridge(ovs, "a", "b", "open")
    captures = {name: ovs.dir / f"{name}.pcap" for name in ("a", "b", "open")}
    for name, path in captures.items():
        ovs.vsctl("set", "interface", name, f"options:tx_pcap={path}")
    ovs.vsctl("set", "port", "a", "protected=true", "--", "set", "port", "b", "protected=true")
    left = lambda: {name: len(frames(path)) for name, path in captures.items()}

    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: left()["open"] == 1, what="the frame at the port that is not protected")
    assert left() == {"a": 0, "b": 0, "open": 1}
    ovs.appctl("netdev-dummy/receive", "open", MACS + BODY)
    until(lambda: left() == {"a": 1, "b": 1, "open": 1}, what="the frame at both protected ports")

    # Also where a rule says so, and then for a reason.
    ovs.ofctl("add-flow", "br0", "in_port=a,actions=output:b")
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: "protected_port" in ovs.appctl("weir/drops"), what="the drop")
    trace = ovs.appctl("ofproto/trace", "br0", "in_port=a")
    assert "Flow is between protected ports, skipping output." in trace
    ovs.vsctl("set", "port", "b", "protected=false")
    until(lambda: "skipping output" not in ovs.appctl("ofproto/trace", "br0", "in_port=a"), what="the change")
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: left()["b"] == 2, what="the frame at a port that is protected no longer")


def test_nothing_is_learnt_in_a_vlan_that_is_flooded(ovs):
    ovs.start()
    dummy_bridge(ovs, "a", "b", "c")
    captures = {name: ovs.dir / f"{name}.pcap" for name in ("a", "b", "c")}
    for name, path in captures.items():
        ovs.vsctl("set", "port", name, "tag=10", "--", "set", "interface", name, f"options:tx_pcap={path}")
    left = lambda: [len(frames(captures[name])) for name in "abc"]
    known = lambda: [line.split()[:2] for line in ovs.appctl("fdb/show", "br0").splitlines()[1:]]
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: left() == [0, 1, 1], what="the flood")
    ovs.appctl("netdev-dummy/receive", "b", "020000000001" "020000000002" + BODY)
    until(lambda: left() == [1, 1, 1], what="the answer")
    assert len(known()) == 2

    ovs.vsctl("set", "bridge", "br0", "flood_vlans=10,20")
    until(lambda: known() == [], what="the addresses to be forgotten")
    for _ in range(2):
        ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    ovs.appctl("netdev-dummy/receive", "b", "020000000001" "020000000002" + BODY)
    until(lambda: left() == [2, 3, 4], what="the floods")
    assert known() == []
    # Another VLAN learns as before.
    ovs.vsctl("set", "port", "a", "tag=11")
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: known() == [["1", "11"]], what="the address in a VLAN that learns")
    ovs.vsctl("clear", "bridge", "br0", "flood_vlans", "--", "set", "port", "a", "tag=10")
    ovs.appctl("netdev-dummy/receive", "a", MACS + BODY)
    until(lambda: ["1", "10"] in known(), what="the address in the VLAN that learns again")
