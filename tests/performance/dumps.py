#!/usr/bin/env python3
"""What long dumps cost, and whom they hold up.

usage: dumps.py [--weir BINARY] [--rules N] [--flows N]

A switch gets N OpenFlow rules and N datapath flows. While one client takes a dump, another asks for the daemon's version
again and again. For each dump, printed is:

    size        MB of the answer
    seconds     from the request to the end of the answer, and the daemon's processor time for it
    first       milliseconds from the request to the answer's first byte
    waited      the longest that the other client waited, in milliseconds, the 99th percentile, and how often it was answered
    memory      MB by which the daemon's peak exceeds what it had before

and then the same of eight clients of the control socket that do not read theirs. Needs Debian's openvswitch-common
(ovs-ofctl adds the rules). The packets that make the flows come in at a dummy port.
"""
import argparse
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[datapath]
flow-limit = 4000000
max-idle-ms = 3600000
[[bridge]]
name = "br0"
local = false
fail_mode = "secure"
""" + "".join(f'[[bridge.port]]\nname = "p{n}"\ntype = "dummy"\n' for n in (1, 2))

HELLO = bytes.fromhex("0100000800000001")
STATS = bytes.fromhex("01100038000000030001" "0000" "003fffff") + bytes(36) + bytes.fromhex("ff00ffff")


class Daemon:
    """`weir run` with a directory of its own."""

    def __init__(self, binary):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-dumps-"))
        (self.dir / "weir.toml").write_text(CONFIG)
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir))
        self.log = open(self.dir / "log", "wb")
        self.process = subprocess.Popen([binary, "run", self.dir / "weir.toml"], env=self.env, stdout=self.log,
                                        stderr=self.log)
        self.path = self.dir / f"weir.{self.process.pid}.ctl"
        while not self.path.exists():
            assert self.process.poll() is None, (self.dir / "log").read_text()
            time.sleep(0.05)

    def memory(self, what):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1000

    def cpu(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def reset_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir)


def connect(path):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(path))
    return peer


def request(method, *params):
    return json.dumps({"method": method, "params": params, "id": 0}).encode()


def call(peer, method, *params):
    """The result of a command with a short one."""
    peer.sendall(request(method, *params))
    data = b""
    while not data.endswith(b"}"):
        data += peer.recv(1 << 16)
    return json.loads(data)["result"]


def add_rules(daemon, number):
    with open(daemon.dir / "rules", "w", encoding="ascii") as file:
        for n in range(number):
            file.write(f"priority={n % 7 + 1},udp,nw_dst=10.{n >> 16}.{n >> 8 & 255}.{n & 255},actions=output:2\n")
    subprocess.run(["ovs-ofctl", "-voff", "add-flows", "br0", daemon.dir / "rules"], env=daemon.env, check=True)
    subprocess.run(["ovs-ofctl", "add-flow", "br0", "priority=0,actions=output:2"], env=daemon.env, check=True)


def add_flows(daemon, number):
    """A flow for each packet."""
    peer = connect(daemon.path)
    call(peer, "upcall/disable-megaflows")
    call(peer, "revalidator/pause")
    for first in range(0, number, 100):
        burst = range(first, min(first + 100, number))
        peer.sendall(b"".join(
            request("netdev-dummy/receive", "p1",
                    "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=11."
                    f"{n >> 16}.{n >> 8 & 255}.{n & 255},dst=9.0.0.2,proto=17,ttl=64),udp(src=1,dst=53)")
            for n in burst))
        answers = 0
        while answers < len(burst):
            answers += peer.recv(1 << 16).count(b"}")
    while f"current {number})" not in (text := call(peer, "upcall/show")):
        print("  waiting for the flows:", text.split("\n")[1].strip())
        time.sleep(1)


class Asker(threading.Thread):
    """Asks for the version again and again."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.peer, self.stopped, self.waits = connect(path), False, []
        self.start()

    def run(self):
        while not self.stopped:
            began = time.monotonic()
            call(self.peer, "version")
            self.waits.append(time.monotonic() - began)
            time.sleep(0.002)

    def stop(self):
        self.stopped = True
        self.join()
        return self.waits


def control(peer, ask):
    peer.sendall(ask)
    quotes = b""
    # The end of a reply is its id, or its result, which ends with a line feed.
    while not quotes.endswith((b'"id":0}', b'\\n"}')):
        data = peer.recv(1 << 18)
        yield len(data)
        quotes = (quotes + data)[-16:]


def openflow(peer, ask):
    peer.sendall(HELLO + ask)
    data, more = b"", True
    while more:
        piece = peer.recv(1 << 18)
        yield len(piece)
        data += piece
        while len(data) >= 4 and len(data) >= (size := struct.unpack_from(">H", data, 2)[0]):
            if data[1] == 17:
                more = struct.unpack_from(">H", data, 10)[0] & 1
            data = data[size:]


def waited(waits):
    waits = sorted(wait * 1e3 for wait in waits)
    return f"waited {waits[-1]:.1f} ms at most, {waits[len(waits) * 99 // 100]:.1f} ms of {len(waits)}"


def measure(daemon, name, path, take, ask):
    before = daemon.memory("VmRSS")
    daemon.reset_peak()
    asker, peer = Asker(daemon.path), connect(path)
    time.sleep(0.1)
    began, cpu, first, size = time.monotonic(), daemon.cpu(), None, 0
    for number in take(peer, ask):
        first = first or time.monotonic() - began
        size += number
    seconds, cpu = time.monotonic() - began, daemon.cpu() - cpu
    waits = asker.stop()
    print(f"{name:<26} {size / 1e6:.1f} MB, {seconds:.2f} s, {cpu:.2f} s of processor, {first * 1e3:.1f} ms first; "
          f"{waited(waits)}; {daemon.memory('VmHWM') - before:.1f} MB more")


def deaf(daemon, name, ask):
    before = daemon.memory("VmRSS")
    daemon.reset_peak()
    asker, peers = Asker(daemon.path), [connect(daemon.path) for _ in range(8)]
    time.sleep(0.1)
    for peer in peers:
        peer.sendall(ask)
    for peer in peers:
        peer.recv(1)
    time.sleep(0.5)
    waits = asker.stop()
    print(f"{name:<26} 8 who do not read: {waited(waits)}; {daemon.memory('VmHWM') - before:.1f} MB more")
    for peer in peers:
        peer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--rules", type=int, default=800_000)
    parser.add_argument("--flows", type=int, default=800_000)
    args = parser.parse_args()
    daemon = Daemon(args.weir)
    try:
        began = time.monotonic()
        add_rules(daemon, args.rules)
        print(f"{args.rules} rules added in {time.monotonic() - began:.1f} s, {daemon.cpu():.1f} s of processor, {daemon.memory('VmRSS'):.0f} MB")
        dumps = [("bridge/dump-flows", daemon.path, control, request("bridge/dump-flows", "br0")),
                 ("OpenFlow flow statistics", daemon.dir / "br0.mgmt", openflow, STATS)]
        for dump in dumps:
            measure(daemon, *dump)
        deaf(daemon, "bridge/dump-flows", dumps[0][3])
        began = time.monotonic()
        add_flows(daemon, args.flows)
        print(f"{args.flows} flows added in {time.monotonic() - began:.1f} s, {daemon.memory('VmRSS'):.0f} MB")
        measure(daemon, "dpctl/dump-flows", daemon.path, control, request("dpctl/dump-flows"))
        measure(daemon, "weir/flows datapath-only", daemon.path, control, request("weir/flows", "datapath-only"))
        deaf(daemon, "dpctl/dump-flows", request("dpctl/dump-flows"))
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
