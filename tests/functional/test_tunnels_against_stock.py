"""Stock OVS is the judge of tunnels: random ones over another bridge, with random flows, send the same frames into the underlay and out of it."""

import re

import pytest
from conftest import until
from lib.net import run
from lib.pcap import read_pcap
from lib.stock import DUMMY, Side, stock  # noqa: F401
from lib.stock import EXPECTED as PIPELINES
from lib.tunnel_scenario import HERE, MAC, NEIGHBOURS, PORTS, TLV_MAP, TunnelScenario

EXPECTED = [*PIPELINES, r"\|tunnel\(|\|ofproto_dpif_xlate|\|netdev_vport|tnl_|native_tnl|odp_util|dpif_netdev|same config as port|unknown erspan argument"]

UDP_TUNNELS = {4789, 4790, 6081, 9000, 2152}


def comparable(frame):
    """An outer frame without what differs for good reason: the UDP source port, which is a hash, with the checksum over it; identifications; sequence
    numbers and times of GRE."""
    frame, at = bytearray(frame), 14
    while frame[at - 2:at] == b"\x81\0":
        at += 4
    kind = frame[at - 2:at]
    if len(frame) < at + 20:
        return frame.hex()
    if kind == b"\x08\0":
        protocol, transport = frame[at + 9], at + 4 * (frame[at] & 15)
        # OVS numbers no packets; they need a number where they may be fragmented (RFC 6864).
        frame[at + 4:at + 6] = frame[at + 10:at + 12] = bytes(2)
    elif kind == b"\x86\xdd":
        protocol, transport = frame[at + 6], at + 40
    else:
        return frame.hex()
    if len(frame) < transport + 8:
        return frame.hex()
    if protocol == 47 and frame[transport] & 0x10:
        # OVS numbers the packets of all tunnels of a type together.
        number = transport + 4 + 4 * (frame[transport] >> 5 & 1) + 4 * (frame[transport] >> 7)
        frame[number:number + 4] = bytes(4)
        if frame[transport + 2:transport + 4] == b"\x22\xeb":
            # A timestamp.
            frame[transport + 12:transport + 16] = bytes(4)
    if protocol == 17 and int.from_bytes(frame[transport + 2:transport + 4], "big") in UDP_TUNNELS:
        frame[transport:transport + 2] = bytes(2)
        if frame[transport + 6:transport + 8] != bytes(2):
            frame[transport + 6:transport + 8] = b"\1\1"
    return frame.hex()


class TunnelSide:
    """A switch that is compared."""

    def __init__(self, side):
        self.side, self.call = side, side.call

    def build(self, scenario):
        side, database = self.side, self.side.database
        database.vsctl("--if-exists", "del-br", "int", "--", "--if-exists", "del-br", "br0")
        args = ["set", "open", ".", "other_config:vlan-limit=2", "--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy",
                f"other_config:hwaddr={MAC}", "fail-mode=secure", "--", "add-br", "int", "--", "set", "bridge", "int", "datapath_type=dummy", "fail-mode=secure",
                "other_config:hwaddr=02:00:00:00:00:ff", "other_config:mac-aging-time=3600"]
        for bridge, number in [("br0", 1), ("br0", 2), *(("int", number) for number in PORTS)]:
            name = f"{bridge}p{number}"
            file = side.dir / f"{name}.pcap"
            file.unlink(missing_ok=True)
            args += ["--", "add-port", bridge, name, "--", "set", "interface", name, "type=dummy", f"ofport_request={number}", f"options:tx_pcap={file}"]
        database.vsctl(*args)
        run("ovs-ofctl", "add-tlv-map", "int", TLV_MAP, env=side.env)
        for command in (("netdev-dummy/ip4addr", "br0", f"{HERE[0]}/24"), ("netdev-dummy/ip6addr", "br0", f"{HERE[1]}/64")):
            assert side.call(*command)["error"] is None, command
        for command in (("ovs/route/add", "1.1.2.0/24", "br0"), ("ovs/route/add", "2001:cafe::/64", "br0")):
            side.call(*command)
        for address, mac in NEIGHBOURS.items():
            assert side.call("tnl/neigh/set", "br0", address, mac)["error"] is None
        for number, (kind, options) in scenario.tunnels.items():
            database.vsctl("add-port", "int", f"t{number}", "--", "set", "interface", f"t{number}", f"type={kind}", f"ofport_request={number}",
                           *(f"options:{name}={value}" for name, value in options.items()))
        run("ovs-ofctl", "del-flows", "br0", env=side.env)
        for flow in scenario.underlay:
            run("ovs-ofctl", "-OOpenFlow13", "add-flow", "br0", flow, env=side.env)
        # The underlay knows where the neighbours are.
        for mac in NEIGHBOURS.values():
            side.call("fdb/add", "br0", "br0p1", "0", mac)

    def flow(self, flow):
        done = run("ovs-ofctl", "-OOpenFlow15", "add-flow", "int", flow, env=self.side.env, check=False)
        return re.findall(r"OFPT_ERROR.*: (\w+)", done.stderr) or done.returncode

    def receive(self, port, frame):
        name = f"intp{port}" if port else "br0p1"
        assert self.call("netdev-dummy/receive", name, frame)["error"] is None, frame

    def sent(self):
        files = {name: self.side.dir / f"{name}.pcap" for name in ("br0p1", "br0p2", *(f"intp{number}" for number in PORTS))}
        # In which order a packet's copies leave by one port is another matter.
        return {name: sorted(comparable(frame) if name.startswith("br0") else frame.hex() for frame in (read_pcap(file) if file.exists() else []))
                for name, file in files.items()}

    def counters(self):
        self.call("revalidator/purge")
        dump = run("ovs-ofctl", "-OOpenFlow15", "dump-flows", "--no-names", "int", env=self.side.env).stdout
        return sorted(re.sub(r"(duration|hard_age|idle_age)=[\d.]+s?,? ?|\(xid=\w+\)", "", dump).splitlines())


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_random_tunnels(ovs, stock, first):  # noqa: F811
    ovs.start(*DUMMY)
    weir, stock = TunnelSide(Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")), TunnelSide(stock)
    outside = inside = 0
    for seed in range(first, first + 5):
        scenario = TunnelScenario(seed)
        for side in (stock, weir):
            side.build(scenario)
        for flow in scenario.flows:
            expected, actual = (side.flow(flow) for side in (stock, weir))
            assert actual == expected, f"seed {seed}: {flow}"
        for number, (port, frame) in enumerate(scenario.packets):
            stock.call("revalidator/purge")
            for side in (stock, weir):
                side.receive(port, frame)
            try:
                until(lambda: stock.sent() == weir.sent(), 3, "the same frames")
            except AssertionError:
                assert weir.sent() == stock.sent(), f"seed {seed}: packet {number}, {frame} at port {port}; {scenario.tunnels}"
        assert weir.counters() == stock.counters(), f"seed {seed}"
        outside += sum(len(frames) for name, frames in stock.sent().items() if name.startswith("br0"))
        inside += sum(len(frames) for name, frames in stock.sent().items() if name.startswith("int"))
    assert outside > 50 and inside > 20, (outside, inside)
