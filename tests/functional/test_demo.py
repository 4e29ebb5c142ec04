"""The demo: it works, and it leaves nothing behind, also when it is interrupted."""

import os
import signal
import subprocess

from conftest import ROOT, WEIR, until
from lib.net import run


def left_behind():
    links = run("ip", "-o", "link").stdout + run("ip", "netns", "list").stdout
    processes = run("pgrep", "-f", "weir run examples/demo.toml", check=False).stdout
    return ("weir-demo" in links) or bool(processes.strip())


def start():
    env = dict(os.environ, WEIR=str(WEIR), DEMO_SECONDS="1")
    return subprocess.Popen([ROOT / "scripts/demo.sh"], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)


def test_demo():
    demo = start()
    out = demo.communicate(timeout=100)[0]
    assert demo.returncode == 0, out
    assert "all of it worked" in out
    assert not left_behind()


def test_demo_interrupted():
    """Ctrl-C goes to the whole foreground process group."""
    demo = start()
    for line in demo.stdout:
        if "== iperf3" in line:
            break
    until(lambda: run("pgrep", "-s", demo.pid, "-f", "iperf3 -c", check=False).returncode == 0, what="iperf3 sending")
    os.killpg(demo.pid, signal.SIGINT)
    demo.stdout.read()
    assert demo.wait(30) == 130
    assert not left_behind()


def test_demo_that_fails():
    """A program that is not Weir: the demo says that it failed, and cleans up."""
    env = dict(os.environ, WEIR="/bin/false")
    r = subprocess.run([ROOT / "scripts/demo.sh"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert r.returncode not in (0, 130)
    assert not left_behind()
