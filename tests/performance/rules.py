#!/usr/bin/env python3
"""What many OpenFlow rules cost: to add, to keep, to dump and to delete.

usage: rules.py [--weir BINARY] [--rules N] [--masks N] [--groups N | --meters N] [--ovs-ofctl]

A switch gets N rules whose addresses have prefixes of different lengths, by prepared flow-mods of OpenFlow 1.3 that are
written to one connection in large pieces. While that goes on, and while they are dumped and deleted, another client asks
for the daemon's version again and again, and a third one has a packet traced, which takes the slow path's look-up. Printed
are, for each step, seconds, the daemon's processor time, how long the others waited, and memory.

With --groups N or --meters N, so many groups or meters are added first, and each rule names one in turn. Then the statistics of all
are asked for, and all are deleted, half of them one by one and the rest at once, and with them the rules.

With --ovs-ofctl, `ovs-ofctl add-flows` of Debian's openvswitch-common adds the same rules, whose own time is most of it.
"""
import argparse
import itertools
import random
import socket
import struct
import subprocess
import threading
import time

from dumps import ROOT, Asker, Daemon, call, connect, waited

HELLO = bytes.fromhex("0400000800000001")
BARRIER = bytes.fromhex("0414000800000002")
STATS = bytes.fromhex("041200380000000300010000000000" "00" "ff000000ffffffffffffffff00000000"
                      "00000000000000000000000000000000" "0001000400000000")
LENGTHS = range(13, 33)


class Tracer(Asker):
    """Has a packet traced again and again."""

    def run(self):
        while not self.stopped:
            began = time.monotonic()
            call(self.peer, "ofproto/trace", "br0", "in_port=p1,ip,nw_src=10.1.2.3,nw_dst=11.2.3.4")
            self.waits.append(time.monotonic() - began)
            time.sleep(0.002)


def prefixes(number, masks):
    """Rules as priority, source and its length, destination and its length: a mask after the other, at random addresses."""
    pairs = [(a, b) for a in reversed(LENGTHS) for b in reversed(LENGTHS)][:masks]
    numbers = random.Random(1)
    seen = set()
    while len(seen) < number:
        priority, (a, b) = numbers.randrange(1, 1000), pairs[len(seen) % len(pairs)]
        rule = (priority, numbers.getrandbits(a) << 32 - a, a, numbers.getrandbits(b) << 32 - b, b)
        if rule not in seen:
            seen.add(rule)
            yield rule


OUTPUT = struct.pack(">HHIHHIH6x", 4, 24, 0, 0, 16, 2, 0)


def flow_mod(priority, src, src_len, dst, dst_len, instructions=OUTPUT):
    mask = lambda length: 0xffffffff << 32 - length & 0xffffffff
    return (struct.pack(">BBHIQQBBHHHIIIHH", 4, 14, 88 + len(instructions), 4, 0, 0, 0, 0, 0, 0, priority,
                        0xffffffff, 0xffffffff, 0xffffffff, 0, 0)
            + struct.pack(">HHIHIIIIII", 1, 34, 0x80000a02, 0x0800, 0x80001708, src, mask(src_len), 0x80001908, dst, mask(dst_len))
            + bytes(6) + instructions)


class Groups:
    """Indirect groups with a bucket each."""
    name, all = "groups", 0xfffffffc
    requests = bytes.fromhex("041200180000000300060000" "00000000" "fffffffc" "00000000"), bytes.fromhex("041200100000000300070000" "00000000")

    def change(self, command, number):
        bucket = b"" if command == DELETE else struct.pack(">HHII4xHHIH6x", 32, 0, 0xffffffff, 0xffffffff, 0, 16, 2, 0)
        return struct.pack(">BBHIHBxI", 4, 15, 16 + len(bucket), 5, command, 2, number) + bucket

    def user(self, number):
        return struct.pack(">HHIHHI", 4, 16, 0, 22, 8, number)


class Meters:
    """Meters with a band each."""
    name, all = "meters", 0xffffffff
    requests = [bytes.fromhex(f"041200180000000300{kind}0000" "00000000" "ffffffff" "00000000") for kind in ("09", "0a")]

    def change(self, command, number):
        band = b"" if command == DELETE else struct.pack(">HHII4x", 1, 16, 1000, 100)
        return struct.pack(">BBHIHHI", 4, 29, 16 + len(band), 5, command, 1, number) + band

    def user(self, number):
        return struct.pack(">HHI", 6, 8, number) + OUTPUT


ADD, DELETE = 0, 2


