#!/usr/bin/env python3
"""TCP and ping between two machines behind two Weirs, through a tunnel, all offloads on.

usage: sites.py [--weir BINARY[,BINARY]] [--underlays afpacket,afxdp,tap] [--machines afpacket] [--tunnel vxlan|geneve|gre|none] [--options TOML]
                [--rounds N] [--seconds S] [--profile FILE] [--workers TOML]

Four namespaces: two machines with a veth each, and two hosts with a Weir each, on a core of its own. A cable joins the hosts: a veth pair;
for `tap`, a Linux bridge in a fifth namespace with a tap of each; for `memif`, shared memory, by DPDK's device of that name; `dpdk-af-packet`
is DPDK's packet socket on the veth pair. The tunnel `none` is none: both switches just bridge. One connection of iperf3; the binaries take
turns. The binary `linux` is none: a Linux bridge and Linux's VXLAN device do the same over the veth pair. Printed are medians, and the ratio
of the last binary to the first, round by round. --profile records the second Weir and the first one by perf.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ended import clean_up_when_ended  # noqa: E402
from namespaces import ROOT, TAG, inside, sh, wait  # noqa: E402


#: Devices of DPDK by the underlay that they are.
DPDK = {
    "memif": lambda number, folder: f"net_memif0,role={('server', 'client')[number - 1]},socket={folder}/memif.sock,socket-abstract=no",
    "dpdk-af-packet": lambda number, folder: f"net_af_packet0,iface=u{number}",
}


def cable(one, name, other, other_name):
    sh("ip", "link", "add", name, "netns", TAG + one, "type", "veth", "peer", "name", other_name, "netns", TAG + other)
    inside(one, "ip", "link", "set", name, "up")
    inside(other, "ip", "link", "set", other_name, "up")


def host(args, stack, weir, number, underlay):
    """Starts a Weir."""
    ns, folder = f"h{number}", Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-sites-")))
    cores = sorted(os.sched_getaffinity(0))
    device, options, settings = f"u{number}", "", ""
    if underlay in DPDK:
        device, kind, settings = "dpdk0", "dpdk", '[dpdk]\ninit = true\nextra = "--no-pci --no-telemetry"'
        options = f'options = {{ dpdk-devargs = "{DPDK[underlay](number, args.folder)}" }}'
    else:
        kind = underlay
    underlay_port = f"""
[[bridge.port]]
name = "{device}"
type = "{kind}"
{options}
"""
    tunnel = f"""
