"""The kernel's routes and neighbours, which the daemon follows for tunnels, and those that an operator adds."""

import ipaddress
import json
import os
import re
import stat

import pytest
from conftest import until
from lib.daemon import WEIR, Ovs, dummy_bridge
from lib.net import run
from lib.stopped import Stopped

#: Longer than anything here takes: 20 000 routes are told in less than a second.
LONG = 30


class Switch(Ovs):
    """A daemon in a network namespace of its own."""

    def __init__(self):
        super().__init__()
        self.ns = f"weir-routes-{os.getpid()}-{self.dir.name[-6:]}"
        run("ip", "netns", "add", self.ns)
        self.ip("link", "set", "lo", "up")
        self.name.unlink()
        real = self.dir / "real" / "ovs-vswitchd"
        real.parent.mkdir()
        real.symlink_to(WEIR)
        self.name.write_text(f'#!/bin/sh\nexec ip netns exec {self.ns} {real} "$@"\n')
        self.name.chmod(self.name.stat().st_mode | stat.S_IXUSR)

    def close(self):
        try:
            super().close()
        finally:
            run("ip", "netns", "del", self.ns)

    def ip(self, *args, **kw):
        return run("ip", "-n", self.ns, *args, **kw).stdout

    def batch(self, lines):
        """ip(8) with many commands."""
        run("ip", "-n", self.ns, "-batch", "-", input="\n".join(lines) + "\n")

    def device(self, name, *addresses):
        self.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}x")
        self.ip("link", "set", "dev", f"{name}x", "addrgenmode", "none", "up")
        self.ip("link", "set", "dev", name, "addrgenmode", "none", "up")
        for address in addresses:
            self.ip("addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))

    def routes(self, *words):
        """The lines of `ovs/route/show` with one of these words, or all, sorted."""
        heading, *lines = self.appctl("ovs/route/show").splitlines()
        assert heading == "Route Table:"
        return sorted(line for line in lines if not words or set(words) & set(line.split()))

    def has_routes(self, device, *expected):
        """Returns when these are all routes of a device."""
        until(lambda: self.routes(device) == sorted(expected), what=f"{expected} of {device}, not {self.routes(device)}")

    def neighbours(self):
        """What `tnl/neigh/show` lists: (device, IP address, MAC address)."""
        lines = self.appctl("tnl/neigh/show").splitlines()
        assert re.fullmatch(r"IP +MAC +Bridge", lines[0]) and set(lines[1]) == {"="}
        return sorted((device, ip, mac) for ip, mac, device in (line.split() for line in lines[2:]))

    def settled(self):
        """Returns when the daemon knows the routes and neighbours that ip(8) lists."""
        for told, kernels in ((self.told_routes, self.kernels_routes), (self.neighbours, self.kernels_neighbours)):
            try:
                until(lambda: told() == kernels(), LONG)
            except AssertionError as e:
                e.add_note(f"differences: {sorted(map(str, set(told()) ^ set(kernels())))[:10]}")
                raise

    def told_routes(self):
        found = set()
        for line in self.routes():
            origin, prefix, rest = line.split(maxsplit=2)
            words = rest.split()
            is_local = words[-1] == "local"
            words = dict(zip(words[::2], words[1::2]))
            assert origin == "Cached:" and "MARK" not in words
            found.add((prefix, words["dev"], words.get("GW"), is_local))
        return found

    def kernels_routes(self):
        """The same of ip(8): unicast routes, and those of own addresses."""
        found = set()
        for family in ("-4", "-6"):
            for route in json.loads(self.ip(family, "-j", "route", "show", "table", "all") or "[]"):
                if route.get("type", "unicast") not in ("unicast", "local"):
                    continue
                to = route["dst"].replace("default", "0.0.0.0/0" if family == "-4" else "::/0")
                hop = route["nexthops"][0] if "nexthops" in route else route
                found.add((str(ipaddress.ip_network(to)), hop["dev"], hop.get("gateway"), route.get("type") == "local"))
        return found

    def kernels_neighbours(self):
        all = json.loads(self.ip("-j", "neigh", "show", "nud", "all") or "[]")
        usable = {"REACHABLE", "STALE", "DELAY", "PROBE", "PERMANENT", "NOARP"}
        return sorted((n["dev"], n["dst"], n["lladdr"]) for n in all
                      if set(n["state"]) & usable and "lladdr" in n and not int(n["lladdr"][:2], 16) & 1
                      and n["lladdr"] != "00:00:00:00:00:00")


@pytest.fixture
def switch():
    s = Switch()
    yield s
    s.close()


def test_addresses_come_with_their_routes_and_go_with_them(switch):
    switch.start()
    switch.device("p1")
    switch.ip("addr", "add", "10.0.0.17/24", "dev", "p1")
    switch.has_routes("p1", "Cached: 10.0.0.0/24 dev p1 SRC 10.0.0.17",
                      "Cached: 10.0.0.17/32 dev p1 SRC 10.0.0.17 local")
    switch.ip("addr", "add", "2001:db8::17/64", "dev", "p1", "nodad")
    until(lambda: "Cached: 2001:db8::/64 dev p1 SRC 2001:db8::17" in switch.routes())
    assert switch.appctl("ovs/route/lookup", "10.0.0.5") == "src 10.0.0.17\ngateway ::\ndev p1\n"
    assert switch.appctl("ovs/route/lookup", "2001:db8::5") == "src 2001:db8::17\ngateway ::\ndev p1\n"
    switch.settled()
    switch.ip("addr", "flush", "dev", "p1")
    switch.has_routes("p1")
    assert "Not found" in switch.refusal("appctl", "ovs/route/lookup", "10.0.0.5")


def test_routes_are_those_of_the_kernel(switch):
    switch.device("p1", "10.0.0.1/24", "2001:db8:1::1/64")
    switch.device("p2", "10.0.1.1/24", "10.0.1.2/24", "2001:db8:2::1/64", "fe80::1/64")
    for route in ("default via 10.0.0.254", "172.16.0.0/12 via 10.0.1.254 src 10.0.1.2", "192.0.2.1 dev p1",
                  "198.51.100.0/24 nexthop via 10.0.1.7 nexthop via 10.0.0.7", "203.0.113.0/24 via 10.0.0.9 table 77",
                  "blackhole 192.0.2.128/25", "unreachable 192.0.2.64/26", "2001:db8:9::/48 via 2001:db8:1::9",
                  "default via fe80::99 dev p2", "2001:db8:8::/48 nexthop via 2001:db8:2::9 nexthop via 2001:db8:1::9"):
        family = "-6" if "::" in route else "-4"
        switch.ip(family, "route", "add", *route.split())
    # Those that are there when it starts, and those that come.
    switch.start()
    switch.settled()
    assert switch.routes("172.16.0.0/12") == ["Cached: 172.16.0.0/12 dev p2 GW 10.0.1.254 SRC 10.0.1.2"]
    assert switch.routes("198.51.100.0/24") == ["Cached: 198.51.100.0/24 dev p2 GW 10.0.1.7 SRC 10.0.1.1"]
    assert switch.routes("::/0") == ["Cached: ::/0 dev p2 GW fe80::99 SRC 2001:db8:2::1"]
    # The main table's before another's, a lower metric before a higher one.
    for gateway, more in (("10.0.0.21", "metric 20"), ("10.0.0.22", "metric 10"), ("10.0.0.23", "table 7")):
        switch.ip("route", "add", "100.64.0.0/10", "via", gateway, *more.split())
    for gateway, more in (("10.0.0.22", "metric 10"), ("10.0.0.21", "metric 20"), ("10.0.0.23", "table 7")):
        until(lambda: switch.routes("100.64.0.0/10") == [f"Cached: 100.64.0.0/10 dev p1 GW {gateway} SRC 10.0.0.1"])
        switch.ip("route", "del", "100.64.0.0/10", *more.split())
    switch.settled()
    # Another next hop, then none.
    switch.ip("route", "replace", "172.16.0.0/12", "via", "10.0.0.253")
    until(lambda: switch.routes("172.16.0.0/12") == ["Cached: 172.16.0.0/12 dev p1 GW 10.0.0.253 SRC 10.0.0.1"])
    switch.ip("route", "replace", "blackhole", "172.16.0.0/12")
    until(lambda: switch.routes("172.16.0.0/12") == [])
    # One of several next hops goes.
    switch.ip("-6", "route", "del", "2001:db8:8::/48", "via", "2001:db8:2::9")
    switch.ip("route", "append", "203.0.113.0/24", "via", "10.0.0.10", "table", "77")
    switch.ip("route", "del", "203.0.113.0/24", "via", "10.0.0.9", "table", "77")
    switch.settled()
    assert "GW 10.0.0.10 " in switch.routes("203.0.113.0/24")[0]


def test_routes_that_go_unsaid_are_noticed(switch):
    """The kernel does not say that routes go with a device that is set down, with an address, or with a next hop object."""
    switch.start()
    switch.device("p1", "10.0.0.1/24")
    switch.device("p2", "10.0.1.1/24", "10.0.9.9/32")
    switch.ip("route", "add", "192.0.2.0/24", "via", "10.0.0.9")
    switch.ip("route", "add", "198.51.100.0/24", "via", "10.0.0.9", "src", "10.0.9.9")
    switch.ip("nexthop", "add", "id", "7", "via", "10.0.1.9", "dev", "p2")
    switch.ip("route", "add", "203.0.113.0/24", "nhid", "7")
    switch.settled()
    assert len(switch.routes("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")) == 3
    switch.ip("nexthop", "del", "id", "7")
    until(lambda: switch.routes("203.0.113.0/24") == [])
    switch.ip("addr", "del", "10.0.9.9/32", "dev", "p2")
    until(lambda: switch.routes("198.51.100.0/24") == [])
    switch.ip("link", "set", "p1", "down")
    until(lambda: switch.routes("192.0.2.0/24", "10.0.0.0/24") == [])
    switch.settled()


def test_neighbours_are_those_of_the_kernel(switch):
    switch.start()
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    switch.ip("link", "set", "br0", "up")
    switch.ip("addr", "add", "10.0.0.1/24", "dev", "br0")
    switch.ip("neigh", "add", "10.0.0.2", "lladdr", "02:00:00:00:00:02", "dev", "br0", "nud", "permanent")
    switch.ip("neigh", "add", "2001:db8::2", "lladdr", "02:00:00:00:00:22", "dev", "br0", "nud", "stale")
    until(lambda: switch.neighbours() == [("br0", "10.0.0.2", "02:00:00:00:00:02"),
                                          ("br0", "2001:db8::2", "02:00:00:00:00:22")])
    switch.ip("neigh", "replace", "10.0.0.2", "lladdr", "02:00:00:00:00:03", "dev", "br0", "nud", "reachable")
    until(lambda: ("br0", "10.0.0.2", "02:00:00:00:00:03") in switch.neighbours())
    switch.settled()
    # An operator's stays, and so does what the kernel knows when the others are forgotten.
    switch.appctl("tnl/neigh/set", "br0", "10.0.0.9", "2:0:0:0:0:9")
    assert ("br0", "10.0.0.9", "02:00:00:00:00:09") in switch.neighbours()
    switch.ip("neigh", "del", "10.0.0.2", "dev", "br0")
    until(lambda: "10.0.0.2" not in [ip for _, ip, _ in switch.neighbours()])
    assert switch.appctl("tnl/arp/flush") == "OK\n"
    assert switch.neighbours() == [("br0", "2001:db8::2", "02:00:00:00:00:22")]
    switch.ip("neigh", "replace", "2001:db8::2", "dev", "br0", "nud", "failed")
    until(lambda: switch.neighbours() == [])


def test_devices_take_along_what_is_theirs(switch):
    switch.start()

    def device(address, mac):
        switch.device("p1", f"{address}.1/24")
        switch.ip("route", "add", "192.0.2.0/24", "via", f"{address}.9")
        switch.ip("neigh", "add", f"{address}.9", "lladdr", mac, "dev", "p1", "nud", "permanent")
        switch.settled()
        assert switch.routes("192.0.2.0/24") == [f"Cached: 192.0.2.0/24 dev p1 GW {address}.9 SRC {address}.1"]
        assert switch.neighbours() == [("p1", f"{address}.9", mac)]

    device("10.0.0", "02:00:00:00:00:01")
    switch.ip("link", "del", "p1")
    switch.has_routes("p1")
    until(lambda: switch.neighbours() == [])
    assert "Error while inserting route." in switch.refusal("appctl", "ovs/route/add", "10.0.0.0/24", "p1")
    # One of the same name comes, and another one.
    device("10.0.7", "02:00:00:00:00:02")
    switch.device("p2", "10.0.8.1/24")
    # They exchange their names.
    for before, after in (("p1", "t"), ("p2", "p1"), ("t", "p2")):
        switch.ip("link", "set", "dev", before, "down")
        switch.ip("link", "set", "dev", before, "name", after)
        switch.ip("link", "set", "dev", after, "up")
    switch.settled()
    assert switch.routes("t") == [] and switch.routes("10.0.8.0/24") == ["Cached: 10.0.8.0/24 dev p1 SRC 10.0.8.1"]
    assert switch.routes("10.0.7.0/24") == ["Cached: 10.0.7.0/24 dev p2 SRC 10.0.7.1"]
    assert {device for device, _, _ in switch.neighbours()} <= {"p2"}


def test_twenty_thousand_routes_come_and_go(switch):
    switch.start()
    switch.device("p1", "10.0.0.1/24")
    switch.device("p2", "10.0.1.1/24")
    routes = [f"100.{n >> 8}.{n & 255}.0/24" for n in range(20_000)]
    switch.batch(f"route add {to} via 10.0.0.9" for to in routes)
    switch.settled()
    assert len(switch.routes("10.0.0.9")) == 20_000
    assert switch.appctl("ovs/route/lookup", "100.77.7.7") == "src 10.0.0.1\ngateway 10.0.0.9\ndev p1\n"
    switch.batch(f"route replace {to} via 10.0.1.9" for to in routes[::2])
    switch.settled()
    assert len(switch.routes("10.0.1.9")) == 10_000
    switch.ip("link", "set", "p1", "down")
    switch.settled()
    switch.ip("link", "del", "p2")
    switch.settled()
    assert switch.routes("10.0.0.9", "10.0.1.9") == []


def test_events_that_are_lost_are_made_up_for(switch):
    switch.start()
    switch.device("p1", "10.0.0.1/24")
    switch.settled()
    overflows = lambda: int(re.search(r"netlink_overflow .*total: (\d+)|$", switch.appctl("coverage/show"))[1] or 0)
    with Stopped(switch.pid(), "netstate"):
        for to in ("add", "replace"):
            switch.batch(f"route {to} 100.{n >> 8}.{n & 255}.0/24 via 10.0.0.9" for n in range(20_000))
        switch.batch(f"neigh add 10.0.0.{n} lladdr 02:00:00:00:00:09 dev p1 nud permanent" for n in range(2, 200))
        switch.batch(f"route del 100.0.{n}.0/24" for n in range(256))
    # Until all that waits is taken, the kernel tells nothing, and does not say so.
    switch.batch(f"route add 101.{n >> 8}.{n & 255}.0/24 via 10.0.0.9" for n in range(20_000))
    switch.settled()
    assert overflows() > 0, "nothing was lost"


def test_without_the_systems_routes_an_operator_adds_them(switch):
    switch.device("p1", "10.0.0.1/24")
    switch.ip("neigh", "add", "10.0.0.9", "lladdr", "02:00:00:00:00:09", "dev", "p1", "nud", "permanent")
    switch.start("--disable-system-route")
    add = ("ovs/route/add", "10.0.0.0/24", "p1")
    until(lambda: run("ovs-appctl", "-t", switch.program, *add, env=switch.env, check=False).returncode == 0)
    switch.ip("route", "add", "192.0.2.0/24", "via", "10.0.0.9")
    switch.ip("addr", "add", "10.0.5.1/24", "dev", "p1")
    until(lambda: run("ovs-appctl", "-t", switch.program, "ovs/route/add", "10.0.5.0/24", "p1", env=switch.env,
                      check=False).returncode == 0)
    assert switch.routes() == ["User: 10.0.0.0/24 dev p1 SRC 10.0.0.1", "User: 10.0.5.0/24 dev p1 SRC 10.0.5.1"]
    assert switch.neighbours() == []


def test_routes_of_an_operator(switch):
    switch.start("--enable-dummy", "--disable-system-route")
    dummy_bridge(switch, "p1")
    ok = lambda *args: switch.appctl(*args) == "OK\n"
    assert ok("netdev-dummy/ip4addr", "br0", "192.0.2.1/24") and ok("netdev-dummy/ip6addr", "br0", "2001:db8:cafe::1/64")
    assert ok("ovs/route/add", "198.51.100.0/24", "br0", "192.0.2.254")
    assert ok("ovs/route/add", "192.0.2.1/24", "br0", "pkt_mark=123")
    assert ok("ovs/route/add", "198.51.100.200/24", "br0", "192.0.2.250", "pkt_mark=0x4d2")
    assert ok("ovs/route/add", "2001:db8:babe::/64", "br0", "2001:db8:cafe::2")
    marked = "User: 198.51.100.0/24 MARK 1234 dev br0 GW 192.0.2.250 SRC 192.0.2.1"
    others = ["User: 192.0.2.0/24 MARK 123 dev br0 SRC 192.0.2.1",
              "User: 198.51.100.0/24 dev br0 GW 192.0.2.254 SRC 192.0.2.1",
              "User: 2001:db8:babe::/64 dev br0 GW 2001:db8:cafe::2 SRC 2001:db8:cafe::1"]
    assert switch.routes() == sorted([marked, *others])
    lookup = lambda *args: switch.appctl("ovs/route/lookup", *args)
    assert lookup("198.51.100.1") == "src 192.0.2.1\ngateway 192.0.2.254\ndev br0\n"
    assert lookup("198.51.100.1", "pkt_mark=1234") == "src 192.0.2.1\ngateway 192.0.2.250\ndev br0\n"
    assert lookup("192.0.2.9", "pkt_mark=123") == "src 192.0.2.1\ngateway ::\ndev br0\n"
    assert ok("ovs/route/del", "198.51.100.0/24", "pkt_mark=1234") and switch.routes() == sorted(others)
    for args, problem in (
        (("add", "198.51.100.0/33", "br0"), "Invalid parameters"),
        (("add", "198.51.100.0/24", "br0", "2001:db8::1"), "Invalid pkt_mark or gateway"),
        (("add", "2001:db8::/64", "br0", "192.0.2.1"), "Invalid pkt_mark or IPv6 gateway"),
        (("add", "198.51.100.0/24", "br0", "192.0.2.9", "mark=1"), "Invalid pkt_mark"),
        (("add", "203.0.113.0/24", "br0"), "Error while inserting route."),
        (("add", "192.0.2.0/24", "nosuch"), "Error while inserting route."),
        (("del", "198.51.100.0/24", "pkt_mark=1234"), "Not found"),
        (("del", "br0"), "Invalid parameters"),
        (("lookup", "203.0.113.1"), "Not found"),
        (("lookup", "198.51.100.0/24"), "Invalid parameters"),
        (("lookup", "198.51.100.1", "1234"), "Invalid pkt_mark"),
    ):
        said = switch.refusal("appctl", f"ovs/route/{args[0]}", *args[1:])
        assert said.splitlines()[0] == problem, args


def test_neighbours_of_an_operator_age(switch):
    switch.start("--enable-dummy", "--disable-system-route")
    dummy_bridge(switch, "p1")
    switch.appctl("time/stop")
    assert switch.appctl("tnl/neigh/aging") == "900\n" and switch.appctl("tnl/arp/aging", "5") == "OK\n"
    assert switch.appctl("tnl/neigh/set", "br0", "2001:cafe::92", "aa:bb:cc:00:00:01") == "OK\n"
    line = "2001:cafe::92                                 aa:bb:cc:00:00:01   br0"
    assert switch.appctl("tnl/neigh/show").splitlines()[2:] == [line]
    switch.appctl("time/warp", "4000")
    assert len(switch.neighbours()) == 1
    switch.appctl("time/warp", "1000")
    assert switch.neighbours() == []
    for args, problem in (("set br0 br0 aa:bb:cc:00:00:01", "bad IP address"), ("set br0 1.1.1.1 aa:bb", "bad MAC address"),
                          ("aging 0", "bad aging value"), ("aging 3601", "bad aging value")):
        assert switch.refusal("appctl", *f"tnl/neigh/{args}".split()).splitlines()[0] == problem


def test_the_range_of_source_ports(switch):
    switch.start()
    ports = lambda *args: switch.appctl("tnl/egress_port_range", *args)
    assert ports() == "Tunnel UDP source port range: 32768-61000\n"
    assert (ports("70000", "1"), ports("1", "0"), ports("6000", "5000")) == ("Invalid min.\n", "Invalid max.\n", "OK\n")
    assert ports() == "Tunnel UDP source port range: 5000-6000\n"
