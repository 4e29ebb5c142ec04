"""What the tables Bridge and Controller say of controllers: what they are, what they are told, and how."""

import socket
import struct
from contextlib import contextmanager

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.net import run

FRAME = "ff" * 6 + "020000000001" + "88b5" + "00" * 46
SET_CONFIG = 9
PACKET_IN = 10
PORT_STATUS = 12
ECHO = 2


class Peer:
    """A controller that speaks OpenFlow 1.3 by hand."""

    def __init__(self, s):
        self.socket = s
        s.settimeout(20)
        self.send(0)
        assert self.message()[0] == 0, "a hello"

    def send(self, kind, body=b""):
        self.socket.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), 7) + body)

    def message(self):
        """The next message: type, body."""
        def exactly(n):
            data = b""
            while len(data) < n:
                piece = self.socket.recv(n - len(data))
                assert piece, "the switch closed the connection"
                data += piece
            return data
        _, kind, length, _ = struct.unpack("!BBHI", exactly(8))
        return kind, exactly(length - 8)

    def told(self):
        """The types of what has been sent so far, but for the answer to this question."""
        self.send(ECHO)
        kinds = []
        while True:
            kind, body = self.message()
            if kind == ECHO:
                self.send(ECHO + 1, body)
            elif kind == ECHO + 1:
                return kinds
            else:
                kinds.append(kind)


@contextmanager
def passive(ovs, *settings):
    """A controller that connects to the switch. `settings`: of its row."""
    path = ovs.dir / "br0.controller"
    ovs.vsctl("set-controller", "br0", f"punix:{path}", *(["--", "set", "controller", "br0", *settings] if settings else []))
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        yield Peer(s)


def sent(ovs, port):
    return "tx pkts=1," in ovs.ofctl("dump-ports", "br0", port)


def test_descriptions(ovs):
    ovs.start()
    dummy_bridge(ovs)
    told = lambda: [line.split(": ", 1)[1] for line in ovs.ofctl("dump-desc", "br0").splitlines()
                    if line.startswith(("Serial Num", "DP Description"))]
    assert told() == ["None", "br0"]
    ovs.vsctl("set", "bridge", "br0", 'other_config:dp-desc="rack 7"', "other_config:dp-sn=0815")
    assert told() == ["0815", "rack 7"]
    # What has no room is cut off, not in the middle of a character.
    ovs.vsctl("set", "bridge", "br0", f"other_config:dp-desc={'x' * 254}ä", f"other_config:dp-sn={'9' * 40}")
    assert told() == ["9" * 31, "x" * 254]
    ovs.vsctl("clear", "bridge", "br0", "other_config")
    ovs.vsctl("set", "bridge", "br0", "other_config:disable-in-band=true")
    assert told() == ["None", "br0"]


def test_who_connects_to_the_switch_is_a_service(ovs):
    """The bridge goes on as without it, and it is told nothing before it asks."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    with passive(ovs) as peer:
        ovs.appctl("netdev-dummy/receive", "p1", FRAME)
        until(lambda: sent(ovs, "p2"), what="the frame, forwarded as without a controller")
        ovs.ofctl("mod-port", "br0", "p1", "no-packet-in")
        assert peer.told() == []
        peer.send(SET_CONFIG, struct.pack("!HH", 0, 128))
        peer.told()
        ovs.ofctl("mod-port", "br0", "p1", "packet-in")
        assert peer.told() == [PORT_STATUS]


def test_who_connects_to_the_switch_can_be_the_primary(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    with passive(ovs, "type=primary") as peer:
        assert "NORMAL" not in ovs.ofctl("dump-flows", "br0")
        ovs.ofctl("add-flow", "br0", "actions=controller")
        ovs.appctl("netdev-dummy/receive", "p1", FRAME)
        assert peer.message()[0] == PACKET_IN
        assert not sent(ovs, "p2")
        # It becomes a service at run time.
        ovs.vsctl("set", "controller", "br0", "type=service")
        assert "NORMAL" in ovs.ofctl("dump-flows", "br0")


def test_a_service_that_is_gone_changes_nothing(ovs):
    """The switch connects to it, and the bridge is a learning switch with and without it."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(20)
        ovs.vsctl("set-controller", "br0", f"tcp:127.0.0.1:{server.getsockname()[1]}", "--", "set", "controller", "br0",
                  "type=service", "connection_mode=out-of-band")
        s, _ = server.accept()
        with s:
            peer = Peer(s)
            ovs.appctl("netdev-dummy/receive", "p1", FRAME)
            until(lambda: sent(ovs, "p2"), what="the frame")
            assert peer.told() == []
    assert "NORMAL" in ovs.ofctl("dump-flows", "br0")


