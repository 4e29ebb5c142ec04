"""The commands about tracked connections, their words and errors, and what they cost others."""

import re
import time

import pytest
from conftest import until
from lib.daemon import config, dummy_bridge
from test_dumps import Appctl, memory, reset_peak

pytestmark = pytest.mark.timeout(600)

#: Connections: as many sources as there are of these, with as many ports each.
SOURCES, PORTS = 200, 1000
MANY = SOURCES * PORTS
#: Packets that the receive queue of a dummy port holds.
BATCH = 1000

ETHERNET = "aa55aa550002" "50540000000a" "0800"

#: Connections from half of the sources are in zone 1, and those of the others in zone 2.
FLOWS = ("udp,nw_src=10.1.0.0/25,actions=ct(commit,zone=1),2", "udp,nw_src=10.1.0.128/25,actions=ct(commit,zone=2),2")
BRIDGE = config([("p1", "dummy", ""), ("p2", "dummy", "")], more='fail_mode = "secure"')
#: They last longer than any test.
LASTING = "".join(f"[[conntrack.zone]]\nnumber = {zone}\ntimeouts = {{ udp-first = 86400 }}\n" for zone in (1, 2))


def checksum(header):
    total = sum(header[i] << 8 | header[i + 1] for i in range(0, len(header), 2))
    return 0xffff - total % 0xffff


def udp(source, sport, dport=53, answer=False):
    """A datagram from 10.1.0.SOURCE to 10.2.0.1, or the answer to it, in hexadecimal; without a checksum of its own."""
    ends = [f"0a01{source:04x}", "0a020001"]
    ports = [f"{sport:04x}", f"{dport:04x}"]
    if answer:
        ends.reverse(), ports.reverse()
    header = bytearray.fromhex("4500001c" "00000000" "4011" "0000" + "".join(ends))
    header[10:12] = checksum(header).to_bytes(2, "big")
    return ETHERNET + header.hex() + "".join(ports) + "00080000"


@pytest.fixture
def switch(weir):
    switch = weir(LASTING + BRIDGE)
    for flow in FLOWS:
        switch.ofctl("add-flow", "br0", flow)
    return switch


def count(switch):
    return int(switch.appctl("dpctl/ct-get-nconns"))


def fill(switch, number=MANY):
    """Makes so many connections, which nobody answers."""
    client = Appctl(switch)
    packets = [udp(source, sport + 1) for source in range(SOURCES) for sport in range(PORTS)][:number]
    for at in range(0, number, BATCH):
        client.call("netdev-dummy/receive", "p1", *packets[at:at + BATCH])
    assert count(switch) == number


def served(switch):
    """How long another client waits for an answer."""
    began = time.monotonic()
    assert switch.appctl("version").startswith("weir")
    switch.ofctl("add-flow", "br0", "table=9,actions=drop")
    assert "table=9" in switch.ofctl("dump-flows", "br0", "table=9")
    switch.ofctl("del-flows", "br0", "table=9")
    return time.monotonic() - began


def tuples(text):
    return re.findall(r"orig=\(src=(\S+?),dst=\S+?,sport=(\d+),", text)


def test_many_connections_are_dumped_and_flushed_while_others_are_served(switch):
    fill(switch)
    alone = max(served(switch) for _ in range(3))

    # One reads slowly, one has stopped in the middle, and others are served.
    slow, deaf = Appctl(switch), Appctl(switch)
    reset_peak(switch)
    before = memory(switch)
    slow.ask("dpctl/dump-conntrack")
    deaf.ask("dpctl/dump-conntrack", "-m")
    deaf.read_some()
    for _ in range(20):
        slow.read_some()
        assert served(switch) < alone + 10
    assert len(slow.data) < 1 << 20, "it has not been given much yet"
    # What connects and ends meanwhile changes nothing for those that stay.
    switch.appctl("netdev-dummy/receive", "p1", udp(7, 60000))
    dump = set(tuples(slow.answer()))
    # Who reads nothing at all for a minute is hung up on.
    deaf.read_some()
    assert {(f"10.1.0.{source}", str(port + 1)) for source in range(SOURCES) for port in range(PORTS)} <= dump
    assert len(dump) <= MANY + 1
    peak = memory(switch, "VmHWM")
    assert peak - before < 24, "two dumps of 20 MB each"

    # The statistics go over all of them, too, and leave others room.
    statistics = Appctl(switch)
    statistics.ask("dpctl/ct-stats-show")
    assert served(switch) < alone + 10
    assert f"  UDP: {MANY + 1}\n" in statistics.answer()

    deaf.read_some()

    # A flush of one zone; packets go on meanwhile.
    flush = Appctl(switch)
    flush.ask("dpctl/flush-conntrack", "zone=2")
    assert served(switch) < alone + 10
    assert flush.answer() == ""
    left = switch.appctl("dpctl/dump-conntrack", "zone=1", timeout=60)
    assert len(tuples(left)) == count(switch) == 128 * PORTS + 1
    assert switch.appctl("dpctl/dump-conntrack", "zone=2") == ""
    switch.appctl("dpctl/flush-conntrack")
    assert count(switch) == 0
    # Who had stopped gets the rest of what there is.
    assert len(tuples(deaf.answer())) < MANY


