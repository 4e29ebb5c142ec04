"""What orchestrators send, in the form in which they send it: Neutron's agent and Antrea, whose own tests run Weir as OVS."""

import re

import pytest
from lib.daemon import dummy_bridge
from lib.wait import until
from test_os_ken import Peer

#: IPv6 from fe80::1 to ff02::1, ICMPv6 of a type, code 0 and a target; its checksum is of no consequence.
ADVERT = ("333300000001020000000001" "86dd" "60000000" "0018" "3a" "ff" "fe800000000000000000000000000001"
          "ff020000000000000000000000000001" "88{code:02x}" "0000" "00000000" "{target}")
#: Of TCP from 10.0.0.1 to 10.0.0.2.
TCP = "020000000002020000000001" "0800" "45000028000040004006" "66ce" "0a0000010a000002" "04d2" "0050" "00000000" "00000000" "5002" "2000" "0000" "0000"


@pytest.fixture
def switch(ovs):
    """br0 with ports 1 to 3, without flows."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.ofctl("del-flows", "br0")
    return ovs


def counted(switch, *flow):
    """The packets that flows have matched."""
    return [int(n) for n in re.findall(r"n_packets=(\d+)", switch.ofctl("dump-flows", "br0", *flow))]


def test_neutron_flows_against_spoofed_neighbour_advertisements_need_no_code(switch):
    """Neutron matches nd_target of a type, and says nothing of the code; as in OVS, only packets with code 0 have one."""
    controller = Peer(switch, "1_3")
    o, p = controller.o, controller.p
    match = p.OFPMatch(in_port=1, eth_type=0x86DD, ip_proto=58, icmpv6_type=136, ipv6_nd_target="fe80::1")
    apply = [p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionOutput(2)])]
    assert controller.ask(p.OFPFlowMod(controller.dp, priority=2, match=match, instructions=apply)) == []
    switch.ofctl("add-flow", "br0", "priority=1,in_port=1,icmp6,actions=3")
    own, other = "fe800000000000000000000000000001", "fe800000000000000000000000000002"
    # Each twice, so that the second one finds the flow of the first, and mixed, so that flows of both are there.
    for _ in range(2):
        for code, target in (0, own), (1, own), (0, other), (1, "00" * 16):
            switch.appctl("netdev-dummy/receive", "p1", ADVERT.format(code=code, target=target))
    assert counted(switch) == [2, 6]
    # What is zero is no target of packets that have none.
    switch.ofctl("add-flow", "br0", "priority=3,in_port=1,icmp6,icmp_type=136,nd_target=::,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", ADVERT.format(code=0, target="00" * 16))
    assert counted(switch)[0] == 1
    controller.close()


def test_antrea_reads_registers_in_pairs_from_packet_ins(switch):
    """By OpenFlow 1.5, registers are packet registers (OXM_OF_PKT_REGn), of which each is two; a half that is not set is masked out."""
    controller = Peer(switch, "1_5")
    p = controller.p
    controller.send(p.OFPSetConfig(controller.dp, 0, 0xFFFF))
    switch.ofctl("add-flow", "br0", "in_port=1,actions=set_field:0x1234->reg2,set_field:0x5678->reg3,set_field:0x40000->reg0,controller")
    switch.appctl("netdev-dummy/receive", "p1", TCP)
    said = controller.comes("OFPPacketIn")
    fields = {name: value for name, value in said.match.items()}
    # A register of which one half is zero has a mask; os-ken gives it as it came.
    assert fields["xreg1"] == 0x1234_0000_5678
    assert fields["xreg0"] == (0x40000 << 32, 0xFFFF_FFFF_0000_0000)
    assert not any(name.startswith("reg") for name in fields), fields
    # A match is told in the same form.
    switch.ofctl("-O", "OpenFlow15", "add-flow", "br0", "reg3=0x5678,reg5=7/7,actions=drop")
    (told,) = [flow for flow in controller.ask(p.OFPFlowDescStatsRequest(controller.dp))[0].body if "xreg2" in flow.match]
    assert dict(told.match.items()) == {"xreg1": (0x5678, 0xFFFF_FFFF), "xreg2": (7, 7)}
    controller.close()


def test_antrea_learns_by_headers_that_have_a_mask(switch):
    """The message that Antrea's library makes for session affinity: it names fields of `learn` by headers with a mask."""
    controller = Peer(switch, "1_5")
    specs = ("2010" "0800" "00000704" "0000"  # eth_type=0x800
             "2008" "0006" "00000d02" "0000"  # nw_proto=6
             "0010" "80001d04" "0000" "80001d04" "0000"  # NXM_OF_TCP_DST[]
             "2810" "0ffe" "00010108" "0010" "00000000")  # load:0xffe->NXM_NX_REG0[16..31]
    head = "000a" "0000" "00be" "0000000000000001" "0002" "01" "00" "0000" "0000"
    action = bytes.fromhex("00002320" "0010" + head + specs)
    action += bytes(-(len(action) + 4) % 8)
    action = b"\xff\xff" + (len(action) + 4).to_bytes(2, "big") + action
    instruction = b"\x00\x04" + (len(action) + 8).to_bytes(2, "big") + bytes(4) + action
    match = bytes.fromhex("0001000f" "80000a02" "0800" "80001401" "06" "00")
    fixed = bytes(8) + bytes(8) + bytes(2) + bytes(4) + (200).to_bytes(2, "big") + b"\xff" * 4 + b"\xff" * 8 + bytes(4)
    body = fixed + match + instruction
    controller.socket.sendall(bytes([6, 14]) + (len(body) + 8).to_bytes(2, "big") + (7).to_bytes(4, "big") + body)
    assert controller.ask() == []
    switch.appctl("netdev-dummy/receive", "p1", TCP)
    learnt = switch.ofctl("dump-flows", "br0", "table=1")
    assert "tcp,tp_dst=80 actions=load:0xffe->NXM_NX_REG0[16..31]" in learnt, learnt
    controller.close()


