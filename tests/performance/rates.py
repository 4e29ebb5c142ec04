#!/usr/bin/env python3
"""How well limits are kept: what passes a policer, or a queue of the kernel or of the datapath, against what it was told.

usage: rates.py [--weir BINARY] [--devices veth|dpdk] [--rates 1,10,...] [--seconds S] [--kinds ingress,egress,htb,shaper]

Two hosts in namespaces at a bridge, by veth pairs and AF_PACKET with offloads. For each kind of limit and each rate, in Mb/s:

    udp     datagrams of 1400 bytes at one and a half times the rate: what comes to the other host's interface, by the limit. Where
            no more than the limit is offered, the line says "sender"
    tcp     one connection: what it carries, with its headers, by the limit

With --devices dpdk, a device of DPDK sends datagrams of 1400 bytes as fast as it can, and what comes to another one is counted. That says nothing of
TCP, and there is no htb, but it goes up to 10 Gb/s and more.

The kind htb is a queue of the kernel's discipline, and shaper one of the datapath, for a port that sends past the kernel's. Of each measurement,
two seconds are left out at first, in which what a bucket holds passes at once. Needs root, iperf3, tc and Debian's openvswitch-common; for DPDK two
cores, 2 GiB of huge pages and dpdk.
"""
import argparse
import json
import os
import re
import struct
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.dpdk import HugePages  # noqa: E402
from lib.pcap import write_pcap  # noqa: E402
from lib.vswitch import Switch  # noqa: E402
from lib.wait import until  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))

DATAGRAM, SEGMENT = 1400, 1448


def measure(server, client, seconds, *words):
    """iperf3 from one host to the other; its report."""
    listener = server.start("iperf3", "-s", "-1")
    until(lambda: ":5201 " in server.run("ss", "-Hltn").stdout, what="the server")
    try:
        said = client.run("iperf3", "-c", "10.0.0.2", "-J", "-O", "2", "-t", str(seconds), *words, timeout=seconds + 60).stdout
    finally:
        listener.terminate()
        listener.wait()
    said = json.loads(said)
    return said["end"] if "error" not in said else sys.exit(f"iperf3: {said['error']}")


def limit(vsctl, ports, kind, rate):
    """Sets a limit of so many bit/s on what the second port is sent by the first."""
    a, b = ports
    if kind == "ingress":
        vsctl("set", "interface", a, f"ingress_policing_rate={rate // 1000}", f"ingress_policing_burst={rate // 1000}")
    elif kind == "egress":
        vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=egress-policer",
              f"other_config:cir={rate // 8}", f"other_config:cbs={rate // 8}")
    else:
        vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "queues:1=@one", "--",
              "--id=@one", "create", "queue", f"other_config:max-rate={rate}")


def clear(vsctl, ports):
    a, b = ports
    vsctl("set", "interface", a, "ingress_policing_rate=0", "--", "clear", "port", b, "qos")


def uncounted(kind):
    """Bytes of each frame that a limit does not count: an egress policer counts IP packets, and all others whole frames."""
    return 14 if kind == "egress" else 0


class Devices:
    """Two devices of DPDK, of which the first sends to the second as fast as it can."""

    ports = ["p1", "p2"]

    def __init__(self, weir):
        self.pages = HugePages(1024)
        self.switch = Switch([weir, "vswitchd"], CORES[-1], CORES[0])
        trace = self.switch.dir / "datagrams.pcap"
        udp = struct.pack(">HHHH", 1, 2, DATAGRAM + 8, 0) + bytes(DATAGRAM)
        address = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, *address)
        write_pcap(trace, [bytes.fromhex("020000000002" "020000000001" "0800") + ip + udp] * 64)
        self.switch.add("p1", 1, "type=dpdk", f"options:dpdk-devargs=net_pcap0,rx_pcap={trace},infinite_rx=1")
        self.switch.add("p2", 2, "type=dpdk", "options:dpdk-devargs=net_null0")
        self.switch.ofctl("add-flow", "in_port=1,actions=set_queue:1,output:2")

    def sent(self):
        """Packets: DPDK's null device counts no bytes."""
        return int(re.search(r"tx pkts=(\d+)", self.switch.ofctl("dump-ports", "2"))[1])

    def share(self, kind, rate, seconds):
        limit(self.switch.vsctl, self.ports, kind, rate)
        time.sleep(2)
        before, began = self.sent(), time.monotonic()
        time.sleep(seconds)
        packets, took = self.sent() - before, time.monotonic() - began
        clear(self.switch.vsctl, self.ports)
        return packets * (DATAGRAM + 42 - uncounted(kind)) * 8 / took / rate, None

    def close(self):
        self.switch.close()
        self.pages.close()


