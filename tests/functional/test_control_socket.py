"""Long lists on the control socket."""

import json
import re
import socket
import subprocess

from lib.daemon import dummy_bridge
from lib.pcap import write_pcap
from lib.wait import until


def test_all_learnt_addresses_are_shown_in_their_order(ovs, tmp_path):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs)
    count = 3000
    frames = [bytes.fromhex("020000000001" f"0600{n:08x}" "88b5") + bytes(46) for n in range(count)]
    write_pcap(tmp_path / "flood.pcap", frames)
    ovs.ofctl("add-flow", "br0", "actions=NORMAL")
    ovs.vsctl("add-port", "br0", "flood", "--", "set", "interface", "flood", "type=pcap",
              f"options:rx_pcap={tmp_path}/flood.pcap", "options:rate=5000", "ofport_request=1")

    def shown():
        lines = ovs.appctl("fdb/show", "br0").splitlines()
        assert lines[0].split() == ["port", "VLAN", "MAC", "Age"]
        return [line.split() for line in lines[1:]]

    while len(shown()) < count:
        pass
    ovs.appctl("fdb/add", "br0", "1", "7", "02:00:00:00:00:99")
    rows = shown()
    assert rows[-1] == ["1", "7", "02:00:00:00:00:99", "static"], "static ones come last"
    assert sorted(row[2] for row in rows[:-1]) == [f"06:00:{n >> 24:02x}:{n >> 16 & 255:02x}:{n >> 8 & 255:02x}:{n & 255:02x}"
                                                  for n in range(count)]
    ages = [int(row[3]) for row in rows[:-1]]
    assert ages == sorted(ages, reverse=True), "the longest unused come first"
    assert "no such bridge" in ovs.refusal("appctl", "fdb/show", "br7")


def test_many_datapath_flows_are_added_changed_and_removed_by_a_file(ovs, tmp_path):
    """Each is looked for among all others."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    count = 20_000
    flow = lambda n: (f"in_port(1),eth(src=02:00:00:00:{n >> 8:02x}:{n & 255:02x},dst=02:00:00:00:00:01),"
                      f"eth_type(0x{'88b5' if n % 2 else '88b6'})")

    def change(command, actions):
        (tmp_path / "flows").write_text("".join(f"{flow(n)} {actions}\n" for n in range(count)))
        ovs.appctl(f"dpctl/{command}", str(tmp_path / "flows"), timeout=120)
        return len(re.findall(r"actions:(\d+)$", ovs.appctl("dpctl/dump-flows", timeout=60), re.M))

    assert change("add-flows", "2") == count
    assert "File exists" in ovs.refusal("appctl", "dpctl/add-flow", flow(7), "2")
    assert change("mod-flows", "1") == count
    assert "No such file" in ovs.refusal("appctl", "dpctl/mod-flow", flow(7).replace("88b5", "88b7"), "2")
    assert change("del-flows", "") == 0


def test_the_switch_answers_while_it_adds_the_flows_of_a_file(ovs, tmp_path):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    count = 100_000
    (tmp_path / "flows").write_text("".join(
        f"in_port(1),eth(src=02:00:00:{n >> 16:02x}:{n >> 8 & 255:02x}:{n & 255:02x}),eth_type(0x88b5) 2\n" for n in range(count)))
    adding = subprocess.Popen(["ovs-appctl", "-t", "ovs-vswitchd", "dpctl/add-flows", tmp_path / "flows"], env=ovs.env)
    seen = set()
    while adding.poll() is None:
        seen.add(int(re.search(r"current (\d+)", ovs.appctl("upcall/show", timeout=60))[1]))
    assert adding.returncode == 0
    assert any(0 < flows < count for flows in seen), seen


def test_however_many_wait_for_others_the_switch_answers(ovs):
    ovs.start()
    ask = json.dumps({"method": "weir/top", "params": ["flows", "interval=60"], "id": 1}).encode()
    clients = []
    for _ in range(80):
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].connect(str(next(ovs.dir.glob("ovs-vswitchd.*.ctl"))))
        clients[-1].sendall(ask)
    for _ in range(3):
        assert "ovs-vswitchd" in ovs.appctl("version", timeout=20)
    assert "48 clients wait" in ovs.refusal("appctl", "weir/top", "flows")
    # Who has gone waits no more.
    for client in clients:
        client.close()
    until(lambda: ovs.appctl("weir/top", "flows", check=False), what="an answer")
