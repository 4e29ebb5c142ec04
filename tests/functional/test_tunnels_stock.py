"""Weir's tunnels to the OVS of the distribution, both ways, with all offloads on at Weir's side; and to another Weir."""

import re
import sys
from pathlib import Path

import pytest
from conftest import until
from lib.exchange import exchange
from lib.net import run
from lib.tunnel import cable, drops
from lib.vswitch import OVS_DPDK


@pytest.fixture(autouse=True)
def stock():
    if not Path(OVS_DPDK).exists():
        pytest.fail("openvswitch-switch-dpdk is not installed; run scripts/setup.sh test")


def talk(one, other):
    """All kinds of packets go both ways. OVS loses some of a burst where the machine is busy."""
    assert one.vm.ping(other.in4) == 3 and other.vm.ping(one.in6) == 3
    exchange(one.vm, other.vm, other.in4, datagrams=4)
    exchange(other.vm, one.vm, one.in6, datagrams=4)


def case(value):
    """A part of a test's name."""
    if isinstance(value, bool):
        return "over6" if value else "over4"
    return value if isinstance(value, str) else "-".join(value) or "plain"


@pytest.mark.parametrize("kind, options, six", [
    ("vxlan", ["key=7"], False),
    ("vxlan", ["key=7", "csum=true"], True),
    ("vxlan", ["key=7", "exts=gpe"], False),
    ("geneve", ["key=7"], False),
    ("geneve", ["key=7", "csum=true"], True),
    ("gre", [], False),
    # Not both: OVS numbers packets when it has computed their checksums, which are wrong then.
    ("gre", ["key=7", "csum=true"], False),
    ("gre", ["key=7", "seq=true"], False),
    ("ip6gre", ["key=7", "csum=true"], True),
    ("erspan", ["key=7", "erspan_ver=1", "erspan_idx=3"], False),
    ("erspan", ["key=7", "erspan_ver=2", "erspan_dir=1", "erspan_hwid=4"], False),
    ("ip6erspan", ["key=7", "erspan_ver=2", "erspan_dir=0", "erspan_hwid=4"], True),
], ids=case)
def test_both_ends_understand_each_other(lab, kind, options, six):
    weir, ovs = lab.pair("stock")
    weir.tunnel("t", kind, f"remote_ip={ovs.outside(six)}", *options)
    ovs.tunnel("t", kind, f"remote_ip={weir.outside(six)}", *options)
    talk(weir, ovs)


