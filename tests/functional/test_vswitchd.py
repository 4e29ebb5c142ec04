"""`weir vswitchd`: a real ovsdb-server and Debian's tools drive Weir in the place of ovs-vswitchd."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import WEIR, ovs, until  # noqa: F401 (others may import the fixture from here)
from lib.daemon import SCHEMA, Ovs, alive, dummy_bridge  # noqa: F401
from lib.net import run


def test_version_is_one_that_tools_understand(ovs):
    for command in [[ovs.name], [WEIR, "vswitchd"]]:
        out = run(*command, "--version").stdout.splitlines()
        assert out[0] == "ovs-vswitchd (Open vSwitch) 3.1.0"
        assert "Weir" in out[1]


@pytest.mark.parametrize("option, says", [("--nonsense", "--nonsense"), ("--enable-dummy=x", "override"),
                                          ("-vfile:loud", "loud")])
def test_wrong_options_are_explained(ovs, option, says):
    r = run(ovs.name, option, check=False)
    assert r.returncode == 1 and says in r.stderr


def test_detach_returns_when_the_configuration_is_in_force(ovs):
    ovs.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    r = ovs.start()
    assert (r.stdout, r.stderr) == ("", "")
    assert "br0" in run("ovs-ofctl", "show", "br0", env=ovs.env).stdout
    assert (ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl").exists()
    assert Path(f"/proc/{ovs.pid()}/comm").read_text() == "ovs-vswitchd\n"
    assert ovs.vsctl("get", "open", ".", "cur_cfg") == ovs.vsctl("get", "open", ".", "next_cfg")


def test_detach_fails_where_the_daemon_does(ovs):
    ovs.start()
    r = ovs.start(check=False)
    assert r.returncode == 1 and "already running" in r.stderr


def test_appctl(ovs):
    ovs.start()
    assert ovs.appctl("version").startswith("ovs-vswitchd (Open vSwitch) 3.1.0\n")
    pid = ovs.pid()
    ovs.appctl("exit")
    until(lambda: not alive(pid), what="the end")
    assert not (ovs.dir / "ovs-vswitchd.pid").exists()
    assert not (ovs.dir / f"ovs-vswitchd.{pid}.ctl").exists()


def test_bridges_and_ports_come_and_go(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("add-port", "br0", "p2", "tag=5", "--", "set", "interface", "p2", "type=dummy", "ofport_request=7")
    # Without any wait: ovs-vsctl returned, so the port is there.
    shown = ovs.ofctl("show", "br0")
    assert " 1(p1)" in shown and " 7(p2)" in shown and "LOCAL(br0)" in shown
    assert ovs.get("interface", "p2", "ofport") == "7"
    assert ovs.get("interface", "br0", "ofport") == "65534"
    ovs.vsctl("set", "interface", "p2", "ofport_request=9")
    assert " 9(p2)" in ovs.ofctl("show", "br0")
    assert ovs.get("interface", "p2", "ofport") == "9"
    ovs.vsctl("del-port", "p2")
    assert "p2" not in ovs.ofctl("show", "br0")
    ovs.vsctl("del-br", "br0")
    assert run("ovs-ofctl", "show", "br0", env=ovs.env, check=False).returncode != 0


def test_ports_have_the_same_numbers_after_a_restart(ovs):
    """As the column ofport says, unless something else is requested: controllers and flows go on with them."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3", "p4")
    ovs.vsctl("del-port", "p1", "--", "del-port", "p3")
    ovs.vsctl("add-port", "br0", "p3", "--", "set", "interface", "p3", "type=dummy")
    numbers = {name: ovs.get("interface", name, "ofport") for name in ("p2", "p3", "p4")}
    # The number of a port that was removed rests.
    assert numbers == {"p2": "2", "p3": "5", "p4": "4"}
    ovs.stop()
    # While nobody looks: a new port, which comes first by its name, and one that wants the number of another.
    ovs.vsctl("--no-wait", "add-port", "br0", "a", "--", "set", "interface", "a", "type=dummy")
    ovs.vsctl("--no-wait", "add-port", "br0", "z", "--", "set", "interface", "z", "type=dummy", "ofport_request=4")
    ovs.start()
    after = {name: ovs.get("interface", name, "ofport") for name in ("a", "p2", "p3", "p4", "z")}
    assert after == {"a": after["a"], "p2": "2", "p3": "5", "p4": after["p4"], "z": "4"}
    assert len(set(after.values())) == 5
    # What has been written is no news: nothing moves.
    ovs.vsctl("set", "bridge", "br0", "other-config:mac-aging-time=100")
    assert after == {name: ovs.get("interface", name, "ofport") for name in after}
    # Nonsense in the column is none.
    ovs.stop()
    for name, number in (("p2", "65280000"), ("p3", "-1"), ("a", "0"), ("p4", "65534")):
        ovs.vsctl("--no-wait", "set", "interface", name, f"ofport={number}")
    ovs.start()
    assert len({int(ovs.get("interface", name, "ofport")) for name in after} & set(range(1, 0x8000))) == 5


