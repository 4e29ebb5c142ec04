"""Faults while packets flow: what is in order goes on, and every packet is sent or dropped for a reason with a name.

In each test an established connection goes from `p1` to `p2` all the time, and none of its frames may be lost. What goes
wrong happens to others, whose packets are counted to the last one."""

import itertools
import os
import re
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from conftest import until
from lib.net import run
from lib.pcap import write_pcap
from lib.stopped import Stopped
from lib.stream import Stream
from lib.traffic import Traffic

pytestmark = pytest.mark.timeout(300)

# OFPT_HELLO and OFPT_BARRIER_REQUEST of OpenFlow 1.0.
HELLO = bytes.fromhex("0100000800000001")
BARRIER = bytes.fromhex("0112000800000002")
PACKET_IN, BARRIER_REPLY = 10, 19

#: At least so many packets of one port can wait in the slow path of a worker.
SHARE = 600

EXPECTED = [r"\|rconn\|WARN\|OpenFlow connection closed: "]


def udp(n, size=60, source=1):
    """A frame of a connection of its own for each number."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size - 14, 0, 0, 64, 17, 0, bytes((10, source, n >> 24, n >> 16 & 255)),
                     bytes((198, 18, 0, 1)))
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return (bytes.fromhex("020000000099" "02000000") + bytes((source, 0)) + b"\x08\0" + ip
            + struct.pack(">HHHH", n & 0xffff, 9, size - 34, 0)).ljust(size, b"\0")


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def memory(pid):
    """MB that a process has."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


#: The beginning of the frames from p1 to p2.
HEAD = bytes.fromhex("020000000002" "020000000001" "88b5")

#: Sends the packets of a port to p3. Each is of a flow of its own.
ITS_OWN_FLOW = "move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],move:NXM_OF_IP_SRC[]->NXM_NX_REG1[],output:3"


#: Sends to ADDRESS from so many ports a datagram of so many bytes each.
CONNECTIONS = """
import socket, sys
address, count, size = sys.argv[1], *map(int, sys.argv[2:])
for n in range(count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(('', 2000 + n))
        s.sendto(bytes(size), (address, 9))
"""


class Switch:
    """A bridge of the dummy ports p1, p2 and p3 (number 1, 2 and 3); ports that flood are added to it."""

    def __init__(self, ovs, tmp_path):
        self.ovs, self.dir = ovs, tmp_path
        self.numbers = itertools.count(10)
        self.bridges = {}
        ovs.start("--enable-dummy")
        args = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail-mode=secure"]
        for n in (1, 2, 3):
            wire = [f"options:pstream=punix:{ovs.dir}/p{n}.sock"] if n < 3 else []
            args += ["--", "add-port", "br0", f"p{n}", "--", "set", "interface", f"p{n}", "type=dummy",
                     f"ofport_request={n}", *wire]
        ovs.vsctl(*args)
        self.stream = None

    def begin(self, **kw):
        """Begins to send from p1 to p2."""
        self.ovs.ofctl("add-flow", "br0", "priority=100,in_port=1,actions=output:2")
        self.stream = Stream(self.ovs.dir / "p1.sock", self.ovs.dir / "p2.sock", HEAD, **kw)
        self.stream.goes_on()

    def flood(self, name, frames, actions=ITS_OWN_FLOW, bridge="br0", wait=True, **options):
        """Adds a port at which these frames come in, as fast as they are taken, and what its packets are for."""
        number = next(self.numbers)
        path = self.dir / f"{name}.pcap"
        write_pcap(path, frames)
        if actions:
            self.ovs.ofctl("-O", "OpenFlow13", "add-flow", bridge, f"priority=50,in_port={number},udp,actions={actions}")
        self.ovs.vsctl("add-port", bridge, name, "--", "set", "interface", name, "type=pcap",
                       f"ofport_request={number}", f"options:rx_pcap={path}",
                       *(f"options:{key}={value}" for key, value in options.items()))
        if wait:
            self.received(name, len(frames))
        return number

    def received(self, name, count, bridge="br0"):
        """Returns when so many frames have come in at a port."""
        until(lambda: self.ovs.counters(name, bridge)["rx_pkts"] == count, 60, f"{count} frames received by {name}")

    def account(self):
        """What became of all packets: {"received": 1, ..., "drops": {reason: 1}}."""
        stats = self.ovs.json("stats")
        workers = stats["workers"] + ([stats["ended"]] if stats.get("ended") else [])
        total = {key: sum(worker[key] for worker in workers)
                 for key in ("packets", "injected", "copied", "sent", "refused", "punted", "joined", "misses", "lost")}
        drops = {}
        for worker in workers:
            for reason, count in worker["drops"].items():
                drops[reason] = drops.get(reason, 0) + count
        return {**total, "drops": drops, "came": total["packets"] + total["injected"] + total["copied"],
                "went": total["sent"] + total["refused"] + total["punted"] + total["joined"] + sum(drops.values()),
                "evictions": stats["evictions"], "flow_bytes": stats["flow_bytes"], "flows": stats["flows"]}

    def waiting(self):
        """How many packets are under way. Those of the stream are, too."""
        account = self.account()
        return account["came"] - account["went"]

    def settled(self, reasons):
        """Ends the stream, which has lost nothing. The account of all packets, in which nothing is missing; none was dropped
        for another reason than these."""
        count = self.stream.check()
        until(lambda: self.waiting() == 0, 30, "the account of packets")
        account = self.account()
        assert set(account["drops"]) <= set(reasons), account
        # The rest is about the others.
        account["packets"] -= count
        account["sent"] -= count
        account["dropped"] = sum(account["drops"].values())
        return account

    def answers(self):
        """The management is there."""
        assert "3.1.0" in self.ovs.appctl("version")
        assert "in_port=1" in self.ovs.ofctl("dump-flows", "br0")

    def handler(self, number=0, **kw):
        """Stops a thread of the slow path: `with` it, what misses waits."""
        return Stopped(self.ovs.pid(), f"handler{number}", **kw)


