"""What controllers are told unasked, through Debian's ovs-ofctl as the controllers."""

import re
import subprocess

import pytest
from lib.net import run
from lib.wait import until

# Ethernet type 0x1234.
FRAME = "0001020304050010203040501234"


class Monitor:
    """`ovs-ofctl monitor`, which sends what it is told to and logs what it hears."""

    def __init__(self, ovs, name, version, *args):
        self.ovs, self.control, self.path = ovs, ovs.dir / f"{name}.ctl", ovs.dir / f"{name}.log"
        with open(self.path, "wb") as log:
            self.proc = subprocess.Popen(["ovs-ofctl", "-O", version, "-P", "standard", "monitor", "br0", *args,
                                          f"--unixctl={self.control}"], env=ovs.env, stdout=log, stderr=log)
        until(self.control.exists, what="ovs-ofctl monitor listening")

    def ask(self, *args):
        run("ovs-appctl", "-t", self.control, *args, env=self.ovs.env)

    def send(self, hexadecimal):
        self.ask("ofctl/send", hexadecimal.replace(" ", ""))

    def heard(self):
        """What it has heard up to now, without what it has sent and transaction ids."""
        self.ask("ofctl/barrier")
        text = re.sub(r" \(xid=0x[0-9a-f]+\)", "", self.path.read_text())
        return re.sub(r"^send: .*\n", "", text, flags=re.MULTILINE)


@pytest.fixture
def ovs(ovs):
    """A daemon with br0 and its dummy port p1."""
    ovs.start("--enable-dummy=override")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
              "--", "add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    return ovs


@pytest.fixture
def monitor(ovs):
    monitors = []

    def start(version, *args):
        monitors.append(Monitor(ovs, f"monitor{len(monitors)}", version, *args))
        return monitors[-1]

    yield start
    for each in monitors:
        each.proc.terminate()
        each.proc.wait(30)


def test_controllers_hear_of_each_other(monitor):
    """A new primary makes the old one secondary, which is told so, and gets forwarded what it has asked for."""
    old, new, mute = monitor("OpenFlow14"), monitor("OpenFlow14"), monitor("OpenFlow14")
    old.send("05 18 0018 00000002 00000002 00000000 0000000000000001")
    # OFPT_SET_ASYNC: forwarded requests, as secondary.
    old.send("05 1c 0010 00000003 000a 0008 00000003")
    new.send("05 18 0018 00000002 00000002 00000000 0000000000000002")
    assert "OFPT_ROLE_STATUS (OF1.4): role=secondary generation_id=2 reason=primary_request" in old.heard()
    new.send("05 0f 0010 00000004 0000 00 00 00000001")
    new.send("05 1d 0010 00000005 0000 0001 00000007")
    text = old.heard()
    assert re.search(r"OFPT_REQUESTFORWARD \(OF1.4\): reason=group_mod\s+ADD group_id=1,type=all", text), text
    assert re.search(r"OFPT_REQUESTFORWARD \(OF1.4\): reason=meter_mod ADD meter=7", text), text
    assert "REQUESTFORWARD" not in new.heard() + mute.heard()
    assert "ROLE_STATUS" not in new.heard() + mute.heard()


def test_a_table_that_fills_is_told_of(ovs, monitor):
    ovs.vsctl("--", "--id=@t", "create", "Flow_Table", "flow-limit=10", "--", "set", "bridge", "br0", "flow_tables:1=@t")
    controller = monitor("OpenFlow14")
    controller.send("05 1c 0010 00000003 0009 0008 00000018")
    ovs.ofctl("-O", "OpenFlow14", "mod-table", "br0", "1", "vacancy:20,80")
    for port in range(1, 11):
        ovs.ofctl("add-flow", "br0", f"table=1,in_port={port},actions=drop")
    ovs.ofctl("del-flows", "br0", "table=1")
    text = controller.heard()
    assert re.findall(r"reason=(\w+)", text) == ["VACANCY_DOWN", "VACANCY_UP"], text
    assert re.findall(r"vacancy=(\d+)%", text) == ["10", "100"], text


