#!/usr/bin/env python3
"""What changes, requests and idle flows cost while many datapath flows are in use.

usage: changes.py [--weir BINARY] [--flows N] [--times N] [--seconds S] [--rate N]

A pcap port replays N frames from memory, each of which is a datapath flow of its own: table 0 copies the source address
to a register and goes to table 1, which sends to a null port. One worker forwards them as fast as it can. Meanwhile a
client of the bridge's socket and one of the control socket ask, one request at a time, and wait for each answer:

    add-flow, unrelated table   a flow for a table that no packet reaches, and a barrier
    barrier                     nothing but the barrier
    dump, small table           the flows of a table with four of them, which no packet reaches
    dump, looked-up table       the one flow of table 1, which counts every packet
    version                     `ovs-appctl version`
    ... beside a change         the first and the last of these, while another client changes table 0 without a pause
    add-flow, none overlaps     a flow for table 0 that no packet matches, and a barrier
    add-flow, one overlaps      a flow for table 0 that matches the packets of one datapath flow, and a barrier
    mod-port, another port      no-fwd of a port that nothing is sent to, set and reset, and a barrier
    mod-group, another group    a group that no packet passes, while all packets pass another one, and a barrier

Printed are the median, the 99th percentile and the longest time, in milliseconds. Then the share of a core that the
revalidators take while nothing changes; and the throughput while a client changes table 0 RATE times per second, each
change matching one datapath flow, with a barrier after each tenth of a second's changes, in parts of the throughput
before.
"""
import argparse
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from traces import address, udp, write

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[workers]
cores = [{core}]
[datapath]
flow-limit = 4000000
[[bridge]]
name = "br0"
local = false
fail_mode = "secure"
flows = {flows}
[[bridge.port]]
name = "sink"
type = "null"
ofport = 2
[[bridge.port]]
name = "other"
type = "null"
ofport = 3
[[bridge.port]]
name = "source"
type = "pcap"
ofport = 1
options = {{ rx_pcap = "{trace}", loop = "true" }}
"""
FLOWS = ["table=0,priority=1,udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],resubmit(,1)", "table=1,actions=output:2",
         *(f"table=5,udp,nw_dst=9.9.9.{n},actions=output:2" for n in range(4))]
UNRELATED = 9
ADD, MODIFY, DELETE_STRICT = 0, 1, 4
OTHER_PORT, NO_FWD = 3, 1 << 5


def message(kind, body, xid=1):
    return struct.pack(">BBHI", 4, kind, 8 + len(body), xid) + body


def oxm(source):
    """Matches UDP of this source address, or everything where there is none."""
    fields = b""
    if source is not None:
        fields = (struct.pack(">IH", 0x80000A02, 0x0800) + struct.pack(">IB", 0x80001401, 17)
                  + struct.pack(">II", 0x80001604, source))
    body = struct.pack(">HH", 1, 4 + len(fields)) + fields
    return body + bytes(-len(body) % 8)


def output(port):
    return struct.pack(">HHIH6x", 0, 16, port, 0xFFFF)


def flow_mod(table, source, command=ADD, actions=output(2)):
    instructions = b"" if command == DELETE_STRICT else struct.pack(">HHI", 4, 8 + len(actions), 0) + actions
    fixed = struct.pack(">QQBBHHHIIIH2x", 0, 0, table, command, 0, 0, 100, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return message(14, fixed + oxm(source) + instructions)


def group_mod(command, group, port):
    """An indirect group that sends to a port."""
    bucket = struct.pack(">HHII4x", 32, 0, 0xFFFFFFFF, 0xFFFFFFFF) + output(port)
    return message(15, struct.pack(">HBxI", command, 2, group) + bucket)


def port_mod(port, hw_addr, config):
    return message(16, struct.pack(">I4x6s2xIII4x", port, hw_addr, config, NO_FWD, 0))


def flow_stats(table):
    body = struct.pack(">HH4x", 1, 0) + struct.pack(">B3xII4xQQ", table, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + oxm(None)
    return message(18, body)


class OpenFlow:
    """A client of a bridge's socket that speaks OpenFlow 1.3."""

    def __init__(self, path):
        self.peer, self.data, self.xid = socket.socket(socket.AF_UNIX), b"", 0
        self.peer.connect(str(path))
        self.peer.sendall(message(0, b""))
        self.next()

    def next(self):
        """Type, transaction and body of the next message."""
        while len(self.data) < 8 or len(self.data) < struct.unpack_from(">H", self.data, 2)[0]:
            got = self.peer.recv(1 << 16)
            assert got, "the switch has closed the connection"
            self.data += got
        _, kind, size, xid = struct.unpack_from(">BBHI", self.data)
        body, self.data = self.data[8:size], self.data[size:]
        return kind, xid, body

    def barrier(self, before=b""):
        """Sends what comes before a barrier, the barrier, and waits for its reply."""
        self.xid += 1
        self.peer.sendall(before + message(20, b"", self.xid))
        while True:
            kind, xid, body = self.next()
            assert kind != 1, f"refused: {body.hex()}"
            if kind == 21 and xid == self.xid:
                return

    def hw_addr(self, port):
        self.peer.sendall(message(18, struct.pack(">HH4x", 13, 0)))
        kind, _, body = self.next()
        assert kind == 19, (kind, body)
        ports = dict(struct.unpack_from(">I4x6s", body, at) for at in range(8, len(body), 64))
        return ports[port]

    def dump(self, table):
        self.peer.sendall(flow_stats(table))
        while True:
            kind, _, body = self.next()
            assert kind == 19, (kind, body)
            if not struct.unpack_from(">HH", body)[1] & 1:
                return


