"""Random bridges with tunnels over another bridge, and frames for both, from a seed. What is left out is as in `scenario`."""

import random

from lib.scenario import IPS, Scenario
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Ether
from scapy.packet import Raw

PORTS = (1, 2, 3)
TUNNELS = (11, 12, 13, 14)
HERE, THERE = ("1.1.2.88", "2001:cafe::88"), (["1.1.2.92", "1.1.2.93"], ["2001:cafe::92", "2001:cafe::93"])
MAC, NEIGHBOURS = "aa:55:aa:55:00:00", {"1.1.2.92": "f8:bc:12:44:34:92", "1.1.2.93": "f8:bc:12:44:34:93",
                                       "2001:cafe::92": "f8:bc:12:44:36:92", "2001:cafe::93": "f8:bc:12:44:36:93"}
KEYS = [0, 5, 7, 0x123456]
TLV_MAP = "{class=0xffff,type=0x80,len=4}->tun_metadata0,{class=0xffff,type=1,len=8}->tun_metadata1,{class=0x0102,type=7,len=124}->tun_metadata2"


class TunnelScenario:
    """One for each seed."""

    def __init__(self, seed, packets=40):
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.inner = Scenario(seed, packets=0)
        # OVS takes all that come by GRE's protocol for one kind.
        self.gre = self.pick(["gre", "gre", "ip6gre", "erspan"])
        #: Whether some other ends are told by flows. An output to nowhere leaves OVS's next one with other metadata, so none is without such.
        self.flow_based = self.chance(.4)
        self.tunnels = {number: self.tunnel() for number in TUNNELS}
        self.flows = [self.flow() for _ in range(self.random.randrange(3, 14))]
        self.flows += [f"priority=0,actions={self.pick([self.everywhere(), self.everywhere(), 'output:1', self.output(11), 'drop'])}"]
        self.underlay = ["priority=0,actions=NORMAL"]
        if self.chance(.3):
            self.underlay.append("priority=5,ip,actions=" + self.pick(["mod_nw_tos:32,NORMAL", "dec_ttl,NORMAL", "set_field:77->reg1,NORMAL", "NORMAL,output:2",
                                                                        "push_vlan:0x8100,set_field:4105->vlan_vid,output:1"]))
        #: Port and frame; 0 is the underlay's.
        self.packets = []
        for _ in range(packets):
            if self.packets and self.chance(.25):
                self.packets.append(self.pick(self.packets))
            elif self.chance(.5):
                station = self.random.randrange(3)
                self.packets.append((PORTS[station], self.inner_frame(f"02:00:00:00:00:0{station + 1}")))
            else:
                self.packets.append((0, self.outer()))
        self.packets *= 2

    def chance(self, share):
        return self.random.random() < share

    def tunnel(self):
        """The type of a tunnel and its options."""
        kind = self.pick(["vxlan", "vxlan", "geneve", "geneve", self.gre, self.gre])
        options = {}
        six = kind == "ip6gre" or (kind != "gre" and self.chance(.3))
        options["remote_ip"] = self.pick([self.pick(THERE[six])] * 2 + ["flow"] * self.flow_based)
        if options["remote_ip"] == "flow" and self.chance(.3):
            options["local_ip"] = "flow"
        if self.chance(.75):
            way = self.pick(["key", "key", "key", "both"])
            if way == "key":
                options["key"] = self.pick([*map(str, KEYS), "flow", "flow"])
            else:
                options["in_key"], options["out_key"] = (self.pick([*map(str, KEYS), "flow"]) for _ in range(2))
        for name, values in (("tos", ["0", "0x28", "inherit", "0xb8"]), ("ttl", ["10", "inherit", "255"]), ("df_default", ["false", "true"]),
                             ("csum", ["true", "false"])):
            if self.chance(.25):
                options[name] = self.pick(values)
        if kind == "gre" and self.chance(.2):
            options["seq"] = "true"
        if kind in ("vxlan", "geneve") and self.chance(.15):
            options["dst_port"] = self.pick(["4790", "9000"])
        if kind == "erspan":
            if self.chance(.5):
                options |= {"erspan_ver": "1", "erspan_idx": self.pick(["3", "flow"])}
            else:
                options |= {"erspan_ver": "2", "erspan_dir": self.pick(["1", "0", "flow"]), "erspan_hwid": self.pick(["4", "flow"])}
        if kind in ("gre", "vxlan") and self.chance(.15):
            options["packet_type"] = self.pick(["ptap", "legacy_l2"] if kind == "gre" else ["legacy_l2"])
        return kind, options

    # Frames.

    def inner_frame(self, src):
        """Whose ECN says of no congestion: OVS hides that in the outer header, as RFC 3168 had it, where RFC 6040 copies it."""
        while True:
            frame = self.inner.frame(src)
            ether = Ether(bytes.fromhex(frame))
            if not (IP in ether and ether[IP].tos & 3 == 3 or IPv6 in ether and ether[IPv6].tc & 3 == 3):
                return frame

    def outer(self):
        kind = self.pick(["vxlan", "geneve", "gre", "gre", "vxlan", "geneve", "erspan", "gtpu", "odd"])
        six = self.gre == "ip6gre" if kind in ("gre", "erspan") else self.chance(.25)
        src, dst = self.pick(THERE[six]), HERE[six]
        if self.chance(.05):
            dst = self.pick(THERE[six])
        ether = Ether(src=NEIGHBOURS[src], dst=self.pick([MAC] * 12 + ["ff:ff:ff:ff:ff:ff", "02:00:00:00:00:99"]))
        tos = self.pick([0, 0, 1, 2, 0x28, 0xB8])
        ip = (IPv6(src=src, dst=dst, tc=tos, hlim=self.pick([1, 64, 255])) if six
              else IP(src=src, dst=dst, tos=tos, ttl=self.pick([1, 64, 255]), flags=self.pick([0, 2])))
        inner = Raw(bytes.fromhex(self.inner_frame("02:00:00:00:00:0a")))
        key = self.pick(KEYS)
        if kind == "vxlan":
            header = Raw(self.pick([b"\x08\0\0\0", b"\x08\0\0\0", b"\x88\0\0\x05", b"\0\0\0\0", b"\x0c\0\0\x01"]) + key.to_bytes(3, "big") + b"\0")
            packet = self.udp(int(self.pick(["4789"] * 5 + ["4790", "9000"])), header / inner)
        elif kind == "geneve":
            packet = self.udp(int(self.pick(["6081"] * 5 + ["4790", "9000"])), self.geneve(key) / inner)
        elif kind == "gre":
            header = GRE(proto=self.pick([0x6558] * 6 + [0x0800, 0x88BE]), key_present=self.pick([0, 1, 1]), seqnum_present=self.pick([0, 0, 1]),
                         chksum_present=self.pick([0, 0, 1]))
            if header.key_present:
                header.key = key
            else:
                # OVS takes none that have a checksum and no key.
                header.chksum_present = 0
            if header.seqnum_present:
                header.sequence_number = 4
            if header.proto == 0x0800:
                inner = IP(src=self.pick(IPS), dst=self.pick(IPS)) / UDP() / Raw(b"x")
            packet = header / inner
        elif kind == "erspan":
            packet = Raw(self.erspan(key)) / inner
            setattr(ip, "nh" if six else "proto", 47)
        elif kind == "gtpu":
            body = bytes(IP(src=self.pick(IPS[:4]), dst=self.pick(IPS[:4])) / UDP() / Raw(b"q" * 8))
            header = bytes([self.pick([0x30, 0x30, 0x32]), self.pick([255, 255, 1])]) + len(body).to_bytes(2, "big") + key.to_bytes(4, "big")
            packet = self.udp(2152, Raw(header + body))
        else:
            packet = self.udp(self.pick([4789, 6081, 53]), Raw(b"\x08" * self.random.randrange(30)))
        frame = bytes(ether / ip / packet)
        if self.chance(.08):
            frame = frame[:self.random.randrange(14, len(frame) + 1)]
        return frame.hex()

    def udp(self, port, payload):
        udp = UDP(sport=self.pick([1000, 50000]), dport=port)
        if self.chance(.6):
            udp.chksum = 0
        return udp / payload

    def geneve(self, key):
        options = b""
        for _ in range(self.pick([0, 0, 1, 1, 2, 3])):
            options += self.pick([b"\xff\xff\x80\x01\0\0\0\x07", b"\xff\xff\x01\x02\0\0\0\x01\0\0\0\x02", b"\xff\xff\x80\x01\0\0\0\x09",
                                  b"\x01\x02\x07\x1f" + bytes(123) + b"\x05", b"\x12\x34\x05\x00", b"\x12\x34\x85\x00", b"\xff\xff\x80\x02" + bytes(8)])
        flags = self.pick([0, 0, 0, 0x40, 0x80, 0x3F])
        return Raw(bytes([len(options) // 4, flags]) + self.pick([b"\x65\x58"] * 8 + [b"\x08\x00"]) + key.to_bytes(3, "big") + b"\0" + options)

    def erspan(self, key):
        session = key & 0x3FF
        if self.chance(.5):
            return b"\x10\x00\x88\xbe" + bytes(4) + bytes([0x10, 5]) + session.to_bytes(2, "big") + b"\0\0\0\x03"
        return b"\x10\x00\x22\xeb" + bytes(4) + bytes([0x20, 5]) + session.to_bytes(2, "big") + bytes(4) + bytes([0, 0, 0x80, 0x48])

    # Flows.

    def flow(self):
        match = []
        if self.chance(.6):
            match.append(f"in_port={self.pick([*PORTS, *TUNNELS, *TUNNELS])}")
        if self.chance(.4):
            match.append(self.pick([f"tun_id={self.pick(KEYS)}", "tun_id=0x5/0xf", f"tun_src={self.pick(THERE[0])}", f"tun_dst={HERE[0]}",
                                    f"tun_ipv6_src={self.pick(THERE[1])}", "tun_flags=oam", "tun_flags=-oam", "tun_gbp_id=5", "tun_gbp_flags=0x40",
                                    "tun_metadata0=7", "tun_metadata0=0", "tun_metadata0", "tun_metadata1=0x100000002", "tun_metadata2", "tun_src=0.0.0.0",
                                    "tun_metadata1=0/0xff", "tun_erspan_ver=1", "tun_erspan_idx=3", "tun_erspan_ver=2,tun_erspan_dir=1", "tun_gtpu_flags=0x30"]))
        kind = self.pick([lambda: [], lambda: [], self.inner.match_ipv4, self.inner.match_ipv6, self.inner.match_arp])
        match += kind()
        table = self.pick([0, 0, 0, 1])
        actions = [self.action(match, table) for _ in range(self.pick([1, 2, 2, 3, 4]))]
        return f"table={table},priority={self.random.randrange(1, 20)},{','.join(match + [''])}actions={','.join(actions)}"

    def everywhere(self):
        return "output:2" if self.flow_based else self.pick(["NORMAL", "FLOOD"])

    def output(self, tunnel):
        kind, options = self.tunnels[tunnel]
        if options["remote_ip"] != "flow":
            return f"output:{tunnel}"
        six = kind == "ip6gre" or (kind != "gre" and self.chance(.3))
        return f"clone(set_field:{self.pick(THERE[six])}->tun_{'ipv6_' * six}dst,output:{tunnel})"

    def action(self, match, table):
        out = [f"output:{self.pick(PORTS)}", *(self.output(self.pick(TUNNELS)) for _ in range(3))]
        fields = [f"set_field:{self.pick(KEYS)}->tun_id", f"set_field:{self.pick(THERE[0])}->tun_dst", f"set_field:{self.pick(THERE[1])}->tun_ipv6_dst",
                  f"set_field:{HERE[0]}->tun_src", "set_field:5->tun_gbp_id", "set_field:0x40->tun_gbp_flags", "set_field:7->tun_metadata0",
                  "set_field:0x100000002->tun_metadata1", "move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG1[]", "move:NXM_NX_TUN_METADATA0[]->NXM_NX_REG2[]",
                  "move:NXM_NX_REG1[]->NXM_NX_TUN_ID[0..31]", "set_field:9->tun_metadata2", "set_field:oam->tun_flags", "set_field:2->tun_erspan_idx", "move:NXM_NX_TUN_IPV4_SRC[]->NXM_NX_TUN_IPV4_DST[]",
                  "set_field:1->pkt_mark"]
        other = ["resubmit(,1)"] if table == 0 else []
        other += [self.everywhere(), "push_vlan:0x8100,set_field:4101->vlan_vid" if "vlan_tci=0" in match else "pop_vlan"] + ([] if self.flow_based else ["in_port"])
        other += ["dec_ttl", "set_field:3->nw_ecn", "mod_nw_tos:184"] if "ip" in match or "udp" in match or "tcp" in match else []
        other += [f"clone({self.pick(fields)},{self.pick(out)})"]
        return self.pick(out * 2 + fields + other)
