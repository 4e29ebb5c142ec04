"""Network namespaces and veth pairs for tests: made here, removed here, also when a test fails."""

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import tempfile

from . import ping
from .wait import until

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_counter = itertools.count()


def run(*cmd, check=True, timeout=60, **kw):
    """Run a command; the result has .stdout and .stderr as text. A failure shows both."""
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise AssertionError(f"{' '.join(map(str, cmd))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r


class Host:
    """A namespace with one end of a veth pair, `eth0`; the other end, `port`, is for the switch."""

    def __init__(self, ns, port):
        self.ns, self.port, self.procs = ns, port, []

    def cmd(self, *cmd):
        return ["ip", "netns", "exec", self.ns, *map(str, cmd)]

    def run(self, *cmd, **kw):
        return run(*self.cmd(*cmd), **kw)

    def start(self, *cmd, **kw):
        """Start a command in the background; it is ended with the host."""
        p = subprocess.Popen(self.cmd(*cmd), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)
        self.procs.append(p)
        return p

    def sniff(self, *what, device="eth0"):
        """tcpdump on `eth0`, which sees all that comes from now on; `what` are options and a filter."""
        return Sniffer(self, *what, device=device)

    def received(self):
        """Packets that have come to `eth0`."""
        return int(self.run("cat", "/sys/class/net/eth0/statistics/rx_packets").stdout)

    def receives(self, more=50):
        """Returns when so many more packets have come."""
        before = self.received()
        until(lambda: self.received() >= before + more, 20, f"{more} packets at {self.ns}")

    @property
    def mac(self):
        return self.run("cat", "/sys/class/net/eth0/address").stdout.strip()

    def ping(self, address, count=3, interval=0.2, wait=4, **kw):
        """How many of `count` pings were answered (`lib.ping`)."""
        with inside(self):
            return ping.Ping(address, count, interval, wait, **kw).run()[1]

    def pings(self, address, count=None, interval=0.02, wait=20):
        """Pings in the background: so many, or until they are stopped."""
        return Pings(self, address, count, interval, wait)


class Pings:
    """Pings in the background. They have begun when this returns."""

    def __init__(self, host, address, count, interval, wait):
        count = ["-c", count] if count else []
        self.proc = host.start(sys.executable, ping.__file__, *count, "-i", interval, "-W", wait, address)
        assert self.proc.stdout.readline() == "begins\n", self.proc.communicate()[1]

    def stop(self):
        """Sends no more. Of how many are how many answered."""
        self.proc.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self):
        """The same, when there are as many as there are to be."""
        sent, answered = self.proc.communicate(timeout=60)[0].split()
        return int(sent), int(answered)


@contextlib.contextmanager
def inside(host):
    """This thread is in the host's namespace; sockets made there stay there."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{host.ns}", os.O_RDONLY)
    try:
        enter(there)
        yield
    finally:
        enter(here)
        os.close(here)
        os.close(there)


def enter(namespace):
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Sniffer:
    """tcpdump, one line for each packet. It runs when this returns."""

    def __init__(self, host, *what, device="eth0"):
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))
        self.proc = subprocess.Popen(host.cmd("tcpdump", "-l", "-U", "--immediate-mode", "-nei", device, *what),
                                     stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, text=True)
        host.procs.append(self.proc)
        until(lambda: "listening on" in self.read(self.err) or self.proc.poll() is not None, what="tcpdump listening")
        assert self.proc.poll() is None, self.read(self.err)

    @staticmethod
    def read(file):
        # Not by seek(): the position is that of the writer, too.
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

    def seen(self):
        """What it has said so far."""
        return self.read(self.out)

    def sees(self, words):
        """Waits until it has said that; the lines that have the words."""
        until(lambda: words in self.seen(), what=f"{words!r} at {self.proc.args[3]}")
        return [line for line in self.seen().splitlines() if words in line]


class Net:
    """Makes hosts; close() removes all of them."""

    def __init__(self):
        self.tag = f"wt{os.getpid() % 100000:x}"
        self.hosts = []

    def host(self, address=None, mtu=None, queues=1, mac=None, address6=None):
        assert os.geteuid() == 0, "network namespaces need root"
        n = next(_counter)
        ns, port = f"{self.tag}-{n}", f"{self.tag}p{n}"
        run("ip", "netns", "add", ns)
        host = Host(ns, port)
        self.hosts.append(host)
        q = ["numrxqueues", queues, "numtxqueues", queues] if queues > 1 else []
        run("ip", "link", "add", port, *q, "type", "veth", "peer", "name", "eth0", "netns", ns, *q)
        host.run("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.eth0.accept_dad=0",
                 "net.ipv6.conf.eth0.router_solicitations=0", check=False)
        run("sysctl", "-qw", f"net.ipv6.conf.{port}.disable_ipv6=1", check=False)
        if mac:
            host.run("ip", "link", "set", "eth0", "address", mac)
        if mtu:
            run("ip", "link", "set", port, "mtu", mtu)
            host.run("ip", "link", "set", "eth0", "mtu", mtu)
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "link", "set", "eth0", "up")
        run("ip", "link", "set", port, "up")
        if address:
            host.run("ip", "addr", "add", address, "dev", "eth0")
        if address6:
            host.run("ip", "addr", "add", address6, "dev", "eth0", "nodad")
        return host

    def close(self):
        for host in self.hosts:
            for p in host.procs:
                if p.poll() is None:
                    p.kill()
            # Their children hold their pipes, and may go on for a minute.
            for pid in run("ip", "netns", "pids", host.ns, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            for p in host.procs:
                p.communicate()
        for host in self.hosts:
            run("ip", "link", "del", host.port, check=False)
            run("ip", "netns", "del", host.ns, check=False)
        self.hosts = []


#: A configuration that joins two hosts.
PAIR = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "{a.port}"
[[bridge.port]]
name = "{b.port}"
"""


def pair(weir, net):
    """A switch that joins two hosts which know each other's address, and these. `weir` and `net` are the fixtures."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    b.run("ip", "neigh", "add", "10.0.0.1", "lladdr", a.mac, "dev", "eth0")
    return weir(PAIR.format(a=a, b=b)), a, b
