#!/usr/bin/env python3
"""A burst of new flows on an idle switch: frames at line rate, each with a source address of its own, under NORMAL.

usage: burst.py [--weir BINARY] [--ovs] [--ports pcap|dpdk] [--frames N] [--rounds N] [--core C]

Each round runs in a fresh daemon, as those of cliffs.py do, and needs what it needs. Printed are, for each round, the
addresses that were learnt, and the frames that were sent to the other port.
"""
import argparse
import re
import shutil
import tempfile
import time
from pathlib import Path

from cliffs import OVS, ROOT, Switch, bridge
from traces import TARGET, udp, write


def trace(folder, frames):
    """`frames` frames, each from another address."""
    def frame(i):
        plain = udp(0x0A000000 | i, 1024 + i % 50000, target=TARGET)
        return plain[:6] + b"\x02\x10" + i.to_bytes(4, "big") + plain[12:]

    return write(folder / f"burst-{frames}.pcap", (frame(i) for i in range(frames)))


def add_source(switch, path):
    """A port that receives the frames once."""
    if switch.dpdk:
        what = ["type=dpdk", f"options:dpdk-devargs=net_pcap1,rx_pcap={path}"]
    else:
        # A daemon opens capture files of its run directory only.
        capture = shutil.copy(path, switch.dir / "burst.pcap")
        what = ["type=pcap", f"options:rx_pcap={capture}"]
    switch.vsctl("add-port", switch.bridge, "p1", "--", "set", "Interface", "p1", *what, "ofport_request=1")


def run(command, dpdk, core, path, frames):
    with Switch(command, dpdk, 1, core, {}) as switch:
        bridge(switch, ["actions=normal"])
        switch.vsctl("set", "bridge", switch.bridge, f"other_config:mac-table-size={2 * frames}")
        switch.add_port(2, None)
        add_source(switch, path)
        end, before = time.monotonic() + 10, None
        while time.monotonic() < end:
            now = switch.received(1), switch.count(2, "tx")
            if now == before and now[0] >= frames:
                break
            before = now
            time.sleep(0.3)
        learnt = len(re.findall(r"^ +1 ", switch.appctl("fdb/show", switch.bridge), re.MULTILINE))
        return switch.received(1), learnt, switch.count(2, "tx")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--ovs", action="store_true")
    parser.add_argument("--ports", choices=["pcap", "dpdk"], default="pcap")
    parser.add_argument("--frames", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=1)
    args = parser.parse_args()
    path = trace(Path(tempfile.gettempdir()), args.frames)
    switches = [("Weir", [args.weir, "vswitchd"], args.ports == "dpdk")]
    if args.ovs:
        switches.append(("OVS", [OVS], True))
    for _ in range(args.rounds):
        for name, command, dpdk in switches:
            received, learnt, sent = run(command, dpdk, args.core, path, args.frames)
            print(f"{name}: {received} received, {learnt} addresses learnt, {sent} sent", flush=True)


if __name__ == "__main__":
    main()
