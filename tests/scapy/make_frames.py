#!/usr/bin/env python3
"""Frames built by scapy, with the flow key that scapy's own parse of them says.

Writes frames.txt, beside this file or to the path given: one frame a line,

    NAME | HEX BYTES | FIELD=VALUE FIELD=VALUE ...

The fields are those of ovs-fields(7); all fields not named are zero. `vlan0_tpid`, `vlan1_tpid`, `vlan1_tci`,
`mpls_lse0..2` name parts of the key that are no fields. No value comes from Weir's code.
"""

import ipaddress
import os
import sys

from scapy.all import ARP, Dot1AD, Dot1Q, Dot3, Ether, ICMP, IP, LLC, Padding, Raw, SNAP, TCP, UDP
from scapy.contrib.igmp import IGMP
from scapy.contrib.mpls import MPLS
from scapy.contrib.nsh import NSH
from scapy.fields import BitField
from scapy.layers.inet6 import (
    ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6MLReport, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptMTU, ICMPv6NDOptSrcLLAddr, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting)
from scapy.layers.ipsec import AH
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Packet, bind_layers


class Dot1AH(Packet):
    """The I-TAG of IEEE 802.1Q section 9.7, which scapy 2.5 has not."""

    name = "802.1ah"
    fields_desc = [BitField("prio", 0, 3), BitField("dei", 0, 1), BitField("uca", 0, 1), BitField("res", 0, 3),
                   BitField("isid", 0, 24)]


bind_layers(Ether, Dot1AH, type=0x88e7)
bind_layers(Ether, ARP, type=0x8035)
bind_layers(IP, IGMP, proto=2, frag=0)
bind_layers(Dot1AH, Ether)
bind_layers(AH, UDP, nh=17)

E = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")
V4 = IP(src="10.1.2.3", dst="192.168.255.254", tos=0xb9, ttl=63, id=7)
V6 = IPv6(src="fd00::1:2", dst="2001:db8::ffff", tc=0x2e, fl=0xabcde, hlim=9)
DATA = Raw(b"weir" * 5)
LLA = "02:aa:bb:cc:dd:ee"

