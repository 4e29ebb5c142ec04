"""Messages whose readers are slow, or cannot be found: they hold up nothing."""

import os
import subprocess

from conftest import until
from lib.daemon import WEIR, Weir, config
from test_ingress_settings import name_server  # a fixture


def test_a_log_server_whose_name_nobody_resolves_holds_up_nothing(ovs, name_server):
    ovs.start("--syslog-method=udp:log.example:514", "-vsyslog:dbg")
    assert name_server.asked.wait(20)
    # Each command has messages. The look-up ends when the name server answers, and not before.
    for _ in range(20):
        ovs.appctl("version", timeout=20)
    name_server.answers.set()


def test_standard_error_that_nobody_reads_holds_up_nothing():
    daemon = Weir(config([("p1", "dummy", "")]), start=False)
    read, write = os.pipe()
    with open(read, "rb") as reader:
        process = subprocess.Popen([WEIR, "run", daemon.config, "--log", "debug"], env=daemon.env, stdin=subprocess.DEVNULL,
                                   stdout=write, stderr=write)
        os.close(write)
        try:
            until(lambda: daemon.cli("show", check=False).returncode == 0, what="weir run answering")
            # More than a pipe has room for, at about 200 bytes for each command.
            for _ in range(500):
                daemon.appctl("version", timeout=20)
            process.terminate()
            text = reader.read().decode()
        finally:
            process.kill()
            process.wait()
            daemon.close()
    assert "received request" in text
