"""OpenFlow of every version through Debian's ovs-ofctl: flows, ports, queues, tables, groups, meters, bundles."""

import re
import socket
import struct
import time

import pytest
from lib.net import run
from lib.wait import until

VERSIONS = ["OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15"]


@pytest.fixture
def ovs(ovs):
    """A daemon with br0, which has a dummy port."""
    ovs.start("--enable-dummy=override")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
            "--", "add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy", "ofport_request=1")
    return ovs


def refusal(ovs, *args, **kw):
    """What ovs-ofctl says when it has to fail."""
    return ovs.refusal("ofctl", *args, **kw)


def flows(ovs, version="OpenFlow10"):
    text = ovs.ofctl("-O", version, "--no-stats", "dump-flows", "br0")
    return sorted(line.strip() for line in text.splitlines() if "actions=" in line)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flow_is_the_same_in_every_version(ovs, version):
    ovs.ofctl("-O", version, "add-flow", "br0", "priority=5,tcp,in_port=1,tp_dst=80,actions=output:2")
    for other in VERSIONS:
        [flow] = flows(ovs, other)
        assert flow.endswith("priority=5,tcp,in_port=1,tp_dst=80 actions=output:2"), other
    ovs.ofctl("-O", version, "--strict", "del-flows", "br0", "priority=5,tcp,in_port=1,tp_dst=80")
    assert flows(ovs) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_ports_and_queues_tell_themselves(ovs, version):
    assert "1(p1)" in ovs.ofctl("-O", version, "dump-ports-desc", "br0")
    assert re.search(r'port +"?p1"?|port +1:', ovs.ofctl("-O", version, "dump-ports", "br0", "1"))
    assert "queue 0" in ovs.ofctl("-O", version, "queue-get-config", "br0", "1")
    assert "1 queues" in ovs.ofctl("-O", version, "queue-stats", "br0", "1", "0")
    ovs.ofctl("-O", version, "mod-port", "br0", "p1", "no-forward")
    assert "NO_FWD" in ovs.ofctl("-O", version, "dump-ports-desc", "br0")


def test_a_field_is_set_in_the_way_of_each_version(ovs):
    ovs.ofctl("-O", "OpenFlow11", "add-flow", "br0", "ip,actions=mod_nw_ecn:2")
    assert flows(ovs, "OpenFlow10") == ["ip actions=load:0x2->NXM_NX_IP_ECN[]"]
    assert flows(ovs, "OpenFlow11") == ["ip actions=mod_nw_ecn:2"]
    assert flows(ovs, "OpenFlow12") == ["ip actions=set_field:2->nw_ecn"]


def test_a_bundle_takes_effect_whole_or_not_at_all(ovs):
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=11")
    bad = "delete\nadd in_port=2,actions=12\nadd in_port=3,actions=group:9\n"
    said = refusal(ovs, "-O", "OpenFlow14", "--bundle", "add-flows", "br0", "-", input=bad)
    assert "OFPBAC_BAD_OUT_GROUP" in said and "OFPBFC_MSG_FAILED" in said
    assert flows(ovs) == ["in_port=1 actions=output:11"]
    for version in VERSIONS[3:]:
        good = "delete\nadd in_port=2,actions=12\n"
        run("ovs-ofctl", "-O", version, "--bundle", "add-flows", "br0", "-", env=ovs.env, input=good)
        assert flows(ovs) == ["in_port=2 actions=output:12"]


