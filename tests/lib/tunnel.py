"""Hosts that reach each other through tunnels: Weir, stock OVS, or Linux alone, each in a network namespace of its own.

A site with a switch has a bridge `br-int` with a machine, and a bridge `br-phy` with the underlay; the address of the underlay is
that of LOCAL of `br-phy`, as in a deployment. Site N has 172.31.0.N and fd31::N outside, 10.9.0.N and fd09::N inside.
"""

import contextlib
import itertools
import os
import re
import subprocess
import sys

import pytest

from .daemon import WEIR, Database, Ovs
from .net import Host, inside, run
from .vswitch import OVS_DPDK
from .wait import until

#: What fits into a tunnel over an underlay of 1500 bytes, whatever the tunnel.
INNER_MTU = 1400
_names = itertools.count()


def namespace(net, ipv6=True):
    """A host without devices. It is removed with `net`."""
    n = next(_names)
    host = Host(f"{net.tag}-s{n}", f"{net.tag}s{n}")
    run("ip", "netns", "add", host.ns)
    net.hosts.append(host)
    host.run("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0",
             "net.ipv6.conf.default.router_solicitations=0", check=False)
    if not ipv6:
        host.run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", check=False)
    host.run("ip", "link", "set", "lo", "up")
    return host


def cable(one, name, other, other_name):
    """Joins two hosts."""
    run("ip", "link", "add", name, "netns", one.ns, "type", "veth", "peer", "name", other_name, "netns", other.ns)
    for host, device in ((one, name), (other, other_name)):
        host.run("ip", "link", "set", device, "up")


def addresses(host, device, number, net4, net6):
    host.run("ip", "addr", "replace", f"{net4}.{number}/24", "dev", device)
    host.run("ip", "addr", "replace", f"{net6}::{number}/64", "dev", device, "nodad")


class Site:
    """What all have in common."""

    def __init__(self, net, number):
        self.net, self.number = net, number
        self.host = namespace(net, ipv6=self.is_linux)
        self.out4, self.out6 = f"172.31.0.{number}", f"fd31::{number}"
        self.in4, self.in6 = f"10.9.0.{number}", f"fd09::{number}"

    #: Whether it is a host without a switch.
    is_linux = False

    #: The device that has the inner addresses, in the machine.
    device_inside = "eth0"

    def mac(self):
        """The machine's Ethernet address."""
        return self.vm.run("cat", f"/sys/class/net/{self.device_inside}/address").stdout.strip()

    def know(self, other):
        """The machines need not ask for each other: what waits, waits for a neighbour of the underlay."""
        for one, two in ((self, other), (other, self)):
            for address in (two.in4, two.in6):
                one.vm.run("ip", "neigh", "replace", address, "lladdr", two.mac(), "dev", one.device_inside, "nud", "permanent")

    def outside(self, six):
        return self.out6 if six else self.out4


class Linux(Site):
    """A host whose kernel ends the tunnels; the inner addresses are those of the tunnel's device."""

    is_linux = True
    device_inside = "tun0"

    def __init__(self, net, number):
        super().__init__(net, number)
        #: Who talks.
        self.vm = self.host

    def attach(self):
        addresses(self.host, "eth0", self.number, "172.31.0", "fd31")

    def device(self, kind, *options, name="tun0", number=None, inner=True):
        """Adds a device for tunnels, with the inner addresses; skips the test where this kernel has no such devices."""
        made = self.host.run("ip", "link", "add", name, "type", kind, *options, check=False)
        if "Unknown device type" in made.stderr or "Operation not supported" in made.stderr:
            assert kind != "vxlan", made.stderr
            pytest.skip(f"this kernel has no devices of type {kind}")
        assert made.returncode == 0, made.stderr
        self.host.run("ip", "link", "set", name, "mtu", INNER_MTU, "up")
        if inner:
            addresses(self.host, name, number or self.number, "10.9.0", "fd09")

    def vxlan(self, peer, vni=7, *options, six=False, port=4789, **kw):
        """A device of VXLAN to one peer."""
        self.device("vxlan", "id", vni, "local", self.outside(six), "remote", peer.outside(six), "dstport", port, "dev", "eth0",
                    *options, **kw)