FRAMES = {
    # Ethernet
    "unknown_type": E / Raw(b"\x01" * 46),
    "lldp_like": Ether(dst="01:80:c2:00:00:0e", src="02:00:00:00:00:02", type=0x88cc) / Raw(b"\x02" * 46),
    "snap_ipv4": Dot3(dst="02:00:00:00:00:01", src="02:00:00:00:00:02") / LLC(dsap=0xaa, ssap=0xaa, ctrl=3)
    / SNAP(OUI=0, code=0x800) / V4 / UDP(sport=1, dport=2) / DATA,
    "llc_only": Dot3(dst="01:80:c2:00:00:00", src="02:00:00:00:00:02") / LLC(dsap=0x42, ssap=0x42, ctrl=3) / DATA,
    # VLAN
    "vlan_udp": E / Dot1Q(vlan=100, prio=5) / V4 / UDP(sport=1000, dport=2000) / DATA,
    "vlan_zero": E / Dot1Q(vlan=0, prio=0) / V4 / TCP(sport=1, dport=2) / DATA,
    "vlan_dei": E / Dot1Q(vlan=4095, prio=7, id=1) / V4 / TCP(sport=1, dport=2) / DATA,
    "vlan_ad": E / Dot1AD(vlan=5) / V4 / UDP(sport=3, dport=4) / DATA,
    "qinq": E / Dot1AD(vlan=5, prio=1) / Dot1Q(vlan=6, prio=2) / V4 / UDP(sport=3, dport=4) / DATA,
    "qinq_q": E / Dot1Q(vlan=5) / Dot1Q(vlan=6) / V6 / TCP(sport=3, dport=4) / DATA,
    "vlan_arp": E / Dot1Q(vlan=9) / ARP(op=1, hwsrc=LLA, psrc="10.0.0.1", pdst="10.0.0.2"),
    # ARP
    "arp_request": E / ARP(op=1, hwsrc=LLA, psrc="10.0.0.1", pdst="10.0.0.2"),
    "arp_reply": E / ARP(op=2, hwsrc=LLA, hwdst="02:00:00:00:00:09", psrc="10.0.0.2", pdst="10.0.0.1"),
    "arp_op_255": E / ARP(op=255, hwsrc=LLA, psrc="10.0.0.1", pdst="10.0.0.2"),
    "arp_op_256": E / ARP(op=256, hwsrc=LLA, psrc="10.0.0.1", pdst="10.0.0.2"),
    "arp_padded": E / ARP(op=1, hwsrc=LLA, psrc="10.0.0.1", pdst="10.0.0.2") / Raw(b"\0" * 18),
    "rarp": Ether(dst="ff:ff:ff:ff:ff:ff", src=LLA, type=0x8035) / ARP(op=3, hwsrc=LLA, hwdst=LLA, psrc="0.0.0.0"),
    # IPv4
    "udp": E / V4 / UDP(sport=53, dport=5353) / DATA,
    "udp_empty": E / V4 / UDP(sport=53, dport=5353),
    "udp_padded": E / V4 / UDP(sport=53, dport=5353) / Raw(b"x") / Padding(b"\xee" * 20),
    "tcp_syn": E / V4 / TCP(sport=33000, dport=80, flags="S", options=[("MSS", 1460), ("WScale", 7)]),
    "tcp_all_flags": E / V4 / TCP(sport=1, dport=65535, flags=0x1ff) / DATA,
    "tcp_data": E / V4 / TCP(sport=80, dport=33000, flags="PA") / DATA,
    "sctp": E / V4 / SCTP(sport=2905, dport=2906) / SCTPChunkInit(),
    "icmp_echo": E / V4 / ICMP(type=8, code=0, id=1, seq=1) / DATA,
    "icmp_unreachable": E / V4 / ICMP(type=3, code=13) / IP(src="1.1.1.1", dst="2.2.2.2") / UDP(sport=7, dport=8),
    "igmp_report": E / V4 / IGMP(type=0x16, mrcode=20, gaddr="224.0.0.251"),
    "gre_like": E / IP(src="1.2.3.4", dst="4.3.2.1", proto=47) / Raw(b"\0" * 8),
    "esp4": E / IP(src="1.2.3.4", dst="4.3.2.1", proto=50) / Raw(b"\1" * 24),
    "ip_options": E / IP(src="1.2.3.4", dst="4.3.2.1", options=b"\x01\x01\x01\x00") / UDP(sport=8, dport=9) / DATA,
    "ip_options_tcp": E / IP(src="1.2.3.4", dst="4.3.2.1", options=b"\x01" * 40) / TCP(sport=8, dport=9) / DATA,
    "ip_df": E / IP(src="1.2.3.4", dst="4.3.2.1", flags="DF") / UDP(sport=8, dport=9) / DATA,
    "ip_first_fragment": E / IP(src="1.2.3.4", dst="4.3.2.1", flags="MF") / UDP(sport=8, dport=9, len=3000) / DATA,
    "ip_middle_fragment": E / IP(src="1.2.3.4", dst="4.3.2.1", flags="MF", frag=185, proto=17) / DATA,
    "ip_last_fragment": E / IP(src="1.2.3.4", dst="4.3.2.1", frag=370, proto=6) / DATA,
    "vlan_fragment": E / Dot1Q(vlan=7) / IP(src="1.2.3.4", dst="4.3.2.1", frag=1, proto=17) / DATA,
    "zero_ttl_tos_max": E / IP(src="0.0.0.0", dst="255.255.255.255", tos=255, ttl=0) / UDP(sport=68, dport=67) / DATA,
    # IPv6
    "udp6": E / V6 / UDP(sport=53, dport=5353) / DATA,
    "tcp6": E / V6 / TCP(sport=80, dport=33000, flags="SA") / DATA,
    "sctp6": E / V6 / SCTP(sport=1, dport=2) / SCTPChunkInit(),
    "echo6": E / V6 / ICMPv6EchoRequest(id=1, seq=2) / DATA,
    "echo_reply6": E / V6 / ICMPv6EchoReply(id=1, seq=2) / DATA,
    "ra": E / V6 / ICMPv6ND_RA() / ICMPv6NDOptSrcLLAddr(lladdr=LLA),
    "mld": E / V6 / ICMPv6MLReport(mladdr="ff02::1"),
    "hop_by_hop": E / V6 / IPv6ExtHdrHopByHop() / UDP(sport=1, dport=2) / DATA,
    "routing": E / V6 / IPv6ExtHdrRouting(addresses=["fd00::9"]) / TCP(sport=1, dport=2) / DATA,
    "dest_options": E / V6 / IPv6ExtHdrDestOpt() / UDP(sport=1, dport=2) / DATA,
    "auth6": E / V6 / AH(nh=17, payloadlen=4, spi=1, seq=1, icv=b"\0" * 12) / UDP(sport=5, dport=6) / DATA,
    "hop_routing_dest": E / V6 / IPv6ExtHdrHopByHop() / IPv6ExtHdrRouting(addresses=["fd00::9"])
    / IPv6ExtHdrDestOpt() / UDP(sport=1, dport=2) / DATA,
    "out_of_order": E / V6 / IPv6ExtHdrRouting(addresses=[]) / IPv6ExtHdrHopByHop() / UDP(sport=1, dport=2) / DATA,
    "repeated": E / V6 / IPv6ExtHdrRouting(addresses=[]) / IPv6ExtHdrRouting(addresses=[]) / UDP(sport=1, dport=2),
    "fragment6_first": E / V6 / IPv6ExtHdrFragment(offset=0, m=1, id=3) / UDP(sport=1, dport=2, len=2000) / DATA,
    "fragment6_later": E / V6 / IPv6ExtHdrFragment(offset=200, m=1, id=3, nh=17) / DATA,
    "fragment6_atomic": E / V6 / IPv6ExtHdrFragment(offset=0, m=0, id=3) / UDP(sport=1, dport=2) / DATA,
    "no_next": E / IPv6(src="fd00::1", dst="fd00::2", nh=59),
    "esp6": E / IPv6(src="fd00::1", dst="fd00::2", nh=50) / Raw(b"\1" * 24),
    # Neighbour discovery
    "ns": E / V6 / ICMPv6ND_NS(tgt="fd00::5") / ICMPv6NDOptSrcLLAddr(lladdr=LLA),
    "ns_bare": E / V6 / ICMPv6ND_NS(tgt="fd00::5"),
    "ns_mtu": E / V6 / ICMPv6ND_NS(tgt="fd00::5") / ICMPv6NDOptMTU() / ICMPv6NDOptSrcLLAddr(lladdr=LLA),
    "na": E / V6 / ICMPv6ND_NA(tgt="fd00::6", R=1, S=1, O=1) / ICMPv6NDOptDstLLAddr(lladdr=LLA),
    "na_no_flags": E / V6 / ICMPv6ND_NA(tgt="fd00::6", R=0, S=0, O=0) / ICMPv6NDOptDstLLAddr(lladdr=LLA),
    "na_both": E / V6 / ICMPv6ND_NA(tgt="fd00::6", R=0) / ICMPv6NDOptDstLLAddr(lladdr=LLA)
    / ICMPv6NDOptSrcLLAddr(lladdr="02:00:00:00:00:77"),
    "vlan_ns": E / Dot1Q(vlan=3) / V6 / ICMPv6ND_NS(tgt="fd00::5") / ICMPv6NDOptSrcLLAddr(lladdr=LLA),
    # MPLS
    "mpls": E / MPLS(label=0x12345, cos=5, s=1, ttl=64) / V4 / UDP(sport=1, dport=2),
    "mpls_two": E / MPLS(label=1, cos=0, s=0, ttl=1) / MPLS(label=2, cos=7, s=1, ttl=255) / V4,
    "mpls_four": E / MPLS(label=1, s=0, ttl=1) / MPLS(label=2, s=0, ttl=2) / MPLS(label=3, s=0, ttl=3)
    / MPLS(label=4, s=1, ttl=4) / V4,
    "vlan_mpls": E / Dot1Q(vlan=12) / MPLS(label=99, s=1, ttl=9) / V4,
    # NSH, PBB
    "nsh": Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02", type=0x894f)
    / NSH(spi=0x123456, si=255, nextproto=1, ttl=63, oam=1, mdtype=1, context_header=bytes(range(16))) / V4,
    "pbb": Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02", type=0x88e7)
    / Dot1AH(isid=0xabcdef, uca=1, prio=3) / Ether(dst=LLA, src=LLA) / V4,
}

