"""Peers that say nothing, half a message or garbage, or do not read: they lock nobody out."""

import select
import socket
import struct
import threading

import pytest
from conftest import until
from lib.net import run
from test_controllers import free_port
from test_vswitchd import dummy_bridge, ovs  # noqa: F401

# OFPT_HELLO, and OFPT_STATS_REQUEST of OFPST_DESC and OFPST_FLOW (all of it), of OpenFlow 1.0.
HELLO = bytes.fromhex("0100000800000001")
DESC = bytes.fromhex("0110000c000000020000" "0000")
FLOWS = bytes.fromhex("01100038000000030001" "0000" "003fffff") + bytes(36) + bytes.fromhex("ff00ffff")
ECHO = bytes.fromhex("0102000800000004")
APPCTL = b'{"method": "list-commands", "params": [], "id": 1}'

# More than either listener takes.
MANY = 200

EXPECTED = [r"\|rconn\|WARN\|OpenFlow connection closed: "]


def connect(address):
    """A connection; the listener may take its time to accept it."""
    peer = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    peer.settimeout(20)
    peer.connect(address)
    return peer


def say(peer, what):
    """Whoever has already had to make room cannot be told."""
    try:
        peer.setblocking(False)
        peer.send(what)
    except OSError:
        pass


def closed(peer):
    """Whether the other end has hung up."""
    peer.setblocking(False)
    try:
        while True:
            if not peer.recv(1 << 16):
                return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.fixture
def crowd():
    """Connects many peers, which say `what` and no more."""
    peers = []

    def gather(address, what=b"", many=MANY, each=lambda: None):
        for _ in range(many):
            peers.append(connect(address))
            say(peers[-1], what)
            each()
        return peers

    yield gather
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("what", [b"", b'{"method": "ver', b" " * 100, APPCTL, APPCTL * 500],
                         ids=["nothing", "half a request", "blanks", "a request", "requests, and does not read"])