def test_groups_are_kept_and_checked(ovs):
    group = "group_id=7,type=select,bucket=weight:2,actions=output:1,bucket=weight:1,actions=output:2"
    ovs.ofctl("-O", "OpenFlow13", "add-group", "br0", group)
    for version in ["OpenFlow11", "OpenFlow13", "OpenFlow15"]:
        described = ovs.ofctl("-O", version, "dump-groups", "br0")
        assert "group_id=7,type=select" in described and described.count("bucket=") == 2, version
    assert "GROUP_EXISTS" in refusal(ovs, "-O", "OpenFlow13", "add-group", "br0", group)
    ovs.ofctl("-O", "OpenFlow13", "add-flow", "br0", "in_port=1,actions=group:7")
    assert "ref_count=1" in ovs.ofctl("-O", "OpenFlow13", "dump-group-stats", "br0")
    ovs.ofctl("-O", "OpenFlow15", "insert-buckets", "br0",
              "group_id=7,command_bucket_id=last,bucket=bucket_id=9,weight:1,actions=output:3")
    assert ovs.ofctl("-O", "OpenFlow15", "dump-groups", "br0").count("bucket=") == 3
    ovs.ofctl("-O", "OpenFlow13", "del-groups", "br0", "group_id=7")
    assert flows(ovs) == [], "flows go with their group"


def test_meters_are_kept_and_checked(ovs):
    assert "METER" in refusal(ovs, "-O", "OpenFlow13", "add-flow", "br0", "in_port=1,actions=meter:1,output:2")
    ovs.ofctl("-O", "OpenFlow13", "add-meter", "br0", "meter=1,kbps,burst,band=type=drop,rate=1000,burst_size=100")
    ovs.ofctl("-O", "OpenFlow13", "add-flow", "br0", "in_port=1,actions=meter:1,output:2")
    assert "rate=1000" in ovs.ofctl("-O", "OpenFlow13", "dump-meters", "br0")
    assert "meter:1 flow_count:1" in ovs.ofctl("-O", "OpenFlow15", "meter-stats", "br0")
    assert flows(ovs, "OpenFlow15") == flows(ovs, "OpenFlow13")
    ovs.ofctl("-O", "OpenFlow13", "del-meters", "br0")
    assert flows(ovs) == []


def test_tables_are_configured_in_the_database_and_by_controllers(ovs):
    ovs.vsctl("--id=@t", "create", "Flow_Table", "name=small", "flow-limit=2", "overflow-policy=evict", "--",
              "set", "bridge", "br0", "flow_tables:0=@t")
    assert "flow_tables has no effect" not in ovs.log()
    tables = ovs.ofctl("dump-tables", "br0")
    assert 'table 0 ("small")' in tables and "max_entries=2\n" in tables
    for port, idle in [(1, 300), (2, 100), (3, 200)]:
        ovs.ofctl("add-flow", "br0", f"idle_timeout={idle},in_port={port},actions=drop")
    assert [f.split("in_port=")[1][0] for f in flows(ovs)] == ["3", "1"]
    ovs.ofctl("-O", "OpenFlow14", "mod-table", "br0", "1", "evict")
    described = ovs.ofctl("-O", "OpenFlow14", "dump-table-desc", "br0")
    assert re.search(r"table 1:\s+eviction=on", described)
    assert re.search(r"table 0[^:]*:\s+eviction=off", described)


def test_a_miss_goes_where_the_table_says(ovs):
    ovs.ofctl("add-flow", "br0", "table=1,in_port=1,actions=output:1,in_port")
    def actions():
        return ovs.appctl("ofproto/trace", "br0", "in_port=1").splitlines()[-1]
    assert actions() == "Datapath actions: drop"
    ovs.ofctl("-O", "OpenFlow11", "mod-table", "br0", "0", "continue")
    assert actions() == "Datapath actions: 1"
    ovs.ofctl("-O", "OpenFlow11", "mod-table", "br0", "0", "drop")
    assert actions() == "Datapath actions: drop"


def test_controllers_name_tables_that_the_operator_has_not(ovs):
    for version in ["OpenFlow13", "OpenFlow15"]:
        ovs.ofctl("-O", version, "mod-table", "br0", "1", f"name:{version}")
        assert f'table 1 ("{version}")' in ovs.ofctl("-O", version, "dump-table-features", "br0")
    ovs.vsctl("--id=@t", "create", "Flow_Table", "name=mine", "--", "set", "bridge", "br0", "flow_tables:1=@t")
    assert "OFPTFFC_EPERM" in refusal(ovs, "-O", "OpenFlow13", "mod-table", "br0", "1", "name:theirs")