@pytest.fixture
def quiet(ovs, tmp_path):
    """A switch on which nothing goes from p1 to p2 yet."""
    switch = Switch(ovs, tmp_path)
    yield switch
    if switch.stream:
        switch.stream.close()


@pytest.fixture
def switch(quiet):
    quiet.begin()
    return quiet


def test_a_slow_path_that_stands_still_for_a_second(switch):
    total = 8000
    with switch.handler():
        began = time.monotonic()
        switch.flood("hose", [udp(n) for n in range(total)])
        assert switch.waiting() >= SHARE
        while time.monotonic() < began + 1:
            switch.stream.goes_on()
        switch.answers()
        switch.ovs.ofctl("add-flow", "br0", "table=7,actions=drop")
        switch.ovs.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=100")
        switch.stream.goes_on()
    account = switch.settled(["upcall_queue_full"])
    out = switch.ovs.counters("p3")["tx_pkts"]
    assert account["packets"] == total and out == account["sent"]
    assert out >= SHARE and account["dropped"] >= 1000 and out + account["dropped"] == total, account


def test_a_quiet_port_has_a_place_in_a_slow_path_that_stands_still(switch):
    with switch.handler():
        switch.flood("hose", [udp(n) for n in range(6000)])
        # Many ports flood, and there is still room for what another sends.
        for port in range(3):
            switch.flood(f"more{port}", [udp(n, source=2 + port) for n in range(5000)])
        dropped = switch.account()["drops"]["upcall_queue_full"]
        switch.flood("quiet", [udp(n, source=9) for n in range(10)], actions="move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],LOCAL")
        assert switch.account()["drops"]["upcall_queue_full"] == dropped
        switch.stream.goes_on()
    account = switch.settled(["upcall_queue_full"])
    assert switch.ovs.counters("LOCAL")["tx_pkts"] == 10
    assert account["packets"] == 21_010 == account["sent"] + account["dropped"]


def test_a_slow_path_that_stops_wherever_it_is(switch):
    """Also in the middle of a translation, with all that it has locked: forwarding waits for none of it."""
    total, stops = 40_000, 0
    switch.flood("hose", [udp(n) for n in range(total)], wait=False, rate=20_000)
    while (received := switch.ovs.counters("hose")["rx_pkts"]) < total:
        with switch.handler(idle=False):
            switch.stream.goes_on(200)
        stops += 1
    assert received == total and stops > 3
    account = switch.settled(["upcall_queue_full"])
    assert account["packets"] == total == account["sent"] + account["dropped"]
    assert switch.ovs.counters("p3")["tx_pkts"] == account["sent"]


