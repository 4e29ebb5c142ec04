"""Detailed performance metrics: `other_config:pmd-perf-metrics`, `pmd-perf-show` and `pmd-perf-log-set`."""

import re

from conftest import until
from test_dummy import PACKET, switch  # noqa: F401
from test_metrics import promtool

COLUMNS = ["cycles/it", "packets/it", "cycles/pkt", "pkts/batch", "max vhost qlen", "upcalls/it", "cycles/upcall"]


def show(daemon, *args):
    return daemon.appctl("dpif-netdev/pmd-perf-show", *args)


def histograms(daemon):
    """For each column, how many values each bin has, by the bin's wall."""
    lines = show(daemon).split("Histograms\n")[1].splitlines()
    assert re.split(r" {2,}", lines[0].strip()) == COLUMNS
    rows = [line.split() for line in lines[1:33]]
    assert [row[0::2] for row in rows][-1] == [">"] * 7
    return {name: {row[2 * i]: int(row[2 * i + 1]) for row in rows} for i, name in enumerate(COLUMNS)}


def receive(daemon, count):
    for _ in range(count):
        daemon.appctl("netdev-dummy/receive", "p1", PACKET)


def metrics_on(daemon):
    daemon.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-perf-metrics=true")
    assert "Histograms" in show(daemon)


def test_histograms_show_what_workers_did(switch):  # noqa: F811
    switch.ofctl("add-flow", "br0", "icmp,actions=2")
    assert "Histograms" not in show(switch), "off by default"
    assert "weir_worker_turn_cycles_count" not in switch.appctl("weir/metrics")
    metrics_on(switch)
    receive(switch, 5)
    until(lambda: sum(histograms(switch)["cycles/upcall"].values()) == 1, what="the answer of the first packet")
    found = histograms(switch)
    assert found["pkts/batch"]["1"] == 5 and found["packets/it"]["1"] == 5
    assert found["upcalls/it"]["1"] == 1
    assert sum(found["cycles/pkt"].values()) == 5
    turns = sum(found["cycles/it"].values())
    assert turns > 5 and found["max vhost qlen"]["0"] >= turns
    assert re.search(r"Upcalls: +1 +\( *[\d.]+ %, [1-9\d.]+ us/upcall\)", show(switch))
    assert "Histograms" not in show(switch, "-nh")
    # The same for Prometheus.
    text = switch.appctl("weir/metrics")
    assert re.search(r'^weir_worker_receive_batch_packets_bucket\{worker="0",le="1"\} 5$', text, re.M), text
    assert re.search(r'^weir_worker_transmit_batch_packets_sum\{worker="0"\} 5$', text, re.M), text
    assert re.search(r'^weir_worker_upcall_cycles_bucket\{worker="0",le="\+Inf"\} 1$', text, re.M), text
    checked = promtool("check", "metrics", text=text)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # A new measurement.
    switch.appctl("dpif-netdev/pmd-stats-clear")
    receive(switch, 1)
    until(lambda: sum(histograms(switch)["pkts/batch"].values()) == 1)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-perf-metrics=false")
    assert "Histograms" not in show(switch)


def test_the_latest_turns_and_milliseconds_are_shown(switch):  # noqa: F811
    metrics_on(switch)
    # An idle worker sleeps: packets make turns in several milliseconds.
    receive(switch, 5)
    text = show(switch, "-nh", "-it", "3", "-ms", "2")
    turns, milliseconds = re.findall(r"^   (?:iter|ms) .*\n((?:   \d.*\n)*)", text, re.M)
    numbers = [int(line.split()[0]) for line in turns.splitlines()]
    assert numbers == list(range(numbers[0], numbers[0] - 3, -1)), "the latest first"
    assert all(len(line.split()) == 8 for line in turns.splitlines())
    assert 1 <= len(milliseconds.splitlines()) <= 2
    assert all(len(line.split()) == 9 for line in milliseconds.splitlines())
    assert len(show(switch, "-nh", "-it", "5000").splitlines()) < 1100, "as many as there are"


def test_suspicious_turns_are_logged(switch):  # noqa: F811
    refused = switch.refusal("appctl", "dpif-netdev/pmd-perf-log-set", "on", "-b")
    assert "Usage: ovs-appctl dpif-netdev/pmd-perf-log-set [on|off]" in refused
    metrics_on(switch)
    switch.expect("Suspicious iteration")
    switch.expect("Neighborhood of suspicious")
    switch.expect("excessive rate")
    switch.appctl("dpif-netdev/pmd-perf-log-set", "on", "-us", "1000000")
    assert "pmd-perf-log-set: on, before=5, after=5, extend=false, us_thr=1000000, q_thr=128" in switch.log()
    receive(switch, 3)
    assert "Suspicious" not in switch.log(), "no turn takes a second"
    # Each turn takes longer than nothing.
    switch.appctl("dpif-netdev/pmd-perf-log-set", "-us", "0", "-b", "2", "-a", "3")
    until(lambda: "Neighborhood of suspicious iteration:" in switch.log(), what="the log")
    switch.appctl("dpif-netdev/pmd-perf-log-set", "off")
    log = switch.log()
    number = int(re.search(r"\|pmd_perf\|WARN\|Suspicious iteration \(Excessive total cycles\): iter=(\d+) duration=\d+ us",
                           log)[1])
    around = re.search(r"Neighborhood of suspicious iteration:\n +iter .*\n((?: +\d.*\n)*)", log)[1]
    numbers = [int(line.split()[0]) for line in around.splitlines()]
    first = max(number - 2, 1)
    assert numbers == list(range(number + 3, first - 1, -1))