# OpenFlow 1.3 section 7.2.3.8.
EXT = {0: 64, 43: 32, 44: 16, 51: 4, 60: 8, 50: 2, 59: 1}
ORDER = {0: 0, 60: 1, 43: 2, 44: 3, 51: 4, 50: 5}


def mac(text):
    return int(text.replace(":", ""), 16)


def address(text):
    return int(ipaddress.ip_address(text))


def word(layer, first, last):
    """Bytes of a layer's header as a number."""
    return int.from_bytes(bytes(layer)[first:last], "big")


def ports(out, layer):
    if isinstance(layer, (TCP, UDP, SCTP)):
        out["tcp_src"], out["tcp_dst"] = layer.sport, layer.dport
        if isinstance(layer, TCP):
            out["tcp_flags"] = int(layer.flags) | layer.reserved << 9
    elif isinstance(layer, ICMP):
        out["icmp_type"], out["icmp_code"] = layer.type, layer.code
    elif isinstance(layer, IGMP):
        out["icmp_type"], out["icmp_code"] = layer.type, int(layer.mrcode)
    elif layer.name.startswith("ICMPv6") or layer.name.startswith("MLD"):
        out["icmpv6_type"], out["icmpv6_code"] = layer.type, layer.code


def expected(frame):
    """The key's fields, from scapy's dissection."""
    frame = frame.__class__(bytes(frame))
    out = {"eth_dst": mac(frame.dst), "eth_src": mac(frame.src)}
    layer = frame
    if isinstance(frame, Dot3):
        out["eth_type"] = frame[SNAP].code if SNAP in frame else 0x5ff
        layer = frame[SNAP].payload if SNAP in frame else None
    else:
        tpid, tags = frame.type, 0
        layer = frame.payload
        while isinstance(layer, (Dot1Q, Dot1AD)):
            tci = layer.prio << 13 | 0x1000 | layer.vlan
            out.update({f"vlan{tags}_tpid": tpid, "vlan_tci" if tags == 0 else "vlan1_tci": tci})
            tpid, layer, tags = layer.type, layer.payload, tags + 1
        out["eth_type"] = tpid
    if isinstance(layer, IP):
        out.update(nw_src=address(layer.src), nw_dst=address(layer.dst), nw_proto=layer.proto, nw_ttl=layer.ttl)
        out.update(ip_dscp=layer.tos >> 2, nw_ecn=layer.tos & 3)
        if layer.frag or layer.flags.MF:
            out["ip_frag"] = 3 if layer.frag else 1
        if not layer.frag:
            ports(out, layer.payload)
    elif isinstance(layer, IPv6):
        ipv6(out, layer)
    elif isinstance(layer, ARP):
        out.update(arp_op=layer.op if layer.op < 256 else 0, arp_spa=address(layer.psrc), arp_tpa=address(layer.pdst))
        out.update(arp_sha=mac(layer.hwsrc), arp_tha=mac(layer.hwdst))
    elif isinstance(layer, MPLS):
        for i in range(3):
            if isinstance(layer, MPLS):
                out[f"mpls_lse{i}"] = layer.label << 12 | layer.cos << 9 | layer.s << 8 | layer.ttl
                layer = layer.payload if not layer.s else None
    elif isinstance(layer, NSH):
        out.update(nsh_flags=layer.oam << 1, nsh_ttl=layer.ttl, nsh_mdtype=layer.mdtype, nsh_np=layer.nextproto)
        out.update(nsh_spi=layer.spi, nsh_si=layer.si)
        for i in range(4):
            out[f"nsh_c{i + 1}"] = int.from_bytes(layer.context_header[4 * i:4 * i + 4], "big")
    elif isinstance(layer, Dot1AH):
        out.update(pbb_isid=layer.isid, pbb_uca=layer.uca)
    return {name: value for name, value in out.items() if value}


