#!/usr/bin/env python3
"""What tx-flush-interval does for guests, in three tables.

usage: batching.py [--weir BINARY] [--rounds N] [--seconds S] [--tables 1,2,3] [--flows 8,100,...]

1. Frames of 64 bytes between two vhost-user ports, by the number of flows in the traffic (flowgen of
   dpdk-testpmd, which varies addresses) and by the interval (0: none, and 50 µs): packets per second, and cycles for each. One megaflow that matches the
   protocol serves all of them, so that what changes with their number is how well caches of flows work.
2. A guest's kernel takes TCP from a namespace (iperf3, two connections) and answers ping -f, at intervals of 0,
   50 and 100 µs: throughput, the polling thread's cycles for each packet, how much of its time it was busy,
   packets for each burst that it sent, and the mean round trip.
3. As table 1, over a bonded uplink: a bridge with the guest's port and a patch port, and behind the patch a
   bridge whose other port is a bond (balance-tcp) of two vhost-user ports, which stand for NICs; what is behind them
   bonds them, too, and speaks LACP. Both ends send all they can.

Weir and Debian's OVS-DPDK take turns, N times, with the same commands; printed are medians. The namespace is
connected by AF_PACKET (type=system) with its offloads off: with them on, TCP does not pass OVS at all.

Two cores: the polling thread has the last one for itself. testpmd, or the virtual machine and iperf3, share the
first: where they are slower than the switch, throughput is theirs, and the switch's part is in the cycles and
in how busy it was. Without KVM the machine is emulated, which makes its interrupts dearer than real ones.

Needs root, 2 GiB of huge pages, dpdk, openvswitch-switch-dpdk, iperf3, qemu-system-x86, scripts/guest-kernel.sh.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.dpdk import HugePages, Testpmd, missing  # noqa: E402
from lib.guest import Guest  # noqa: E402
from lib.guest import missing as guest_missing  # noqa: E402
from lib.net import Net  # noqa: E402
from lib.vswitch import Switch, switches  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
FLOWS = [8, 100, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 500000]
MEMBERS = ["nic1", "nic2"]
HOST, GUEST = "10.204.0.1", "10.204.0.2"


def started(stack, command, interval):
    switch = Switch(command, CORES[-1], CORES[0], tx_flush_interval=str(interval))
    stack.callback(switch.close)
    return switch


def two_guests(switch):
    """Guests that send to each other. Returns their sockets by the names of their ports."""
    sockets = {f"vhost{n}": switch.vhost(f"vhost{n}", n) for n in (1, 2)}
    switch.ofctl("add-flow", "in_port=1,udp,actions=2")
    switch.ofctl("add-flow", "in_port=2,udp,actions=1")
    return sockets


def bonded_uplink(switch):
    """A guest behind a bonded uplink. Returns the sockets of the guest and of the uplink's members."""
    uplink, sockets = switch.uplink, {"vhost1": switch.vhost("vhost1", 1)}
    for bridge, port, peer in [(switch.bridge, "outwards", "inwards"), (uplink, "inwards", "outwards")]:
        if bridge == uplink:
            switch.vsctl("add-br", uplink, "--", "set", "bridge", uplink, "datapath_type=netdev", "fail-mode=secure")
        switch.vsctl("add-port", bridge, port, "--", "set", "interface", port, "type=patch", f"options:peer={peer}",
                     "ofport_request=2")
    switch.ofctl("add-flow", "in_port=1,udp,actions=2")
    switch.ofctl("add-flow", "in_port=2,udp,actions=1")
    sockets.update({name: switch.dir / f"{name}.sock" for name in MEMBERS})
    settings = [("type=dpdkvhostuserclient", f"options:vhost-server-path={sockets[name]}") for name in MEMBERS]
    numbered = zip(MEMBERS, settings, (3, 4))
    # Without a partner that speaks LACP, balance-tcp drops everything.
    switch.vsctl("add-bond", uplink, "bond", *MEMBERS, "bond_mode=balance-tcp", "lacp=active",
                 *(word for name, values, number in numbered
                   for word in ("--", "set", "interface", name, *values, f"ofport_request={number}")))
    # A bond is sent to by NORMAL. What floods does not go to the device of the bridge. All ports send from one address,
    # which would move from port to port if NORMAL saw it come from the members, too.
    switch.ofctl_of(uplink, "mod-port", uplink, "no-flood")
    switch.ofctl_of(uplink, "add-flow", "udp,actions=NORMAL")
    for number in (3, 4):
        switch.ofctl_of(uplink, "add-flow", f"priority=40000,in_port={number},udp,actions=2")
    return sockets


def wait_for_lacp(switch):
    """Waits until frames are sent to both members."""
    deadline = time.monotonic() + 20
    while (shown := switch.appctl("bond/show", "bond")).count("  hash ") < 2 or shown.count(": enabled") < len(MEMBERS):
        if time.monotonic() > deadline:
            sys.exit(f"the bond does not come up:\n{shown}")
        time.sleep(0.1)


