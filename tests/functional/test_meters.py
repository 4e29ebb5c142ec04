"""Meters limit real traffic, count it, and can be changed while it flows."""

import re
import subprocess

import pytest
from conftest import until
from lib.conntrack import NEIGHBOURS, Lab, udp
from lib.daemon import dummy_bridge

TO_B = "table=0,in_port=1,udp,actions=meter:1,2"
METER = "meter=3,pktps,burst,stats,bands=type=drop,rate=1,burst_size=3"


@pytest.fixture
def lab(ovs, net):
    return Lab(ovs, net)


def stats(lab, meter="1"):
    """Packets that came to a meter, and packets of each of its bands."""
    text = lab.ovs.ofctl("meter-stats", "br0", f"meter={meter}", version=13)
    bands = [int(count) for count in re.findall(r"\d+: packet_count:(\d+)", text)]
    return int(re.search(r"packet_in_count:(\d+)", text)[1]), bands


def send(lab, count, tos=0, meter=1):
    """Datagrams from the first host to the second one; how many of them came there."""
    a, b = lab.hosts
    with udp(b, "10.0.0.2", 7000) as server, udp(a, "10.0.0.1") as client:
        client.setsockopt(0, 1, tos)  # IPPROTO_IP, IP_TOS
        before = stats(lab, meter)[0]
        for number in range(count):
            client.sendto(b"%d" % number, ("10.0.0.2", 7000))
        until(lambda: stats(lab, meter)[0] == before + count, what="the packets at the meter")
        came = 0
        server.settimeout(1)
        while True:
            try:
                server.recv(100)
                came += 1
            except TimeoutError:
                return came


def test_packets_above_the_rate_are_dropped_and_counted(lab):
    lab.ovs.ofctl("add-meter", "br0", "meter=1,pktps,burst,stats,bands=type=drop,rate=1,burst_size=5", version=13)
    lab.flows(NEIGHBOURS, TO_B)
    came = send(lab, 40)
    packets, [dropped] = stats(lab)
    # A few more than the burst, if it takes seconds.
    assert packets == 40 and 5 <= came < 35 and came + dropped == 40
    assert lab.ovs.appctl("coverage/read-counter", "datapath_drop_meter").strip() == str(dropped)
    assert "meter(" in lab.ovs.appctl("dpctl/dump-flows")
    # Another rate is in force at once, with full buckets, and counts anew.
    lab.ovs.ofctl("mod-meter", "br0", "meter=1,pktps,burst,stats,bands=type=drop,rate=100000,burst_size=1000", version=13)
    assert stats(lab) == (0, [0])
    assert send(lab, 40) == 40 and stats(lab) == (40, [0])
    # Bytes: none of these fits into the burst of one kilobit.
    lab.ovs.ofctl("mod-meter", "br0", "meter=1,kbps,stats,bands=type=drop,rate=1", version=13)
    a, b = lab.hosts
    with udp(a, "10.0.0.1") as client:
        client.sendto(bytes(1000), ("10.0.0.2", 7000))
        until(lambda: stats(lab) == (1, [1]), what="the datagram that is too long")
    # It goes with the flows that use it.
    lab.ovs.ofctl("del-meter", "br0", "meter=1", version=13)
    assert "meter" not in lab.ovs.ofctl("dump-flows", "br0", version=13)
    until(lambda: "meter(" not in lab.ovs.appctl("dpctl/dump-flows"), what="no datapath flow with the meter")


def test_drop_precedence_is_raised(lab):
    lab.ovs.ofctl("add-meter", "br0", "meter=1,pktps,burst,bands=type=dscp_remark,rate=1,burst_size=2,prec_level=1",
                  version=13)
    lab.flows(NEIGHBOURS, TO_B)
    sniffer = lab.hosts[1].sniff("-vv", "udp", "and", "port", "7000")
    assert send(lab, 20, tos=0x28) == 20
    packets, [remarked] = stats(lab)
    assert packets == 20 and 10 < remarked <= 18
    until(lambda: sniffer.seen().count("tos 0x") == 20, what="20 datagrams")
    seen = sniffer.seen()
    # AF11 became AF12.
    assert seen.count("tos 0x30") == remarked and seen.count("tos 0x28") == 20 - remarked
    assert "bad cksum" not in seen
    # Another kind of band: datapath flows follow.
    lab.ovs.ofctl("mod-meter", "br0", "meter=1,pktps,burst,bands=type=drop,rate=1,burst_size=2", version=13)
    assert send(lab, 20, tos=0x28) < 20 and "tos 0x30" not in sniffer.seen()[len(seen):]


