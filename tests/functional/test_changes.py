"""Changes under traffic: behind a barrier's reply, no packet is forwarded as before."""

import bisect
import multiprocessing
import random
import re
import socket
import struct
import threading
import time

import pytest
from lib.daemon import config
from lib.net import run

SOURCES = 20_000
SECONDS = 6
UDP_FRAME = bytes.fromhex("0200000000020200000000010800")


@pytest.fixture
def wires(net):
    """Two veth pairs; the switch has the first end of each."""
    names = [("chga0", "chga1"), ("chgb0", "chgb1")]
    for ends in names:
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end in ends:
            run("ip", "link", "set", end, "up")
    yield names
    for ends in names:
        run("ip", "link", "del", ends[0], check=False)


def frame(source, stamp):
    """A UDP packet that carries when it was sent."""
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


def send(name, stopped):
    """Frames of random sources, which miss or have a flow already, until told to stop."""
    raw, choose = packet_socket(name), random.Random(5)
    while not stopped.is_set():
        for _ in range(64):
            try:
                raw.send(frame(choose.randrange(SOURCES), time.monotonic_ns()))
            except BlockingIOError:
                pass
        # Leaves room for the switch on a machine with few cores.
        time.sleep(0.001)


class Receiver(threading.Thread):
    """Collects the stamps of frames, and which change they have gone by."""

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
        """Has table 1 write this number to each packet, and returns when that is in force."""
        # NXT_FLOW_MOD: cookie, table and command (add), timeouts, priority, buffer, port, flags, length of the match.
        match = struct.pack(">IH", 0x00000602, 0x0800) + struct.pack(">IB", 0x00000C01, 17)
        head = struct.pack(">QHHHHIHHH6x", 0, 1 << 8, 0, 0, 10, 0xFFFFFFFF, 0xFFFF, 0, len(match))
        actions = struct.pack(">HHH2x", 9, 8, number) + struct.pack(">HHHH", 0, 8, 2, 0xFFFF)
        body = struct.pack(">II", 0x2320, 13) + head + match + bytes(-len(match) % 8) + actions
        self.peer.sendall(struct.pack(">BBHI", 1, 4, 8 + len(body), 7) + body + bytes.fromhex("0112000800000008"))
        assert (kind := self.kind()) == 19, f"a message of type {kind} instead of the barrier's reply"


def test_no_packet_is_forwarded_by_a_stale_flow_after_the_barrier_reply(weir, wires):
    (into, sender), (out, receiver) = wires
    switch = weir(config([(into, "afpacket", ""), (out, "afpacket", "")], more='fail_mode = "secure"'))
    # Each source has a flow of its own.
    switch.ofctl("add-flow", "br0", "udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],resubmit(,1)")
    changer, seen, in_force, stopped = Changer(switch), Receiver(receiver), [], multiprocessing.Event()
    changer.change(1)
    in_force.append(time.monotonic_ns())
    sending = multiprocessing.Process(target=send, args=(sender, stopped), daemon=True)
    sending.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        changer.change(len(in_force) + 1)
        in_force.append(time.monotonic_ns())
        time.sleep(0.002)
    stopped.set()
    sending.join()
    time.sleep(0.5)
    seen.stopped = True
    seen.join()
    flows = int(re.search(r"current (\d+)", switch.appctl("upcall/show"))[1])
    assert len(in_force) > 50 and flows > SOURCES // 10 and len(seen.seen) > 5_000, (len(in_force), flows, len(seen.seen))
    # A packet that is sent after the reply to change n goes by change n or a later one.
    stale = [(stamp, change) for stamp, change in seen.seen if change < bisect.bisect_right(in_force, stamp)]
    assert not stale, f"{len(stale)} of {len(seen.seen)} packets, as {stale[:3]}"


def test_many_changes_at_once_come_into_force_together(weir, wires):
    """A barrier behind a thousand changes of a table that flows depend on, and one of a connection without changes."""
    (into, sender), (out, receiver) = wires
    switch = weir(config([(into, "afpacket", ""), (out, "afpacket", "")], more='fail_mode = "secure"'))
    switch.ofctl("add-flow", "br0", "udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],resubmit(,1)")
    changer, seen, raw = Changer(switch), Receiver(receiver), packet_socket(sender)
    changer.change(1)
    for source in range(2000):
        raw.send(frame(source, 0))
        if source % 50 == 0:
            time.sleep(0.002)
    rules = "".join(f"table=0,priority=9,udp,nw_src=10.0.{n >> 8}.{n & 255},actions=drop\n" for n in range(1000))
    (switch.dir / "rules").write_text(rules)
    switch.ofctl("add-flows", "br0", str(switch.dir / "rules"))
    mark = time.monotonic_ns()
    for source in range(2000):
        raw.send(frame(source, mark + source))
        if source % 50 == 0:
            time.sleep(0.002)
    time.sleep(0.5)
    seen.stopped = True
    seen.join()
    passed = {stamp - mark for stamp, _ in seen.seen if stamp >= mark}
    assert passed and min(passed) >= 1000, sorted(passed)[:5]
    assert len(passed) > 900, f"{len(passed)} of the thousand sources that are not dropped"
