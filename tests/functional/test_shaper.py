"""QoS with queues on ports without a kernel's queueing discipline: the datapath shapes them."""

import re
import socket
import time

from lib.conntrack import SO_RCVBUFFORCE, udp
from lib.wait import until
from test_qos import HTB, lab, port, send, set_qos, shown  # noqa: F401

#: Bytes of a frame, which go to queue 1, 2, or none.
SIZE = 1000
TYPES = {0: 0x9000, 1: 0x9001, 2: 0x9002}


class Ports:
    """Dummy ports p1 and p2 of br0, whose clock stands still; p2 has a QoS of 1 MB/s."""

    def __init__(self, ovs, **queues):
        self.ovs, self.warped = ovs, 0
        ovs.start("--enable-dummy=override")
        ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure")
        for name in ("p1", "p2"):
            ovs.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy", f"ofport_request={name[1]}")
        for queue, kind in TYPES.items():
            ovs.ofctl("add-flow", "br0", f"in_port=1,dl_type={kind:#x},actions=set_queue:{queue},output:2")
        self.qos("type=linux-htb", "other_config:max-rate=8000000", **queues)
        ovs.appctl("time/stop")

    def qos(self, *settings, **queues):
        made = [word for name, words in queues.items() for word in ("--", f"--id=@{name}", "create", "queue", *words)]
        numbers = ",".join(f"{name[1:]}=@{name}" for name in queues)
        self.ovs.vsctl("set", "port", "p2", "qos=@qos", "--", "--id=@qos", "create", "qos", *settings,
                       *([f"queues={numbers}"] if queues else []), *made)
        until(lambda: "linux-htb" in self.ovs.appctl("qos/show", "p2"), what="the QoS")

    def receive(self, count, queue=0):
        frame = bytes.fromhex("0200000000020200000000" "01") + TYPES[queue].to_bytes(2, "big") + bytes(SIZE - 14)
        for _ in range(count):
            self.ovs.appctl("netdev-dummy/receive", "p1", frame.hex())

    def warp(self, millis):
        self.ovs.appctl("time/warp", str(millis))
        self.warped += millis

    def sent(self):
        return int(re.search(r"tx pkts=(\d+)", self.ovs.ofctl("dump-ports", "br0", "2"))[1])

    def by_queue(self, name="tx_packets"):
        text = self.ovs.appctl("qos/show", "p2")
        return {int(number or 0): int(value) for number, value in
                re.findall(rf"^(?:Default|Queue (\d+)):\n(?:  .*\n)*?  {name}: (\d+)", text, re.M)}


def test_what_is_too_much_waits_and_leaves_at_the_rate(ovs):
    ports = Ports(ovs)
    ports.receive(60)
    until(lambda: ports.by_queue() != {0: 0}, what="the burst")
    # 4 ms of the rate, and what the queue is guaranteed beside.
    assert ports.sent() <= 4 + 3
    for _ in range(200):
        ports.warp(2)
        assert ports.sent() <= 2 * ports.warped + 4 + 3
    until(lambda: ports.sent() == 60, what="all of them")
    assert ports.by_queue() == {0: 60} and ports.by_queue("tx_errors") == {0: 0}
    assert "queue_full" not in ovs.appctl("coverage/show")


def test_a_queue_is_bounded_and_others_are_not_kept_out(ovs):
    ports = Ports(ovs, q1=["other_config:max-rate=8000"], q2=["other_config:priority=7"])
    ports.receive(1100, 1)
    until(lambda: ports.by_queue("tx_errors")[1] > 90, what="drops")
    assert int(ovs.appctl("coverage/read-counter", "datapath_drop_queue_full")) == ports.by_queue("tx_errors")[1]
    ports.receive(3, 2)
    for _ in range(20):
        ports.warp(2)
    until(lambda: ports.by_queue()[2] == 3, what="the other queue")
    assert ports.by_queue()[1] <= 5
    # What waits is sent without a QoS.
    ovs.vsctl("clear", "port", "p2", "qos")
    until(lambda: ports.sent() == 1103 - int(ovs.appctl("coverage/read-counter", "datapath_drop_queue_full")), what="what waited")


