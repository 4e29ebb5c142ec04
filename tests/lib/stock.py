"""Stock OVS, to be compared with."""

import json
import os
import re
import socket
import tempfile
from pathlib import Path

import pytest
from lib.daemon import Database
from lib.net import run
from lib.pcap import frames
from lib.scenario import PORTS
from lib.wait import until

OVS = "/usr/lib/openvswitch-switch/ovs-vswitchd"
DUMMY = ("--enable-dummy", "--disable-system", "--disable-system-route")

#: Random flows end in loops, and forward what is malformed.
EXPECTED = [r"\|ofproto_dpif_xlate", r"\|ofproto_dpif_upcall", r"recursion|resubmit|over max"]


class Side:
    """A switch that is compared: its database and its daemon's control socket."""

    def __init__(self, database, control):
        self.database, self.dir, self.env = database, database.dir, database.env
        self.socket, self.heard = socket.socket(socket.AF_UNIX), ""
        self.socket.connect(str(control))

    def call(self, command, *args):
        """As ovs-appctl, which would take a process for each packet."""
        self.socket.sendall(json.dumps({"id": 0, "method": command, "params": args}).encode())
        while True:
            try:
                answer, end = json.JSONDecoder().raw_decode(self.heard)
            except ValueError:
                more = self.socket.recv(1 << 16).decode()
                assert more, f"the end of the daemon of {self.dir}"
                self.heard += more
                continue
            self.heard = self.heard[end:].lstrip()
            return answer

    def ofctl(self, command, *arguments):
        """The errors that it is answered with."""
        done = run("ovs-ofctl", "-OOpenFlow15", command, "br0", *arguments, env=self.env, check=False)
        errors = re.findall(r"OFPT_ERROR.*: (\w+)", done.stderr)
        assert errors or done.returncode == 0 or "ovs-ofctl:" in done.stderr, done.stderr
        return errors or done.returncode

    def build(self, scenario):
        self.database.vsctl("--if-exists", "del-br", "br0")
        args = ["set", "open", ".", "other_config:vlan-limit=2", "--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail-mode=secure", "other_config:datapath-id=1",
                "other_config:hwaddr=02:00:00:00:00:ff", *scenario.bridge]
        for number, settings in zip(PORTS, scenario.ports, strict=True):
            file = self.dir / f"p{number}.pcap"
            file.unlink(missing_ok=True)
            args += ["--", "add-port", "br0", f"p{number}", *settings, "--", "set", "interface", f"p{number}", "type=dummy",
                     f"ofport_request={number}", f"options:tx_pcap={file}"]
        self.database.vsctl(*args)
        self.call("dpctl/flush-conntrack")

    def counters(self, version):
        """What tables and groups say of themselves, but for times, which are another matter. A flow that names a group twice is one of
        the group's users in Weir and two in OVS."""
        self.call("revalidator/purge")
        dumps = [run("ovs-ofctl", f"-OOpenFlow{at}", *dump, "br0", env=self.env).stdout
                 for at, *dump in ((version, "dump-flows", "--no-names"), (15, "dump-groups"), (15, "dump-group-stats"))]
        return [sorted(re.sub(r"(duration|hard_age|idle_age|ref_count)=[\d.]+s?,? ?|\(xid=\w+\)", "", dump).splitlines()) for dump in dumps]

    def sent(self):
        """All frames, by port."""
        files = {number: self.dir / f"p{number}.pcap" for number in PORTS}
        return {number: frames(file) if file.exists() else [] for number, file in files.items()}


@pytest.fixture
def stock(net):
    """OVS's own daemon, with dummy ports."""
    with tempfile.TemporaryDirectory(prefix="weir-ovs-") as name:
        directory = Path(name)
        env = dict(os.environ, OVS_RUNDIR=name, OVS_LOGDIR=name, OVS_DBDIR=name)
        database = Database(directory, env)
        try:
            run(OVS, database.db, "--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off", *DUMMY, env=env)
            pid = int((directory / "ovs-vswitchd.pid").read_text())
            yield Side(database, directory / f"ovs-vswitchd.{pid}.ctl")
            os.kill(pid, 15)
            until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of OVS")
        finally:
            database.stop_server()
