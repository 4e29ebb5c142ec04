"""Datapaths that no bridge uses: made, filled and ended by dpctl, beside the bridges' one."""

import os
import re

import pytest
from conftest import until
from lib.net import run
from test_dummy import ICMP, PACKET, switch  # noqa: F401


def refusal(ovs, *args):
    """What a command that has to fail says, without what ovs-appctl adds."""
    return ovs.refusal("appctl", *args).splitlines()[0]


def dump(ovs, datapath):
    lines = ovs.appctl("dpctl/dump-flows", datapath).splitlines()
    return [re.sub(r"used:[\d.]+s", "used:0s", line) for line in lines if not line.startswith("flow-dump")]


def ports(ovs, datapath):
    # As in OVS, a device of the kernel's has no type there.
    return re.findall(r"  port (\d+): (\S+)(?: \((.*)\))?", ovs.appctl("dpctl/show", datapath))


def tx_packets(ovs, datapath, port):
    """What a port of a datapath has sent."""
    text = ovs.appctl("dpctl/show", "-s", datapath).partition(f": {port} (")[2]
    return int(re.search(r"TX packets:(\d+)", text)[1])


def test_a_second_datapath_forwards_by_the_flows_that_it_is_given(switch):  # noqa: F811
    switch.appctl("dpctl/add-dp", "dummy@dp0", "q1,type=dummy", "q2,type=dummy,port_no=7,n_rxq=2")
    assert switch.appctl("dpctl/dump-dps").split() == ["dummy@dp0", "dummy@ovs-dummy"]
    assert ports(switch, "dp0") == [("0", "dp0", "dummy-internal"), ("1", "q1", "dummy"), ("7", "q2", "dummy")]
    switch.appctl("dpctl/add-flow", "dp0", "in_port(q1),eth(),eth_type(0x0800),ipv4(frag=no)", "q2")
    for _ in range(3):
        switch.appctl("netdev-dummy/receive", "q1", PACKET)
    assert dump(switch, "dp0") == ["recirc_id(0),in_port(1),eth(),eth_type(0x0800),ipv4(frag=no), "
                                   "packets:3, bytes:126, used:0s, actions:7"]
    assert tx_packets(switch, "dp0", "q2") == 3
    # What no flow matches ends there, and is counted.
    switch.appctl("netdev-dummy/receive", "q2", PACKET)
    assert "lookups: hit:3 missed:0 lost:1" in switch.appctl("dpctl/show", "dp0")
    # Neither has anything of the other.
    assert dump(switch, "ovs-dummy") == []
    assert "hit:0 missed:0" in switch.appctl("dpif/show")
    switch.ofctl("add-flow", "br0", "in_port=1,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    assert len(dump(switch, "ovs-dummy")) == 1 and len(dump(switch, "dp0")) == 1
    switch.appctl("dpctl/del-flows", "dp0")
    assert len(dump(switch, "ovs-dummy")) == 1 and dump(switch, "dp0") == []
    switch.appctl("dpctl/add-if", "dp0", "q3,type=dummy-pmd")
    assert "port: q3" in switch.appctl("dpif-netdev/pmd-rxq-show", "dp0")
    assert "port: q3" not in switch.appctl("dpif-netdev/pmd-rxq-show")
    assert "packets received: 4\n" in switch.appctl("dpif-netdev/pmd-stats-show", "dp0")
    switch.appctl("dpctl/del-dp", "dp0")
    assert switch.appctl("dpctl/dump-dps").split() == ["dummy@ovs-dummy"]
    assert refusal(switch, "netdev-dummy/receive", "q1", PACKET) == "no such dummy netdev"
    until(lambda: "dummy@dp0: packets: " in switch.log(), what="the account")


def test_connections_belong_to_their_datapath(switch):  # noqa: F811
    switch.appctl("dpctl/add-dp", "dummy@dp0", "q1,type=dummy", "q2,type=dummy")
    switch.appctl("dpctl/add-flow", "dp0", "in_port(1),eth(),eth_type(0x0800),ipv4(frag=no)", "ct(commit,zone=5),2")
    switch.appctl("netdev-dummy/receive", "q1", ICMP)
    assert "zone=5" in switch.appctl("dpctl/dump-conntrack", "dp0")
    assert switch.appctl("dpctl/dump-conntrack") == ""
    switch.appctl("dpctl/flush-conntrack", "dp0")
    assert switch.appctl("dpctl/ct-get-nconns", "dp0") == "0\n"
    assert switch.appctl("dpctl/ct-get-maxconns", "dp0") != switch.appctl("dpctl/ct-get-maxconns")


def test_ports_come_and_go_and_keep_what_they_are(switch):  # noqa: F811
    switch.appctl("dpctl/add-dp", "dummy@dp0")
    assert refusal(switch, "dpctl/add-dp", "dummy@dp0") == "ovs-vswitchd: add_dp (File exists)"
    assert refusal(switch, "dpctl/add-dp", "dummy@ovs-netdev") == "ovs-vswitchd: add_dp (File exists)"
    assert "known types are" in refusal(switch, "dpctl/add-dp", "system@dp0")
    switch.appctl("dpctl/add-if", "dp0", "q1,type=dummy,port_no=5")
    assert "(File exists)" in refusal(switch, "dpctl/add-if", "dp0", "q1,type=dummy")
    assert "failed (there is a datapath port 5" in refusal(switch, "dpctl/add-if", "dp0", "q2,type=dummy,port_no=5")
    for wrong in ("q2,type=vxlan", "q2,type=patch", "q2,type=nosuch", "q2,type=dummy,nosuch=1", "q2,type=dummy,port_no=x",
                  "q2,type=dummy,port_no=4294967295", ",type=dummy"):
        assert refusal(switch, "dpctl/add-if", "dp0", wrong).startswith("ovs-vswitchd: ")
    switch.appctl("dpctl/set-if", "dp0", "q1,type=dummy,port_no=5", "dp0,type=dummy-internal")
    assert refusal(switch, "dpctl/set-if", "dp0", "q1,type=tap") == "ovs-vswitchd: q1: can't change type from dummy to tap"
    assert refusal(switch, "dpctl/set-if", "dp0", "q1,port_no=6") == \
        "ovs-vswitchd: q1: can't change port number from 5 to 6"
    assert "can't change n_rxq" in refusal(switch, "dpctl/set-if", "dp0", "q1,n_rxq=2")
    assert refusal(switch, "dpctl/del-if", "dp0", "dp0") == \
        "ovs-vswitchd: deleting port dp0 from dp0 failed (Invalid argument)"
    # A flow for packets from a port goes with it; one that sends there stays, and drops.
    switch.appctl("dpctl/add-if", "dp0", "q6,type=dummy")
    switch.appctl("dpctl/add-flow", "dp0", "in_port(5),eth(),eth_type(0x0800),ipv4(frag=no)", "6")
    switch.appctl("dpctl/add-flow", "dp0", "in_port(6),eth(),eth_type(0x0800),ipv4(frag=no)", "5")
    switch.appctl("dpctl/del-if", "dp0", "5")
    assert [line.partition("actions:")[2] for line in dump(switch, "dp0")] == ["5"]
    switch.appctl("netdev-dummy/receive", "q6", PACKET)
    assert refusal(switch, "dpctl/del-if", "dp0", "q1") == "ovs-vswitchd: no port named q1"
    for command in (("del-dp", "dp9"), ("add-if", "dp9", "q1"), ("set-if", "dp9", "q1"), ("del-if", "dp9", "q1")):
        assert refusal(switch, f"dpctl/{command[0]}", *command[1:]) == "ovs-vswitchd: opening datapath (No such device)"
    for command in (("del-dp", "ovs-dummy"), ("add-if", "ovs-dummy", "q1"), ("del-if", "ovs-dummy", "br0")):
        assert "Operation not supported" in refusal(switch, f"dpctl/{command[0]}", *command[1:])


def test_a_port_that_is_taken_from_a_bridge_comes_back_with_the_next_configuration(switch):  # noqa: F811
    shown = lambda: re.findall(r"p\d \S+", switch.appctl("dpif/show"))  # noqa: E731
    switch.appctl("dpctl/del-if", "ovs-dummy", "p1")
    assert shown() == ["p2 2/2:"]
    assert "(p1)" not in switch.ofctl("dump-ports-desc", "br0")
    switch.vsctl("add-port", "br0", "p3", "--", "set", "interface", "p3", "type=dummy")
    assert shown() == ["p1 1/1:", "p2 2/2:", "p3 3/3:"]
    switch.ofctl("add-flow", "br0", "in_port=1,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    assert "n_packets=1," in switch.ofctl("dump-flows", "br0")


def test_a_port_that_is_taken_stays_away_when_devices_come(ovs, net):
    a = net.host()
    late = f"wlate{os.getpid() % 100000}"
    ovs.expect(late)
    ovs.start()
    ovs.vsctl("add-br", "wbr0", "--", "set", "bridge", "wbr0", "datapath_type=netdev", "--", "add-port", "wbr0", a.port,
              "--", "add-port", "wbr0", late, check=False)
    ovs.appctl("dpctl/del-if", "ovs-netdev", a.port)
    why = "taken from the datapath by dpctl/del-if"
    until(lambda: ovs.get("interface", a.port, "error") == why, what="the reason")
    run("ip", "link", "add", late, "type", "veth", "peer", "name", f"{late}p")
    try:
        until(lambda: ovs.get("interface", late, "error") == "[]", what="the other port")
        assert ovs.get("interface", a.port, "error") == why
        shown = lambda: re.findall(r" (\d+)\((\w+)\):", ovs.ofctl("dump-ports-desc", "wbr0"))  # noqa: E731
        assert shown() == [("2", late)]
        ovs.vsctl("set", "bridge", "wbr0", "other-config:mac-aging-time=100")
        assert ovs.get("interface", a.port, "error") == "[]"
        assert shown() == [("1", a.port), ("2", late)]
        ovs.vsctl("del-port", late)
    finally:
        run("ip", "link", "del", late)


def test_the_number_of_datapaths_and_of_their_ports_is_bounded(switch):  # noqa: F811
    for number in range(16):
        switch.appctl("dpctl/add-dp", f"dummy@dp{number}")
    assert "there can be 16 datapaths" in refusal(switch, "dpctl/add-dp", "dummy@dp16")
    many = [f"q{number},type=dummy" for number in range(1, 257)]
    assert "can have 256 ports" in refusal(switch, "dpctl/add-if", "dp7", *many)
    assert len(ports(switch, "dp7")) == 256
    for number in range(16):
        switch.appctl("dpctl/del-dp", f"dp{number}")
    assert switch.appctl("dpctl/dump-dps").split() == ["dummy@ovs-dummy"]


def test_a_datapath_of_devices_forwards_between_hosts(ovs, net):
    """Flows of both directions; the devices are free again for a bridge afterwards."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    ovs.start()
    ovs.appctl("dpctl/add-dp", "netdev@wdp0", f"{a.port},type=afpacket", f"{b.port},type=afpacket")
    assert [kind for *_, kind in ports(ovs, "wdp0")] == ["tap", "", ""]
    numbers = {name: number for number, name, _ in ports(ovs, "wdp0")}
    for there, back in ((a.port, b.port), (b.port, a.port)):
        for rest in ("eth_type(0x0806)", "eth_type(0x0800),ipv4(frag=no)"):
            ovs.appctl("dpctl/add-flow", "wdp0", f"in_port({numbers[there]}),eth(),{rest}", numbers[back])
    a.ping("10.0.0.2")
    assert refusal(ovs, "dpctl/add-if", "wdp0", f"{a.port},type=afpacket").endswith("failed (File exists)")
    # A bridge that wants the device waits for it.
    ovs.expect(r"is a port of the datapath netdev@wdp0")
    ovs.vsctl("add-br", "wbr0", "--", "set", "bridge", "wbr0", "datapath_type=netdev", "--",
              "add-port", "wbr0", a.port, check=False)
    until(lambda: "wdp0" in ovs.get("interface", a.port, "error"), what="the error")
    ovs.appctl("dpctl/del-if", "wdp0", a.port)
    ovs.vsctl("add-port", "wbr0", b.port, check=False)
    until(lambda: ovs.get("interface", a.port, "error") == "[]", what="the port of the bridge")
    assert "a bridge has it" in refusal(ovs, "dpctl/add-if", "wdp0", f"{a.port},type=afpacket")
    ovs.appctl("dpctl/del-dp", "wdp0")
    ovs.vsctl("set", "bridge", "wbr0", "external_ids:again=1")


@pytest.mark.parametrize("end", ["exit", "signal"])
def test_datapaths_end_with_the_daemon(switch, end):  # noqa: F811
    switch.appctl("dpctl/add-dp", "dummy@dp0", "q1,type=dummy", "q2,type=dummy")
    switch.appctl("dpctl/add-flow", "dp0", "in_port(1),eth(),eth_type(0x0800),ipv4(frag=no)", "2,2,0")
    for _ in range(5):
        switch.appctl("netdev-dummy/receive", "q1", PACKET)
    if end == "exit":
        switch.appctl("exit")
    # Otherwise the fixture ends it. It checks the account, and that all buffers are free.
