"""What the database asks for and does not get, since it would harm others."""

from conftest import until
from lib.daemon import dummy_bridge


def test_names_of_the_datapath_s_own_devices(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    for name in ("vxlan_sys_4789", "ovs-netdev"):
        ovs.expect(f"could not create interface {name}, name is reserved")
        ovs.vsctl("add-port", "br0", name)
        until(lambda name=name: ovs.get("interface", name, "ofport") == "-1", what="the verdict")
        assert ovs.get("interface", name, "error") == "[]"
        assert f"bridge|WARN|could not create interface {name}, name is reserved" in ovs.log()
    assert ovs.get("interface", "p1", "ofport") == "1"


def test_a_controller_s_socket_anywhere(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs)
    victim = ovs.dir / "victim"
    victim.write_text("precious")
    ovs.expect("Not adding Unix domain socket controller")
    ovs.vsctl("set-controller", "br0", f"punix:{ovs.dir}/br0.x/../victim")
    until(lambda: "bridge|ERR|bridge br0: Not adding Unix domain socket controller" in ovs.log(), what="the refusal")
    assert victim.read_text() == "precious"
