"""Rules that are learnt from what is known of a connection, and conjunctive matches on it."""

import re

import pytest
from test_conntrack_commands import BRIDGE, udp

@pytest.fixture(params=["fused", "the long way"])
def switch(weir, request):
    switch = weir(BRIDGE)
    if request.param != "fused":
        switch.appctl("dpctl/ct-disable-fusing")
    return switch


def add(switch, flows):
    switch.ofctl("add-flows", "br0", "-", version=13, input=flows)


def receive(switch, *frames, port="p1"):
    for frame in frames:
        switch.appctl("netdev-dummy/receive", port, frame)


def hits(switch, *cookies):
    """Packets that the flows with these cookies have matched."""
    text = switch.ofctl("dump-flows", "br0")
    found = re.findall(r"cookie=(0x[0-9a-f]+),.* n_packets=(\d+)", text)
    return [sum(int(packets) for cookie, packets in found if int(cookie, 0) == wanted) for wanted in cookies]


def test_rules_are_learnt_from_connections(switch):
    add(switch, """
        table=0,udp,tp_src=7,actions=ct(commit,zone=3,table=1,exec(set_field:0x8->ct_mark,set_field:0x9->ct_label))
        table=0,udp,tp_src=8,actions=ct(commit,zone=4,table=1,exec(set_field:0x7->ct_mark,set_field:0x9->ct_label))
        table=0,priority=1,udp,actions=ct(commit,zone=3,table=1,exec(set_field:0x7->ct_mark,set_field:0x9->ct_label))
        table=1,udp,ct_state=+trk+new,tp_dst=1,actions=learn(table=2,priority=9,cookie=5,eth_type=0x800,nw_proto=17,NXM_NX_CT_STATE[4..5]=2,NXM_NX_CT_ZONE[],\
NXM_NX_CT_MARK[],NXM_NX_CT_LABEL[],NXM_NX_CT_NW_SRC[],load:NXM_NX_CT_MARK[]->NXM_NX_REG1[],\
load:NXM_NX_CT_ZONE[]->NXM_NX_REG2[0..15])
        table=1,priority=1,udp,actions=resubmit(,2),resubmit(,3)
        table=2,cookie=6,priority=0,actions=drop
        table=3,cookie=7,reg1=7,reg2=3,actions=2
        table=3,cookie=8,priority=0,actions=drop""")
    receive(switch, udp(1, 100, 53), udp(1, 100, 53))
    assert hits(switch, 5, 6, 7, 8) == [0, 2, 0, 2]
    receive(switch, udp(1, 100, 1), udp(1, 100, 1))
    [learnt] = [line for line in switch.ofctl("dump-flows", "br0", "table=2").splitlines() if "cookie=0x5" in line]
    assert "ct_mark=0x7" in learnt and "ct_label=0x9" in learnt and "ct_zone=3" in learnt and "ct_nw_src=10.1.0.1" in learnt
    # Any connection with this mark in this zone from this address, also one that was there before.
    receive(switch, *[udp(1, 100, 53)] * 3, udp(1, 101, 53))
    assert hits(switch, 5, 6, 7, 8) == [4, 2, 4, 2]
    # Answers, too: the address is that of the original direction.
    receive(switch, udp(1, 100, 53, answer=True), udp(1, 100, 53, answer=True), port="p2")
    assert hits(switch, 5, 6, 7, 8) == [6, 2, 6, 2]
    # Another mark, another zone, another address.
    receive(switch, udp(1, 7, 53), udp(1, 8, 53), udp(2, 100, 53), *[udp(1, 100, 53)] * 3)
    assert hits(switch, 5, 6, 7, 8) == [9, 5, 9, 5]
    # What has another mark learns a rule of its own.
    receive(switch, udp(1, 7, 1), udp(1, 7, 53))
    assert hits(switch, 5, 6, 7, 8) == [10, 5, 9, 6]
    assert switch.ofctl("dump-flows", "br0", "table=2").count("cookie=0x5") == 2


