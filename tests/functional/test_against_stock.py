"""Stock OVS is the judge: random bridges, flows and packets give the same errors, the same frames and the same counters from both.

A difference is named by its seed; `Scenario(seed)` has all of it.
"""

import json
import os
import re
import socket
import tempfile
from pathlib import Path

import pytest
from conftest import until
from lib.daemon import Database
from lib.net import run
from lib.pcap import frames
from lib.scenario import PORTS, Scenario
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

OVS = "/usr/lib/openvswitch-switch/ovs-vswitchd"
DUMMY = ("--enable-dummy", "--disable-system", "--disable-system-route")

#: Random flows end in loops, and forward what is malformed.
EXPECTED = [r"\|ofproto_dpif_xlate", r"\|ofproto_dpif_upcall", r"recursion|resubmit|over max"]


class Side:
    """A switch that is compared: its database and its daemon's control socket."""

    def __init__(self, database, control):
        self.database, self.dir, self.env = database, database.dir, database.env
        self.socket, self.heard = socket.socket(socket.AF_UNIX), ""
        self.socket.connect(str(control))

    def call(self, command, *args):
        """As ovs-appctl, which would take a process for each packet."""
        self.socket.sendall(json.dumps({"id": 0, "method": command, "params": args}).encode())
        while True:
            try:
                answer, end = json.JSONDecoder().raw_decode(self.heard)
            except ValueError:
                more = self.socket.recv(1 << 16).decode()
                assert more, f"the end of the daemon of {self.dir}"
                self.heard += more
                continue
            self.heard = self.heard[end:].lstrip()
            return answer

    def ofctl(self, command, *arguments):
        """The errors that it is answered with."""
        done = run("ovs-ofctl", "-OOpenFlow15", command, "br0", *arguments, env=self.env, check=False)
        errors = re.findall(r"OFPT_ERROR.*: (\w+)", done.stderr)
        assert errors or done.returncode == 0 or "ovs-ofctl:" in done.stderr, done.stderr
        return errors or done.returncode

    def build(self, scenario):
        self.database.vsctl("--if-exists", "del-br", "br0")
        args = ["set", "open", ".", "other_config:vlan-limit=2", "--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail-mode=secure", "other_config:datapath-id=1",
                "other_config:hwaddr=02:00:00:00:00:ff", *scenario.bridge]
        for number, settings in zip(PORTS, scenario.ports, strict=True):
            file = self.dir / f"p{number}.pcap"
            file.unlink(missing_ok=True)
            args += ["--", "add-port", "br0", f"p{number}", *settings, "--", "set", "interface", f"p{number}", "type=dummy",
                     f"ofport_request={number}", f"options:tx_pcap={file}"]
        self.database.vsctl(*args)
        self.call("dpctl/flush-conntrack")

    def counters(self, version):
        """What tables and groups say of themselves, but for times, which are another matter. A flow that names a group twice is one of
        the group's users in Weir and two in OVS."""
        self.call("revalidator/purge")
        dumps = [run("ovs-ofctl", f"-OOpenFlow{at}", *dump, "br0", env=self.env).stdout
                 for at, *dump in ((version, "dump-flows", "--no-names"), (15, "dump-groups"), (15, "dump-group-stats"))]
        return [sorted(re.sub(r"(duration|hard_age|idle_age|ref_count)=[\d.]+s?,? ?|\(xid=\w+\)", "", dump).splitlines()) for dump in dumps]

    def sent(self):
        """All frames, by port."""
        files = {number: self.dir / f"p{number}.pcap" for number in PORTS}
        return {number: frames(file) if file.exists() else [] for number, file in files.items()}


@pytest.fixture
def stock(net):
    """OVS's own daemon, with dummy ports."""
    with tempfile.TemporaryDirectory(prefix="weir-ovs-") as name:
        directory = Path(name)
        env = dict(os.environ, OVS_RUNDIR=name, OVS_LOGDIR=name, OVS_DBDIR=name)
        database = Database(directory, env)
        try:
            run(OVS, database.db, "--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off", *DUMMY, env=env)
            pid = int((directory / "ovs-vswitchd.pid").read_text())
            yield Side(database, directory / f"ovs-vswitchd.{pid}.ctl")
            os.kill(pid, 15)
            until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of OVS")
        finally:
            database.stop_server()


@pytest.mark.parametrize("first", range(0, 40, 5))
def test_random_pipelines(ovs, stock, first):
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    received = forwarded = 0
    for seed in range(first, first + 5):
        scenario = Scenario(seed)
        for side in (stock, weir):
            side.build(scenario)
        for command, arguments in (("add-group", scenario.groups), ("add-flow", scenario.flows)):
            for argument in arguments:
                expected, actual = (side.ofctl(command, argument) for side in (stock, weir))
                assert actual == expected, f"seed {seed}: {argument}"
        for number, (port, frame) in enumerate(scenario.packets):
            # OVS is to look at its tables for each: its flows go on for a while when more has been learnt.
            stock.call("revalidator/purge")
            for side in (stock, weir):
                assert side.call("netdev-dummy/receive", f"p{port}", frame)["error"] is None, f"seed {seed}: {frame}"
            try:
                until(lambda: stock.sent() == weir.sent(), 3, "the same frames")
            except AssertionError:
                assert weir.sent() == stock.sent(), f"seed {seed}: packet {number}, {frame} at port {port}"
        # In older versions, much of the flows has no words.
        version = [12, 13, 14, 15][seed % 4]
        assert weir.counters(version) == stock.counters(version), f"seed {seed}, OpenFlow {version}"
        received += len(scenario.packets)
        forwarded += sum(map(len, stock.sent().values()))
    assert received > 300 and forwarded > 50, "the scenarios have no traffic"


def test_actions_that_are_deprecated(ovs, stock):
    """ovs-ofctl sends these also by later versions, where it does not know which protocol it is about."""
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    udp = bytes(Ether() / IP(dst="10.0.0.1") / UDP(sport=53, dport=443)).hex()
    for side in (stock, weir):
        side.build(Scenario(0))
        side.ofctl("del-flows")
        for group in ("group_id=1,type=all,bucket=actions=mod_tp_dst:80,output:2", "group_id=2,type=all,bucket=actions=mod_tp_src:8,output:3"):
            assert side.ofctl("add-group", group) == 0
        side.ofctl("add-flow", "udp,actions=group:1,group:2")
        side.call("netdev-dummy/receive", "p1", udp)
    until(lambda: stock.sent()[3], what="a frame")
    assert weir.sent() == stock.sent()


def test_prerequisites(ovs, stock):
    ovs.start(*DUMMY)
    weir = Side(ovs, ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl")
    wrong = ["OFPBMC_BAD_PREREQ"]
    flows = {
        "icmp,ip_frag=later,icmp_type=8,actions=drop": 0,
        "icmp6,ip_frag=later,icmp_type=8,actions=drop": 0,
        "tcp,ip_frag=first,tp_dst=80,actions=drop": 0,
        "tcp,ip_frag=later,tp_dst=80,actions=drop": wrong,
        "udp6,ip_frag=later,tp_dst=80,actions=drop": wrong,
        # In a set, the second one may be done first.
        "mpls,actions=write_actions(pop_mpls:0x86dd,pop_mpls:0x8847,output:3)": 0,
    }
    for side in (stock, weir):
        side.build(Scenario(0))
        assert {flow: side.ofctl("add-flow", flow) for flow in flows} == flows
