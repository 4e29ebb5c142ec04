"""scripts/bare.sh: a pristine system, and nothing of it left."""

import os
import signal
import subprocess

import pytest
from lib.daemon import ROOT

BARE = ROOT / "scripts/bare.sh"


@pytest.fixture
def bare(tmp_path):
    """A function that starts a command in a pristine system, which is made in tmp_path/systems."""
    systems = tmp_path / "systems"
    systems.mkdir()
    env = dict(os.environ, TMPDIR=str(systems))

    def start(command, *options):
        return subprocess.Popen([BARE, *options, "sh", "-c", command], env=env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    yield start
    assert list(systems.iterdir()) == [], "left behind"
    assert str(systems) not in open("/proc/self/mountinfo").read()


def test_nothing_is_there_but_the_clone(bare):
    """And the command's status and output are handed on."""
    p = bare("trap 'echo interrupted' INT; kill -INT $$; pwd; git status --short; ls target 2>&1; command -v cc curl pkg-config ovs-vsctl python3; exit 7")
    out = p.communicate(timeout=100)[0]
    assert p.returncode == 7, out
    assert out.splitlines()[:2] == ["interrupted", "/src/weir"], out
    assert len(out.splitlines()) == 3 and "target" in out.splitlines()[2], out


def test_nothing_of_rust_is_there_where_none_is_wanted(bare):
    p = bare("command -v cargo rustc rustup || echo none", "--without-rust")
    assert p.communicate(timeout=100)[0] == "none\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_it_started_ends_with_it(bare, number):
    p = bare("echo started; sleep 1000")
    assert p.stdout.readline() == "started\n"
    p.send_signal(number)
    # All of its processes have the pipe, whose end is theirs.
    assert p.communicate(timeout=30)[0] == ""
    assert p.returncode == 128 + number
