"""Segments that come one by one, as from a NIC, to a port that takes super-frames."""

import re

from conftest import until
from lib.exchange import exchange
from lib.tunnel import cable


def average(site, port, direction):
    """Bytes of the frames of a port; False before a million bytes were counted."""
    said = site.get("interface", port, "statistics")
    count = {name: int(re.search(rf"\b{direction}_{name}=(\d+)", said)[1]) for name in ("bytes", "packets")}
    return count["bytes"] > 1_000_000 and count["bytes"] / count["packets"]


def test_a_stack_gets_what_a_device_has_received_in_large_pieces(lab):
    """Between two switches, whose devices take no super-frames. Who watches sees what came."""
    sites = one, other = [lab.weir(dpdk=True) for _ in range(2)]
    cable(one.host, "eth0", other.host, "eth0")
    for site in sites:
        site.vsctl("add-port", "br-int", "dpdk0", "--", "set", "interface", "dpdk0", "type=dpdk",
                   "options:dpdk-devargs=net_af_packet0,iface=eth0")
        site.host.run("ip", "link", "add", "watch", "type", "veth", "peer", "name", "watched")
        for device in ("watch", "watched"):
            site.host.run("ip", "link", "set", device, "up")
        port = ["add-port", "br-int", "watch"]
        if site is other:
            site.vsctl(*port)
            port = []
        site.vsctl(*port, "--", "--id=@w", "get", "port", "watch", "--", "--id=@d", "get", "port", "dpdk0", "--", "--id=@m", "create", "mirror", "name=m",
                   "select_src_port=@d", "output_port=@w", "--", "set", "bridge", "br-int", "mirrors=@m")
    exchange(one.vm, other.vm, other.in4)
    exchange(other.vm, one.vm, one.in6)
    for site in sites:
        received = until(lambda: average(site, "dpdk0", "rx"), 15, "a million bytes from the device")
        sent = until(lambda: average(site, "vm0", "tx"), 15, "a million bytes to the machine")
        watched = until(lambda: average(site, "watch", "tx"), 15, "a million bytes of the mirror")
        assert received < 1500 and sent > 2500 and watched < 1500, (received, sent, watched)
