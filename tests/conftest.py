"""Fixtures: a running Weir, network namespaces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lib.net import Net, run  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WEIR = Path(os.environ.get("WEIR", ROOT / "target/release/weir"))


def until(condition, seconds=10, what="the condition"):
    """Poll `condition` until it is true; its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)


class Weir:
    """`weir run` with a run directory of its own."""

    def __init__(self, config, env=None, start=True):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-test-"))
        self.config = self.dir / "weir.toml"
        self.env = dict(os.environ, OVS_RUNDIR=str(self.dir), **(env or {}))
        self.proc = None
        self.configure(config)
        if start:
            self.start()

    def configure(self, config):
        self.config.write_text(config)

    def start(self):
        self.log = open(self.dir / "log", "ab")
        self.proc = subprocess.Popen([WEIR, "run", self.config], env=self.env, stdout=self.log, stderr=self.log,
                                     stdin=subprocess.DEVNULL)
        try:
            until(lambda: self.proc.poll() is not None or self.cli("show", check=False).returncode == 0,
                  what="weir run answering")
            assert self.proc.poll() is None, self.text()
        except BaseException:
            self.stop()
            raise

    def text(self):
        """The daemon's log."""
        return (self.dir / "log").read_text()

    def cli(self, *args, **kw):
        return run(WEIR, *args, env=self.env, **kw)

    def json(self, *args):
        return json.loads(self.cli(*args, "--json").stdout)

    def ofctl(self, verb, *args, version=None, **kw):
        flag = ["-O", f"OpenFlow{version}"] if version else []
        return run("ovs-ofctl", *flag, verb, *args, env=self.env, **kw).stdout

    def appctl(self, *args, **kw):
        return run("ovs-appctl", "-t", "weir", *args, env=self.env, **kw).stdout

    def signal(self, number):
        self.proc.send_signal(number)

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                self.proc.send_signal(signal.SIGKILL)
                self.proc.wait()
                raise AssertionError("weir did not end on SIGTERM:\n" + self.text())
        self.log.close()

    def close(self):
        try:
            if self.proc:
                self.stop()
                assert "panicked" not in self.text(), self.text()
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture
def weir(request):
    """A function that starts Weir with a configuration; what it started ends with the test."""
    started = []

    def start(config, **kw):
        w = Weir(config, **kw)
        started.append(w)
        return w

    yield start
    errors = []
    for w in started:
        try:
            w.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def net():
    """Network namespaces joined to the switch by veth pairs."""
    if os.geteuid():
        pytest.fail("network namespaces need root")
    n = Net()
    yield n
    n.close()