@pytest.mark.parametrize("setting", ["flow-limit=100", "megaflow-memory-limit=1"])
def test_a_budget_for_flows_that_is_used_up(switch, setting):
    total = 20_000
    switch.ovs.vsctl("set", "open", ".", f"other_config:{setting}")
    switch.flood("hose", [udp(n) for n in range(total)], rate=20_000)
    switch.answers()
    before = switch.account()
    account = switch.settled(["upcall_queue_full"])
    assert account["evictions"] > total / 4, account
    # The last flow may exceed the budget of memory.
    assert before["flows"] <= 100 if setting.startswith("flow-limit") else before["flow_bytes"] < (1 << 20) + 1024, before
    # Those whose flows were evicted are forwarded all the same.
    assert account["packets"] == total == account["sent"] + account["dropped"]
    assert switch.ovs.counters("p3")["tx_pkts"] == account["sent"] >= total / 4


def test_large_frames_that_wait(switch, net):
    """Two ports fill what the slow path has for them with large frames. There is memory for those of others."""
    ovs = switch.ovs
    ovs.vsctl("set", "interface", "p3", "mtu_request=9000")
    hosts = [net.host(f"10.0.{n // 2}.{n % 2 + 1}/24", mtu=9000) for n in range(4)]
    for n, host in enumerate(hosts, 20):
        ovs.vsctl("add-port", "br0", host.port, "--", "set", "interface", host.port, f"ofport_request={n}")
    for n in (20, 21):
        ovs.ofctl("add-flow", "br0", f"priority=50,in_port={n},actions=output:{41 - n}")
    for n in (22, 23):
        ovs.ofctl("add-flow", "br0", f"priority=50,in_port={n},udp,actions={ITS_OWN_FLOW}")
    traffic = Traffic(*hosts[:2], "10.0.0.2", size=8000)
    traffic.goes_on()
    with switch.handler():
        for host in hosts[2:]:
            host.run("ip", "neigh", "replace", "10.0.1.9", "lladdr", "02:00:00:00:00:99", "dev", "eth0")
            host.run("python3", "-c", CONNECTIONS, "10.0.1.9", 2000, 8000)
        # More than there are large buffers.
        until(lambda: switch.waiting() >= 1200, what="packets in the slow path")
        traffic.goes_on()
        switch.stream.goes_on()
    # The kernel drops what comes to a socket of the switch while another process has the processor of the worker.
    sent = traffic.check(lost=50)
    # Frames of IPv6 and ARP may come as well, which no flow takes.
    account = switch.settled(["upcall_queue_full", "rule"])
    assert account["packets"] == account["sent"] + account["dropped"] >= sent + 2 * SHARE


class Controller:
    """Where a switch connects to, says this and no more, and reads only what it is told to."""

    def __init__(self, path, says):
        self.path, self.says = path, says
        self.listener = socket.socket(socket.AF_UNIX)
        # Little of what is sent to it fits between it and the switch.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(20)
        self.peer, self.data = None, b""

    def accept(self):
        self.peer, _ = self.listener.accept()
        self.peer.settimeout(20)
        self.peer.sendall(self.says)

    def message(self):
        """The next message: its type and body."""
        while len(self.data) < 8 or len(self.data) < struct.unpack_from(">H", self.data, 2)[0]:
            piece = self.peer.recv(1 << 16)
            assert piece, "the switch has hung up"
            self.data += piece
        size = struct.unpack_from(">H", self.data, 2)[0]
        message, self.data = self.data[:size], self.data[size:]
        return message[1], message[8:]

    def packet_in(self):
        """The frame of the next packet-in."""
        while True:
            kind, body = self.message()
            if kind == PACKET_IN:
                return body[10:]

    def until_barrier(self):
        """The frames of the packet-ins before the answer to a barrier."""
        frames = []
        while (message := self.message())[0] != BARRIER_REPLY:
            if message[0] == PACKET_IN:
                frames.append(message[1][10:])
        return frames

    def close(self):
        for s in filter(None, [self.peer, self.listener]):
            s.close()


