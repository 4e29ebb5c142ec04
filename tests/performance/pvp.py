#!/usr/bin/env python3
"""Guest to guest through the switch: frames of 64 bytes of one flow between two vhost-user ports.

usage: pvp.py [--weir BINARY] [--rounds N] [--seconds S] [--scenarios a,b,...]

dpdk-testpmd stands for the guests (virtio-user); the flows are in_port=1,actions=2 and in_port=2,actions=1.
Weir and Debian's OVS-DPDK take turns, N times, with the same commands. Printed are medians: frames that the
polling thread received per second, the same for each second that it had its core to itself, its cycles for
each (pmd-stats-show, which count too while others have the core), how much of its time it was busy, how much
of the core it had, and the ratio of the switches.

    virt-to-virt    Each of two ports sends and takes (flowgen): every frame is copied out of one guest and
                    into the other.
    virt-to-nocopy  One port sends (txonly), the other takes nothing: its ring is full, every frame is dropped
                    there. What is left is the cost of everything but the second copy.
    thread          A sender (txonly) in one process, and another that swaps addresses and sends back
                    (macswap): both of the above at once, as in the mailing list's thread.

Two cores: the polling thread has the last one for itself, everything that stands for guests shares the first.
In the first two scenarios that is a single thread, so that guest and switch run at the same time. In `thread`
the two processes take turns on their core for milliseconds, in which the ring of the one that waits is full;
its figures say less.

Needs root, 2 GiB of huge pages (reserved and returned), dpdk and openvswitch-switch-dpdk. Believe ratios.
"""
import argparse
import os
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.dpdk import HugePages, Testpmd, missing  # noqa: E402
from lib.vswitch import Switch, switches  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))


def guest(stack, sockets, *args, numbers=None):
    """A testpmd whose threads run on the first core, with a device for each socket."""
    vdevs = [f"net_virtio_user{n},path={s},server=1,queue_size=1024" for n, s in enumerate(sockets)]
    lcores = [f"--lcores=0@{CORES[0]},1@{CORES[0]}"]
    # The ports of one process are joined to themselves: each stream sends where it receives.
    tested = Testpmd(vdevs, cores=None, eal=lcores, args=["--port-topology=loop", "--nb-cores=1", "--txd=1024",
                                                          "--rxd=1024", *args])
    stack.callback(tested.close)
    return tested


def scenario(name, command, seconds):
    with ExitStack() as stack:
        switch = Switch(command, CORES[-1], CORES[0])
        stack.callback(switch.close)
        sockets = [switch.vhost(f"vhost{n}", n) for n in (1, 2)]
        switch.ofctl("add-flow", "in_port=1,actions=2")
        switch.ofctl("add-flow", "in_port=2,actions=1")
        if name == "thread":
            guests = [guest(stack, sockets[:1], "--forward-mode=txonly"), guest(stack, sockets[1:], "--forward-mode=macswap")]
        elif name == "virt-to-virt":
            guests = [guest(stack, sockets, "--forward-mode=flowgen", "--flowgen-flows=1")]
        else:
            guests = [guest(stack, sockets, "--forward-mode=txonly")]
            guests[0].run("set portlist 0")
        for n in (1, 2):
            switch.link(f"vhost{n}")
        for started in reversed(guests):
            started.run("start")
        time.sleep(2)
        result = switch.measure(seconds)
        for started in guests:
            started.run("stop")
        return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--scenarios", default="virt-to-virt,virt-to-nocopy,thread")
    args = p.parse_args()
    # A run that is told to end takes everything down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if problem := missing():
        sys.exit(problem)
    pages = HugePages(1024)
    if pages.missing:
        sys.exit(pages.missing)
    try:
        commands = switches(args.weir)
        results = {}
        for _ in range(args.rounds):
            for name in args.scenarios.split(","):
                for switch, command in commands.items():
                    results.setdefault((name, switch), []).append(scenario(name, command, args.seconds))
    finally:
        pages.close()
    print("| scenario | switch | packets/s | per CPU second | cycles/packet | busy | had the core | packets/s, ratio "
          "| per CPU second, ratio | cycles, ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in args.scenarios.split(","):
        median = {s: {k: statistics.median(r[k] for r in results[name, s]) for k in results[name, s][0]}
                  for s in commands}
        for switch, m in median.items():
            base = median.get("ovs", m)
            ratio = {k: m[k] / base[k] for k in ("pps", "per_cpu", "cycles")}
            print(f"| {name} | {switch} | {m['pps'] / 1e6:.2f} M | {m['per_cpu'] / 1e6:.2f} M | {m['cycles']:.0f} "
                  f"| {m['busy']:.0f} % | {m['share']:.0f} % | {ratio['pps']:.2f} | {ratio['per_cpu']:.2f} "
                  f"| {ratio['cycles']:.2f} |")


if __name__ == "__main__":
    main()
