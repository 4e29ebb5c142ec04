#!/usr/bin/env python3
"""From a frame to its packet-in, and to the frame that the controller's packet-out sends: how long, on an idle switch.

usage: packetins.py [--weir BINARY]... [--ovs] [--count N] [--rounds N] [--pause MS] [--tcp] [--busy]

A frame goes into a veth whose other end is a port, misses, and comes to a controller in this process (OpenFlow 1.3, over a Unix socket or
TCP), which sends it out of a second port. Next one: after a pause, or at once (--pause 0). Medians and 90 and 99 percent, in
microseconds. --busy: another client adds 2 000 flows in a bundle and deletes them, again and again. The script makes a network namespace
of its own. Needs root and, for OVS, Debian's openvswitch-switch.
"""
import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import time

from cliffs import ROOT, Switch, bridge, sh

OVS = "/usr/lib/openvswitch-switch/ovs-vswitchd"
HELLO, ECHO_REQUEST, ECHO_REPLY, PACKET_IN, PACKET_OUT = 0, 2, 3, 10, 13


class Controller:
    """The far end of one OpenFlow connection."""

    def __init__(self, listening):
        self.socket, _ = listening.accept()
        if self.socket.family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        self.send(HELLO)

    def send(self, kind, body=b"", xid=0):
        self.socket.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body)

    def packet_in(self):
        """The body of the next packet-in."""
        while True:
            while len(self.data) < 8 or len(self.data) < struct.unpack_from("!H", self.data, 2)[0]:
                piece = self.socket.recv(1 << 16)
                if not piece:
                    raise RuntimeError("the switch has closed the connection")
                self.data += piece
            _, kind, length, xid = struct.unpack_from("!BBHI", self.data)
            body, self.data = self.data[8:length], self.data[length:]
            if kind == ECHO_REQUEST:
                self.send(ECHO_REPLY, body, xid)
            if kind == PACKET_IN:
                return body

    def packet_out(self, frame, port):
        action = struct.pack("!HHIH6x", 0, 16, port, 0xFFFF)
        self.send(PACKET_OUT, struct.pack("!IIH6x", 0xFFFFFFFF, 1, len(action)) + action + frame)


def frame(number):
    """One that nobody has seen."""
    return b"\x02\0\0\0\0\2" + b"\x02\1" + struct.pack("!I", number) + b"\x88\xb5" + struct.pack("!Q", number) + bytes(40)


def veth(switch, number):
    """A port whose far end is a packet socket."""
    name, end = f"p{number}", f"end{number}"
    sh(["ip", "link", "add", name, "type", "veth", "peer", "name", end])
    for link in (name, end):
        sh(["ip", "link", "set", link, "up"])
    switch.vsctl("add-port", switch.bridge, name, "--", "set", "Interface", name, f"ofport_request={number}")
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
    wire.bind((end, 0x88B5))
    wire.settimeout(5)
    return wire


def listen(switch, tcp):
    if tcp:
        listening = socket.create_server(("127.0.0.1", 0))
        return listening, f"tcp:127.0.0.1:{listening.getsockname()[1]}"
    listening = socket.socket(socket.AF_UNIX)
    path = switch.dir / "controller"
    listening.bind(str(path))
    listening.listen()
    return listening, f"unix:{path}"


def run(command, args, core):
    """Microseconds to each packet-in, and from there to the frame that is sent for it."""
    with Switch(command, False, 1, core, {}) as switch:
        bridge(switch, [])
        listening, target = listen(switch, args.tcp)
        listening.settimeout(20)
        wires = [veth(switch, number) for number in (1, 2)]
        switch.vsctl("set-controller", switch.bridge, target)
        controller = Controller(listening)
        controller.socket.settimeout(5)
        # What was there before there was a controller is gone.
        switch.ofctl("add-flow", "dl_type=0x88b5,actions=controller:65535")
        ins, outs = [], []
        busy = None
        if args.busy:
            flows = switch.dir / "more"
            flows.write_text("".join(f"table=7,tcp,tp_dst={n},actions=drop\n" for n in range(2000)))
            path = f"unix:{switch.dir}/{switch.bridge}.mgmt"
            loop = f"while ovs-ofctl -O OpenFlow14 --bundle add-flows {path} {flows} && ovs-ofctl -O OpenFlow14 del-flows {path} table=7; do :; done"
            busy = subprocess.Popen(["sh", "-c", loop], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            time.sleep(1)
            for number in range(args.count + 20):
                sent = time.monotonic()
                wires[0].send(frame(number))
                body = controller.packet_in()
                came = time.monotonic()
                assert body.endswith(frame(number)), "another frame's packet-in"
                controller.packet_out(frame(number), 2)
                got = wires[1].recv(2048)
                back = time.monotonic()
                assert got == frame(number), "another frame"
                if number >= 20:
                    ins.append((came - sent) * 1e6)
                    outs.append((back - came) * 1e6)
                if args.pause:
                    time.sleep(args.pause / 1e3)
        finally:
            if busy:
                os.killpg(busy.pid, 15)
                busy.wait()
        for link in ("p1", "p2"):
            sh(["ip", "link", "del", link])
        return ins, outs


def text(values):
    cut = statistics.quantiles(values, n=100)
    return f"{statistics.median(values):6.0f} ({cut[89]:.0f}, {cut[98]:.0f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", action="append")
    parser.add_argument("--ovs", action="store_true")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=2)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    if "WEIR_NAMESPACE" not in os.environ:
        own = 'mount -t sysfs sysfs /sys && ip link set lo up && exec "$@"'
        os.execvpe("unshare", ["unshare", "-n", "-m", "sh", "-c", own, "sh", sys.executable, *sys.argv], dict(os.environ, WEIR_NAMESPACE="1"))
    core = os.cpu_count() - 1
    switches = [(name, [name, "vswitchd"]) for name in args.weir or [str(ROOT / "target/release/weir")]]
    if args.ovs:
        switches.append(("OVS", [OVS]))
    for _ in range(args.rounds):
        for name, command in switches:
            ins, outs = run(command, args, core)
            both = [sum(pair) for pair in zip(ins, outs)]
            print(f"{name}: to the packet-in {text(ins)}, from it to the frame {text(outs)}, both {text(both)}", flush=True)


if __name__ == "__main__":
    main()
