"""Verification of the caches while the switch runs: `other_config:verify-sampling` and `weir/verify`."""

import re
import time

from conftest import until
from test_dummy import PACKET, switch  # noqa: F401

CONFIG = """
[datapath]
verify-sampling = 1
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "{a.port}"
[[bridge.port]]
name = "{b.port}"
"""


def report(daemon):
    """What was found so far, by name."""
    return {name: int(count) for name, count in re.findall(r"^ *([\w ,]+): (\d+)", daemon.appctl("weir/verify"), re.M)}


def coverage(daemon, counter):
    return int(daemon.appctl("coverage/read-counter", counter))


def receive(daemon, count=1):
    for _ in range(count):
        daemon.appctl("netdev-dummy/receive", "p1", PACKET)


def test_a_flow_that_the_tables_contradict_is_found_logged_and_removed(switch):  # noqa: F811
    switch.vsctl("set", "open", ".", "other_config:verify-sampling=1")
    switch.vsctl("add-port", "br0", "p3", "--", "set", "interface", "p3", "type=dummy", "ofport_request=3")
    switch.ofctl("add-flow", "br0", "cookie=0x2a,priority=7,icmp,actions=2")
    receive(switch, 2)
    until(lambda: report(switch)["equal"] == 1, what="a packet that had a flow")
    # An operator's flow says what the tables say, at first.
    flow = "in_port(1),eth(),eth_type(0x0800),ipv4(proto=1,frag=no)"
    switch.appctl("dpctl/del-flows")
    switch.appctl("dpctl/add-flow", flow, "2")
    receive(switch)
    until(lambda: report(switch)["equal"] == 2, what="a packet of the operator's flow")
    assert report(switch)["disagreements"] == 0
    # The fault: the datapath sends to the wrong port.
    switch.expect("the OpenFlow tables say something else")
    switch.appctl("dpctl/mod-flow", flow, "3")
    receive(switch)
    until(lambda: report(switch)["disagreements"] == 1, what="the disagreement")
    assert "actions:3" not in switch.appctl("dpctl/dump-flows")
    text = switch.appctl("weir/verify")
    assert f"42 bytes at port 1 of br0: {PACKET}" in text, text
    assert re.search(r"    actions: 3$", text, re.M) and re.search(r"  expected actions: 2$", text, re.M), text
    assert "by br0 table=0 priority=7 cookie=0x2a" in text and "made by an operator" in text, text
    line = next(line for line in switch.log().splitlines() if "the OpenFlow tables say" in line)
    assert "|ERR|" in line and PACKET in line and "actions:3" in line and "expected actions:2" in line, line
    assert (coverage(switch, "verify_disagreement"), coverage(switch, "verify_checked")) == (1, 3)
    # The next packets are forwarded right, and found to be.
    sent = switch.counters("2")["tx_pkts"]
    receive(switch, 2)
    assert switch.counters("2")["tx_pkts"] == sent + 2
    until(lambda: report(switch)["equal"] == 3)
    assert report(switch)["disagreements"] == 1


def test_an_operators_flow_that_the_tables_contradict_is_removed(switch):  # noqa: F811
    switch.vsctl("set", "open", ".", "other_config:verify-sampling=1")
    switch.expect("the OpenFlow tables say something else")
    switch.ofctl("add-flow", "br0", "icmp,actions=2")
    switch.appctl("dpctl/add-flow", "in_port(1),eth(),eth_type(0x0800),ipv4(frag=no)", "drop")
    receive(switch)
    until(lambda: report(switch)["disagreements"] == 1)
    assert switch.appctl("dpctl/dump-flows").count("eth_type") == 0
    assert "made by an operator" in switch.appctl("weir/verify")


def test_zero_switches_it_off(switch):  # noqa: F811
    assert switch.appctl("weir/verify").startswith("one of 1048576 packets")
    switch.vsctl("set", "open", ".", "other_config:verify-sampling=0")
    assert switch.appctl("weir/verify").startswith("verification is off")
    switch.ofctl("add-flow", "br0", "icmp,actions=2")
    receive(switch, 3)
    switch.vsctl("set", "open", ".", "other_config:verify-sampling=1")
    receive(switch, 3)
    until(lambda: report(switch)["equal"] == 3)
    # The verifier looks ten times in a second.
    time.sleep(0.5)
    assert report(switch)["checked"] == 3, "none of those before"


def test_changes_under_traffic_are_no_disagreements(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(CONFIG.format(a=a, b=b))
    bridge = f"unix:{w.dir}/br0.mgmt"
    ping = a.start("ping", "-q", "-f", "10.0.0.2")
    for number in range(30):
        w.ofctl("add-flow", bridge, f"priority=5,icmp,nw_ttl=64,icmp_type={number % 2 * 8},actions=resubmit(,{1 + number % 2})")
        w.ofctl("add-flow", bridge, f"table={1 + number % 2},priority={number},actions=normal")
        w.appctl("fdb/flush")
        w.ofctl("del-flows", bridge, "icmp")
    until(lambda: report(w)["equal"] >= 100, seconds=30)
    ping.kill()
    ping.wait()
    assert report(w)["disagreements"] == 0, w.appctl("weir/verify")