def test_ports_come_and_go_in_steps_and_their_numbers_rest(ovs, monitor):
    controllers = {version: monitor(version, "65534") for version in ["OpenFlow10", "OpenFlow14"]}
    add = lambda: ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
    add()
    ovs.ofctl("-O", "OpenFlow14", "mod-port", "br0", "p2", "down")
    ovs.vsctl("del-port", "p2")
    add()
    told = {}
    for version, controller in controllers.items():
        status = re.findall(r"OFPT_PORT_STATUS.*: (\w+): (\d+)\(p2\).*\n +config: +(\w+)\n +state: +(\w+)", controller.heard())
        told[version] = [" ".join(each) for each in status]
    down = ["MOD 2 PORT_DOWN 0", "MOD 2 PORT_DOWN LINK_DOWN", "DEL 2 PORT_DOWN LINK_DOWN"]
    assert told["OpenFlow14"] == ["ADD 2 0 0", "MOD 2 0 LIVE", *down, "ADD 3 0 0", "MOD 3 0 LIVE"]
    assert told["OpenFlow10"] == ["ADD 2 0 0", *down, "ADD 3 0 0"]


def test_a_port_with_other_options_is_a_port_that_changes(ovs, monitor):
    controller = monitor("OpenFlow14", "65534")
    ovs.vsctl("set", "interface", "p1", "type=dummy", "options:n_rxq=3")
    told = re.findall(r"OFPT_PORT_STATUS.*: (\w+): (\d+)\(p1\)", controller.heard())
    assert set(told) == {("MOD", "1")}, told


def test_packet_ins_say_what_made_them(ovs, monitor):
    ovs.ofctl("-O", "OpenFlow14", "add-group", "br0",
              "group_id=1,type=all,bucket=output:CONTROLLER,bucket=resubmit(,5)")
    for flow in ["cookie=0xa,in_port=1,actions=write_actions(output(CONTROLLER)),goto_table(1)",
                 "table=1,cookie=0xb,actions=group:1",
                 "table=5,cookie=0xc,priority=9,in_port=1,actions=output:CONTROLLER"]:
        ovs.ofctl("-O", "OpenFlow14", "add-flow", "br0", flow)
    controllers = {version: monitor(version, "65534") for version in ["OpenFlow13", "OpenFlow14"]}
    ovs.appctl("netdev-dummy/receive", "p1", FRAME)
    ovs.ofctl("packet-out", "br0", f"in_port=NONE,packet={FRAME},actions=controller")
    reasons = {"OpenFlow13": ["action"] * 4, "OpenFlow14": ["group", "action", "action_set", "packet_out"]}
    for version, controller in controllers.items():
        until(lambda: controller.path.read_text().count("PACKET_IN") == 4, what=f"four packet-ins with {version}")
        text = controller.path.read_text()
        assert re.findall(r"\(via (\w+)\)", text) == reasons[version], text
        assert re.findall(r"cookie=(\w+)", text) == ["0xb", "0xc", "0xa"], text


def test_an_idle_bundle_expires_when_the_operator_says(ovs, monitor):
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:bundle-idle-timeout=4")
    controller = monitor("OpenFlow14")
    ovs.appctl("time/stop")
    controller.send("05 21 0010 00000001 00000001 0000 0003")
    assert "OPEN_REPLY" in controller.heard()
    ovs.appctl("time/warp", "3000")
    assert "TIMEOUT" not in controller.heard()
    ovs.appctl("time/warp", "1500")
    until(lambda: "OFPBFC_TIMEOUT" in controller.heard(), what="the error of the bundle")
    assert re.search(r"OFPBFC_TIMEOUT\nOFPT_BUNDLE_CONTROL \(OF1.4\):\n bundle_id=0x1 type=OPEN_REQUEST", controller.heard())
