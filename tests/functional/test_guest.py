"""A virtual machine whose network card is a vhost-user port of Weir: Linux in QEMU."""

import json

import pytest
from conftest import until
from lib.guest import Guest, missing
from test_vhost import client, config, connected, counter, port, statistics

GUEST, HOST = "10.0.0.9", "10.0.0.1"


@pytest.fixture
def boot(tmp_path):
    """A function that starts a guest with the address of GUEST; what it started ends with the test."""
    if problem := missing():
        pytest.fail(problem)
    started = []

    def start(socket, address=GUEST, **kw):
        guest = Guest([socket], **kw)
        started.append(guest)
        guest.up(f"{address}/24")
        return guest

    yield start
    for guest in started:
        guest.close()


def tcp(host, guest, *args, size="20M"):
    """iperf3 from a namespace to the guest, or with -R back; what arrived, in bytes, while the sender sent."""
    guest.run(f"iperf3 -s -1 -D -B {GUEST}")
    until(lambda: guest.run(f"netstat -ltn | grep -q {GUEST}:5201 && echo listening", check=False), what="iperf3")
    out = host.run("iperf3", "-c", GUEST, "-n", size, "-J", *args, timeout=90).stdout
    report = json.loads(out)
    assert "error" not in report, report["error"]
    return report["end"]["sum_received"]["bytes"]


@pytest.mark.parametrize("kind", ["afpacket", "afxdp"])
def test_a_guest_pings_and_talks_tcp(weir, net, boot, tmp_path, kind):
    """All offloads are on, in the guest and in the namespace."""
    h = net.host(f"{HOST}/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, kind, {})]))
    guest = boot(tmp_path / "s")
    connected(w, "vhost0")
    assert guest.ping(HOST) == 3
    assert h.ping(GUEST, count=5) == 5
    for direction in ([], ["-R"]):
        assert tcp(h, guest, *direction) > 10_000_000
    assert statistics(w, "vhost0")["tx_errors"] == statistics(w, "vhost0")["rx_errors"] == 0
    if kind == "afpacket":
        offloads = h.run("ethtool", "-k", "eth0").stdout
        assert "tcp-segmentation-offload: on" in offloads and "tx-checksumming: on" in offloads
        # Segments pass whole, both ways: frames are longer than the MTU.
        assert counter(w, 1, "rx_1523_to_max_packets") > 100
        assert counter(w, 1, "tx_1523_to_max_packets") > 100


def test_a_guest_gets_what_a_device_has_received_in_large_pieces(weir, net, boot, tmp_path):
    """Segments come one by one, as from a network card, with finished checksums."""
    h = net.host(f"{HOST}/24")
    h.run("ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off")
    w = weir(config([client("vhost0", tmp_path / "s"), ("dpdk0", "dpdk", {"dpdk-devargs": f"net_af_packet0,iface={h.port}"})]))
    guest = boot(tmp_path / "s")
    connected(w, "vhost0")
    for direction in ([], ["-R"]):
        assert tcp(h, guest, *direction) > 10_000_000
    assert counter(w, "vhost0", "tx_1523_to_max_packets") > 100


def test_guests_talk_to_each_other(weir, net, boot, tmp_path):
    w = weir(config([client(f"vhost{n}", tmp_path / f"s{n}") for n in (0, 1)]))
    a, b = boot(tmp_path / "s0", "10.0.0.8", card="packed=on"), boot(tmp_path / "s1")
    for name in ("vhost0", "vhost1"):
        connected(w, name)
    assert a.ping(GUEST) == 3
    b.run(f"iperf3 -s -1 -D -B {GUEST}")
    report = json.loads(a.run(f"iperf3 -c {GUEST} -n 20M -J", timeout=120))
    assert "error" not in report and report["end"]["sum_received"]["bytes"] > 10_000_000
    assert counter(w, 2, "tx_1523_to_max_packets") > 100, "segments pass whole"
    assert counter(w, 2, "ovs_tx_invalid_hwol_drops") == 0


def test_what_a_guest_does_not_take_is_finished(weir, net, boot, tmp_path):
    """A card without offloads beside a namespace with all of them."""
    h = net.host(f"{HOST}/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, "afpacket", {})]))
    off = "csum=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off"
    guest = boot(tmp_path / "s", card=off + ",gso=off,host_ecn=off,host_ufo=off,mrg_rxbuf=off")
    connected(w, "vhost0")
    assert tcp(h, guest, size="10M") > 5_000_000
    assert tcp(h, guest, "-R", size="10M") > 5_000_000
    assert counter(w, 1, "tx_1523_to_max_packets") == 0
    assert counter(w, 1, "rx_1523_to_max_packets") == 0


def test_weir_restarts_and_the_guest_reboots(weir, net, boot, tmp_path):
    h = net.host(f"{HOST}/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, "afpacket", {})]))
    guest = boot(tmp_path / "s")
    connected(w, "vhost0")
    assert guest.ping(HOST) == 3
    w.kill()
    w.start()
    connected(w, "vhost0")
    assert guest.ping(HOST) == 3, "after Weir was killed"
    guest.run("ip link set eth0 down")
    guest.run("ip link set eth0 up")
    assert guest.ping(HOST) == 3
    guest.kill()
    until(lambda: not port(w, "vhost0")["link_up"], what="the link going down")
    again = boot(tmp_path / "s")
    connected(w, "vhost0")
    assert again.ping(HOST) == 3, "after the machine was killed"


def test_an_iommu_and_two_queues(weir, net, boot, tmp_path):
    h = net.host(f"{HOST}/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, "afpacket", {})],
                    dpdk='init = true\nvhost-iommu-support = "true"'))
    guest = boot(tmp_path / "s", queues=2, iommu=True)
    connected(w, "vhost0")
    platform = 1 << 33
    assert int(port(w, "vhost0")["status"]["features"], 16) & platform
    assert port(w, "vhost0")["status"]["num_of_vrings"] == "4"
    # A frame for memory whose address is not known yet asks for it and is lost.
    until(lambda: guest.ping(HOST) == 3, 60, "the addresses being known")
    until(lambda: h.ping(GUEST, wait=5) == 3, 60, "the addresses being known the other way round")
