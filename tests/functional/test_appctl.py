"""The control socket of `weir vswitchd`, driven by Debian's ovs-appctl."""

import os
import re

import pytest
from conftest import until
from lib.net import run
from test_vswitchd import dummy_bridge, ovs  # noqa: F401


def refused(ovs, *args):
    """The error of a command that fails."""
    r = run("ovs-appctl", "-t", "ovs-vswitchd", *args, env=ovs.env, check=False)
    assert r.returncode != 0, r.stdout
    return r.stderr.splitlines()[0]


def level(ovs, module):
    """Levels of a module for console, syslog and file."""
    for line in ovs.appctl("vlog/list").splitlines():
        if line.split()[0] == module:
            return line.split()[1:4]
    raise AssertionError(f"{module} is not listed")


def messages(ovs):
    """(module, level, text) of each line of the log."""
    lines = (line.split("|", 4) for line in ovs.log().splitlines())
    return [(f[2].partition("(")[0], f[3], f[4]) for f in lines if len(f) == 5]


def test_every_module_has_a_level_for_each_destination(ovs):
    ovs.start("-vbridge:file:dbg", "-vsyslog:off", "-vdpif_netdev:warn")
    assert level(ovs, "bridge") == ["OFF", "OFF", "DBG"]
    assert level(ovs, "dpif_netdev") == ["WARN", "WARN", "WARN"]
    assert level(ovs, "vconn") == ["OFF", "OFF", "INFO"]
    ovs.appctl("vlog/set", "vconn:file:err", "ANY:console:emer")
    assert level(ovs, "vconn") == ["EMER", "OFF", "ERR"]
    assert level(ovs, "bridge") == ["EMER", "OFF", "DBG"]
    ovs.appctl("vlog/set")
    assert level(ovs, "vconn") == ["DBG", "DBG", "DBG"]


def test_names_of_modules_are_those_that_operators_know(ovs):
    ovs.start()
    names = [line.split()[0] for line in ovs.appctl("vlog/list").splitlines()[2:]]
    known = {"bridge", "ofproto", "ofproto_dpif", "ofproto_dpif_upcall", "ofproto_dpif_xlate", "netdev_dummy", "vconn",
             "unixctl", "dpif_netdev", "dpif", "reconnect", "ofp_msgs", "rconn", "connmgr", "netdev_linux", "poll_loop"}
    assert known <= set(names)
    assert names == sorted(names)


@pytest.mark.parametrize("spec, error", [
    ("nonsense", 'no destination, level, or module "nonsense"'),
    ("bridge:loud", 'no destination, level, or module "loud"'),
    ("console:file", "cannot specify multiple destinations"),
    ("dbg:info", "cannot specify multiple levels"),
    ("bridge:ofproto", "cannot specify multiple modules"),
    ("PATTERN", "missing destination"),
    ("PATTERN:x:y", 'unknown destination "x"'),
    ("FACILITY:x", "invalid facility"),
])
def test_mistakes_in_levels(ovs, spec, error):
    ovs.start()
    assert refused(ovs, "vlog/set", spec) == error
    r = ovs.start(f"-v{spec}", "--overwrite-pidfile", check=False)
    assert r.returncode != 0 and error in r.stderr


def test_a_level_says_what_reaches_the_file(ovs):
    ovs.start("-vunixctl:file:dbg")
    ovs.appctl("version")
    ovs.appctl("vlog/set", "unixctl:info")
    ovs.appctl("list-commands")
    debug = [text for module, level, text in messages(ovs) if (module, level) == ("unixctl", "DBG")]
    assert debug[0] == "received request version[], id=0"
    assert debug[1].startswith('replying with success, id=0: "ovs-vswitchd (Open vSwitch) 3.1.0')
    assert not any("list-commands" in text for text in debug)


def test_patterns_change_the_form_of_lines(ovs):
    ovs.start()
    ovs.appctl("vlog/set", "PATTERN:file:<%c> %-6p %m [%P]")
    ovs.appctl("vlog/set", "unixctl:file:dbg")
    ovs.appctl("version")
    assert f"<unixctl> DBG    received request version[], id=0 [{ovs.pid()}]\n" in ovs.log()
    patterns = ovs.appctl("vlog/list-pattern").splitlines()
    assert patterns[2] == "SYSLOG   <%B> %D{%h %e %T} %E %A:          ovs|%05N|%c%T|%p|%m"
    assert patterns[4].split(None, 2) == ["FILE", "none", "<%c> %-6p %m [%P]"]


