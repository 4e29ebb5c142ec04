"""`make install` on a machine that systemd runs: Debian's units of Open vSwitch start Weir, and so do Weir's own."""

import json

import pytest
from conftest import until
from lib.machine import INSTALL, SYSTEMD, Machine


@pytest.fixture
def machine():
    if not SYSTEMD.exists():
        pytest.fail("systemd is not installed; run scripts/setup.sh test")
    machines = []

    def boot(unit, before=INSTALL):
        machines.append(Machine(unit, before))
        return machines[-1]

    yield boot
    for machine in machines:
        machine.end()


def weir_answers(m):
    return "Weir" in m.run("ovs-appctl", "version", check=False).stdout


def test_debians_units_start_weir(machine):
    m = machine("openvswitch-switch.service")
    unit = "ovs-vswitchd.service"
    assert m.state(unit) == "active", m.journal()
    assert weir_answers(m)
    m.run("ovs-vsctl", "--timeout=10", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    assert "LOCAL(br0)" in m.run("ovs-ofctl", "show", "br0").stdout

    first = m.run("cat", "/run/openvswitch/ovs-vswitchd.pid").stdout
    m.run("systemctl", "restart", unit)
    assert m.run("cat", "/run/openvswitch/ovs-vswitchd.pid").stdout != first
    assert weir_answers(m) and "LOCAL(br0)" in m.run("ovs-ofctl", "show", "br0").stdout

    # The way back: the units are the same, and they start what the alternative names.
    m.run("update-alternatives", "--remove", "ovs-vswitchd", "/usr/local/lib/weir/ovs-vswitchd")
    stock = m.run("readlink", "-f", "/usr/sbin/ovs-vswitchd").stdout.strip()
    assert stock.startswith("/usr/lib/openvswitch-switch")
    m.run("systemctl", "restart", unit)
    assert m.state(unit) == "active"
    assert not weir_answers(m)

    # What is part of it is stopped after it.
    m.run("systemctl", "stop", "openvswitch-switch.service")
    until(lambda: m.state(unit) == "inactive", what="the daemon's end")


def test_the_journal_has_fields(machine):
    options = "OVS_CTL_OPTS=--ovs-vswitchd-options=--syslog-method=journal"
    m = machine("openvswitch-switch.service", f"{INSTALL} && echo {options} >>/etc/default/openvswitch-switch")
    assert weir_answers(m)
    m.run("ovs-appctl", "vlog/set", "syslog:info")
    m.run("ovs-vsctl", "--timeout=10", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")

    def entries():
        told = m.run("journalctl", "-o", "json", "WEIR_MODULE=bridge", "PRIORITY=5", check=False).stdout
        return [json.loads(line) for line in told.splitlines()]

    until(lambda: any("br0" in entry["MESSAGE"] for entry in entries()), what="a message about the bridge")
    entry = entries()[0]
    assert entry["_TRANSPORT"] == "journal" and entry["SYSLOG_IDENTIFIER"] == "ovs-vswitchd", entry
    assert entry["WEIR_LEVEL"] == "INFO" and entry["WEIR_NUMBER"].isdigit(), entry


def test_weirs_own_unit_beside_debians_database(machine):
    # Where nothing registers an alternative: the unit names its program.
    m = machine("weir-vswitchd.service", f"{INSTALL} UPDATE_ALTERNATIVES=true")
    unit = "weir-vswitchd.service"
    assert m.state(unit) == "active", m.journal()
    assert m.state("ovs-vswitchd.service") == "inactive"
    assert m.program(unit) == "/usr/local/bin/weir"
    m.run("ovs-vsctl", "--timeout=10", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    assert "LOCAL(br0)" in m.run("ovs-ofctl", "show", "br0").stdout

    pid = m.main_pid(unit)
    m.run("kill", "-9", str(pid))
    until(lambda: m.state(unit) == "active" and m.main_pid(unit) not in (0, pid), 20, "the daemon's restart")
    until(lambda: "LOCAL(br0)" in m.run("ovs-ofctl", "show", "br0", check=False).stdout, what="the bridge")

    m.run("systemctl", "stop", unit)
    assert m.state(unit) == "inactive"
    assert m.run("test", "-e", "/run/openvswitch/ovs-vswitchd.pid", check=False).returncode != 0
    # Both want the same database, so systemd runs one of them.
    m.run("systemctl", "start", unit)
    m.run("systemctl", "start", "ovs-vswitchd.service")
    assert (m.state(unit), m.state("ovs-vswitchd.service")) == ("inactive", "active")


def test_weir_with_a_file(machine):
    config = "[[bridge]]\\nname = \\\"br0\\\"\\nlocal = false\\n"
    m = machine("weir.service",
                f'{INSTALL} && mkdir -p /etc/weir && printf "{config}" > /etc/weir/weir.toml')
    unit = "weir.service"
    assert m.state(unit) == "active", m.journal()
    assert m.program(unit) == "/usr/local/bin/weir"
    # The unit is active as soon as the program runs.
    until(lambda: "br0" in m.run("weir", "show", check=False).stdout, what="the first bridge")
    m.run("sh", "-c", 'printf "[[bridge]]\\nname = \\"br1\\"\\nlocal = false\\n" >> /etc/weir/weir.toml')
    pid = m.main_pid(unit)
    m.run("systemctl", "reload", unit)
    until(lambda: "br1" in m.run("weir", "show").stdout, what="the second bridge")
    assert m.main_pid(unit) == pid
    m.run("kill", "-9", str(pid))
    until(lambda: m.state(unit) == "active" and m.main_pid(unit) not in (0, pid), 20, "the daemon's restart")
    m.run("systemctl", "stop", unit)
    assert m.state(unit) == "inactive"
