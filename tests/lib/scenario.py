"""Random bridges and packets, from a seed: ports with VLANs, groups, flows with most fields and actions, and frames that these may be about.

Left out is what the documentation of deviations says to be different, and what depends on the time or on a hash.
"""

import random

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.contrib.mpls import MPLS
from scapy.packet import Raw

PORTS = range(1, 7)
STATIONS = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"]
MACS = [*STATIONS, "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:05", "01:80:c2:00:00:0e"]
IPS = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.168.0.1", "224.0.0.5"]
IP6 = ["fd00::1", "fd00::2", "fd00:1::1", "ff02::1"]
L4_PORTS = [53, 80, 443, 1000, 4789, 3784]
VLANS = [0, 1, 5, 10, 100]
L4 = {"tcp": "tcp", "tcp6": "tcp", "udp": "udp", "udp6": "udp", "sctp": "sctp", "sctp6": "sctp"}
IPV4 = {"ip", "tcp", "udp", "icmp", "sctp"}
IPV6 = {"ipv6", "tcp6", "udp6", "icmp6", "sctp6"}

#: Settings of ports, more often none.
VLAN_MODES = [["tag=5"], ["tag=10"], ["trunks=5,10"], ["tag=5", "vlan_mode=native-tagged"],
              ["tag=5", "vlan_mode=native-untagged", "trunks=5,10"], ["tag=5", "other_config:priority-tags=true"],
              ["trunks=0,5", "other_config:priority-tags=always"]]

#: What a bucket cannot have: OVS ignores it there, Weir refuses it.
NOT_IN_BUCKETS = ("learn", "push:", "pop:", "exit", "check_pkt", "enqueue", "group", "output:NXM", "note", "pop_queue")


