"""Ingress filters whose ports change: their queues and workers, the bridge's own port, and names that nobody resolves."""

import contextlib
import re
import socket
import struct
import threading

import pytest
from conftest import until
from lib.daemon import WEIR, dummy_bridge
from test_dummy import flows

KEY = "other_config:ingress-filter"


def udp(port):
    return ("020000000002020000000001" "0800" "4500001c00000000401166ce0a0000010a000002" f"03e8{port:04x}00080000"
            + "00" * 18)


def test_receive_queues_that_come_and_go_have_the_filter(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "interface", "p1", f'{KEY}="drop udp dst port 7"')
    ovs.ofctl("add-flow", "br0", "priority=9,in_port=1,actions=2")
    passed = dropped = 0

    def receive(queues):
        nonlocal passed, dropped
        for queue in range(queues):
            ovs.appctl("netdev-dummy/receive", "p1", "--qid", str(queue), udp(7))
            ovs.appctl("netdev-dummy/receive", "p1", "--qid", str(queue), udp(8))
            passed, dropped = passed + 1, dropped + 1
        assert int(ovs.appctl("coverage/read-counter", "datapath_drop_ingress_filter")) == dropped
        assert (str(passed), str(passed * 60), "output:2") in flows(ovs)
        shown = ovs.appctl("ingress/stats", "p1")
        assert re.search(rf"n_packets={dropped}, n_bytes=\d+, n_dropped={dropped}, drop udp dst port 7$", shown, re.M), shown

    receive(1)
    for queues in (4, 2, 7, 1):
        ovs.vsctl("set", "interface", "p1", f"options:n_rxq={queues}")
        receive(queues)
        # Its queues change hands.
        ovs.vsctl("set", "open", ".", f"other_config:pmd-cpu-mask={'1' if queues > 3 else '3'}", check=False)
        receive(queues)


def test_the_bridges_own_port_has_the_filter_of_its_interface(ovs):
    ovs.expect("rule 1, column 6")
    ovs.start("--enable-dummy")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail-mode=secure", "--",
              "set", "interface", "br0", f'{KEY}="drop udp dst port 7"')
    ovs.ofctl("add-flow", "br0", "in_port=LOCAL,actions=drop")

    def passes(port):
        before = flows(ovs)
        ovs.appctl("netdev-dummy/receive", "br0", udp(port))
        return flows(ovs) != before

    assert not passes(7) and passes(8)
    # A wrong one is reported, and the old one stays in force.
    ovs.vsctl("set", "interface", "br0", f'{KEY}="drop tcp and"', check=False)
    until(lambda: "rule 1, column 6" in ovs.get("interface", "br0", "error"), what="the error in the database")
    assert not passes(7) and passes(8)
    ovs.vsctl("set", "interface", "br0", f'{KEY}="drop udp dst port 8"')
    until(lambda: ovs.get("interface", "br0", "error") == "[]", what="the end of the error")
    assert passes(7) and not passes(8)
    # What belongs to the bridge is changed beside it.
    ovs.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=100")
    assert passes(7) and not passes(8)
    ovs.vsctl("remove", "interface", "br0", "other_config", "ingress-filter")
    assert passes(7) and passes(8) and ovs.appctl("ingress/show") == ""


class NameServer(threading.Thread):
    """A name server that answers from when it is told to: every name has the address 10.9.9.9."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address = address
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((self.address, 53))
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.start()

    def run(self):
        # The end of the test closes the socket.
        with contextlib.suppress(OSError):
            while True:
                self.answer(*self.socket.recvfrom(512))

    def answer(self, query, peer):
        self.asked.set()
        self.answers.wait()
        end = query.index(b"\0", 12) + 5
        is_a = query[end - 4:end - 2] == b"\0\1"
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes((10, 9, 9, 9)) if is_a else b""
        self.socket.sendto(query[:2] + b"\x81\x80\0\1" + struct.pack(">H", is_a) + bytes(4) + query[12:end] + answer, peer)


@pytest.fixture
def name_server(ovs):
    """The one that a daemon asks which is started from now on."""
    # Tests that run beside this one have others.
    for last in range(53, 63):
        try:
            server = NameServer(f"127.0.0.{last}")
            break
        except OSError as e:
            error = e
    else:
        pytest.skip(f"no name server can be started: {error}")
    resolv, program = ovs.dir / "resolv.conf", ovs.dir / "bin" / "ovs-vswitchd"
    resolv.write_text(f"nameserver {server.address}\noptions timeout:30 attempts:5\n")
    program.parent.mkdir()
    program.symlink_to(WEIR)
    ovs.name.unlink()
    ovs.name.write_text(f"#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {resolv} /etc/resolv.conf && "
                        f"exec {program} \"$@\"' sh \"$@\"\n")
    ovs.name.chmod(0o755)
    yield server
    server.answers.set()
    server.socket.close()


def test_a_name_server_that_does_not_answer_holds_up_nothing_else(ovs, name_server):
    ovs.expect("waits for a name server")
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.ofctl("add-flow", "br0", "priority=9,in_port=1,actions=drop")
    error = lambda port: ovs.get("interface", port, "error")
    ovs.vsctl("set", "interface", "p1", f'{KEY}="drop udp and src host slow.example"', "--", "set", "interface", "p2",
              f'{KEY}="drop tcp port 80"', "--", "add-port", "br0", "p4", "--", "set", "interface", "p4", "type=dummy")
    assert name_server.asked.wait(20)
    until(lambda: "waits for a name server" in error("p1"), what="the reason")
    assert "(p4)" in ovs.ofctl("show", "br0")
    # The next change waits for nothing either.
    ovs.vsctl("del-port", "p3")
    assert "(p3)" not in ovs.ofctl("show", "br0")
    ovs.appctl("ingress/set", "p4", "drop dst net 10.0.0.0/8")
    name_server.answers.set()
    until(lambda: error("p1") == error("p2") == "[]", 30, "the filters")
    assert "src host slow.example" in ovs.appctl("ingress/show", "p1")
    frame = udp(7).replace("0a000001", "0a090909")
    ovs.appctl("netdev-dummy/receive", "p1", frame)
    assert int(ovs.appctl("coverage/read-counter", "datapath_drop_ingress_filter")) == 1
