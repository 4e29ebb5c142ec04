#!/usr/bin/env python3
"""Two network namespaces with all their offloads on, joined by one switch or another.

usage: namespaces.py [--weir BINARY] [--rounds N] [--seconds S] [--cases a,b,...]
                     [--measure ping,udp,tcp] [--options TOML] [--workers TOML]

Each case joins a fresh pair of namespaces and measures, one after the other: ping (round trip, median of
thirty), UDP in frames of 64 bytes (what reaches the other namespace while a sender gives all it can), and
TCP (iperf3, one connection). The cases take turns, N times; printed are medians, and each case's share of
the Linux bridge. A switch with a polling thread has it on the last core; everything else goes where the
scheduler puts it.

    bridge          the Linux bridge, which uses no core of its own
    weir-TYPE       Weir with two ports of that type: system, afpacket, afxdp, tap
    ovs-TYPE        OVS's userspace datapath with two ports of that type: afxdp, system (AF_PACKET)

Needs root, iperf3 and, for OVS, Debian's openvswitch-switch. Believe ratios, not absolute figures.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ended import clean_up_when_ended  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OVS = "/usr/lib/openvswitch-switch/ovs-vswitchd"
TAG = f"wp{os.getpid() % 100000:x}"
A, B = "10.203.0.1", "10.203.0.2"
CORE = max(os.sched_getaffinity(0))
PAYLOAD = 18


def sh(*cmd, check=True, timeout=60, **kw):
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise SystemExit(f"{' '.join(map(str, cmd))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def inside(ns, *cmd, **kw):
    return sh("ip", "netns", "exec", f"{TAG}{ns}", *cmd, **kw)


def wait(condition, what, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


@contextmanager
def namespaces():
    """Two namespaces, without a link yet."""
    try:
        for ns in "ab":
            sh("ip", "netns", "add", TAG + ns)
            inside(ns, "ip", "link", "set", "lo", "up")
            inside(ns, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        yield
    finally:
        for ns in "ab":
            sh("ip", "netns", "del", TAG + ns, check=False)


@contextmanager
def veths():
    """A veth pair for each: eth0 inside, PORT outside."""
    ports = []
    try:
        for ns in "ab":
            port = f"{TAG}p{ns}"
            sh("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", TAG + ns)
            ports.append(port)
            sh("sysctl", "-qw", f"net.ipv6.conf.{port}.disable_ipv6=1", check=False)
            sh("ip", "link", "set", port, "up")
        yield ports
    finally:
        for port in ports:
            sh("ip", "link", "del", port, check=False)


@contextmanager
def bridge(_):
    with veths() as ports:
        name = f"{TAG}br"
        sh("ip", "link", "add", name, "type", "bridge")
        try:
            for port in ports:
                sh("ip", "link", "set", port, "master", name)
            sh("ip", "link", "set", name, "up")
            yield
        finally:
            sh("ip", "link", "del", name, check=False)


@contextmanager
def daemon(cmd, folder, env):
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen([str(c) for c in cmd], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def weir(args, kind):
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-ns-")))
        ports = [f"{TAG}pa", f"{TAG}pb"] if kind == "tap" else stack.enter_context(veths())
        options = f"options = {{ {args.options} }}\n" if args.options else ""
        text = f'[workers]\ncores = [{CORE}]\n{args.workers}\n[[bridge]]\nname = "br0"\nlocal = false\n'
        text += "".join(f'[[bridge.port]]\nname = "{port}"\ntype = "{kind}"\n{options}' for port in ports)
        (folder / "weir.toml").write_text(text)
        env = dict(os.environ, OVS_RUNDIR=str(folder))
        stack.enter_context(daemon([args.weir, "run", folder / "weir.toml"], folder, env))
        ready = lambda: subprocess.run([args.weir, "show"], env=env, capture_output=True).returncode == 0
        wait(ready, f"weir running ({(folder / 'log').read_text()})")
        if kind == "tap":
            for ns, port in zip("ab", ports):
                sh("ip", "link", "set", port, "netns", TAG + ns)
                inside(ns, "ip", "link", "set", port, "name", "eth0")
        yield


@contextmanager
def ovs(_, kind):
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ovs-ns-")))
        ports = stack.enter_context(veths())
        env = dict(os.environ, **{f"OVS_{d}DIR": str(folder) for d in ("RUN", "LOG", "DB", "SYSCONF")})
        db = f"unix:{folder}/db.sock"
        sh("ovsdb-tool", "create", folder / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
        stack.enter_context(daemon(["ovsdb-server", folder / "conf.db", f"--remote=p{db}",
                                    f"--unixctl={folder}/db.ctl"], folder, env))
        wait((folder / "db.sock").exists, "ovsdb-server running")
        vsctl = lambda *a: sh("ovs-vsctl", f"--db={db}", "--timeout=20", *a, env=env)
        vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << CORE:#x}")
        stack.enter_context(daemon([OVS, db, f"--unixctl={folder}/vswitchd.ctl"], folder, env))
        # Removed while the daemon runs, or the kernel keeps what the daemon has made.
        stack.callback(lambda: vsctl("del-br", "br0"))
        vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        for port in ports:
            vsctl("add-port", "br0", port, *(["--", "set", "interface", port, f"type={kind}"] if kind != "system" else []))
        yield


def case(name):
    if name == "bridge":
        return bridge
    maker, _, kind = name.partition("-")
    return lambda args: {"weir": weir, "ovs": ovs}[maker](args, kind)


def addresses():
    for ns, address in zip("ab", (A, B)):
        inside(ns, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        inside(ns, "ip", "link", "set", "eth0", "up")
    reached = lambda: " 0 received" not in inside("a", "ping", "-n", "-c1", "-W1", B, check=False)
    wait(reached, "ping from one namespace to the other")


def ping():
    """Median round trip in milliseconds."""
    text = inside("a", "ping", "-n", "-i", "0.1", "-c", "30", B)
    return statistics.median(float(time) for time in re.findall(r"time=([\d.]+)", text))


def tcp(seconds):
    """Gbit/s of one connection; zero where there is none."""
    server = subprocess.Popen(["ip", "netns", "exec", f"{TAG}b", "iperf3", "-s", "-1"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: ":5201" in inside("b", "ss", "-Hltn"), "the iperf3 server listening")
        text = inside("a", "timeout", seconds + 8, "iperf3", "-c", B, "-t", seconds, "--connect-timeout", 3000,
                      "-J", check=False)
        report = json.loads(text) if text.strip().endswith("}") else {}
        return report.get("end", {}).get("sum_received", {}).get("bits_per_second", 0) / 1e9
    finally:
        server.kill()
        server.wait()


def flood(seconds):
    """Sends small datagrams for some time, 64 with each system call."""
    class iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    class mmsghdr(ctypes.Structure):
        _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(iovec)),
                    ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                    ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]

    send = ctypes.CDLL(None).sendmmsg
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((B, 9))
    payload = ctypes.create_string_buffer(PAYLOAD)
    vector = iovec(ctypes.cast(payload, ctypes.c_void_p), PAYLOAD)
    messages = (mmsghdr * 64)(*(mmsghdr(iov=ctypes.pointer(vector), iovlen=1) for _ in range(64)))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        send(s.fileno(), messages, 64, 0)


def udp(seconds):
    """Thousand packets per second that arrive."""
    sink = subprocess.Popen(
        ["ip", "netns", "exec", f"{TAG}b", sys.executable, "-c",
         "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 9)); time.sleep(600)"])
    sender = subprocess.Popen(["ip", "netns", "exec", f"{TAG}a", sys.executable, __file__, "--flood", str(seconds + 1)])
    try:
        time.sleep(0.7)
        read = lambda: int(inside("b", "cat", "/sys/class/net/eth0/statistics/rx_packets"))
        before, start = read(), time.monotonic()
        time.sleep(seconds - 0.4)
        return (read() - before) / (time.monotonic() - start) / 1e3
    finally:
        sender.wait()
        sink.kill()
        sink.wait()


def measure(args, name):
    with namespaces(), case(name)(args):
        addresses()
        what = {"ping": ping, "udp": lambda: udp(args.seconds), "tcp": lambda: tcp(args.seconds)}
        return {name: run() if name in args.measure.split(",") else 0.0 for name, run in what.items()}


def main():
    clean_up_when_ended()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--cases", default="bridge,weir-system,weir-afpacket,weir-afxdp,weir-tap,ovs-afxdp,ovs-system")
    p.add_argument("--measure", default="ping,udp,tcp")
    p.add_argument("--options", default="", help="options of Weir's ports, in TOML")
    p.add_argument("--workers", default="", help="more lines of [workers], in TOML")
    p.add_argument("--flood", type=float, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.flood:
        return flood(args.flood)
    names = args.cases.split(",")
    if not Path(OVS).exists() or not shutil.which("ovsdb-server"):
        names = [name for name in names if not name.startswith("ovs")]
    results = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            results[name].append(measure(args, name))
            print(f"  {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    median = lambda name, what: statistics.median(r[what] for r in results[name])
    median_of_bridge = {what: median("bridge", what) for what in ("tcp", "ping")} if "bridge" in results else {}
    print("\n| two namespaces, offloads on | TCP Gbit/s | of the bridge | UDP 64 bytes kpps | ping ms | of the bridge |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in names:
        figures = {what: median(name, what) for what in ("tcp", "udp", "ping")}
        share = lambda what: f"{figures[what] / median('bridge', what):.2f}" if median_of_bridge.get(what) else "–"
        print(f"| {name} | {figures['tcp']:.2f} | {share('tcp')} | {figures['udp']:.0f} | {figures['ping']:.3f} | {share('ping')} |")


if __name__ == "__main__":
    main()
