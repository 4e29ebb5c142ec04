#!/usr/bin/env python3
"""What it costs that MAC addresses are learnt, moved and forgotten.

usage: macs.py [--weir BINARY]... [--ovs] [--ports pcap|dpdk] [--scenarios a,b] [--rounds N] [--seconds S] [--core C]
               [--traces DIR] [--list]

DPDK needs what cliffs.py needs for it, and the floor dpdk-testpmd (dpdk-dev), too.

One bridge of NORMAL and one worker. Each scenario runs alone in a fresh daemon with a real ovsdb-server; several
binaries are interleaved. Printed are medians.

 sender   port 1 sends from more addresses (20 000) than the table of 8192 holds, to one that nobody knows: cycles of the
          worker's time for each packet (as in cliffs.py), with --ports dpdk also what of them is over the floor, which is
          what dpdk-testpmd takes between the same devices; flows at the end, and addresses that were evicted each second.
          The frames are flooded: to port 2, and to LOCAL, which is down
 sender10k, sender100k, known, known4k
          the same with so many addresses; to a static address; the same from 4 000, which all have room
 new      200 000 addresses and room for 50 000 flows: when an address comes again, its flow has gone
 victim   beside `sender`, port 3 sends 100 flows between known addresses: its packets for each second of the worker's time,
          and in percent of what they are where the table has room for all addresses; how many of its 100 addresses are
          still known at the end
 victim-new, victim-vlans, victim-changes
          beside new addresses, beside the same on 4 000 VLANs, and beside them while a client adds and deletes rules; in
          percent of what it has beside a port with 1 000 addresses, at the same load
 victim-moves, victim-one-moves
          beside two ports that send from the same 1 000 addresses, or the same one: each packet may be a move; in percent
          of what it has beside two ports with 1 000 addresses each
 burst    4 000 frames at once, each from a new address, on an idle switch: addresses learnt
 learn    a million frames, each from a new address, again and again, and room for 300 000: addresses learnt each second
          until the table is full
 age      200 000 addresses are not used any more: how long until all have aged that age together, time of all threads but
          the worker for it, the longest that a request on the control socket waits, and what a victim has meanwhile in
          percent of what it had before
 moves    100 000 flows with their own sources, all active. Each hundredth sends to one of 64 static addresses, which move
          between two ports over the control socket, a thousand times a second: time of all threads but the worker for
          each move, flows that were looked at for each (Weir tells), what is forwarded meanwhile in percent of what it
          was before; and how many moves one client gets done in a second
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import cliffs  # noqa: E402
import traces  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KNOWN, UNKNOWN = "02:fe:00:00:00:01", "02:fe:00:00:00:02"
SENDERS, MOVING, PACE = 20_000, 64, 1000


def station(n):
    """The address of station n."""
    return bytes([2, 0]) + struct.pack("!I", n)


def frame(source, target):
    """A small frame of a protocol that nobody knows: nothing but its addresses and its port is matched."""
    return target + source + b"\x88\xb5" + bytes(46)


def address(text):
    return bytes.fromhex(text.replace(":", ""))


def colons(mac):
    return ":".join(f"{byte:02x}" for byte in mac)


def sources(folder, count, target, repeat=1, first=0):
    frames = (frame(station(first + n), address(target)) for _ in range(repeat) for n in traces.shuffled(count))
    return traces.write(folder / f"macs-{first}-{count}-{repeat}-{target.replace(':', '')}.pcap", frames)


def mixed(folder, count):
    """`count` sources, most of which send to the known address, and the others to one of those that move."""
    target = lambda n: address(KNOWN) if n % 100 else station((1 << 24) + n // 100 % MOVING)  # noqa: E731
    frames = (frame(station(n), target(n)) for n in traces.shuffled(count))
    return traces.write(folder / f"macs-moves-{count}.pcap", frames)


class Control:
    """A connection to the control socket that stays open: JSON-RPC, as ovs-appctl speaks it."""

    def __init__(self, path):
        self.socket, self.rest = socket.socket(socket.AF_UNIX), ""
        self.socket.connect(str(path))

    def __call__(self, method, *params):
        self.socket.sendall(json.dumps({"id": 0, "method": method, "params": list(params)}).encode())
        while True:
            try:
                reply, end = json.JSONDecoder().raw_decode(self.rest)
            except ValueError:
                self.rest += self.socket.recv(1 << 16).decode()
                continue
            self.rest = self.rest[end:].lstrip()
            if reply["error"]:
                raise RuntimeError(reply["error"])
            return reply["result"]


class Bed(cliffs.Switch):
    """A switch with one bridge of NORMAL, whose table has room for so many addresses."""

    def __init__(self, command, args, dpdk, room=8192, flow_limit=1_000_000):
        super().__init__(command, dpdk, 1, args.core, {"flow-limit": str(flow_limit), "max-idle": "100000"})
        try:
            cliffs.bridge(self, ["actions=NORMAL"])
            self.vsctl("set", "bridge", self.bridge, f"other_config:mac-table-size={room}")
            self.control = Control(self.dir / "vswitchd.ctl")
        except BaseException:
            self.__exit__()
            raise

    def macs(self, what):
        return int(re.search(rf"{what}\D*: *(\d+)", self.control("fdb/stats-show", self.bridge))[1])

    def replay_once(self, number, trace):
        """A port that replays `trace` once."""
        name = f"p{number}"
        if self.dpdk:
            what = ["type=dpdk", f"options:dpdk-devargs=net_pcap{number},rx_pcap={trace}"]
        else:
            # A daemon opens capture files of its run directory only.
            what = ["type=pcap", f"options:rx_pcap={shutil.copy(trace, self.dir / f'{name}.pcap')}"]
        self.vsctl("add-port", self.bridge, name, "--", "set", "Interface", name, *what, f"ofport_request={number}")

    def other_time(self):
        """Seconds that all threads but the worker have run."""
        return sum(seconds for _, seconds in self.thread_times()) - self.worker_time()


def sender(count, target=UNKNOWN, flow_limit=1_000_000):
    def run(command, args, dpdk):
        trace = sources(args.traces, count, target)
        with Bed(command, args, dpdk, flow_limit=flow_limit) as bed:
            bed.add_port(2, None)
            if target == KNOWN:
                bed.control("fdb/add", bed.bridge, "p2", "0", KNOWN)
            bed.add_port(1, trace)
            cliffs.settle(bed, 1)
            evicted, other, sent = bed.macs("evicted"), bed.other_time(), bed.count(2, "tx")
            counts, used, took = cliffs.measure(bed, [1], args.seconds)
            sent = bed.count(2, "tx") - sent
            result = {"cycles": used * args.hz / counts[0], "Mpps": counts[0] / took / 1e6, "sent": sent / took / 1e6,
                      "flows": bed.flows(), "evicted": (bed.macs("evicted") - evicted) / took,
                      "others": (bed.other_time() - other) / took, "MiB": bed.memory()}
        if dpdk:
            result["over the floor"] = result["cycles"] - floor(trace, args)
        return result

    return run


FLOORS = {}


def floor(trace, args):
    """Cycles for each packet that the devices alone cost: dpdk-testpmd forwards between the same two."""
    if trace not in FLOORS:
        command = ["timeout", str(args.seconds + 7), "dpdk-testpmd", "-l", f"0,{args.core}", "--in-memory", "--no-pci",
                   "--vdev", f"net_pcap0,rx_pcap={trace},infinite_rx=1", "--vdev", "net_null1,size=60", "--",
                   "--forward-mode=io", "--stats-period", "1", "--nb-cores=1", "--total-num-mbufs=420000"]
        out = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        rates = [rate for rate in map(int, re.findall(r"Tx-pps:\s+(\d+)", out)) if rate]
        if not rates:
            raise RuntimeError(f"dpdk-testpmd forwards nothing: {out[-2000:]}")
        FLOORS[trace] = args.hz / statistics.median(rates)
    return FLOORS[trace]


def tagged(folder, count):
    """`count` sources, each on another of 4 000 VLANs than the one before."""
    def one(n):
        plain = frame(station(n), address(UNKNOWN))
        return plain[:12] + struct.pack("!HH", 0x8100, 1 + n % 4000) + plain[12:]

    return traces.write(folder / f"macs-vlans-{count}.pcap", (one(n) for n in traces.shuffled(count)))


def plain(count, target=UNKNOWN):
    return lambda folder: sources(folder, count, target, max(1, SENDERS // count))


def victim(trace, ports=(1,), changes=False, flow_limit=1_000_000, few=True):
    """Port 3 beside ports that send `trace`, and beside the same ports where each has few addresses, and its own; or, unless
    `few`, where the table has room for all."""
    def run(command, args, dpdk):
        rates, result = [], {}
        for hostile in (False, True):
            room = 8192 if hostile or few else 400_000
            with Bed(command, args, dpdk, room, flow_limit) as bed:
                bed.add_port(2, None)
                bed.control("fdb/add", bed.bridge, "p2", "0", KNOWN)
                bed.add_port(3, sources(args.traces, 100, KNOWN, 100, 3 << 20))
                for number in ports:
                    benign = sources(args.traces, 1000, UNKNOWN, 20, number << 20)
                    bed.add_port(number, trace(args.traces) if hostile or not few else benign)
                cliffs.settle(bed, 3)
                moved, other, sent = bed.macs("moved"), bed.other_time(), bed.count(2, "tx")
                with Changes(bed) if hostile and changes else contextlib.nullcontext():
                    counts, used, took = cliffs.measure(bed, [3, *ports], args.seconds)
                rates.append(counts[0] / used / 1e6)
                if hostile:
                    own = bed.control("fdb/show", bed.bridge)
                    result = {"Mpps": rates[1], "percent": 100 * rates[1] / rates[0],
                              "others' Mpps": sum(counts[1:]) / took / 1e6, "sent": (bed.count(2, "tx") - sent) / took / 1e6,
                              "moved": (bed.macs("moved") - moved) / took, "others": (bed.other_time() - other) / took,
                              "flows": bed.flows(), "MiB": bed.memory(),
                              "kept": len(re.findall(r"^ +3 ", own, re.MULTILINE))}
        return result

    return run


class Changes:
    """A client that adds and deletes a rule again and again, meanwhile."""

    def __init__(self, bed):
        self.bed, self.done = bed, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.done.is_set():
            for rule in ("add-flow", "priority=9,udp,tp_dst=7,actions=drop"), ("del-flows", "udp,tp_dst=7"):
                self.bed.ofctl(*rule)
            time.sleep(0.01)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def burst(command, args, dpdk):
    with Bed(command, args, dpdk) as bed:
        bed.add_port(2, None)
        bed.replay_once(1, sources(args.traces, 4000, UNKNOWN))
        time.sleep(2)
        return {"learnt": bed.macs("learned")}


def learn(command, args, dpdk):
    room = 300_000
    with Bed(command, args, dpdk, room) as bed:
        bed.add_port(2, None)
        trace = sources(args.traces, 1_000_000, UNKNOWN)
        bed.add_port(1, trace)
        start, first = time.monotonic(), bed.macs("learned")
        while bed.macs("learned") < room * 0.99 and time.monotonic() < start + 20:
            time.sleep(0.002)
        return {"per second": (bed.macs("learned") - first) / (time.monotonic() - start)}


def age(command, args, dpdk):
    with Bed(command, args, dpdk, 400_000) as bed:
        bed.vsctl("set", "bridge", bed.bridge, "other_config:mac-aging-time=15")
        bed.add_port(2, None)
        bed.control("fdb/add", bed.bridge, "p2", "0", KNOWN)
        bed.add_port(3, sources(args.traces, 100, KNOWN, 100, 3 << 20))
        bed.replay_once(1, sources(args.traces, 200_000, UNKNOWN, 4))
        entries = lambda: bed.macs("Current/maximum")  # noqa: E731
        cliffs.settle(bed, 3)
        (before,), used, _ = cliffs.measure(bed, [3], 1)
        before, most, start = before / used, entries(), time.monotonic()
        while entries() > 0.99 * most and time.monotonic() < start + 30:
            time.sleep(0.01)
        others, used, count, start = bed.other_time(), bed.worker_time(), bed.received(3), time.monotonic()
        waits = []
        while (left := entries()) > 200 and time.monotonic() < start + 10:
            asked = time.monotonic()
            bed.control("version")
            waits.append(time.monotonic() - asked)
        took = time.monotonic() - start
        rate = (bed.received(3) - count) / (bed.worker_time() - used)
        return {"aged": most - left, "seconds": took, "others' seconds": bed.other_time() - others,
                "ms waited": 1000 * max(waits, default=0), "percent": 100 * rate / before}


def moves(command, args, dpdk):
    with Bed(command, args, dpdk, 200_000) as bed:
        bed.add_port(2, None)
        bed.add_port(4, None)
        bed.control("fdb/add", bed.bridge, "p2", "0", KNOWN)
        bed.add_port(1, mixed(args.traces, 100_000))
        cliffs.settle(bed, 1)
        (before,), _, took = cliffs.measure(bed, [1], args.seconds)
        before /= took
        looked_at = lambda: looked_at_for_macs(bed)  # noqa: E731
        idle = bed.other_time()
        time.sleep(args.seconds)
        idle = (bed.other_time() - idle) / args.seconds
        def move(n):
            port = f"p{2 + n // MOVING % 2 * 2}"
            bed.control("fdb/add", bed.bridge, port, "0", colons(station((1 << 24) + n % MOVING)))

        first, used, count, start, moved = looked_at(), bed.other_time(), bed.received(1), time.monotonic(), 0
        while (now := time.monotonic()) < start + args.seconds:
            while moved < (now - start) * PACE:
                move(moved)
                moved += 1
            time.sleep(0.001)
        took = time.monotonic() - start
        count = (bed.received(1) - count) / took
        used = bed.other_time() - used - idle * took
        seen, start, most = looked_at() - first, time.monotonic(), 0
        while time.monotonic() < start + args.seconds:
            move(moved + most)
            most += 1
        most /= time.monotonic() - start
        return {"ms each": 1000 * used / moved, "looked at": seen / moved, "flows": bed.flows(),
                "percent": 100 * count / before, "most per second": most}


def looked_at_for_macs(bed):
    try:
        return int(bed.control("coverage/read-counter", "mac_learning_revalidated"))
    except RuntimeError:
        return 0


SCENARIOS = {
    "sender": sender(SENDERS), "sender10k": sender(10_000), "sender100k": sender(100_000), "known": sender(SENDERS, KNOWN),
    "known4k": sender(4000, KNOWN), "new": sender(200_000, flow_limit=50_000),
    "victim": victim(plain(SENDERS), few=False), "victim-new": victim(plain(150_000), flow_limit=50_000),
    "victim-vlans": victim(lambda folder: tagged(folder, 150_000), flow_limit=50_000),
    "victim-changes": victim(plain(150_000), changes=True, flow_limit=50_000),
    "victim-moves": victim(plain(1000), ports=(1, 4)), "victim-one-moves": victim(plain(1), ports=(1, 4)),
    "burst": burst, "learn": learn, "age": age, "moves": moves,
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", action="append", help="a binary; may be given several times")
    p.add_argument("--ovs", action="store_true", help="measure OVS with DPDK, too")
    p.add_argument("--ports", choices=["pcap", "dpdk"], default="pcap", help="Weir's ports")
    p.add_argument("--scenarios", default=",".join(SCENARIOS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    p.add_argument("--traces", type=Path, default=Path("/var/tmp/weir-traces"))
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list:
        print("\n".join(SCENARIOS))
        return
    if unknown := sorted(set(args.scenarios.split(",")) - set(SCENARIOS)):
        p.error(f"no such scenario: {', '.join(unknown)}; --list names them")
    args.traces.mkdir(parents=True, exist_ok=True)
    args.hz = cliffs.tsc_hz()
    binaries = args.weir or [ROOT / "target/release/weir"]
    daemons = {str(weir): ([weir, "vswitchd"], args.ports == "dpdk") for weir in binaries}
    if args.ovs:
        daemons["ovs"] = ([cliffs.OVS], True)
    results = {}
    for _ in range(args.rounds):
        for name in args.scenarios.split(","):
            for daemon, (command, dpdk) in daemons.items():
                one = SCENARIOS[name](command, args, dpdk)
                results.setdefault((name, daemon), []).append(one)
                print(name, daemon, {k: round(v, 3) for k, v in one.items()}, file=sys.stderr, flush=True)
    for (name, daemon), rounds in results.items():
        median = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        print(f"| {name} | {Path(daemon).name} | " + ", ".join(f"{value:.4g} {key}" for key, value in median.items()) + " |")


if __name__ == "__main__":
    main()