def test_a_new_port_gets_a_taken_number_only_with_the_next_configuration(ovs):
    """As in OVS: who is there is not disturbed by who comes."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    numbers = lambda: [ovs.get("interface", name, "ofport") for name in ("p1", "p2")]  # noqa: E731
    ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy", "ofport_request=1")
    assert numbers() == ["1", "2"]
    ovs.vsctl("set", "bridge", "br0", "other-config:mac-aging-time=100")
    taken = numbers()
    assert taken[1] == "1" and taken[0] not in ("1", "-1")


def test_what_runs_is_written_back(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    shown = ovs.ofctl("show", "br0")
    assert f"dpid:{ovs.get('bridge', 'br0', 'datapath_id')}" in shown
    mac = ovs.get("interface", "p1", "mac_in_use")
    assert f"1(p1): addr:{mac}" in shown
    assert ovs.get("interface", "p1", "link_state") == "up"
    assert ovs.get("interface", "p1", "admin_state") == "up"
    assert ovs.get("interface", "p1", "mtu") == "1500"
    assert ovs.get("open", ".", "ovs_version") == "3.1.0"
    # What an orchestrator looks for before it makes a port.
    assert {"patch", "system", "internal", "vxlan", "geneve", "gre"} <= set(re.findall(r"[\w-]+", ovs.get("open", ".", "iface_types")))
    assert "netdev" in ovs.get("open", ".", "datapath_types")
    ovs.appctl("netdev-dummy/set-admin-state", "p1", "down")
    until(lambda: ovs.get("interface", "p1", "admin_state") == "down", what="the new state")


def test_a_port_does_not_get_the_number_of_another_one_of_its_name(ovs):
    """Who waits for the number of a port finds its own, whatever was there before under its name."""
    ovs.start()
    dummy_bridge(ovs)
    ovs.expect("requires valid .remote_ip. argument")
    local = ovs.get("port", "br0", "_uuid")

    def replaced(interface):
        ports = ["set", [["uuid", local], ["named-uuid", "port"]]]
        ports = {"op": "update", "table": "Bridge", "where": [["name", "==", "br0"]], "row": {"ports": ports}}
        port = {"name": "p", "interfaces": ["named-uuid", "interface"]}
        return [{"op": "insert", "table": "Interface", "row": {"name": "p", **interface}, "uuid-name": "interface"},
                {"op": "insert", "table": "Port", "row": port, "uuid-name": "port"}, ports]

    of_p = {"table": "Interface", "where": [["name", "==", "p"]], "columns": ["ofport", "error"]}
    asked = [{"op": "wait", "until": "!=", "rows": [{"ofport": ["set", []]}], "timeout": 20_000, **of_p, "columns": ["ofport"]},
             {"op": "select", **of_p}]
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(30)
        server.connect(str(ovs.dir / "db.sock"))
        for n in range(40):
            for operations in replaced({"type": "vxlan"}), replaced({"type": "dummy"}), asked:
                server.sendall(json.dumps({"method": "transact", "id": n, "params": ["Open_vSwitch", *operations]}).encode())
            said, decoder, answers = "", json.JSONDecoder(), []
            while len(answers) < 3:
                said += server.recv(65536).decode()
                while said:
                    try:
                        answer, end = decoder.raw_decode(said)
                    except ValueError:
                        break
                    answers, said = [*answers, answer], said[end:].lstrip()
            (row,) = answers[2]["result"][1]["rows"]
            assert row["ofport"] != -1 and row["error"] == ["set", []], (n, row)


def test_who_adds_a_port_finds_its_counters_at_once(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    assert "rx_packets=0" in ovs.get("interface", "p1", "statistics")
    ovs.vsctl("add-port", "br0", "a", "--", "set", "interface", "a", "type=patch", "options:peer=b")
    assert ovs.get("interface", "a", "statistics") == "{rx_bytes=0, rx_packets=0, tx_bytes=0, tx_packets=0}"
    assert [ovs.get("interface", "a", column) for column in ("ifindex", "link_resets")] == ["0", "0"]
    ovs.vsctl("add-port", "br0", "t", "--", "set", "interface", "t", "type=vxlan", "options:remote_ip=192.0.2.1")
    assert [ovs.get("interface", "t", column) for column in ("ifindex", "mtu")] == ["0", "[]"]
    # Those of another daemon are gone when the configuration is in force, as the database has it.
    ovs.stop()
    ovs.vsctl("--no-wait", "set", "interface", "p1", "statistics:rx_packets=7", "--", "set", "open", ".", "next_cfg=99")
    in_force = {"op": "wait", "table": "Open_vSwitch", "where": [], "columns": ["cur_cfg"], "until": "==", "rows": [{"cur_cfg": 99}]}
    select = {"op": "select", "table": "Interface", "where": [["name", "==", "p1"]], "columns": ["statistics"]}
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(60)
        server.connect(str(ovs.dir / "db.sock"))
        server.sendall(json.dumps({"method": "transact", "id": 0, "params": ["Open_vSwitch", {**in_force, "timeout": 60_000}, select]}).encode())
        ovs.start()
        (row,) = json.loads(server.recv(65536))["result"][1]["rows"]
    assert ["rx_packets", 0] in row["statistics"][1], row


def test_the_counters_of_a_patch_port(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("add-port", "br0", "a", "--", "set", "interface", "a", "type=patch", "options:peer=b")
    ovs.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy",
              "--", "add-port", "br1", "b", "--", "set", "interface", "b", "type=patch", "options:peer=a")
    frame = "ff" * 6 + "020000000001" + "88b5" + "00" * 46
    for _ in range(3):
        ovs.appctl("netdev-dummy/receive", "p1", frame)
    for port, way in [("a", "tx"), ("b", "rx")]:
        expected = {f"{way}_packets=3", f"{way}_bytes={3 * len(frame) // 2}"}
        until(lambda: expected <= set(ovs.get("interface", port, "statistics").strip("{}").split(", ")), 15, "three packets")


def test_a_patch_port_that_leads_nowhere(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("add-port", "br0", "a", "--", "set", "interface", "a", "type=patch", "options:peer=b", check=False)
    problem = "No usable peer 'b' exists in 'dummy' datapath."
    assert ovs.get("interface", "a", "error") == problem
    assert problem in ovs.vsctl("show")
    ovs.vsctl("add-port", "br0", "b", "--", "set", "interface", "b", "type=patch", "options:peer=c", check=False)
    assert ovs.get("interface", "a", "error") == problem, "it leads elsewhere"
    ovs.vsctl("set", "interface", "b", "options:peer=a")
    until(lambda: [ovs.get("interface", port, "error") for port in "ab"] == ["[]", "[]"], what="both ends")


def test_what_another_daemon_left_as_port_status_goes(ovs):
    ovs.start("--enable-dummy")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy",
              "--", "add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    ovs.vsctl("set", "port", "p1", "status:stp_state=forwarding")
    ovs.vsctl("set", "bridge", "br0", "external_ids:touched=1")
    until(lambda: ovs.get("port", "p1", "status") == "{}", what="the status being removed")


def test_statistics_follow_the_traffic(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    for _ in range(3):
        ovs.appctl("netdev-dummy/receive", "p1", "ff" * 6 + "020000000001" + "88b5" + "00" * 46)
    until(lambda: "rx_packets=3," in ovs.get("interface", "p1", "statistics") + ",", 15, "three packets in")
    until(lambda: "tx_packets=3" in ovs.get("interface", "p2", "statistics"), 15, "three packets out")


def test_a_tag_separates_ports(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.vsctl("set", "port", "p1", "tag=5", "--", "set", "port", "p2", "tag=5", "--", "set", "port", "p3", "tag=6")
    ovs.appctl("netdev-dummy/receive", "p1", "ff" * 6 + "020000000001" + "88b5" + "00" * 46)

    def sent(port):
        line = next(line for line in ovs.ofctl("dump-ports", "br0", port).splitlines() if "tx pkts=" in line)
        return int(line.split("tx pkts=")[1].split(",")[0])

    until(lambda: sent("p2") == 1, what="the frame in its VLAN")
    assert sent("p3") == 0


def test_a_missing_interface_has_an_error_in_words(ovs):
    ovs.expect(r"bridge.*WARN.*could not open network device nosuch0 \(No such device\)")
    ovs.start()
    dummy_bridge(ovs, "p1")
    r = run("ovs-vsctl", f"--db={ovs.db}", "--timeout=10", "add-port", "br0", "nosuch0", env=ovs.env, check=False)
    assert "could not open network device nosuch0" in r.stderr
    shown = ovs.vsctl("show")
    assert 'error: "could not open network device nosuch0 (No such device)"' in shown
    assert ovs.get("interface", "nosuch0", "ofport") == "-1"
    assert "1(p1)" in ovs.ofctl("show", "br0")
    ovs.vsctl("set", "interface", "nosuch0", "type=dummy")
    assert ovs.get("interface", "nosuch0", "error") == "[]"
    assert ovs.get("interface", "nosuch0", "ofport") != "-1"


def test_an_interface_that_appears_is_taken(ovs, net):
    ovs.expect("No such device")
    ovs.start()
    dummy_bridge(ovs)
    host = net.host()
    name = host.port
    run("ip", "link", "set", name, "name", name + "x")
    run("ovs-vsctl", f"--db={ovs.db}", "--timeout=10", "add-port", "br0", name, env=ovs.env, check=False)
    assert ovs.get("interface", name, "ofport") == "-1"
    run("ip", "link", "set", name + "x", "name", name)
    until(lambda: ovs.get("interface", name, "ofport") != "-1", what="the interface in use")
    assert ovs.get("interface", name, "error") == "[]"
    index = Path(f"/sys/class/net/{name}/ifindex").read_text().strip()
    assert ovs.get("interface", name, "ifindex") == index


def test_enable_dummy_override(ovs):
    ovs.start("--enable-dummy=override")
    bridge = f"over{ovs.pid()}"  # no device of the host has this name
    ovs.vsctl("add-br", bridge, "--", "add-port", bridge, "eth-none")
    assert "1(eth-none)" in ovs.ofctl("show", bridge)
    assert not Path(f"/sys/class/net/{bridge}").exists()


def test_settings_of_a_bridge(ovs):
    ovs.start()
    dummy_bridge(ovs)
    ovs.vsctl("set", "bridge", "br0", "other_config:datapath-id=00000000000000ab", "fail_mode=secure")
    assert "dpid:00000000000000ab" in ovs.ofctl("show", "br0")
    assert ovs.get("bridge", "br0", "datapath_id") == "00000000000000ab"
    show = json.loads(run(WEIR, "--socket", ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl", "show", "--json",
                          env=ovs.env).stdout)
    assert show["bridges"][0]["fail_mode"] == "secure"


def test_a_controller_that_connects_is_marked(ovs):
    ovs.start()
    dummy_bridge(ovs)
    path = ovs.dir / "br0.controller"
    ovs.vsctl("set-controller", "br0", f"punix:{path}")
    uuid = ovs.vsctl("get", "bridge", "br0", "controller").strip("[]")
    assert ovs.get("controller", uuid, "is_connected") == "false"
    monitor = subprocess.Popen(["ovs-ofctl", "monitor", f"unix:{path}"], env=ovs.env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: ovs.get("controller", uuid, "is_connected") == "true", what="is_connected")
    finally:
        monitor.kill()
        monitor.wait()
    until(lambda: ovs.get("controller", uuid, "is_connected") == "false", what="the connection's end")


def test_cores_that_do_not_exist_do_not_stop_the_daemon(ovs):
    ovs.expect("pmd-cpu-mask: cores .* do not exist")
    ovs.vsctl("--no-wait", "set", "open", ".", "other_config:pmd-cpu-mask=f" + "0" * 100)
    ovs.start()
    dummy_bridge(ovs, "p1")
    assert "1(p1)" in ovs.ofctl("show", "br0")
    assert "pmd-cpu-mask" in ovs.log()


def test_killed_and_started_again(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "interface", "p1", "ofport_request=5")
    ovs.kill(9)
    ovs.start()
    assert "5(p1)" in ovs.ofctl("show", "br0")
    ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
    assert "p2" in ovs.ofctl("show", "br0")


def test_a_monitor_starts_the_daemon_again(ovs):
    ovs.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    ovs.start("--monitor")
    assert "LOCAL(br0)" in ovs.ofctl("show", "br0")
    first = ovs.pid()
    ovs.kill(6)
    until(lambda: ovs.pid() != first and alive(ovs.pid()), 20, "another daemon")
    ovs.daemons.append(ovs.pid())
    ovs.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    assert "1(p1)" in ovs.ofctl("show", "br0")


def test_two_daemons_on_one_database(ovs):
    ovs.expect("another ovs-vswitchd process is running")
    ovs.start()
    dummy_bridge(ovs, "p1")
    second = ovs.foreground(f"--unixctl={ovs.dir}/second.ctl")
    until(lambda: "another ovs-vswitchd process is running" in (ovs.dir / "foreground.log").read_text(),
          what="the second daemon's complaint")
    ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
    assert "p2" in ovs.ofctl("show", "br0")
    assert second.poll() is None
    # The second one waits for its turn, and answers meanwhile.
    assert "3.1.0" in run("ovs-appctl", "-t", ovs.dir / "second.ctl", "version", env=ovs.env).stdout
    first = ovs.pid()
    ovs.appctl("exit")
    until(lambda: not alive(first), what="the first daemon's end")
    until(lambda: run("ovs-ofctl", "show", "br0", env=ovs.env, check=False).returncode == 0, what="the second's turn")
    ovs.vsctl("del-port", "p2")
    assert "p2" not in ovs.ofctl("show", "br0")


def test_the_server_is_restarted(ovs):
    ovs.expect("database: (lock lost|connection closed by the server|.*/db.sock: )")
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.ofctl("add-flow", "br0", "priority=77,actions=drop")
    ovs.stop_server()
    until(lambda: "connection closed by the server" in ovs.log(), what="the daemon noticing")
    assert "priority=77" in ovs.ofctl("dump-flows", "br0"), "the switch goes on without its database"
    ovs.start_server()
    ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
    assert "p2" in ovs.ofctl("show", "br0")
    assert "priority=77" in ovs.ofctl("dump-flows", "br0")


def test_a_bond_is_one_of_the_interfaces_that_can_be_had(ovs):
    ovs.expect("interface b2: .*/etc/passwd|/etc/passwd")
    ovs.start()
    dummy_bridge(ovs)
    run("ovs-vsctl", f"--db={ovs.db}", "--timeout=10", "add-bond", "br0", "bond0", "b1", "b2", "--", "set", "interface",
        "b1", "type=dummy", "--", "set", "interface", "b2", "type=pcap", "options:tx_pcap=/etc/passwd",
        env=ovs.env, check=False)
    assert (ovs.get("interface", "b1", "error"), ovs.get("interface", "b2", "ofport")) == ("[]", "-1")
    assert "/etc/passwd" in ovs.get("interface", "b2", "error")
    assert "b1" in ovs.appctl("bond/show", "bond0") and "b2" not in ovs.appctl("bond/show", "bond0")
    number = ovs.get("interface", "b1", "ofport")
    ovs.vsctl("set", "interface", "b2", "type=dummy", "--", "clear", "interface", "b2", "options")
    until(lambda: "member b2: " in ovs.appctl("bond/show", "bond0"), what="the second member")
    assert ovs.get("interface", "b1", "ofport") == number, "the first stays what it was"
    ovs.vsctl("del-port", "bond0", "--", "add-port", "br0", "b1", "--", "set", "interface", "b1", "type=dummy")
    assert ovs.get("interface", "b1", "error") == "[]"
    assert ovs.appctl("bond/list").count("\n") == 1


def test_a_port_and_its_interface_have_names_of_their_own(ovs):
    """The OpenFlow port has the interface's name; VLANs, which are the port's, change without adding it anew."""
    ovs.start()
    dummy_bridge(ovs)
    ovs.vsctl("--id=@i", "create", "interface", "name=i1", "type=dummy", "--",
              "--id=@p", "create", "port", "name=port1", "interfaces=@i", "tag=7", "--",
              "add", "bridge", "br0", "ports", "@p")
    number = ovs.get("interface", "i1", "ofport")
    assert f" {number}(i1)" in ovs.ofctl("show", "br0")
    ovs.vsctl("set", "port", "port1", "tag=8")
    assert ovs.get("interface", "i1", "ofport") == number
    assert ovs.log().count("added interface i1") == 1
    ovs.vsctl("remove", "bridge", "br0", "ports", ovs.get("port", "port1", "_uuid"))
    assert "(i1)" not in ovs.ofctl("show", "br0")


def test_dummy_datapath(ovs):
    """Ports of a dummy bridge have the numbers that their names say, on a datapath of that kind."""
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy",
              "--", "add-port", "br0", "p7", "--", "set", "interface", "p7", "type=dummy", "ofport_request=3")
    assert ovs.appctl("dpif/show").splitlines() == [
        "dummy@ovs-dummy: hit:0 missed:0", "  br0:", "    br0 65534/100: (dummy-internal)", "    p7 3/7: (dummy)"]
    assert ovs.appctl("dpctl/dump-dps") == "dummy@ovs-dummy\n"
    assert ovs.appctl("dpif/dump-dps") == "dummy@br0\n"
    traced = ovs.appctl("ofproto/trace", "ovs-dummy", "in_port(7),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)")
    assert traced.splitlines()[-1] == "Datapath actions: 100"


def test_mirrors(ovs):
    """A mirror sends copies to its port, as far as its row selects, and truncates them."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.vsctl("set", "bridge", "br0", "fail_mode=secure", "mirrors=@m", "--", "--id=@p3", "get", "port", "p3", "--",
              "--id=@m", "create", "mirror", "name=m", "select_all=true", "output_port=@p3", "snaplen=100")
    run("ovs-ofctl", "add-flow", "br0", "in_port=1,actions=output:2", env=ovs.env)

    def actions(flow="in_port=1"):
        return ovs.appctl("ofproto/trace", "br0", flow).splitlines()[-1].removeprefix("Datapath actions: ")

    assert actions() == "trunc(100),3,2"
    assert actions("in_port=3") == "drop", "what comes in there is dropped"
    ovs.vsctl("set", "mirror", "m", "select_vlan=11", "snaplen=[]")
    assert (actions(), actions("in_port=1,dl_vlan=11")) == ("2", "3,2")
    ovs.vsctl("clear", "bridge", "br0", "mirrors")
    assert actions("in_port=1,dl_vlan=11") == "2"