def test_packets_without_ethernet_travel(lab):
    """GRE of packets: both bridges put a header of Ethernet before what comes out."""
    weir, ovs = lab.pair("stock")
    for site, peer in ((weir, ovs), (ovs, weir)):
        t = site.tunnel("t", "gre", f"remote_ip={peer.out4}", "packet_type=legacy_l3")
        vm = site.vsctl("get", "interface", "vm0", "ofport")
        site.vm.run("ip", "neigh", "add", peer.in4, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        site.flows(f"in_port={vm},ip,actions={t}", f"in_port={t},ip,actions=mod_dl_dst:{site.vm.mac},{vm}")
    assert weir.vm.ping(ovs.in4) == 3 and ovs.vm.ping(weir.in4) == 3
    exchange(weir.vm, ovs.vm, ovs.in4, datagrams=4)


def test_options_of_geneve_travel(lab):
    """What a flow writes into options is matched at the other end, both ways."""
    weir, ovs = lab.pair("stock")
    for site, peer in ((weir, ovs), (ovs, weir)):
        # The options take 136 bytes.
        site.vm.run("ip", "link", "set", "eth0", "mtu", 1280)
        run("ovs-ofctl", "add-tlv-map", "br-int", "{class=0x102,type=0x80,len=4}->tun_metadata0,"
            "{class=0x102,type=1,len=124}->tun_metadata1", env=site.env)
        t = site.tunnel("t", "geneve", f"remote_ip={peer.out4}", "key=flow")
        vm = site.vsctl("get", "interface", "vm0", "ofport")
        write = "set_field:0x00010002->tun_metadata0,set_field:0xabcdef->tun_metadata1"
        site.flows(f"in_port={vm},actions=set_field:9->tun_id,{write},{t}",
                   f"cookie=1,priority=2,in_port={t},tun_id=9,tun_metadata0=0x10002,tun_metadata1=0xabcdef,actions={vm}",
                   f"cookie=2,priority=1,in_port={t},actions=drop")
    # What an end sent between its tunnel and its flows has no options.
    before = [site.hits(2) for site in (weir, ovs)]
    talk(weir, ovs)
    for site in (weir, ovs):
        until(lambda: site.hits(1) > 100, what="packets with options")
    assert [site.hits(2) for site in (weir, ovs)] == before
    # What is not written as it is expected is not taken.
    t = ovs.vsctl("get", "interface", "t", "ofport")
    run("ovs-ofctl", "del-flows", "br-int", "cookie=1/-1", env=ovs.env)
    run("ovs-ofctl", "add-flow", "br-int", f"priority=2,in_port={t},tun_metadata0=0x10003,actions=NORMAL", env=ovs.env)
    assert weir.vm.ping(ovs.in4, count=1, wait=1) == 0
    until(lambda: ovs.hits(2) > before[1], what="packets with other options")


def underlay_device(site, kind):
    """Puts the underlay's device, which is a veth so far, into the switch as a port of such a type."""
    if kind == "tap":
        # The kernel joins the tap and the veth.
        site.attach_port("tap0", "type=tap")
        site.host.run("ip", "link", "add", "join", "type", "bridge", "mcast_snooping", "0")
        for device in ("tap0", "eth0"):
            site.host.run("ip", "link", "set", device, "master", "join")
        for device in ("tap0", "join"):
            site.host.run("ip", "link", "set", device, "up")
    elif kind == "dpdk":
        site.attach_port("dpdk0", "type=dpdk", "options:dpdk-devargs=net_af_packet0,iface=eth0")
    else:
        site.attach_port("eth0", *(["type=afxdp"] if kind == "afxdp" else []))


@pytest.mark.parametrize("underlay", ["afpacket", "afxdp", "tap", "dpdk"])
def test_two_weirs_over_any_underlay(lab, underlay):
    sites = [lab.weir(dpdk=underlay == "dpdk") for _ in range(2)]
    one, other = sites
    cable(one.host, "eth0", other.host, "eth0")
    for site, peer in ((one, other), (other, one)):
        underlay_device(site, underlay)
        site.local()
        site.tunnel("vx", "vxlan", f"remote_ip={peer.out4}", "key=7", "csum=true", port=["tag=1"])
        site.tunnel("gnv", "geneve", f"remote_ip={peer.out6}", "key=7", port=["tag=2"])
        site.vsctl("set", "port", "vm0", "tag=1")
    talk(one, other)
    for site in sites:
        site.vsctl("set", "port", "vm0", "tag=2")
    exchange(one.vm, other.vm, other.in6)
    for site in sites:
        counted = site.get("interface", "gnv", "statistics")
        until(lambda: re.search(r"rx_bytes=\d{7}", site.get("interface", "gnv", "statistics")), 15, f"statistics, not {counted}")


@pytest.mark.parametrize("underlay, kind, options, six", [
    ("afpacket", "vxlan", [], False),
    ("afpacket", "geneve", ["csum=true"], False),
    ("afpacket", "geneve", [], True),
    ("afxdp", "vxlan", [], False),
    ("afxdp", "geneve", [], True),
    ("dpdk", "vxlan", [], False),
    ("dpdk", "gre", [], False),
], ids=case)
def test_super_frames_are_whole_beyond_the_tunnel(lab, underlay, kind, options, six):
    """Between packet sockets, a stack's super-frame is one frame of the underlay, whose datagrams have its segments. Elsewhere, these come one by
    one, and are joined when they leave the tunnel."""
    sites = [lab.weir(dpdk=underlay == "dpdk") for _ in range(2)]
    one, other = sites
    cable(one.host, "eth0", other.host, "eth0")
    for site, peer in ((one, other), (other, one)):
        underlay_device(site, underlay)
        site.local()
        site.tunnel("t", kind, f"remote_ip={peer.outside(six)}", "key=7", *options)
    exchange(one.vm, other.vm, other.in4)

    def length(port):
        """Of the frames received, on average."""
        said = other.get("interface", port, "statistics")
        numbers = [int(re.search(rf"\b{name}=(\d+)", said)[1]) for name in ("rx_bytes", "rx_packets")]
        return numbers[0] > 1_000_000 and numbers[0] / numbers[1]
    for port in (["eth0"] if underlay == "afpacket" else []) + ["t"]:
        average = until(lambda: length(port), 15, f"a million bytes by {port}")
        assert average > 2500, f"frames of {port} are {average:.0f} bytes long"


@pytest.mark.parametrize("kind, options", [("vxlan", []), ("gre", []), ("gre", ["csum=true", "seq=true"]), ("erspan", ["erspan_ver=2"])], ids=case)
def test_an_afxdp_port_finds_out_what_a_packet_socket_is_told(lab, kind, options):
    """Checksums inside of the tunnel that the sender has left to the device."""
    one, other = sites = [lab.weir() for _ in range(2)]
    cable(one.host, "eth0", other.host, "eth0")
    for site, peer, underlay in ((one, other, "afpacket"), (other, one, "afxdp")):
        underlay_device(site, underlay)
        site.local()
        site.tunnel("t", kind, f"remote_ip={peer.out4}", "key=7", *options)
    talk(one, other)
    assert not any(drops(site).get("datapath_drop_tunnel_checksum") for site in sites)


BURST = """
import socket, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.setsockopt(17, 103, 1000)  # UDP_SEGMENT
u.connect((sys.argv[1], 9))
for _ in range(3000):
    try:
        u.send(bytes(60_000))
    except OSError:
        pass
"""


def test_a_burst_of_super_frames_finds_buffers_for_its_datagrams(lab):
    """More than there are large buffers leave the tunnel at once."""
    sites = [lab.weir() for _ in range(2)]
    one, other = sites
    cable(one.host, "eth0", other.host, "eth0")
    for site, peer in ((one, other), (other, one)):
        underlay_device(site, "afpacket")
        site.local()
        site.tunnel("t", "vxlan", f"remote_ip={peer.out4}", "key=7")
    assert one.vm.ping(other.in4) == 3
    one.vm.run(sys.executable, "-c", BURST, other.in4)
    until(lambda: re.search(r"tx_bytes=\d{7}", other.get("interface", "vm0", "statistics")), 15, "a million bytes out of the tunnel")
    assert one.vm.ping(other.in4) == 3
    assert [drops(site).get("datapath_drop_no_buffer", 0) for site in sites] == [0, 0]
