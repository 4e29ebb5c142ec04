"""Test processes side by side (`pytest -n N`, pytest-xdist): each has a network, and names of namespaces, of its own, so that
none sees the devices of another."""

import ctypes
from pathlib import Path

import pytest

from .net import run

NEW_NETWORK, NEW_MOUNTS = 0x40000000, 0x00020000
# What all processes share, so that the tests of these files run one after another, by one process.
SHARING = {"test_dpdk.py": "huge pages", "test_vhost.py": "huge pages", "test_demo.py": "the demo", "test_bare.py": "the demo"}


def enter_own_network():
    """Puts this thread, and what it starts from now on, into namespaces of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare: a test process needs a network of its own, so root")
    run("mount", "--make-rprivate", "/")
    Path("/run/netns").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", "/run/netns")
    run("mount", "-t", "sysfs", "none", "/sys")
    run("ip", "link", "set", "lo", "up")


def group(items):
    """Tests of one file stay together, for what their fixtures share."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(SHARING.get(item.path.name, item.path.name)))
