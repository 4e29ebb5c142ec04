"""`make install` on a machine that systemd runs: Debian's units of Open vSwitch start Weir, and so do Weir's own.

The machine is this one's file system under an overlay, in namespaces of its own, with systemd as its first
process: nothing outside is changed, and all of it ends with that process."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, WEIR, until
from lib.net import run

SYSTEMD = Path("/lib/systemd/systemd")

# Run in new namespaces: $1 a directory, $2 the repository, $3 the binary, $4 what is done before systemd starts.
BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs none "$root/sys/fs/cgroup"
mkdir "$root/sys/fs/cgroup/systemd"
mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
mount -t tmpfs none "$root/dev"
for node in null zero full random urandom; do touch "$root/dev/$node"; mount --bind /dev/$node "$root/dev/$node"; done
mkdir "$root/dev/net" "$root/dev/shm"
touch "$root/dev/net/tun"
mount --bind /dev/net/tun "$root/dev/net/tun"
mount -t tmpfs none "$root/run"
mount -t tmpfs none "$root/tmp"
ip link set lo up
# A database of its own, whatever this machine's has in it.
rm -rf "$root/etc/openvswitch/conf.db" "$root/var/lib/openvswitch/conf.db"
mkdir -p "$root/mnt/weir"
mount --bind "$2" "$root/mnt/weir"
cp "$3" "$root/tmp/weir"
chroot "$root" /bin/sh -ec "$4"
umount "$root/mnt/weir"
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /lib/systemd/systemd --system \
    --unit="$5" --show-status=no --log-target=null
"""

INSTALL = "make -s -C /mnt/weir install BIN=/tmp/weir"


class Machine:
    """A running systemd; `unit` is what it was started for."""

    def __init__(self, unit, before):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-systemd-"))
        self.log = open(self.dir / "log", "w+")
        self.p = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net", "--cgroup",
             "/bin/bash", "-c", BOOT, "boot", self.dir, ROOT, WEIR, before, unit],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            until(self.booted, 60, "systemd to have started everything")
        except AssertionError as e:
            said = f"{e}\n{self.said()}\n{self.journal() if self.first() else ''}"
            self.end()
            raise AssertionError(said) from None

    def said(self):
        return (self.dir / "log").read_text()

    def first(self):
        """The pid of systemd, as seen from here."""
        children = Path(f"/proc/{self.p.pid}/task/{self.p.pid}/children").read_text().split()
        return children[0] if children else None

    def booted(self):
        assert self.p.poll() is None, f"ended with {self.p.returncode}: {self.said()}"
        pid = self.first()
        if not pid or Path(f"/proc/{pid}/comm").read_text().strip() != "systemd":
            return False
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def run(self, *args, **kw):
        """A command on the machine."""
        return run("nsenter", "--target", self.first(), "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup",
                   "--root", "--wdns=/", "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   *args, timeout=90, **kw)

    def state(self, unit):
        return self.run("systemctl", "is-active", unit, check=False).stdout.strip()

    def main_pid(self, unit):
        return int(self.run("systemctl", "show", "--value", "-p", "MainPID", unit).stdout)

    def program(self, unit):
        """What the main process of a unit runs."""
        return self.run("readlink", f"/proc/{self.main_pid(unit)}/exe").stdout.strip()

    def journal(self):
        return self.run("journalctl", "--no-pager", "-n", "60", check=False).stdout

    def end(self):
        if self.p.poll() is None:
            # Its first process: with it ends everything in its namespaces, mounts included.
            if pid := self.first():
                os.kill(int(pid), 9)
            self.p.kill()
        self.p.wait(20)
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


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
