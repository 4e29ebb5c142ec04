"""Cores and NUMA nodes that are made up, `--dummy-numa`: where receive queues go, and what is shown and logged of it."""

import re

from conftest import until
from lib.daemon import dummy_bridge

FRAME = "020000000100" "020000000200" "88b5" + "00" * 46


def shown(ovs):
    """Queue, NUMA node and core of each line of pmd-rxq-show."""
    rows = []
    for line in ovs.appctl("dpif-netdev/pmd-rxq-show").splitlines():
        if thread := re.match(r"pmd thread numa_id (\d+) core_id (\d+):", line):
            place = tuple(map(int, thread.groups()))
        elif queue := re.match(r"  port: (\S+) +queue-id: +(\d+) \(enabled\)   pmd usage: ", line):
            rows.append((queue[1], int(queue[2]), *place))
    return sorted(rows)


def said(ovs, words, after=0):
    until(lambda: words in ovs.log()[after:], what=words)


def test_queues_stay_at_their_numa_node(ovs):
    ovs.start("--enable-dummy", "--dummy-numa", "0,0,1,8")
    said(ovs, "Discovered 2 CPU cores on NUMA node 0")
    said(ovs, "Discovered 3 NUMA nodes and 4 CPU cores")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "options:n_rxq=2", "options:numa_id=8", "--",
              "set", "open", ".", "other_config:pmd-cpu-mask=f")
    said(ovs, "There are 2 pmd threads on numa node 0")
    said(ovs, "There are 1 pmd threads on numa node 8")
    assert shown(ovs) == [("p1", 0, 8, 3), ("p1", 1, 8, 3)], "ports that are not in poll mode are not shown"
    assert "p1 1/1: (dummy-pmd: configured_rx_queues=2, " in ovs.appctl("dpif/show")

    ovs.vsctl("set", "Interface", "p1", "options:numa_id=1")
    assert shown(ovs) == [("p1", 0, 1, 2), ("p1", 1, 1, 2)]
    # A pin is stronger, and what is not pinned goes where it can.
    ovs.vsctl("set", "Interface", "p1", "other_config:pmd-rxq-affinity=0:2")
    at = len(ovs.log())
    ovs.vsctl("set", "open", ".", "other_config:pmd-rxq-assign=roundrobin")
    said(ovs, "Performing pmd to rx queue assignment using roundrobin algorithm.", at)
    said(ovs, "There's no available (non-isolated) pmd thread on numa node 1. Port 'p1' rx queue 1 will be assigned", at)
    assert shown(ovs)[0] == ("p1", 0, 1, 2) and shown(ovs)[1][2:] != (1, 2)

    # Workers whose cores do not exist do forward.
    for queue in "0", "1":
        ovs.appctl("netdev-dummy/receive", "p1", "--qid", queue, FRAME)
    assert "n_packets=2" in ovs.ofctl("dump-flows", "br0")


def test_a_core_that_is_not_there_is_named(ovs):
    ovs.expect("pmd-cpu-mask: cores .2. do not exist")
    ovs.expect("cannot be pinned with port 'p1' rx queue 0")
    ovs.start("--enable-dummy", "--dummy-numa=0,0")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "other_config:pmd-rxq-affinity=0:2", "--",
              "set", "open", ".", "other_config:pmd-cpu-mask=7")
    said(ovs, "cores {2} do not exist")
    said(ovs, "Core  2 cannot be pinned with port 'p1' rx queue 0.")
    ovs.vsctl("set", "open", ".", "other_config:pmd-rxq-assign=group")
    said(ovs, "assignment using group algorithm")
    assert ovs.log().count("cannot be pinned with") == 1, "once is enough"
    assert len(shown(ovs)) == 1


def test_there_is_one_implementation_of_each_function(ovs):
    ovs.expect("implementation|miniflow extract parser not changed")
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    one = ovs.appctl("dpif-netdev/dpif-impl-set", "dpif_scalar")
    assert one == "DPIF implementation set to dpif_scalar.\n"
    assert ovs.appctl("dpif-netdev/dpif-impl-get").endswith("  dpif_scalar (pmds: 0)\n")
    assert "  scalar (available: True pmds: 0)\n" in ovs.appctl("dpif-netdev/miniflow-parser-get")
    ovs.appctl("dpif-netdev/subtable-lookup-prio-set", "generic", "7")
    assert "generic (Use count: 0, Priority: 7)" in ovs.appctl("dpif-netdev/subtable-lookup-prio-get")
    assert "scalar (available: Yes, active: Yes)" in ovs.appctl("odp-execute/action-impl-show")
    for refused, why in [
        (("dpif-netdev/dpif-impl-set", "dpif_avx512"), "Unknown DPIF implementation dpif_avx512"),
        (("dpif-netdev/miniflow-parser-set", "-pmd", "9", "scalar"), "PMD thread 9 not in use"),
        (("dpif-netdev/miniflow-parser-set", "study"), "unknown miniflow extract implementation study"),
        (("dpif-netdev/subtable-lookup-prio-set", "generic", "256"), "use integer in range 0-255"),
        (("odp-execute/action-impl-set", "avx512"), "unknown action implementation, avx512, specified!"),
    ]:
        assert why in ovs.refusal("appctl", *refused), refused


def test_a_dummy_local_port_has_options(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    local = lambda: next(line for line in ovs.appctl("dpif/show").splitlines() if "65534" in line)
    assert local().endswith("(dummy-internal)")
    ovs.vsctl("set", "Interface", "br0", "options:ifindex=1010")
    assert local().endswith("(dummy-internal: ifindex=1010)")
    ovs.vsctl("clear", "Interface", "br0", "options")
    assert local().endswith("(dummy-internal)")


def test_flows_are_logged_whole_or_by_identifier(ovs):
    ovs.start("--enable-dummy", "-vdpif:dbg")
    dummy_bridge(ovs, "p1")
    ovs.appctl("netdev-dummy/receive", "p1", FRAME)
    ovs.appctl("revalidator/wait")
    said(ovs, "flow_dump ufid:")
    assert "ufid enabled : true" in ovs.appctl("upcall/show")
    assert ovs.appctl("upcall/disable-ufid") == "Datapath dumping tersely using UFID disabled\n"
    assert "ufid enabled : false" in ovs.appctl("upcall/show")
    at = len(ovs.log())
    ovs.appctl("netdev-dummy/receive", "p1", FRAME)
    said(ovs, "flow_dump skb_priority(0/0)", at)
    ovs.appctl("upcall/enable-ufid")
    assert "ufid enabled : true" in ovs.appctl("upcall/show")