def message(kind, xid, body=b""):
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body


def test_a_dump_to_a_peer_that_does_not_read_holds_up_nobody(ovs, tmp_path):
    n = 20_000
    (tmp_path / "flows").write_text("".join(f"table=1,reg0={i},actions=drop\n" for i in range(n)))
    ovs.ofctl("add-flows", "br0", f"{tmp_path}/flows")
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect(str(ovs.dir / "br0.mgmt"))
        s.sendall(message(0, 1))
        # All flows, of any table, port and group.
        request = struct.pack("!HHI", 1, 0, 0) + struct.pack("!B3xII4xQQ", 255, 0xffffffff, 0xffffffff, 0, 0)
        s.sendall(message(18, 2, request + struct.pack("!HHI", 1, 4, 0)))
        # It has begun, and is stuck: the answer has three megabytes, a socket's buffer a part of one.
        until(lambda: s.recv(1, socket.MSG_PEEK), what="the beginning of the answer")
        ovs.ofctl("add-flow", "br0", "table=2,actions=drop")
        ovs.ofctl("del-flows", "br0", "table=1")
        assert flows(ovs) == ["table=2, actions=drop"]
        stream, seen, more = s.makefile("rb"), 0, True
        while more:
            _, kind, length, xid = struct.unpack("!BBHI", stream.read(8))
            body = stream.read(length - 8)
            if kind != 19:
                continue
            more, at = struct.unpack("!H", body[2:4])[0] & 1, 8
            while at < len(body):
                at += struct.unpack("!H", body[at:at + 2])[0]
                seen += 1
    assert 0 < seen < n, "the flows that were there when their part was made"


def test_learn_keeps_to_its_limit(ovs):
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=learn(table=1,cookie=7,limit=2,result_dst=reg0[0],"
              "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),resubmit(,2)")
    ovs.ofctl("add-flow", "br0", "table=2,reg0=1,actions=drop")
    ovs.ofctl("add-flow", "br0", "table=2,reg0=0,actions=drop")
    for i in range(1, 5):
        ovs.appctl("netdev-dummy/receive", "p1",
                   f"in_port(1),eth(src=50:54:00:00:00:0{i},dst=50:54:00:00:00:ff),eth_type(0x1234)")
    count = lambda match: int(re.search(r"n_packets=(\d+)", ovs.ofctl("dump-flows", "br0", match))[1])
    until(lambda: (count("table=2,reg0=1"), count("table=2,reg0=0")) == (2, 2), what="two learnt, two refused")
    assert ovs.ofctl("dump-flows", "br0", "table=1").count("cookie=0x7") == 2


@pytest.mark.parametrize("sent", ["netdev-dummy/receive p1 {}", "ofproto/trace ovs-dummy {} -generate"], ids=["received", "generated"])
def test_packets_renew_what_they_teach(ovs, sent):
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=learn(table=1,hard_timeout=3,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])")

    def send(n):
        ovs.appctl(*sent.format(f"in_port(1),eth(src=50:54:00:00:00:0{n},dst=50:54:00:00:00:ff),eth_type(0x1234)").split())

    learnt = lambda: dict(re.findall(r"duration=([\d.]+)s, table=1, .*dl_dst=50:54:00:00:00:(0\d)", ovs.ofctl("dump-flows", "br0")))
    # The first host goes on, the other one does not. The datapath has a flow for what is received.
    send(2)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        send(1)
        time.sleep(0.2)
    (duration, host), = learnt().items()
    assert host == "01" and float(duration) > 5, "it was never learnt again"
    until(lambda: learnt() == {}, what="the end of the flow without packets")
