#!/usr/bin/env python3
"""IP forwarding and early drop of 198.18.0.0/15, with and without an ingress filter, beside what Linux takes for it.

usage: ingress.py [--weir BINARY] [--rounds N] [--seconds S] [--cases a,b,...] [--options TOML]

The two tests and the form of them are those of the Linux developers ("refactor __netif_receive_skb_core", netdev, April
2015): one flow of 60-byte UDP frames; packets per second, and the difference to a base in nanoseconds per packet.

    forward     both MACs rewritten, TTL decremented, out by a second port
    drop        what reaches the port is dropped, by the filter or by an OpenFlow rule

    linux-forward, linux-iptables, linux-nftables, linux-xdp
                Linux: a route; a rule in table raw; a rule at the hook ingress; an XDP program
    afxdp-TEST-FILTER
                Weir with two AF_XDP ports, the worker on the last core
    dpdk-TEST-FILTER, dpdk-floor
                Weir with net_pcap (infinite_rx) and net_null; the floor is testpmd that forwards and that drops

FILTER is none; empty, a filter without rules; pass, one whose only rule lets the frames go on; or match, one whose only
rule drops them: on AF_XDP as offloaded, in the port's XDP program, and as user, with that turned off. Where no filter
drops the frames of the test drop, an OpenFlow rule does. Cases are prefixes: `--cases afxdp` is all that begin so.

Over veth (linux and afxdp) the frames come from kernel context on the first core (xdptool.c, compiled with cc), where
Linux also receives them; what a port's ring has no room for is not counted. `received` is what the port's XDP program or
stack was given, `done` what was dropped for the right reason, or reached the other end of the second port.

Cases take turns, N times; printed are medians. Needs root, two cores, cc, ethtool; for Linux iptables and nft; for dpdk
hugepages (2 GiB), dpdk-testpmd, and Debian's librte-net-pcap23 and librte-net-null23. Believe ratios, not absolute figures.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NET, TARGET = "198.18.0.0/15", "198.18.0.2"
TAG = f"wi{os.getpid() % 100000:x}"
FIRST, LAST = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
RULES = {
    "forward": f"ip,nw_dst={NET},actions=mod_dl_src:02:00:00:00:00:03,mod_dl_dst:02:00:00:00:00:04,dec_ttl,output:2",
    "drop": f"ip,nw_dst={NET},actions=drop",
}
FILTERS = {"none": None, "empty": "", "pass": f"pass dst net {NET}", "match": f"drop dst net {NET}",
           "offloaded": f"drop dst net {NET}", "user": f"drop dst net {NET}"}


def sh(*command, check=True, timeout=60, **kw):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def wait(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


@contextmanager
def process(*command, log=None, **kw):
    out = open(log, "wb") if log else subprocess.PIPE
    p = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=out, stderr=out, **kw)
    try:
        yield p
    finally:
        p.stdin.close()
        p.terminate()
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


class Veths:
    """Two pairs: `gen` leads to `in`, and `out` to `sink`. `gen` and `sink` are in a namespace of their own, whose stack
    drops what reaches the sink, as it is for another address."""

    def __init__(self, stack, tool):
        self.tool = tool
        self.switch, self.other = TAG, TAG + "o"
        for ns in (self.switch, self.other):
            sh("ip", "netns", "add", ns)
            stack.callback(sh, "ip", "netns", "del", ns, check=False)
            self.run(ns, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        # One queue each: there is one flow.
        queues = ["numrxqueues", "1", "numtxqueues", "1"]
        for near, far in (("in", "gen"), ("out", "sink")):
            sh("ip", "-n", self.switch, "link", "add", near, *queues, "type", "veth",
               "peer", "name", far, "netns", self.other, *queues)
            sh("ip", "-n", self.switch, "link", "set", near, "up")
            sh("ip", "-n", self.other, "link", "set", far, "up")
        self.mac = json.loads(sh("ip", "-j", "-n", self.switch, "link", "show", "in"))[0]["address"]

    def run(self, ns, *command, **kw):
        return sh("ip", "netns", "exec", ns, *command, **kw)

    def attach(self, stack, ns, device, *prefix):
        p = stack.enter_context(process("ip", "netns", "exec", ns, self.tool, "drop", device, *prefix))
        if p.stdout.readline() != b"attached\n":
            raise SystemExit(f"no XDP program on {device}: {p.stderr.read().decode()}")

    def gro(self):
        """Has `in` take XDP frames without a program."""
        self.run(self.switch, "ethtool", "-K", "in", "gro", "on")

    def received(self, ns, device):
        return int(json.loads(sh("ip", "-j", "-s", "-n", ns, "link", "show", device))[0]["stats64"]["rx"]["packets"])

    def flood(self, seconds):
        return process("ip", "netns", "exec", self.other, "taskset", "-c", FIRST, self.tool, "generate", "gen", self.mac,
                       TARGET, seconds)


def rates(args, veths, count):
    """What arrives at the port and what `count` counts, in a second, while the generator gives all it can."""
    read = lambda: (veths.received(veths.switch, "in"), count(), time.monotonic())
    with veths.flood(args.seconds + 1.5) as generator:
        wait(lambda: veths.received(veths.switch, "in") > 0, "frames that arrive")
        time.sleep(0.5)
        before = read()
        time.sleep(args.seconds)
        after = read()
        generator.wait(30)
    took = after[2] - before[2]
    return (after[0] - before[0]) / took, (after[1] - before[1]) / took


def linux(args, test, _):
    with ExitStack() as stack:
        veths = Veths(stack, args.tool)
        ns, inside = veths.switch, lambda *command: veths.run(veths.switch, *command)
        at_sink = lambda: veths.received(veths.other, "sink")
        at_port = lambda: veths.received(ns, "in")
        if test == "xdp":
            veths.attach(stack, ns, "in", *NET.split("/"))
            return rates(args, veths, at_port)
        veths.gro()
        inside("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.in.rp_filter=0")
        inside("ip", "addr", "add", "10.7.0.1/24", "dev", "in")
        inside("ip", "addr", "add", "10.8.0.1/24", "dev", "out")
        inside("ip", "neigh", "add", "10.8.0.2", "dev", "out", "lladdr", "02:00:00:00:00:04")
        inside("ip", "route", "add", NET, "via", "10.8.0.2", "dev", "out")
        if test == "forward":
            return rates(args, veths, at_sink)
        if test == "iptables":
            tables = shutil.which("iptables-legacy") or "iptables"
            inside(tables, "-t", "raw", "-N", "simple")
            inside(tables, "-t", "raw", "-I", "simple", "-d", NET, "-j", "DROP")
            inside(tables, "-t", "raw", "-I", "PREROUTING", "-j", "simple")
            dropped = lambda: int(re.search(r"^\s*(\d+)\s.*DROP", inside(tables, "-t", "raw", "-nvxL", "simple"), re.M)[1])
            return rates(args, veths, dropped)
        inside("nft", "add table netdev t; add chain netdev t c { type filter hook ingress device in priority 0; }; "
               f"add rule netdev t c ip daddr {NET} counter drop")
        dropped = lambda: int(re.search(r"counter packets (\d+)", inside("nft", "list", "table", "netdev", "t"))[1])
        return rates(args, veths, dropped)


@contextmanager
def weir(args, stack, ports, test, rules, enter=()):
    """A running switch with two ports, given as TOML."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-ingress-")))
    text = f'[workers]\ncores = [{LAST}]\n{ports[0]}\n[[bridge]]\nname = "br0"\nlocal = false\nfail_mode = "secure"\n'
    text += f"flows = {json.dumps([RULES[test]])}\n"
    for number, port in enumerate(ports[1:], 1):
        text += f"[[bridge.port]]\nofport = {number}\n{port}\n"
        if number == 1 and rules is not None:
            text += f'ingress-filter = "{rules}"\n'
    (folder / "weir.toml").write_text(text)
    env = dict(os.environ, OVS_RUNDIR=str(folder))
    cli = lambda *command: sh(args.weir, *command, env=env)
    with process(*enter, args.weir, "run", folder / "weir.toml", env=env, log=folder / "log") as p:
        running = lambda: subprocess.run([args.weir, "show"], env=env, capture_output=True).returncode == 0
        wait(lambda: running() or p.poll() is not None, "weir running")
        if p.poll() is not None:
            raise SystemExit((folder / "log").read_text())
        yield cli


