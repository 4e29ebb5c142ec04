#!/usr/bin/env python3
"""Whether sessions of BFD stay up on a busy switch, and how soon traffic goes another way when one goes down.

usage: bfd.py [--weir BINARY] [--sessions N] [--seconds S] [--changes N] [--failovers N]

Two switches, joined by N veth pairs over AF_PACKET, have a session of BFD on each, at intervals of 100 ms. The first switch's only
worker, which also polls all these ports, forwards what a pcap port replays from memory as fast as it can; a client of its bridge adds and
deletes flows of the table that these packets are looked up in, so many per second. Printed are how often sessions went down in S seconds, by
both switches, and the share of the control packets' time that was left of the detection time at worst (from bfd/show, sampled).

Then a host of the first switch sends a datagram each millisecond through a group of type fast failover, whose first bucket watches the first
session. The second switch is stopped (SIGSTOP), and the time is printed until the first datagram leaves by the second bucket, and how many were
lost: no more than the detection time, 300 ms, is what is wanted. That is done N times.

Two cores: the worker has the last one for itself, and everything else shares the first, the second switch's worker included, which sleeps when it
has nothing to do. Needs root.
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from changes import OpenFlow, Background, flow_mod, source
from traces import udp, write

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.net import Net, run  # noqa: E402
from lib.wait import until  # noqa: E402

BFD = "bfd = { enable = true, min_rx = 100, min_tx = 100 }"
WATCHED = """
[workers]
cores = [{core}]
[[bridge]]
name = "br0"
local = false
fail-mode = "secure"
flows = ["table=0,priority=1,in_port=1,udp,actions=output:2"]
[[bridge.port]]
name = "sink"
type = "null"
ofport = 2
[[bridge.port]]
name = "source"
type = "pcap"
ofport = 1
options = {{ rx_pcap = "{trace}", loop = "true" }}
[[bridge.port]]
name = "{client}"
ofport = 3
[[bridge.port]]
name = "{other}"
ofport = 4
{ports}
"""
PEER = """
[workers]
cores = [0]
[[bridge]]
name = "br1"
local = false
fail-mode = "secure"
{ports}
"""
#: The first session's port in the first switch.
FIRST = 10
#: Sends a datagram each millisecond, numbered, and says when it began.
SENDER = """
import socket, struct, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
due, n = time.monotonic(), 0
while True:
    s.send(bytes.fromhex("0200000000bb0200000000aa88b5") + struct.pack(">Q", n) + bytes(42))
    n, due = n + 1, due + 0.001
    time.sleep(max(0, due - time.monotonic()))
