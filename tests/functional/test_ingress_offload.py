"""Rules of ingress filters that AF_XDP ports have in their own XDP program (docs/ingress.md)."""

import json

import pytest
from conftest import until
from lib.ingress import replace_while_packets_flow, rules
from lib.net import run
from test_ingress import PING, dropped, hosts  # noqa: F401

CONFIG = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "{a.port}"
type = "afxdp"
{more}
"""
SECOND = """
[[bridge.port]]
name = "{b.port}"
type = "afxdp"
"""


def config(a, b, more="", ports=CONFIG + SECOND):
    return ports.format(a=a, b=b, more=more)


@pytest.fixture
def switch(weir, hosts):  # noqa: F811
    a, b = hosts
    w = weir(config(a, b))
    assert a.ping("10.0.0.2") == 3
    return w, a, b


def offloaded(w, port):
    """Which of a port's rules its XDP program has, and why it has no more."""
    ports = w.json("ingress", port, "show")["ports"]
    return [r["offloaded"] for p in ports for r in p["rules"]], [p["not_offloaded"] for p in ports]


def xdp(device):
    """The id of the XDP program on a device."""
    link = json.loads(run("ip", "-j", "-d", "link", "show", device).stdout)[0]
    return link.get("xdp", {}).get("prog", {}).get("id")


def port(w, name):
    return next(p for p in w.json("ports")["ports"] if p["name"] == name)


def received(w):
    """Packets that the workers have received."""
    return sum(worker["packets"] for worker in w.json("stats")["workers"])


def test_a_pushed_rule_drops_and_is_counted(switch):
    w, a, b = switch
    w.cli("ingress", a.port, "set", "pass icmp and dst host 10.0.0.9; drop icmp and dst host 10.0.0.2; limit 5k udp; drop tcp")
    assert offloaded(w, a.port) == ([True, True, False, False], ["rule 3: it limits a rate"])
    assert "ingress-offloaded-rules=2" in w.cli("show").stdout
    before, at_port = received(w), port(w, a.port)["statistics"]["rx_packets"]
    assert a.ping("10.0.0.2", count=50, interval=0.01, wait=1) == 0
    assert rules(w, a.port)[1] == ("drop icmp and dst host 10.0.0.2", 50, 50 * PING, 50)
    assert dropped(w, a.port) == 50 and dropped(w, b.port) == 0
    assert received(w) - before < 50, "they were dropped before"
    assert port(w, a.port)["statistics"]["rx_packets"] - at_port >= 50
    assert w.cli("ingress", a.port, "show").stdout == (
        f"{a.port}:\n  1: pass icmp and dst host 10.0.0.9 (offloaded)\n  2: drop icmp and dst host 10.0.0.2 (offloaded)\n"
        "  3: limit 5000 udp\n  4: drop tcp\n  not offloaded: rule 3: it limits a rate\n")

    # A rule that stays counts on, there and here.
    w.cli("ingress", a.port, "set", "limit 5k udp; drop icmp and dst host 10.0.0.2")
    assert offloaded(w, a.port)[0] == [False, False] and "offloaded-rules" not in w.cli("show").stdout
    assert a.ping("10.0.0.2", wait=1) == 0
    w.cli("ingress", a.port, "set", "drop icmp and dst host 10.0.0.2")
    assert a.ping("10.0.0.2", wait=1) == 0
    assert offloaded(w, a.port) == ([True], [None])
    assert rules(w, a.port) == [("drop icmp and dst host 10.0.0.2", 56, 56 * PING, 56)]
    assert dropped(w, a.port) == 56
    w.cli("ingress", a.port, "del")
    assert a.ping("10.0.0.2") == 3 and "offloaded-rules" not in w.cli("show").stdout
    assert dropped(w, a.port) == 56


def test_no_accepted_packet_is_lost_while_pushed_rules_are_replaced(switch):
    texts = ["drop udp dst port 9; pass", "pass icmp; drop dst host 10.0.0.2", "limit 1m tcp; drop udp"]
    replace_while_packets_flow(*switch, texts)


