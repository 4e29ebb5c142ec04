"""Real traffic between network namespaces through Weir."""

import json
import re
import signal

import pytest
from conftest import until
from lib.daemon import config
from lib.net import run
from lib.traffic import Traffic


def iperf(a, b, address, *args, seconds=2):
    """iperf3 from host `a` to host `b`; the report."""
    server = b.start("iperf3", "-s", "-1", "-B", address)
    until(lambda: f"{address}:5201" in b.run("ss", "-Hltn").stdout, what="the iperf3 server listening")
    out = a.run("iperf3", "-c", address, "-t", seconds, "-J", *args, check=False, timeout=60)
    server.wait(20)
    report = json.loads(out.stdout)
    assert "error" not in report, report["error"]
    return report["end"]


@pytest.mark.parametrize("kind", ["system", "afpacket", "afxdp"])
def test_ping(weir, net, kind):
    hosts = [net.host(f"10.0.0.{n}/24", address6=f"fd00::{n}/64") for n in (1, 2, 3)]
    w = weir(config([(h.port, kind, "") for h in hosts]))
    for a in hosts:
        for n, b in enumerate(hosts, 1):
            if a is not b:
                assert a.ping(f"10.0.0.{n}") == 3
                assert a.ping(f"fd00::{n}") == 3
    macs = w.appctl("fdb/show", "br0")
    for h in hosts:
        assert h.mac in macs


@pytest.mark.parametrize("kind", ["system", "afpacket"])
def test_tcp_with_offloads_on(weir, net, kind):
    """Checksum-offloaded and GSO frames of the local stacks pass intact."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    features = a.run("ethtool", "-k", "eth0").stdout
    assert "tcp-segmentation-offload: on" in features and "tx-checksumming: on" in features
    weir(config([(h.port, kind, "") for h in (a, b)]))
    report = iperf(a, b, "10.0.0.2")
    assert report["sum_received"]["bytes"] > 1_000_000
    report = iperf(a, b, "10.0.0.2", "-R")
    assert report["sum_received"]["bytes"] > 1_000_000


def test_tcp_over_afxdp_with_offloads_off(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    for h in (a, b):
        h.run("ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off", "gro", "off")
    w = weir(config([(h.port, "afxdp", "") for h in (a, b)]))
    assert "native" in w.cli("show").stdout
    assert iperf(a, b, "10.0.0.2")["sum_received"]["bytes"] > 1_000_000


def test_udp(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    weir(config([(h.port, "system", "") for h in (a, b)]))
    traffic = Traffic(a, b, "10.0.0.2")
    b.receives(1000)
    traffic.check()


def test_local_port(weir, net):
    """The host itself is reached through the bridge's LOCAL port, a TAP device named as the bridge."""
    a = net.host("10.9.7.1/24")
    bridge = f"{net.tag}br"
    weir(config([(a.port, "system", "")], local=True, bridge=bridge))
    run("ip", "link", "set", bridge, "up")
    run("ip", "addr", "add", "10.9.7.2/24", "dev", bridge)
    assert a.ping("10.9.7.2") == 3
    server = a.start("python3", "-c", "import socket; s=socket.create_server(('10.9.7.1',7)); c,_=s.accept()\n"
                     "n=0\nwhile (d:=c.recv(65536)): n+=len(d)\nprint(n)")
    until(lambda: ":7" in a.run("ss", "-Hltn").stdout, what="the server listening")
    import socket
    with socket.create_connection(("10.9.7.1", 7), timeout=10) as s:
        s.sendall(bytes(3_000_000))
    assert server.communicate(timeout=20)[0].strip() == "3000000"


def broadcast(host, number, vlan=None):
    """Sends a gratuitous ARP of 10.0.0.`number` from an address of its own."""
    tag = "" if vlan is None else f"8100{vlan:04x}"
    frame = f"ffffffffffff0200000000{number:02x}{tag}08060001080006040001" + \
        f"0200000000{number:02x}0a0000{number:02x}0000000000000a0000{number:02x}"
    host.run("python3", "-c", "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
             f"s.bind(('eth0', 0)); s.send(bytes.fromhex('{frame}'))")


@pytest.mark.parametrize("kind", ["system", "afpacket", "afxdp"])
@pytest.mark.parametrize("rule", ["NORMAL", "FLOOD"])
def test_a_flood_reaches_all_others_once_and_never_its_sender(weir, net, kind, rule):
    hosts = [net.host() for _ in range(4)]
    w = weir(config([(h.port, kind, "") for h in hosts], more='fail_mode = "secure"'))
    w.ofctl("add-flow", "br0", f"actions={rule}")
    sniffers = [h.sniff("-Q", "in", "arp") for h in hosts]
    broadcast(hosts[0], 99)
    for sniffer in sniffers[1:]:
        sniffer.sees("10.0.0.99")
    # The next one tells that whatever the first was to cause has been seen.
    broadcast(hosts[1], 98)
    for sniffer in [sniffers[0], *sniffers[2:]]:
        sniffer.sees("10.0.0.98")
    times = lambda address: [s.seen().count(f"tell {address}") for s in sniffers]
    assert times("10.0.0.99") == [0, 1, 1, 1]
    assert times("10.0.0.98") == [1, 0, 1, 1]