def afxdp(args, test, which):
    with ExitStack() as stack:
        veths = Veths(stack, args.tool)
        if which == "floor":
            devices = [f"net_af_xdp{n},iface={name}" for n, name in enumerate(("in", "out"))]
            enter = ("ip", "netns", "exec", veths.switch)
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-ingress-"))) / "log"
            stack.enter_context(process(*enter, *testpmd(devices, "io"), log=log))
            wait(lambda: b"start packet forwarding" in log.read_bytes(), "testpmd that forwards")
            return rates(args, veths, lambda: veths.received(veths.other, "sink"))
        more = 'ingress-offload = false\n' if which == "user" else ""
        ports = ["", f'name = "in"\ntype = "afxdp"\n{args.options}\n{more}', f'name = "out"\ntype = "afxdp"\n{args.options}']
        enter = ("ip", "netns", "exec", veths.switch)
        cli = stack.enter_context(weir(args, stack, ports, test, FILTERS[which], enter))
        if args.show:
            print(cli("show"), file=sys.stderr)

        def dropped():
            port = next(p for p in json.loads(cli("ports", "--json"))["ports"] if p["name"] == "in")
            return sum(port["drops"].values())

        if test == "drop":
            return rates(args, veths, dropped)
        return rates(args, veths, lambda: veths.received(veths.other, "sink"))