class Control:
    """A client of the control socket."""

    def __init__(self, path):
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.connect(str(path))

    def call(self, method):
        self.peer.sendall(json.dumps({"method": method, "params": [], "id": 0}).encode())
        data = b""
        while True:
            data += self.peer.recv(1 << 16)
            try:
                return json.loads(data)["result"]
            except ValueError:
                pass


class Daemon:
    """`weir run` with a directory of its own."""

    def __init__(self, binary, flows):
        self.binary, self.dir = binary, Path(tempfile.mkdtemp(prefix="weir-changes-"))
        trace = write(Path(tempfile.gettempdir()) / f"weir-changes-{flows}.pcap",
                      (udp(0x0A000000 + n, 1024) for n in range(flows)))
        core = max(os.sched_getaffinity(0))
        (self.dir / "weir.toml").write_text(CONFIG.format(core=core, flows=json.dumps(FLOWS), trace=trace))
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir))
        self.log = open(self.dir / "log", "wb")
        self.process = subprocess.Popen([binary, "run", self.dir / "weir.toml"], env=self.env, stdout=self.log,
                                        stderr=self.log)
        self.path = self.dir / f"weir.{self.process.pid}.ctl"
        while not self.path.exists():
            assert self.process.poll() is None, (self.dir / "log").read_text()
            time.sleep(0.05)

    def revalidators(self):
        """Seconds of processor time of the threads that do rounds."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            name, _, rest = (task / "stat").read_text().rpartition(")")
            if "(revalidator" in name:
                total += sum(map(int, rest.split()[11:13]))
        return total / os.sysconf("SC_CLK_TCK")

    def packets(self):
        """Packets so far, and when that was."""
        text = subprocess.run([self.binary, "stats", "--json"], env=self.env, capture_output=True, text=True, check=True)
        return json.loads(text.stdout)["workers"][0]["packets"], time.monotonic()

    def rate(self, seconds):
        (before, began), _ = self.packets(), time.sleep(seconds)
        after, ended = self.packets()
        return (after - before) / (ended - began)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir)


class Background(threading.Thread):
    """Does something again and again until stopped."""

    def __init__(self, act):
        super().__init__(daemon=True)
        self.act, self.stopped, self.count = act, False, 0
        self.start()

    def run(self):
        while not self.stopped:
            self.act(self.count)
            self.count += 1

    def stop(self):
        self.stopped = True
        self.join()


def report(name, times):
    times = sorted(seconds * 1e3 for seconds in times)
    print(f"| {name} | {statistics.median(times):.2f} | {times[len(times) * 99 // 100]:.2f} | {times[-1]:.2f} |", flush=True)


def timed(name, times, act, pause=0.01):
    """Acts so many times, or for twelve seconds."""
    took, end = [], time.monotonic() + 12
    for n in range(times):
        began = time.monotonic()
        if began > end:
            break
        act(n)
        took.append(time.monotonic() - began)
        time.sleep(pause)
    report(f"{name} ({len(took)})", took)


def source(n):
    """The source of one of the datapath's flows."""
    return 0x0A000000 + n % 1000 * 97


