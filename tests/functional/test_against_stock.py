"""Stock OVS is the judge: random bridges, flows and packets give the same errors, the same frames and the same counters from both.

A difference is named by its seed; `Scenario(seed)` has all of it.
"""

import pytest
from conftest import until
from lib.scenario import Scenario
from lib.stock import DUMMY, EXPECTED, Side, stock  # noqa: F401
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether


@pytest.mark.parametrize("first", range(0, 40, 5))
def test_random_pipelines(ovs, stock, first):  # noqa: F811
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    received = forwarded = 0
    for seed in range(first, first + 5):
        scenario = Scenario(seed)
        for side in (stock, weir):
            side.build(scenario)
        for command, arguments in (("add-group", scenario.groups), ("add-flow", scenario.flows)):
            for argument in arguments:
                expected, actual = (side.ofctl(command, argument) for side in (stock, weir))
                assert actual == expected, f"seed {seed}: {argument}"
        for number, (port, frame) in enumerate(scenario.packets):
            # OVS is to look at its tables for each: its flows go on for a while when more has been learnt.
            stock.call("revalidator/purge")
            for side in (stock, weir):
                assert side.call("netdev-dummy/receive", f"p{port}", frame)["error"] is None, f"seed {seed}: {frame}"
            try:
                until(lambda: stock.sent() == weir.sent(), what="the same frames")
            except AssertionError:
                assert weir.sent() == stock.sent(), f"seed {seed}: packet {number}, {frame} at port {port}"
        # In older versions, much of the flows has no words.
        version = [12, 13, 14, 15][seed % 4]
        assert weir.counters(version) == stock.counters(version), f"seed {seed}, OpenFlow {version}"
        received += len(scenario.packets)
        forwarded += sum(map(len, stock.sent().values()))
    assert received > 300 and forwarded > 50, "the scenarios have no traffic"


def test_actions_that_are_deprecated(ovs, stock):  # noqa: F811
    """ovs-ofctl sends these also by later versions, where it does not know which protocol it is about."""
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    udp = bytes(Ether() / IP(dst="10.0.0.1") / UDP(sport=53, dport=443)).hex()
    for side in (stock, weir):
        side.build(Scenario(0))
        side.ofctl("del-flows")
        for group in ("group_id=1,type=all,bucket=actions=mod_tp_dst:80,output:2", "group_id=2,type=all,bucket=actions=mod_tp_src:8,output:3"):
            assert side.ofctl("add-group", group) == 0
        side.ofctl("add-flow", "udp,actions=group:1,group:2")
        side.call("netdev-dummy/receive", "p1", udp)
    until(lambda: stock.sent()[3], what="a frame")
    assert weir.sent() == stock.sent()


def test_prerequisites(ovs, stock):  # noqa: F811
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    wrong = ["OFPBMC_BAD_PREREQ"]
    flows = {
        "icmp,ip_frag=later,icmp_type=8,actions=drop": 0,
        "icmp6,ip_frag=later,icmp_type=8,actions=drop": 0,
        "tcp,ip_frag=first,tp_dst=80,actions=drop": 0,
        "tcp,ip_frag=later,tp_dst=80,actions=drop": wrong,
        "udp6,ip_frag=later,tp_dst=80,actions=drop": wrong,
        # In a set, the second one may be done first.
        "mpls,actions=write_actions(pop_mpls:0x86dd,pop_mpls:0x8847,output:3)": 0,
    }
    for side in (stock, weir):
        side.build(Scenario(0))
        assert {flow: side.ofctl("add-flow", flow) for flow in flows} == flows
