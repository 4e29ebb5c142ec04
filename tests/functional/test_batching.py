"""Packets that wait for others to the same port: for as long as is asked, and never for ever."""

import re
import signal

import pytest
from conftest import until
from lib.daemon import config
from lib.traffic import Traffic

SECOND = 1_000_000


def workers(settings, ports):
    return f"[workers]\ncores = [0]\n{settings}\n{ports}"


def start(weir, net, settings, kind="afpacket"):
    hosts = [net.host(f"10.0.0.{n}/24") for n in (1, 2)]
    ports = config([(h.port, kind, "") for h in hosts])
    return hosts, ports, weir(workers(settings, ports))


def per_batch(w):
    """Packets per output batch, which both commands tell alike."""
    stats = w.appctl("dpif-netdev/pmd-stats-show")
    average = float(re.search(r"avg. packets per output batch: ([\d.]+)", stats)[1])
    perf = w.appctl("dpif-netdev/pmd-perf-show")
    assert float(re.search(r"Tx batches:.*\(([\d.]+) pkts/batch\)", perf)[1]) == pytest.approx(average, rel=0.2)
    return average


@pytest.mark.parametrize("kind", ["afpacket", "afxdp"])
@pytest.mark.parametrize("sleep", [0, 100])
def test_nothing_is_lost_with_the_longest_interval(weir, net, kind, sleep):
    """Whether its worker sleeps or polls, traffic passes in order while settings and workers change."""
    hosts, ports, w = start(weir, net, f"tx-flush-interval-us = {SECOND}\nsleep-max-us = {sleep}", kind)
    until(lambda: hosts[0].ping("10.0.0.2", count=1, wait=5), seconds=30, what="ping")
    traffic = Traffic(*hosts, "10.0.0.2")
    for cores, micros in [("[1]", SECOND), ("[0, 1]", 100), ("[0]", SECOND), ("[0]", 0), ("[1]", SECOND)]:
        settings = f"cores = {cores}\ntx-flush-interval-us = {micros}\nsleep-max-us = {sleep}"
        w.configure(f"[workers]\n{settings}\n{ports}")
        w.cli("reload")
        traffic.goes_on()  # some meets these settings
    traffic.check()


def test_packets_wait_for_others(weir, net):
    """Packets that come a few milliseconds apart leave together when they may wait, and else each at once."""
    hosts, ports, w = start(weir, net, "sleep-max-us = 0")
    until(lambda: hosts[0].ping("10.0.0.2", count=1), what="ping")

    def batch():
        w.appctl("dpif-netdev/pmd-stats-clear")
        hosts[0].run("ping", "-qc40", "-i0.005", "-w20", "10.0.0.2", timeout=60)
        return per_batch(w)

    alone = batch()
    w.configure(workers(f"sleep-max-us = 0\ntx-flush-interval-us = {SECOND // 4}", ports))
    w.cli("reload")
    assert batch() > max(3, 2 * alone)


def test_what_waits_survives_its_input_port(weir, net):
    """The sender's port is taken away while its packets wait."""
    hosts, ports, w = start(weir, net, f"sleep-max-us = 0\ntx-flush-interval-us = {SECOND}")
    a, b = hosts
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    w.ofctl("add-flow", "br0", f"in_port={a.port},udp,actions=output:{b.port}")
    received = lambda: int(b.run("nstat", "-asz", "UdpNoPorts").stdout.split()[-2])
    a.run("python3", "-c", "import socket; socket.socket(2, 2).sendto(b'x', ('10.0.0.2', 99))")
    # What is still in the port's own queue goes with the port.
    until(lambda: "n_packets=1," in w.ofctl("dump-flows", "br0", "udp"), what="the datagram in the switch")
    w.configure(workers(f"sleep-max-us = 0\ntx-flush-interval-us = {SECOND}", config([(b.port, "afpacket", "")])))
    w.cli("reload")
    until(lambda: received() == 1, what="the datagram's arrival")


def test_what_waits_leaves_when_the_daemon_ends(weir, net):
    hosts, ports, w = start(weir, net, f"sleep-max-us = 0\ntx-flush-interval-us = {SECOND}")
    a, b = hosts
    until(lambda: a.ping("10.0.0.2", count=1, wait=5), seconds=30, what="ping")
    received = lambda: int(b.run("nstat", "-asz", "UdpNoPorts").stdout.split()[-2])
    before = received()
    a.run("python3", "-c", "import socket; socket.socket(2, 2).sendto(b'x', ('10.0.0.2', 99))")
    w.signal(signal.SIGTERM)
    w.proc.wait(30)
    assert received() == before + 1
