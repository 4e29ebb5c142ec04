"""Random learning bridges, from a seed: ports with every VLAN mode, mirrors, multicast snooping, protected ports, and frames of stations, of
members of groups and of routers. What is left out is as in `scenario`."""

import random
from ipaddress import ip_address

from lib.scenario import PORTS, STATIONS
from scapy.contrib.igmp import IGMP
from scapy.contrib.igmpv3 import IGMPv3, IGMPv3gr, IGMPv3mq, IGMPv3mr
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import ICMPv6MLDone, ICMPv6MLQuery, ICMPv6MLReport, IPv6, IPv6ExtHdrHopByHop, RouterAlert
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

VLANS = [1, 5, 10]
GROUPS = ["239.1.1.1", "239.2.2.2"]
GROUPS6 = ["ff05::1:3", "ff0e::1:7"]
#: Of these, OVS learns members, but all get what is sent to them.
LOCAL, LOCAL6 = "224.0.0.5", "ff02::1"


class LearningScenario:
    """One for each seed."""

    def __init__(self, seed, packets=50):
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.snoops = self.chance(.5)
        self.ports = [self.port() for _ in PORTS]
        self.bridge = ["other_config:mac-aging-time=3600"]
        self.bridge += ["flood_vlans=10"] if self.chance(.15) else []
        self.bridge += ["other_config:forward-bpdu=true"] if self.chance(.2) else []
        if self.snoops:
            self.bridge += ["mcast_snooping_enable=true", "other_config:mcast-snooping-aging-time=3600",
                            f"other_config:mcast-snooping-disable-flood-unregistered={self.pick(['true', 'false'])}"]
        self.mirrors = [self.mirror(number) for number in range(self.pick([0, 0, 1, 1, 2, 3]))]
        self.groups, self.flows = [], ["priority=0,actions=NORMAL"]
        if self.chance(.4):
            self.flows.append(f"priority=5,in_port={self.pick(PORTS)},actions=" + self.pick(
                ["mod_vlan_vid:5,NORMAL", "pop_vlan,NORMAL", "output:2,NORMAL", "NORMAL,output:3", "resubmit(2,1),NORMAL", "FLOOD", "ALL", "in_port,NORMAL",
                 "push_vlan:0x88a8,set_field:4101->vlan_vid,NORMAL", "output:1,output:2", "mod_dl_src:02:00:00:00:00:07,NORMAL"]))
            self.flows.append("table=1,actions=NORMAL")
        homes = dict(zip(STATIONS, self.random.sample(PORTS, 3), strict=True))
        self.packets = []
        for _ in range(packets):
            src = self.pick(STATIONS)
            # A tag before two is more than OVS keeps. Packets to routers and members it strips of two tags for an access port, which it does
            # not send others with two.
            through = "vlan_mode=dot1q-tunnel" in self.ports[homes[src] - 1]
            most = 2 - through - self.snoops
            again = self.packets and self.chance(.25)
            self.packets.append(self.pick(self.packets) if again else (homes[src], self.frame(src, most, through)))
        self.packets *= 2

    def chance(self, share):
        return self.random.random() < share

    def port(self):
        mode = self.pick(["none", "none", "none", "access", "trunk", "native-tagged", "native-untagged", "dot1q-tunnel"])
        settings = {"none": [], "access": [f"tag={self.pick(VLANS)}"], "trunk": ["trunks=" + self.pick(["5,10", "1", "0,5"])],
                    "dot1q-tunnel": [f"tag={self.pick(VLANS)}", "vlan_mode=dot1q-tunnel"]}.get(
                        mode, [f"tag={self.pick(VLANS)}", f"vlan_mode={mode}"])
        if mode == "dot1q-tunnel":
            settings += self.pick([[], ["cvlans=5,10"], ["other_config:qinq-ethtype=802.1q"]])
        if mode.startswith("native"):
            settings += self.pick([[], ["trunks=5,10"]])
        if self.chance(.15):
            settings.append("other_config:priority-tags=" + self.pick(["true", "always", "if-nonzero"]))
        if self.chance(.15):
            settings.append("protected=true")
        # Where OVS floods to such a port, it does not look whether the port has the VLAN.
        if self.snoops and not settings and self.chance(.3):
            settings.append(self.pick(["other_config:mcast-snooping-flood=true", "other_config:mcast-snooping-flood-reports=true"]))
        return settings

    def mirror(self, number):
        """Arguments of ovs-vsctl; ports are by name."""
        ports = lambda most: ",".join(f"@p{n}" for n in self.random.sample(PORTS, self.pick([1, most])))  # noqa: E731
        words = [f"name=m{number}"]
        kind = self.pick(["all", "ports", "ports", "vlan"])
        words += ["select_all=true"] if kind == "all" else []
        if kind == "ports":
            # The copy is as the first of its ports sends the packet, and which one that is depends on the switch.
            sides = [("select_src_port", 2), ("select_dst_port", 1)]
            words += [f"{column}={ports(most)}" for column, most in sides if self.chance(.7)] or [f"select_src_port={ports(2)}"]
        if kind == "vlan" or self.chance(.2):
            words.append(f"select_vlan={self.pick(VLANS)}")
        targets = [n for n, settings in zip(PORTS, self.ports, strict=True) if "mcast-snooping" not in str(settings)]
        words.append(f"output_port=@p{self.pick(targets)}" if targets and self.chance(.7) else "output_vlan=7")
        words += [f"snaplen={self.pick([64, 100])}"] if self.chance(.2) else []
        return words

    # Frames.

    def frame(self, src, most, through):
        """In hexadecimal, with so many tags at most; `through` a tunnel of VLANs, where OVS loses one without VLAN."""
        kinds = [self.unicast] * 4 + [self.data4, self.data6] + ([self.igmp] * 3 + [self.mld] * 2 if self.snoops else [self.igmp])
        dst, payload = self.pick(kinds)()
        ether = Ether(src=src, dst=dst)
        tags = min(most, self.pick([0, 0, 0, 1, 1, 2]))
        for _ in range(tags):
            # Of two tags, OVS loses both where one has no VLAN.
            ether = ether / Dot1Q(vlan=self.pick([0, *VLANS, *VLANS] if tags == 1 and not through else VLANS), prio=self.pick([0, 0, 3]))
        frame = bytes(ether / payload)
        if tags == 2 and self.chance(.5):
            frame = frame[:12] + b"\x88\xa8" + frame[14:]
        return (frame.ljust(60, b"\0") if self.chance(.3) else frame).hex()

    def unicast(self):
        dst = self.pick([*STATIONS, *STATIONS, "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:99", "01:80:c2:00:00:0e", "01:80:c2:00:00:00"])
        return dst, IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=self.pick([2, 3])) / Raw(b"u" * self.random.randrange(80))

    @staticmethod
    def mac_of(group):
        if ":" in group:
            return "33:33:" + ":".join(f"{byte:02x}" for byte in ip_address(group).packed[12:])
        a = [int(part) for part in group.split(".")]
        return f"01:00:5e:{a[1] & 127:02x}:{a[2]:02x}:{a[3]:02x}"

    def data4(self):
        group = self.pick([*GROUPS, LOCAL])
        return self.mac_of(group), IP(src="10.0.0.1", dst=group, ttl=5) / UDP(sport=1, dport=9) / Raw(b"d" * 20)

    def data6(self):
        group = self.pick([*GROUPS6, LOCAL6])
        return self.mac_of(group), IPv6(src="fd00::1", dst=group) / UDP(sport=1, dport=9) / Raw(b"d" * 20)

    def igmp(self):
        group = self.pick(GROUPS)
        kind = self.pick(["report", "report", "report1", "leave", "query", "v3", "v3", "query3"])
        ip = IP(src="10.0.0.1", dst=group, ttl=1, options=[IPOption_Router_Alert()] if self.chance(.7) else [])
        if kind == "query":
            ip.dst = "224.0.0.1"
            return self.mac_of("224.0.0.1"), ip / IGMP(type=0x11, gaddr="0.0.0.0", mrcode=20)
        if kind == "query3":
            ip.dst = "224.0.0.1"
            return self.mac_of("224.0.0.1"), ip / IGMPv3(type=0x11, mrcode=20) / IGMPv3mq(gaddr="0.0.0.0")
        if kind == "leave":
            ip.dst = "224.0.0.2"
            return self.mac_of("224.0.0.2"), ip / IGMP(type=0x17, gaddr=group)
        if kind == "v3":
            ip.dst = "224.0.0.22"
            records = [IGMPv3gr(rtype=self.pick([1, 2, 3, 4, 5, 6]), maddr=self.pick(GROUPS), srcaddrs=self.pick([[], ["10.9.9.9"]]))
                       for _ in range(self.pick([1, 1, 2]))]
            return self.mac_of("224.0.0.22"), ip / IGMPv3(type=0x22) / IGMPv3mr(records=records)
        return self.mac_of(group), ip / IGMP(type=0x16 if kind == "report" else 0x12, gaddr=group)

    def mld(self):
        group = self.pick(GROUPS6)
        message = self.pick([ICMPv6MLReport, ICMPv6MLReport, ICMPv6MLDone, ICMPv6MLQuery])
        to = {ICMPv6MLReport: group, ICMPv6MLDone: "ff02::2", ICMPv6MLQuery: "ff02::1"}[message]
        body = message(mladdr="::" if message is ICMPv6MLQuery else group)
        return self.mac_of(to), IPv6(src="fe80::1", dst=to, hlim=1) / IPv6ExtHdrHopByHop(options=[RouterAlert()]) / body