def test_a_state_is_learnt(switch):
    add(switch, """
        table=0,udp,actions=ct(zone=3,table=1)
        table=1,udp,in_port=1,ct_state=+trk+new,actions=ct(commit,zone=3),2
        table=1,udp,in_port=1,ct_state=+trk+est,actions=resubmit(,2)
        table=1,udp,in_port=2,ct_state=+trk+est,actions=learn(table=2,priority=9,cookie=5,eth_type=0x800,ct_state=0x22,\
NXM_NX_CT_TP_DST[],NXM_NX_CT_NW_PROTO[],output:NXM_OF_IN_PORT[]),1
        table=2,priority=0,cookie=6,actions=drop""")
    receive(switch, udp(1, 100), udp(1, 100))
    receive(switch, udp(1, 100, answer=True), port="p2")
    receive(switch, *[udp(1, 100)] * 4)
    assert hits(switch, 5, 6) == [4, 0]
    # A connection to another port is not what was learnt.
    receive(switch, udp(1, 100, 54))
    switch.ofctl("del-flows", "br0", "table=1,in_port=2")
    receive(switch, udp(1, 100, 54, answer=True), port="p2")
    receive(switch, *[udp(1, 100, 54)] * 3)
    assert hits(switch, 5, 6) == [4, 3]


def test_conjunctions_match_what_is_known_of_connections(switch):
    add(switch, """
        table=0,udp,tp_src=7,actions=ct(commit,zone=3,table=1,exec(set_field:0x12->ct_mark))
        table=0,udp,tp_src=8,actions=ct(commit,zone=4,table=1,exec(set_field:0x17->ct_mark))
        table=0,udp,tp_src=9,actions=ct(commit,zone=5,table=1,exec(set_field:0x17->ct_mark))
        table=0,udp,tp_dst=7,actions=ct(zone=3,table=1)
        table=0,udp,tp_dst=8,actions=ct(zone=4,table=1)
        table=0,udp,tp_src=6,actions=resubmit(,1)
        table=1,priority=9,udp,ct_state=+trk+est,actions=conjunction(1,1/3)
        table=1,priority=9,udp,ct_state=+trk+new,ct_nw_src=10.1.0.0/31,actions=conjunction(1,1/3)
        table=1,priority=9,udp,ct_zone=3,actions=conjunction(1,2/3)
        table=1,priority=9,udp,ct_zone=4,actions=conjunction(1,2/3)
        table=1,priority=9,udp,ct_mark=0x10/0x10,actions=conjunction(1,3/3)
        table=1,priority=8,udp,ct_zone=4,actions=conjunction(2,1/2)
        table=1,priority=8,udp,ct_mark=0x1/0x1,actions=conjunction(2,2/2)
        table=1,priority=9,cookie=1,udp,conj_id=1,actions=2
        table=1,priority=8,cookie=2,udp,conj_id=2,actions=2
        table=1,priority=0,cookie=3,actions=drop""")
    for source, sport, expected in [
        (1, 7, [1, 0, 0]), (0, 8, [1, 0, 0]),
        # Neither an address of the first dimension nor an answer yet.
        (2, 7, [0, 0, 1]), (2, 8, [0, 1, 0]),
        # A zone of neither, and no connection at all.
        (1, 9, [0, 0, 1]), (1, 6, [0, 0, 1]),
    ]:
        before = hits(switch, 1, 2, 3)
        receive(switch, *[udp(source, sport)] * 3)
        assert [b - a for a, b in zip(before, hits(switch, 1, 2, 3))] == [3 * n for n in expected], (source, sport)
    # An answer makes it established: packets of both directions match another row of the same dimension.
    before = hits(switch, 1, 2, 3)
    receive(switch, *[udp(2, 7, answer=True)] * 2, port="p2")
    receive(switch, *[udp(2, 7)] * 3)
    assert [b - a for a, b in zip(before, hits(switch, 1, 2, 3))] == [5, 0, 0]
    # Rules change under packets that were looked up.
    switch.ofctl("del-flows", "--strict", "br0", "table=1,priority=9,udp,ct_mark=0x10/0x10")
    before = hits(switch, 1, 2, 3)
    receive(switch, *[udp(2, 7)] * 3)
    assert [b - a for a, b in zip(before, hits(switch, 1, 2, 3))] == [0, 0, 3]