def test_words_and_numbers(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "bridge", "br0", "fail-mode=secure")
    for flow in FLOWS:
        ovs.ofctl("add-flow", "br0", flow)
    ovs.appctl("time/stop")
    switch = ovs
    fill(switch, 3000)
    switch.appctl("netdev-dummy/receive", "p1", udp(200, 5))
    line = ("udp,orig=(src=10.1.0.200,dst=10.2.0.1,sport=5,dport=53),reply=(src=10.2.0.1,dst=10.1.0.200,sport=53,dport=5)"
            "{id},zone=2{rest}\n")
    dump = switch.appctl
    assert dump("dpctl/dump-conntrack", "zone=2") == line.format(id="", rest="")
    assert dump("dpctl/dump-conntrack", "-m", "zone=2") == line.format(id=",id=0", rest=",status=0")
    assert dump("dpctl/dump-conntrack", "-ms", "zone=2") == line.format(id=",id=0", rest=",status=0,timeout=60")
    datapath = dump("dpctl/dump-dps").split()[0]
    for name in (datapath, datapath.split("@")[1]):
        assert dump("dpctl/dump-conntrack", "--statistics", name, "zone=2") == line.format(id="", rest=",timeout=60")
    switch.appctl("time/warp", "59500")
    assert dump("dpctl/dump-conntrack", "-s", "zone=2") == line.format(id="", rest=",timeout=0")
    switch.appctl("time/warp", "1000")
    assert dump("dpctl/dump-conntrack") == "", "their time is over"
    # They are removed within a second of the switch's time.
    switch.appctl("time/warp", "1000")
    until(lambda: count(switch) == 0)

    fill(switch, 3000)
    buckets = dump("dpctl/ct-bkts")
    assert buckets.startswith("Total Buckets: 64\nCurrent Connections: 3000\n\n+-----------+-")
    rows = re.findall(r"^ +(\d+)\.\. *(\d+) +\| (.*)$", buckets, re.M)
    assert [(int(a), int(b)) for a, b, _ in rows] == [(n, n + 7) for n in range(0, 64, 8)]
    assert sum(int(n) for _, _, row in rows for n in row.split()) == 3000
    assert dump("dpctl/ct-bkts", datapath, "gt=3000").count(" .") == 64
    assert dump("dpctl/ct-get-maxconns", datapath) == "3000000\n"
    assert dump("dpctl/ct-set-maxconns", "3010") == "setting maxconns successful\n"
    for port in range(20):
        switch.appctl("netdev-dummy/receive", "p1", udp(201, port + 1))
    assert count(switch) == 3010
    assert switch.appctl("coverage/read-counter", "conntrack_full") == "10\n"
    assert re.search(r"^conntrack_full .* total: 10$", switch.appctl("coverage/show"), re.M)


def test_connections_are_flushed_by_tuple_and_mark(switch):
    switch.ofctl("add-flow", "br0", "priority=40000,udp,tp_dst=99,actions=ct(commit,zone=3,exec(set_field:0x15->ct_mark,"
                                    "set_field:0x30000000000000000->ct_label)),2")
    switch.appctl("netdev-dummy/receive", "p1", *(udp(1, port) for port in (1, 2, 3)), udp(2, 1), udp(1, 9, 99), udp(2, 9, 99))
    switch.expect("conntrack.*Must flush tuple")

    def left():
        return sorted((int(a.split(".")[3]), int(p)) for a, p in tuples(switch.appctl("dpctl/dump-conntrack")))

    everything = [(1, 1), (1, 2), (1, 3), (1, 9), (2, 1), (2, 9)]
    assert left() == everything
    whole = "ct_nw_src=10.1.0.1,ct_nw_dst=10.2.0.1,ct_nw_proto=17,ct_tp_src=1,ct_tp_dst=53"
    refused = switch.refusal("appctl", "dpctl/flush-conntrack", whole)
    assert "failed to flush conntrack (No such file or directory)" in refused, "it is in another zone"
    for arguments, expected in [
        (["zone=4"], everything),
        (["mark=0x14"], everything),
        (["mark=0/0x2", "labels=0x1"], everything),
        (["zone=1", whole], [(1, 2), (1, 3), (1, 9), (2, 1), (2, 9)]),
        (["ct_nw_src=10.1.0.1,ct_nw_proto=17,ct_tp_src=2"], [(1, 3), (1, 9), (2, 1), (2, 9)]),
        (["", "ct_nw_dst=10.1.0.2,ct_nw_proto=17,ct_tp_src=53"], [(1, 3), (1, 9), (2, 9)]),
        (["zone=3", "mark=0x5/0xf", "labels=0x30000000000000000", "ct_nw_src=10.1.0.2"], [(1, 3), (1, 9)]),
        (["mark=21"], [(1, 3)]),
    ]:
        assert switch.appctl("dpctl/flush-conntrack", *arguments) == ""
        assert left() == expected, arguments


