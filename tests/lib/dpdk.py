"""What tests with DPDK need: huge pages, and dpdk-testpmd as a guest without a virtual machine."""

import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .net import run

PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
FREE = PAGES.with_name("free_hugepages")


class HugePages:
    """At least so many huge pages of 2 MiB that are free; given back by close().

    A pool of a switch takes up to 800 MiB, and a guest beside it needs as much as it is given."""

    def __init__(self, pages=1024):
        self.before = None
        self.missing = self.reserve(pages)

    def reserve(self, pages):
        """Why there are not enough; None where there are."""
        if not PAGES.exists():
            return "this kernel has no huge pages of 2 MiB"
        self.before = int(PAGES.read_text())
        try:
            for _ in range(10):
                lacking = pages - int(FREE.read_text())
                if lacking <= 0:
                    return None
                PAGES.write_text(str(int(PAGES.read_text()) + lacking))
                if int(FREE.read_text()) < pages:
                    # Cached files lie in between, which the kernel can read again; or a build, which ends.
                    Path("/proc/sys/vm/drop_caches").write_text("1")
                    Path("/proc/sys/vm/compact_memory").write_text("1")
                    time.sleep(0.5)
        except OSError as e:
            return f"huge pages cannot be reserved: {e}"
        free = int(FREE.read_text())
        if free < pages:
            self.close()
            return f"only {free} of {pages} huge pages of 2 MiB could be reserved"
        return None

    def close(self):
        if self.before is not None:
            PAGES.write_text(str(self.before))


def missing():
    """Why there can be no testpmd, in words; None where there can."""
    return None if shutil.which("dpdk-testpmd") else "dpdk-testpmd is not installed; run scripts/setup.sh test"


class Testpmd:
    """dpdk-testpmd with a port for each of `vdevs`, driven by its command line."""

    PROMPT = b"testpmd> "
    __test__ = False

    def __init__(self, vdevs, cores="0,1", memory=256, args=(), eal=()):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-testpmd-"))
        vdev = [arg for v in vdevs for arg in ("--vdev", v)]
        cmd = ["stdbuf", "-oL", "dpdk-testpmd", "--in-memory", "--no-pci", "--no-telemetry", "--single-file-segments",
               *(["-l", cores] if cores else []), *eal, "-m", memory, "--file-prefix", self.dir.name, *vdev, "--", "-i",
               "--total-num-mbufs=16384", *args]
        self.log = open(self.dir / "log", "wb")
        self.proc = subprocess.Popen([str(c) for c in cmd], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=self.log, bufsize=0)
        self.pending = b""
        try:
            self.banner = self.answer(60)
        except BaseException:
            self.close()
            raise

    def answer(self, seconds):
        """What it says until it prompts again."""
        deadline = time.monotonic() + seconds
        while self.PROMPT not in self.pending:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.proc.stdout], [], [], left)[0]
            more = os.read(self.proc.stdout.fileno(), 65536) if ready else b""
            if not more:
                log = (self.dir / "log").read_text()
                raise AssertionError(f"testpmd does not prompt:\n{self.pending.decode()}\n{log}")
            self.pending += more
        text, self.pending = self.pending.split(self.PROMPT, 1)
        return text.decode(errors="replace")

    def run(self, command, seconds=60):
        self.proc.stdin.write(command.encode() + b"\n")
        return self.answer(seconds)

    def stats(self, port=0):
        """The counters of a port: {"RX-packets": 1, ...}."""
        text = self.run(f"show port stats {port}")
        return {name: int(value) for name, value in re.findall(r"([RT]X-[a-z]+): *(\d+)", text)}

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def close(self):
        if self.proc.poll() is None:
            self.proc.stdin.close()
            try:
                self.proc.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        self.proc.stdout.close()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
