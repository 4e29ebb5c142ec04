"""Fixtures: a running Weir of either kind, network namespaces. Everything else is in lib/.

    weir   a function that starts `weir run` with a configuration (`lib.daemon.Weir`)
    ovs    an ovsdb-server; `ovs.start()` runs `weir vswitchd` on it (`lib.daemon.Ovs`)
    net    network namespaces joined to the switch by veth pairs (`lib.net.Net`)

What a fixture started is stopped after the test, and checked (`Daemon.close`).
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lib.daemon import ROOT, WEIR, Ovs, Weir  # noqa: E402, F401
from lib.net import Net  # noqa: E402
from lib.wait import until  # noqa: E402, F401


def close_all(started):
    """Closes all, also where one of them complains."""
    errors = []
    for daemon in started:
        try:
            daemon.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def weir():
    """A function that starts Weir with a configuration; what it started ends with the test."""
    started = []

    def start(config, **kw):
        w = Weir(config, **kw)
        started.append(w)
        return w

    yield start
    close_all(started)


@pytest.fixture
def ovs():
    """A database, and the means to start Weir on it."""
    o = Ovs()
    yield o
    close_all([o])


@pytest.fixture
def net():
    """Network namespaces joined to the switch by veth pairs."""
    if os.geteuid():
        pytest.fail("network namespaces need root")
    n = Net()
    yield n
    n.close()