def test_clients_of_the_control_socket(ovs, crowd, what):  # noqa: F811
    ovs.start()
    peers = crowd(str(ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl"), what)
    for _ in range(3):
        assert "3.1.0" in ovs.appctl("version", timeout=30)
    if what != APPCTL * 500:
        assert sum(map(closed, peers)) >= MANY - 64, "some make room"
    if what != APPCTL and len(what) < 1000:
        assert not any(map(closed, peers[-20:])), "the oldest make room"


def test_clients_of_the_control_socket_that_always_ask_for_more(ovs):  # noqa: F811
    """They read all that they get, and have the next request there before. Whoever comes gets a turn."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    address, done = str(ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl"), threading.Event()

    def greedy():
        while not done.is_set():
            try:
                with connect(address) as peer:
                    peer.sendall(APPCTL * 50)
                    while not done.is_set() and peer.recv(1 << 16):
                        peer.setblocking(False)
                        say(peer, APPCTL * 10)
                        peer.settimeout(20)
            except OSError:
                pass

    # More than the control socket takes.
    threads = [threading.Thread(target=greedy) for _ in range(100)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            assert "3.1.0" in ovs.appctl("version", timeout=30)
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("what", [b"", HELLO[:5], HELLO, HELLO + ECHO[:5], HELLO + DESC * 2000],
                         ids=["nothing", "half a hello", "hello", "half a request", "requests, and does not read"])
@pytest.mark.parametrize("kind", ["mgmt", "punix", "ptcp"])
def test_peers_of_openflow(ovs, crowd, kind, what):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1")
    address, target = str(ovs.dir / "br0.mgmt"), "br0"
    if kind == "punix":
        address = str(ovs.dir / "br0.controller")
        ovs.vsctl("set-controller", "br0", f"punix:{address}", "--", "set", "controller", "br0", "inactivity_probe=0")
        target = f"unix:{address}"
    elif kind == "ptcp":
        address = ("127.0.0.1", free_port())
        ovs.vsctl("set-controller", "br0", f"ptcp:{address[1]}:127.0.0.1", "--", "set", "controller", "br0",
                  "inactivity_probe=0")
        target = f"tcp:127.0.0.1:{address[1]}"
    peers = crowd(address, what)

    def answered():
        shown = run("ovs-ofctl", "show", target, env=ovs.env, timeout=10, check=False)
        return shown.returncode == 0 and "(p1)" in shown.stdout

    for _ in range(3):
        # While the crowd is still being let in, a client may have to make room before it has said a word, and come again.
        until(answered, 30, "an answer")
    if what in (b"", HELLO):
        assert sum(map(closed, peers)) >= MANY - 128, "some make room"
    if what == b"":
        assert not any(map(closed, peers[-20:])), "the oldest make room"
    assert "3.1.0" in ovs.appctl("version")


def test_a_dump_under_way_is_not_given_up(ovs, crowd, tmp_path):  # noqa: F811
    """Its reader is slow, and the crowd comes and goes meanwhile."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    flows = tmp_path / "flows"
    count = 10_000
    flows.write_text("".join(f"priority={n},actions=drop\n" for n in range(1, count + 1)))
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-flows", "br0", str(flows))
    address = str(ovs.dir / "br0.mgmt")
    with connect(address) as reader:
        reader.sendall(HELLO + FLOWS)
        got = bytearray()

        def read():
            piece = reader.recv(1 << 10)
            assert piece, f"the dump ends after {len(got)} bytes"
            got.extend(piece)

        for what in [b"", HELLO, HELLO + DESC * 2000]:
            crowd(address, what, many=MANY // 2, each=read)
        assert len(got) < count * 88, "the dump is still under way"
        until(lambda: read() or len(got) >= count * 88, 30, "the rest of the dump")
    entries, at = 0, 0
    while at + 8 <= len(got):
        _, kind, length, _ = struct.unpack_from("!BBHI", got, at)
        entries += (length - 12) // 88 if kind == 17 else 0
        at += length
    assert entries >= count - 1000


def test_a_session_that_answers_probes_outlives_silent_ones(ovs, crowd):  # noqa: F811
    """A controller has nothing to say, and says that it is there."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    address = str(ovs.dir / "br0.controller")
    ovs.vsctl("set-controller", "br0", f"punix:{address}", "--", "set", "controller", "br0", "inactivity_probe=0")
    with connect(address) as controller:
        controller.sendall(HELLO)

        def alive():
            controller.setblocking(True)
            controller.sendall(ECHO)
            assert controller.recv(1 << 16), "the controller was closed"

        crowd(address, HELLO, each=alive)
        alive()


class Silent(threading.Thread):
    """A controller that accepts, reads, and says nothing; `ended` is set when the switch has hung up."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.ended = threading.Event()
        self.start()

    def run(self):
        peer, _ = self.listener.accept()
        with peer:
            while select.select([peer], [], [], 30)[0] and peer.recv(4096):
                pass
        self.ended.set()


def test_a_controller_that_says_nothing_is_given_up(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1")
    silent = Silent(ovs.dir / "silent")
    ovs.vsctl("set-controller", "br0", f"unix:{ovs.dir}/silent", "--", "set", "controller", "br0", "inactivity_probe=0")
    assert silent.ended.wait(30)
    silent.listener.close()
    assert "(p1)" in ovs.ofctl("show", "br0")


def test_peers_that_read_no_events_are_bounded_together(ovs, crowd, tmp_path):  # noqa: F811
    """Those for whom most is kept are disconnected, until it is little enough for all. One that reads gets everything."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:controller-memory-limit=16")
    # Removed in steps small enough for the one that reads, however slowly it is scheduled, to be never the one for whom most
    # is kept.
    steps, each, many = 12, 1000, 40
    flows = tmp_path / "flows"
    flows.write_text("".join(f"send_flow_rem,cookie={n % steps},priority={n + 1},actions=drop\n"
                             for n in range(steps * each)))
    ovs.ofctl("add-flows", "br0", str(flows))
    # OFPT_SET_CONFIG with a miss_send_len: from then on, such a peer gets events.
    asking = HELLO + bytes.fromhex("0109000c000000050000ffff") + ECHO
    peers = crowd(str(ovs.dir / "br0.mgmt"), asking, many=many)
    reader = connect(str(ovs.dir / "br0.mgmt"))
    reader.sendall(asking)
    data, removed = b"", 0

    def read(until_kind=None, until_removed=None):
        """Reads messages up to one of this kind, or so many flow-removed."""
        nonlocal data, removed
        while True:
            while len(data) < 8 or len(data) < struct.unpack_from(">H", data, 2)[0]:
                more = reader.recv(1 << 16)
                assert more, "the one that reads is disconnected, too"
                data += more
            kind, size = struct.unpack_from(">BH", data, 1)
            data = data[size:]
            removed += kind == 11
            if kind == until_kind or removed == until_removed:
                return

    read(until_kind=3)
    for step in range(steps):
        ovs.ofctl("del-flows", "br0", f"cookie={step}/-1")
        read(until_removed=each * (step + 1))
    overflows = lambda: int(ovs.appctl("coverage/read-counter", "ofproto_controller_overflow"))
    assert 0 < overflows() < many, "no more than has to be"
    until(lambda: sum(map(closed, peers)) >= overflows(), what="the disconnection")