def latencies(daemon, bridge, times):
    control = Control(daemon.path)
    other = 0xAC100000
    print("| request (how often) | median, ms | 99 % | longest |\n|---|---:|---:|---:|")
    unrelated = lambda n: bridge.barrier(flow_mod(UNRELATED, other + n))
    timed("add-flow, unrelated table", times, unrelated)
    timed("barrier", times, lambda n: bridge.barrier())
    timed("dump, small table", times, lambda n: bridge.dump(5))
    timed("dump, looked-up table", times, lambda n: bridge.dump(1))
    timed("version", times, lambda n: control.call("version"))
    # The rules that change are there at first, so that the masks are those of all the rest.
    bridge.barrier(flow_mod(0, other))
    time.sleep(2)
    changer = OpenFlow(daemon.dir / "br0.mgmt")
    background = Background(lambda n: changer.barrier(flow_mod(0, source(n), DELETE_STRICT if n & 1 else ADD)))
    timed("add-flow, unrelated table, beside a change", times, unrelated)
    timed("version, beside a change", times, lambda n: control.call("version"))
    background.stop()
    timed("add-flow, none overlaps", times, lambda n: bridge.barrier(flow_mod(0, other + n)))
    timed("add-flow, one overlaps", times, lambda n: bridge.barrier(flow_mod(0, source(n))))
    address = bridge.hw_addr(OTHER_PORT)
    timed("mod-port, another port", times,
          lambda n: bridge.barrier(port_mod(OTHER_PORT, address, 0 if n & 1 else NO_FWD)))
    for group in (1, 2):
        bridge.barrier(group_mod(ADD, group, 2))
    bridge.barrier(flow_mod(1, None, MODIFY, struct.pack(">HHI", 22, 8, 1)))
    time.sleep(2)
    timed("mod-group, another group", times, lambda n: bridge.barrier(group_mod(MODIFY, 2, 2 + n % 2)))
    bridge.barrier(flow_mod(1, None, MODIFY))


def under_changes(daemon, rate, seconds):
    """Packets per second while table 0 is changed so often, and the times that barriers took."""
    changer, waits, sent = OpenFlow(daemon.dir / "br0.mgmt"), [], 0
    each = max(1, rate // 10)
    (before, began), due = daemon.packets(), time.monotonic()
    while due < began + seconds:
        changes = b"".join(flow_mod(0, source(n // 2), DELETE_STRICT if n & 1 else ADD) for n in range(sent, sent + each))
        asked = time.monotonic()
        changer.barrier(changes)
        waits.append(time.monotonic() - asked)
        sent += each
        due += each / rate
        time.sleep(max(0, due - time.monotonic()))
    after, ended = daemon.packets()
    return (after - before) / (ended - began), sent / (ended - began), waits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target/release/weir")
    parser.add_argument("--flows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=1000)
    args = parser.parse_args()
    daemon = Daemon(args.weir, args.flows)
    try:
        bridge = OpenFlow(daemon.dir / "br0.mgmt")
        control, began, flows = Control(daemon.path), time.monotonic(), 0
        while flows < args.flows * 0.999 and time.monotonic() < began + 60:
            time.sleep(0.5)
            flows = int(re.search(r"current (\d+)", control.call("upcall/show"))[1])
        print(f"{flows} flows after {time.monotonic() - began:.1f} s")
        time.sleep(3)
        cpu, began = daemon.revalidators(), time.monotonic()
        quiet = daemon.rate(8)
        share = (daemon.revalidators() - cpu) / (time.monotonic() - began)
        print(control.call("upcall/show").strip())
        print(f"\nrounds: {100 * share:.1f} % of a core; {quiet / 1e6:.2f} Mpps\n")
        latencies(daemon, bridge, args.times)
        quiet = daemon.rate(3)
        rate, changes, waits = under_changes(daemon, args.rate, args.seconds)
        print(f"\n{changes:.0f} changes per second: {rate / 1e6:.2f} of {quiet / 1e6:.2f} Mpps, {100 * rate / quiet:.0f} %")
        print("| request | median, ms | 99 % | longest |\n|---|---:|---:|---:|")
        report(f"barrier ({len(waits)})", waits)
        print(control.call("upcall/show").strip())
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
