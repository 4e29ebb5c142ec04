"""Hundreds of ports, as a Kubernetes node or a hypervisor has them: what each costs, and that each works."""

import ctypes
import json
import os
import re
import resource
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from lib.daemon import Ovs
from lib.net import run
from lib.wait import until

COUNT = 200
TYPE = 0x88B5
BROADCAST = b"\xff" * 6


def batch(lines, ns=None):
    """Many commands of ip(8) by one process."""
    inside = ["ip", "netns", "exec", ns] if ns else []
    run(*inside, "ip", "-batch", "-", input="\n".join(lines) + "\n")


class Peers:
    """Veth pairs: m0, m1, ... for the switch, and their other ends in a namespace."""

    def __init__(self, count):
        self.ns, self.count = f"wmany{os.getpid() % 100000:x}", count
        self.names = [f"m{n}" for n in range(count)]
        self.ends = {*self.names, *(f"e{n}" for n in range(count))}
        run("ip", "netns", "add", self.ns)
        run("ip", "netns", "exec", self.ns, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        batch(f"link add m{n} type veth peer name e{n} netns {self.ns}" for n in range(count))
        for n in range(count):
            Path(f"/proc/sys/net/ipv6/conf/m{n}/disable_ipv6").write_text("1")
        batch(f"link set m{n} up" for n in range(count))
        batch([f"link set e{n} up" for n in range(count)], self.ns)
        # The kernel notices carriers once in a second. Until then it drops what such a device sends.
        until(lambda: all(self.are_up(*where) for where in ((), ("-n", self.ns))), what="carriers")
        self.sockets = self.open()

    def are_up(self, *where):
        links = json.loads(run("ip", "-j", *where, "link", "show", "type", "veth").stdout)
        return sum(link["operstate"] == "UP" and link["ifname"] in self.ends for link in links) == self.count

    def open(self):
        """A packet socket at each of the other ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net") as home, open(f"/run/netns/{self.ns}") as there:
            assert libc.setns(there.fileno(), 0) == 0
            try:
                sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE)) for _ in self.names]
                for n, s in enumerate(sockets):
                    s.bind((f"e{n}", TYPE))
            finally:
                assert libc.setns(home.fileno(), 0) == 0
        return sockets

    def received(self, ends, seconds=10):
        """What each end gets until so many have got something, or for so long: {end: [frame, ...]}."""
        got, end = {}, time.monotonic() + seconds
        while len(got) < ends and time.monotonic() < end:
            for n, s in enumerate(self.sockets):
                try:
                    frame = s.recv(2048, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                got.setdefault(n, []).append(frame)
        return got

    def drain(self):
        for s in self.sockets:
            try:
                while s.recv(2048, socket.MSG_DONTWAIT):
                    pass
            except BlockingIOError:
                pass

    def close(self):
        for s in self.sockets:
            s.close()
        run("ip", "netns", "del", self.ns)


def mac(n):
    return struct.pack("!HI", 0x0200, n + 1)


def frame(destination, source, content=b""):
    return (destination + source + struct.pack("!H", TYPE) + content).ljust(60, b"\0")


@pytest.fixture(scope="module")
def peers():
    p = Peers(COUNT)
    yield p
    p.close()


@pytest.fixture(scope="module")
def many(peers):
    """A switch that was given all ports by one transaction, under the limit of open files that most systems have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    o = Ovs()
    try:
        o.start()
        o.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        o.rss = status(o, "VmRSS")
        add = [word for name in peers.names for word in ("--", "add-port", "br0", name)]
        o.vsctl(*add[1:], timeout=120)
        yield o
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        o.close()


def status(ovs, name):
    """A number of /proc/PID/status, in KiB where it is memory."""
    return int(re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{ovs.pid()}/status").read_text(), re.M)[1])


def worker(ovs):
    """The directory of the worker's thread in /proc."""
    tasks = Path(f"/proc/{ovs.pid()}/task").iterdir()
    return next(task for task in tasks if (task / "comm").read_text().startswith("worker"))


def switches(task):
    """How often a thread went to sleep."""
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[1])


def test_every_port_works_although_the_soft_limit_of_open_files_is_low(many, peers):
    out = many.vsctl("--columns=name,ofport,error", "--format=csv", "--no-headings", "list", "interface").splitlines()
    numbers = {name: number for name, number, _ in (line.split(",", 2) for line in out)}
    assert all(numbers[name].isdigit() for name in peers.names), out
    assert len(list(Path(f"/proc/{many.pid()}/fd").iterdir())) > 256


def test_a_port_that_is_idle_has_no_ring(many):
    # A ring takes 2 MiB.
    each = (status(many, "VmRSS") - many.rss) / COUNT
    assert each < 160, f"{each:.0f} KiB for each port"


def test_a_broadcast_reaches_all_ports_and_answers_one(many, peers):
    peers.drain()
    sender = COUNT // 2
    peers.sockets[sender].send(frame(BROADCAST, mac(sender), b"to all"))
    others = peers.received(COUNT - 1)
    assert sorted(others) == [n for n in range(COUNT) if n != sender]
    assert all(frames == [frame(BROADCAST, mac(sender), b"to all")] for frames in others.values())
    # Each port answers, and the answers reach the sender alone.
    for n, s in enumerate(peers.sockets):
        if n != sender:
            s.send(frame(mac(sender), mac(n), struct.pack("!I", n)))
    answers = {}

    def all_answers():
        for n, frames in peers.received(1, 0.2).items():
            answers.setdefault(n, []).extend(frames)
        return len(answers.get(sender, [])) >= COUNT - 1

    until(all_answers, what="an answer of each port")
    assert list(answers) == [sender]
    numbers = sorted(struct.unpack("!I", f[14:18])[0] for f in answers[sender])
    assert numbers == [n for n in range(COUNT) if n != sender]


def test_broadcasts_to_all_ports_leave_no_memory_behind(many, peers):
    def broadcast(count):
        for number in range(count):
            peers.sockets[0].send(frame(BROADCAST, mac(0), struct.pack("!I", number)))
            assert len(peers.received(COUNT - 1)) == COUNT - 1
            peers.drain()

    peers.drain()
    broadcast(30)
    before = status(many, "VmRSS")
    broadcast(100)
    # All the copies of one frame are 400 KiB.
    assert status(many, "VmRSS") - before < 4096, "KiB"


def test_an_idle_worker_sleeps_however_many_ports_it_has(many, peers):
    """Each sleep that ends by itself is a look at all ports: there is none."""
    task = worker(many)
    # Until what the test before has sent has gone its way.
    until(lambda: (lambda before: time.sleep(0.3) or switches(task) - before < 3)(switches(task)), 30, "rest")
    before = switches(task)
    time.sleep(3)
    assert switches(task) - before < 30, "times in 3 s"


def test_a_worker_waits_for_all_ports_with_one_descriptor(many, peers):
    """Where it looks at each port, the descriptors that it hands to the kernel are as many."""
    task, trace = worker(many), many.dir / "worker.strace"
    calls = "trace=poll,ppoll,epoll_wait,epoll_pwait,epoll_pwait2,recvmsg"
    tracer = subprocess.Popen(["strace", "-p", task.name, "-o", trace, "-e", calls], stderr=subprocess.DEVNULL)
    try:
        until(lambda: "TracerPid:\t0\n" not in (task / "status").read_text(), what="strace at work")
        for n in range(10):
            peers.sockets[n].send(frame(mac(n + 1), mac(n), b"one"))
            until(lambda: peers.received(1, 0.1), what="the frame at the other end")
    finally:
        tracer.terminate()
        tracer.wait(30)
    text = trace.read_text()
    polled = [int(n) for n in re.findall(r"ppoll\(.*\], (\d+),", text)]
    assert polled and max(polled) < 16, text[:2000]
    # Ten frames, and looks at the few ports that have had one lately.
    assert text.count("recvmsg(") < 20 * COUNT, "looks at ports without frames"


def test_ports_are_removed_without_a_trace(many, peers):
    remove = [word for name in peers.names for word in ("--", "del-port", "br0", name)]
    many.vsctl(*remove[1:], timeout=120)
    until(lambda: not re.search(r"^\s+m\d+ ", many.appctl("dpif/show"), re.M), what="the ports' end")
    # As one look has it, at files that may be closed meanwhile.
    sockets = lambda: run("ls", "-l", f"/proc/{many.pid()}/fd", check=False).stdout.count("socket:")
    until(lambda: sockets() < 30, 30, "their sockets closed")
    # None of the interfaces is left promiscuous.
    flags = lambda: [int(Path(f"/sys/class/net/{name}/flags").read_text(), 16) for name in peers.names]
    until(lambda: not any(f & 0x100 for f in flags()), what="the end of promiscuous mode")
