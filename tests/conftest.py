"""Fixtures: a running Weir of either kind, network namespaces. Everything else is in lib/.

    weir   a function that starts `weir run` with a configuration (`lib.daemon.Weir`)
    ovs    an ovsdb-server; `ovs.start()` runs `weir vswitchd` on it (`lib.daemon.Ovs`)
    net    network namespaces joined to the switch by veth pairs (`lib.net.Net`)
    lab    sites in namespaces of their own, with tunnels between them (`lib.tunnel.Lab`)

What a fixture started is stopped after the test, and checked (`Daemon.close`). Warnings and errors that all tests of a file
cause are named by its `EXPECTED`, a list of patterns; those of one test by `Daemon.expect`.
"""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lib import separate  # noqa: E402
from lib.daemon import ROOT, WEIR, Ovs, Weir  # noqa: E402, F401
from lib.net import Net  # noqa: E402
from lib.tunnel import Lab  # noqa: E402
from lib.wait import until  # noqa: E402, F401


failed = set()

# Who runs the tests in the background ignores these, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption("--failed-to", type=Path, help="a file that gets the names of the tests that failed, one in a line")


def pytest_runtest_logreport(report):
    """Called by the process that the others report to, too."""
    if report.failed:
        # What pytest-xdist adds for `--dist loadgroup` is not part of the name.
        failed.add(report.nodeid.rpartition("@")[0] or report.nodeid)


def pytest_sessionfinish(session):
    failed_to = session.config.getoption("failed_to")
    if failed_to and not hasattr(session.config, "workerinput"):
        failed_to.write_text("".join(f"{test}\n" for test in sorted(failed)))


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        separate.enter_own_network()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    separate.group(items)


def close_all(started):
    """Closes all, also where one of them complains."""
    errors = []
    for daemon in started:
        try:
            daemon.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


def expected(request):
    return getattr(request.module, "EXPECTED", [])


@pytest.fixture
def weir(request, net):
    """A function that starts Weir with a configuration; what it started ends with the test, before the network does."""
    started = []

    def start(config, **kw):
        w = Weir(config, expected=expected(request), **kw)
        started.append(w)
        return w

    yield start
    close_all(started)


@pytest.fixture
def ovs(request, net):
    """A database, and the means to start Weir on it."""
    o = Ovs(expected(request))
    yield o
    close_all([o])


@pytest.fixture
def net():
    """Network namespaces joined to the switch by veth pairs."""
    n = Net()
    yield n
    n.close()


@pytest.fixture
def lab(request, net, tmp_path):
    """Sites that reach each other through tunnels (`lib.tunnel.Lab`)."""
    lab = Lab(net, tmp_path, expected(request))
    yield lab
    lab.close()
