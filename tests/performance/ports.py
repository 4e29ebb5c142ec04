#!/usr/bin/env python3
"""A switch with many ports: N veth pairs, all given to a bridge by one ovs-vsctl transaction, and taken away again.

usage: ports.py [--weir BINARY] [--ovs] [--ports N,N,...] [--ipv6] [--one-namespace] [--seconds S] [--settle S]

For each N, with a real ovsdb-server and a fresh daemon, printed is:

    added       seconds from ovs-vsctl's start until every port has its OpenFlow number
    memory      resident memory of the daemon, and what the kernel has for itself beside
    idle        processor time of the daemon in S seconds in which nobody but the peers' own kernels sends anything,
                in percent of one core, and how many frames came and were sent in a second of these
    ping        median round trip in microseconds between two ports: before the others came, and among them
    others      frames lost of a stream between two other ports while ports were added, and while they were removed,
                out of so many sent, and the longest gap in milliseconds
    removed     seconds from `ovs-vsctl` that takes the N ports away until the datapath has none of them

The pairs' other ends have no IPv6 unless --ipv6 says so: with it each tells all others that it is there, again and
again. Each is in a network namespace of its own, as a container's is, unless --one-namespace says that all share one:
then the kernel looks through the routes of all for each frame that one of them receives, which it does in the time of
the thread that sends. Everything is in network namespaces. Needs root and Debian's openvswitch-common (tools); --ovs
also openvswitch-switch, whose daemon is measured in place of Weir's.
"""
import argparse
import fcntl
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OVS = "/usr/lib/openvswitch-switch/ovs-vswitchd"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
# Frames per second of the stream between two other ports.
RATE = 2000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def sh(*cmd, check=True, timeout=600, **kw):
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise SystemExit(f"{' '.join(map(str, cmd))[:200]}: exit {r.returncode}\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r.stdout


def batch(lines, ns=None):
    """Many commands of ip(8) by one process."""
    inside = ["ip", "netns", "exec", ns] if ns else []
    sh(*inside, "ip", "-batch", "-", input="\n".join(lines) + "\n")


class Stream(threading.Thread):
    """Numbered frames from one veth's peer to another's. Both ends are sockets of this process."""

    def __init__(self, sender, receiver):
        super().__init__(daemon=True)
        self.sender, self.receiver = sender, receiver
        self.stop, self.done = threading.Event(), threading.Event()
        self.sent = self.received = 0
        self.gap = self.last = 0

    def run(self):
        collector = threading.Thread(target=self.collect, daemon=True)
        collector.start()
        header = b"\x02\0\0\0\x99\x02\x02\0\0\0\x99\x01\x88\xb5"
        start = time.monotonic()
        while not self.stop.is_set():
            due = int((time.monotonic() - start) * RATE)
            while self.sent < due:
                self.sender.send(header + struct.pack("!Q", self.sent) + bytes(38))
                self.sent += 1
            time.sleep(0.001)
        # What is late is not lost.
        late = time.monotonic() + 5
        while self.received < self.sent and time.monotonic() < late:
            time.sleep(0.01)
        self.done.set()
        collector.join(2)

    def collect(self):
        self.receiver.settimeout(0.2)
        while True:
            try:
                frame = self.receiver.recv(2048)
            except TimeoutError:
                if self.done.is_set():
                    return
                continue
            if frame[12:14] != b"\x88\xb5":
                continue
            now = time.monotonic()
            if self.received:
                self.gap = max(self.gap, now - self.last)
            self.last = now
            self.received += 1

    def end(self):
        self.stop.set()
        self.join()
        return f"{self.sent - self.received} of {self.sent}, {self.gap * 1000:.0f} ms"


class Net:
    """Namespaces a, b, c, d with the other ends of four ports, and e with those of the N."""

    def __init__(self, stack, count, ipv6, together):
        self.tag = f"wm{os.getpid() % 100000:x}"
        stack.callback(self.close)
        peers = ["e"] * count if together else [f"e{i}" for i in range(count)]
        self.spaces = [self.tag + ns for ns in dict.fromkeys([*"abcd", *peers])]
        batch(f"netns add {ns}" for ns in self.spaces)
        for ns in self.spaces:
            inside(ns, lambda: disable_ipv6(not ipv6))
        sh("sysctl", "-qw", f"net.ipv6.conf.default.disable_ipv6={int(not ipv6)}", check=False)
        self.four = [f"w{ns}" for ns in "abcd"]
        pairs = [(f"w{ns}", self.tag + ns, "eth0") for ns in "abcd"]
        pairs += [(f"v{i}", self.tag + ns, f"p{i}") for i, ns in enumerate(peers)]
        self.many = [port for port, _, _ in pairs[4:]]
        batch(f"link add {port} type veth peer name {peer} netns {ns}" for port, ns, peer in pairs)
        batch(f"link set {port} up" for port, _, _ in pairs)
        for ns in self.spaces[:4]:
            batch(["link set lo up", f"addr add 10.77.0.{self.spaces.index(ns) + 1}/24 dev eth0", "link set eth0 up"], ns)
        for _, ns, peer in pairs[4:]:
            inside(ns, lambda: set_up(peer))

    def socket(self, ns, device="eth0"):
        """A packet socket in a namespace."""
        def make():
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
            s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
            s.bind((device, 0x88B5))
            return s
        return inside(self.tag + ns, make)

    def ping(self, count=50):
        """Median round trip in microseconds."""
        out = sh("ip", "netns", "exec", self.tag + "a", "ping", "-n", "-i", "0.02", "-c", count, "10.77.0.2",
                 check=False)
        times = [float(t) * 1000 for t in re.findall(r"time=([\d.]+)", out)]
        return f"{statistics.median(times):.0f}" if len(times) > count // 2 else f"{len(times)} of {count} came back"

    def close(self):
        # Deleting a namespace deletes the pairs, all at once.
        batch(f"netns del {ns}" for ns in self.spaces)


def inside(ns, work):
    """Does something in a network namespace, without a process of its own: there may be a thousand."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{ns}") as there:
        setns(there)
        try:
            return work()
        finally:
            setns(home)


def disable_ipv6(disabled):
    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text(f"{int(disabled)}\n")


def set_up(device):
    """As `ip link set DEVICE up`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name = device.encode().ljust(16, b"\0")
        flags, = struct.unpack_from("H", fcntl.ioctl(s, SIOCGIFFLAGS, name + bytes(24)), 16)
        fcntl.ioctl(s, SIOCSIFFLAGS, name + struct.pack("H", flags | IFF_UP) + bytes(22))


def setns(file):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")


class Switch:
    """A daemon with its ovsdb-server."""

    def __init__(self, stack, command):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-ports-"))
        stack.callback(shutil.rmtree, self.dir, True)
        self.env = dict(os.environ, **{f"OVS_{d}DIR": str(self.dir) for d in ("RUN", "LOG", "DB", "SYSCONF")})
        self.db = f"unix:{self.dir}/db.sock"
        sh("ovsdb-tool", "create", self.dir / "conf.db", SCHEMA)
        self.start(stack, ["ovsdb-server", self.dir / "conf.db", f"--remote=p{self.db}",
                           f"--unixctl={self.dir}/db.ctl", "-vconsole:off"])
        self.vsctl("--no-wait", "init")
        self.process = self.start(stack, [*command, self.db, f"--unixctl={self.dir}/switch.ctl"])
        self.pid = self.process.pid
        while not (self.dir / "switch.ctl").exists():
            if self.process.poll() is not None:
                raise SystemExit((self.dir / "log").read_text())
            time.sleep(0.05)

    def start(self, stack, command):
        with open(self.dir / "log", "ab") as log:
            process = subprocess.Popen([str(c) for c in command], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log)

        def end():
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        stack.callback(end)
        return process

    def vsctl(self, *args, timeout=120):
        return sh("ovs-vsctl", f"--db={self.db}", f"--timeout={timeout}", "--retry", *args, env=self.env)

    def appctl(self, *args):
        return sh("ovs-appctl", "-t", self.dir / "switch.ctl", *args, env=self.env)

    def ofctl(self, *args):
        return sh("ovs-ofctl", *args, env=self.env)

    def numbered(self):
        """How many interfaces have an OpenFlow number."""
        out = self.vsctl("--no-headings", "--columns=ofport", "--format=csv", "list", "interface")
        return sum(line.strip().isdigit() for line in out.splitlines())

    def memory(self):
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024

    def cpu(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def frames(self):
        """How many frames came from all ports, and were sent to them."""
        out = self.ofctl("dump-ports", "br0")
        return [sum(int(n) for n in re.findall(way + r" pkts=(\d+)", out)) for way in ("rx", "tx")]

    def idle(self, seconds):
        frames, before = self.frames(), self.cpu()
        time.sleep(seconds)
        used = 100 * (self.cpu() - before) / seconds
        came, sent = ((now - then) / seconds for now, then in zip(self.frames(), frames))
        return f"{used:.1f} %, {came:.1f} frames/s came, {sent:.0f} were sent"


def kernel():
    """Memory that the kernel has for itself, in MB."""
    info = Path("/proc/meminfo").read_text()
    kinds = ("SUnreclaim", "VmallocUsed", "Percpu", "KernelStack", "PageTables")
    return sum(int(re.search(rf"^{kind}:\s+(\d+)", info, re.M)[1]) for kind in kinds) // 1024


def until(condition, what, seconds, pause=0.05):
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(pause)
    return time.monotonic() - start


def measure(command, count, args):
    with ExitStack() as stack:
        net = Net(stack, count, args.ipv6, args.one_namespace)
        switch = Switch(stack, command)
        switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
                     *(w for port in net.four for w in ("--", "add-port", "br0", port)))
        until(lambda: switch.numbered() == 5, "the first ports", 30)
        net.ping(10)
        result = {"ports": count, "ping with 2": net.ping()}
        sender, receiver = net.socket("c"), net.socket("d")
        # So that the switch knows where the receiver is.
        receiver.send(b"\x02\0\0\0\x99\x01\x02\0\0\0\x99\x02\x88\xb5" + bytes(46))
        time.sleep(1)
        before = kernel()

        stream = Stream(sender, receiver)
        stream.start()
        time.sleep(1)
        start = time.monotonic()
        transaction = [w for port in net.many for w in ("--", "add-port", "br0", port)]
        try:
            switch.vsctl(*transaction[1:], timeout=args.limit)
            until(lambda: switch.numbered() == count + 5, "all ports", args.limit, 0.2)
        except SystemExit as error:
            print(error, file=sys.stderr)
        result["added"] = f"{time.monotonic() - start:.1f} s"
        result["others, adding"] = stream.end()
        time.sleep(args.settle)
        result["memory"] = f"{switch.memory()} MB, and {kernel() - before} MB of the kernel"
        result["idle"] = switch.idle(args.seconds)
        if args.profile:
            sh("sh", "-c", args.profile.replace("PID", str(switch.pid)), check=False)
        net.ping(10)
        result["ping with all"] = net.ping()
        receiver.send(b"\x02\0\0\0\x99\x01\x02\0\0\0\x99\x02\x88\xb5" + bytes(46))
        time.sleep(0.5)

        stream = Stream(sender, receiver)
        stream.start()
        time.sleep(1)
        start = time.monotonic()
        transaction = [w for port in net.many for w in ("--", "del-port", "br0", port)]
        try:
            switch.vsctl(*transaction[1:], timeout=args.limit)
            until(lambda: len(re.findall(r"^\s+v\d+ ", switch.appctl("dpif/show"), re.M)) == 0, "none left", args.limit,
                  0.2)
        except SystemExit as error:
            print(error, file=sys.stderr)
        result["removed"] = f"{time.monotonic() - start:.1f} s"
        result["others, removing"] = stream.end()
        time.sleep(1)
        result["memory afterwards"] = f"{switch.memory()} MB"
        return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=ROOT / "target/release/weir")
    p.add_argument("--ovs", action="store_true")
    p.add_argument("--ports", default="300,1000")
    p.add_argument("--ipv6", action="store_true")
    p.add_argument("--one-namespace", action="store_true")
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--settle", type=float, default=3)
    p.add_argument("--limit", type=int, default=120, help="seconds after which adding or removing is given up")
    p.add_argument("--profile", help="a shell command to run while the switch is idle; PID stands for the daemon's")
    args = p.parse_args()
    command = [OVS] if args.ovs else [args.weir, "vswitchd"]
    for count in args.ports.split(","):
        for name, value in measure(command, int(count), args).items():
            print(f"{name:18} {value}", flush=True)
        print()


if __name__ == "__main__":
    main()
