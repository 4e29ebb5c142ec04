#!/usr/bin/env python3
"""What happens to the rate when there are many flows, rules or masks, or somebody sends only new packets.

usage: cliffs.py [--weir BINARY] [--ovs] [--ports pcap|dpdk] [--scenarios a,b] [--rounds N] [--seconds S]
                 [--settle S] [--core C] [--traces DIR] [--list]

Each scenario runs alone in a fresh daemon with a real ovsdb-server, configured by ovs-vsctl and ovs-ofctl. Weir's
ports are pcap and null, or with --ports dpdk the vdevs net_pcap and net_null, which OVS gets in any case (--ovs;
needs Debian's openvswitch-switch-dpdk, librte-net-pcap23, librte-net-null23, and huge pages).

Printed are medians. Rates are what `ovs-ofctl dump-ports` counts as received by port 1 and as sent by port 2: where
packets miss faster than the slow path can answer, the difference is lost. Cycles are of the worker thread's own time on
a processor (/proc/PID/task/TID/schedstat) at the TSC's frequency, for each packet received by any port, so that other load
on the machine matters less; "shown" are those that `dpif-netdev/pmd-stats-show` has. "victim" is the rate of a second
port on the same worker, for each second of that worker's time, and in percent of what it has beside benign traffic.

Scenario `two` needs two quiet cores and runs only when it is named: it compares one worker with two. So does `setups`:
how many flows are set up in a second where a port sends only new ones, 200 000, and there is room for them, over
50 to 200 ms in which most are.
"""
import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces  # noqa: E402
from lib.vswitch import Devices  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OVS = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
ONE = "in_port=1,udp,nw_dst=198.18.0.0/15,actions=output:2"
# Copies the source address to a register, so that each flow is a megaflow of its own.
OWN = "in_port=1,udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],output:2"
VICTIM = "in_port=3,udp,nw_dst=198.18.0.0/15,actions=output:2"
# Connections of port 1 have a zone with a limit, those of port 3 have another one.
TRACKED = ["table=0,in_port=1,udp,ct_state=-trk,actions=ct(table=1,zone=1)",
           "table=0,in_port=3,udp,ct_state=-trk,actions=ct(table=1,zone=2)",
           "table=1,udp,ct_state=+trk+new,in_port=1,actions=ct(commit,zone=1),output:2",
           "table=1,udp,ct_state=+trk+new,in_port=3,actions=ct(commit,zone=2),output:2",
           "table=1,udp,ct_state=+trk+est,actions=output:2"]
LIMIT = {"appctl": ("dpctl/ct-set-limits", "zone=1,limit=100000")}
MASKS = [f"in_port=1,udp,nw_src=10.0.0.{i},nw_dst=198.18.0.0/{15 + i},actions=output:2" for i in range(8)]
MASKS += ["priority=1,in_port=1,actions=output:2"]
PROTOCOLS = [f"in_port=1,{protocol},tp_dst=53,actions=output:2" for protocol in ("tcp", "udp", "tcp6", "udp6")]
# A router: the next hop's address by a prefix of the destination.
NEXT_HOPS = [
    f"in_port=1,ip,nw_dst=198.18.{n}.0/24,actions=dec_ttl,set_field:02:00:00:00:00:02->eth_src,"
    f"set_field:02:00:00:00:01:{n:02x}->eth_dst,output:2" for n in range(256)
]
PUSH = ["in_port=1,ip,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],push_vlan:0x8100,set_field:4106->vlan_vid,output:2"]
POP_ONE = ["in_port=1,ip,dl_vlan=10,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],pop_vlan,output:2"]
POP_OUTER = ["in_port=1,dl_vlan=20,actions=pop_vlan,output:2"]
KINDS = ["in_port=1,ip,nw_dst=198.18.0.0/15,actions=output:2", "in_port=1,arp,actions=output:2",
         "in_port=1,ipv6,ipv6_dst=2001:db8::/32,actions=output:2"]
