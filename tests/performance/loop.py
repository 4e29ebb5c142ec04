#!/usr/bin/env python3
"""The whole loop: frames replayed from memory by a pcap port, one worker, to a null port.

usage: loop.py [--weir BINARY] [--seconds S] [--rounds N]

Each scenario runs N times, interleaved with the others. Printed are medians: packets per second, the
worker's busy TSC cycles per packet (everything from receive to send, the replay's copy included), and the
share of packets found in each tier.
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MASKED = "in_port=1,udp,nw_dst=198.18.0.0/15,actions=output:2"
PER_SOURCE = [f"in_port=1,udp,nw_src=10.0.0.{i},nw_dst=198.18.0.0/{15 + i},actions=output:2" for i in range(8)]
# name: (flows in the trace, rules)
SCENARIOS = {
    "1 flow, one port rule": (1, ["in_port=1,actions=output:2"]),
    "1 flow": (1, [MASKED]),
    "1 000 flows": (1_000, [MASKED]),
    "10 000 flows": (10_000, [MASKED]),
    "100 000 flows": (100_000, [MASKED]),
    "10 000 flows, 9 rules of different masks": (10_000, [*PER_SOURCE, "priority=1,in_port=1,actions=output:2"]),
}


def frame(flow):
    """60 bytes: Ethernet, IPv4 10.x.x.x -> 198.18.0.1, UDP to port 53."""
    source = 0x0A000000 | flow & 0xFFFFFF
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0x4000, 64, 17, 0, source, 0xC6120001)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    return bytes.fromhex("0200000000020200000000010800") + ip + struct.pack("!HHHH", 1024 + flow % 50000, 53, 26, 0) + bytes(18)


def capture(path, flows):
    order = list(range(flows)) * max(1, 1024 // flows)
    random.Random(7).shuffle(order)
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for flow in order:
            data = frame(flow)
            f.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def measure(weir, folder, name, seconds, more=""):
    """A scenario; `more` are lines of the configuration below its bridge."""
    flows, rules = SCENARIOS[name]
    trace = folder / f"{flows}.pcap"
    if not trace.exists():
        capture(trace, flows)
    core = max(os.sched_getaffinity(0))
    config = folder / "weir.toml"
    config.write_text(f"""
[workers]
cores = [{core}]
[[bridge]]
name = "br0"
local = false
fail_mode = "secure"
flows = {json.dumps(rules)}
{more}[[bridge.port]]
name = "sink"
type = "null"
ofport = 2
[[bridge.port]]
name = "source"
type = "pcap"
ofport = 1
options = {{ {OPTIONS.format(trace=trace)} }}
""")
    env = dict(os.environ, OVS_RUNDIR=str(folder))
    daemon = subprocess.Popen([weir, "run", config], env=env, stderr=subprocess.PIPE, text=True)
    try:
        stats = lambda: json.loads(subprocess.run([weir, "stats", "--json"], env=env, capture_output=True, text=True, check=True).stdout)
        end = time.monotonic() + 20
        while subprocess.run([weir, "stats", "--json"], env=env, capture_output=True).returncode:
            assert daemon.poll() is None and time.monotonic() < end, daemon.communicate()[1]
            time.sleep(0.05)
        time.sleep(2)
        before, start = stats()["workers"][0], time.monotonic()
        time.sleep(seconds)
        after, took = stats()["workers"][0], time.monotonic() - start
    finally:
        daemon.terminate()
        daemon.wait(20)
    return {key: after[key] - before[key] for key in after if isinstance(after[key], int)} | {"seconds": took}


OPTIONS = 'rx_pcap = "{trace}", loop = "true"'


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    results = {name: [] for name in SCENARIOS}
    with tempfile.TemporaryDirectory(prefix="weir-loop-") as folder:
        for _ in range(a.rounds):
            for name in SCENARIOS:
                results[name].append(measure(a.weir, Path(folder), name, a.seconds))
    print("\n| pcap to null, one worker | Mpps | cycles per packet | exact hits | megaflow hits | misses |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, rounds in results.items():
        median = lambda f: statistics.median(f(r) for r in rounds)
        share = lambda key: f"{100 * median(lambda r: r[key] / max(1, r['packets'])):.1f} %"
        print(f"| {name} | {median(lambda r: r['packets'] / r['seconds'] / 1e6):.2f} "
              f"| {median(lambda r: r['busy_cycles'] / max(1, r['packets'])):.0f} "
              f"| {share('exact_hits')} | {share('megaflow_hits')} | {share('misses')} |", flush=True)


if __name__ == "__main__":
    main()