def delete_all():
    return struct.pack(">BBHIQQBBHHHIIIHHHH4x", 4, 14, 56, 5, 0, 0, 0xff, 3, 0, 0, 0, 0xffffffff, 0xffffffff, 0xffffffff, 0, 0, 1, 4)


class Peer:
    """An OpenFlow connection, whose answers are read by a thread of its own."""

    def __init__(self, path):
        self.socket = connect(path)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self.answered, self.bytes, self.flows, self.errors = threading.Event(), 0, 0, 0
        threading.Thread(target=self.read, daemon=True).start()
        self.socket.sendall(HELLO)

    def read(self):
        data = bytearray()
        while piece := self.socket.recv(1 << 18):
            data += piece
            self.bytes += len(piece)
            at = 0
            while len(data) >= at + 8 and len(data) >= at + (size := struct.unpack_from(">H", data, at + 2)[0]):
                kind = data[at + 1]
                self.errors += kind == 1
                if kind == 21 or kind == 19 and not data[at + 11] & 1:
                    self.answered.set()
                at += size
            del data[:at]

    def ask(self, data):
        """Writes, and waits for the answer to the last message."""
        self.answered.clear()
        self.socket.sendall(data)
        self.answered.wait()


def measure(daemon, name, number, work):
    before = daemon.memory("VmRSS")
    daemon.reset_peak()
    asker, tracer = Asker(daemon.path), Tracer(daemon.path)
    time.sleep(0.1)
    began, cpu = time.monotonic(), daemon.cpu()
    work()
    seconds, cpu = time.monotonic() - began, daemon.cpu() - cpu
    asker, tracer = asker.stop(), tracer.stop()
    print(f"{name:<8} {seconds:.2f} s, {cpu:.2f} s of processor, {number / seconds:,.0f} per second; "
          f"version {waited(asker)}; trace {waited(tracer)}; "
          f"{daemon.memory('VmRSS') - before:+.0f} MB, peak {daemon.memory('VmHWM') - before:+.0f} MB")


def text(priority, src, src_len, dst, dst_len):
    address = lambda value: socket.inet_ntoa(struct.pack(">I", value))
    return f"priority={priority},ip,nw_src={address(src)}/{src_len},nw_dst={address(dst)}/{dst_len},actions=output:2\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--rules", type=int, default=1_000_000)
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--ovs-ofctl", action="store_true")
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--meters", type=int, default=0)
    parser.add_argument("--pid", action="store_true", help="print the daemon's process id, for a profiler")
    args = parser.parse_args()
    rules = list(prefixes(args.rules, args.masks))
    daemon = Daemon(args.weir)
    if args.pid:
        print(daemon.process.pid, flush=True)
    shared, number = (Meters(), args.meters) if args.meters else (Groups(), args.groups)
    try:
        peer = Peer(daemon.dir / "br0.mgmt")
        if number:
            messages = b"".join(shared.change(ADD, n) for n in range(1, number + 1))
            measure(daemon, shared.name, number, lambda: peer.ask(messages + BARRIER))
        empty = daemon.memory("VmRSS")
        if args.ovs_ofctl:
            with open(daemon.dir / "rules", "w", encoding="ascii") as file:
                file.writelines(text(*rule) for rule in rules)
            add = ["ovs-ofctl", "-voff", "-OOpenFlow13", "add-flows", "br0", daemon.dir / "rules"]
            measure(daemon, "add", args.rules, lambda: subprocess.run(add, env=daemon.env, check=True))
        else:
            users = itertools.cycle([shared.user(n) for n in range(1, number + 1)] or [OUTPUT])
            messages = b"".join(flow_mod(*rule, user) for rule, user in zip(rules, users)) + BARRIER
            measure(daemon, "add", args.rules, lambda: peer.ask(messages))
            del messages
        print(f"keep     {(daemon.memory('VmRSS') - empty) * 1e6 / args.rules:.0f} bytes for each rule; {peer.errors} errors")
        measure(daemon, "dump", args.rules, lambda: peer.ask(STATS))
        print(f"         {peer.bytes / 1e6:.0f} MB")
        for request in shared.requests if number else ():
            measure(daemon, f"stats {request[8:10].hex()}", number, lambda: peer.ask(request))
        if number:
            messages = b"".join(shared.change(DELETE, n) for n in range(1, number // 2 + 1))
            measure(daemon, "half", number // 2, lambda: peer.ask(messages + BARRIER))
            measure(daemon, "rest", number - number // 2, lambda: peer.ask(shared.change(DELETE, shared.all) + BARRIER))
        else:
            measure(daemon, "delete", args.rules, lambda: peer.ask(delete_all() + BARRIER))
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
