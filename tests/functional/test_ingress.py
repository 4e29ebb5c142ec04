"""Ingress filters (docs/ingress.md): real frames that are dropped, passed and limited before they are parsed."""

import re
import time

import pytest
from conftest import WEIR, until
from lib.ingress import replace_while_packets_flow, rules
from lib.net import run

CONFIG = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "{a.port}"
{more}
[[bridge.port]]
name = "{b.port}"
"""
#: What `ping` sends: 56 bytes and the headers of ICMP, IPv4 and Ethernet.
PING = 98


@pytest.fixture
def hosts(net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    # Neither ARP nor what is learnt from it is part of the counts.
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    b.run("ip", "neigh", "add", "10.0.0.1", "lladdr", a.mac, "dev", "eth0")
    return a, b


@pytest.fixture
def switch(weir, hosts):
    """A switch that joins both hosts, and these."""
    a, b = hosts
    w = weir(CONFIG.format(a=a, b=b, more=""))
    assert a.ping("10.0.0.2") == 3
    return w, a, b


def refusal(w, *args):
    r = w.cli("ingress", *args, check=False)
    assert r.returncode == 1, r
    return r.stderr


def dropped(w, port):
    """What Weir says that the filter of a port has dropped."""
    return next(p["drops"].get("ingress_filter", 0) for p in w.json("ports")["ports"] if p["name"] == port)


def test_the_first_rule_that_matches_decides_and_counts(switch):
    w, a, b = switch
    w.cli("ingress", a.port, "set", "drop icmp and dst host 10.0.0.2")
    assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp and dst host 10.0.0.2", 3, 3 * PING, 3)]
    assert dropped(w, a.port) == 3 and dropped(w, b.port) == 0

    # A rule in front, which passes; the one that stays counts on.
    w.cli("ingress", a.port, "set", "pass dst net 10.0.0.2/31; drop icmp and dst host 10.0.0.2")
    assert a.ping("10.0.0.2") == 3
    assert rules(w, a.port) == [("pass dst net 10.0.0.2/31", 3, 3 * PING, 0),
                                ("drop icmp and dst host 10.0.0.2", 3, 3 * PING, 3)]
    w.cli("ingress", a.port, "del", "1")
    assert a.ping("10.0.0.2", wait=1) == 0
    w.cli("ingress", a.port, "add", "limit 2k udp")
    assert w.cli("ingress", a.port, "stats").stdout == (
        f"{a.port}:\n  1: n_packets=6, n_bytes={6 * PING}, n_dropped=6, drop icmp and dst host 10.0.0.2\n"
        "  2: n_packets=0, n_bytes=0, n_dropped=0, limit 2000 udp\n")
    w.cli("ingress", a.port, "del", "drop  icmp and dst host 10.0.0.2")
    assert w.cli("ingress", a.port, "show").stdout == f"{a.port}:\n  1: limit 2000 udp\n"
    assert a.ping("10.0.0.2") == 3
    w.cli("ingress", a.port, "del")
    assert rules(w, a.port) == [] and a.ping("10.0.0.2") == 3
    assert dropped(w, a.port) == 6


def test_a_limit_lets_so_many_go_on(switch):
    w, a, _ = switch
    w.cli("ingress", a.port, "set", "limit 1 icmp")
    start = time.monotonic()
    answered = a.ping("10.0.0.2", count=30, interval=0.01, wait=1)
    # With the one that is there from the start, and a machine that stops while it looks at its clock.
    assert 1 <= answered <= time.monotonic() - start + 2
    assert rules(w, a.port) == [("limit 1 icmp", 30, 30 * PING, 30 - answered)]


def test_rules_are_replaced_while_packets_flow(switch):
    """None gets by while a filter that drops it is replaced by another, and none is lost that both let pass."""
    replace_while_packets_flow(*switch, ["drop udp dst port 9; pass", "pass icmp; drop dst host 10.0.0.2"])


def test_what_is_wrong_is_said_with_its_place_and_changes_nothing(switch):
    w, a, _ = switch
    w.cli("ingress", a.port, "set", "drop icmp")
    for text, says in [
        ("pass tcp; drop tcp and", "rule 2, column 16: can't parse filter expression: syntax error"),
        ("deny tcp", 'rule 1, column 1: "deny" is none of drop, pass and limit RATE'),
        ("limit fast", 'rule 1, column 7: "fast" is not a number of packets per second'),
        ("drop dst net 10.0.0.1/8", "rule 1, column 6: non-network bits set"),
        ("drop inbound", "rule 1, column 6: the expression asks for what is not in the frame"),
    ]:
        assert says in refusal(w, a.port, "set", text)
        assert says in refusal(w, a.port, "add", text)
    assert "there is no rule 2" in refusal(w, a.port, "del", "2")
    assert 'there is no rule "drop tcp"' in refusal(w, a.port, "del", "drop tcp")
    assert "no such port: nosuch" in refusal(w, "nosuch", "set", "drop")
    assert "no such port: nosuch" in refusal(w, "nosuch", "show")
    assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp", 3, 3 * PING, 3)]


def test_a_filter_outlasts_the_device_of_its_port(switch):
    w, a, b = switch
    w.expect("No such device|no such interface")
    w.cli("ingress", a.port, "set", "drop icmp")
    mac = a.mac
    run("ip", "link", "del", a.port)
    until(lambda: "No such" in w.cli("show").stdout, what="the device's end")
    run("ip", "link", "add", a.port, "type", "veth", "peer", "name", "eth0", "netns", a.ns)
    run("ip", "link", "set", a.port, "up")
    a.run("ip", "link", "set", "eth0", "address", mac, "up")
    a.run("ip", "addr", "add", "10.0.0.1/24", "dev", "eth0")
    a.run("ip", "neigh", "replace", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    until(lambda: "No such" not in w.cli("show").stdout, what="the device's return")
    assert a.ping("10.0.0.2", wait=1) == 0
    assert rules(w, a.port) == [("drop icmp", 3, 3 * PING, 3)]
    w.cli("ingress", a.port, "del")
    until(lambda: a.ping("10.0.0.2", wait=1) == 3, what="pings without a filter")


def test_a_filter_in_the_file(weir, hosts):
    a, b = hosts
    w = weir(CONFIG.format(a=a, b=b, more='ingress-filter = "drop icmp and ip[8] = 64"'))
    assert a.ping("10.0.0.2", wait=1) == 0 and b.ping("10.0.0.1", wait=1) == 0
    # What is set by hand stays until the file says something else.
    w.cli("ingress", a.port, "set", "")
    w.cli("reload")
    assert a.ping("10.0.0.2") == 3
    w.configure(CONFIG.format(a=a, b=b, more='ingress-filter = "drop src host 10.0.0.1"'))
    w.cli("reload")
    assert a.ping("10.0.0.2", wait=1) == 0
    w.configure(CONFIG.format(a=a, b=b, more=""))
    w.cli("reload")
    assert a.ping("10.0.0.2") == 3 and rules(w, a.port) == []


def test_mistakes_in_a_file_have_a_line(tmp_path):
    def check(port):
        f = tmp_path / "c.toml"
        f.write_text('[[bridge]]\nname = "br0"\nlocal = false\n[[bridge.port]]\nname = "p1"\n' + port)
        return run(WEIR, "check", f, check=False).stderr

    dummy = 'type = "dummy"\ningress-filter = '
    assert check(dummy + '"drop tcp; pass src host 10.0.0.1"') == ""
    assert "c.toml:7: bridge.br0.port.p1.ingress-filter: rule 2, column 11: \"deny\"" in check(dummy + '"drop tcp; deny"')
    assert "rule 1, column 6: can't parse filter expression" in check(dummy + '"drop tcp and"')
    patch = 'type = "patch"\noptions = { peer = "p2" }\ningress-filter = "drop"'
    assert "a patch port receives no frames of its own" in check(patch)


def test_a_filter_in_the_database(ovs, hosts):
    a, b = hosts
    ovs.expect("rule 1, column 6")
    ovs.start()
    key = "other_config:ingress-filter"
    ovs.vsctl("add-br", "br0", "--", "add-port", "br0", b.port, "--", "add-port", "br0", a.port, "--",
              "set", "interface", a.port, f'{key}="drop icmp and dst host 10.0.0.2"')
    assert a.ping("10.0.0.2", wait=1) == 0
    # A wrong one is reported, and the old one stays in force.
    ovs.vsctl("set", "interface", a.port, f'{key}="drop tcp and"')
    until(lambda: "rule 1, column 6" in ovs.get("interface", a.port, "error"), what="the error in the database")
    assert a.ping("10.0.0.2", wait=1) == 0
    shown = ovs.appctl("ingress/stats", a.port)
    assert re.search(r"n_packets=6, n_bytes=\d+, n_dropped=6, drop icmp and dst host 10.0.0.2$", shown, re.M), shown
    ovs.vsctl("set", "interface", a.port, f'{key}="pass icmp"')
    until(lambda: ovs.get("interface", a.port, "error") == "[]", what="the end of the error")
    assert a.ping("10.0.0.2") == 3
    ovs.vsctl("remove", "interface", a.port, "other_config", "ingress-filter")
    assert ovs.appctl("ingress/show") == "" and a.ping("10.0.0.2") == 3
    # A new port with a wrong filter is not opened, as with other wrong settings.
    ovs.vsctl("del-port", a.port)
    ovs.vsctl("add-port", "br0", a.port, "--", "set", "interface", a.port,
              f'{key}="drop tcp and"', check=False)
    until(lambda: "rule 1, column 6" in ovs.get("interface", a.port, "error"), what="the error of the new port")
    assert a.port not in ovs.ofctl("show", "br0")
