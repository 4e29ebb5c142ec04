"""Long dumps: others are served meanwhile, and who does not read costs little."""

import json
import re
import socket
import struct

import pytest
from conftest import until
from lib.daemon import config
from lib.net import run

pytestmark = pytest.mark.timeout(600)

MANY = 100_000
RULES = 20_000
FLOWS = 4_000

#: Readers that stop, on each of the two sockets.
DEAF = 8
#: MB that the daemon may take for all of them. One dump of the rules is 10 MB of text.
BOUND = 24

CONFIG = config([("p1", "dummy", ""), ("p2", "dummy", "")], more='fail_mode = "secure"')

# OFPT_HELLO; OFPT_STATS_REQUEST of OFPST_FLOW (all of it); OFPT_BARRIER_REQUEST, all of OpenFlow 1.0.
HELLO = bytes.fromhex("0100000800000001")
DUMP = bytes.fromhex("01100038000000030001" "0000" "003fffff") + bytes(36) + bytes.fromhex("ff00ffff")
BARRIER = bytes.fromhex("0112000800000004")
STATS_REPLY, BARRIER_REPLY = 17, 19


class Peer:
    """A client of a Unix socket that reads when it is told to."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))

    def receive(self, size):
        data = self.socket.recv(size)
        assert data, "the daemon has hung up"
        return data


class Appctl(Peer):
    """A client of the control socket."""

    def __init__(self, switch):
        super().__init__(switch.dir / f"{switch.program}.{switch.pid()}.ctl")
        self.data = bytearray()

    def ask(self, method, *params):
        self.socket.sendall(json.dumps({"method": method, "params": params, "id": 0}).encode())

    def read_some(self):
        self.data += self.receive(1 << 14)

    def answer(self):
        """The rest of the reply. Nothing follows it, so it is whole when it is JSON."""
        while True:
            try:
                reply = json.loads(self.data) if self.data.endswith(b"}") else None
            except ValueError:
                reply = None
            if reply:
                break
            self.read_some()
        self.data = bytearray()
        assert reply["error"] is None and reply["id"] == 0, reply
        return reply["result"]

    def call(self, method, *params):
        self.ask(method, *params)
        return self.answer()


class Ofctl(Peer):
    """A client of the bridge's management socket, of OpenFlow 1.0."""

    def __init__(self, switch):
        super().__init__(switch.dir / "br0.mgmt")
        self.data = b""
        self.socket.sendall(HELLO)
        assert self.message()[1] == 0

    def message(self):
        while len(self.data) < 8 or len(self.data) < struct.unpack_from(">H", self.data, 2)[0]:
            self.data += self.receive(1 << 14)
        size = struct.unpack_from(">H", self.data, 2)[0]
        message, self.data = self.data[:size], self.data[size:]
        return message