# So many packets fit in the memory that OVS gives a port of net_pcap.
NEW = 200_000
SMALL = {"flow-limit": "200000"}
# name: what, trace (a function of the folder), rules, victim's port too, other_config
SCENARIOS = {
    "10k": ("10 000 flows, one megaflow", lambda d: traces.flows(d, 10_000), [ONE], False, {}),
    "100k": ("100 000 flows, one megaflow", lambda d: traces.flows(d, 100_000), [ONE], False, {}),
    "1M": ("1 000 000 flows, one megaflow", lambda d: traces.flows(d, 1_000_000), [ONE], False, {}),
    "own10k": ("10 000 flows, each its own megaflow", lambda d: traces.flows(d, 10_000), [OWN], False, {}),
    "own100k": ("100 000 flows, each its own megaflow", lambda d: traces.flows(d, 100_000), [OWN], False, {}),
    "own1M": ("1 000 000 flows, each its own megaflow", lambda d: traces.flows(d, 1_000_000), [OWN], False, {}),
    "rules10k": ("10 000 rules, one for each flow", lambda d: traces.flows(d, 10_000), 10_000, False, {}),
    "rules100k": ("100 000 rules, one for each flow", lambda d: traces.flows(d, 100_000), 100_000, False, {}),
    "crafted": ("8 192 crafted packets, 4 rules", traces.crafted, traces.ACCESS_LIST, False, {}),
    "noise": ("only new flows, flow limit 200 000", traces.noise, [OWN], False, SMALL),
    "beside-benign": ("victim beside 10 000 flows", lambda d: traces.flows(d, 10_000), [ONE, VICTIM], True, {}),
    "beside-crafted": ("victim beside crafted packets", traces.crafted, [*traces.ACCESS_LIST, VICTIM], True, {}),
    "beside-noise": ("victim beside only new flows", traces.noise, [OWN, VICTIM], True, SMALL),
    "beside-tracked": ("tracked victim beside 10 000 connections", lambda d: traces.conversations(d, 10_000), TRACKED, True, LIMIT),
    "beside-new": ("tracked victim beside only new connections", traces.noise, TRACKED, True, LIMIT),
    "mixed": ("1 000 flows mixed, 9 masks", lambda d: traces.flows(d, 1000), MASKS, False, {}),
    "runs": ("1 000 flows in runs of 32, 9 masks", lambda d: traces.flows(d, 1000, 32), MASKS, False, {}),
    "protocols": ("1 000 flows of 8 protocols mixed, 4 rules", lambda d: traces.protocols(d, 1000), PROTOCOLS, False, {}),
    "ipfwd1k": ("IP forwarding: 256 next hops, TTL and both MACs, 1 000 flows", lambda d: traces.networks(d, 1000), NEXT_HOPS, False, {}),
    "ipfwd": ("the same, 10 000 flows", lambda d: traces.networks(d, 10_000), NEXT_HOPS, False, {}),
    "pushvlan": ("a tag pushed, 10 000 flows, each its own megaflow", lambda d: traces.flows(d, 10_000), PUSH, False, {}),
    "popvlan": ("a tag popped, 10 000 flows, each its own megaflow", lambda d: traces.tagged(d, 10_000), POP_ONE, False, {}),
    "popvlan2": ("two tags, one popped, 1 000 flows", lambda d: traces.tagged(d, 1000, 2), POP_OUTER, False, {}),
    "kinds": ("frames of 8 unusual kinds mixed, 1 000 flows", lambda d: traces.kinds(d, 1000), KINDS, False, {}),
    "plain": ("plain UDP under the same rules, 1 000 flows", lambda d: traces.flows(d, 1000), KINDS, False, {}),
    "drop": ("drop at a null port, 1 flow", None, ["in_port=1,udp,actions=drop"], False, {}),
    "drop-no-cache": ("the same without the exact-match cache", None, ["in_port=1,udp,actions=drop"], False,
                      {"emc-insert-inv-prob": "0"}),
}


def tsc_hz():
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    found = re.search(r"tsc: (?:Refined TSC clocksource calibration|Detected): ([\d.]+) MHz", log)
    found = found or re.search(r"cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text())
    return float(found[1]) * 1e6


def sh(cmd, timeout=60, **kw):
    done = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout, **kw)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, cmd))}: {done.stderr}")
    return done.stdout