class Scenario:
    """One for each seed."""

    def __init__(self, seed, packets=40):
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.ports = [self.pick(VLAN_MODES) if self.chance(.25) else [] for _ in PORTS]
        self.bridge = ["other_config:mac-aging-time=3600"]
        self.bridge += ["flood_vlans=10"] if self.chance(.1) else []
        self.bridge += ["other_config:forward-bpdu=true"] if self.chance(.2) else []
        self.groups = [self.group(number) for number in (1, 2, 3)]
        self.flows = [self.flow() for _ in range(self.random.randrange(2, 16))]
        self.flows.append("table=0,priority=0,actions=" + self.pick(["NORMAL", "drop", "resubmit(,1)", "output:6", "FLOOD"]))
        # A station stays where it is: when others learn that it has moved is a matter of time.
        homes = dict(zip(STATIONS, self.random.sample(PORTS, 3), strict=True))
        #: Port and frame.
        self.packets = []
        for _ in range(packets):
            src = self.pick(STATIONS)
            again = self.packets and self.chance(.3)
            self.packets.append(self.pick(self.packets) if again else (homes[src], self.frame(src)))
        # The caches have them all the second time.
        self.packets *= 2

    def chance(self, share):
        return self.random.random() < share

    # Frames.

    def payload(self, of, most):
        return Raw(of * self.random.randrange(most))

    def transport(self, v6):
        ports = {"sport": self.pick(L4_PORTS), "dport": self.pick(L4_PORTS)}
        echo = ICMPv6EchoRequest(id=1, seq=2) if v6 else ICMP(type=self.pick([0, 8, 3]), code=self.pick([0, 1]))
        tcp = TCP(**ports, flags=self.pick(["S", "SA", "A", "FA", "R", "PA"])) / self.payload(b"x", 40)
        udp = UDP(**ports) / self.payload(b"y", 40)
        return self.pick([tcp, tcp, udp, udp, echo, SCTP(**ports) / Raw(b"z" * 8), self.payload(b"q", 30)])

    def ipv4(self):
        ip = IP(src=self.pick(IPS), dst=self.pick(IPS), ttl=self.pick([0, 1, 2, 64, 255]), tos=self.pick([0, 1, 3, 4, 0x28, 0xB8, 0xFF]))
        if self.chance(.12):
            ip.frag, ip.flags = self.pick([0, 1, 185]), self.pick([0, 1, 2])
        if self.chance(.06):
            ip.options = [IPOption(b"\x94\x04\x00\x00")]
        transport = self.transport(False)
        if isinstance(transport, Raw):
            ip.proto = self.pick([2, 47, 50, 89])
        return ip / transport

    def ipv6(self):
        ip = IPv6(src=self.pick(IP6), dst=self.pick(IP6), hlim=self.pick([0, 1, 2, 64, 255]), tc=self.pick([0, 1, 3, 0xB8]),
                  fl=self.pick([0, 5, 0xFFFFF]))
        transport, kind = self.transport(True), self.random.random()
        if kind < .07:
            return ip / IPv6ExtHdrFragment(offset=self.pick([0, 1, 100]), m=self.pick([0, 1])) / transport
        if kind < .12:
            return ip / IPv6ExtHdrHopByHop() / transport
        if kind < .2:
            solicitation = ICMPv6ND_NS(tgt=self.pick(IP6)) / ICMPv6NDOptSrcLLAddr(lladdr=self.pick(MACS))
            advertisement = ICMPv6ND_NA(tgt=self.pick(IP6)) / ICMPv6NDOptDstLLAddr(lladdr=self.pick(MACS))
            return ip / self.pick([solicitation, advertisement, ICMPv6ND_RS()])
        if isinstance(transport, Raw):
            ip.nh = self.pick([47, 59, 89])
        return ip / transport

    def arp(self):
        return ARP(op=self.pick([1, 2, 3]), hwsrc=self.pick(STATIONS), hwdst=self.pick(STATIONS), psrc=self.pick(IPS[:4]),
                   pdst=self.pick(IPS[:4]))

    def labelled(self):
        depth = self.pick([1, 1, 2, 3, 4])
        payload = self.pick([self.ipv4, self.ipv6])()
        for n in range(depth):
            payload = MPLS(label=self.pick([0, 3, 16, 100, 1048575]), cos=self.pick([0, 5]), s=int(n == 0),
                           ttl=self.pick([0, 1, 2, 64])) / payload
        return payload

    def frame(self, src):
        """In hexadecimal."""
        ether = Ether(src=src, dst=self.pick(MACS))
        tags = self.pick([0] * 15 + [1] * 10 + [2] * 4 + [3])
        for _ in range(tags):
            # Of two tags, OVS loses both where one has no VLAN.
            ether = ether / Dot1Q(vlan=self.pick(VLANS if tags == 1 else VLANS[1:]), prio=self.pick([0, 0, 3, 7]))
        payload = self.pick([self.ipv4] * 8 + [self.ipv6] * 5 + [self.arp] * 2 + [self.labelled] * 3 + [lambda: self.payload(b"w", 50)] * 2)()
        if isinstance(payload, MPLS):
            # OVS loses tags where there are two before labels.
            ether = Ether(src=src, dst=ether.dst) / Dot1Q(vlan=self.pick(VLANS)) if tags > 1 else ether
            tags = min(tags, 1)
            ether.lastlayer().type = self.pick([0x8847, 0x8847, 0x8848])
        elif isinstance(payload, Raw):
            ether.lastlayer().type = self.pick([0x88B5, 0x0600, 0x88CC])
        frame = bytes(ether / payload)
        if tags > 1 and self.chance(.3):
            frame = frame[:12] + b"\x88\xa8" + frame[14:]
        if self.chance(.04):
            frame = frame[:self.random.randrange(14, len(frame) + 1)]
        return (frame.ljust(60, b"\0") if self.chance(.25) else frame).hex()

    # Flows.

    def match(self):
        match = []
        if self.chance(.35):
            match.append(f"in_port={self.pick(PORTS)}")
        if self.chance(.12):
            match.append(self.pick([f"dl_src={self.pick(MACS)}", f"dl_dst={self.pick(MACS)}", "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00"]))
        if self.chance(.25):
            match.append(self.pick([f"dl_vlan={self.pick(VLANS)}", "vlan_tci=0", "vlan_tci=0x1000/0x1000", "vlan_tci=0x1005/0x100f",
                                    f"dl_vlan={self.pick(VLANS)},dl_vlan_pcp={self.pick([0, 3, 7])}"]))
        if self.chance(.12):
            match.append(self.pick(["reg0=1", "reg1=0x2/0xf", "metadata=3", "reg0=0", "xxreg1=5", "pkt_mark=1"]))
        kind = self.pick([lambda: []] + [self.match_ipv4] * 4 + [self.match_ipv6] * 2 + [self.match_arp, self.match_labels, lambda: ["dl_type=0x88b5"]])
        return match + kind()

    def match_ipv4(self):
        kind = self.pick(["ip", "ip", "tcp", "udp", "icmp", "sctp"])
        match = [kind]
        if self.chance(.4):
            match.append(self.pick([f"nw_src={self.pick(IPS)}", f"nw_dst={self.pick(IPS)}", "nw_src=10.0.0.0/16", "nw_dst=10.0.0.0/255.0.255.0",
                                    "nw_dst=10.0.0.2/31"]))
        if self.chance(.25):
            match.append(self.pick([f"nw_ttl={self.pick([0, 1, 64])}", f"nw_tos={self.pick([0, 0xB8])}", f"nw_ecn={self.pick(range(4))}",
                                    f"ip_frag={self.pick(['no', 'yes', 'first', 'later', 'not_later'])}"]))
        if kind in L4 and self.chance(.6):
            match.append(self.pick([f"tp_src={self.pick(L4_PORTS)}", f"tp_dst={self.pick(L4_PORTS)}", "tp_dst=0x50/0xfff0"]))
        if kind == "tcp" and self.chance(.4):
            match.append(self.pick(["tcp_flags=+syn-ack", "tcp_flags=+ack", "tcp_flags=syn"]))
        if kind == "icmp" and self.chance(.5):
            match.append(self.pick(["icmp_type=8", "icmp_type=3,icmp_code=1", "icmp_code=0"]))
        return match

    def match_ipv6(self):
        kind = self.pick(["ipv6", "ipv6", "tcp6", "udp6", "icmp6", "sctp6"])
        match = [kind]
        if self.chance(.4):
            match.append(self.pick([f"ipv6_src={self.pick(IP6)}", f"ipv6_dst={self.pick(IP6)}", "ipv6_dst=fd00::/64", "nw_ttl=1", "nw_frag=no",
                                    f"ipv6_label={self.pick([0, 5])}", "nw_frag=later"]))
        if kind == "icmp6" and self.chance(.6):
            neighbour = "icmp_type={},icmp_code=0"
            match.append(self.pick([neighbour.format(135), neighbour.format(135) + f",nd_target={self.pick(IP6)}",
                                    neighbour.format(136) + f",nd_tll={self.pick(MACS)}", neighbour.format(135) + f",nd_sll={self.pick(MACS)}",
                                    "icmp_type=128"]))
        if kind in L4 and self.chance(.5):
            match.append(f"tp_dst={self.pick(L4_PORTS)}")
        return match

    def match_arp(self):
        more = [f"arp_op={self.pick([1, 2])}", f"arp_spa={self.pick(IPS)}", f"arp_tpa={self.pick(IPS)}", f"arp_sha={self.pick(MACS)}",
                f"arp_tha={self.pick(MACS)}", "arp_tpa=10.0.0.0/24"]
        return ["arp", self.pick(more)] if self.chance(.6) else ["arp"]

    def match_labels(self):
        more = ["mpls_label=16", "mpls_label=100", "mpls_label=0", "mpls_tc=5", "mpls_bos=1", "mpls_bos=0", "mpls_ttl=1"]
        return [self.pick(["mpls", "mpls", "mplsm"])] + ([self.pick(more)] if self.chance(.6) else [])

    def flow(self):
        match, table = self.match(), self.pick([0, 0, 0, 1, 2, 3, 4])
        actions = [self.action(match) for _ in range(self.pick([1, 1, 2, 2, 3, 4, 6]))]
        while sum("push_vlan" in action or "mod_vlan" in action for action in actions) > 1:
            actions.pop()
        kind = self.random.random()
        goto = [f"goto_table:{self.random.randrange(table + 1, 5)}"] if table < 4 else []
        if kind < .2:
            actions += (["write_metadata:3"] if self.chance(.3) else []) + goto
        elif kind < .3:
            written = ",".join(self.action(match, in_set=True) for _ in range(self.random.randrange(1, 4)))
            actions += (["clear_actions"] if self.chance(.3) else []) + [f"write_actions({written})"] + (goto if self.chance(.6) else [])
        return f"table={table},priority={self.random.randrange(1, 20)},{','.join(match + [''])}actions={','.join(actions)}"

    def group(self, number):
        kind = self.pick(["all", "all", "indirect", "ff"])
        buckets = ""
        for _ in range(1 if kind == "indirect" else self.random.randrange(1, 4)):
            watched = f"watch_port={self.pick(PORTS)}," if kind == "ff" else ""
            buckets += f",bucket={watched}actions={','.join(self.bucket_action() for _ in range(self.random.randrange(1, 3)))}"
        return f"group_id={number},type={kind}{buckets}"

    def bucket_action(self):
        while True:
            action = self.action(self.pick([["ip"], []]), depth=2)
            if not any(word in action for word in NOT_IN_BUCKETS):
                return action

    def action(self, match, depth=0, in_set=False):
        """One that a flow with this match can have; inside so many others, or in an action set."""
        is4, is6 = not IPV4.isdisjoint(match), not IPV6.isdisjoint(match)
        l4 = next((L4[field] for field in match if field in L4), None)
        # More tags than can be matched are another matter.
        kinds = [self.output] * 6 + [lambda: self.vlan_action("vlan_tci=0" in match)] * 4 + [self.ether_action] * 2 + [self.register_action] * 3 + [self.push_label]
        kinds += [self.queue_action] if in_set else [self.other_action]
        if not in_set:
            kinds += [self.resubmit] * 3 + [self.stack_action, self.learn, lambda: f"group:{self.pick([1, 2, 3])}"] + [lambda: "NORMAL"] * 2
            kinds += [lambda: self.clone(match, depth)] if depth < 2 else []
            kinds += [lambda: self.ct(is4)] * 2 if is4 or is6 else []
        kinds += [self.ipv4_action] * 5 if is4 else []
        kinds += [self.ipv6_action] * 5 if is6 else []
        kinds += [lambda: "dec_ttl"] * 2 if is4 or is6 else []
        kinds += [lambda: self.l4_action(l4)] * 4 if l4 else []
        kinds += [self.arp_action] * 4 if "arp" in match else []
        kinds += [self.label_action] * 6 if "mpls" in match or "mplsm" in match else []
        chosen = self.pick(kinds)
        return f"output:{self.pick(PORTS)}" if in_set and chosen == self.output else chosen()

    def output(self):
        others = ["in_port", "FLOOD", "ALL", "output:NXM_NX_REG2[0..15]", "LOCAL", f"enqueue:{self.pick(PORTS)}:1"]
        return self.pick([f"output:{self.pick(PORTS)}"] * 6 + others)

    def vlan_action(self, pushes):
        push = ["push_vlan:0x8100", "push_vlan:0x88a8", "push_vlan:0x8100,set_field:4105->vlan_vid", f"mod_vlan_vid:{self.pick(VLANS)}",
                f"mod_vlan_pcp:{self.pick(range(8))}"]
        return self.pick(["pop_vlan", "strip_vlan", f"set_field:{4096 + self.pick(VLANS)}->vlan_vid",
                          f"set_field:{self.pick(range(8))}->vlan_pcp", *(push if pushes else [])])

    def ether_action(self):
        return self.pick([f"set_field:{self.pick(MACS)}->eth_src", f"set_field:{self.pick(MACS)}->eth_dst",
                          "set_field:02:00:00:00:00:00/ff:00:00:00:00:00->eth_src", "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]"])

    def register_action(self):
        return self.pick(["set_field:1->reg0", "set_field:0x2/0xf->reg1", f"set_field:{self.pick(range(8))}->reg2", "set_field:3->metadata",
                          "move:NXM_OF_IN_PORT[]->NXM_NX_REG2[0..15]", "load:5->NXM_NX_XXREG1[0..31]", "set_field:1->pkt_mark",
                          "move:NXM_OF_VLAN_TCI[0..11]->NXM_NX_REG1[0..11]", "load:0->NXM_OF_IN_PORT[]", "load:2->NXM_OF_IN_PORT[]",
                          "set_field:7->tun_id"])

    def queue_action(self):
        return "set_queue:1"

    def other_action(self):
        return self.pick(["note:01.02", "set_queue:1", "pop_queue", "exit", "check_pkt_larger(60)->NXM_NX_REG0[0]", "ct_clear"])

    def resubmit(self):
        table = self.random.randrange(1, 5)
        return self.pick([f"resubmit(,{table})", f"resubmit({self.pick(PORTS)},{table})", f"resubmit(,{table},ct)"])

    def stack_action(self):
        return self.pick(["push:NXM_NX_REG1[],pop:NXM_NX_REG2[]", "push:NXM_OF_ETH_SRC[],pop:NXM_OF_ETH_DST[]", "pop:NXM_NX_REG3[]",
                          "push:NXM_OF_VLAN_TCI[],pop:NXM_OF_VLAN_TCI[]"])

    def learn(self):
        return self.pick(["learn(table=4,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
                          "learn(table=4,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_OF_IN_PORT[]->NXM_NX_REG2[0..15])",
                          "learn(table=4,priority=7,hard_timeout=100,eth_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[],load:1->NXM_NX_REG0[])"])

    def clone(self, match, depth):
        return f"clone({','.join(self.action(match, depth + 1) for _ in range(self.random.randrange(1, 4)))})"

    def ct(self, is4):
        nat = ["nat", "nat(src=10.9.0.1)", "nat(dst=10.9.0.2)", "nat(src=10.9.0.1:2000)"] if is4 else ["nat", "nat(src=fd09::1)"]
        nat = self.pick(["", *nat])
        commit = "nat(" in nat or self.chance(.5)
        executed = self.pick(["", "", "exec(set_field:5->ct_mark)", "exec(set_field:0x1/0x3->ct_label)"]) if commit else ""
        table = self.pick(["", f"table={self.random.randrange(1, 5)}"])
        parts = ["commit" if commit else "", f"zone={self.pick([0, 1])}", table, nat, executed]
        return f"ct({','.join(filter(None, parts))})"

    def ipv4_action(self):
        return self.pick([f"set_field:{self.pick(IPS)}->ip_src", f"set_field:{self.pick(IPS)}->ip_dst", "mod_nw_tos:184", "set_field:3->nw_ecn",
                          "set_field:46->ip_dscp", "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]", "set_field:9->nw_ttl",
                          "set_field:10.0.0.0/255.0.0.0->ip_dst", "load:0x7f->NXM_OF_IP_DST[8..15]"])

    def ipv6_action(self):
        return self.pick([f"set_field:{self.pick(IP6)}->ipv6_src", f"set_field:{self.pick(IP6)}->ipv6_dst", "set_field:7->ipv6_label",
                          "set_field:46->ip_dscp", "set_field:2->nw_ecn", "set_field:9->nw_ttl", "set_field:fd00::/ffff::->ipv6_dst",
                          "move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[]"])

    def l4_action(self, protocol):
        fields = [f"set_field:{self.pick(L4_PORTS)}->{protocol}_{end}" for end in ("src", "dst")]
        moves = [f"move:NXM_OF_{protocol.upper()}_SRC[]->NXM_OF_{protocol.upper()}_DST[]"] if protocol != "sctp" else []
        return self.pick(fields + moves)

    def arp_action(self):
        return self.pick(["set_field:2->arp_op", f"set_field:{self.pick(MACS)}->arp_sha", f"set_field:{self.pick(IPS)}->arp_spa",
                          "move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[]", f"set_field:{self.pick(MACS)}->arp_tha",
                          "move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]", f"set_field:{self.pick(IPS)}->arp_tpa"])

    def label_action(self):
        return self.pick(["pop_mpls:0x0800", "pop_mpls:0x86dd", "pop_mpls:0x8847", "pop_mpls:0x88b5", "set_field:77->mpls_label",
                          "set_field:4->mpls_tc", "dec_mpls_ttl", "set_mpls_ttl(33)", "push_mpls:0x8847", "pop_mpls:0x8847,pop_mpls:0x0800"])

    def push_label(self):
        return self.pick(["push_mpls:0x8847", "push_mpls:0x8848", "push_mpls:0x8847,set_field:55->mpls_label",
                          "push_mpls:0x8847,push_mpls:0x8847,set_field:9->mpls_label"])
