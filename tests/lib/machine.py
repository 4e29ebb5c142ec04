"""A machine that systemd runs: this one's file system under an overlay, in namespaces of its own, with systemd as its
first process. Nothing outside is changed, and all of it ends with that process."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .daemon import ROOT, WEIR
from .net import run
from .wait import until

SYSTEMD = Path("/lib/systemd/systemd")

# Run in new namespaces: $1 a directory, $2 the repository, $3 the binary, $4 what is done
# before systemd starts, $5 the unit to start, $6 whether the repository stays at /mnt/weir.
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
# OVN, which makes a bridge of its own, starts only where it is asked to.
rm -f "$root"/etc/systemd/system/multi-user.target.wants/ovn-*.service
mkdir -p "$root/mnt/weir"
mount --bind "$2" "$root/mnt/weir"
cp "$3" "$root/tmp/weir"
chroot "$root" /bin/sh -ec "$4"
[ -n "$6" ] || umount "$root/mnt/weir"
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /lib/systemd/systemd --system \
    --unit="$5" --show-status=no --log-target=null
"""

INSTALL = "make -s -C /mnt/weir install BIN=/tmp/weir"


class Machine:
    """A running systemd; `unit` is what it was started for."""

    def __init__(self, unit, before, repository=False):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-systemd-"))
        self.log = open(self.dir / "log", "w+")
        self.p = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net", "--cgroup",
             "/bin/bash", "-c", BOOT, "boot", self.dir, ROOT, WEIR, before, unit, "1" if repository else ""],
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

    def command(self, *args, directory="/"):
        """The command line that runs a command on the machine."""
        return ["nsenter", "--target", self.first(), "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup",
                "--root", f"--wdns={directory}", "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *args]

    def run(self, *args, **kw):
        """A command on the machine."""
        return run(*self.command(*args), timeout=90, **kw)

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