@pytest.mark.parametrize("command, says", [
    ("dump-conntrack nosuch", "weir: datapath not found (Invalid argument)"),
    ("dump-conntrack zone=x", "weir: datapath not found (Invalid argument)"),
    ("dump-conntrack -q", "Unrecognized option -q"),
    ("dump-conntrack a b c d e", '"dpctl/dump-conntrack" command takes at most 4 arguments'),
    ("flush-conntrack zone=x", "weir: failed to parse zone (Invalid argument)"),
    ("flush-conntrack ct_nw_src=1", "weir: failed to parse field ct_nw_src (Invalid argument)"),
    ("ct-stats-show nosuch", "weir: datapath not found (Invalid argument)"),
    ("ct-set-maxconns one-bad-dp", "weir: maxconns missing or malformed (Invalid argument)"),
    ("ct-set-maxconns one-bad-dp 10", "weir: datapath not found (Invalid argument)"),
    ("ct-get-maxconns one-bad-dp", "weir: datapath not found (Invalid argument)"),
    ("ct-get-nconns one-bad-dp", "weir: datapath not found (Invalid argument)"),
    ("ct-get-tcp-seq-chk one-bad-dp", "weir: datapath not found (Invalid argument)"),
    ("ct-set-limits default=x", "weir: invalid default limit (Invalid argument)"),
    ("ct-set-limits zone=1", "weir: failed to parse zone limit (Invalid argument)"),
    ("ct-del-limits zones=1", "weir: invalid argument zones=1 (Invalid argument)"),
    ("ct-get-limits zone=x", "weir: invalid zone (Invalid argument)"),
])
def test_errors_are_those_of_ovs(switch, command, says):
    name, *arguments = command.split()
    assert says in switch.refusal("appctl", f"dpctl/{name}", *arguments)
    assert name in switch.appctl("dpctl/list-commands")


