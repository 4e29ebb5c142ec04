"""Real traffic between network namespaces through Weir."""

import json
import re
import signal
import time

import pytest
from conftest import until
from lib.daemon import config
from lib.net import run


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
def test_ping_and_flood(weir, net, kind):
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
    end = iperf(a, b, "10.0.0.2", "-u", "-b", "50M", "-l", "1000")
    assert end["sum"]["packets"] > 1000 and end["sum"]["lost_percent"] < 5


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


def test_vlan_access_and_trunk(weir, net):
    """Access ports of two VLANs and a trunk that carries one of them tagged."""
    a, b, c, t = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3, 4))
    weir(config([(a.port, "system", "tag = 10"), (b.port, "system", "tag = 10"),
                 (c.port, "system", "tag = 20"), (t.port, "system", "trunks = [10]")]))
    assert a.ping("10.0.0.2") == 3, "same VLAN"
    assert a.ping("10.0.0.3", count=2, wait=1) == 0, "another VLAN"
    sniff = lambda h, what: h.start("timeout", "5", "tcpdump", "-c1", "-nei", "eth0", *what.split())
    seen = {"t": sniff(t, "vlan 10 and arp"), "c": sniff(c, "arp host 10.0.0.99")}
    time.sleep(1)
    a.run("ping", "-c1", "-W1", "10.0.0.99", check=False)
    assert "vlan 10" in seen["t"].communicate(timeout=10)[0], "the trunk carries VLAN 10, tagged"
    assert seen["c"].communicate(timeout=10)[0].strip() == "", "an access port of another VLAN does not"
    # A gratuitous ARP in VLAN 10 from the trunk reaches VLAN 10 without its tag; one in VLAN 20 goes nowhere.
    arp = "08060001080006040001 020000000099 0a000063 000000000000 0a000063".replace(" ", "")
    send = lambda vlan: t.run("python3", "-c", "import socket; s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW);"
                              f"s.bind(('eth0',0)); s.send(bytes.fromhex('ffffffffffff0200000000998100{vlan:04x}{arp}'))")
    seen = {"b": sniff(b, "arp host 10.0.0.99"), "c": sniff(c, "arp or vlan")}
    time.sleep(1)
    send(10)
    send(20)
    out = seen["b"].communicate(timeout=10)[0]
    assert "10.0.0.99" in out and "vlan" not in out
    assert seen["c"].communicate(timeout=10)[0].strip() == ""


def test_rules_take_effect_at_once(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([(h.port, "system", "") for h in (a, b)]))
    assert a.ping("10.0.0.2") == 3
    w.ofctl("add-flow", "br0", "priority=100,icmp,actions=drop")
    assert a.ping("10.0.0.2", count=2, wait=1) == 0, "established flows obey a new rule"
    w.ofctl("del-flows", "br0", "icmp")
    assert a.ping("10.0.0.2") == 3
    w.ofctl("add-flow", "br0", f"priority=100,icmp,actions=mod_nw_ttl:9,NORMAL")
    dump = b.start("tcpdump", "-ni", "eth0", "-c", "1", "-v", "icmp[icmptype] == icmp-echo")
    time.sleep(1)
    assert a.ping("10.0.0.2") == 3, "a rewritten TTL leaves a valid checksum"
    assert "ttl 9" in dump.communicate(timeout=10)[0]


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
    ping = a.start("ping", "-n", "-c", "150", "-i", "0.02", "-W", "2", "10.0.0.2")
    for ports in (three, two, three):
        w.configure(config(ports))
        w.cli("reload")
        time.sleep(0.4)
    w.configure(config(two))
    w.signal(signal.SIGHUP)
    out = ping.communicate(timeout=30)[0]
    assert "150 packets transmitted, 150 received" in out, out
    w.configure(config(three))
    w.cli("reload")
    assert a.ping("10.0.0.3") == 3


def test_port_that_vanishes(weir, net):
    a, b, c = (net.host(f"10.0.0.{n}/24") for n in (1, 2, 3))
    w = weir(config([(h.port, "system", "") for h in (a, b, c)]))
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
    w.signal(signal.SIGKILL)
    w.proc.wait()
    until(lambda: "xdp" not in run("ip", "link", "show", a.port).stdout, what="the XDP program gone")
    w = weir(cfg)
    assert a.ping("10.0.0.2") == 3
    w.stop()
    assert "xdp" not in run("ip", "link", "show", a.port).stdout


def test_idle_worker_sleeps(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([(h.port, "system", "") for h in (a, b)]))
    assert a.ping("10.0.0.2") == 3
    ticks = lambda: sum(int(x) for x in open(f"/proc/{w.proc.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])
    time.sleep(0.5)
    before = ticks()
    time.sleep(2)
    assert ticks() - before < 100, "an idle switch uses less than half a core"
    assert a.ping("10.0.0.2") == 3
