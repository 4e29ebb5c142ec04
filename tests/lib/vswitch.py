"""A switch with its own ovsdb-server, set up by Debian's tools: Weir or OVS, in the same words."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .daemon import Database
from .net import run
from .wait import until

OVS_DPDK = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"


class Devices:
    """Devices of the host that OVS leaves behind: those of bridges, and its datapath's own."""

    def __init__(self, *bridges):
        self.names = [name for name in (*bridges, "ovs-netdev") if not Path("/sys/class/net", name).exists()]

    def remove(self):
        """Removes those that were not there before."""
        for name in self.names:
            run("ip", "link", "del", name, check=False)


class Switch(Database):
    """`command` with a bridge of the userspace datapath; its polling thread runs on `core`."""

    #: Its device is one of the host's, where others may have their own br0.
    bridge = f"wbr{os.getpid() % 100000}"
    #: A second bridge, which whoever needs it adds.
    uplink = f"{bridge}u"

    def __init__(self, command, core, dpdk_core=0, **other_config):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-pvp-"))
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), OVS_LOGDIR=str(self.dir), OVS_DBDIR=str(self.dir))
        self.procs, self.server = [], None
        self.devices = Devices(self.bridge, self.uplink)
        try:
            self.start(command, core, dpdk_core, other_config)
        except BaseException:
            self.close()
            raise

    def start(self, command, core, dpdk_core, other_config):
        Database.__init__(self, self.dir, self.env)
        settings = {"dpdk-init": "true", "dpdk-extra": "--in-memory --no-pci", "pmd-cpu-mask": hex(1 << core),
                    "dpdk-lcore-mask": hex(1 << dpdk_core), **{k.replace("_", "-"): v for k, v in other_config.items()}}
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{k}={v}" for k, v in settings.items()))
        self.control = self.dir / "switch.ctl"
        self.daemon = self.spawn(*command, self.db, f"--unixctl={self.control}", "-vconsole:off",
                                 f"--log-file={self.dir}/switch.log")
        until(self.control.exists, 30, "the switch answering")
        self.vsctl("add-br", self.bridge, "--", "set", "bridge", self.bridge, "datapath_type=netdev", "fail-mode=secure")

    def spawn(self, *command):
        log = open(self.dir / "out", "ab")
        proc = subprocess.Popen([str(c) for c in command], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.procs.append(proc)
        return proc

    def vsctl(self, *args):
        return super().vsctl(*args, timeout=30)

    def ofctl(self, verb, *args):
        return self.ofctl_of(self.bridge, verb, *args)

    def ofctl_of(self, bridge, verb, *args):
        try:
            return run("ovs-ofctl", verb, bridge, *args, env=self.env).stdout
        except AssertionError as e:
            e.add_note(self.log())
            raise

    def appctl(self, *args):
        return run("ovs-appctl", "-t", self.control, *args, env=self.env).stdout

    def vhost(self, name, number):
        """Adds a vhost-user port that connects to the socket it returns."""
        socket = self.dir / f"{name}.sock"
        self.add(name, number, "type=dpdkvhostuserclient", f"options:vhost-server-path={socket}")
        return socket

    def add(self, name, number, *settings):
        """Adds a port and sees that it works."""
        self.vsctl("add-port", self.bridge, name, "--", "set", "Interface", name, *settings, f"ofport_request={number}")
        error = self.get("Interface", name, "error")
        if error != "[]":
            raise RuntimeError(f"{name}: {error}\n{self.log()}")

    def log(self):
        return (self.dir / "switch.log").read_text()[-4000:]

    def link(self, name, state="up"):
        until(lambda: self.get("Interface", name, "link_state") == state, 30, f"{name} being {state}")

    def cpu(self):
        """Seconds that the polling thread has had a processor for itself."""
        for task in Path(f"/proc/{self.daemon.pid}/task").iterdir():
            if re.match(r"worker\d|pmd-c", (task / "comm").read_text()):
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        raise RuntimeError("there is no polling thread")

    def measure(self, seconds):
        """What the polling thread does in `seconds`."""
        self.appctl("dpif-netdev/pmd-stats-clear")
        start, cpu = time.monotonic(), self.cpu()
        time.sleep(seconds)
        text = self.appctl("dpif-netdev/pmd-stats-show")
        elapsed, cpu = time.monotonic() - start, self.cpu() - cpu
        # The main thread's counters come too, which receives nothing.
        text = text[text.index("pmd thread"):].split("main thread")[0]

        def number(pattern):
            found = re.search(pattern, text)
            return float(found[1]) if found else float("nan")

        received = number(r"packets received: (\d+)")
        return {"pps": received / elapsed, "share": 100 * cpu / elapsed, "per_cpu": received / cpu,
                "cycles": number(r"avg processing cycles per packet: ([\d.]+)"),
                "busy": number(r"processing cycles: \d+ \(([\d.]+)%\)"),
                "batch": number(r"avg\. packets per output batch: ([\d.]+)")}

    def close(self):
        for proc in reversed(self.procs):
            proc.terminate()
            try:
                proc.wait(20)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()
        if self.server:
            self.stop_server()
        self.devices.remove()
        shutil.rmtree(self.dir, ignore_errors=True)


def switches(weir):
    """The command of each switch that is compared, by name."""
    found = {"weir": [weir, "vswitchd"]}
    if Path(OVS_DPDK).exists():
        found["ovs"] = [OVS_DPDK]
    return found
