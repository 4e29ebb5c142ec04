"""OpenFlow connections: passive and active, over TCP and Unix sockets."""

import socket
import struct
import subprocess
import time

import pytest
from conftest import until
from lib.net import run
from lib.stopped import Stopped
from lib.stream import Wire

CONFIG = """
[[bridge]]
name = "br0"
local = false
fail_mode = "{fail_mode}"
controllers = ["{target}"]
[[bridge.port]]
name = "p1"
type = "dummy"
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("version", ["10", "13"])
def test_passive_tcp(weir, version):
    port = free_port()
    weir(CONFIG.format(target=f"ptcp:{port}:127.0.0.1", fail_mode="secure"))
    show = lambda: run("ovs-ofctl", "-O", f"OpenFlow{version}", "show", f"tcp:127.0.0.1:{port}", check=False).stdout
    until(lambda: "(p1)" in show(), what="an answer over TCP")


def test_passive_unix(weir, tmp_path):
    w = weir(CONFIG.format(target=f"punix:{tmp_path}/of.sock", fail_mode="secure"))
    until(lambda: (tmp_path / "of.sock").exists(), what="the socket")
    assert "(p1)" in run("ovs-ofctl", "show", f"unix:{tmp_path}/of.sock", env=w.env).stdout


def message(s):
    """The next OpenFlow message: (type, xid, body)."""
    def exactly(n):
        data = b""
        while len(data) < n:
            piece = s.recv(n - len(data))
            assert piece, "the switch closed the connection"
            data += piece
        return data
    version, kind, length, xid = struct.unpack("!BBHI", exactly(8))
    return version, kind, xid, exactly(length - 8)


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_packets_come_while_the_management_does_something_else(weir, tmp_path, family):
    """The thread of the connections stands still: a packet for an idle controller does not need it. What is more than goes at once waits for
    it, and so does what is behind a message that the controller has not taken."""
    if family == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "ctl"))
        server.listen()
        target = f"unix:{tmp_path}/ctl"
    else:
        server = socket.create_server(("127.0.0.1", 0))
        target = f"tcp:127.0.0.1:{server.getsockname()[1]}"
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server.settimeout(20)
    w = weir(CONFIG.format(target=target, fail_mode="secure") + f'options = {{ pstream = "punix:{tmp_path}/p1" }}\n')
    s, _ = server.accept()
    s.settimeout(20)
    assert message(s)[1] == 0
    s.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
    w.ofctl("add-flow", "br0", "actions=controller:65535")

    def settle():
        """The controller is idle, and has been asked nothing."""
        s.sendall(struct.pack("!BBHI", 4, 20, 8, 7))
        while message(s)[1] != 21:
            pass

    def packet_in():
        version, kind, _, body = message(s)
        while kind == 2:
            version, kind, _, body = message(s)
        assert (version, kind) == (4, 10)
        return body

    until(lambda: (tmp_path / "p1").exists(), what="the port's socket")
    wire = Wire(tmp_path / "p1")
    frames = [bytes([2, 0, 0, 0, 0, 2, 2, 1, 0, 0, n >> 8, n & 255, 0x88, 0xb5]) + bytes(1000) for n in range(300)]
    wire.send(frames[0])
    assert packet_in().endswith(frames[0])
    settle()
    with Stopped(w.proc.pid, "weir"):
        # One after the other, as they are asked for.
        for frame in frames[:20]:
            wire.send(frame)
            assert packet_in().endswith(frame)
        for frame in frames[20:40]:
            wire.send(frame)
        assert packet_in().endswith(frames[20])
    for frame in frames[21:40]:
        assert packet_in().endswith(frame)
    settle()
    # A controller that takes nothing.
    with Stopped(w.proc.pid, "weir"):
        for frame in frames[40:]:
            wire.send(frame)
            # Each may go at once, as long as there is room.
            time.sleep(0.0003)
    for frame in frames[40:]:
        assert packet_in().endswith(frame)
    settle()


def test_active_connection_and_inactivity_probe(weir, tmp_path):
    """The switch connects, says which versions it speaks, and asks a silent controller for a sign of life."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "ctl"))
    server.listen()
    server.settimeout(20)
    w = weir(CONFIG.format(target=f"unix:{tmp_path}/ctl", fail_mode="secure"))
    s, _ = server.accept()
    s.settimeout(20)
    version, kind, _, body = message(s)
    assert kind == 0 and version >= 4
    s.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
    s.sendall(struct.pack("!BBHI", 4, 5, 8, 2))  # features request
    _, kind, xid, body = message(s)
    assert (kind, xid) == (6, 2)
    assert f"{struct.unpack('!Q', body[:8])[0]:016x}" in w.ofctl("show", "br0")
    _, kind, _, _ = message(s)
    assert kind == 2, "an echo request after some silence"
    s.close()
    again, _ = server.accept()
    assert message(again)[1] == 0, "it connects again"


def test_a_controller_that_speaks_nothing_known(weir, tmp_path):
    """Versions that do not overlap: an error of type hello-failed, with words."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "ctl"))
    server.listen()
    server.settimeout(20)
    w = weir(CONFIG.format(target=f"unix:{tmp_path}/ctl", fail_mode="secure"))
    s, _ = server.accept()
    s.settimeout(20)
    message(s)
    bitmap = struct.pack("!HHI", 1, 8, 1 << 7)  # one after OpenFlow 1.5 alone
    s.sendall(struct.pack("!BBHI", 7, 0, 16, 1) + bitmap)
    _, kind, _, body = message(s)
    assert kind == 1 and body[:4] == bytes(4), "OFPT_ERROR, OFPET_HELLO_FAILED, OFPHFC_INCOMPATIBLE"
    assert b"version" in body[4:].lower()
    assert "(p1)" in w.ofctl("show", "br0")


def test_messages_of_a_controller_can_be_snooped(weir, tmp_path):
    """By ovs-ofctl, beside a snooper that reads nothing. It ends when the controller is removed."""
    target = f"punix:{tmp_path}/of.sock"
    w = weir(CONFIG.format(target=target, fail_mode="secure"))
    deaf = socket.socket(socket.AF_UNIX)
    deaf.connect(str(w.dir / "br0.snoop"))
    deaf.sendall(struct.pack("!BBHI", 1, 0, 8, 1))
    log = tmp_path / "snoop.log"
    with open(log, "w") as out:
        snoop = subprocess.Popen(["ovs-ofctl", "snoop", "br0"], env=w.env, stdout=out, stderr=subprocess.STDOUT)
    try:
        def seen():
            run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"unix:{tmp_path}/of.sock", "in_port=1,actions=2", env=w.env)
            text = log.read_text()
            return "OFPT_FLOW_MOD (OF1.3)" in text and "OFPT_BARRIER_REPLY (OF1.3)" in text
        until(seen, what="messages of both sides")
        # Those of tools that manage the switch are not.
        w.ofctl("add-flow", "br0", "in_port=7,actions=2")
        assert "in_port=7" not in log.read_text()
        w.configure(CONFIG.format(target=target, fail_mode="secure").replace(f'"{target}"', ""))
        w.cli("reload")
        snoop.wait(timeout=10)
    finally:
        snoop.kill()
        snoop.wait()
        deaf.close()