def received(host):
    """Bytes and packets that have come to a host."""
    counters = [f"/sys/class/net/eth0/statistics/rx_{what}" for what in ("bytes", "packets")]
    return [int(line) for line in host.run("cat", *counters).stdout.split()]


def share(lab, kind, rate, seconds):
    """What UDP and TCP have of the rate; the first is None where the sender did not offer more."""
    a, b = lab.hosts
    ports = [a.port, b.port]
    if kind in ("htb", "shaper"):
        lab.ovs.vsctl("set", "interface", b.port, f"options:qdisc-bypass={'true' if kind == 'shaper' else 'false'}")
    limit(lab.ovs.vsctl, ports, kind, rate)
    listener = b.start("iperf3", "-s", "-1")
    until(lambda: ":5201 " in b.run("ss", "-Hltn").stdout, what="the server")
    client = a.start("iperf3", "-c", "10.0.0.2", "-J", "-u", "-l", str(DATAGRAM), "-b", str(rate * 3 // 2), "-t", str(seconds + 3))
    time.sleep(2)
    before, began = received(b), time.monotonic()
    time.sleep(seconds)
    (size, packets), took = [after - had for after, had in zip(received(b), before)], time.monotonic() - began
    sent = json.loads(client.communicate(timeout=60)[0])["end"]["sum"]
    listener.terminate()
    listener.wait()
    offered = sent["packets"] / (seconds + 3) * (DATAGRAM + 42) * 8 / rate
    came = (size - packets * uncounted(kind)) * 8 / took / rate
    tcp = measure(b, a, seconds)["sum_received"]["bits_per_second"] * (SEGMENT + 66 - uncounted(kind)) / SEGMENT / rate
    clear(lab.ovs.vsctl, ports)
    return came if offered > 1.1 else None, tcp


def table(kinds, rates, share):
    print("kind     Mb/s      udp      tcp")
    for kind in kinds:
        for rate in map(int, rates.split(",")):
            udp, tcp = share(kind, rate * 1_000_000)
            print(f"{kind:8}{rate:5} {f'{udp:8.1%}' if udp else '  sender'} {f'{tcp:8.1%}' if tcp else ''}".rstrip(), flush=True)


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--weir", default=ROOT / "target/release/weir")
    options.add_argument("--devices", choices=["veth", "dpdk"], default="veth")
    options.add_argument("--rates", default="1,10,100,1000,10000")
    options.add_argument("--seconds", type=int, default=10)
    options.add_argument("--kinds", default="ingress,egress,htb,shaper")
    args = options.parse_args()
    if args.devices == "dpdk":
        devices = Devices(args.weir)
        try:
            measured = [kind for kind in args.kinds.split(",") if kind != "htb"]
            table(measured, args.rates, lambda kind, rate: devices.share(kind, rate, args.seconds))
        finally:
            devices.close()
        return
    os.environ["WEIR"] = str(args.weir)
    from lib.conntrack import NEIGHBOURS, Lab
    from lib.daemon import Ovs
    from lib.net import Net

    net, ovs = Net(), Ovs(expected=[".*"])
    try:
        lab = Lab(ovs, net)
        lab.flows(NEIGHBOURS, "table=0,in_port=1,actions=set_queue:1,output:2", "table=0,in_port=2,actions=1")
        table(args.kinds.split(","), args.rates, lambda kind, rate: share(lab, kind, rate, args.seconds))
    finally:
        ovs.close()
        net.close()


if __name__ == "__main__":
    main()