class Switched(Site):
    """What sites with a switch have in common; `vsctl` is that of the switch."""

    def bridges(self, vm_options=()):
        # The kernel sees what comes to the underlay's device, too: it must not answer there for LOCAL's address.
        self.host.run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
        self.vm = namespace(self.net)
        cable(self.vm, "eth0", self.host, "vm0")
        self.vm.run("ip", "link", "set", "eth0", "mtu", INNER_MTU)
        addresses(self.vm, "eth0", self.number, "10.9.0", "fd09")
        # On one machine all bridges of a name have the same address.
        self.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev",
                   f"other_config:hwaddr=02:00:00:00:01:{self.number:02x}",
                   "--", "add-br", "br-phy", "--", "set", "bridge", "br-phy", "datapath_type=netdev",
                   f"other_config:hwaddr=02:00:00:00:02:{self.number:02x}",
                   "--", "add-port", "br-int", "vm0", *vm_options)

    def local(self):
        """The underlay's addresses."""
        self.host.run("sysctl", "-qw", "net.ipv6.conf.br-phy.disable_ipv6=0", check=False)
        addresses(self.host, "br-phy", self.number, "172.31.0", "fd31")
        self.host.run("ip", "link", "set", "br-phy", "up")
        until(lambda: all(net in self.appctl("ovs/route/show") for net in ("172.31.0.0/24", "fd31::/64")),
              what="routes to the underlay")

    def attach_port(self, name, *settings):
        """Puts a device into the underlay."""
        self.vsctl("add-port", "br-phy", name, *(["--", "set", "interface", name, *settings] if settings else []))
        error = self.vsctl("get", "interface", name, "error")
        assert error == "[]", error

    def attach(self):
        """Puts eth0 into the underlay."""
        self.attach_port("eth0")
        self.local()

    def tunnel(self, name, kind, *options, settings=(), port=(), bridge="br-int"):
        """Adds a tunnel's port; `options` are those of the tunnel."""
        self.vsctl("add-port", bridge, name, *port, "--", "set", "interface", name, f"type={kind}",
                   *(f"options:{option}" for option in options), *settings)
        error = self.vsctl("get", "interface", name, "error")
        assert error == "[]", error
        return self.vsctl("get", "interface", name, "ofport")

    def flows(self, *flows, bridge="br-int"):
        """Replaces all flows."""
        run("ovs-ofctl", "-O", "OpenFlow13", "del-flows", bridge, env=self.env)
        run("ovs-ofctl", "-O", "OpenFlow13", "add-flows", bridge, "-", input="\n".join(flows), env=self.env)

    def direct(self, name, *match):
        """What the machine sends (all, or what has this match) goes into this tunnel, and what comes out of it to the machine: nothing
        is flooded."""
        vm, t = (self.vsctl("get", "interface", port, "ofport") for port in ("vm0", name))
        self.flows(f"{','.join([f'in_port={vm}', *match])},actions={t}", f"in_port={t},actions={vm}")

    def hits(self, cookie, bridge="br-int"):
        """Packets that flows with this cookie have matched."""
        text = run("ovs-ofctl", "dump-flows", bridge, f"cookie={cookie}/-1", env=self.env).stdout
        found = re.findall(r"n_packets=(\d+)", text)
        assert found, f"no flow has the cookie {cookie}"
        return sum(map(int, found))