def test_vlan_access_and_trunk(weir, net):
    """Access ports of two VLANs and a trunk that carries one of them tagged."""
    a, b, c, d, t = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3, 4, 5))
    weir(config([(a.port, "system", "tag = 10"), (b.port, "system", "tag = 10"),
                 (c.port, "system", "tag = 20"), (d.port, "system", "tag = 20"), (t.port, "system", "trunks = [10]")]))
    assert a.ping("10.0.0.2") == 3 and d.ping("10.0.0.3") == 3, "same VLAN"
    assert a.ping("10.0.0.3", count=2, wait=1) == 0, "another VLAN"
    at_t, at_b, at_c = (h.sniff("-Q", "in", "arp or vlan") for h in (t, b, c))
    broadcast(a, 99)
    [line] = at_t.sees("10.0.0.99")
    assert "vlan 10" in line, "the trunk carries VLAN 10, tagged"
    # One in VLAN 10 from the trunk reaches VLAN 10 without its tag; one in VLAN 20 goes nowhere.
    broadcast(t, 98, vlan=10)
    broadcast(t, 97, vlan=20)
    [line] = at_b.sees("10.0.0.98")
    assert "vlan" not in line
    # What the other VLAN sees is its own.
    broadcast(d, 96)
    at_c.sees("10.0.0.96")
    broadcast(a, 95)
    at_t.sees("10.0.0.95")
    told = lambda sniffer: re.findall(r"tell (10.0.0.9\d)", sniffer.seen())
    assert told(at_c) == ["10.0.0.96"], "an access port of another VLAN"
    assert told(at_t) == ["10.0.0.99", "10.0.0.95"]
    assert sorted(told(at_b)) == ["10.0.0.95", "10.0.0.98", "10.0.0.99"]


def test_rules_take_effect_at_once(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([(h.port, "system", "") for h in (a, b)]))
    assert a.ping("10.0.0.2") == 3
    w.ofctl("add-flow", "br0", "priority=100,icmp,actions=drop")
    assert a.ping("10.0.0.2", count=2, wait=1) == 0, "established flows obey a new rule"
    w.ofctl("del-flows", "br0", "icmp")
    assert a.ping("10.0.0.2") == 3
    w.ofctl("add-flow", "br0", f"priority=100,icmp,actions=mod_nw_ttl:9,NORMAL")
    dump = b.sniff("-v", "icmp[icmptype] == icmp-echo")
    assert a.ping("10.0.0.2") == 3, "a rewritten TTL leaves a valid checksum"
    dump.sees("ttl 9")


def test_learning_switch_of_os_ken(weir, net):
    import subprocess
    import sys
    from pathlib import Path
    hosts = [net.host(f"10.0.0.{n}/24") for n in (1, 2, 3)]
    app = subprocess.Popen([sys.executable, Path(__file__).parent / "learning_switch.py", "16653"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        w = weir(config([(h.port, "system", "") for h in hosts],
                        more='controllers = ["tcp:127.0.0.1:16653"]\nfail_mode = "secure"'))
        until(lambda: "actions=CONTROLLER" in w.ofctl("dump-flows", "br0"), seconds=20, what="the controller's first rule")
        for n, h in ((2, hosts[0]), (3, hosts[0]), (3, hosts[1])):
            assert h.ping(f"10.0.0.{n}", count=5) == 5
        rules = w.ofctl("dump-flows", "br0")
        assert len(re.findall(r"priority=1,", rules)) >= 4, rules
    finally:
        app.terminate()
        app.communicate()


def test_reload_keeps_traffic(weir, net):
    """A port is added and removed while others forward; not one packet of theirs is lost."""
    a, b, c = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3))
    two, three = ([(h.port, "system", "") for h in hs] for hs in ((a, b), (a, b, c)))
    w = weir(config(two))
    assert a.ping("10.0.0.2") == 3
    ping = a.pings("10.0.0.2")
    for ports in (three, two, three):
        w.configure(config(ports))
        w.cli("reload")
        b.receives(20)
    w.configure(config(two))
    w.signal(signal.SIGHUP)
    b.receives(20)
    sent, answered = ping.stop()
    # Some of what came at the other end was the kernel's own, as its neighbour solicitations.
    assert sent == answered >= 60
    w.configure(config(three))
    w.cli("reload")
    assert a.ping("10.0.0.3") == 3


def test_port_that_vanishes(weir, net):
    a, b, c = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3))
    w = weir(config([(h.port, "system", "") for h in (a, b, c)]))
    w.expect(f"{c.port}: No such device")
    assert a.ping("10.0.0.2") == 3
    run("ip", "link", "del", c.port)
    assert a.ping("10.0.0.2") == 3
    assert w.proc.poll() is None


@pytest.mark.parametrize("kind", ["afxdp", "afpacket"])
def test_nothing_is_left_behind(weir, net, kind):
    """Also after kill -9, the interface carries no program and a new run works."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    cfg = config([(h.port, kind, "") for h in (a, b)])
    w = weir(cfg)
    assert a.ping("10.0.0.2") == 3
    w.kill()
    until(lambda: "xdp" not in run("ip", "link", "show", a.port).stdout, what="the XDP program gone")
    w = weir(cfg)
    assert a.ping("10.0.0.2") == 3
    w.stop()
    assert "xdp" not in run("ip", "link", "show", a.port).stdout


def test_idle_worker_sleeps(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([(h.port, "system", "") for h in (a, b)]))
    assert a.ping("10.0.0.2") == 3
    slept = lambda: w.json("stats")["workers"][0]["slept_s"]
    before = slept()
    # It is told when the worker wakes.
    until(lambda: a.ping("10.0.0.2", count=1) == 1 and slept() > before + 0.5, 20, "half a second of sleep")
    assert a.ping("10.0.0.2") == 3
