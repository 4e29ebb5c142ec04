"""Interfaces that get other options: the port stays what it was, for controllers and for what was learnt there."""

import re

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.pcap import frames

A, B = "020000000001", "020000000002"
BODY = "88b5" + "00" * 46


def receive(ovs, port, dst, src):
    ovs.appctl("netdev-dummy/receive", port, dst + src + BODY)


def learnt(ovs):
    """Port and address of all that was learnt."""
    return sorted(re.findall(r"^ +(\d+) +\d+ +(\S+) +\d+$", ovs.appctl("fdb/show", "br0"), re.M))


def colons(mac):
    return ":".join(re.findall("..", mac))


@pytest.fixture
def bridge(ovs):
    """A bridge of three ports in poll mode, two of which have received a frame."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2", "p3")
    for name in ("p1", "p2", "p3"):
        ovs.vsctl("set", "interface", name, "type=dummy-pmd")
    receive(ovs, "p1", B, A)
    receive(ovs, "p2", A, B)
    assert learnt(ovs) == both(ovs)
    return ovs


def number(ovs, name):
    return ovs.vsctl("get", "interface", name, "ofport").strip()


def both(ovs):
    return sorted([(number(ovs, "p1"), colons(A)), (number(ovs, "p2"), colons(B))])


def queues(ovs, name):
    return len(re.findall(rf"port: {name} +queue-id:", ovs.appctl("dpif-netdev/pmd-rxq-show")))


def test_what_was_learnt_stays(bridge):
    before = both(bridge)
    capture = bridge.dir / "p2.pcap"
    bridge.vsctl("set", "interface", "p1", "options:n_rxq=3", "--", "set", "interface", "p2", "options:n_rxq=2",
                 f"options:tx_pcap={capture}")
    assert (queues(bridge, "p1"), queues(bridge, "p2")) == (3, 2)
    assert learnt(bridge) == before == both(bridge)
    receive(bridge, "p1", B, A)
    assert frames(capture) == [B + A + BODY], "sent to the one port, by the one device"
    receive(bridge, "p3", A, "020000000003")
    assert len(frames(capture)) == 1


def test_packets_come_in_where_they_did(bridge):
    """The devices of two ports are closed and opened at once: neither gets the number of the other."""
    one, two = number(bridge, "p1"), number(bridge, "p2")
    bridge.ofctl("add-flow", "br0", f"priority=9,in_port={one},actions=drop")
    bridge.ofctl("add-flow", "br0", f"priority=8,in_port={two},actions=drop")
    for n in range(2, 6):
        bridge.vsctl("set", "interface", "p2", f"options:n_rxq={n}", "--", "set", "interface", "p1", f"options:n_rxq={n + 1}")
        receive(bridge, "p1", B, A)
        receive(bridge, "p2", A, B)
        receive(bridge, "p2", A, B)
        shown = bridge.ofctl("dump-flows", "br0")
        counted = re.findall(r"n_packets=(\d+),.*priority=([98])", shown)
        assert set(counted) == {(str(n - 1), "9"), (str(2 * (n - 1)), "8")}, shown


def test_a_port_that_is_disabled_stays_so(bridge):
    bridge.ofctl("mod-port", "br0", "p1", "down")
    bridge.vsctl("set", "interface", "p1", "options:n_rxq=3")
    assert re.search(r"\(p1\).*\n +config: +PORT_DOWN", bridge.ofctl("dump-ports-desc", "br0"))
    bridge.ofctl("mod-port", "br0", "p1", "up")
    receive(bridge, "p1", B, A)
    assert re.search(r"\(p1\).*\n +config: +0", bridge.ofctl("dump-ports-desc", "br0"))


def test_a_device_that_cannot_be_opened_again_leaves_the_port(bridge):
    bridge.expect("nowhere")
    before, one = both(bridge), number(bridge, "p1")
    bridge.vsctl("set", "interface", "p1", "options:n_rxq=2", "options:tx_pcap=/nowhere/p1.pcap")
    assert "nowhere" in bridge.vsctl("get", "interface", "p1", "error")
    assert learnt(bridge) == before
    # Other changes are made meanwhile, and do not help.
    bridge.vsctl("set", "interface", "p2", "options:n_rxq=2", "--", "add-port", "br0", "p4", "--", "set", "interface", "p4", "type=dummy")
    assert "nowhere" in bridge.vsctl("get", "interface", "p1", "error") and number(bridge, "p4") != one
    receive(bridge, "p2", A, B)
    bridge.vsctl("clear", "interface", "p1", "options")
    assert (bridge.vsctl("get", "interface", "p1", "error").strip(), number(bridge, "p1")) == ("[]", one)
    assert learnt(bridge) == before
    receive(bridge, "p1", B, A)
    assert bridge.ofctl("dump-ports", "br0", "p1").count("rx pkts=1,") == 1


def test_options_that_a_device_cannot_take_as_it_is_leave_it_alone(bridge):
    bridge.expect("nowhere")
    before = both(bridge)
    bridge.vsctl("set", "interface", "p1", "options:tx_pcap=/nowhere/p1.pcap")
    assert "nowhere" in bridge.vsctl("get", "interface", "p1", "error") and learnt(bridge) == before
    receive(bridge, "p1", B, A)
    assert bridge.ofctl("dump-ports", "br0", "p1").count("rx pkts=2,") == 1, "still the same device"
    bridge.vsctl("clear", "interface", "p1", "options")
    assert bridge.vsctl("get", "interface", "p1", "error").strip() == "[]"


def test_another_setting_that_is_wrong_does_not_close_the_device_again_and_again(bridge):
    bridge.expect("ingress|rule 1")
    before = both(bridge)
    bridge.vsctl("set", "interface", "p1", "options:n_rxq=2", 'other_config:ingress-filter="drop nonsense"')
    assert bridge.vsctl("get", "interface", "p1", "error").strip() != "[]"
    assert queues(bridge, "p1") == 2 and learnt(bridge) == before
    receive(bridge, "p1", B, A)
    bridge.vsctl("add-port", "br0", "p4", "--", "set", "interface", "p4", "type=dummy")
    assert bridge.ofctl("dump-ports", "br0", "p1").count("rx pkts=1,") == 1, "still the same device"
    bridge.vsctl("remove", "interface", "p1", "other_config", "ingress-filter")
    assert bridge.vsctl("get", "interface", "p1", "error").strip() == "[]"
    assert bridge.ofctl("dump-ports", "br0", "p1").count("rx pkts=1,") == 1


def test_an_mtu_that_is_withdrawn_is_the_devices_own_again(bridge):
    """A device that can take its other options as it is is opened again for that."""
    capture = bridge.dir / "p1.pcap"

    def mtu():
        return int(bridge.vsctl("get", "interface", "p1", "mtu"))

    bridge.vsctl("set", "interface", "p1", "mtu_request=2000", f"options:tx_pcap={capture}")
    until(lambda: mtu() == 2000, what="the MTU")
    bridge.vsctl("clear", "interface", "p1", "mtu_request", "options")
    until(lambda: mtu() == 1500, what="the device's own MTU")
    bridge.vsctl("set", "interface", "p1", "mtu_request=1400", "options:n_rxq=2")
    until(lambda: (mtu(), queues(bridge, "p1")) == (1400, 2), what="both")
    assert learnt(bridge) == both(bridge)