def test_vlans_of_tunnels_and_priorities(ovs):
    """cvlans, qinq-ethtype, priority-tags, and the LOCAL port's own VLAN."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.vsctl("set", "port", "br0", "tag=9", "--", "set", "port", "p1", "vlan_mode=dot1q-tunnel", "tag=10",
              "cvlans=5", "other_config:qinq-ethtype=802.1q", "--", "set", "port", "p3", "tag=10",
              "other_config:priority-tags=if-nonzero")

    def actions(flow):
        return ovs.appctl("ofproto/trace", "br0", flow).splitlines()[-1].removeprefix("Datapath actions: ")

    assert actions("in_port=1,dl_vlan=5") == "push_vlan(vid=10,pcp=0),2"
    assert actions("in_port=1,dl_vlan=6") == "drop"
    assert actions("in_port=2,dl_vlan=10,dl_vlan_pcp=3") == "pop_vlan,push_vlan(vid=0,pcp=3),3"


def test_locked_memory_is_what_is_used(ovs):
    """Each worker's caches reserve some gigabytes of address space."""
    p = ovs.foreground("--pidfile", "--mlockall")
    until(lambda: run("ovs-appctl", "-t", "ovs-vswitchd", "version", env=ovs.env, check=False).returncode == 0)
    dummy_bridge(ovs, "p1", "p2")
    until(lambda: "pmd thread" in ovs.appctl("dpif-netdev/pmd-stats-show"))
    status = dict(line.split(":", 1) for line in Path(f"/proc/{p.pid}/status").read_text().splitlines() if line.startswith("Vm"))
    kib = {name: int(value.split()[0]) for name, value in status.items()}
    assert kib["VmLck"] > 1_000_000 and kib["VmRSS"] < 400_000, kib
    ovs.appctl("exit")
    assert p.wait(30) == 0


