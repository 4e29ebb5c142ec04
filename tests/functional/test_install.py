"""`make install`, and Debian's ovs-ctl that starts and stops what it has installed."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, WEIR, until
from lib.daemon import alive
from lib.net import run

#: Where Wireshark looks for programs that capture.
EXTCAP = f"usr/lib/{os.uname().machine}-linux-gnu/wireshark/extcap"
OVS_CTL = "/usr/share/openvswitch/scripts/ovs-ctl"


@pytest.fixture
def place():
    path = Path(tempfile.mkdtemp(prefix="weir-install-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def make(*args):
    return run("make", "-s", "-C", ROOT, f"BIN={WEIR}", *args).stdout


def files(place):
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if not p.is_dir())


def test_a_package_is_files_only(place):
    make("install", f"DESTDIR={place}", "PREFIX=/usr")
    pages = [file for file in files(place) if file.startswith("usr/share/man/")]
    assert {"usr/share/man/man1/weir.1", "usr/share/man/man1/weir-tap.1", "usr/share/man/man5/weir.toml.5",
            "usr/share/man/man8/weir-vswitchd.8"} <= set(pages)
    assert [file for file in files(place) if file not in pages] == [
        "usr/bin/weir", "usr/lib/systemd/system/weir-vswitchd.service", "usr/lib/systemd/system/weir.service",
        "usr/lib/weir/ovs-vswitchd", f"{EXTCAP}/weir", "usr/share/bash-completion/completions/weir",
        "usr/share/fish/vendor_completions.d/weir.fish", "usr/share/zsh/site-functions/_weir"]
    assert os.readlink(place / EXTCAP / "weir") == "/usr/bin/weir"
    assert os.readlink(place / "usr/lib/weir/ovs-vswitchd") == "/usr/bin/weir"
    units = "".join(p.read_text() for p in place.rglob("*.service"))
    assert "@" not in units and "ExecStart=/usr/bin/weir run /etc/weir/weir.toml" in units
    make("uninstall", f"DESTDIR={place}", "PREFIX=/usr")
    assert files(place) == []


def alternatives(place):
    """Variables that keep the alternative out of the system's directories."""
    for name in ["alternatives", "admin", "sbin"]:
        (place / name).mkdir(exist_ok=True)
    tool = f"update-alternatives --quiet --altdir {place}/alternatives --admindir {place}/admin"
    return [f"PREFIX={place}/usr", f"UPDATE_ALTERNATIVES={tool}", f"VSWITCHD_LINK={place}/sbin/ovs-vswitchd",
            f"EXTCAPDIR={place}/extcap"]


def test_the_way_there_and_back(place):
    variables = alternatives(place)
    link = place / "sbin/ovs-vswitchd"
    stock = place / "stock"
    stock.write_text("#!/bin/sh\necho stock\n")
    stock.chmod(0o755)
    tool = variables[1].partition("=")[2].split()
    run(*tool, "--install", link, "ovs-vswitchd", stock, "100")
    assert run(link).stdout == "stock\n"
    make("install", *variables)
    assert "Weir" in run(link, "--version").stdout
    run(*tool, "--set", "ovs-vswitchd", stock)
    assert run(link).stdout == "stock\n"
    run(*tool, "--auto", "ovs-vswitchd")
    assert "Weir" in run(link, "--version").stdout
    make("uninstall", *variables)
    assert run(link).stdout == "stock\n"


def test_ovs_ctl_starts_and_stops_it(place):
    make("install", *alternatives(place))
    for name in ["run", "log", "db", "etc"]:
        (place / name).mkdir()
    for tool in ["ovsdb-server"]:
        (place / "sbin" / tool).symlink_to(shutil.which(tool, path="/usr/sbin:/usr/bin"))
    env = dict(os.environ, OVS_RUNDIR=f"{place}/run", OVS_LOGDIR=f"{place}/log", OVS_DBDIR=f"{place}/db",
               OVS_SYSCONFDIR=f"{place}/etc", OVS_SBINDIR=f"{place}/sbin",
               PATH=f"{place}/sbin:/usr/sbin:/usr/bin:/sbin:/bin")

    def ctl(*args):
        # Its children keep its standard output open: not a pipe.
        with open(place / "ctl.log", "w") as log:
            code = subprocess.run([OVS_CTL, *args], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  timeout=60).returncode
        return code, (place / "ctl.log").read_text()

    pids = []
    try:
        code, said = ctl("start", "--no-record-hostname", "--system-id=weir-test", "--no-mlockall",
                         "--no-monitor")
        assert code == 0, said
        pids = [int(p.read_text()) for p in (place / "run").glob("*.pid")]
        pid = int((place / "run/ovs-vswitchd.pid").read_text())
        assert Path(f"/proc/{pid}/exe").resolve() == (place / "usr/bin/weir").resolve()
        code, said = ctl("status")
        assert code == 0 and f"ovs-vswitchd is running with pid {pid}" in said, said
        db = f"--db=unix:{place}/run/db.sock"
        run("ovs-vsctl", db, "--timeout=10", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy",
            env=env)
        assert "LOCAL(br0)" in run("ovs-ofctl", "show", "br0", env=env).stdout
        assert "weir-test" in run("ovs-vsctl", db, "get", "open", ".", "external_ids:system-id", env=env).stdout
        assert "Weir" in run("ovs-appctl", "version", env=env).stdout
        code, said = ctl("restart", "--no-record-hostname", "--no-mlockall",
                         "--no-monitor", "--system-id=weir-test")
        assert code == 0, said
        pids += [int(p.read_text()) for p in (place / "run").glob("*.pid")]
        assert not alive(pid) and int((place / "run/ovs-vswitchd.pid").read_text()) != pid
        assert "LOCAL(br0)" in run("ovs-ofctl", "show", "br0", env=env).stdout
        code, said = ctl("stop")
        assert code == 0, said
        until(lambda: not any(alive(pid) for pid in pids), what="the end of the daemons")
    finally:
        for pid in pids:
            if alive(pid):
                os.kill(pid, 9)