[[bridge.port]]
name = "t0"
type = "{args.tunnel}"
options = {{ remote_ip = "172.31.0.{3 - number}", key = "7"{args.options and ', ' + args.options} }}
"""
    is_bridged = args.tunnel == "none"
    (folder / "weir.toml").write_text(f"""
{settings}
[workers]
cores = [{cores[-number]}]
{args.workers}
[[bridge]]
name = "br-int"
local = false
[[bridge.port]]
name = "vm0"
type = "{args.machines}"
{underlay_port if is_bridged else tunnel}
[[bridge]]
name = "br-phy"
hwaddr = "02:00:00:00:02:{number:02x}"
{"" if is_bridged else underlay_port}
""")
    env = dict(os.environ, OVS_RUNDIR=str(folder))
    log = stack.enter_context(open(folder / "log", "wb"))
    process = subprocess.Popen(["ip", "netns", "exec", TAG + ns, weir, "run", folder / "weir.toml"], env=env, stderr=log, stdout=log)

    def stop():
        process.terminate()
        process.wait(30)
    stack.callback(stop)

    def runs():
        assert process.poll() is None, (folder / "log").read_text()
        return subprocess.run([weir, "show"], env=env, capture_output=True).returncode == 0
    wait(runs, "Weir running")
    if underlay == "tap":
        sh("ip", "-n", TAG + ns, "link", "set", f"u{number}", "netns", TAG + "mid")
        inside("mid", "ip", "link", "set", f"u{number}", "master", "br0")
        inside("mid", "ip", "link", "set", f"u{number}", "up")
    inside(ns, "ip", "addr", "add", f"172.31.0.{number}/24", "dev", "br-phy")
    inside(ns, "ip", "link", "set", "br-phy", "up")
    return process


def linux_host(number):
    """The same by the kernel."""
    ns = f"h{number}"
    inside(ns, "ip", "addr", "add", f"172.31.0.{number}/24", "dev", f"u{number}")
    inside(ns, "ip", "link", "add", "br0", "type", "bridge")
    inside(ns, "ip", "link", "add", "t0", "type", "vxlan", "id", 7, "local", f"172.31.0.{number}", "remote", f"172.31.0.{3 - number}", "dstport", 4789)
    for port in ("vm0", "t0"):
        inside(ns, "ip", "link", "set", port, "master", "br0")
    for device in ("t0", "br0"):
        inside(ns, "ip", "link", "set", device, "up")


def measure(args, weir, underlay):
    with ExitStack() as stack:
        args.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-sites-"))
        for ns in ("h1", "h2", "v1", "v2", "mid"):
            sh("ip", "netns", "add", TAG + ns)
            stack.callback(sh, "ip", "netns", "del", TAG + ns, check=False)
            inside(ns, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", "net.ipv4.conf.all.arp_ignore=1")
        for number in (1, 2):
            cable(f"v{number}", "eth0", f"h{number}", "vm0")
            inside(f"v{number}", "ip", "addr", "add", f"10.9.0.{number}/24", "dev", "eth0")
            inside(f"v{number}", "ip", "link", "set", "eth0", "mtu", 1450)
        if underlay == "tap":
            inside("mid", "ip", "link", "add", "br0", "type", "bridge")
            inside("mid", "ip", "link", "set", "br0", "up")
        else:
            cable("h1", "u1", "h2", "u2")
        if weir == "linux":
            weirs = [linux_host(number) for number in (1, 2)]
        else:
            weirs = [host(args, stack, weir, number, underlay) for number in (1, 2)]
        wait(lambda: " 0 received" not in inside("v1", "ping", "-n", "-c1", "-W1", "10.9.0.2", check=False), "ping")
        text = inside("v1", "ping", "-n", "-i", "0.05", "-c", "40", "10.9.0.2")
        ping = statistics.median(float(time) for time in re.findall(r"time=([\d.]+)", text))
        server = subprocess.Popen(["ip", "netns", "exec", f"{TAG}v2", "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
        stack.callback(server.kill)
        wait(lambda: ":5201" in inside("v2", "ss", "-Hltn"), "the iperf3 server listening")
        perf = None
        if args.profile and weir != "linux":
            pids = [sh("pgrep", "-P", w.pid, check=False).split() or [w.pid] for w in weirs]
            perf = subprocess.Popen(["perf", "record", "-e", "cpu-clock", "-q", "-g", "-o", args.profile, "-p", ",".join(str(p) for ps in pids for p in ps),
                                     "--", "sleep", str(args.seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = inside("v1", "timeout", args.seconds + 8, "iperf3", "-c", "10.9.0.2", "-t", args.seconds, "-J", check=False)
        if perf:
            perf.wait()
        report = json.loads(text) if text.strip().endswith("}") else {}
        return report.get("end", {}).get("sum_received", {}).get("bits_per_second", 0) / 1e9, ping


def main():
    clean_up_when_ended()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=str(ROOT / "target/release/weir"))
    p.add_argument("--underlays", default="afpacket,afxdp,tap")
    p.add_argument("--machines", default="afpacket")
    p.add_argument("--tunnel", default="vxlan")
    p.add_argument("--options", default="")
    p.add_argument("--workers", default="")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=int, default=3)
    p.add_argument("--profile")
    args = p.parse_args()
    binaries, underlays = args.weir.split(","), args.underlays.split(",")
    results = {(underlay, binary): [] for underlay in underlays for binary in binaries}
    for _ in range(args.rounds):
        for key in results:
            results[key].append(measure(args, key[1], key[0]))
            print(f"  {key[0]} {Path(key[1]).name}: {results[key][-1][0]:.2f} Gb/s, ping {results[key][-1][1]:.3f} ms", file=sys.stderr, flush=True)
    print("\n| underlay | binary | TCP Gb/s | ping ms | ratio of TCP |")
    print("|---|---|---:|---:|---:|")
    for (underlay, binary), rounds in results.items():
        first = results[underlay, binaries[0]]
        ratio = statistics.median(mine[0] / one[0] for mine, one in zip(rounds, first) if one[0])
        print(f"| {underlay} | {Path(binary).name} | {statistics.median(r[0] for r in rounds):.2f} "
              f"| {statistics.median(r[1] for r in rounds):.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