def test_what_cannot_be_pushed_stays_in_the_switch(switch):
    w, a, _ = switch
    for text, reason in [
        ("drop greater 90; drop udp", "rule 1: it asks for the frame's length, and parts"),
        ("limit 1 tcp; drop icmp", "rule 1: it limits a rate"),
        ("drop ether[40000] = 1; drop icmp", "rule 1: it asks for what is more than"),
    ]:
        w.cli("ingress", a.port, "set", text)
        flags, [why] = offloaded(w, a.port)
        assert not any(flags) and why.startswith(reason), why
        assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port)[1] == ("drop icmp", 6, 6 * PING, 6)


def test_offloading_can_be_turned_off(weir, hosts):  # noqa: F811
    a, b = hosts
    on, off = 'ingress-filter = "drop icmp"\n', 'ingress-filter = "drop icmp"\ningress-offload = false\n'
    w = weir(config(a, b, off))
    assert a.ping("10.0.0.2", wait=1) == 0
    assert offloaded(w, a.port) == ([False], [None]) and rules(w, a.port) == [("drop icmp", 3, 3 * PING, 3)]
    for text, expected in [(on, True), (off, False)]:
        w.configure(config(a, b, text))
        w.cli("reload")
        assert offloaded(w, a.port) == ([expected], [None])
        assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp", 9, 9 * PING, 9)]


def test_the_database_turns_it_off(ovs, hosts):  # noqa: F811
    a, b = hosts
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "add-port", "br0", b.port, "--", "add-port", "br0", a.port, "--",
              "set", "interface", a.port, "type=afxdp", 'other_config:ingress-filter="drop icmp"')
    assert a.ping("10.0.0.2", wait=1) == 0
    assert ovs.appctl("ingress/show", a.port) == f"{a.port}:\n  1: drop icmp (offloaded)\n"
    assert 'ingress-offloaded-rules="1"' in ovs.get("interface", a.port, "status")
    ovs.vsctl("set", "interface", a.port, "other_config:ingress-offload=false")
    assert ovs.appctl("ingress/show", a.port) == f"{a.port}:\n  1: drop icmp\n"
    assert a.ping("10.0.0.2", wait=1) == 0


def test_a_port_takes_its_program_with_it(switch):
    w, a, b = switch
    w.cli("ingress", a.port, "set", "drop icmp")
    assert xdp(a.port) and xdp(b.port)
    w.configure('[[bridge]]\nname = "br0"\nlocal = false\n' + SECOND.format(b=b))
    w.cli("reload")
    assert xdp(a.port) is None and xdp(b.port)
    # A port that is there again has no filter, and one that is set is pushed down anew.
    w.configure(config(a, b))
    w.cli("reload")
    assert a.ping("10.0.0.2") == 3
    w.cli("ingress", a.port, "set", "drop icmp")
    assert offloaded(w, a.port) == ([True], [None]) and a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp", 3, 3 * PING, 3)]


def test_a_daemon_that_is_killed_leaves_no_program(switch):
    w, a, _ = switch
    w.cli("ingress", a.port, "set", "drop icmp")
    assert a.ping("10.0.0.2", wait=1) == 0 and xdp(a.port)
    w.kill()
    until(lambda: xdp(a.port) is None, what="the end of the program")
    w.start()
    assert a.ping("10.0.0.2") == 3


def test_a_filter_is_pushed_down_into_a_device_that_comes_back(switch):
    w, a, b = switch
    w.expect("No such device|no such interface")
    w.cli("ingress", a.port, "set", "drop icmp")
    assert a.ping("10.0.0.2", wait=1) == 0
    mac = a.mac
    run("ip", "link", "del", a.port)
    until(lambda: "No such" in w.cli("show").stdout, what="the device's end")
    run("ip", "link", "add", a.port, "type", "veth", "peer", "name", "eth0", "netns", a.ns)
    run("ip", "link", "set", a.port, "up")
    a.run("ip", "link", "set", "eth0", "address", mac, "up")
    a.run("ip", "addr", "add", "10.0.0.1/24", "dev", "eth0")
    a.run("ip", "neigh", "replace", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    until(lambda: "offloaded-rules" in w.cli("show").stdout, what="the device's return with its rules")
    assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp", 6, 6 * PING, 6)]
