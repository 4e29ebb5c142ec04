#!/usr/bin/env python3
"""How well limits are kept: what passes a policer, or a queue of the kernel or of the datapath, against what it was told.

usage: rates.py [--weir BINARY] [--rates 1,10,...] [--seconds S] [--kinds ingress,egress,htb,shaper]

Two hosts in namespaces at a bridge, by veth pairs and AF_PACKET with offloads. For each kind of limit and each rate, in Mb/s:

    udp     datagrams of 1400 bytes at one and a half times the rate: what comes to the other host's interface, by the limit. Where
            no more than the limit is offered, the line says "sender"
    tcp     one connection: what it carries, with its headers, by the limit

The kind htb is a queue of the kernel's discipline, and shaper one of the datapath, for a port that sends past the kernel's. Of each measurement,
two seconds are left out at first, in which what a bucket holds passes at once. Needs root, iperf3, tc and Debian's openvswitch-common.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.wait import until  # noqa: E402

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


def limit(lab, kind, rate):
    """Sets a limit of so many bit/s on what the second host is sent."""
    a, b = (host.port for host in lab.hosts)
    if kind == "ingress":
        lab.ovs.vsctl("set", "interface", a, f"ingress_policing_rate={rate // 1000}", f"ingress_policing_burst={rate // 1000}")
    elif kind == "egress":
        lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=egress-policer",
                      f"other_config:cir={rate // 8}", f"other_config:cbs={rate // 8}")
    else:
        lab.ovs.vsctl("set", "interface", b, f"options:qdisc-bypass={'true' if kind == 'shaper' else 'false'}")
        lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "queues:1=@one", "--",
                      "--id=@one", "create", "queue", f"other_config:max-rate={rate}")


def clear(lab):
    a, b = (host.port for host in lab.hosts)
    lab.ovs.vsctl("set", "interface", a, "ingress_policing_rate=0", "--", "clear", "port", b, "qos")


def received(host):
    """Bytes and packets that have come to a host."""
    counters = [f"/sys/class/net/eth0/statistics/rx_{what}" for what in ("bytes", "packets")]
    return [int(line) for line in host.run("cat", *counters).stdout.split()]


def share(lab, kind, rate, seconds):
    """What UDP and TCP have of the rate; the first is None where the sender did not offer more."""
    # An egress policer counts IP packets, and all others whole frames.
    uncounted = 14 if kind == "egress" else 0
    limit(lab, kind, rate)
    a, b = lab.hosts
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
    came = (size - packets * uncounted) * 8 / took / rate
    tcp = measure(b, a, seconds)["sum_received"]["bits_per_second"] * (SEGMENT + 66 - uncounted) / SEGMENT / rate
    clear(lab)
    return came if offered > 1.1 else None, tcp


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--weir", default=ROOT / "target/release/weir")
    options.add_argument("--rates", default="1,10,100,1000,10000")
    options.add_argument("--seconds", type=int, default=10)
    options.add_argument("--kinds", default="ingress,egress,htb,shaper")
    args = options.parse_args()
    os.environ["WEIR"] = str(args.weir)
    from lib.conntrack import NEIGHBOURS, Lab
    from lib.daemon import Ovs
    from lib.net import Net

    net, ovs = Net(), Ovs(expected=[".*"])
    try:
        lab = Lab(ovs, net)
        lab.flows(NEIGHBOURS, "table=0,in_port=1,actions=set_queue:1,output:2", "table=0,in_port=2,actions=1")
        print("kind     Mb/s      udp      tcp")
        for kind in args.kinds.split(","):
            for rate in map(int, args.rates.split(",")):
                udp, tcp = share(lab, kind, rate * 1_000_000, args.seconds)
                print(f"{kind:8}{rate:5} {f'{udp:8.1%}' if udp else '  sender'} {tcp:8.1%}", flush=True)
    finally:
        ovs.close()
        net.close()


if __name__ == "__main__":
    main()
