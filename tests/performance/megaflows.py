#!/usr/bin/env python3
"""How many megaflows a switch makes of traffic through thousands of prefix and port rules.

usage: megaflows.py [--weir BINARY] [--ovs BINARY] [--rules N] [--packets N] [--popular N] [--seed N] [--shapes acl,fw,ipc]

One table gets N rules of a shape that is common in packet classification (an access list, a firewall, and the two mixed
as in IP chains): nested prefixes of both addresses, protocols, and ports that are exact, any, or ranges made of masks, at
random priorities. Then come packets, most of which are in the box of a rule that was drawn at random, as ClassBench makes
them; with --popular N, nine of ten of these rules are among N. Printed are the megaflows that there are afterwards, and how many
masks they have: of Weir as it is, and with other_config:megaflow-mask-limit so high that it limits nothing, which Open vSwitch has
nothing like. With --ovs, the same rules and packets go through Open vSwitch's own ovs-vswitchd; then is said, too, of how many packets
the flows are the same in both, bit for bit. All is drawn from the seed. Needs Debian's openvswitch-common and openvswitch-switch
(ovsdb-server, ovs-vsctl).
"""
import argparse
import collections
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
TCP, UDP, ICMP = 6, 17, 1

# Of each shape: how likely prefix lengths are, of source and destination; protocols (None: any); kinds of source and
# destination ports.
SHAPES = {
    "acl": dict(
        src={0: 20, 8: 3, 16: 8, 20: 6, 22: 5, 24: 20, 27: 8, 28: 6, 30: 4, 32: 20},
        dst={16: 3, 20: 4, 23: 5, 24: 20, 26: 5, 28: 10, 29: 8, 30: 10, 31: 5, 32: 30},
        proto={TCP: 70, UDP: 18, ICMP: 5, None: 7},
        sport={"any": 100},
        dport={"any": 20, "exact": 60, "range": 12, "high": 8},
    ),
    "fw": dict(
        src={0: 45, 8: 5, 14: 4, 16: 10, 20: 4, 24: 12, 28: 5, 32: 15},
        dst={0: 20, 8: 4, 16: 8, 21: 5, 24: 15, 27: 8, 30: 10, 32: 30},
        proto={TCP: 55, UDP: 25, ICMP: 5, None: 15},
        sport={"any": 70, "exact": 15, "high": 10, "range": 5},
        dport={"any": 35, "exact": 40, "range": 10, "high": 10, "low": 5},
    ),
    "ipc": dict(
        src={0: 15, 8: 4, 12: 3, 16: 10, 19: 4, 24: 22, 26: 5, 29: 7, 32: 30},
        dst={0: 12, 8: 4, 13: 3, 16: 10, 22: 6, 24: 20, 25: 4, 28: 8, 31: 5, 32: 28},
        proto={TCP: 50, UDP: 30, ICMP: 8, None: 12},
        sport={"any": 75, "exact": 15, "range": 3, "high": 7},
        dport={"any": 40, "exact": 45, "range": 8, "high": 7},
    ),
}
# Packets that are given before they are waited for.
BURST = 50
PORTS = [20, 21, 22, 23, 25, 53, 67, 80, 110, 123, 135, 139, 143, 161, 389, 443, 445, 514, 993, 1433, 1521, 1723, 3306, 3389,
         5060, 5432, 5631, 6789, 7070, 8080, 8443, 9100]

Rule = collections.namedtuple("Rule", "priority src src_len dst dst_len proto sport dport")


def drawn(numbers, weights):
    return numbers.choices(list(weights), weights.values())[0]


def cut(value, length):
    return value >> (32 - length) << (32 - length) if length else 0


class Prefixes:
    """Prefixes of which most lie in one that was drawn before, so that they nest."""

    def __init__(self, numbers):
        self.numbers, self.known = numbers, []

    def draw(self, length):
        value = self.numbers.getrandbits(32)
        above = self.numbers.choice(self.known) if self.known and self.numbers.random() < 0.7 else None
        if above and above[1] < length:
            value = above[0] | value & 0xffffffff >> above[1]
        elif above:
            value = above[0]
        prefix = cut(value, length)
        if length:
            self.known.append((prefix, length))
        return prefix


def masks_of(low, high):
    """A range as values and masks."""
    while low <= high:
        size = low & -low or 1 << 16
        while low + size - 1 > high:
            size >>= 1
        yield low, 0xffff & ~(size - 1)
        low += size