class Weir(Ovs, Switched):
    """Weir in a namespace of its own."""

    def __init__(self, net, number, expected=(), dpdk=False):
        Site.__init__(self, net, number)
        Ovs.__init__(self, expected)
        self.name.unlink()
        real = self.dir / "real" / "ovs-vswitchd"
        real.parent.mkdir()
        real.symlink_to(WEIR)
        hide = "mount -t tmpfs none /sys/kernel/mm/hugepages && " if dpdk else ""
        self.name.write_text(f"#!/bin/sh\nexec ip netns exec {self.host.ns} unshare -m sh -c '{hide}exec \"$0\" \"$@\"' "
                             f"{real} \"$@\"\n")
        self.name.chmod(0o755)
        if dpdk:
            self.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true",
                       "other_config:dpdk-extra=\"--no-pci --no-telemetry\"")

    def run_switch(self):
        self.start()
        self.bridges()

    def counter(self, name):
        """A counter of `coverage/show`."""
        return int(self.appctl("coverage/read-counter", name))

    def counts(self, name, more):
        """Waits until that has counted so many more than the context began with; checks that it is not more."""
        return Counting(self, name, more)

    def memory(self):
        """Resident memory, in MiB."""
        [line] = [line for line in open(f"/proc/{self.pid()}/status") if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024


class Counting:
    """`with weir.counts(NAME, N):` — what happens inside makes a counter rise by just so many, and no other reason to drop.

    What hosts say of themselves while a port of theirs is down is not what happens inside.
    """

    OF_HOSTS = "datapath_drop_port_down"

    def __init__(self, weir, name, more):
        self.weir, self.name, self.more = weir, name, more

    def __enter__(self):
        self.before = drops(self.weir)

    def __exit__(self, kind, *_):
        if kind:
            return

        def rise():
            more = {name: n - self.before.get(name, 0) for name, n in drops(self.weir).items()}
            return {name: n for name, n in more.items() if n and (name == self.name or name != self.OF_HOSTS)}

        try:
            until(lambda: rise().get(self.name, 0) >= self.more, what=f"{self.name} of {self.more}")
        finally:
            print(rise(), file=sys.stderr)
        assert rise() == {self.name: self.more}


def drops(weir):
    """All counters of dropped packets."""
    text = weir.appctl("coverage/show")
    return {name: int(n) for name, n in re.findall(r"^(\w*drop\w*|\w*purged) .*total: (\d+)$", text, re.M)}


class Stock(Database, Switched):
    """The OVS of the distribution, with its datapath in user space, in a namespace of its own."""

    def __init__(self, net, number, dir):
        Site.__init__(self, net, number)
        dir.mkdir()
        self.env = dict(os.environ, OVS_RUNDIR=str(dir), OVS_LOGDIR=str(dir), OVS_DBDIR=str(dir))
        self.process = self.server = None
        Database.__init__(self, dir, self.env)
        self.control = dir / "switch.ctl"

    def run_switch(self):
        with open(self.dir / "out", "ab") as log:
            self.process = subprocess.Popen(
                self.host.cmd(OVS_DPDK, self.db, f"--unixctl={self.control}", "-vconsole:off",
                              f"--log-file={self.dir}/switch.log"), env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self.control.exists, 30, "OVS answering")
        self.bridges()
        # It forwards what it gets: a checksum that is left to be done would be wrong at the other end.
        self.vm.run("ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off")

    def appctl(self, *args):
        return run("ovs-appctl", "-t", self.control, *args, env=self.env).stdout

    def close(self):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.server:
            self.stop_server()


class Lab:
    """Makes sites and joins them; close() ends all of them."""

    def __init__(self, net, tmp_path, expected=()):
        self.net, self.tmp_path, self.expected = net, tmp_path, expected
        self.sites = []
        self.closing = contextlib.ExitStack()

    def _add(self, site):
        self.sites.append(site)
        return site

    def _switch(self, site):
        # It is closed also where it does not come up.
        self.closing.callback(site.close)
        site.run_switch()
        return self._add(site)

    def _number(self):
        return len(self.sites) + 1

    def weir(self, **kw):
        return self._switch(Weir(self.net, self._number(), self.expected, **kw))

    def stock(self):
        return self._switch(Stock(self.net, self._number(), self.tmp_path / f"stock{self._number()}"))

    def linux(self):
        return self._add(Linux(self.net, self._number()))

    def pair(self, kind):
        """Weir and a peer, joined."""
        one, other = self.weir(), getattr(self, kind)()
        self.join(one, other)
        return one, other

    def join(self, one, other):
        """A cable between the underlays of two sites. Weir leaves checksums to be completed by the device, as with a network card;
        stock OVS gets what would be on the wire."""
        if isinstance(other, Stock):
            self.wire(one, other)
        else:
            cable(one.host, "eth0", other.host, "eth0")
        one.attach(), other.attach()

    def wire(self, one, other):
        """As `cable`, but what comes to `other` is as it is on a real wire; returns what lies between."""
        middle = namespace(self.net, ipv6=False)
        middle.run("ip", "link", "add", "wire0", "type", "bridge", "mcast_snooping", "0")
        middle.run("ip", "link", "set", "wire0", "up")
        cable(one.host, "eth0", middle, "eth1")
        cable(middle, "eth0", other.host, "eth0")
        for device in ("eth0", "eth1"):
            middle.run("ip", "link", "set", device, "master", "wire0")
        middle.run("ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off")
        return middle

    def close(self):
        self.closing.close()


class Capture:
    """What comes to a device of a host, in a file."""

    def __init__(self, host, path, *what, device="eth0"):
        self.path = path
        # By default there is room for some thirty packets, and no more.
        self.proc = host.start("tcpdump", "-U", "--immediate-mode", "-s", 65535, "-B", 65536, "-ni", device, "-w", path, *what)
        line = self.proc.stderr.readline()
        while "listening on" not in line:
            assert line, "tcpdump does not listen"
            line = self.proc.stderr.readline()

    def stop(self):
        self.proc.terminate()
        self.proc.wait(30)


def send(host, frames, device="eth0"):
    """Sends frames as they are."""
    import socket
    with inside(host):
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        s.bind((device, 0))
    with s:
        for frame in frames:
            s.send(frame)
