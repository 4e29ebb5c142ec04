"""Collectors that nobody here wrote: nfcapd (NetFlow, IPFIX) and sfcapd (sFlow) of nfdump, nfacctd and sfacctd of pmacct, and
tshark's dissectors."""

import csv
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .net import run
from .wait import until


def free_port():
    """A UDP port that nobody uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Collector:
    """`program`, "nfcapd" or "sfcapd", at a port of 127.0.0.1."""

    def __init__(self, program, port=None):
        self.program, self.port = program, port or free_port()
        self.dir = Path(tempfile.mkdtemp(prefix="weir-collector-"))
        self.flows = self.dir / "flows"
        self.flows.mkdir()
        self.log = open(self.dir / "log", "w+b")
        self.proc = subprocess.Popen([program, *self.arguments()], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until(lambda: f":{self.port} " in run("ss", "-Hlun").stdout or self.proc.poll() is not None, what=f"{program}")
        assert self.proc.poll() is None, self.said()

    def arguments(self):
        # It writes its file at its end.
        return ["-b", "127.0.0.1", "-p", str(self.port), "-w", str(self.flows), "-t", "3600", "-B", "2000000"]

    @property
    def target(self):
        return f"127.0.0.1:{self.port}"

    def said(self):
        return (self.dir / "log").read_text()

    def records(self):
        """Ends the collector: its records as nfdump shows them, each a dictionary."""
        self.stop()
        text = run("nfdump", "-R", self.flows, "-o", "csv").stdout
        return list(csv.DictReader(io.StringIO(text.partition("Summary")[0])))

    def keep(self):
        """A copy that outlives the test, for who looks why it failed."""
        copy = shutil.copy(self.file, Path(tempfile.gettempdir()) / f"weir-{self.dir.name}.pcap")
        return f"{copy}, read with {self.ports}"

    def stop(self):
        if self.proc.poll() is None:
            self.proc.terminate()
            self.proc.wait(20)

    def close(self):
        self.stop()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Accounting(Collector):
    """pmacct's `program`, "nfacctd" (NetFlow, IPFIX) or "sfacctd" (sFlow), which adds up packets and bytes by what they have in common."""

    #: What is added up is told apart by these.
    KEYS = "src_host, dst_host, src_port, dst_port, proto, in_iface, out_iface"

    def arguments(self):
        kind = self.program
        settings = {"daemonize": "false", f"{kind}_ip": "127.0.0.1", f"{kind}_port": self.port, f"{kind}_renormalize": "true",
                    "plugins": "print", "aggregate": self.KEYS, "print_output": "json", "print_output_file": self.dir / "sums",
                    "print_output_file_append": "true", "print_refresh_time": 1}
        file = self.dir / "settings"
        file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        return ["-f", str(file)]

    def records(self):
        """Ends it: its sums, each a dictionary of `KEYS` (`ip_src` and so on), `packets` and `bytes`. It adds what has come in each second; all
        of it is there when nothing waits at its socket and it has added nothing for three."""
        file, length, since = self.dir / "sums", 0, time.monotonic()

        def settled():
            nonlocal length, since
            now = file.stat().st_size if file.exists() else 0
            if now != length or self.waiting():
                length, since = now, time.monotonic()
            return length and time.monotonic() > since + 3
        until(settled, 60, f"{self.program} writing its sums")
        self.stop()
        return [json.loads(line) for line in file.read_text().splitlines()]

    def waiting(self):
        """Bytes at its socket."""
        sockets = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
        return sum(int(words[4].partition(":")[2], 16) for words in sockets if words[1].endswith(f":{self.port:04X}"))

    def stop(self):
        if self.proc.poll() is None:
            # At SIGINT it writes what it has.
            self.proc.send_signal(signal.SIGINT)
            self.proc.wait(20)


class Capture:
    """What comes to UDP ports of this host by its loopback device, for tshark."""

    def __init__(self, **ports):
        """`ports` by name of the dissector: sflow, cflow."""
        self.ports = ports
        self.dir = Path(tempfile.mkdtemp(prefix="weir-capture-"))
        self.file, self.err = self.dir / "lo.pcap", open(self.dir / "err", "w+")
        filter = " or ".join(f"udp dst port {port}" for port in ports.values())
        self.proc = subprocess.Popen(["tcpdump", "-i", "lo", "-U", "-s2000", "-B8192", "--immediate-mode", "-Z", "root",
                                      "-w", str(self.file), filter], stdin=subprocess.DEVNULL, stderr=self.err)
        until(lambda: "listening on" in (self.dir / "err").read_text() or self.proc.poll() is not None,
              what="tcpdump listening")

    def tshark(self, *args):
        decode = [word for name, port in self.ports.items() for word in ("-d", f"udp.port=={port},{name}")]
        # Twice: templates of IPFIX may come behind records in a file that begins in the middle.
        # By itself it gives up templates of more than 60 elements.
        return run("tshark", "-r", self.file, "-2", "-o", "cflow.max_template_fields:255", *decode, *args).stdout

    def fields(self, *names, filter=""):
        """The values of fields in each packet that the filter takes."""
        fields = [word for name in names for word in ("-e", name)]
        text = self.tshark("-T", "fields", "-E", "occurrence=a", *(["-Y", filter] if filter else []), *fields)
        return [line.split("\t") for line in text.splitlines()]

    def problems(self):
        """What tshark finds malformed, or warns of. It takes the name of a port and the counters of a datapath (counter records 1005 and
        2207 of sFlow), which it does not know, for the next record: what it says of that depends on them."""
        return self.tshark("-Y", "(_ws.malformed || _ws.short || _ws.expert.severity >= 0x600000) && "
                                 "!(sflow_245.counters_record_format in {1005, 2207})")

    def stop(self):
        if self.proc.poll() is None:
            # What it has not read by then is lost.
            size = -1
            while self.file.stat().st_size != size:
                size = self.file.stat().st_size
                time.sleep(0.3)
            self.proc.terminate()
            self.proc.wait(30)

    def close(self):
        self.stop()
        self.err.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def shown(ovs):
    """What `export/show` says: lines, and by target how many datagrams were sent, not sent and refused."""
    text = ovs.appctl("export/show")
    found = re.findall(r"^    (\S+): (\d+) datagrams sent, (\d+) not sent, (\d+) refused", text, re.M)
    return text, {target: tuple(map(int, counts)) for target, *counts in found}