@pytest.fixture
def controllers(quiet):
    made = []

    def connect(*says, **columns):
        """A controller for each of these, connected. With the first one, a bridge loses its flows: they come after that."""
        made.extend(Controller(quiet.ovs.dir / f"controller{n}", what) for n, what in enumerate(says))
        columns = [f"{key}={value}" for key, value in {"inactivity_probe": 0, **columns}.items()]
        rows = [word for n, c in enumerate(made)
                for word in ("--", f"--id=@c{n}", "create", "controller", f'target="unix:{c.path}"', *columns)]
        quiet.ovs.vsctl(*rows[1:], "--", "set", "bridge", "br0",
                        "controller=" + ",".join(f"@c{n}" for n in range(len(made))))
        for controller in made:
            controller.accept()
        quiet.begin()
        return made

    yield connect
    for controller in made:
        controller.close()


@pytest.mark.parametrize("says", [b"", HELLO[:5], HELLO, HELLO + bytes.fromhex("0110003800")],
                         ids=["nothing", "half a hello", "hello", "half a request"])
def test_a_controller_that_never_answers(quiet, controllers, says):
    """It never reads either. Another one gets what it is sent."""
    switch, total = quiet, 3000
    deaf, good = controllers(says, HELLO)
    switch.flood("hose", [udp(n) for n in range(total)], "controller(max_len=65535),output:3")
    for _ in range(50):
        frame = good.packet_in()
        assert frame == udp(struct.unpack_from(">H", frame, 34)[0])
    switch.answers()
    switch.ovs.ofctl("packet-out", "br0", f"in_port=none packet={udp(0).hex()} actions=LOCAL")
    account = switch.settled(["upcall_queue_full"])
    out = switch.ovs.counters("p3")["tx_pkts"]
    assert switch.ovs.counters("LOCAL")["tx_pkts"] == account["injected"] == account["sent"] - out == 1
    # Each packet that did not find the slow path full has a copy for the controllers.
    assert account["packets"] == total and account["punted"] >= 100, account
    assert total + account["copied"] == out + account["punted"] + account["dropped"], account


def test_a_flood_of_packet_ins(quiet, controllers):
    """What another port has to tell is not lost in it, although the controller reads nothing until it is over."""
    switch, total = quiet, 20_000
    (controller,) = controllers(HELLO)
    for name in ("before", "after"):
        # Large ones, of which sockets do not hold many.
        switch.flood(name, [udp(n, 1400) for n in range(total)], "controller(max_len=65535)")
        if name == "before":
            switch.flood("quiet", [udp(n, source=9) for n in range(20)], "controller(max_len=65535)")
    switch.answers()
    account = switch.settled(["upcall_queue_full"])
    assert account["packets"] == 2 * total + 20 == account["punted"] + account["dropped"], account
    assert account["punted"] >= 2 * SHARE
    controller.peer.sendall(BARRIER)
    heard = controller.until_barrier()
    assert [frame for frame in heard if frame[27] == 9] == [udp(n, source=9) for n in range(20)], len(heard)


def test_the_rate_of_packet_ins_is_limited(quiet, controllers):
    switch, total = quiet, 500
    (controller,) = controllers(HELLO, controller_rate_limit=100, controller_burst_limit=25)
    switch.ovs.appctl("time/stop")
    switch.flood("hose", [udp(n) for n in range(total)], "controller(max_len=65535)")
    account = switch.settled(["upcall_queue_full"])
    assert account["punted"] == total

    def heard():
        controller.peer.sendall(BARRIER)
        return len(controller.until_barrier())

    # As many as there may be at once, and those that wait behind them at the rate.
    assert [heard(), heard()] == [25, 0]
    switch.ovs.appctl("time/warp", "100")
    assert heard() == 10
    switch.ovs.appctl("time/warp", "10000")
    assert [heard(), heard()] == [15, 0]


