#!/usr/bin/env python3
"""What scapy says of captured packets, a line for each file: a JSON array of packets, each an array of layers, each
`[NAME, {FIELD: VALUE}]`.

Lengths and checksums are compared with those that scapy computes: it takes them out of each packet and builds it again. Where that
gives other bytes, the program fails.
"""

import json
import sys

from scapy.all import GRE, ICMP, IP, TCP, UDP, Dot1Q, Ether, Raw, bind_layers, rdpcap
from scapy.contrib.erspan import ERSPAN_II, ERSPAN_III
from scapy.contrib.geneve import GENEVE
from scapy.contrib.gtp import GTP_U_Header
from scapy.layers.inet6 import IPv6, IPv6ExtHdrRouting, IPv6ExtHdrSegmentRouting, _ICMPv6
from scapy.layers.vxlan import VXLAN
from scapy.packet import Padding

bind_layers(GRE, Ether, proto=0x6558)
bind_layers(GRE, ERSPAN_II, proto=0x88be)
bind_layers(GRE, ERSPAN_III, proto=0x22eb)
bind_layers(ERSPAN_II, Ether)
bind_layers(ERSPAN_III, Ether)
bind_layers(UDP, GENEVE, dport=6081)

COMPUTED = {IP: ["len", "chksum"], IPv6: ["plen"], UDP: ["len", "chksum"], TCP: ["chksum"], ICMP: ["chksum"],
            GTP_U_Header: ["length"]}


def strip(layer):
    """Forgets what can be computed."""
    for kind, fields in COMPUTED.items():
        if isinstance(layer, kind):
            for field in fields:
                # No checksum of UDP is none.
                if (field, layer.getfieldval(field)) != ("chksum", 0):
                    layer.delfieldval(field)
    if isinstance(layer, GRE) and layer.chksum_present:
        layer.delfieldval("chksum")
    if isinstance(layer, _ICMPv6):
        layer.delfieldval("cksum")


def layers(packet):
    layer = packet
    while layer and not isinstance(layer, (Raw, Padding)):
        yield layer
        layer = layer.payload


def plain(value):
    if isinstance(value, (int, str, type(None))):
        return value
    return bytes(value).hex() if isinstance(value, bytes) else str(value)


def decode(packet):
    """The layers of a packet; those that scapy builds from what is in them have to be the same."""
    again = packet.copy()
    found = [[type(layer).__name__, {f.name: plain(layer.getfieldval(f.name)) for f in layer.fields_desc}]
             for layer in layers(packet)]
    for layer in layers(again):
        strip(layer)
        # Built from fields, not from what was read.
        layer.raw_packet_cache = None
    built, original = bytes(again), bytes(packet)
    if built != original:
        at = next((i for i, (one, other) in enumerate(zip(built, original)) if one != other), min(len(built), len(original)))
        sys.exit(f"byte {at}: it has {original.hex()}, scapy builds {built.hex()}\n{packet.show(dump=True)}")
    return found


for path in sys.argv[1:]:
    print(json.dumps([decode(packet) for packet in rdpcap(path)]))