def trace(folder):
    """One flow's frame, as often as makes the replay's copies run through some memory."""
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0x4000, 64, 17, 0, 0x0A070002, 0xC6120002)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    frame = bytes.fromhex("0200000000020200000000010800") + ip + struct.pack("!HHHH", 1024, 9, 26, 0) + bytes(18)
    with open(folder / "one.pcap", "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        f.write((struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame) * 1024)
    return folder / "one.pcap"


def dpdk(args, test, which):
    with ExitStack() as stack:
        frames = trace(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-ingress-"))))
        devices = [f"net_pcap0,rx_pcap={frames},infinite_rx=1", "net_null1,size=60,no-rx=1"]
        if which == "floor":
            return floor(args, devices, test)
        ports = ['[dpdk]\ninit = true\nextra = "--in-memory --no-pci"\n']
        ports += [f'name = "{name}"\ntype = "dpdk"\noptions = {{ dpdk-devargs = "{device}" }}'
                  for name, device in zip(("in", "out"), devices)]
        cli = stack.enter_context(weir(args, stack, ports, test, FILTERS[which]))
        read = lambda: (json.loads(cli("stats", "--json"))["workers"][0]["packets"], time.monotonic())
        time.sleep(1.5)
        before = read()
        time.sleep(args.seconds)
        after = read()
        rate = (after[0] - before[0]) / (after[1] - before[1])
        return rate, rate


def testpmd(devices, mode):
    vdevs = [word for device in devices for word in ("--vdev", device)]
    return ["dpdk-testpmd", "-l", f"{FIRST},{LAST}", "--in-memory", "--no-pci", *vdevs, "--", f"--forward-mode={mode}",
            "--stats-period", "1", "--nb-cores=1", "--total-num-mbufs=220000"]


def floor(args, devices, test):
    """testpmd on the same devices: it forwards from one to the other, or only receives."""
    command = testpmd(devices, {"forward": "io", "drop": "rxonly"}[test])
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(4 + args.seconds)
    p.terminate()
    text = p.communicate(timeout=20)[0]
    found = [int(n) for n in re.findall(r"Rx-pps:\s+(\d+)", text)]
    found = [n for n in found if n][1:]
    if not found:
        raise SystemExit(f"testpmd has not received: {text[-2000:]}")
    rate = statistics.median(found)
    return rate, rate


CASES = {
    **{f"linux-{test}": (linux, test, None) for test in ("forward", "iptables", "nftables", "xdp")},
    **{f"afxdp-forward-{which}": (afxdp, "forward", which) for which in ("floor", "none", "empty", "pass")},
    **{f"afxdp-drop-{which}": (afxdp, "drop", which) for which in ("none", "empty", "user", "offloaded")},
    **{f"dpdk-forward-{which}": (dpdk, "forward", which) for which in ("floor", "none", "empty", "pass")},
    **{f"dpdk-drop-{which}": (dpdk, "drop", which) for which in ("floor", "none", "empty", "match")},
}
# What a case is compared with.
BASES = {"linux-iptables": "linux-xdp", "linux-nftables": "linux-xdp", "linux-xdp": "linux-xdp",
         "linux-forward": "linux-forward", "afxdp-forward": "linux-forward", "afxdp-drop": "linux-xdp",
         "dpdk-forward": "dpdk-forward-floor", "dpdk-drop": "dpdk-drop-floor"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--cases", default="linux,afxdp,dpdk")
    p.add_argument("--options", default="", help="more lines of Weir's AF_XDP ports, in TOML")
    p.add_argument("--show", action="store_true", help="print `weir show` of AF_XDP cases")
    args = p.parse_args()
    names = [name for name in CASES if any(name.startswith(case) for case in args.cases.split(","))]
    results = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="weir-ingress-") as folder:
        args.tool = Path(folder) / "xdptool"
        sh("cc", "-O2", "-o", args.tool, HERE / "xdptool.c")
        for _ in range(args.rounds):
            for name in names:
                run, test, which = CASES[name]
                results[name].append(run(args, test, which))
                print(f"  {name}: received {results[name][-1][0]:.0f}, done {results[name][-1][1]:.0f} pps",
                      file=sys.stderr, flush=True)
    median = lambda name, what: statistics.median(r[what] for r in results[name])
    print("\n| case | received pps | done pps | ns | to the base |")
    print("|---|---:|---:|---:|---:|")
    for name in names:
        base = BASES[name if name in BASES else name.rpartition("-")[0]]
        took = 1e9 / max(1, median(name, 1))
        less = f"{took - 1e9 / max(1, median(base, 1)):+.2f}" if base in results and base != name else "–"
        print(f"| {name} | {median(name, 0):.0f} | {median(name, 1):.0f} | {took:.2f} | {less} |")


if __name__ == "__main__":
    main()