def test_packet_outs_that_no_worker_takes(quiet, controllers):
    """They wait at the controller, not in the switch."""
    switch, total = quiet, 4000
    (controller,) = controllers(HELLO)
    switch.ovs.vsctl("set", "interface", "p3", "mtu_request=60000")
    pid = switch.ovs.pid()
    data = udp(0, 60_000)
    actions = struct.pack(">HHHH", 0, 8, 3, 0)
    out = struct.pack(">BBHIIHH", 1, 13, 16 + 8 + len(data), 7, 0xffffffff, 0xfffd, 8) + actions + data
    before = memory(pid)
    names = [comm.read_text().strip() for comm in Path(f"/proc/{pid}/task").glob("*/comm")]
    [worker] = [name for name in names if re.match(r"worker|pmd", name)]
    sent = []

    def send():
        for message in [out] * total + [BARRIER]:
            controller.peer.sendall(message)
            sent.append(message)

    sender = threading.Thread(target=send, daemon=True)
    with Stopped(pid, worker, idle=False):
        sender.start()
        # It takes some, and then no more, although it has time for others.
        taken = -1
        while taken < len(sent) < total:
            taken = len(sent)
            for _ in range(50):
                assert "3.1.0" in switch.ovs.appctl("version")
        assert 100 < taken < 1000 and memory(pid) < before + 64, f"{taken} taken, {memory(pid) - before} MB"
    controller.until_barrier()
    sender.join()
    account = switch.settled([])
    assert account["injected"] == total == switch.ovs.counters("p3")["tx_pkts"] == account["sent"]


def test_a_port_that_is_removed_while_its_packets_wait(switch):
    total = 3000
    with switch.handler():
        switch.flood("hose", [udp(n) for n in range(total)])
        assert switch.waiting() >= SHARE
        switch.ovs.vsctl("del-port", "hose")
        switch.stream.goes_on()
        # Another one comes in its place.
        switch.flood("next", [udp(n, source=2) for n in range(100)])
        switch.ovs.vsctl("del-port", "p3", "--", "add-port", "br0", "p3", "--", "set", "interface", "p3", "type=dummy",
                         "ofport_request=3")
        switch.stream.goes_on()
    account = switch.settled(["upcall_queue_full", "upcall_error", "no_such_port"])
    assert account["packets"] == total + 100 == account["sent"] + account["dropped"]
    # What the removed port's packets are for is not known any more.
    assert account["drops"]["upcall_error"] >= SHARE
    assert switch.ovs.counters("p3")["tx_pkts"] == account["sent"] == 100


def test_ports_that_come_and_go_in_a_flood(switch):
    """Whatever has become of a packet when its port goes, or the port that it is for."""
    flood = [udp(n) for n in range(50_000)]
    received = 0
    for round in range(6):
        switch.flood(f"hose{round}", flood, wait=False, rate=200_000)
        until(lambda: switch.ovs.counters(f"hose{round}")["rx_pkts"] > 500, what="the flood")
        if round % 2:
            switch.ovs.vsctl("del-port", "p3")
            switch.ovs.vsctl("add-port", "br0", "p3", "--", "set", "interface", "p3", "type=dummy", "ofport_request=3")
        switch.ovs.vsctl("del-port", f"hose{round}")
        switch.stream.goes_on()
    account = switch.settled(["upcall_queue_full", "upcall_error", "no_such_port"])
    assert account["packets"] == account["sent"] + account["dropped"] > 3000


def test_a_bridge_that_is_deleted_while_its_packets_wait(switch):
    total = 3000
    switch.ovs.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "fail-mode=secure")
    with switch.handler():
        switch.flood("hose", [udp(n) for n in range(total)], "LOCAL", bridge="br1", wait=False)
        switch.received("hose", total, "br1")
        assert switch.waiting() >= SHARE
        switch.ovs.vsctl("del-br", "br1")
        switch.stream.goes_on()
    account = switch.settled(["upcall_queue_full", "upcall_error"])
    assert account["packets"] == total == account["dropped"] and account["drops"]["upcall_error"] >= SHARE
    switch.answers()