def memory(switch, what="VmRSS"):
    """MB that the daemon has, or (VmHWM) has had."""
    with open(f"/proc/{switch.pid()}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1024


def reset_peak(switch):
    with open(f"/proc/{switch.pid()}/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")


def rule(n):
    return f"table={n % 2},priority={n % 7},reg0={n},actions=output:2"


def registers(text):
    """The numbers of the rules in a dump, sorted."""
    return sorted(int(n, 0) for n in re.findall(r"reg0=(\w+)", text))


def serves(switch, number):
    """Whoever asks now is answered, by both sockets."""
    assert switch.appctl("version").startswith("weir")
    assert f"flow_count={number}" in switch.ofctl("dump-aggregate", "br0")
    switch.ofctl("add-flow", "br0", "table=9,actions=drop")
    assert "table=9" in switch.ofctl("dump-flows", "br0", "table=9")
    switch.ofctl("del-flows", "br0", "table=9")


@pytest.fixture
def filled(weir, tmp_path):
    """A switch with so many rules."""
    def fill(number):
        switch = weir(CONFIG)
        (tmp_path / "rules").write_text("".join(rule(n) + "\n" for n in range(number)))
        switch.ofctl("add-flows", "br0", str(tmp_path / "rules"), timeout=300)
        return switch
    return fill


def test_readers_that_stop_cost_little_and_hold_up_nobody(filled):
    switch = filled(MANY)
    dump = registers(switch.appctl("bridge/dump-flows", "br0", timeout=300))
    assert dump == list(range(MANY))
    before = memory(switch)
    reset_peak(switch)
    deaf = [Appctl(switch) for _ in range(DEAF)]
    for peer in deaf:
        peer.ask("bridge/dump-flows", "br0")
    deaf += [Ofctl(switch) for _ in range(DEAF)]
    for peer in deaf[DEAF:]:
        peer.socket.sendall(DUMP + BARRIER)
    for peer in deaf:
        # Its answer has begun.
        peer.receive(1)
    serves(switch, MANY)
    # A dump that is read goes on.
    assert registers(switch.ofctl("dump-flows", "br0", timeout=300)) == dump
    grown = memory(switch, "VmHWM") - before
    assert grown < BOUND, f"{grown} MB more"
    # What they wanted to see goes without them, and they get an end, not an error.
    switch.ofctl("del-flows", "br0", timeout=300)
    serves(switch, 0)
    last = deaf[DEAF - 1]
    while not last.data.endswith(b"}"):
        last.read_some()
    seen = registers(json.loads(b"{" + last.data)["result"])
    assert 0 < len(seen) < MANY and len(set(seen)) == len(seen)


def test_a_request_behind_a_dump_is_answered_after_it(filled):
    switch = filled(RULES)
    peer, other = Ofctl(switch), Ofctl(switch)
    peer.socket.sendall(DUMP + BARRIER)
    peer.receive(1)
    peer.data = b"\x01"
    other.socket.sendall(BARRIER)
    assert other.message()[1] == BARRIER_REPLY
    more = 1
    while more:
        message = peer.message()
        assert message[1] == STATS_REPLY
        more = struct.unpack_from(">H", message, 10)[0] & 1
    assert peer.message()[1] == BARRIER_REPLY


@pytest.mark.parametrize("command", [["bridge/dump-flows", "br0"], ["weir/flows", "openflow-only"]])
def test_rules_that_stay_are_shown_once_while_others_change(filled, command, tmp_path):
    switch = filled(RULES)
    peer = Appctl(switch)
    peer.ask(*command)
    peer.read_some()
    gone = {n for n in range(0, RULES, 10)}
    (tmp_path / "changes").write_text(
        "".join("delete_strict " + rule(n).partition(",actions")[0] + "\n" for n in gone)
        + "".join(f"add {rule(n)}\n" for n in range(RULES, RULES + 1000))
        # Again, and changed.
        + "".join(f"add {rule(n)}\n" for n in range(0, RULES, 20))
        + "".join(f"modify_strict {rule(n)},3\n" for n in range(5, RULES, 50)))
    switch.ofctl("add-flows", "br0", str(tmp_path / "changes"), timeout=300)
    text = peer.answer()
    if command[0] == "weir/flows":
        report = json.loads(text)
        assert report["bridges"][0]["name"] == "br0" and report["datapath"] == []
        text = "\n".join(flow["text"] for flow in report["bridges"][0]["flows"])
    seen = registers(text)
    assert len(set(seen)) == len(seen), "a rule is shown twice"
    assert set(range(RULES)) - gone <= set(seen) <= set(range(RULES))


def test_datapath_flows_that_stay_are_shown_once_while_others_change(weir):
    switch = weir(CONFIG)
    switch.ofctl("add-flow", "br0", "actions=output:2")
    switch.appctl("upcall/disable-megaflows")
    switch.appctl("revalidator/pause")
    writer = Appctl(switch)

    def packets(first, last):
        for n in range(first, last):
            writer.call("netdev-dummy/receive", "p1",
                        "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),"
                        f"ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,ttl=64),udp(src={1000 + n},dst=53)")

    def ports(text):
        return [int(n) - 1000 for n in re.findall(r"udp\(src=(\d+)", text)]

    def ufids(text):
        return dict(zip(ports(text), re.findall(r"ufid:([\w-]+)", text)))

    packets(0, FLOWS)
    number = lambda: len(ports(writer.call("dpctl/dump-flows")))
    until(lambda: number() == FLOWS, what="a flow for each packet")
    text = writer.call("dpctl/dump-flows", "-m")
    known = ufids(text)
    assert text.startswith("flow-dump from the main thread:\n") and len(known) == FLOWS
    # One port name of each flow is shown, all by names.
    assert text.count("in_port(p1)") == FLOWS
    assert writer.call("dpctl/dump-flows", "filter=udp,tp_src=1007").count("udp(src=1007") == 1
    assert writer.call("dpctl/dump-flows", "filter=udp,tp_dst=54") == ""
    before = memory(switch)
    reset_peak(switch)
    readers = [Appctl(switch) for _ in range(DEAF)]
    for peer, command in zip(readers, ["dpctl/dump-flows", "weir/flows"] * DEAF):
        peer.ask(command, *(["-m"] if command.startswith("dpctl") else ["datapath-only"]))
        peer.read_some()
    grown = memory(switch, "VmHWM") - before
    assert grown < BOUND, f"{grown} MB more"
    gone = range(0, FLOWS, 8)
    for n in gone:
        writer.call("dpctl/del-flow", "ufid:" + known[n])
    packets(FLOWS, FLOWS + 300)
    packets(0, 400)
    assert switch.appctl("version").startswith("weir")
    for peer in readers:
        text = peer.answer()
        shown = ports(text)
        assert len(set(shown)) == len(shown), "a flow is shown twice"
        assert set(range(FLOWS)) - set(gone) <= set(shown) <= set(range(FLOWS))
    for peer in readers:
        peer.socket.close()
    dump = run("ovs-appctl", "-t", "weir", "dpctl/dump-flows", env=switch.env).stdout
    assert len(ports(dump)) == FLOWS - len(gone) + 300 + 50
