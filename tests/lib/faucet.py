"""Faucet and Gauge, controllers that are configured by files and run a network by OpenFlow 1.3, in an environment of their own."""

import os
import re
import socket
import subprocess
import urllib.error
import urllib.request

from .daemon import ROOT
from .wait import until

VENV = ROOT / ".venv-faucet"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Controller:
    """A program of Faucet's, which reads what `dir` holds and logs there. `target` is what a bridge is told."""

    def __init__(self, program, dir, config):
        self.program, self.dir = program, dir
        self.port, self.metrics_port = free_port(), free_port()
        self.target = f"tcp:127.0.0.1:{self.port}"
        dir.mkdir(exist_ok=True)
        name = program.upper()
        self.config = dir / f"{program}.yaml"
        self.configure(config.replace("METRICS_PORT", str(self.metrics_port)))
        self.env = {**os.environ, "PATH": f"{VENV}/bin:{os.environ['PATH']}", f"{name}_CONFIG": str(self.config),
                    f"{name}_LOG": str(dir / f"{program}.log"), f"{name}_EXCEPTION_LOG": str(dir / f"{program}_exception.log"),
                    "FAUCET_PROMETHEUS_PORT": str(self.metrics_port), "FAUCET_PROMETHEUS_ADDR": "127.0.0.1"}
        self.proc = None

    def configure(self, config):
        self.config.write_text(config)

    def start(self):
        command = [VENV / "bin/osken-manager", "--ofp-listen-host=127.0.0.1", f"--ofp-tcp-listen-port={self.port}",
                   f"faucet.{self.program}"]
        with open(self.dir / f"{self.program}.out", "ab") as out:
            self.proc = subprocess.Popen([str(c) for c in command], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                         cwd=self.dir)
        until(self.listening, 60, f"{self.program} listening")
        return self

    def listening(self):
        assert self.proc.poll() is None, self.log()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def metrics(self, name, **labels):
        """The values of a metric whose labels contain those."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/", timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return []  # not yet
        found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.M)
        return [float(value) for has, value in found if all(f'{k}="{v}"' in has for k, v in labels.items())]

    def log(self):
        return "".join(p.read_text() for p in sorted(self.dir.glob(f"{self.program}*.log")) + [self.dir / f"{self.program}.out"]
                       if p.exists())

    def kill(self):
        if self.proc and self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()

    def check(self):
        """It has caught no exception, and the switch has refused nothing that it was told."""
        exceptions = self.dir / f"{self.program}_exception.log"
        assert not exceptions.exists() or not exceptions.read_text(), exceptions.read_text()
        assert "OFPErrorMsg" not in self.log() and "OFError" not in self.log(), self.log()
        assert "Traceback" not in self.log(), self.log()