def test_a_device_that_is_gone_and_back_while_its_packets_wait(switch, net):
    switch.ovs.expect(r"No such device|no such interface|gone|lost")
    host = net.host("10.0.0.1/24")
    actions = "move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],output:3"
    switch.ovs.ofctl("add-flow", "br0", f"priority=50,in_port=20,udp,actions={actions}")
    switch.ovs.vsctl("add-port", "br0", host.port, "--", "set", "interface", host.port, "ofport_request=20")

    def send(count):
        """Datagrams from so many connections; returns when all have come in."""
        host.run("ip", "neigh", "replace", "10.0.0.2", "lladdr", "02:00:00:00:00:99", "dev", "eth0")
        host.run("python3", "-c", CONNECTIONS, "10.0.0.2", count, 1)

    with switch.handler():
        send(300)
        until(lambda: switch.waiting() >= 300, what="packets that wait")
        run("ip", "link", "del", host.port)
        until(lambda: switch.ovs.get("interface", host.port, "error") != "[]", what="the device's end")
        switch.stream.goes_on()
        run("ip", "link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.ns)
        run("ip", "link", "set", host.port, "up")
        host.run("ip", "addr", "add", "10.0.0.1/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        until(lambda: switch.ovs.get("interface", host.port, "error") == "[]", what="the device's return")
        switch.stream.goes_on()
    out = lambda: switch.ovs.counters("p3")["tx_pkts"]
    came = out()
    send(100)
    until(lambda: out() >= came + 100, what="packets from the new device")
    # Frames of IPv6 and ARP may come as well, which no flow takes.
    account = switch.settled(["upcall_error", "rule"])
    assert account["packets"] == account["sent"] + account["dropped"]


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two cores")
def test_a_worker_that_ends_while_its_packets_wait(switch):
    total = 3000
    ovs = switch.ovs
    ovs.vsctl("set", "open", ".", "other_config:pmd-cpu-mask=3", "other_config:n-handler-threads=2")
    switch.flood("hose", [], wait=False)
    queues = {name: worker["worker"] for worker in ovs.json("stats")["workers"] for name in worker["queues"]}
    for number in (0, 1):
        ovs.vsctl("set", "open", ".", "other_config:pmd-cpu-mask=3")
        name = f"hose{number}"
        with switch.handler(0), switch.handler(1):
            switch.flood(name, [udp(n, source=1 + number) for n in range(total)])
            assert switch.waiting() >= SHARE
            # It ends when its last packet has come back.
            ovs.vsctl("--no-wait", "set", "open", ".", f"other_config:pmd-cpu-mask={1 << number}")
            switch.stream.goes_on()
        until(lambda: len(ovs.json("stats")["workers"]) == 1, what="the worker's end")
        ovs.vsctl("del-port", name)
    account = switch.settled(["upcall_queue_full", "upcall_error"])
    assert account["packets"] == 2 * total == account["sent"] + account["dropped"], (account, queues)


def test_a_group_and_a_meter_that_are_deleted_in_use(switch):
    total = 100_000
    ofctl = lambda *args: switch.ovs.ofctl("-O", "OpenFlow13", *args)
    group = "group_id=1,type=select,bucket=output:3,bucket=LOCAL"
    ofctl("add-group", "br0", group)
    ofctl("add-meter", "br0", "meter=1,pktps,bands=type=drop,rate=1000000")
    number = switch.flood("hose", [udp(n) for n in range(total)], None, wait=False, rate=50_000)
    flow = f"priority=50,in_port={number},udp,actions=meter:1,group:1"
    changes = 0
    ofctl("add-flow", "br0", flow)
    while switch.ovs.counters("hose")["rx_pkts"] < total:
        kind = ["del-groups", "del-meters"][changes % 2]
        ofctl(kind, "br0")
        assert "group:1" not in ofctl("dump-flows", "br0"), "the flow goes with what it needs"
        switch.stream.goes_on(100)
        if kind == "del-groups":
            ofctl("add-group", "br0", group)
        else:
            ofctl("add-meter", "br0", "meter=1,pktps,bands=type=drop,rate=1000000")
        ofctl("add-flow", "br0", flow)
        changes += 1
    account = switch.settled(["upcall_queue_full", "rule"])
    assert changes > 2 and account["drops"]["rule"] > 0
    out = sum(switch.ovs.counters(port)["tx_pkts"] for port in ("p3", "LOCAL"))
    assert account["packets"] == total == out + account["dropped"] and out == account["sent"] > 0


def test_the_daemons_end_in_a_flood(switch):
    """Its account says what became of all, also of those that waited (`Daemon.check_log`)."""
    switch.flood("hose", [udp(n) for n in range(20_000)], wait=False, loop="true")
    switch.stream.goes_on()
    switch.ovs.stop()
    [account] = re.findall(r"\|packets: received (\d+),", switch.ovs.log())
    assert int(account) > switch.stream.came