def test_a_change_keeps_what_waits_and_its_counters(ovs):
    ports = Ports(ovs, q1=["other_config:max-rate=8000"])
    ports.receive(50, 1)
    until(lambda: ports.by_queue()[1] > 0, what="the burst")
    before = ports.by_queue()[1]
    assert before <= 5
    ports.qos("type=linux-htb", "other_config:max-rate=800000000", q1=["other_config:max-rate=800000000"])
    for _ in range(5):
        ports.warp(4)
    until(lambda: ports.by_queue()[1] == 50, what="all at the new rate")
    assert ports.sent() == 50


def test_a_port_that_goes_takes_what_waits_along(ovs):
    ports = Ports(ovs)
    ports.receive(40)
    until(lambda: ports.by_queue() != {0: 0}, what="the burst")
    left = 40 - ports.sent()
    ovs.vsctl("del-port", "br0", "p2")
    until(lambda: int(ovs.appctl("coverage/read-counter", "datapath_drop_port_down")) == left, what="drops")


def test_types_without_a_kernel(ovs):
    ports = Ports(ovs, q1=["other_config:min-rate=800000", "other_config:burst=80000", "other_config:priority=3"])
    assert ovs.appctl("qos/show-types", "p2").split("\n")[:3] == ["QoS type: linux-htb", "QoS type: linux-hfsc", "QoS type: egress-policer"]
    assert "Queue 1:\n  burst: 80000\n  max-rate: 8000000\n  min-rate: 800000\n  priority: 3\n" in ovs.appctl("qos/show", "p2")
    ports.receive(1, 1)
    until(lambda: re.search(r"queue 1: bytes=1000, pkts=1, errors=0", ovs.ofctl("queue-stats", "br0", "2")), what="statistics")


def test_real_traffic_is_no_faster_than_its_queue(lab):  # noqa: F811
    """A port that sends past the kernel's discipline."""
    lab.ovs.vsctl("set", "interface", port(lab), "options:qdisc-bypass=true")
    set_qos(lab, *HTB, q1=["other_config:max-rate=4000000"])
    until(lambda: "linux-htb" in lab.ovs.appctl("qos/show", port(lab)), what="the QoS")
    began = time.monotonic()
    send(lab, 7001, 300)
    # Of frames of 1014 bytes, in order and none lost; the bucket lets two of them pass at once.
    assert time.monotonic() - began > (300 * 1014 - 2 * 3036) * 8 / 4e6
    assert shown(lab, "Queue 1") == {"burst": 12000, "max-rate": 4000000, "min-rate": 12000, "tx_packets": 300, "tx_bytes": 300 * 1014,
                                     "tx_errors": 0}


def test_changes_lose_and_overtake_nothing_that_waits(lab):  # noqa: F811
    """Workers that come and go, another rate, and none."""
    ovs, (a, b) = lab.ovs, lab.hosts
    ovs.vsctl("set", "interface", port(lab), "options:qdisc-bypass=true")
    slow = ["other_config:max-rate=1000000"]

    def workers():
        for mask in (3, 1):
            ovs.vsctl("set", "open", ".", f"other_config:pmd-cpu-mask={mask}")

    def came():
        """Packets for queue 1 that the switch has received."""
        return int(re.search(r"n_packets=(\d+)", ovs.ofctl("dump-flows", "br0", "in_port=1,udp,tp_dst=7001"))[1])

    changes = [workers, lambda: set_qos(lab, *HTB, q1=["other_config:max-rate=50000000"]), lambda: ovs.vsctl("clear", "port", port(lab), "qos")]
    with udp(b, "10.0.0.2", 7001) as server, udp(a, "10.0.0.1") as client:
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        server.settimeout(30)
        for change in changes:
            set_qos(lab, *HTB, q1=slow)
            until(lambda: ovs.appctl("qos/show", port(lab)).count("max-rate: 1000000\n") == 1, what="the slow queue")
            before = came()
            for number in range(300):
                client.sendto(number.to_bytes(4, "big") + bytes(900), ("10.0.0.2", 7001))
            # What a worker receives that takes the receive queue over may overtake what waits with the one before it.
            until(lambda: came() == before + 300, what="all of them at the switch")
            change()
            assert [int.from_bytes(server.recv(2000)[:4], "big") for _ in range(300)] == list(range(300)), change
