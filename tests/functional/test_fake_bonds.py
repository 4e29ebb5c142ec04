"""`ovs-vsctl --fake-iface add-bond`: a device of the bond's name, for programs that look for one."""

from pathlib import Path

from conftest import until
from lib.daemon import dummy_bridge

MACS = "02000000000f" + "02000000000a"
BODY = "88b5" + "00" * 46


def bond(ovs, *options):
    members = ["--", "set", "interface", "m1", "type=dummy", "--", "set", "interface", "m2", "type=dummy"]
    ovs.vsctl("--fake-iface", "add-bond", "br0", "bond0", "m1", "m2", *options, *members)


def names(ovs):
    lines = ovs.ofctl("show", "br0").splitlines()
    return {line.split("(")[1].split(")")[0] for line in lines if line.startswith(" ") and "): addr:" in line}


def sent(ovs, port):
    return int(ovs.ofctl("dump-ports", "br0", port).split("tx pkts=")[1].split(",")[0])


def test_nothing_but_flows_knows_of_it(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    bond(ovs)
    assert names(ovs) == {"br0", "p1", "m1", "m2", "bond0"}
    assert ovs.appctl("bond/list").splitlines()[1].split("\t")[-1] == "m1, m2"
    trace = lambda *flow: ovs.appctl("ofproto/trace", "br0", *flow)  # noqa: E731
    # NORMAL: nothing goes to it, and nothing comes from it.
    ovs.appctl("netdev-dummy/receive", "p1", MACS + BODY)
    assert sent(ovs, "m1") + sent(ovs, "m2") == 1 and sent(ovs, "bond0") == 0
    assert "no input bundle, dropping" in trace("in_port=bond0")
    assert "no input bundle" not in trace("in_port=p1")
    # Nor do mirrors see it.
    ovs.vsctl("add-port", "br0", "copies", "--", "set", "interface", "copies", "type=dummy", "--", "--id=@p", "get", "port", "copies",
              "--", "--id=@m", "create", "mirror", "name=m", "select-all=true", "output-port=@p", "--", "set", "bridge", "br0", "mirrors=@m")
    ovs.ofctl("add-flow", "br0", "in_port=bond0,actions=drop")
    ovs.ofctl("add-flow", "br0", "in_port=p1,actions=bond0")
    ovs.appctl("netdev-dummy/receive", "bond0", MACS + BODY)
    assert sent(ovs, "copies") == 0
    # Flows do.
    ovs.appctl("netdev-dummy/receive", "p1", MACS + BODY)
    assert (sent(ovs, "bond0"), sent(ovs, "copies")) == (1, 1)
    # It comes and goes by itself, and with the bond.
    ovs.vsctl("set", "port", "bond0", "bond_fake_iface=false")
    assert names(ovs) == {"br0", "p1", "m1", "m2", "copies"}
    ovs.vsctl("set", "port", "bond0", "bond_fake_iface=true")
    assert "bond0" in names(ovs)
    ovs.vsctl("--", "--id=@m2", "get", "interface", "m2", "--", "remove", "port", "bond0", "interfaces", "@m2")
    assert names(ovs) == {"br0", "p1", "m1", "copies"}, "no bond, no device of its name"
    ovs.vsctl("del-port", "bond0")
    assert names(ovs) == {"br0", "p1", "copies"}


def test_a_member_has_the_name_of_the_bond(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    members = ["--", "set", "interface", "bond0", "type=dummy", "--", "set", "interface", "m2", "type=dummy"]
    ovs.vsctl("--fake-iface", "add-bond", "br0", "bond0", "bond0", "m2", *members)
    assert names(ovs) == {"br0", "p1", "bond0", "m2"}
    assert ovs.appctl("bond/list").splitlines()[1].split("\t")[-1] == "bond0, m2"


def test_a_name_that_no_device_can_have(ovs):
    ovs.expect("cannot (name a tap device|make the tap device)")
    ovs.start()
    ovs.vsctl("add-br", "br0")
    for name in ("a-name-of-more-than-15-bytes", "a/b", "..", "ovs-netdev"):
        members = ["--", "set", "interface", "m1", "type=dummy", "--", "set", "interface", "m2", "type=dummy"]
        ovs.vsctl("--fake-iface", "add-bond", "br0", name, "m1", "m2", *members)
        assert names(ovs) == {"br0", "m1", "m2"}, name
        assert ovs.appctl("bond/list").splitlines()[1].split("\t")[0] == name
        ovs.vsctl("del-port", name)


def test_programs_find_a_device(ovs, net):
    ovs.start()
    ovs.vsctl("add-br", "br0")
    bond, first, second = "weir-bond", net.host().port, net.host().port
    device = Path("/sys/class/net") / bond
    ovs.vsctl("--fake-iface", "add-bond", "br0", bond, first, second)
    assert device.exists()
    assert bond in names(ovs)
    # Members come and go, and it stays.
    number = (device / "ifindex").read_text()
    ovs.vsctl("set", "port", bond, "bond_mode=balance-slb", "tag=5")
    third = net.host().port
    ovs.vsctl("--", "--id=@i", "create", "interface", f"name={third}", "--", "add", "port", bond, "interfaces", "@i")
    assert names(ovs) == {"br0", first, second, third, bond}
    assert (device / "ifindex").read_text() == number
    ovs.vsctl("del-port", bond)
    until(lambda: not device.exists(), what="the end of the device")
