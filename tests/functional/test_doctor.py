"""`weir doctor` on a running switch (docs/doctor.md)."""

import json
import os

from conftest import WEIR, until
from lib.net import PAIR, pair, run


def diagnose(w, *args):
    """The exit status, and the findings of the switch by their ids. The machine may lack something, too."""
    r = w.cli("--json", "doctor", "--interval", "0.5", *args, check=False)
    findings = [finding for finding in json.loads(r.stdout) if "id" in finding or finding["area"] == "switch"]
    return r.returncode, {finding.get("id", "none"): finding for finding in findings}


def test_a_switch_that_works_has_nothing_to_mend(weir, net):
    w, a, b = pair(weir, net)
    assert a.ping("10.0.0.2") == 3
    _, found = diagnose(w)
    assert list(found) == ["none"] and "nothing to mend" in found["none"]["found"], found


def test_what_is_wrong_is_found_with_the_settings_that_mend_it(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    config = PAIR.format(a=a, b=b) + "tag = 10\nmtu = 1400\n" + '[[bridge.port]]\nname = "nosuch0"\n'
    w = weir(config.replace("local = false", 'local = false\ncontrollers = ["tcp:127.0.0.1:1"]'))
    w.expect("nosuch0|rconn")
    pings = a.start("ping", "-q", "-i", "0.05", "10.0.0.2")
    until(lambda: w.json("drops")["drops"])
    expected = {"controller-unreachable", "port-not-in-service", "mtu-mismatch"}
    until(lambda: expected <= set(diagnose(w)[1]), 20, "these findings")
    status, found = diagnose(w)
    assert status == 1
    assert "tcp:127.0.0.1:1" in found["controller-unreachable"]["found"]
    assert found["mtu-mismatch"]["found"].startswith(b.port) and f"mtu = N of the port {b.port}" in found["mtu-mismatch"]["commands"][0]
    assert found["mtu-mismatch"]["see"] == "docs/doctor.md#mtu-mismatch"
    assert "nosuch0" in found["port-not-in-service"]["found"]
    text = w.cli("doctor", "--interval", "0.5", check=False).stdout
    assert text.startswith("PROBLEM") and "see docs/doctor.md#controller-unreachable" in text, text
    pings.kill()


def test_drops_that_point_to_a_setting(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    w = weir(PAIR.format(a=a, b=b).replace(f'name = "{a.port}"', f'name = "{a.port}"\ntrunks = [5]'))
    a.start("ping", "-q", "-i", "0.05", "10.0.0.2")
    # What the other host sends by itself, and cannot be sent anywhere, is a finding of its own.
    found = lambda: [finding for finding in json.loads(w.cli("--json", "doctor", "--interval", "0.5", check=False).stdout)
                     if finding.get("id") == "vlan-not-allowed" and a.port in finding["found"]]
    until(found, 20, "the finding")
    [finding] = found()
    assert finding["level"] == "advice" and "trunks" in finding["commands"][0], finding


def test_without_a_switch_the_machine_is_examined(tmp_path):
    r = run(WEIR, "--json", "doctor", check=False, env=dict(os.environ, OVS_RUNDIR=str(tmp_path)))
    found = {finding["area"]: finding for finding in json.loads(r.stdout)}
    assert "kernel" in found and found["switch"]["level"] == "ok" and "none was looked at" in found["switch"]["found"]


def test_a_daemon_in_the_place_of_ovs_vswitchd_is_found(ovs):
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "--", "set-controller", "br0", "tcp:127.0.0.1:1")
    ovs.expect("rconn|br0")
    found = {}

    def seen():
        findings = json.loads(run(WEIR, "--json", "doctor", "--interval", "0.2", check=False, env=ovs.env).stdout)
        found.update({finding["id"]: finding for finding in findings if "id" in finding})
        return "controller-unreachable" in found
    until(seen, 20, "the finding")
    assert found["controller-unreachable"]["commands"][1] == "ovs-appctl bridge/reconnect br0"
    assert "br0" in run(WEIR, "show", env=ovs.env).stdout
