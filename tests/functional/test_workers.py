"""Workers, sleep, limits and receive queues that change while traffic flows."""

import json
import os
import re
from pathlib import Path

import pytest
from conftest import WEIR, until
from lib.daemon import config, dummy_bridge
from lib.net import run
from lib.pcap import frames
from lib.traffic import Traffic

def workers(w):
    return sorted(str(worker["core"]) for worker in w.json("stats")["workers"])


def threads(daemon, kind):
    """Names of the daemon's threads that begin with `kind`."""
    names = [comm.read_text().strip() for comm in Path(f"/proc/{daemon.pid()}/task").glob("*/comm")]
    return sorted(name for name in names if name.startswith(kind))


def test_a_reload_changes_workers_under_traffic(weir, net):
    hosts = [net.host("10.0.0.1/24", queues=2), net.host("10.0.0.2/24", queues=2)]
    ports = config([(h.port, "afpacket", 'options = { n_rxq = "2" }') for h in hosts])
    w = weir("[workers]\ncores = [0]\n" + ports)
    assert hosts[0].ping("10.0.0.2") == 3
    traffic = Traffic(*hosts, "10.0.0.2")
    for settings, cores in [("cores = [0, 1]", ["0", "1"]), ("cores = [1]\nsleep-max-us = 0", ["1"]),
                            ("cores = [0]\nsleep-max-us = 100\nrx-assign = 'roundrobin'", ["0"]),
                            ("tx-flush-interval-us = 50", ["None"]),
                            ("cores = [0, 1]\n[datapath]\nflow-limit = 1000\nmax-idle-ms = 900", ["0", "1"])]:
        w.configure(f"[workers]\n{settings}\n{ports}")
        w.cli("reload")
        traffic.goes_on()  # some meets these settings
        assert workers(w) == cores
        queues = [queue for worker in w.json("stats")["workers"] for queue in worker["queues"]]
        assert sorted(queues) == sorted(f"{h.port}/{n}" for h in hosts for n in (0, 1))
    traffic.check()
    stats = w.json("stats")
    packets = stats["ended"]["packets"] + sum(worker["packets"] for worker in stats["workers"])
    received = sum(port["statistics"]["rx_packets"] for port in w.json("ports")["ports"])
    assert packets == received, "what ended workers counted is kept"


def test_a_core_that_cannot_be_had_changes_nothing(weir):
    w = weir("[workers]\ncores = [0]\n")
    w.configure("[workers]\ncores = [0, 4000]\n")
    r = w.cli("reload", check=False)
    assert r.returncode and "core 4000" in r.stderr
    assert workers(w) == ["0"]


def test_the_database_changes_workers_under_traffic(ovs, net):  # noqa: F811
    hosts = [net.host("10.0.0.1/24"), net.host("10.0.0.2/24")]
    ovs.start()
    dummy_bridge(ovs)
    for host in hosts:
        ovs.vsctl("add-port", "br0", host.port)
    assert hosts[0].ping("10.0.0.2") == 3
    traffic = Traffic(*hosts, "10.0.0.2")
    cores = lambda: [line.split()[5].rstrip(":") for line in ovs.appctl("dpif-netdev/pmd-rxq-show").splitlines()
                     if line.startswith("pmd thread")]
    for mask, expected in [("1", ["0"]), ("3", ["0", "1"]), ("2", ["1"]), ("0x3", ["0", "1"])]:
        ovs.vsctl("set", "open", ".", f"other_config:pmd-cpu-mask={mask}")
        assert cores() == expected
        traffic.goes_on()
    for key in ["pmd-sleep-max=200", "flow-limit=5000", "max-idle=2000", "max-revalidator=300", "tx-flush-interval=20",
                "pmd-rxq-assign=group", "pmd-rxq-isolate=false"]:
        ovs.vsctl("set", "open", ".", f"other_config:{key}")
    ovs.vsctl("clear", "open", ".", "other_config")
    traffic.check()