def test_a_database_that_is_not_there_does_not_fill_the_log(ovs):
    """Attempts to connect go on, seconds apart, and are logged only at first."""
    ovs.stop_server()
    p = ovs.foreground("--pidfile", "--log-file", "-vconsole:off", "-vreconnect:file:dbg")
    log = ovs.dir / "ovs-vswitchd.log"
    until(log.exists)
    attempts = lambda: [line for line in log.read_text().splitlines() if "db.sock: " in line]
    until(lambda: len(attempts()) >= 6, 60, "six attempts")
    assert ["|INFO|" in line for line in attempts()[:6]] == [True] * 5 + [False]
    assert "not logged" in attempts()[4]
    ovs.appctl("exit")
    assert p.wait(30) == 0


def test_rows_that_several_bridges_have_are_written_once(ovs):
    """Nothing forbids a port that two bridges have, or a bridge that is none any more. Each row has one writer: two would never end."""
    ovs.start("--enable-dummy=override")
    ovs.expect(r"could not|in bridge|Not adding Unix domain socket controller")
    for n in range(3):
        ovs.vsctl("add-br", f"br{n}", "--", "set", "bridge", f"br{n}", "datapath_type=dummy",
                  "--", "add-port", f"br{n}", f"p{n}", "--", "set", "interface", f"p{n}", "type=dummy")
    ovs.vsctl("add", "bridge", "br1", "ports", ovs.vsctl("get", "port", "p0", "_uuid"))
    # An orphan: its collector set keeps it.
    ovs.vsctl("--", "--id=@b", "get", "bridge", "br2", "--", "create", "Flow_Sample_Collector_Set", "id=1", "bridge=@b")
    ovs.vsctl("add", "bridge", "br2", "ports", ovs.vsctl("get", "port", "p1", "_uuid"), "--", "remove", "open_vswitch", ".",
              "bridges", ovs.vsctl("get", "bridge", "br2", "_uuid"))
    # One controller of two bridges, of which one is connected at most.
    ovs.vsctl("set-controller", "br0", f"punix:{ovs.dir}/br0.c")
    ovs.vsctl("add", "bridge", "br1", "controller", ovs.vsctl("get", "bridge", "br0", "controller"))
    facts = lambda: [ovs.vsctl("get", "interface", port, "ofport", "error") for port in ("p0", "p1")]
    until(lambda: facts() == ["1\n[]", "1\n[]"], what="the ports")
    size = lambda: (ovs.dir / "conf.db").stat().st_size
    before = size()
    for _ in range(30):
        assert facts() == ["1\n[]", "1\n[]"]
    # Statistics may have been written meanwhile.
    assert size() < before + 50_000


def test_a_port_is_there_whether_or_not_its_device_takes_what_is_asked(ovs):
    ovs.start()
    ovs.expect(r"cannot (set the MTU|change the Ethernet address)")
    bridge = f"wb{os.getpid()}"
    ovs.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
    taps = [f"{bridge}{n}" for n in "ab"]
    for tap in taps:
        ovs.vsctl("add-port", bridge, tap, "--", "set", "interface", tap, "type=tap")
    ovs.vsctl("set", "interface", taps[0], "mtu_request=65535")
    ovs.vsctl("set", "interface", taps[1], 'mac="01:00:00:00:00:01"')
    numbers = lambda: [ovs.vsctl("get", "interface", tap, "ofport") for tap in taps]
    before = numbers()
    assert "-1" not in before
    ovs.kill(9)
    ovs.start()
    assert numbers() == before
    assert ovs.vsctl("get", "interface", taps[1], "error") == "[]"