def test_antrea_opens_a_thousand_bundles_at_a_time(switch):
    """It has one for each of the changes that it makes at a time."""
    controller = Peer(switch, "1_5")
    o, p = controller.o, controller.p
    count = 1000

    def control(number, kind):
        controller.send(p.OFPBundleCtrlMsg(controller.dp, number, kind, o.OFPBF_ORDERED, []))

    for n in range(count):
        control(n, o.OFPBCT_OPEN_REQUEST)
        flow = p.OFPFlowMod(controller.dp, table_id=2, match=p.OFPMatch(in_port=n + 1))
        flow.set_xid(7)
        flow.serialize()
        add = p.OFPBundleAddMsg(controller.dp, n, o.OFPBF_ORDERED, flow, [])
        add.set_xid(7)
        add.serialize()
        controller.socket.sendall(add.buf)
    for n in range(count):
        control(n, o.OFPBCT_COMMIT_REQUEST)
    answers = [controller.receive() for _ in range(2 * count)]
    assert {type(answer).__name__ for answer in answers} == {"OFPBundleCtrlMsg"}, answers[-1]
    assert f"flow_count={count}" in switch.ofctl("dump-aggregate", "br0", "table=2")
    controller.close()


def test_faucet_hears_that_a_link_has_gone_with_the_port_that_it_has_disabled(ovs, net):
    """Before OpenFlow 1.5 who disables a port is not told of its configuration, but of its link, as all others are."""
    ovs.start()
    host = net.host("10.0.0.1/24")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "--", "add-port", "br0", host.port)
    number, mac = int(ovs.get("interface", host.port, "ofport")), ovs.get("interface", host.port, "mac_in_use")
    until(lambda: ovs.get("interface", host.port, "link_state") == "up", what="the link")
    sender, other = peers = [Peer(ovs, "1_3") for _ in range(2)]
    for peer in peers:
        peer.send(peer.p.OFPSetConfig(peer.dp, 0, 0xFFFF))
        assert peer.ask() == []

    def told(peer):
        """The next thing that is said of the port: its configuration and its state."""
        message = peer.comes("OFPPortStatus")
        return message.desc.config, message.desc.state

    down = sender.o.OFPPC_PORT_DOWN
    for config, before, after in (down, 0, sender.o.OFPPS_LINK_DOWN), (0, sender.o.OFPPS_LINK_DOWN, sender.o.OFPPS_LIVE):
        sender.send(sender.p.OFPPortMod(sender.dp, number, mac, config, down, 0))
        assert [told(other), told(other)] == [(config, before), (config, after)]
        assert told(sender) == (config, after)
    for peer in peers:
        peer.close()