class Switch:
    """A daemon with its database, in a run directory of its own. A context manager."""

    #: Its device is one of the host's, where others may have their own br0.
    bridge = f"wbr{os.getpid() % 100000}"

    def __init__(self, command, dpdk, workers, core, config):
        self.dpdk, self.processes, self.devices = dpdk, [], Devices(self.bridge)
        self.dir = Path(tempfile.mkdtemp(prefix="weir-cliffs-"))
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), OVS_LOGDIR=str(self.dir), OVS_DBDIR=str(self.dir),
                        OVS_SYSCONFDIR=str(self.dir))
        self.db = f"unix:{self.dir}/db.sock"
        try:
            sh(["ovsdb-tool", "create", self.dir / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema"])
            self.start(["ovsdb-server", self.dir / "conf.db", f"--remote=p{self.db}"], "db")
            self.vsctl("--no-wait", "init")
            mask = sum(1 << c for c in range(core, core - workers, -1))
            settings = {"pmd-cpu-mask": hex(mask), "dpdk-init": str(dpdk).lower(), "dpdk-lcore-mask": "0x1",
                        "dpdk-extra": "--in-memory --no-pci"} | config
            self.vsctl("--no-wait", "set", "Open_vSwitch", ".", *(f'other_config:{k}="{v}"' for k, v in settings.items()))
            self.daemon = self.start([*command, self.db], "vswitchd")
        except BaseException:
            self.__exit__()
            raise

    def start(self, command, name):
        """Starts a process and waits for its control socket."""
        control = self.dir / f"{name}.ctl"
        log = open(self.dir / f"{name}.out", "w")
        command = [*map(str, command), f"--log-file={self.dir}/{name}.log", f"--unixctl={control}", "--no-chdir"]
        process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        end = time.monotonic() + 60
        while not control.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{shlex.join(command)}: {(self.dir / f'{name}.out').read_text()[-2000:]}")
            time.sleep(0.05)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.devices.remove()
        shutil.rmtree(self.dir, ignore_errors=True)

    def vsctl(self, *args):
        return sh(["ovs-vsctl", f"--db={self.db}", "--timeout=40", *args], env=self.env)

    def ofctl(self, verb, *args):
        return sh(["ovs-ofctl", "-O", "OpenFlow13", verb, f"unix:{self.dir}/{self.bridge}.mgmt", *args], 300, env=self.env)

    def appctl(self, *args):
        return sh(["ovs-appctl", "-t", self.dir / "vswitchd.ctl", *args], env=self.env)

    def add_port(self, number, trace):
        """A port that replays `trace`; without one, a source of one flow for port 1, else a sink."""
        name = f"p{number}"
        if self.dpdk:
            if trace:
                device = f"net_pcap{number},rx_pcap={trace},infinite_rx=1"
            else:
                device = f"net_null{number},size=60" + (",no-rx=1" if number != 1 else "")
            what = ["type=dpdk", f"options:dpdk-devargs={device}"]
        elif trace:
            # A daemon opens capture files of its run directory only.
            capture = self.dir / f"{name}.pcap"
            shutil.copy(trace, capture)
            what = ["type=pcap", f"options:rx_pcap={capture}", "options:loop=true"]
        else:
            what = ["type=null"] + (["options:n_rxq=1"] if number == 1 else [])
        self.vsctl("add-port", self.bridge, name, "--", "set", "Interface", name, *what, f"ofport_request={number}")
        error = self.vsctl("get", "Interface", name, "error").strip()
        if error not in ("[]", ""):
            raise RuntimeError(f"{name}: {error}")

    def received(self, port):
        return self.count(port, "rx")

    def count(self, port, way):
        return int(re.search(rf"{way} pkts=(\d+)", self.ofctl("dump-ports", str(port)))[1])

    def flows(self):
        """Datapath flows."""
        return int(re.search(r"flows: (\d+)", self.appctl("dpctl/show"))[1])

    def thread_times(self):
        """The name of each thread, and the seconds that it has run."""
        for task in Path(f"/proc/{self.daemon.pid}/task").iterdir():
            # Threads may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield (task / "comm").read_text(), int((task / "schedstat").read_text().split()[0]) / 1e9

    def worker_time(self):
        """Seconds that the polling threads have run."""
        return sum(seconds for name, seconds in self.thread_times() if re.match(r"worker\d|pmd-", name))

    def memory(self):
        return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{self.daemon.pid}/status").read_text())[1]) // 1024


def bridge(switch, rules):
    """The bridge with its rules, and how long these took."""
    switch.vsctl("add-br", switch.bridge, "--", "set", "bridge", switch.bridge, "datapath_type=netdev", "fail_mode=secure")
    path = rules
    if isinstance(rules, list):
        path = switch.dir / "rules.txt"
        path.write_text("".join(f"{rule}\n" for rule in rules))
    start = time.monotonic()
    switch.ofctl("add-flows", path)
    return time.monotonic() - start


def settle(switch, port):
    """Waits until the rate is steady: all flows are installed, or all there will be."""
    last = None
    for _ in range(60):
        count, used, flows = switch.received(port), switch.worker_time(), switch.flows()
        time.sleep(1)
        cost = (switch.worker_time() - used) / max(1, switch.received(port) - count)
        grown = abs(switch.flows() - flows) > flows // 100
        if last is not None and abs(cost - last) < 0.1 * last and not grown:
            return
        last = cost


def measure(switch, ports, seconds):
    before, used, start = [switch.received(p) for p in ports], switch.worker_time(), time.monotonic()
    time.sleep(seconds)
    counts = [switch.received(p) - b for p, b in zip(ports, before)]
    return counts, switch.worker_time() - used, time.monotonic() - start


def run(command, name, args, dpdk):
    _, trace, rules, victim, config = SCENARIOS[name]
    rules = traces.rules(args.traces, rules) if isinstance(rules, int) else rules
    commands = config.get("appctl")
    with Switch(command, dpdk, 1, args.core, {} if commands else config) as switch:
        setup = bridge(switch, rules)
        if commands:
            switch.appctl(*commands)
        switch.add_port(2, None)
        switch.add_port(1, trace and trace(args.traces))
        ports = [1]
        if victim:
            switch.add_port(3, (traces.conversations if commands else traces.flows)(args.traces, 1000))
            ports.append(3)
        time.sleep(args.settle)
        settle(switch, ports[-1])
        sent = switch.count(2, "tx")
        switch.appctl("dpif-netdev/pmd-stats-clear")
        counts, used, took = measure(switch, ports, args.seconds)
        shown = cycles_shown(switch)
        sent = switch.count(2, "tx") - sent
        return {"pps": counts[0] / took, "sent": sent / took, "cycles": used * args.hz / max(1, sum(counts)), "shown": shown,
                "setup": setup,
                "victim": counts[1] / used if victim else None, "memory": switch.memory(),
                "masks": masks(switch, dpdk)}


def masks(switch, dpdk):
    text = switch.appctl("dpif-netdev/pmd-stats-show")
    found = re.search(r"avg. subtable lookups per megaflow hit: ([\d.]+)", text)
    return float(found[1]) if found else 0.0


def cycles_shown(switch):
    """Cycles for each packet by the daemon's own account."""
    text = switch.appctl("dpif-netdev/pmd-stats-show")
    return max(map(float, re.findall(r"avg cycles per packet: ([\d.]+)", text)), default=float("nan"))


def setups(command, args, dpdk):
    """New flows only, and room for all of them: how many are set up in a second, while most are, and how many are there
    in the end. OVS lowers its limit by itself where its revalidators take long."""
    with Switch(command, dpdk, 1, args.core, {"flow-limit": "2000000", "max-idle": "100000"}) as switch:
        bridge(switch, [OWN])
        switch.add_port(2, None)
        switch.add_port(1, traces.noise(args.traces, NEW))
        seen, end = [], time.monotonic() + args.seconds
        while time.monotonic() < end:
            seen.append((time.monotonic(), switch.flows()))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for n, a in enumerate(seen) for b in seen[n:] if 0.05 <= b[0] - a[0] < 0.2]
    return {"setups": max(slopes, default=float("nan")), "flows": seen[-1][1]}


def two_workers(command, args, dpdk):
    """Two ports, each with a sink of its own, by one worker and by two: how many times as much."""
    rates = []
    for workers in (1, 2):
        with Switch(command, dpdk, workers, 1, {}) as switch:
            bridge(switch, ["in_port=1,udp,actions=output:2", "in_port=3,udp,actions=output:4"])
            for number, trace in ((2, None), (4, None), (1, 10_000), (3, 10_000)):
                switch.add_port(number, trace and traces.flows(args.traces, trace))
            time.sleep(args.settle + 1)
            counts, _, took = measure(switch, [1, 3], args.seconds)
            rates.append(sum(counts) / took)
    return {"pps": rates[1], "one": rates[0], "scaling": rates[1] / rates[0]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--ovs", action="store_true", help="measure OVS with DPDK, too")
    p.add_argument("--ports", choices=["pcap", "dpdk"], default="pcap", help="Weir's ports")
    p.add_argument("--scenarios", default=",".join(SCENARIOS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--settle", type=float, default=2)
    p.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    p.add_argument("--traces", type=Path, default=Path("/var/tmp/weir-traces"))
    p.add_argument("--json", type=Path)
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list:
        print("\n".join(f"{name:<16} {what[0]}" for name, what in SCENARIOS.items()))
        return
    if unknown := sorted(set(args.scenarios.split(",")) - set(SCENARIOS) - {"two", "setups"}):
        p.error(f"no such scenario: {', '.join(unknown)}; --list names them")
    args.traces.mkdir(parents=True, exist_ok=True)
    args.hz = tsc_hz()
    daemons = {"weir": ([args.weir, "vswitchd"], args.ports == "dpdk")}
    if args.ovs:
        daemons["ovs"] = ([OVS], True)
    names, results = args.scenarios.split(","), {}
    for _ in range(args.rounds):
        for name in names:
            for daemon, (command, dpdk) in daemons.items():
                special = {"two": two_workers, "setups": setups}.get(name)
                one = special(command, args, dpdk) if special else run(command, name, args, dpdk)
                results.setdefault((name, daemon), []).append(one)
                print(name, daemon, {k: round(v, 3) for k, v in one.items() if v is not None}, file=sys.stderr, flush=True)
    report(names, daemons, results, args)
    if args.json:
        args.json.write_text(json.dumps([{"scenario": n, "daemon": d, "rounds": r} for (n, d), r in results.items()]))


def report(names, daemons, results, args):
    median = lambda name, daemon, key: statistics.median(one[key] for one in results[name, daemon])  # noqa: E731
    print("\n| scenario | daemon | Mpps | sent, Mpps | cycles per packet | shown | victim, Mpps (of benign) | rules added in | memory |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in (n for n in names if n not in ("two", "setups")):
        for daemon in daemons:
            victim = "–"
            if SCENARIOS[name][3]:
                rate = median(name, daemon, "victim")
                victim = f"{rate / 1e6:.2f}"
                benign = "beside-tracked" if name in ("beside-tracked", "beside-new") else "beside-benign"
                if (benign, daemon) in results:
                    victim += f" ({100 * rate / median(benign, daemon, 'victim'):.0f} %)"
            print(f"| {SCENARIOS[name][0]} | {daemon} | {median(name, daemon, 'pps') / 1e6:.3f} "
                  f"| {median(name, daemon, 'sent') / 1e6:.3f} "
                  f"| {median(name, daemon, 'cycles'):.0f} | {median(name, daemon, 'shown'):.0f} | {victim} | {median(name, daemon, 'setup'):.1f} s "
                  f"| {median(name, daemon, 'memory'):.0f} MiB |")
    for daemon in daemons:
        if ("two", daemon) in results:
            print(f"\n{daemon}: two workers forward {median('two', daemon, 'scaling'):.2f} times what one does "
                  f"({median('two', daemon, 'one') / 1e6:.2f} and {median('two', daemon, 'pps') / 1e6:.2f} Mpps).")
        if ("setups", daemon) in results:
            print(f"\n{daemon}: {median('setups', daemon, 'setups'):.0f} flows set up in a second, "
                  f"{median('setups', daemon, 'flows'):.0f} of {NEW} in {args.seconds:.0f} s.")


if __name__ == "__main__":
    main()