def test_the_flow_limit_is_obeyed_at_once(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "tcp,tp_dst=80,actions=drop")

    def flows(limit):
        ovs.vsctl("set", "open", ".", f"other_config:flow-limit={limit}")
        ovs.appctl("revalidator/purge")
        for n in range(8):
            ovs.appctl("netdev-dummy/receive", "p1", f"02000000010002000000{n:04x}88b5" + "00" * 46)
        return ovs.appctl("dpctl/dump-flows").count("actions:")

    assert flows(3) == 3
    assert flows(1000) == 8
    assert flows(5) == 5


def test_revalidators_come_and_go_and_count_every_packet(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "priority=9,actions=move:NXM_OF_ETH_SRC[]->OXM_OF_METADATA[0..47]")
    packets = [f"02000000010002000000{n:04x}88b5" + "00" * 46 for n in range(1000)]

    def receive():
        for at in range(0, len(packets), 250):  # no more than the slow path has room for
            ovs.appctl("netdev-dummy/receive", "p1", *packets[at:at + 250])

    def keys():
        ovs.appctl("revalidator/wait")
        lines = ovs.appctl("upcall/show").splitlines()
        return [int(line.split()[-1].rstrip(")")) for line in lines if "(keys " in line]

    receive()
    assert (keys(), threads(ovs, "revalidator")) == ([1000], ["revalidator"])
    for count in [3, 2, 1]:
        ovs.vsctl("set", "open", ".", f"other_config:n-revalidator-threads={count}")
        receive()
        assert (len(keys()), sum(keys())) == (count, 1000)
        assert threads(ovs, "revalidator") == ["revalidator"] + [f"revalidator{n}" for n in range(2, count + 1)]
    assert "revalidators:1 " in ovs.appctl("memory/show")
    assert "n_packets=4000," in ovs.ofctl("dump-flows", "br0")


def test_handlers_come_and_go_and_lose_no_packet(ovs, net):  # noqa: F811
    hosts = [net.host("10.0.0.1/24"), net.host("10.0.0.2/24")]
    ovs.start()
    dummy_bridge(ovs)
    # Two workers, one for each port: with two handlers, each worker has its own.
    ovs.vsctl("set", "open", ".", "other_config:pmd-cpu-mask=3")
    for host in hosts:
        ovs.vsctl("add-port", "br0", host.port)
    # Each datagram is of a connection of its own, and each connection has a flow of its own.
    ovs.ofctl("add-flow", "br0", "priority=9,udp,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],NORMAL")
    assert hosts[0].ping("10.0.0.2") == 3
    assert threads(ovs, "handler") == ["handler0"]
    both_ways = [Traffic(*hosts, "10.0.0.2", new_connections=True),
                 Traffic(*hosts[::-1], "10.0.0.1", new_connections=True)]

    def handlers(count):
        for traffic in both_ways:
            traffic.goes_on()
        assert threads(ovs, "handler") == [f"handler{n}" for n in range(count)]
        assert f"handlers:{count} " in ovs.appctl("memory/show")

    # No more than there can be workers: one on each core, and one that is not pinned.
    most = len(os.sched_getaffinity(0)) + 1
    for count in [2, 1, 3, 2, 64]:
        ovs.vsctl("set", "open", ".", f"other_config:n-handler-threads={count}")
        handlers(min(count, most))
    ovs.vsctl("remove", "open", ".", "other_config", "n-handler-threads")
    handlers(1)
    sent = sum(traffic.check(in_order=False) for traffic in both_ways)
    hit, missed, lost = map(int, re.search(r"hit:(\d+) missed:(\d+) lost:(\d+)", ovs.appctl("dpctl/show")).groups())
    assert missed >= sent and lost == 0