def ports(numbers, kind):
    if kind == "any":
        return [(0, 0)]
    if kind == "exact":
        return [(numbers.choice(PORTS), 0xffff)]
    if kind == "high":
        return list(masks_of(1024, 65535))
    if kind == "low":
        return list(masks_of(0, 1023))
    low = numbers.choice(PORTS)
    return list(masks_of(low, min(low + numbers.randrange(1, 64), 65535)))


def rules_of(shape, number, numbers):
    sources, destinations, rules = Prefixes(numbers), Prefixes(numbers), []
    while len(rules) < number:
        src_len, dst_len, proto = drawn(numbers, shape["src"]), drawn(numbers, shape["dst"]), drawn(numbers, shape["proto"])
        src, dst, priority = sources.draw(src_len), destinations.draw(dst_len), numbers.randrange(1, 65535)
        sports = dports = [(0, 0)]
        if proto in (TCP, UDP):
            sports, dports = ports(numbers, drawn(numbers, shape["sport"])), ports(numbers, drawn(numbers, shape["dport"]))
        rules += [Rule(priority, src, src_len, dst, dst_len, proto, sport, dport) for sport in sports for dport in dports]
    return rules[:number]


def text(rule, out_port):
    address = lambda value, length: f"{socket.inet_ntoa(struct.pack('>I', value))}/{length}"
    parts = [f"priority={rule.priority}", "ip" if rule.proto is None else f"ip,nw_proto={rule.proto}"]
    parts += [f"nw_src={address(rule.src, rule.src_len)}"] if rule.src_len else []
    parts += [f"nw_dst={address(rule.dst, rule.dst_len)}"] if rule.dst_len else []
    parts += [f"tp_src={rule.sport[0]:#x}/{rule.sport[1]:#x}"] if rule.sport[1] else []
    parts += [f"tp_dst={rule.dport[0]:#x}/{rule.dport[1]:#x}"] if rule.dport[1] else []
    return ",".join(parts) + f",actions=output:{out_port}\n"


def frame(rule, numbers):
    """A packet that matches a rule, or none in particular."""
    fill = lambda value, mask, bits: value | numbers.getrandbits(bits) & ~mask & (1 << bits) - 1
    if rule is None:
        rule = Rule(0, 0, 0, 0, 0, None, (0, 0), (0, 0))
    src = fill(rule.src, 0xffffffff << 32 - rule.src_len & 0xffffffff, 32)
    dst = fill(rule.dst, 0xffffffff << 32 - rule.dst_len & 0xffffffff, 32)
    proto = rule.proto or numbers.choice([TCP, UDP, ICMP])
    sport, dport = fill(*rule.sport, 16), fill(*rule.dport, 16)
    if proto == TCP:
        l4 = struct.pack(">HHIIBBHHH", sport, dport, 0, 0, 0x50, 0x10, 1024, 0, 0)
    elif proto == UDP:
        l4 = struct.pack(">HHHH", sport, dport, 8, 0)
    else:
        l4 = struct.pack(">BBHI", 8, 0, 0, 0)
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(l4), 0, 0, 64, proto, 0, src, dst)
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return (bytes.fromhex("020000000002" "020000000001" "0800") + ip + l4).ljust(60, b"\0").hex()


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


