"""LLDP and Auto Attach: Debian's lldpd as a neighbour, frames of servers, and the columns that mappings change."""

import json
import re
import shutil
import struct
import tempfile
import threading
from pathlib import Path

import pytest
from lib.net import run
from lib.wait import until

GROUP = bytes.fromhex("0180c200000e")
PEER = bytes.fromhex("0200000000ee")
#: Auto Attach's TLVs are Avaya's; nobody signs them.
AVAYA, DIGEST = bytes.fromhex("00040d"), bytes(32)

EXPECTED = [r"received on ", r"mappings of Auto Attach"]


def tlv(kind, value):
    return struct.pack("!H", kind << 9 | len(value)) + value


def frame(*more, chassis=PEER, port=b"1/7", ttl=120, to=GROUP):
    start = tlv(1, b"\4" + chassis) + tlv(2, b"\5" + port) + tlv(3, struct.pack("!H", ttl))
    return to + PEER + b"\x88\xcc" + start + b"".join(more) + tlv(0, b"")


def element(kind=2, mac=PEER):
    return tlv(127, AVAYA + b"\x0b" + DIGEST + struct.pack("!I", kind << 26) + mac + bytes(4))


def assignments(*triples):
    data = b"".join(struct.pack("!HI", status << 12 | vlan, isid << 8)[:5] for status, vlan, isid in triples)
    return tlv(127, AVAYA + b"\x0c" + DIGEST + data)


@pytest.fixture
def ovs(ovs):
    """A daemon with br0 and its dummy ports p1, which speaks LLDP, and p2."""
    ovs.start("--enable-dummy=override")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure")
    for port in ("p1", "p2"):
        ovs.vsctl("add-port", "br0", port, "--", "set", "interface", port, "type=dummy", f"ofport_request={port[1]}")
    ovs.ofctl("add-flow", "br0", "actions=output:2,in_port")
    ovs.vsctl("set", "interface", "p1", "lldp:enable=true")
    return ovs


def receive(ovs, data, port="p1"):
    ovs.appctl("netdev-dummy/receive", port, data.hex())


def counted(ovs, name):
    """One of a bridge's only agent's counters."""
    text = ovs.appctl("autoattach/statistics", "br0")
    return int(next(line.split(": ")[1] for line in text.splitlines() if line.startswith(f"  {name} cnt: ")))


def sent(ovs):
    """Packets that have left by p2."""
    return int(re.search(r"tx pkts=(\d+)", ovs.ofctl("dump-ports", "br0", "2"))[1])


def columns(ovs, port="p1"):
    return [ovs.vsctl("get", "port", port, column) for column in ("trunks", "vlan_mode")]


class Lldpd:
    """Debian's lldpd on `eth0` of a host."""

    def __init__(self, host):
        self.host, self.dir = host, Path(tempfile.mkdtemp(prefix="weir-lldpd-"))
        # lldpcli gives up root before it connects.
        self.dir.chmod(0o755)
        # Its unprivileged half lives there.
        Path("/run/lldpd").mkdir(exist_ok=True)
        self.socket = self.dir / "socket"
        # It starts paused, reads this, and goes on. A command that changes settings writes all of them back as they were when it began:
        # one that began before that would pause lldpd again.
        settings = self.dir / "settings"
        settings.write_text("configure lldp tx-interval 1\n")
        self.process = host.start("lldpd", "-d", "-u", self.socket, "-O", settings, "-I", "eth0", "-S", "a host of the test")
        until(lambda: self.socket.exists(), what="lldpd")

    def ctl(self, *words):
        return self.host.run("lldpcli", "-u", self.socket, *words, check=False).stdout

    def neighbours(self):
        """What it knows of its neighbour, by name."""
        shown = json.loads(self.ctl("-f", "json0", "show", "neighbors") or "{}")
        interfaces = [one for lldp in shown.get("lldp", []) for one in lldp.get("interface", [])]
        return {interface["port"][0]["id"][0]["value"]: interface for interface in interfaces}

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.dir)


