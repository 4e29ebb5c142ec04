"""OVN over the sites of a lab (`lib.tunnel.Lab`): its two databases and ovn-northd, and ovn-controller at each site, as Debian has them."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from .net import run
from .tunnel import cable, namespace
from .wait import until

SCHEMAS = {"nb": "/usr/share/ovn/ovn-nb.ovsschema", "sb": "/usr/share/ovn/ovn-sb.ovsschema"}

#: What Debian's ovn-controller says without hardware to plug into, and what a busy machine has it say.
EXPECTED = [r"\|vif_plug_provider\|WARN\|failed to initialize representor", r"\|timeval\|WARN\|"]

#: What ovn-controller and ovn-northd say of a switch that has refused something, or has gone: at level INFO.
REFUSALS = r"OpenFlow error|disconnecting|connection closed|connection failed"


class Ovn:
    """The centre. What it starts ends with the lab, before the lab's switches do."""

    def __init__(self, lab):
        # Not pytest's directory: the name of a socket has to be short.
        self.dir = Path(tempfile.mkdtemp(prefix="weir-ovn-"))
        self.db = {name: f"unix:{self.dir}/{name}.sock" for name in SCHEMAS}
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), OVN_RUNDIR=str(self.dir), OVN_NB_DB=self.db["nb"],
                        OVN_SB_DB=self.db["sb"])
        self.procs, self.guests = [], 0
        lab.closing.callback(self.close)
        self.lab = lab
        for name, schema in SCHEMAS.items():
            run("ovsdb-tool", "create", self.dir / f"{name}.db", schema)
            self.spawn("ovsdb-server", self.dir / f"{name}.db", f"--remote=p{self.db[name]}", f"--unixctl={self.dir}/{name}.ctl",
                       log=name)
            until((self.dir / f"{name}.sock").exists, what=f"the database {name}")
        self.spawn("ovn-northd", f"--ovnnb-db={self.db['nb']}", f"--ovnsb-db={self.db['sb']}", log="northd")
        # ovn-controller 23.03 crashes where ovn-northd has not put anything into the southbound database.
        self.nbctl("--wait=sb", "sync")

    def spawn(self, *command, log, env=None):
        with open(self.dir / f"{log}.out", "ab") as out:
            self.procs.append(subprocess.Popen([*map(str, command), "-vconsole:off", f"--log-file={self.dir}/{log}.log"],
                                               env=env or self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

    def nbctl(self, *args):
        return run("ovn-nbctl", "--timeout=30", *args, env=self.env).stdout.strip()

    def commands(self, text):
        """Commands of ovn-nbctl, one in a line, in one transaction; returns when all switches have what follows from them."""
        words = []
        for line in filter(None, map(str.strip, text.splitlines())):
            words += ["--", *shlex.split(line)]
        return self.nbctl("--wait=hv", *words)

    def join(self, *sites):
        """Starts ovn-controller at sites, with tunnels of Geneve between them."""
        for site in sites:
            settings = {"system-id": site.host.ns, "ovn-remote": self.db["sb"], "ovn-encap-type": "geneve", "ovn-encap-ip": site.out4,
                        "ovn-bridge-datapath-type": "netdev"}
            # ovn-controller would set that, with a warning.
            site.vsctl("set-fail-mode", "br-int", "secure")
            site.vsctl("set", "open", ".", *(f"external_ids:{key}={value}" for key, value in settings.items()))
            env = dict(site.env, OVN_RUNDIR=str(site.dir))
            self.spawn(*site.host.cmd("ovn-controller", site.db), log=site.host.ns, env=env)

    def machine(self, site, address, gateway):
        """A machine at a site with one address. Its port has the name of the machine's namespace, in OVN, too."""
        vm = namespace(self.lab.net)
        self.guests += 1
        device = f"guest{self.guests}"
        cable(vm, "eth0", site.host, device)
        vm.run("ip", "link", "set", "eth0", "mtu", 1400, "address", f"02:00:00:00:0a:{self.guests:02x}")
        vm.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        vm.run("ip", "route", "add", "default", "via", gateway)
        site.vsctl("add-port", "br-int", device, "--", "set", "interface", device, f"external_ids:iface-id={vm.ns}")
        vm.address = address
        return vm

    def logs(self):
        return "".join(path.read_text() for path in sorted(self.dir.glob("*.log")))

    def close(self):
        try:
            log = self.logs()
        finally:
            for proc in reversed(self.procs):
                proc.terminate()
                try:
                    proc.wait(30)
                except subprocess.TimeoutExpired:
                    proc.kill()
                    proc.wait()
            shutil.rmtree(self.dir, ignore_errors=True)
        wrong = re.findall(rf".*\|(?:WARN|ERR|EMER)\|.*|.*(?:{REFUSALS}).*", log)
        wrong = [line for line in wrong if not any(re.search(pattern, line) for pattern in EXPECTED)]
        assert not wrong, "\n".join(wrong)
