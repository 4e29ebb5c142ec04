"""The command line: output for people and machines, and errors that help."""

import json
import os
import re
import subprocess

import pytest
from conftest import WEIR
from lib.net import run

CONFIG = """
[[bridge]]
name = "br0"
local = false
flows = ["priority=5,in_port=1,actions=output:2"]
[[bridge.port]]
name = "p1"
type = "dummy"
[[bridge.port]]
name = "p2"
type = "dummy"
"""
FRAME = "020000000002020000000001080045000020000040004011266b0a0000010a00000203e80035000c0000deadbeef"


def check(tmp_path, text):
    """`weir check` of a configuration: exit status and standard error."""
    f = tmp_path / "c.toml"
    f.write_text(text)
    r = run(WEIR, "check", f, check=False)
    assert "panicked" not in r.stderr
    return r.returncode, r.stderr + r.stdout


def test_a_configuration_may_come_by_a_pipe():
    done = subprocess.run([WEIR, "check", "/dev/stdin"], input=CONFIG, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    endless = run(WEIR, "check", "/dev/zero", check=False)
    assert endless.returncode == 1 and "bytes" in endless.stderr


def test_doctor_examines_this_machine():
    findings = json.loads(run(WEIR, "doctor", "--json").stdout)
    found = {f["area"]: f for f in findings}
    release = ".".join(os.uname().release.split(".")[:2])
    assert found["kernel"]["found"] == f"Linux {release}"
    assert found["capabilities"]["level"] == "ok"
    assert run(WEIR, "doctor").stdout.count("\n") > len(findings)
    # Another user lacks what a switch needs, and is told.
    r = run("setpriv", "--reuid=65534", "--clear-groups", WEIR, "doctor", check=False)
    if "Permission denied" not in r.stderr:  # the binary can lie where nobody else may read
        assert r.returncode == 1 and r.stdout.startswith("PROBLEM  capabilities"), r.stdout
        assert "setcap cap_net_admin,cap_net_raw" in r.stdout


def test_check_accepts(tmp_path):
    assert check(tmp_path, CONFIG)[0] == 0


@pytest.mark.parametrize("text, says", [
    (CONFIG.replace("type = ", "tpye = ", 1), ["c.toml:8", "tpye", "type"]),
    (CONFIG.replace('"p2"', '"p1"'), ["c.toml:10", "p1", "twice"]),
    (CONFIG.replace("in_port=1", "in_prot=1"), ["c.toml:5", "in_prot"]),
    (CONFIG.replace("output:2", "outptu:2"), ["c.toml:5", "outptu"]),
    (CONFIG.replace('type = "dummy"', 'type = "dumy"', 1), ["c.toml:8", "dumy", "dummy"]),
    (CONFIG + "tag = 5000\n", ["c.toml:12", "tag", "4095"]),
    (CONFIG + "[workers]\ncores = [4096]\n", ["c.toml:13", "4096", "core"]),
    (CONFIG + "[[[\n", ["c.toml:12"]),
    ("bridge = 5\n", ["c.toml:1", "bridge"]),
], ids=["unknown key", "port twice", "flow match", "flow action", "unknown type", "vlan", "core", "syntax", "shape"])
def test_check_says_what_is_wrong_and_where(tmp_path, text, says):
    code, err = check(tmp_path, text)
    assert code == 1
    for word in says:
        assert word in err, err


def test_missing_interface_is_an_error_of_that_port_alone(weir):
    w = weir(CONFIG + '[[bridge.port]]\nname = "nosuch0"\ntype = "system"\n')
    w.expect("nosuch0: No such device")
    out = w.cli("show").stdout
    assert "nosuch0" in out and "No such device" in out
    assert "p1" in w.cli("ports").stdout


def test_no_permission_is_said_in_words(weir, tmp_path):
    """Without privileges, a port on an interface fails with an error that names what is missing."""
    if os.geteuid():
        pytest.fail("needs root, to become nobody")
    import shutil
    binary = tmp_path / "weir"
    shutil.copy(WEIR, binary)
    binary.chmod(0o755)
    os.chmod(tmp_path, 0o777)
    cfg = tmp_path / "c.toml"
    cfg.write_text('[[bridge]]\nname = "br0"\nlocal = false\n[[bridge.port]]\nname = "lo"\ntype = "afxdp"\n')
    for p in [tmp_path, *tmp_path.parents][:-2]:
        os.chmod(p, os.stat(p).st_mode | 0o055)
    r = subprocess.run(["timeout", "3", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary, "run", cfg],
                       capture_output=True, text=True, env=dict(os.environ, OVS_RUNDIR=str(tmp_path)))
    assert re.search(r"lo: .*(permission|not permitted)", r.stderr, re.I | re.S), r.stderr
    assert "CAP_" in r.stderr or "root" in r.stderr


def test_show_flows_stats_ports(weir):
    w = weir(CONFIG)
    for _ in range(10):
        w.appctl("netdev-dummy/receive", "p1", FRAME)
    text = {c: w.cli(c).stdout for c in ("show", "flows", "stats", "ports")}
    assert "br0" in text["show"] and "p2" in text["show"]
    assert "actions=output:" in text["flows"] and "in_port(" in text["flows"], text["flows"]
    data = {c: w.json(c) for c in text}
    assert any(p["name"] == "p1" for p in json.loads(json.dumps(data["ports"])).get("ports", data["ports"]))
    stats = json.dumps(data["stats"])
    for key in ("packets", "misses", "cycles", "busy", "idle"):
        assert key in stats, stats
    for word in ("miss", "cycles per packet", "packets per output batch"):
        assert word in text["stats"].lower().replace("_", " "), text["stats"]


def test_commands_without_a_daemon(tmp_path):
    for c in ("show", "flows", "stats", "ports", "reload"):
        r = run(WEIR, c, check=False, env=dict(os.environ, OVS_RUNDIR=str(tmp_path)))
        assert r.returncode == 1 and "weir run" in r.stderr, r.stderr


def test_what_cannot_be_written_is_a_failure():
    for args in (["completions", "bash"], ["--help"], ["--version"], ["version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([WEIR, *args], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and "No space left" in done.stderr, (args, done)
        # Who has seen enough is no failure.
        done = subprocess.run(f"{WEIR} {' '.join(args)} | true", shell=True, stderr=subprocess.PIPE, text=True)
        assert done.stderr == "", (args, done)


def test_usage_and_completions():
    assert run(WEIR, "--help").stdout.count("\n") > 10
    assert run(WEIR, "frobnicate", check=False).returncode == 2
    assert re.match(r"weir \d+\.\d+\.\d+", run(WEIR, "version").stdout)
    for shell in ("bash", "zsh", "fish"):
        assert "weir" in run(WEIR, "completions", shell).stdout


def test_reload_of_a_broken_file_changes_nothing(weir):
    w = weir(CONFIG)
    w.configure(CONFIG + "[[[")
    r = w.cli("reload", check=False)
    assert r.returncode == 1 and "weir.toml:12" in r.stderr
    assert "p1" in w.cli("ports").stdout


def test_reload_applies_the_difference(weir):
    w = weir(CONFIG)
    w.appctl("netdev-dummy/receive", "p1", FRAME)
    w.configure(CONFIG.replace("p2", "p3") + "tag = 7\n")
    w.cli("reload")
    out = w.ofctl("show", "br0")
    assert "(p3)" in out and "(p2)" not in out
    assert "rx pkts=1" in w.ofctl("dump-ports", "br0", "1"), "the port that did not change keeps its counters"


def test_appctl(weir):
    w = weir(CONFIG)
    commands = w.appctl("list-commands")
    for c in ("exit", "version", "list-commands", "bridge/dump-flows", "fdb/show", "dpctl/dump-flows"):
        assert c in commands
    assert "no such command" not in w.appctl("version")
    r = run("ovs-appctl", "-t", "weir", "no/such", env=w.env, check=False)
    assert r.returncode == 2 and '"no/such" is not a valid command' in r.stderr
    w.appctl("exit")
    w.proc.wait(30)
    assert w.proc.returncode == 0
    assert not list(w.dir.glob("*.mgmt")) and not list(w.dir.glob("*.ctl")), "sockets are removed"


def test_hostile_clients_of_the_control_socket(weir):
    """Garbage, silence and half a request from others do not keep anyone from being served."""
    import socket
    w = weir(CONFIG)
    path = next(w.dir.glob("*.ctl"))
    open_ones = []
    for data in (b"\xff\xfe garbage", b"{" * 5000, b'{"method":', b'{"method":"x","id":0,"params":"no list"}', b"[]", b"\0" * 100000):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(path))
        try:
            s.sendall(data)
        except OSError:
            pass
        open_ones.append(s)
    for mgmt in w.dir.glob("*.mgmt"):
        for data in (b"\xff" * 8, b"\x01\x00\x00\x04\0\0\0\0", b"\x04\x00\xff\xff\0\0\0\0", os.urandom(3000)):
            s = socket.socket(socket.AF_UNIX)
            s.connect(str(mgmt))
            s.sendall(data)
            open_ones.append(s)
    assert "br0" in w.cli("show", timeout=30).stdout
    assert "(p1)" in w.ofctl("show", "br0", timeout=30)
