"""Changes under traffic: behind a barrier's reply, no packet is forwarded as before."""

import random
import select
import socket
import struct
import threading
import time

import pytest
from lib.daemon import config
from lib.net import run
from lib.wait import until

#: How many changes there are, and how many new flows at each.
CHANGES, NEW = 1000, 24
#: How many look-ups a translation makes, so that changes fall into the time between it and its flow's installation.
DETOURS = 150
#: After so many changes, the flows so far are removed: few are left to bring up to date.
PURGED = 4
#: The longest time between new flows and the change, in seconds.
LATEST = 0.0015
UDP_FRAME = bytes.fromhex("0200000000020200000000010800")


@pytest.fixture
def wires(net):
    """Three veth pairs; the switch has the first end of each."""
    names = [(f"chg{pair}0", f"chg{pair}1") for pair in "abc"]
    for ends in names:
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end in ends:
            run("ip", "link", "set", end, "up")
    yield names
    for ends in names:
        run("ip", "link", "del", ends[0], check=False)


def frame(source, stamp):
    """A UDP packet that carries a number."""
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0x4000, 64, 17, 0, 0x0A000000 | source, 0x0B000001)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    return UDP_FRAME + ip + struct.pack("!HHHHQ", 1, 53, 26, 0, stamp) + bytes(10)


def packet_socket(name):
    # ETH_P_IP.
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    raw.bind((name, 0x0800))
    return raw


class Receiver(threading.Thread):
    """Collects the numbers of frames, and which change they have gone by."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.raw, self.seen, self.stopped = packet_socket(name), [], False
        self.raw.settimeout(0.2)
        self.start()

    def run(self):
        while not self.stopped:
            try:
                data = self.raw.recv(2048)
            except TimeoutError:
                continue
            change, target, _, _, stamp = struct.unpack_from("!HHHHQ", data, 34)
            if target == 53:
                self.seen.append((stamp, change))


def collect(receivers, change, count):
    """Of the frames that were sent after a change: the number of the receiver, and the change that each has gone by.
    Waits for as many, but not for those that were lost."""
    seen = []
    while len(seen) < count:
        ready, _, _ = select.select(receivers, [], [], 0.5)
        if not ready:
            break
        for raw in ready:
            by, target, _, _, stamp = struct.unpack_from("!HHHHQ", raw.recv(2048), 34)
            if target == 53 and stamp >> 32 == change:
                seen.append((receivers.index(raw), by))
    return seen


class Changer:
    """A client of the bridge's socket that speaks OpenFlow 1.0."""

    def __init__(self, switch):
        self.peer, self.data = socket.socket(socket.AF_UNIX), b""
        self.peer.settimeout(30)
        self.peer.connect(str(switch.dir / "br0.mgmt"))
        self.peer.sendall(bytes.fromhex("0100000800000001"))
        assert self.kind() == 0
        # NXT_FLOW_MOD_TABLE_ID: commands name a table.
        self.peer.sendall(struct.pack(">BBHIIIB7x", 1, 4, 24, 6, 0x2320, 15, 1))

    def kind(self):
        while len(self.data) < 8 or len(self.data) < struct.unpack_from(">H", self.data, 2)[0]:
            data = self.peer.recv(1 << 14)
            assert data, "the daemon has hung up"
            self.data += data
        kind, size = struct.unpack_from(">BH", self.data, 1)
        self.data = self.data[size:]
        return kind

    def change(self, number):
        """Has table 1 write this number to each packet, and send it to port 2 or 3 by turns. Returns when that is in
        force."""
        # NXT_FLOW_MOD: cookie, table and command (add), timeouts, priority, buffer, port, flags, length of the match.
        match = struct.pack(">IH", 0x00000602, 0x0800) + struct.pack(">IB", 0x00000C01, 17)
        head = struct.pack(">QHHHHIHHH6x", 0, 1 << 8, 0, 0, 10, 0xFFFFFFFF, 0xFFFF, 0, len(match))
        actions = struct.pack(">HHH2x", 9, 8, number) + struct.pack(">HHHH", 0, 8, 2 + number % 2, 0xFFFF)
        body = struct.pack(">II", 0x2320, 13) + head + match + bytes(-len(match) % 8) + actions
        self.peer.sendall(struct.pack(">BBHI", 1, 4, 8 + len(body), 7) + body + bytes.fromhex("0112000800000008"))
        assert (kind := self.kind()) == 19, f"a message of type {kind} instead of the barrier's reply"


def test_no_packet_is_forwarded_by_a_stale_flow_after_the_barrier_reply(wires, weir):
    """Flows are made while the rule that they depend on changes. Behind the reply, the same flows' packets go by it."""
    (into, sender), *outputs = wires
    ports = [(port, "afpacket", "") for port in (into, *(port for port, _ in outputs))]
    switch = weir(config(ports, more='fail_mode = "secure"'))
    # Each source has a flow of its own.
    way = "resubmit(,2)," * DETOURS + "resubmit(,1)"
    switch.ofctl("add-flow", "br0", f"udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],{way}")
    changer, receivers, raw = Changer(switch), [packet_socket(end) for _, end in outputs], packet_socket(sender)
    choose, lost, stale = random.Random(5), 0, []
    for change in range(1, CHANGES + 1):
        sources = range(change * NEW, (change + 1) * NEW)
        for source in sources:
            raw.send(frame(source, 0))
        time.sleep(choose.uniform(0, LATEST))
        changer.change(change)
        for source in sources:
            raw.send(frame(source, change << 32 | source))
        seen = collect(receivers, change, NEW)
        lost += NEW - len(seen)
        stale += [(change, by) for receiver, by in seen if (receiver, by) != (change % 2, change)]
        if change % PURGED == 0:
            switch.appctl("revalidator/purge")
    assert lost < CHANGES * NEW // 10, f"{lost} packets are missing: too few are left to tell"
    changes = len({change for change, _ in stale})
    assert not stale, f"{len(stale)} packets of {changes} of {CHANGES} changes, as {stale[:3]}"


def test_many_changes_at_once_come_into_force_together(wires, weir):
    """A barrier behind a thousand changes of a table that flows depend on, and one of a connection without changes."""
    (into, sender), (out, receiver), _ = wires
    switch = weir(config([(into, "afpacket", ""), (out, "afpacket", "")], more='fail_mode = "secure"'))
    switch.ofctl("add-flow", "br0", "udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],resubmit(,1)")
    changer, seen, raw = Changer(switch), Receiver(receiver), packet_socket(sender)
    changer.change(2)
    for source in range(2000):
        raw.send(frame(source, 0))
        if source % 50 == 0:
            time.sleep(0.002)
    rules = "".join(f"table=0,priority=40000,udp,nw_src=10.0.{n >> 8}.{n & 255},actions=drop\n" for n in range(1000))
    (switch.dir / "rules").write_text(rules)
    switch.ofctl("add-flows", "br0", str(switch.dir / "rules"))
    mark = time.monotonic_ns()
    for source in range(2000):
        raw.send(frame(source, mark + source))
        if source % 50 == 0:
            time.sleep(0.002)
    passed = lambda: {stamp - mark for stamp, _ in list(seen.seen) if stamp >= mark}  # noqa: E731

    def all_have_passed():
        """What found no room on its way to the slow path is sent again."""
        missing = set(range(1000, 2000)) - passed()
        for source in missing:
            raw.send(frame(source, mark + source))
            time.sleep(0.001)
        time.sleep(0.1)
        return not missing

    until(all_have_passed, what="the thousand sources that are not dropped")
    seen.stopped = True
    seen.join()
    assert min(passed()) >= 1000, sorted(passed())[:5]