def test_no_messages_before_it_asks(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    with passive(ovs, "type=primary", "enable_async_messages=false") as peer:
        ovs.ofctl("mod-port", "br0", "p1", "no-packet-in")
        assert peer.told() == []
        # OFPT_SET_ASYNC: of port status, all reasons.
        peer.send(28, struct.pack("!6I", 0, 0, 7, 0, 0, 0))
        peer.told()
        ovs.ofctl("mod-port", "br0", "p1", "packet-in")
        assert peer.told() == [PORT_STATUS]


def test_settings_change_and_the_connection_stays(ovs):
    """So do role, asynchronous configuration and open bundles."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    with passive(ovs, "type=primary") as peer:
        # It becomes secondary, and is told of no packets.
        peer.send(24, struct.pack("!I4xQ", 3, 1))
        assert peer.told() == [25]
        for setting in ("controller_rate_limit=200", "controller_burst_limit=50", "controller_queue_size=300",
                        "max_backoff=9000", "enable_async_messages=false", "connection_mode=out-of-band"):
            ovs.vsctl("set", "controller", "br0", setting)
            assert peer.told() == []
        peer.send(24, struct.pack("!I4xQ", 0, 0))
        kind, body = peer.message()
        assert (kind, struct.unpack_from("!I", body)) == (25, (3,)), "the role is what it was"
        # What has changed is in force: a peer that is silent for a second is asked.
        ovs.vsctl("set", "controller", "br0", "inactivity_probe=1000")
        assert peer.message()[0] == ECHO
        # Another kind of controller is another connection.
        ovs.vsctl("set", "controller", "br0", "type=service")
        with pytest.raises((AssertionError, ConnectionError)):
            peer.message()


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("setting, tos", [(None, 0xc0), ("10", 0x28), ("64", 0xc0)])
def test_dscp(ovs, is_active, setting, tos):
    """Of all that the switch sends, from the first packet on."""
    if setting == "64":
        ovs.excuse("a DSCP that there is not")
    ovs.start()
    dummy_bridge(ovs)
    settings = ["connection_mode=out-of-band"] + ([f"other_config:dscp={setting}"] if setting else [])
    add = lambda target: ovs.vsctl("set-controller", "br0", target, "--", "set", "controller", "br0", *settings)
    with socket.socket() as server, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x800)) as wire:
        wire.bind(("lo", 0))
        wire.settimeout(20)
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        if is_active:
            server.listen()
            server.settimeout(20)
            add(f"tcp:127.0.0.1:{port}")
            s, _ = server.accept()
        else:
            server.close()
            add(f"ptcp:{port}:127.0.0.1")
            s = socket.create_connection(("127.0.0.1", port))
        with s:
            Peer(s).told()
        seen, has_pushed = set(), False
        # What goes to the peer is what comes from the port that is not its own.
        while not has_pushed:
            frame = wire.recv(2048)
            source, destination = struct.unpack("!HH", frame[34:38])
            if frame[23] == 6 and (destination if is_active else source) == port:
                seen.add(frame[15])
                has_pushed = bool(frame[47] & 8)
        assert seen == {tos}


def test_the_host_reaches_a_controller_by_the_local_port(ovs):
    """It gets an address and a default route there, also when its device comes back."""
    ovs.expect("local_netmask 255.0.255.0 is not the mask of a network")
    addresses = lambda: [line.split()[3] for line in run("ip", "-o", "-4", "addr", "show", "dev", "br0", check=False).stdout.splitlines()]  # noqa: E731
    routes = lambda: run("ip", "-4", "route", "show", "default").stdout  # noqa: E731
    ovs.start()
    # One that there is stays.
    there = routes() or "default via 10.9.0.254 dev br0"
    ovs.vsctl("add-br", "br0", "--", "set-controller", "br0", "tcp:127.0.0.1:1", "--", "set", "controller", "br0",
              "local_ip=10.9.0.1", "local_netmask=255.255.255.0", "local_gateway=10.9.0.254")
    assert addresses() == ["10.9.0.1/24"] and there in routes()
    run("ip", "link", "del", "br0")
    until(lambda: addresses() == ["10.9.0.1/24"], what="the device with its address")
    assert there in routes()
    # A network without a mask has that of its class. The default route that there is stays.
    ovs.vsctl("set", "controller", "br0", "local_ip=172.16.0.1", "local_gateway=172.16.0.2", "--", "clear", "controller",
              "br0", "local_netmask")
    assert addresses() == ["172.16.0.1/16"]
    ovs.vsctl("set", "controller", "br0", "local_netmask=255.0.255.0")
    ovs.vsctl("clear", "controller", "br0", "local_ip")
    assert addresses() == ["172.16.0.1/16"], "as in OVS"
    assert "configured IP address 172.16.0.1/16, gateway 172.16.0.2" in ovs.log()


def test_the_log_speaks_of_a_connection_as_that_of_ovs_does(ovs):
    ovs.start("-vrconn:file:dbg")
    dummy_bridge(ovs)
    path = ovs.dir / "controller"
    said = lambda: [line.partition("|rconn|")[2] for line in ovs.log().splitlines() if f"br0<->unix:{path}: " in line]
    line = lambda level, text: f"{level}|br0<->unix:{path}: {text}"
    ovs.vsctl("set-controller", "br0", f"unix:{path}", "--", "set", "controller", "br0", "max_backoff=2000", "inactivity_probe=5000")
    until(lambda: len(said()) >= 6, what="two attempts that fail")
    failed = line("INFO", "connection failed (No such file or directory)")
    assert said()[:6] == [
        line("INFO", "connecting..."), failed, line("INFO", "waiting 1 seconds before reconnect"),
        line("INFO", "connecting..."), failed,
        line("INFO", "continuing to retry connections in the background but suppressing further logging")]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with server.accept()[0] as s:
            Peer(s)
            until(lambda: len(said()) >= 9, what="the probe")
        until(lambda: len(said()) >= 10, what="the end of the connection")
    assert said()[6:10] == [line("DBG", "connection opened"), line("INFO", "connected"),
                            line("DBG", "idle 5 seconds, sending inactivity probe"), line("INFO", "connection closed by peer")]