def test_the_memory_of_flows_is_bounded(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    packets = [f"02000000010002000000{n:04x}88b5" + "00" * 46 for n in range(2000)]

    def flows():
        for at in range(0, len(packets), 250):  # no more than the slow path has room for
            ovs.appctl("netdev-dummy/receive", "p1", *packets[at:at + 250])
        return ovs.appctl("dpctl/dump-flows").count("actions:")

    ovs.vsctl("set", "open", ".", "other_config:megaflow-memory-limit=1")
    # A flow takes about 900 bytes.
    assert 500 < flows() < 1500
    ovs.vsctl("remove", "open", ".", "other_config", "megaflow-memory-limit")
    assert flows() == 2000


def test_the_masks_of_a_port_are_bounded(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    # Addresses that leave the prefix of a rule at another bit each: as many masks.
    ovs.ofctl("add-flow", "br0", "priority=9,udp,nw_dst=198.18.0.1,actions=drop")
    header = "020000000100020000000001" "0800" "4500002e00004000401100000a000001"
    packets = [header + f"{0xc6120001 ^ 1 << bit:08x}" + "00010002001a0000" + "00" * 18 for bit in range(32)]

    def masks(limit):
        ovs.vsctl("set", "open", ".", f"other_config:megaflow-mask-limit={limit}")
        ovs.appctl("revalidator/purge")
        for packet in packets:
            ovs.appctl("netdev-dummy/receive", "p1", packet)
        stats = run(WEIR, "--socket", ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl", "stats", "--json", env=ovs.env)
        return json.loads(stats.stdout)["masks"]

    assert masks(64) == 32
    # Eight more while they are replaced by wider ones.
    assert masks(4) <= 12
    assert masks(64) == 32


def test_the_exact_match_cache_can_be_switched_off(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    # Two masks, so that there is something to remember.
    ovs.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=7,actions=output:2")
    frame = lambda kind: "020000000100020000000001" + kind + "00" * 46

    def hits():
        ovs.appctl("dpif-netdev/pmd-stats-clear")
        for _ in range(4):
            ovs.appctl("netdev-dummy/receive", "p1", frame("88b5"), frame("88b6"))
        shown = ovs.appctl("dpif-netdev/pmd-stats-show")
        return sum(int(line.split(":")[1]) for line in shown.splitlines() if line.startswith("  emc hits:"))

    ipv4 = "02000000010002000000000108004500001c00000000401100000102030401020305000100070008" + "0000"
    ovs.appctl("netdev-dummy/receive", "p1", ipv4)
    assert hits() > 0
    ovs.vsctl("set", "open", ".", "other_config:emc-insert-inv-prob=0")
    assert hits() == 0
    ovs.vsctl("set", "open", ".", "other_config:emc-insert-inv-prob=1")
    assert hits() > 0


def test_simple_match_is_used_exactly_while_all_flows_qualify(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=output:2")
    udp = "02000000010002000000000108004500001c00000000401100000102030401020305000100070008" + "0000"
    tagged = udp[:24] + "81000005" + udp[24:]
    other = "020000000100020000000001" + "88b5" + "00" * 46

    def hits():
        for _ in range(2):
            ovs.appctl("netdev-dummy/receive", "p1", udp, tagged, other)
        ovs.appctl("dpif-netdev/pmd-stats-clear")
        for _ in range(3):
            ovs.appctl("netdev-dummy/receive", "p1", udp, tagged, other)
        shown = ovs.appctl("dpif-netdev/pmd-stats-show")
        count = lambda what: sum(int(line.split(":")[1]) for line in shown.splitlines() if line.startswith(f"  {what}:"))
        return count("simple match hits"), count("emc hits") + count("megaflow hits")

    assert hits() == (9, 0)
    # A rule that looks at more, for the same port: no packet of it is matched simply any more.
    ovs.ofctl("add-flow", "br0", "priority=40000,in_port=1,udp,nw_src=9.9.9.9,actions=drop")
    ovs.appctl("revalidator/purge")
    assert hits() == (0, 9)
    ovs.ofctl("del-flows", "br0", "udp,nw_src=9.9.9.9")
    ovs.appctl("revalidator/purge")
    assert hits() == (9, 0)
    # VLAN ids may be matched, priorities not.
    ovs.ofctl("add-flow", "br0", "priority=40000,in_port=1,dl_vlan=5,actions=drop")
    ovs.appctl("revalidator/purge")
    assert hits() == (9, 0)
    ovs.ofctl("add-flow", "br0", "priority=50000,in_port=1,dl_vlan=5,dl_vlan_pcp=3,actions=drop")
    ovs.appctl("revalidator/purge")
    assert hits() == (0, 9)


def test_the_simple_match_has_the_rules_that_it_was_made_for(ovs):  # noqa: F811
    """A drop by VLAN id, and a tag that is pushed; what matches nothing goes up from the first look-up."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3", "p4")
    capture = ovs.dir / "p3.pcap"
    ovs.vsctl("set", "interface", "p3", f"options:tx_pcap={capture}")
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-flow", "br0", "in_port=3,vlan_tci=0x1234/0x1fff,actions=drop")
    ovs.ofctl("-OOpenFlow13", "add-flow", "br0", "in_port=4,actions=push_vlan:0x8100,set_field:4196->vlan_vid,output:3")
    udp = "02000000010002000000000108004500001c00000000401100000102030401020305000100070008" + "0000"
    # VLAN 0x234, with one priority and with another.
    tagged = [udp[:24] + f"8100{tci}" + udp[24:] for tci in ("0234", "6234")]

    def counted(port, *sent):
        """Simple hits, other hits, misses, lost."""
        ovs.appctl("dpif-netdev/pmd-stats-clear")
        ovs.appctl("netdev-dummy/receive", port, *sent)
        shown = ovs.appctl("dpif-netdev/pmd-stats-show")
        count = lambda what: sum(int(line.split(":")[1]) for line in shown.splitlines() if line.startswith(f"  {what}:"))
        return (count("simple match hits"), count("emc hits") + count("megaflow hits"), count("miss with success upcall"),
                count("miss with failed upcall"))

    assert counted("p3", tagged[0]) == (0, 0, 1, 0), "the first goes up"
    assert counted("p3", *tagged, *tagged) == (4, 0, 0, 0), "whatever the priority, without looking at it"
    assert counted("p4", udp) == (0, 0, 1, 0)
    assert counted("p4", udp, udp) == (2, 0, 0, 0)
    until(lambda: len(frames(capture)) == 3, what="three frames with a tag")
    assert frames(capture) == [udp[:24] + "81000064" + udp[24:]] * 3
    # The ports are simple and have no flow for these: nothing but a mark is looked for before they go up.
    assert counted("p3", udp) == (0, 0, 1, 0)
    assert counted("p4", tagged[0]) == (0, 0, 1, 0)


def test_simple_match_is_left_and_taken_again_without_a_gap(ovs):  # noqa: F811
    """Rules come and go that look at more, under traffic: every packet finds its way, in order."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    capture = ovs.dir / "p2.pcap"
    ovs.vsctl("set", "interface", "p2", f"options:tx_pcap={capture}")
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=output:2")
    # One connection, in which order counts; the IP header has a number.
    udp = lambda n: f"02000000010002000000000108004500001c00{n:02x}00004011000001020304010203050001000700080000"
    sent, simple, other = 0, 0, 0
    for turn in range(16):
        if turn % 4 == 1:
            ovs.ofctl("add-flow", "br0", "priority=40000,in_port=1,udp,nw_src=9.9.9.9,actions=drop")
        if turn % 4 == 3:
            ovs.ofctl("del-flows", "br0", "udp,nw_src=9.9.9.9")
            # As in OVS, a flow that matches more than it has to stays as it is: let it go.
            ovs.appctl("revalidator/purge")
        ovs.appctl("dpif-netdev/pmd-stats-clear")
        ovs.appctl("netdev-dummy/receive", "p1", *(udp(n) for n in range(40)))
        sent += 40
        shown = ovs.appctl("dpif-netdev/pmd-stats-show")
        count = lambda what: sum(int(line.split(":")[1]) for line in shown.splitlines() if line.startswith(f"  {what}:"))
        simple += count("simple match hits")
        other += count("emc hits") + count("megaflow hits")
        ovs.appctl("revalidator/wait")
    until(lambda: len(frames(capture)) >= sent, what="all frames")
    assert [int(frame[36:40], 16) for frame in frames(capture)] == [n for _ in range(16) for n in range(40)]
    assert simple >= 100 and other >= 100, (simple, other)


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two cores")
def test_queues_are_assigned_as_told(ovs):  # noqa: F811
    """pmd-rxq-assign, pmd-rxq-affinity and pmd-rxq-isolate, by what pmd-rxq-show shows."""
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "options:n_rxq=4", "--",
              "set", "open", ".", "other_config:pmd-cpu-mask=3")

    def shown():
        """The core of each queue, and the isolated cores."""
        cores, isolated = {}, []
        for line in ovs.appctl("dpif-netdev/pmd-rxq-show").splitlines():
            if found := re.match(r"pmd thread numa_id \d+ core_id (\d+)", line):
                core = int(found[1])
            elif "isolated : true" in line:
                isolated.append(core)
            elif found := re.search(r"port: p1 +queue-id: +(\d)", line):
                cores[int(found[1])] = core
        return [cores[queue] for queue in sorted(cores)], isolated

    assign = lambda **to: ovs.vsctl("set", "open", ".", *(f"other_config:pmd-rxq-{k}={v}" for k, v in to.items()))
    until(lambda: len(set(shown()[0])) == 2, what="two workers")
    assign(assign="roundrobin")
    ovs.appctl("dpif-netdev/pmd-rxq-rebalance")
    assert shown() == ([0, 1, 0, 1], [])
    assign(assign="cycles")
    ovs.appctl("dpif-netdev/pmd-rxq-rebalance")
    assert shown() == ([0, 1, 1, 0], [])
    assign(assign="group")
    ovs.appctl("dpif-netdev/pmd-rxq-rebalance")
    assert shown() == ([0, 1, 0, 1], [])
    ovs.vsctl("set", "Interface", "p1", "other_config:pmd-rxq-affinity=2:1")
    assert shown() == ([0, 0, 1, 0], [1]), "the worker that a queue is pinned to has no other"
    assign(isolate="false")
    cores, isolated = shown()
    assert cores[2] == 1 and sorted(cores) == [0, 0, 1, 1] and isolated == []
    ovs.expect("pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group")
    assign(assign="cycles")
    assert shown() == ([0, 0, 1, 0], [1]), "the other policies isolate, as in OVS"


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two cores")
def test_a_worker_for_whose_thread_there_is_no_room_changes_nothing(ovs):  # noqa: F811
    """The limit is of address space, since one of processes does not bind root: a thread's stack does not fit below it."""
    ovs.expect("cannot start .*worker")
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1", "p2")
    pid, shown = ovs.pid(), lambda: ovs.appctl("dpif-netdev/pmd-rxq-show").splitlines()[0]
    before = shown()
    in_use = int(re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10
    run("prlimit", f"--pid={pid}", f"--as={in_use + (1 << 20)}:unlimited")
    ovs.vsctl("--no-wait", "set", "open", ".", "other_config:pmd-cpu-mask=3")
    until(lambda: re.search("cannot start .*worker", ovs.log()), what="the error")
    assert shown() == before
    ovs.appctl("netdev-dummy/receive", "p1", "020000000100" "020000000200" "88b5" + "00" * 46)
    assert "packets received: 1\n" in ovs.appctl("dpif-netdev/pmd-stats-show"), "the worker that there was goes on"
    run("prlimit", f"--pid={pid}", "--as=unlimited:unlimited")
    ovs.vsctl("set", "open", ".", "other_config:pmd-cpu-mask=1")
    ovs.vsctl("set", "open", ".", "other_config:pmd-cpu-mask=3")
    cores = re.findall(r"pmd thread numa_id \d+ core_id (\d+)", ovs.appctl("dpif-netdev/pmd-rxq-show"))
    assert cores == ["0", "1"]
