"""Local stacks with all their offloads on, joined by ports of every kind: what arrives is right, and so is what
an observer sees on a wire."""

import itertools

import pytest
from lib.daemon import config
from lib.exchange import exchange
from lib.net import Host, run
from lib.pcap import read_pcap

KINDS = ["tap", "afpacket", "afxdp"]
_taps = itertools.count()
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


class Pair:
    """Two hosts at a switch, and an observer of what leaves."""

    def __init__(self, weir, net, tmp_path, kinds, cable=()):
        self.net, self.kinds, self.capture = net, kinds, tmp_path / "wire.pcap"
        self.hosts = [self.host(kind) for kind in kinds]
        ports = [(h.port, kind, f"ofport = {n}") for n, (h, kind) in enumerate(zip(self.hosts, kinds), 1)]
        for n, (name, kind) in enumerate(cable, 3):
            run("sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
            run("ip", "link", "set", name, "up")
            ports.append((name, kind, f"ofport = {n}"))
        ports.append(("wire", "pcap", f'ofport = 9\noptions = {{ tx_pcap = "{self.capture}" }}'))
        self.weir = weir(config(ports, more='fail_mode = "secure"'))
        for n, (host, kind) in enumerate(zip(self.hosts, kinds), 1):
            if kind == "tap":
                run("ip", "link", "set", host.port, "netns", host.ns)
                host.run("ip", "link", "set", host.port, "name", "eth0")
                host.run("ip", "link", "set", "eth0", "up")
            host.run("ip", "addr", "add", f"10.0.0.{n}/24", "dev", "eth0")
            host.run("ip", "-6", "addr", "add", f"fd00::{n}/64", "dev", "eth0", "nodad")
            assert "tx-checksumming: on" in host.run("ethtool", "-k", "eth0").stdout

    def host(self, kind):
        if kind != "tap":
            return self.net.host()
        n = next(_taps)
        host = Host(f"{self.net.tag}-t{n}", f"{self.net.tag}t{n}")
        run("ip", "netns", "add", host.ns)
        self.net.hosts.append(host)
        host.run("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0")
        return host

    def flows(self, *flows):
        for flow in flows:
            self.weir.ofctl("add-flow", "br0", flow, version=13)

    def exchange(self, listen, to, port=9000):
        """Has both stacks talk; neither may see a wrong checksum."""
        exchange(*self.hosts, listen, to, port)

    def frames(self):
        """What left for the observer, once Weir has written it."""
        self.weir.stop()
        return read_pcap(self.capture)


def check(frame):
    """Whether both checksums and all lengths are right; the protocol. A sum of words is a remainder."""
    at = 12
    while frame[at:at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    kind, l3 = frame[at:at + 2], at + 2
    assert len(frame) - l3 <= 1500
    if kind == b"\x08\x00":
        l4 = l3 + (frame[l3] & 15) * 4
        end, protocol, addresses = l3 + int.from_bytes(frame[l3 + 2:l3 + 4]), frame[l3 + 9], frame[l3 + 12:l3 + 20]
        assert int.from_bytes(frame[l3:l4]) % 0xffff == 0, "IPv4 checksum"
    elif kind == b"\x86\xdd":
        l4, protocol, addresses = l3 + 40, frame[l3 + 6], frame[l3 + 8:l3 + 40]
        end = l4 + int.from_bytes(frame[l3 + 4:l3 + 6])
    else:
        return None
    assert end <= len(frame)
    if protocol in (6, 17):
        covered = addresses + bytes([0, protocol]) + (end - l4).to_bytes(2) + frame[l4:end]
        covered += bytes(len(covered) % 2)
        assert int.from_bytes(covered) % 0xffff == 0, f"checksum of protocol {protocol}: {frame[:80].hex()}"
    return protocol


def check_all(frames, tags=None):
    protocols = [check(frame) for frame in frames]
    assert protocols.count(6) > 1000 and protocols.count(17) >= 100
    if tags:
        assert {frame[12:16] for frame in frames if frame[12:14] in (b"\x81\x00", b"\x88\xa8")} == tags


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_offloads_pass(weir, net, tmp_path, kinds):
    pair = Pair(weir, net, tmp_path, kinds)
    pair.flows("in_port=1,actions=2,9", "in_port=2,actions=1,9")
    pair.exchange("10.0.0.2", "10.0.0.2")
    pair.exchange("fd00::2", "fd00::2")
    check_all(pair.frames())


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_offloads_pass_with_addresses_and_ports_rewritten(weir, net, tmp_path, kinds):
    pair = Pair(weir, net, tmp_path, kinds)
    a, b = pair.hosts
    a.run("ip", "neigh", "add", "10.0.0.100", "lladdr", b.mac, "dev", "eth0", "nud", "permanent")
    a.run("ip", "neigh", "add", "fd00::100", "lladdr", b.mac, "dev", "eth0", "nud", "permanent")
    pair.flows("priority=0,in_port=1,actions=2", "priority=0,in_port=2,actions=1")
    for protocol in ("tcp", "udp"):
        field = f"{protocol}_"
        pair.flows(
            f"in_port=1,{protocol},actions=mod_nw_dst:10.0.0.2,mod_tp_dst:9000,dec_ttl,output:2,output:9",
            f"in_port=2,{protocol},actions=mod_nw_src:10.0.0.100,mod_tp_src:7000,mod_nw_tos:4,output:1,output:9",
            f"in_port=1,{protocol}6,actions=set_field:fd00::2->ipv6_dst,set_field:9000->{field}dst,output:2,output:9",
            f"in_port=2,{protocol}6,actions=set_field:fd00::100->ipv6_src,set_field:7000->{field}src,output:1,output:9")
    pair.exchange("10.0.0.2", "10.0.0.100", 7000)
    pair.exchange("fd00::2", "fd00::100", 7000)
    check_all(pair.frames())


@pytest.mark.parametrize("cable", list(itertools.product(KINDS[1:], repeat=2)), ids="-".join)
def test_offloads_pass_with_tags_pushed_and_popped(weir, net, tmp_path, cable):
    """Between the hosts lies a cable, whose ends are ports, too: on it, frames have tags."""
    run("ip", "link", "add", f"{net.tag}c1", "type", "veth", "peer", "name", f"{net.tag}c2")
    try:
        pair = Pair(weir, net, tmp_path, ("tap", "afpacket"), [(f"{net.tag}c{n}", cable[n - 1]) for n in (1, 2)])
        pair.flows("in_port=1,actions=push_vlan:0x8100,set_field:4101->vlan_vid,output:3,output:9",
                   "in_port=4,dl_vlan=5,actions=strip_vlan,output:2,output:9",
                   "in_port=2,actions=push_vlan:0x8100,set_field:4102->vlan_vid,output:4,output:9",
                   "in_port=3,dl_vlan=6,actions=strip_vlan,output:1,output:9")
        pair.exchange("10.0.0.2", "10.0.0.2")
        pair.exchange("fd00::2", "fd00::2")
        check_all(pair.frames(), {b"\x81\x00\x00\x05", b"\x81\x00\x00\x06"})
    finally:
        run("ip", "link", "del", f"{net.tag}c1", check=False)