def ipv6(out, layer):
    out.update(ipv6_src=address(layer.src), ipv6_dst=address(layer.dst), ipv6_label=layer.fl, nw_ttl=layer.hlim)
    out.update(ip_dscp=layer.tc >> 2, nw_ecn=layer.tc & 3)
    headers, proto, layer = [], layer.nh, layer.payload
    while proto in EXT:
        headers.append(proto)
        if proto in (50, 59):
            break
        if proto == 44 and (layer.offset or layer.m):
            out["ip_frag"] = 3 if layer.offset else 1
            if layer.offset:
                break
        proto, layer = layer.nh, layer.payload
    out["nw_proto"] = proto
    bits, highest = 0, -1
    for i, header in enumerate(headers):
        place = ORDER.get(header, 7)
        if header == 60 and (highest > 0 or 60 in headers[:i]):
            place = 6
        bits |= 256 if place < highest else 0
        bits |= 128 if headers[:i].count(header) >= (2 if header == 60 else 1) else 0
        bits |= EXT[header]
        highest = max(highest, place)
    out["ipv6_exthdr"] = bits
    if out.get("ip_frag", 0) & 2 or proto in EXT:
        return
    ports(out, layer)
    if isinstance(layer, (ICMPv6ND_NS, ICMPv6ND_NA)):
        out["nd_target"], out["nd_reserved"] = address(layer.tgt), word(layer, 4, 8)
        first = None
        for cls, field in ((ICMPv6NDOptSrcLLAddr, "nd_sll"), (ICMPv6NDOptDstLLAddr, "nd_tll")):
            if cls in layer:
                out[field] = mac(layer[cls].lladdr)
        option = layer.payload
        while option and first is None:
            first = option.type if option.type in (1, 2) else None
            option = option.payload
        out["nd_options_type"] = first or 0


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "frames.txt")
    with open(path, "w", encoding="ascii") as file:
        file.write("# Written by make_frames.py.\n")
        for name, frame in FRAMES.items():
            fields = " ".join(f"{k}={v:#x}" for k, v in sorted(expected(frame).items()))
            file.write(f"{name} | {bytes(frame).hex()} | {fields}\n")


if __name__ == "__main__":
    main()
