#!/usr/bin/env python3
"""What it costs to look at the switch, and whom that holds up.

usage: looks.py [--weir BINARY] [--rules N] [--ports N] [--seconds S] [--rounds N] [--parts rules,ports,sampling]

rules     a switch has N OpenFlow rules of a hundred masks (rules.py). `weir explain` is asked about a packet, and `weir diff` what a file with one
          rule would change, and 100 000 of its rules with other actions, while a thousand datapath flows, one for each packet, are there
ports     a switch has N dummy ports. `weir metrics`, which is what /metrics says, and `weir top --once --json`
sampling  one worker forwards what a pcap port replays from memory: cycles for each packet without sFlow, and with it at one of 1 000 and
          of 64 packets, to a collector that is not there

For requests, printed are seconds until the answer, the daemon's processor time, the longest that another client of the control
socket waited for the version meanwhile, the size of the answer, and by how much the daemon's peak of memory exceeds what it had before.
"""
import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import dumps
import loop
import rules
from dumps import ROOT, Asker, Daemon, waited


#: Most changes that are looked at together.
MOST = 100_000


def ask(daemon, name, *command):
    """Runs a command of the client, and prints what it cost."""
    before = daemon.memory("VmRSS")
    daemon.reset_peak()
    asker = Asker(daemon.path)
    time.sleep(0.1)
    began, cpu = time.monotonic(), daemon.cpu()
    said = subprocess.run(command, env=daemon.env, capture_output=True, check=False)
    seconds, cpu = time.monotonic() - began, daemon.cpu() - cpu
    print(f"{name:<28} {seconds:.3f} s, {cpu:.2f} s of processor; version {waited(asker.stop())}; {len(said.stdout) / 1000:,.1f} kB, exit {said.returncode}; "
          f"peak {daemon.memory('VmHWM') - before:+.0f} MB", flush=True)
    print("    " + (said.stdout or said.stderr).decode().partition("\n")[0][:150], flush=True)


def with_rules(weir, number):
    daemon = Daemon(weir)
    try:
        peer = rules.Peer(daemon.dir / "br0.mgmt")
        all_rules = list(rules.prefixes(number, 100))
        peer.ask(b"".join(rules.flow_mod(*rule) for rule in all_rules) + rules.BARRIER)
        dumps.add_flows(daemon, 1000)
        one = daemon.dir / "one"
        one.write_text("priority=2000,ip,nw_src=11.0.0.0/24,actions=output:2\n")
        rest = daemon.dir / "rest"
        with open(rest, "w", encoding="ascii") as file:
            file.writelines(rules.text(*rule).replace("output:2", "drop") for rule in all_rules[:MOST])
        packet = "in_port=p1,ip,nw_src=11.0.0.3,nw_dst=9.0.0.2"
        print(f"{number:,} rules")
        ask(daemon, "explain", weir, "explain", "br0", packet)
        ask(daemon, "diff, one rule", weir, "diff", "br0", "--flows", one)
        ask(daemon, f"diff, {MOST:,} rules", weir, "diff", "br0", "--flows", rest)
    finally:
        daemon.close()


def with_ports(weir, number):
    config = dumps.CONFIG
    dumps.CONFIG += "".join(f'[[bridge.port]]\nname = "d{n}"\ntype = "dummy"\n' for n in range(number - 2))
    daemon = Daemon(weir)
    dumps.CONFIG = config
    try:
        print(f"{number:,} ports")
        ask(daemon, "metrics", weir, "metrics")
        ask(daemon, "top", weir, "top", "--once", "--json")
    finally:
        daemon.close()


def sampling(weir, seconds, rounds):
    """Cycles for each packet, without sFlow and with it."""
    settings = {"none": "", "1 of 1 000": "sampling = 1000", "1 of 64": "sampling = 64"}
    found = {(flows, name): [] for flows in ("1 flow", "10 000 flows") for name in settings}
    with tempfile.TemporaryDirectory(prefix="weir-looks-") as folder:
        for _ in range(rounds):
            for (flows, name), results in found.items():
                lines = f'[bridge.sflow]\ntargets = ["127.0.0.1:6343"]\n{settings[name]}\n' if settings[name] else ""
                run = loop.measure(weir, Path(folder), flows, seconds, more=lines)
                results.append(run["busy_cycles"] / max(1, run["packets"]))
    for (flows, name), results in found.items():
        print(f"sFlow {name:<12} {flows:<14} {statistics.median(results):.1f} cycles for each packet", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--rules", type=int, default=1_000_000)
    parser.add_argument("--ports", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="rules,ports,sampling")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if "rules" in parts:
        with_rules(args.weir, args.rules)
    if "ports" in parts:
        with_ports(args.weir, args.ports)
    if "sampling" in parts:
        sampling(args.weir, args.seconds, args.rounds)


if __name__ == "__main__":
    main()