def test_what_waits_for_a_controller_is_limited(lab):
    """A packet whose pipeline a controller is to resume is dropped where the meter does not let it go there."""
    lab.ovs.ofctl("add-meter", "br0", METER, version=13)
    lab.flows(NEIGHBOURS, "table=0,in_port=1,udp,actions=controller(pause,meter_id=3),2")
    controller = subprocess.Popen(["ovs-ofctl", "-P", "nxt_packet_in2", "monitor", "br0", "resume"], env=lab.ovs.env,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: send(lab, 1, meter=3) == 1, 20, "a controller that resumes")
        # Its bucket is full again.
        lab.ovs.ofctl("mod-meter", "br0", METER, version=13)
        came = send(lab, 20, meter=3)
    finally:
        controller.terminate()
        controller.wait(10)
    packets, [dropped] = stats(lab, 3)
    assert (packets, came) == (20, 20 - dropped) and 3 <= came < 20


def test_packets_to_controllers_are_limited(lab):
    lab.flows(NEIGHBOURS, "table=0,in_port=1,udp,actions=controller,2")
    lab.ovs.ofctl("add-meter", "br0", "meter=controller,pktps,burst,stats,bands=type=drop,rate=1,burst_size=3", version=13)
    a, b = lab.hosts
    with udp(b, "10.0.0.2", 7000) as server, udp(a, "10.0.0.1") as client:
        server.settimeout(20)
        for number in range(20):
            client.sendto(b"%d" % number, ("10.0.0.2", 7000))
            # The packet itself goes on, whatever becomes of the copy.
            assert server.recv(100) == b"%d" % number
    until(lambda: stats(lab, "controller")[0] == 20, what="the packets at the meter")
    packets, [dropped] = stats(lab, "controller")
    assert 3 <= packets - dropped < 20 and dropped > 0
    lab.ovs.ofctl("del-meter", "br0", "meter=controller", version=13)
    until(lambda: "meter(" not in lab.ovs.appctl("dpctl/dump-flows"), what="no datapath flow with the meter")


def test_meters_say_what_they_can(lab):
    text = lab.ovs.ofctl("meter-features", "br0", version=13)
    assert "max_meter:262144" in text and "max_bands:8" in text and "drop dscp_remark" in text


@pytest.mark.parametrize("pause", ["", "pause,"], ids=["copy", "pause"])
def test_a_meter_of_packet_ins_comes_and_goes_and_its_flows_stay(ovs, pause):
    """As OVS has it: a controller may ask for a meter before it is there, and flows are not the meter's."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.ofctl("add-flow", "br0", f"table=0,priority=9,in_port=p1,actions=controller({pause}meter_id=7)", version=13)

    def is_metered():
        ovs.appctl("netdev-dummy/receive", "p1", "ff" * 6 + "020000000001" + "88b5" + "00" * 46)
        [flow] = [line for line in ovs.appctl("dpctl/dump-flows").splitlines() if "0x88b5" in line]
        return "meter(" in flow

    def meters():
        return re.findall(r"meter:?=?(\d+)", ovs.ofctl("dump-meters", "br0", version=13))

    assert not is_metered()
    for _ in range(2):
        ovs.ofctl("add-meter", "br0", "meter=7,pktps,bands=type=drop,rate=1", version=13)
        until(is_metered, what="a meter in the datapath")
        assert meters() == ["7"] and "flow_count:0" in ovs.ofctl("meter-stats", "br0", "meter=7", version=13)
        ovs.ofctl("del-meter", "br0", "meter=7", version=13)
        until(lambda: not is_metered(), what="the end of the meter")
        assert meters() == [] and f"controller({pause}meter_id=7)" in ovs.ofctl("dump-flows", "br0", version=13).replace("max_len=65535,", "")