def by_flows(command, seconds, numbers, topology=two_guests):
    """Tables 1 and 3 for one switch: {(flows, interval): what was measured}."""
    result = {}
    for interval in (0, 50):
        for flows in numbers:
            with ExitStack() as stack:
                switch = started(stack, command, interval)
                sockets = topology(switch)
                vdevs = [f"net_virtio_user{n},path={s},server=1,queue_size=1024" for n, s in enumerate(sockets.values())]
                bonded = [n for n, name in enumerate(sockets) if name in MEMBERS]
                if bonded:
                    vdevs += [",".join(["net_bonding0,mode=4,xmit_policy=l34",
                                        *(f"slave=net_virtio_user{n}" for n in bonded)])]
                senders = [n for n in range(len(vdevs)) if n not in bonded]
                guest = Testpmd(vdevs, cores=None, eal=[f"--lcores=0@{CORES[0]},1@{CORES[0]}"],
                                args=["--port-topology=loop", "--nb-cores=1", "--txd=1024", "--rxd=1024",
                                      f"--portmask={sum(1 << n for n in senders):#x}",
                                      "--forward-mode=flowgen", f"--flowgen-flows={flows}"])
                stack.callback(guest.close)
                for name in sockets:
                    switch.link(name)
                guest.run("start")
                if bonded:
                    wait_for_lacp(switch)
                time.sleep(1)
                before = [guest.stats(n)["RX-packets"] for n in senders]
                result[flows, interval] = switch.measure(seconds)
                # What is measured must have been forwarded.
                if any(guest.stats(n)["RX-packets"] == was for n, was in zip(senders, before)):
                    sys.exit(f"nothing comes back to one of the senders: {switch.appctl('dpctl/dump-flows')}")
                guest.run("stop")
    return result


def to_guest(command, interval, seconds):
    """A row of table 2."""
    with ExitStack() as stack:
        switch = started(stack, command, interval)
        socket = switch.vhost("vhost0", 1)
        net = Net()
        stack.callback(net.close)
        host = net.host(f"{HOST}/24")
        host.run("ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off", "gro", "off")
        switch.add(host.port, 2)
        switch.ofctl("add-flow", "in_port=1,actions=2")
        switch.ofctl("add-flow", "in_port=2,actions=1")
        os.sched_setaffinity(0, CORES[:1])
        stack.callback(os.sched_setaffinity, 0, CORES)
        guest = Guest([socket])
        stack.callback(guest.close)
        guest.up(f"{GUEST}/24")
        switch.link("vhost0")
        guest.ping(HOST)
        guest.run(f"iperf3 -s -D -B {GUEST}")
        time.sleep(1)
        client = host.start("iperf3", "-c", GUEST, "-t", seconds + 2, "-P", 2, "-J")
        time.sleep(1)
        row = switch.measure(seconds)
        report = json.loads(client.communicate(timeout=60)[0])
        row["mbps"] = report["end"]["sum_received"]["bits_per_second"] / 1e6 if "end" in report else float("nan")
        ping = subprocess.run(host.cmd("ping", "-f", "-q", "-n", "-w", 5, GUEST), capture_output=True, text=True)
        rtt = re.search(r"= [\d.]+/([\d.]+)/", ping.stdout)
        row["rtt"] = float(rtt[1]) * 1000 if rtt else float("nan")
        return row


def by_flows_table(commands, args, topology):
    numbers = [int(n) for n in args.flows.split(",")]
    runs = {name: [] for name in commands}
    for _ in range(args.rounds):
        for name, command in commands.items():
            runs[name].append(by_flows(command, args.seconds, numbers, topology))
    print("| flows | " + " | ".join(f"{n}, 0 µs | {n}, 50 µs | change" for n in commands) + " |")
    print("|---|" + "---|---|---|" * len(commands))
    for flows in numbers:
        cells = []
        for name in commands:
            none, some = (statistics.median(r[flows, i]["pps"] for r in runs[name]) / 1e6 for i in (0, 50))
            spent = [statistics.median(r[flows, i]["cycles"] for r in runs[name]) for i in (0, 50)]
            cells += [f"{pps:.2f} M, {cycles:.0f}" for pps, cycles in zip((none, some), spent)]
            cells += [f"{100 * (some / none - 1):+.1f} %"]
        print(f"| {flows} | " + " | ".join(cells) + " |")


def table_2(commands, args):
    print("| switch | interval | TCP | cycles/packet | busy | packets/burst | ping -f |")
    print("|---|---|---|---|---|---|---|")
    rows = {}
    for _ in range(args.rounds):
        for interval in (0, 50, 100):
            for name, command in commands.items():
                rows.setdefault((name, interval), []).append(to_guest(command, interval, args.seconds))
    for name in commands:
        for interval in (0, 50, 100):
            m = {k: statistics.median(r[k] for r in rows[name, interval]) for k in rows[name, interval][0]}
            print(f"| {name} | {interval} µs | {m['mbps']:.0f} Mb/s | {m['cycles']:.0f} | {m['busy']:.1f} % "
                  f"| {m['batch']:.2f} | {m['rtt']:.0f} µs |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=int, default=4)
    p.add_argument("--tables", default="1,2,3")
    p.add_argument("--flows", default=",".join(map(str, FLOWS)))
    args = p.parse_args()
    # A run that is told to end takes everything down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    commands = switches(args.weir)
    pages = HugePages(1024)
    if problem := pages.missing or missing():
        sys.exit(problem)
    try:
        if "1" in args.tables:
            by_flows_table(commands, args, two_guests)
            print()
        if "3" in args.tables:
            by_flows_table(commands, args, bonded_uplink)
            print()
        if "2" in args.tables:
            print(guest_missing() or "", end="")
            if not guest_missing():
                table_2(commands, args)
    finally:
        pages.close()


if __name__ == "__main__":
    main()