def test_lldpd_is_a_neighbour(weir, net):
    """A real peer finds the switch, is found, and is forgotten when it says that it goes."""
    host = net.host()
    daemon = weir(f"""
[[bridge]]
name = "br0"
local = false
system-name = "rack7"
isid-mappings = {{ 10000 = 100, 10001 = 101 }}
[[bridge.port]]
name = "{host.port}"
lldp = true
""")
    lldpd = Lldpd(host)
    try:
        # One that comes up after the first frame waits for the next one, 5 s later.
        chassis = until(lambda: lldpd.neighbours().get(host.port), what="Weir at lldpd")["chassis"][0]
        assert chassis["name"][0]["value"] == "rack7" and "Weir" in chassis["descr"][0]["value"], chassis
        assert chassis["id"][0] == {"type": "mac", "value": json.loads(run("ip", "-j", "link", "show", host.port).stdout)[0]["address"]}
        assert {"type": "Bridge", "enabled": True} in chassis["capability"], chassis

        def lldpd_at_weir():
            shown = daemon.appctl("lldp/show", host.port)
            return shown if "a host of the test" in shown else None

        shown = until(lldpd_at_weir, what="lldpd at Weir")
        assert f"Port ID: {host.mac}" in shown and "System Name: " in shown and "Capabilities: " in shown, shown
    finally:
        lldpd.close()
    until(lambda: "Chassis" not in daemon.appctl("lldp/show"), what="lldpd's farewell")
    # The port carries the VLANs of its bridge's mappings, and no others.
    traced = [daemon.appctl("ofproto/trace", "br0", f"in_port={host.port},dl_vlan={vlan}") for vlan in (101, 102)]
    assert ["not carried" in text or "dropping" in text for text in traced] == [False, True], traced


def test_frames_of_one_port_are_taken_and_of_others_are_not(ovs):
    before = sent(ovs)
    receive(ovs, frame())
    receive(ovs, frame(to=bytes.fromhex("ffffffffffff")))
    until(lambda: counted(ovs, "rx") == 2, what="frames")
    assert sent(ovs) == before
    assert counted(ovs, "rx discarded") == 1, "one was not for the group"
    receive(ovs, frame(), port="p2")
    until(lambda: sent(ovs) == before + 1, what="a frame that goes by the flow")
    assert counted(ovs, "rx") == 2
    trace = ovs.appctl("ofproto/trace", "br0", "in_port=1,dl_type=0x88cc")
    assert "This flow is handled by the userspace slow path because it:\n  - Consists of LLDP packets." in trace
    assert "slow_path(lldp)" in trace
    ovs.vsctl("set", "interface", "p1", "lldp:enable=false")
    assert "slow_path(lldp)" not in ovs.appctl("ofproto/trace", "br0", "in_port=1,dl_type=0x88cc")
    assert ovs.appctl("autoattach/statistics") == ""
    assert "no such bridge" in ovs.refusal("appctl", "autoattach/status", "br9")
    assert "no such LLDP object" in ovs.refusal("appctl", "lldp/show", "p1")


def test_a_server_answers_for_mappings(ovs):
    ovs.vsctl("add-aa-mapping", "br0", 10000, 100)
    ovs.vsctl("add-aa-mapping", "br0", 10001, 101)
    until(lambda: columns(ovs) == ["[100, 101]", "trunk"], what="the columns")
    assert columns(ovs, "p2") == ["[]", "[]"], "it does not speak LLDP"
    assert "10000    100  Switch      Pending    \n" in ovs.appctl("autoattach/show-isid", "br0")
    receive(ovs, frame(element(), assignments((2, 100, 10000), (8, 101, 10001))))
    until(lambda: "Active" in ovs.appctl("autoattach/show-isid", "br0"), what="an answer")
    assert ovs.appctl("autoattach/show-isid", "br0") == (
        "LLDP: p1\nI-SID    VLAN Source      Status  \n-------- ---- ----------- --------\n"
        "10000    100  Switch      Active     \n10001    101  Switch      Reject (VLAN resources unavailable)\n")
    assert ovs.appctl("autoattach/status") == (
        "LLDP: p1\n  Auto Attach Primary Server Id: 02:00:00:00:00:ee\n"
        "  Auto Attach Primary Server Descr: <None>\n"
        "  Auto Attach Primary Server System Id: 02:00:00:00:00:ee:00:00:00:00:00:00\n")
    # What others have added to the trunks stays.
    ovs.vsctl("add", "port", "p1", "trunks", "7")
    ovs.vsctl("del-aa-mapping", "br0", 10000, 100)
    until(lambda: columns(ovs) == ["[7, 101]", "trunk"], what="one VLAN less")
    ovs.vsctl("del-aa-mapping", "br0", 10001, 101)
    until(lambda: columns(ovs)[0] == "[7]", what="no VLAN of a mapping")
    ovs.vsctl("remove", "port", "p1", "trunks", "7")
    ovs.vsctl("add-aa-mapping", "br0", 5, 50)
    until(lambda: columns(ovs) == ["[50]", "trunk"], what="the next mapping")
    ovs.vsctl("del-aa-mapping", "br0", 5, 50)
    until(lambda: columns(ovs) == ["[]", "access"], what="no VLAN")