def test_limits_and_timeouts_of_a_file(weir):
    text = """
[conntrack]
limit = 6
zone-limit = 4
tcp-sequence-check = false

[[conntrack.zone]]
number = 2
limit = 3
timeouts = { udp-first = 900 }

""" + BRIDGE
    switch = weir(text)
    for flow in FLOWS:
        switch.ofctl("add-flow", "br0", flow)
    assert switch.appctl("dpctl/ct-get-tcp-seq-chk") == "TCP sequence checking: disabled\n"
    send = [udp(200, port) for port in range(1, 6)] + [udp(1, port) for port in range(1, 6)]
    switch.appctl("netdev-dummy/receive", "p1", *send)
    assert switch.appctl("dpctl/ct-get-limits", "zone=1,2") == "default limit=4\nzone=1,limit=4,count=3\nzone=2,limit=3,count=3\n"
    assert switch.appctl("dpctl/ct-get-maxconns") == "6\n"

    def timeouts():
        """Of each zone, in minutes."""
        found = re.findall(r"zone=(\d),timeout=(\d+)", switch.appctl("dpctl/dump-conntrack", "-s"))
        return {(int(zone), -(-int(seconds) // 60)) for zone, seconds in found}

    assert timeouts() == {(1, 1), (2, 15)}
    assert "ct(commit,zone=2,timeout=1)" in switch.appctl("dpctl/dump-flows")
    # What the file leaves as it is stays as commands have set it.
    switch.appctl("dpctl/ct-set-maxconns", "100")
    switch.configure(text.replace("zone-limit = 4", "zone-limit = 50").replace("timeouts", "# timeouts"))
    switch.appctl("reload")
    assert "(Operation not permitted)" in switch.refusal("appctl", "dpctl/ct-set-limits", "zone=1,limit=5")
    assert switch.appctl("dpctl/ct-get-maxconns") == "100\n"
    assert switch.appctl("dpctl/ct-get-limits") == "default limit=50\nzone=2,limit=3,count=3\n"
    until(lambda: "timeout=" not in switch.appctl("dpctl/dump-flows"), what="flows without a policy")
    # Connections keep the timeouts that they began with.
    assert timeouts() == {(1, 1), (2, 15)}


def test_the_limit_makes_room_where_that_is_wanted(weir):
    switch = weir("[conntrack]\nlimit = 100\nearly-drop = true\n" + BRIDGE)
    switch.ofctl("add-flow", "br0", "udp,actions=ct(commit,zone=1),2")
    switch.appctl("netdev-dummy/receive", "p1", *(udp(1, port) for port in range(1, 900)))
    assert count(switch) <= 100
    ended = int(switch.appctl("coverage/read-counter", "conntrack_early_drop"))
    made = int(switch.appctl("coverage/read-counter", "conntrack_made"))
    assert ended > 400 and made == ended + count(switch), "shards that have nothing to give refuse"


def test_established_packets_are_classified_twice_only_where_fusing_is_off(weir):
    switch = weir(BRIDGE)
    switch.ofctl("add-flow", "br0", "udp,ct_state=-trk,actions=ct(table=1)")
    switch.ofctl("add-flow", "br0", "table=1,udp,ct_state=+trk+new,actions=ct(commit),2")

    def recirculated(packets):
        """By how many the counter of recirculations has grown after so many packets of one connection."""
        before = count()
        for _ in range(packets):
            switch.appctl("netdev-dummy/receive", "p1", udp(1, 1000))
        return count() - before

    count = lambda: sum(map(int, re.findall(r"packet recirculations: (\d+)", switch.appctl("dpif-netdev/pmd-stats-show"))))
    assert recirculated(5) > 0, "until the way is known"
    assert recirculated(10) == 0
    switch.appctl("dpctl/ct-disable-fusing")
    assert recirculated(10) == 10
    switch.appctl("dpctl/ct-enable-fusing")
    recirculated(2)
    assert recirculated(10) == 0
    assert " n_packets=37," in switch.ofctl("dump-flows", "br0", "table=1")


def test_capabilities_and_policies_of_the_database(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "bridge", "br0", "fail-mode=secure")
    ovs.vsctl("--", "--id=@m", "create", "Datapath", "datapath_version=0", "capabilities={mine=1,ct_state=never}",
              "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@m", "--", "--id=@n", "create", "Datapath",
              "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:strange=@n")
    assert "datapaths:strange has no effect" in ovs.log()
    until(lambda: "ct_state=true" in ovs.vsctl("list-dp-cap", "netdev"), what="the capabilities")
    found = dict(pair.split("=") for pair in ovs.vsctl("list-dp-cap", "netdev").split())
    assert found.pop("mine") == "1"
    shown = dict(re.findall(r"^(\w+) \(.*\[run time\]:(\w+),", ovs.appctl("dpif/set-dp-features", "br0"), re.M))
    assert {**shown, "sample_nesting": "false", "ct_flush": "true"} == found
    for name in ("ct_zone", "ct_mark", "ct_label", "ct_state_nat", "ct_orig_tuple", "ct_orig_tuple6", "ct_zero_snat",
                 "ct_timeout", "ct_clear"):
        assert found[name] == "true"
    assert "capabilities        : {}" in ovs.vsctl("list", "Datapath"), "there is no such datapath"

    ovs.vsctl("add-zone-tp", "netdev", "zone=7", "udp_first=9", "icmp_reply=4", "tcp_unack=3")
    ovs.ofctl("add-flow", "br0", "udp,actions=ct(commit,zone=7),2")
    ovs.appctl("time/stop")
    ovs.appctl("netdev-dummy/receive", "p1", udp(1, 1))
    assert "zone=7,timeout=9\n" in ovs.appctl("dpctl/dump-conntrack", "-s")
    assert "ct(commit,zone=7,timeout=1)" in ovs.appctl("dpctl/dump-flows")
    ovs.vsctl("del-zone-tp", "netdev", "zone=7")
    until(lambda: "ct(commit,zone=7)," in ovs.appctl("dpctl/dump-flows"), what="flows without a policy")
    ovs.appctl("netdev-dummy/receive", "p1", udp(1, 2))
    dump = ovs.appctl("dpctl/dump-conntrack", "-s")
    assert "zone=7,timeout=60\n" in dump and "zone=7,timeout=9\n" in dump