class Switch:
    """A daemon with a database and a dummy datapath of its own."""

    def __init__(self, command, settings=()):
        self.dir = Path(tempfile.mkdtemp(prefix="megaflows-"))
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), OVS_LOGDIR=str(self.dir), OVS_DBDIR=str(self.dir))
        database = f"unix:{self.dir}/db.sock"
        self.started = []
        subprocess.run(["ovsdb-tool", "create", self.dir / "conf.db", SCHEMA], check=True)
        self.start("ovsdb-server", f"--remote=p{database}", self.dir / "conf.db", f"--unixctl={self.dir}/db.ctl")
        while not (self.dir / "db.sock").exists():
            time.sleep(0.05)
        self.path = self.dir / "vswitchd.ctl"
        self.vsctl("--no-wait", "init", "--", "set", "open", ".", "other_config:max-idle=3600000", *settings)
        self.start(*command, database, "--enable-dummy", f"--unixctl={self.path}", "--log-file=/dev/null", "-voff")
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
                   *(word for n in (1, 2, 3) for word in ("--", "add-port", "br0", f"p{n}", "--", "set", "interface", f"p{n}",
                                                          "type=dummy", f"ofport_request={n}")))
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.connect(str(self.path))

    def start(self, *command):
        self.started.append(subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def vsctl(self, *words):
        subprocess.run(["ovs-vsctl", f"--db=unix:{self.dir}/db.sock", "-t60", *words], env=self.env, check=True)

    def call(self, method, *params):
        self.peer.sendall(json.dumps({"method": method, "params": params, "id": 0}).encode())
        decoder, data = json.JSONDecoder(), ""
        while True:
            data += self.peer.recv(1 << 20).decode()
            try:
                answer = decoder.decode(data)
            except json.JSONDecodeError:
                continue
            assert answer["error"] is None, answer
            return answer["result"]

    def megaflows(self, rules, packets):
        """Datapath flows as `dpctl/dump-flows` has them, after the packets."""
        subprocess.run(["ovs-ofctl", "del-flows", "br0"], env=self.env, check=True)
        (self.dir / "rules").write_text("".join(rules))
        subprocess.run(["ovs-ofctl", "--bundle", "add-flows", "br0", self.dir / "rules"], env=self.env, check=True)
        self.call("revalidator/wait")
        self.call("dpctl/del-flows")
        before = self.looked_up()
        for first in range(0, len(packets), BURST):
            for packet in packets[first:first + BURST]:
                self.call("netdev-dummy/receive", "p1", packet)
            # A dummy port's queue of Open vSwitch holds a hundred packets; the others would be lost without a word.
            while self.looked_up() - before < min(first + BURST, len(packets)):
                time.sleep(0.001)
        return [line for line in self.call("dpctl/dump-flows", "-m").splitlines() if "eth_type(0x0800)" in line]

    def looked_up(self):
        """How many packets the datapath has found a flow for, or has asked for one."""
        lookups = re.search(r"lookups: hit:(\d+) missed:(\d+) lost:(\d+)", self.call("dpctl/show"))
        hit, missed, lost = map(int, lookups.groups())
        assert not lost, lookups
        return hit + missed

    def close(self):
        self.peer.close()
        for process in reversed(self.started):
            process.terminate()
            process.wait()
        shutil.rmtree(self.dir)


FLOW = re.compile(r"ipv4\(src=([^/,]+)/?([^,]*),dst=([^/,]+)/?([^,]*),proto=(\d+)/?(\w*),.*?frag=no\)(.*?), packets:.*actions:([^,]*)")
L4 = re.compile(r"(?:tcp|udp|icmp)\(\w+=(\d+)/?(\w*),\w+=(\d+)/?(\w*)\)")


def described(flow):
    """Of a flow, the packet that it was made for, and what it matches of it and does."""
    src, src_mask, dst, dst_mask, proto, proto_mask, l4, actions = FLOW.search(flow).groups()
    first, first_mask, second, second_mask = L4.search(l4).groups()
    return (src, dst, proto, first, second), (src_mask, dst_mask, proto_mask, first_mask, second_mask, actions)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir", type=Path)
    parser.add_argument("--ovs", type=Path, help="Open vSwitch's ovs-vswitchd, for comparison")
    parser.add_argument("--rules", type=int, default=5000)
    parser.add_argument("--packets", type=int, default=10_000)
    parser.add_argument("--popular", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    args = parser.parse_args()
    weir = [args.weir.resolve(), "vswitchd"]
    switches = {"weir": (weir, []), "weir without limit": (weir, ["other_config:megaflow-mask-limit=16384"])}
    if args.ovs:
        switches["ovs"] = ([args.ovs.resolve()], [])
    print(f"{args.rules} rules, {args.packets} packets, seed {args.seed}")
    for name in args.shapes.split(","):
        numbers = random.Random(f"{name} {args.seed}")
        rules = rules_of(SHAPES[name], args.rules, numbers)
        masks = len({(r.src_len, r.dst_len, r.proto, r.sport[1], r.dport[1]) for r in rules})
        lines = [text(rule, numbers.choice([2, 3])) for rule in rules]
        popular = numbers.sample(rules, args.popular) if args.popular else rules
        drawn_rule = lambda: numbers.choice(popular if numbers.random() < 0.9 else rules) if numbers.random() < 0.9 else None
        packets = [frame(drawn_rule(), numbers) for _ in range(args.packets)]
        print(f"{name}: rules of {masks} masks")
        flows = {}
        for switch, (command, settings) in switches.items():
            running = Switch(command, settings)
            try:
                flows[switch] = dict(map(described, running.megaflows(lines, packets)))
            finally:
                running.close()
            kinds = len({matched[:5] for matched in flows[switch].values()})
            print(f"    {switch:<18} {len(flows[switch]):>6} megaflows of {kinds} masks", flush=True)
        if args.ovs:
            both = flows["weir without limit"].keys() & flows["ovs"].keys()
            same = sum(flows["weir without limit"][packet] == flows["ovs"][packet] for packet in both)
            print(f"    {same} of {len(both)} packets have the same flow in both")


if __name__ == "__main__":
    main()