def test_mappings_are_there_after_a_restart(ovs):
    ovs.vsctl("add-aa-mapping", "br0", 10000, 100)
    until(lambda: columns(ovs) == ["[100]", "trunk"], what="the columns")
    ovs.vsctl("remove", "port", "p1", "trunks", "100", "--", "set", "port", "p1", "vlan_mode=access")
    ovs.stop()
    ovs.start("--enable-dummy=override")
    until(lambda: columns(ovs) == ["[100]", "trunk"], what="the columns again")


def test_broken_frames_are_named(ovs):
    # They come at once where the machine has been busy.
    ovs.expect("excessive rate")
    receive(ovs, frame(tlv(127, AVAYA + b"\x0c\1")))
    until(lambda: "ISID_VLAN_ASGNS TLV too short received on p1" in ovs.log(), what="the warning")
    good = frame(element(), assignments((2, 100, 1)))
    for length in range(14, len(good)):
        receive(ovs, good[:length])
    until(lambda: counted(ovs, "rx") == 1 + len(good) - 14, what="frames")
    # But for those that dummies fill up to 60 bytes, whose end is one of the zeros.
    assert counted(ovs, "rx discarded") >= counted(ovs, "rx") - 60
    receive(ovs, good)
    until(lambda: "Auto Attach Primary Server" in ovs.appctl("autoattach/status"), what="a sound one")


def test_a_flood_of_neighbours_has_a_bound(ovs):
    """Beyond 32 nobody is remembered, and those who are silent make room."""
    ovs.appctl("time/stop")
    for n in range(100):
        receive(ovs, frame(chassis=b"\2\0\0\0\1" + bytes([n]), ttl=10))
    until(lambda: counted(ovs, "rx") == 100, what="frames")
    assert (counted(ovs, "insert"), counted(ovs, "drop")) == (32, 68)
    assert ovs.appctl("lldp/show", "p1").count("Chassis ID") == 32
    ovs.appctl("time/warp", 11_000)
    assert ovs.appctl("lldp/show", "p1").count("Chassis ID") == 0
    assert counted(ovs, "ageout") == 32
    receive(ovs, frame())
    until(lambda: counted(ovs, "insert") == 33, what="the next one")


def test_more_mappings_than_a_frame_has_room_for(ovs):
    pairs = ",".join(f"{10_000 + n}={n + 1}" for n in range(200))
    ovs.vsctl("--", "--id=@a", "create", "AutoAttach", "system_name=br", f"mappings={{{pairs}}}", "--", "set", "bridge", "br0", "auto_attach=@a")
    until(lambda: "200 mappings of Auto Attach" in ovs.log(), what="the warning")
    until(lambda: len(columns(ovs)[0].split(",")) == 95, what="the columns")
    assert ovs.appctl("autoattach/show-isid").count("Switch") == 95
    ovs.vsctl("clear", "bridge", "br0", "auto_attach")
    until(lambda: columns(ovs) == ["[]", "access"], what="no VLAN")


def test_many_ports_speak_while_mappings_change(ovs):
    """Two hundred agents whose frames are due together, and mappings that come and go as fast as a client makes them."""
    add = []
    for n in range(200):
        add += ["--", "add-port", "br0", f"d{n}", "--", "set", "interface", f"d{n}", "type=dummy", "lldp:enable=true"]
    ovs.vsctl(*add[1:])
    until(lambda: ovs.appctl("autoattach/statistics").count("Statistics:") == 201, 30, "agents")
    stop = threading.Event()

    def change():
        while not stop.is_set():
            ovs.vsctl("add-aa-mapping", "br0", 1, 10)
            ovs.vsctl("del-aa-mapping", "br0", 1, 10)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(50):
            receive(ovs, frame())
    finally:
        stop.set()
        changer.join()
    until(lambda: counted(ovs, "rx") == 50, what="frames")
    silent = [("--", "set", "interface", f"d{n}", "lldp:enable=false") for n in range(200)]
    ovs.vsctl(*[word for words in silent for word in words][1:])
    until(lambda: ovs.appctl("autoattach/statistics").count("Statistics:") == 1, 30, "silence")
    until(lambda: columns(ovs) == ["[]", "access"], what="no VLAN")
