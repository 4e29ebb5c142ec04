"""Receive queues that move by themselves: other_config:pmd-auto-lb."""

import os

import pytest
from conftest import until
from lib.daemon import dummy_bridge

PREFIX = "PMD auto load balance "


def said(ovs, words, after=0):  # noqa: F811
    until(lambda: words in ovs.log()[after:], what=words)


def settle(ovs, **settings):  # noqa: F811
    ovs.vsctl("set", "Open_vSwitch", ".", *(f"other_config:{k.replace('_', '-')}={v}" for k, v in settings.items()))


def test_the_settings_are_logged(ovs):  # noqa: F811
    ovs.start("--enable-dummy")
    dummy_bridge(ovs)
    said(ovs, PREFIX + "is disabled")
    said(ovs, PREFIX + "interval set to 1 mins")
    settle(ovs, pmd_auto_lb="true", pmd_auto_lb_rebal_interval=10, pmd_auto_lb_load_threshold=70,
           pmd_auto_lb_improvement_threshold=50)
    said(ovs, PREFIX + "is enabled, interval 10 mins, pmd load threshold 70%, improvement threshold 50%.")
    # What is out of range counts as not set.
    for value, minutes in [(0, 1), (100, 100), (20001, 1), (20000, 20000)]:
        at = len(ovs.log())
        settle(ovs, pmd_auto_lb_rebal_interval=value)
        said(ovs, PREFIX + f"interval set to {minutes} mins", at)


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two cores")
def test_queues_are_spread_when_due(ovs):  # noqa: F811
    ovs.start("--enable-dummy", "-vdpif_netdev:dbg")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "options:n_rxq=3")
    settle(ovs, pmd_cpu_mask="3", pmd_auto_lb="true", pmd_auto_lb_load_threshold=0,
           pmd_auto_lb_improvement_threshold=0)
    said(ovs, PREFIX + "is enabled")
    ovs.appctl("time/stop")

    def after_minutes(words, **settings):
        # A check that an earlier warp has brought about may come as soon as the settings are there.
        at = len(ovs.log())
        if settings:
            settle(ovs, **settings)

        def passed():
            ovs.appctl("time/warp", "70000", "10000")
            return words in ovs.log()[at:]

        until(passed, what=words)

    after_minutes("dry run. Requesting datapath reconfigure.")
    after_minutes("nothing to do, pmd-rxq-assign=roundrobin assignment type configured.", pmd_rxq_assign="roundrobin")
    after_minutes("nothing to do, no configuration changes since last check.")
    after_minutes("nothing to do, not enough non-isolated PMDs or RxQs.", pmd_rxq_assign="group", pmd_cpu_mask="1")
    assert "queue-id:  2" in ovs.appctl("dpif-netdev/pmd-rxq-show")
