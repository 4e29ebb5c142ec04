"""Debian's further tools of Open vSwitch: captures by ovs-tcpdump, flows saved by ovs-save, totals by ovs-dpctl-top."""

import subprocess

from conftest import until
from lib.daemon import dummy_bridge
from lib.net import run

SAVE = "/usr/share/openvswitch/scripts/ovs-save"
FLOWS = """\
table=0,priority=10,ip,in_port=p1 actions=group:1
table=0,priority=5,arp actions=NORMAL
table=3,cookie=0x5,tcp,tp_dst=80 actions=set_field:10.0.0.9->ip_dst,output:p2
table=3,tun_metadata0=0x7 actions=drop
"""


def test_tcpdump_captures_what_a_port_sees_and_cleans_up(ovs, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    ovs.start()
    # The tool deletes its device before its port.
    ovs.expect("No such device")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
              "--", "add-port", "br0", a.port, "--", "add-port", "br0", b.port)
    assert a.ping("10.0.0.2", 1) == 1
    capture = subprocess.Popen(["/usr/bin/python3", "/usr/bin/ovs-tcpdump", "-i", a.port, "--db-sock", ovs.db, "-nn", "-l", "-c", "4", "icmp"], env=ovs.env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: ovs.vsctl("--bare", "--columns=_uuid", "list", "mirror"), what="the tool's mirror")
        # Some are sent before it listens.
        until(lambda: a.ping("10.0.0.2", 2, 0.05) == 2 and capture.poll() is not None, 20, "four packets captured")
    finally:
        capture.kill()
        out, errors = capture.communicate()
    assert out.count("ICMP echo request") >= 1 and out.count("ICMP echo reply") >= 1, out + errors
    assert "4 packets captured" in errors
    assert not ovs.vsctl("--bare", "--columns=_uuid", "list", "mirror")
    assert sorted(ovs.vsctl("list-ports", "br0").split()) == sorted([a.port, b.port])


def test_flows_are_saved_and_restored(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-tlv-map", "br0", "{class=0xffff,type=1,len=4}->tun_metadata0")
    ovs.ofctl("add-group", "br0", "group_id=1,type=select,bucket=output:p1,bucket=output:p2", version="14")
    ovs.ofctl("add-flows", "br0", "-", version="14", input=FLOWS)

    def state():
        dumps = [["--no-stats", "--no-names", "dump-flows"], ["dump-groups"], ["dump-tlv-map"]]
        return [sorted(line for line in run("ovs-ofctl", "-OOpenFlow14", *dump, f"unix:{ovs.dir}/br0.mgmt").stdout.splitlines()
                       if "xid" not in line) for dump in dumps]

    before = state()
    assert [len(lines) for lines in before] == [5, 1, 7], before
    script = run(SAVE, "save-flows", "br0", env=ovs.env).stdout
    assert "replace-flows" in script
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("del-groups", "br0", version="14")
    ovs.ofctl("del-tlv-map", "br0")
    assert state() != before
    run("bash", "-e", "-c", script, env=ovs.env)
    assert state() == before


def test_totals_of_datapath_flows(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    for source in range(1, 4):
        for _ in range(2):
            ovs.appctl("netdev-dummy/receive", "p1", "ff" * 6 + f"02000000000{source}" + "88b5" + "00" * 46)
    dump = ovs.appctl("dpctl/dump-flows", "netdev@ovs-netdev", check=False) or ovs.appctl("dpctl/dump-flows")
    file = ovs.dir / "flows"
    file.write_text(dump)
    shown = run("/usr/bin/python3", "/usr/bin/ovs-dpctl-top", "--script", f"--flow-file={file}", env=ovs.env).stdout
    totals = [line.split() for line in shown.splitlines() if line.startswith("eth_type(0x88b5)")]
    # Three flows, each of which counts the packet behind the one that made it.
    assert totals[0][1:4] == ["3", "3", "180"], shown
