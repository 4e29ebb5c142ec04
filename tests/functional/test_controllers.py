"""OpenFlow connections: passive and active, over TCP and Unix sockets."""

import socket
import struct

import pytest
from conftest import until
from lib.net import run

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
