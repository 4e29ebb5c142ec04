"""Flow monitors, by Debian's ovs-ofctl and by os-ken's codec."""

import socket
import struct
import subprocess

import pytest
from lib.daemon import dummy_bridge
from lib.net import run
from lib.wait import until
from os_ken.ofproto import ofproto_parser, ofproto_v1_4, ofproto_v1_4_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

VERSIONS = ["OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15"]


class Monitor:
    """An ovs-ofctl that monitors flows."""

    def __init__(self, ovs, dir, *args):
        self.ovs, self.log, self.control = ovs, dir / "monitor.log", dir / "monitor.ctl"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(["ovs-ofctl", f"--unixctl={self.control}", *args],
                                            stdout=log, stderr=subprocess.STDOUT, env=ovs.env)
        until(lambda: "FLOW_MONITOR reply" in self.log.read_text(), what="the first answer")

    def ask(self, *command):
        run("ovs-appctl", "-t", str(self.control), *command, env=self.ovs.env)

    def lines(self):
        """Everything but the headers of messages."""
        return [line.strip() for line in self.log.read_text().splitlines() if line.startswith(" ")]

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def monitor(ovs, tmp_path):
    """A function that starts a monitor of br0, which has some flows."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    started = []

    def start(*args):
        started.append(Monitor(ovs, tmp_path, *args))
        return started[0]

    yield start
    for process in started:
        process.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_monitor_is_told_what_is_there_and_what_changes(ovs, monitor, version):
    ovs.ofctl("add-flow", "br0", "table=3,cookie=1,in_port=1,actions=2")
    ovs.ofctl("add-flow", "br0", "table=4,cookie=1,in_port=1,actions=2")
    m = monitor("-O", version, "monitor", "br0", "watch:table=3")
    ovs.ofctl("add-flow", "br0", "table=3,cookie=2,udp,tp_dst=53,idle_timeout=9,actions=1,3")
    ovs.ofctl("add-flow", "br0", "table=4,in_port=2,actions=drop")
    ovs.ofctl("mod-flows", "br0", "table=3,udp,actions=LOCAL")
    ovs.ofctl("del-flows", "br0", "in_port=1")
    m.ask("ofctl/barrier")
    first = "INITIAL" if version >= "OpenFlow14" else "ADDED"
    assert m.lines() == [
        f"event={first} table=3 cookie=0x1 in_port=1 actions=output:2",
        "event=ADDED table=3 idle_timeout=9 cookie=0x2 udp,tp_dst=53 actions=output:1,output:3",
        "event=MODIFIED table=3 idle_timeout=9 cookie=0 udp,tp_dst=53 actions=LOCAL",
        "event=DELETED reason=delete table=3 cookie=0x1 in_port=1 actions=output:2",
    ]


@pytest.mark.parametrize("version", ["OpenFlow12", "OpenFlow14"])
def test_a_monitor_that_is_not_read_pauses_and_is_told_the_outcome(ovs, monitor, version):
    m = monitor("-O", version, "monitor", "br0", "watch:")
    m.ask("ofctl/block")
    # More than the socket holds, and the switch.
    flows = 12_000
    text = "".join(f"cookie=1,reg1={n},actions=drop\n" for n in range(flows))
    run("ovs-ofctl", "add-flows", "br0", "-", env=ovs.env, input=text)
    ovs.ofctl("add-flow", "br0", "cookie=2,in_port=1,actions=drop")
    ovs.ofctl("mod-flows", "br0", "cookie=3,in_port=1,actions=1")
    ovs.ofctl("del-flows", "br0", "cookie=1/-1")
    m.ask("ofctl/unblock")
    until(lambda: "RESUMED" in m.log.read_text(), what="all that has changed")
    text = m.log.read_text()
    before, during = text.split("PAUSED")
    added = before.count("event=ADDED table=0 cookie=0x1 ")
    assert 100 < added < flows
    assert during.count("event=DELETED") == added, "of the others, the peer has not heard"
    assert during.count("event=ADDED") == 1 and "event=ADDED table=0 cookie=0x3 in_port=1 actions=output:1" in during


def test_requests_of_another_implementation(ovs):
    """OpenFlow 1.4's form, written and read by os-ken."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    datapath, p = ProtocolDesc(ofproto_v1_4.OFP_VERSION), ofproto_v1_4_parser
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(str(ovs.dir / "br0.mgmt"))
    stream = s.makefile("rb")

    def receive():
        head = stream.read(8)
        return head + stream.read(struct.unpack("!H", head[2:4])[0] - 8)

    def ask(message, xid):
        message.set_xid(xid)
        message.serialize()
        s.sendall(message.buf)
        data = receive()
        answer = ofproto_parser.msg(datapath, *struct.unpack("!BBHI", data[:8]), data)
        assert answer.xid == xid
        return answer

    s.sendall(struct.pack("!BBHI", 5, 0, 8, 1))
    receive()  # a hello

    def request(monitor, command, flags):
        return p.OFPFlowMonitorRequest(datapath, 0, monitor, ofproto_v1_4.OFPP_ANY, ofproto_v1_4.OFPG_ANY, flags,
                                       ofproto_v1_4.OFPTT_ALL, command, p.OFPMatch(in_port=1))

    add, delete = ofproto_v1_4.OFPFMC_ADD, ofproto_v1_4.OFPFMC_DELETE
    ovs.ofctl("add-flow", "br0", "priority=7,in_port=1,actions=2")
    flags = ofproto_v1_4.OFPFMF_INITIAL | ofproto_v1_4.OFPFMF_REMOVED | ofproto_v1_4.OFPFMF_INSTRUCTIONS
    [flow] = ask(request(9, add, flags), 11).body
    assert (flow.event, flow.priority, flow.match["in_port"]) == (ofproto_v1_4.OFPFME_INITIAL, 7, 1)
    assert flow.instructions[0].actions[0].port == 2
    ovs.ofctl("del-flows", "br0")
    # Of a flow's events, os-ken can read the first one only.
    update = receive()
    xid, event, table, reason = struct.unpack("!4xI10xHBB", update[:22])
    assert (xid, event, table, reason) == (0, ofproto_v1_4.OFPFME_REMOVED, 0, ofproto_v1_4.OFPRR_DELETE)

    def refused(message, xid):
        error = ask(message, xid)
        assert error.type == ofproto_v1_4.OFPET_FLOW_MONITOR_FAILED
        return error.code

    assert refused(request(9, add, flags), 12) == ofproto_v1_4.OFPMOFC_MONITOR_EXISTS
    assert refused(request(8, delete, 0), 13) == ofproto_v1_4.OFPMOFC_UNKNOWN_MONITOR
    assert refused(request(8, add, 0), 14) == ofproto_v1_4.OFPMOFC_BAD_FLAGS
    assert ask(request(9, delete, 0), 15).body == []
    s.close()
