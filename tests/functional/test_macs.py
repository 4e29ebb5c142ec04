"""The table of learnt addresses where ports send from more of them than there is room for, or from each other's."""

import re

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.pcap import write_pcap

VICTIMS = [f"0200000000{n:02x}" for n in range(1, 6)]


def frame(source, target="020000ffffff"):
    return bytes.fromhex(f"{target}{source}88b5") + bytes(46)


@pytest.fixture
def switch(ovs):
    """A bridge of NORMAL, at whose ports v1 and v2 the victims are and one that talks to them. Addresses do not age."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "v1", "v2")
    ovs.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=3600")
    for mac in VICTIMS:
        ovs.appctl("netdev-dummy/receive", "v1", frame(mac).hex())
    ovs.appctl("netdev-dummy/receive", "v2", frame("020000000101").hex())
    return ovs


def send_from(ovs, port, sources, **options):
    """Adds a port at which frames from these addresses come in, as fast as they are taken."""
    path = ovs.dir / f"{port}.pcap"
    write_pcap(path, [frame(source) for source in sources])
    options = [f"options:{key}={value}" for key, value in {"rx_pcap": path, **options}.items()]
    ovs.vsctl("add-port", "br0", port, "--", "set", "interface", port, "type=pcap", *options)


def flood_from(ovs, port, count, **options):
    """Adds a port at which a frame from each of so many addresses comes in, once, and waits until all have left by v1 and v2
    or were dropped: the last ones wait in the slow path after they were counted as received. How many were not dropped."""
    sent = lambda: [ovs.counters(name)["tx_pkts"] for name in ("v1", "v2")]  # noqa: E731
    passed = lambda: count - sum(row["packets"] for row in ovs.json("drops")["drops"] if row.get("in_port") == port)  # noqa: E731
    before = sent()
    send_from(ovs, port, [f"0600{n:08x}" for n in range(count)], **options)
    until(lambda: sent() == [n + passed() for n in before], 60, what=f"the end of the frames from {port}")
    return passed()


def stats(ovs):
    """What `fdb/stats-show` counts."""
    text = ovs.appctl("fdb/stats-show", "br0")
    assert text.startswith('Statistics for bridge "br0":\n')
    names = {"entries": r"Current/maximum MAC entries in the table: (\d+)/\d+",
             "room": r"Current/maximum MAC entries in the table: \d+/(\d+)",
             "static": r"Current static MAC entries in the table : (\d+)",
             "learned": r"Total number of learned MAC entries     : (\d+)",
             "expired": r"Total number of expired MAC entries     : (\d+)",
             "evicted": r"Total number of evicted MAC entries     : (\d+)",
             "moved": r"Total number of port moved MAC entries  : (\d+)"}
    return {name: int(re.search(f"^  {pattern}$", text, re.MULTILINE)[1]) for name, pattern in names.items()}


def table(ovs):
    """The addresses by the name of their port."""
    names = {number: name for number, name in re.findall(r"^ (\w+)\((\w+)\):", ovs.ofctl("show", "br0"), re.MULTILINE)}
    found = {}
    for line in ovs.appctl("fdb/show", "br0").splitlines()[1:]:
        port, _, mac, _ = line.split()
        found.setdefault(names.get(port, port), []).append(mac.replace(":", ""))
    return found


def reaches(ovs, target):
    """The ports that a frame to this address leaves by."""
    sent = lambda: {port: ovs.counters(port)["tx_pkts"] for port in ("v1", "v2", "hostile")}  # noqa: E731
    before = sent()
    ovs.appctl("netdev-dummy/receive", "v2", frame("020000000101", target).hex())
    after = sent()
    return {port for port in before if after[port] > before[port]}


def test_a_port_that_invents_addresses_takes_no_others_place(switch):
    """As in OVS, who has most loses what was unused for longest; and static ones are not among them."""
    switch.vsctl("set", "bridge", "br0", "other_config:mac-table-size=64")
    switch.appctl("fdb/add", "br0", "v2", "0", "02:00:00:00:02:02")
    count = 100_000
    flood_from(switch, "hostile", count)
    known = table(switch)
    assert sorted(known["v1"]) == VICTIMS
    assert sorted(known["v2"]) == ["020000000101", "020000000202"]
    assert len(known["hostile"]) == 64 - 7
    counted = stats(switch)
    assert (counted["entries"], counted["room"], counted["static"], counted["moved"]) == (64, 64, 1, 0)
    assert counted["evicted"] > 500 and counted["expired"] == 0
    assert counted["learned"] - counted["evicted"] == 63, "those that are there"
    assert reaches(switch, VICTIMS[0]) == {"v1"}
    # Another port that wants a few gets them.
    more = [f"0a00000000{n:02x}" for n in range(10)]
    for mac in more:
        switch.appctl("netdev-dummy/receive", "v2", frame(mac).hex())
    known = table(switch)
    assert sorted(known["v1"]) == VICTIMS and len(known["hostile"]) == 64 - 17
    assert sorted(known["v2"]) == ["020000000101", "020000000202", *more]


def test_the_table_becomes_smaller_than_what_is_in_it(switch):
    count = 3000
    send_from(switch, "hostile", [f"0600{n:08x}" for n in range(count)], rate=5000, loop="true")
    until(lambda: len(table(switch).get("hostile", [])) == count, 30, what="all addresses")
    switch.vsctl("set", "bridge", "br0", "other_config:mac-table-size=100")
    known, counted = table(switch), stats(switch)
    assert sorted(known["v1"]) == VICTIMS and len(known["hostile"]) == 94
    assert (counted["entries"], counted["room"]) == (100, 100)
    assert counted["expired"] == count - 94 and counted["learned"] >= count
    switch.vsctl("set", "bridge", "br0", "other_config:mac-table-size=5000")
    until(lambda: stats(switch)["entries"] == count + 6, 30, what="those in use to be learnt again")


@pytest.mark.parametrize("given, room", [("0", 8192), ("1", 10), ("-7", 10), ("11", 11), ("5000000", 1_000_000)])
def test_sizes_out_of_range(switch, given, room):
    switch.vsctl("set", "bridge", "br0", f"other_config:mac-table-size={given}")
    assert stats(switch)["room"] == room


def test_thousands_of_addresses_age(switch):
    count = 20_000
    switch.vsctl("set", "bridge", "br0", "other_config:mac-table-size=100000", "other_config:mac-aging-time=1")
    passed = flood_from(switch, "hostile", count, rate=10000)
    switch.appctl("fdb/add", "br0", "v2", "0", "02:00:00:00:02:02")
    counted = stats(switch)
    assert counted["entries"] == passed + 7 and counted["expired"] == 0, "an age below 15 s is one of 15 s"
    assert passed > 2000
    switch.appctl("time/stop")
    switch.appctl("time/warp", "16000", "1000")
    counted = stats(switch)
    assert (counted["entries"], counted["static"]) == (1, 1)
    assert counted["expired"] == counted["learned"]


def test_addresses_that_two_ports_send_from(switch):
    """Each packet may be a move, as fast as they come: nobody else loses anything by it."""
    for port in "ab":
        send_from(switch, port, [f"06000000{n:04x}" for n in range(20)], loop="true")
    until(lambda: stats(switch)["moved"] > 200, 30, what="moves")
    send_from(switch, "hostile", ["0a0000000000"])
    until(lambda: "hostile" in table(switch), 10, what="another address, meanwhile")
    trace = switch.appctl("ofproto/trace", "br0", "in_port=v2,dl_src=02:00:00:00:01:01,dl_dst=02:00:00:00:00:01")
    assert "forwarding to learned port" in trace, trace
    known, counted = table(switch), stats(switch)
    assert sorted(known["v1"]) == VICTIMS and len(known.get("a", []) + known.get("b", [])) == 20
    assert counted["entries"] == 27 and counted["learned"] == 27


def test_what_a_static_address_replaces_is_said(switch):
    add = ["fdb/add", "br0", "v2", "0", "02:00:00:00:00:01"]
    assert switch.appctl(*add) == "Overriding already existing dynamic entry on 1\n"
    assert switch.appctl(*add) == ""
    assert switch.appctl("fdb/add", "br0", "v1", "0", "02:00:00:00:00:01") == \
        "Overriding already existing static entry on 2\n"
    switch.appctl("netdev-dummy/receive", "v2", frame(VICTIMS[0]).hex())
    assert int(switch.appctl("coverage/read-counter", "mac_learning_static_none_move")) == 1


def test_addresses_of_a_port_that_goes_are_forgotten_everywhere(switch):
    switch.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "--",
                 "add-port", "br1", "w1", "--", "set", "interface", "w1", "type=dummy")
    for mac in (VICTIMS[0], "020000000201"):
        switch.appctl("netdev-dummy/receive", "w1", frame(mac).hex())
    assert "02:00:00:00:00:01" in switch.appctl("fdb/show", "br1")
    switch.vsctl("del-port", "v1")
    left = switch.appctl("fdb/show", "br1")
    assert "02:00:00:00:00:01" not in left and "02:00:00:00:02:01" in left