"""


class Switch:
    """`weir run` in a directory of its own."""

    def __init__(self, binary, config):
        self.binary, self.dir = binary, Path(tempfile.mkdtemp(prefix="weir-bfd-"))
        (self.dir / "weir.toml").write_text(config)
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir))
        self.log = open(self.dir / "log", "wb")
        self.process = subprocess.Popen([binary, "run", self.dir / "weir.toml"], env=self.env, stdout=self.log, stderr=self.log)
        self.socket = self.dir / f"weir.{self.process.pid}.ctl"
        until(lambda: self.socket.exists() or self.process.poll() is not None, 30, "the daemon")
        assert self.process.poll() is None, (self.dir / "log").read_text()

    def appctl(self, *words):
        return run("ovs-appctl", "-t", self.socket, *words, env=self.env).stdout

    def up(self):
        return self.appctl("bfd/show").count("Local Session State: up")

    def packets(self):
        text = run(self.binary, "stats", "--json", env=self.env).stdout
        return int(re.search(r'"packets": ?(\d+)', text)[1])

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir)


def ports(names, first=None):
    number = (lambda n: f"ofport = {first + n}\n") if first else lambda n: ""
    return "".join(f'[[bridge.port]]\nname = "{name}"\n{number(n)}{BFD}\n' for n, name in enumerate(names))


def downs(switch):
    """Of each session, why it was down last, where it has been down since it came up first."""
    text = switch.appctl("bfd/show")
    return [why for why in re.findall(r"Local Diagnostic: (.*)", text) if why != "No Diagnostic"]


def steady(watched, peer, args):
    """Whether sessions stay up."""
    bridge, each = OpenFlow(watched.dir / "br0.mgmt"), max(1, args.changes // 20)
    sent, due, began, worst = 0, time.monotonic(), time.monotonic(), 1.0
    before, looked = watched.packets(), 0
    while time.monotonic() < began + args.seconds:
        changes = b"".join(flow_mod(0, source(n // 2), 4 if n & 1 else 0) for n in range(sent, sent + each))
        bridge.barrier(changes)
        sent += each
        if sent // args.changes > looked:
            looked = sent // args.changes
            for switch in (watched, peer):
                text = switch.appctl("bfd/show")
                left = [int(ms) for ms in re.findall(r"Detect Time: now \+(\d+)ms", text)]
                worst = min([worst, *(ms / 300 for ms in left)])
        due += each / args.changes
        time.sleep(max(0, due - time.monotonic()))
    took = time.monotonic() - began
    rate = (watched.packets() - before) / took / 1e6
    print(f"{args.sessions} sessions, {took:.0f} s, {sent / took:.0f} changes per second, {rate:.2f} Mpps: "
          f"up {watched.up()} and {peer.up()}; were down {len(downs(watched))} and {len(downs(peer))}; "
          f"least of the detection time left {100 * worst:.0f} %", flush=True)


def failover(net, watched, peer, other, first):
    """Seconds from the stop of the peer to the first frame by the other way, and frames that were lost."""
    seen = other.sniff("-tt", "-Q", "in", "ether", "proto", "0x88b5")
    lines = tempfile.TemporaryFile("w+")
    wire = subprocess.Popen(["tcpdump", "-l", "--immediate-mode", "-Q", "out", "-ttnei", first, "ether", "proto", "0x88b5"],
                            stdout=lines, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    stopped = time.time()
    peer.process.send_signal(signal.SIGSTOP)
    until(lambda: seen.seen(), 10, "a frame by the other way")
    time.sleep(0.2)
    wire.terminate()
    wire.wait()
    lines.seek(0)
    lost = sum(float(line.split()[0]) > stopped for line in lines if "0x88b5" in line)
    lines.close()
    at = float(seen.seen().split()[0])
    seen.proc.terminate()
    peer.process.send_signal(signal.SIGCONT)
    until(lambda: watched.up() == peer.up() == peer.count, 60, "all sessions again")
    return at - stopped, lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--failovers", type=int, default=10)
    args = parser.parse_args()
    net, switches, background = Net(), [], None
    pairs = [(f"{net.tag}l{n}", f"{net.tag}r{n}") for n in range(args.sessions)]
    try:
        client, other = net.host(mac="02:00:00:00:00:aa"), net.host()
        for left, right in pairs:
            run("ip", "link", "add", left, "type", "veth", "peer", "name", right)
            run("ip", "link", "set", left, "up")
            run("ip", "link", "set", right, "up")
        trace = write(Path(tempfile.gettempdir()) / "weir-bfd.pcap", (udp(0x0A000000 + n, 1024) for n in range(1000)))
        core = max(os.sched_getaffinity(0))
        lefts, rights = zip(*pairs)
        watched = Switch(args.weir, WATCHED.format(core=core, trace=trace, client=client.port, other=other.port,
                                                   ports=ports(lefts, FIRST)))
        switches.append(watched)
        peer = Switch(args.weir, PEER.format(ports=ports(rights)))
        peer.count = args.sessions
        switches.append(peer)
        until(lambda: watched.up() == peer.up() == args.sessions, 120, "all sessions")
        if args.seconds:
            steady(watched, peer, args)
        if args.failovers:
            ofctl = ["ovs-ofctl", "-O", "OpenFlow13"]
            bridge = watched.dir / "br0.mgmt"
            run(*ofctl, "add-group", bridge,
                f"group_id=1,type=ff,bucket=watch_port:{FIRST},output:{FIRST},bucket=watch_port:4,output:4")
            run(*ofctl, "add-flow", bridge, "priority=9,in_port=3,dl_type=0x88b5,actions=group:1")
            client.start("python3", "-c", SENDER)
            if args.changes:
                changer = OpenFlow(bridge)

                def change(n):
                    changer.barrier(flow_mod(0, source(n // 2), 4 if n & 1 else 0))
                    time.sleep(1 / args.changes)

                background = Background(change)
            results = [failover(net, watched, peer, other, pairs[0][0]) for _ in range(args.failovers)]
            times, lost = [1000 * result[0] for result in results], [result[1] for result in results]
            print(f"{args.failovers} failovers, detection time 300 ms: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms; "
                  f"frames lost, one each ms: median {statistics.median(lost):.0f}, most {max(lost)}", flush=True)
    finally:
        if background:
            background.stop()
        for switch in switches:
            switch.close()
        for left, _ in pairs:
            run("ip", "link", "del", left, check=False)
        net.close()


if __name__ == "__main__":
    main()