def test_a_rotated_log_is_opened_anew(ovs):
    ovs.start()
    log, old = ovs.dir / "ovs-vswitchd.log", ovs.dir / "old"
    log.rename(old)
    ovs.appctl("vlog/reopen")
    assert "|vlog|INFO|closing log file\n" in old.read_text()
    assert f"|vlog|INFO|opened log file {log}\n" in log.read_text()
    ovs.appctl("vlog/close")
    ovs.appctl("vlog/set", "dbg")
    size = log.stat().st_size
    ovs.appctl("version")
    assert log.stat().st_size == size
    ovs.appctl("vlog/reopen")
    assert log.stat().st_size > size


def test_there_may_be_no_log_file(ovs):
    p = ovs.foreground("--pidfile")
    until(lambda: run("ovs-appctl", "-t", "ovs-vswitchd", "version", env=ovs.env, check=False).returncode == 0)
    assert refused(ovs, "vlog/reopen") == "Logging to file not configured"
    ovs.appctl("exit")
    assert p.wait(10) == 0


def test_a_full_disk_loses_messages_and_nothing_else(ovs):
    ovs.start("--log-file=/dev/full", "-vdbg")
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    assert "n_packets=0" in ovs.ofctl("dump-flows", "br0")
    assert ovs.appctl("ofproto/list") == "br0\n"
    # And where there is room again, messages arrive.
    ovs.appctl("vlog/reopen")


def test_a_log_that_cannot_be_opened_is_no_reason_not_to_start(ovs):
    directory = ovs.dir / "later"
    r = ovs.start(f"--log-file={directory}/log")
    assert "failed to open" not in r.stdout
    dummy_bridge(ovs, "p1")
    assert refused(ovs, "vlog/reopen").startswith("No such file or directory")
    directory.mkdir()
    ovs.appctl("vlog/reopen")
    assert "opened log file" in (directory / "log").read_text()


def test_rate_limits_are_listed(ovs):
    ovs.start()
    ovs.appctl("vlog/disable-rate-limit", "bridge", "vconn")
    limited = [line.split()[0] for line in ovs.appctl("vlog/list").splitlines() if "rate limiting disabled" in line]
    assert limited == ["bridge", "vconn"]
    ovs.appctl("vlog/enable-rate-limit")
    assert "rate limiting disabled" not in ovs.appctl("vlog/list")
    assert refused(ovs, "vlog/enable-rate-limit", "nonsense") == "unknown module"


def test_logging_is_there_before_the_database(ovs):
    ovs.stop_server()
    p = ovs.foreground("--pidfile", "--log-file", "-vconsole:off")
    until(lambda: run("ovs-appctl", "-t", "ovs-vswitchd", "version", env=ovs.env, check=False).returncode == 0)
    (ovs.dir / "ovs-vswitchd.log").rename(ovs.dir / "old")
    ovs.appctl("vlog/reopen")
    ovs.appctl("vlog/set", "bridge:warn")
    assert level(ovs, "bridge") == ["WARN", "WARN", "WARN"]
    ovs.appctl("exit")
    assert p.wait(10) == 0
    ovs.start_server()


def test_the_system_log_gets_its_messages(ovs):
    import socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(ovs.dir / "syslog"))
        log.settimeout(10)
        ovs.start(f"--syslog-method=unix:{ovs.dir}/syslog", "-vsyslog:off", "-vunixctl:syslog:dbg")
        ovs.appctl("vlog/set", "FACILITY:local3")
        log.recv(65536)
        ovs.appctl("version")
        received = [log.recv(65536).decode() for _ in range(3)]
    text = next(line for line in received if "received request version" in line)
    assert re.fullmatch(r"<159>ovs\|\d{5}\|unixctl\|DBG\|received request version\[\], id=0", text), text


def test_commands_are_listed_and_checked(ovs):
    ovs.start()
    lines = ovs.appctl("list-commands").splitlines()
    assert lines[0] == "The available commands are:"
    assert "  vlog/set                {spec | PATTERN:destination:pattern}" in lines
    assert "  exit                    [--cleanup]" in lines
    assert lines[1:] == sorted(lines[1:])
    bad = '"bogus" is not a valid command (use "list-commands" to see a list of valid commands)'
    assert refused(ovs, "bogus") == bad
    assert refused(ovs, "fdb/show") == '"fdb/show" command requires at least 1 arguments'
    assert refused(ovs, "version", "x") == '"version" command takes at most 0 arguments'


def test_normal_life_is_no_warning(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    ovs.vsctl("del-port", "p2")
    ovs.vsctl("del-br", "br0")
    ovs.appctl("exit", "--cleanup")
    until(lambda: not os.path.exists(ovs.dir / "ovs-vswitchd.pid"))
    assert [m for m in messages(ovs) if m[1] in ("WARN", "ERR", "EMER")] == []
