"""OpenFlow messages in the log: in the words that Debian's ovs-ofctl has for the same bytes."""

import re
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from lib.wait import until

TESTDATA = Path(__file__).parents[2] / "crates/openflow/testdata"
VERSIONS = [f"OpenFlow1{n}" for n in range(6)]
ENTRY = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z\|\d+\|", re.MULTILINE)

# What the log shows in full: of other messages their names.
IN_FULL = re.compile(r"OFPT_(HELLO|ERROR|ECHO_\w+|(GET|SET)_CONFIG\w*|FLOW_MOD|FLOW_REMOVED|BUNDLE\w+|BARRIER\w+|ROLE\w+) |"
                     r"ONFT_BUNDLE\w+ |NXT_(FLOW_MOD|FLOW_REMOVED|ROLE\w+|SET_FLOW_FORMAT|SET_PACKET_IN_FORMAT|"
                     r"FLOW_MOD_TABLE_ID|SET_CONTROLLER_ID) |(OFP|NX)ST_(FLOW|AGGREGATE) |"
                     r"OFPST_(PORT|PORT_DESC) request ")

# What the log says in other words, as docs/deviations/openflow.md has it.
IN_OTHER_WORDS = [("strip_vlan", "pop_vlan"), ("NXM_OF_IP_TOS[2..7]", "NXM_OF_IP_TOS[]"),
                  ("tun_metadata0=0x1/0xff", "tun_metadata0=0x1")]


class Peer:
    """A connection to br0 that keeps the bytes of all messages."""

    def __init__(self, ovs, version):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(ovs.dir / "br0.mgmt"))
        self.version, self.sent, self.received, self.input = version, [], [], b""
        # A hello with nothing but its version in the bitmap.
        self.send(struct.pack("!BBHIHHI", version, 0, 16, 1, 1, 8, 1 << version))

    def send(self, message):
        self.socket.sendall(message)
        self.sent.append(message)

    def barrier(self):
        """Reads what has come, until all that was sent is answered."""
        self.send(struct.pack("!BBHI", self.version, 18 if self.version == 1 else 20, 8, 0xbbbb))
        while not self.received or struct.unpack("!I", self.received[-1][4:8])[0] != 0xbbbb:
            self.input += self.socket.recv(1 << 16)
            while len(self.input) >= 4 and len(self.input) >= (length := struct.unpack("!H", self.input[2:4])[0]):
                self.received.append(self.input[:length])
                self.input = self.input[length:]


@pytest.fixture
def ovs(ovs):
    ovs.start("--enable-dummy=override", f"--log-file={ovs.dir}/messages.log")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
              "protocols=" + ",".join(VERSIONS))
    return ovs


def printed(message):
    """What ovs-ofctl says of a message."""
    ran = subprocess.run(["ovs-ofctl", "ofp-print", "-", "1"], input=message.hex(), text=True, capture_output=True,
                         check=True)
    return ran.stdout.rstrip("\n ")


def logged(ovs):
    """The log's entries of this kind: those of messages that came, and those of messages that went."""
    entries = [entry.removeprefix("vconn|DBG|") for entry in ENTRY.split((ovs.dir / "messages.log").read_text())
               if entry.startswith("vconn|DBG|unix#")]
    entries = [entry.split(": ", 1)[1].rstrip("\n ") for entry in entries]
    return tuple([entry.removeprefix(kind) for entry in entries if entry.startswith(kind)]
                 for kind in ("received: ", "sent (Success): "))


def compare(log, messages):
    assert len(log) == len(messages)
    wrong = []
    for text, message in zip(log, messages):
        expected = printed(message)
        if not IN_FULL.match(expected):
            text, expected = (each.split(":")[0] for each in (text, expected))
        for words, others in IN_OTHER_WORDS:
            text, expected = text.replace(words, others), expected.replace(words, others)
        if text != expected:
            wrong.append(f"{message.hex()}:\n {text}\nnot\n {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", range(1, 7))
def test_messages_are_logged_in_the_words_of_ovs_ofctl(ovs, version):
    lines = [line for name in ("flow_mods", "requests") for line in (TESTDATA / f"{name}.txt").read_text().splitlines()]
    messages = [bytes.fromhex(line.split()[-1]) for line in lines if not line.startswith("#")]
    ovs.appctl("vlog/set", "vconn:file:dbg")
    peer = Peer(ovs, version)
    for message in messages:
        # Hellos would be out of place.
        if message[0] == version and message[1] != 0:
            peer.send(message)
    peer.barrier()
    until(lambda: len(logged(ovs)[1]) == len(peer.received), what="the log of all messages")
    received, sent = logged(ovs)
    compare(received, peer.sent)
    compare(sent, peer.received)


def test_nothing_is_logged_unless_it_is_asked_for(ovs):
    ovs.appctl("vlog/set", "vconn:file:info")
    Peer(ovs, 4).barrier()
    ovs.appctl("vlog/set", "vconn:file:dbg")
    peer = Peer(ovs, 4)
    peer.barrier()
    until(lambda: len(logged(ovs)[1]) == 2, what="the log of the second connection")
    assert "negotiated OpenFlow version 0x04 (we support version 0x06 and earlier, peer supports version 0x04)" in (
        ovs.dir / "messages.log").read_text()


def test_flow_mods_are_counted_in_the_log(ovs):
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    until(lambda: re.search(r"connmgr\|INFO\|br0<->unix#\d+: 1 flow_mods in the last 0 s \(1 adds\)",
                            (ovs.dir / "messages.log").read_text()), what="the count in the log")


def test_messages_that_are_not_limited_are_all_logged(ovs):
    ovs.appctl("vlog/set", "vconn:file:dbg")
    ovs.appctl("vlog/disable-rate-limit", "vconn")
    peer = Peer(ovs, 4)

    def echoes(count):
        for n in range(count):
            peer.send(struct.pack("!BBHI", 4, 2, 8, n))
        peer.barrier()

    def text():
        return (ovs.dir / "messages.log").read_text()

    echoes(1500)
    until(lambda: text().count("OFPT_BARRIER_REPLY") == 1, what="the log of the last message")
    assert text().count("received: OFPT_ECHO_REQUEST") == 1500
    assert text().count("sent (Success): OFPT_ECHO_REPLY") == 1500
    assert "excessive rate" not in text()
    # Limited anew, some are dropped, and how many is told as soon as one is logged again.
    ovs.appctl("vlog/enable-rate-limit", "vconn")
    echoes(1500)

    def is_told():
        echoes(1)
        return "vconn|DBG|Dropped " in text()

    until(is_told, what="word of what was dropped")
