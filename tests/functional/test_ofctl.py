"""Debian's ovs-ofctl on Weir: every command that the first release has to serve."""

import re
import subprocess
import time

import pytest
from conftest import until

CONFIG = """
[[bridge]]
name = "br0"
local = false
fail_mode = "secure"
[[bridge.port]]
name = "p1"
type = "dummy"
[[bridge.port]]
name = "p2"
type = "dummy"
[[bridge.port]]
name = "p3"
type = "dummy"
"""
VERSIONS = ["10", "13"]
# Ethernet, 10.0.0.1 -> 10.0.0.2, UDP 1000 -> 53.
UDP = ("020000000002020000000001080045000020000040004011266b0a0000010a000002"
       "03e800350 00c0000deadbeef").replace(" ", "")


@pytest.fixture
def switch(weir):
    return weir(CONFIG)


def flows(switch, *match, version=None):
    """dump-flows without what changes, sorted."""
    out = switch.ofctl("dump-flows", "br0", *match, version=version)
    lines = [l.strip() for l in out.splitlines() if "actions=" in l]
    return sorted(re.sub(r"(duration|idle_age|hard_age|n_packets|n_bytes|cookie|table)=[^ ]*, |^ ", "", l) for l in lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_show(switch, version):
    out = switch.ofctl("show", "br0", version=version)
    assert re.search(r"dpid:[0-9a-f]{16}", out)
    assert re.search(r"n_tables:254", out)
    for n in (1, 2, 3):
        assert re.search(rf" {n}\(p{n}\): addr:[0-9a-f:]{{17}}", out), out
    assert "OFPT_GET_CONFIG_REPLY" in out


@pytest.mark.parametrize("version", VERSIONS)
def test_add_dump_delete(switch, version):
    switch.ofctl("del-flows", "br0", version=version)
    assert flows(switch) == []
    rules = ["priority=100,ip,in_port=1,nw_src=10.0.0.0/8 actions=output:2",
             "priority=90,dl_vlan=10 actions=pop_vlan,output:3" if version == "13" else
             "priority=90,dl_vlan=10 actions=strip_vlan,output:3",
             "priority=80,tcp,tp_dst=80 actions=drop",
             "arp actions=NORMAL"]
    for rule in rules:
        switch.ofctl("add-flow", "br0", rule.replace(" ", ","), version=version)
    want = sorted("priority=100,ip,in_port=1,nw_src=10.0.0.0/8 actions=output:2|"
                  "priority=90,dl_vlan=10 actions=strip_vlan,output:3|"
                  "priority=80,tcp,tp_dst=80 actions=drop|arp actions=NORMAL".split("|"))
    got = [re.sub(r"output:p(\d)", r"output:\1", f.replace("in_port=p1", "in_port=1")) for f in flows(switch, version="10")]
    assert [g.replace("pop_vlan", "strip_vlan") for g in got] == want
    assert len(flows(switch, "ip")) == 2, "a match selects what is more specific"
    assert len(flows(switch, "out_port=2")) == 1
    switch.ofctl("del-flows", "br0", "tcp", version=version)
    assert len(flows(switch)) == 3
    switch.ofctl("--strict", "del-flows", "br0", "priority=90,dl_vlan=10", version=version)
    assert len(flows(switch)) == 2
    switch.ofctl("--strict", "del-flows", "br0", "priority=91,arp", version=version)
    assert len(flows(switch)) == 2, "strict deletion compares the priority"


@pytest.mark.parametrize("version", VERSIONS)
def test_add_flows_from_file(switch, version, tmp_path):
    f = tmp_path / "rules"
    f.write_text("".join(f"priority={i},udp,tp_src={i},actions=output:{1 + i % 3}\n" for i in range(1, 2001)))
    switch.ofctl("add-flows", "br0", f, version=version)
    assert len(flows(switch)) == 2000
    out = switch.ofctl("dump-aggregate", "br0", version=version)
    assert "flow_count=2000" in out
    out = switch.ofctl("dump-tables", "br0", version=version)
    assert re.search(r"active=2000", out), out


@pytest.mark.parametrize("version", VERSIONS)
def test_mod_flows(switch, version):
    switch.ofctl("add-flow", "br0", "cookie=0x77,priority=5,in_port=1,actions=output:2", version=version)
    switch.ofctl("mod-flows", "br0", "in_port=1,actions=output:3", version=version)
    assert "output:3" in flows(switch)[0] or "output:p3" in flows(switch)[0]
    if version == "13":  # a modification of OpenFlow 1.0 sets the cookie too
        assert "cookie=0x77" in switch.ofctl("dump-flows", "br0", version=version)
    switch.ofctl("mod-flows", "br0", "cookie=0x78/-1,in_port=1,actions=drop", version="13")
    assert "drop" not in flows(switch)[0], "the cookie does not match"


def test_nxm_match(switch):
    """Matches that OpenFlow 1.0 has no room for, so ovs-ofctl chooses NXM."""
    for rule in ("ipv6,ipv6_src=2001:db8::/32,actions=output:1", "reg3=0x5/0xf,actions=output:2",
                 "tcp,tp_dst=0x400/0xfff0,actions=output:3", "arp,arp_sha=02:00:00:00:00:01,actions=drop",
                 "table=5,metadata=0x10,actions=output:2"):
        switch.ofctl("add-flow", "br0", rule)
    got = flows(switch)
    assert len(got) == 5
    for piece in ("ipv6_src=2001:db8::/32", "reg3=0x5/0xf", "tp_dst=0x400/0xfff0",
                  "arp_sha=02:00:00:00:00:01", "metadata=0x10"):
        assert any(piece in g for g in got), (piece, got)


def test_a_header_without_its_protocol_stands_for_ethernet(switch):
    """ovs-ofctl asks for Ethernet packets then; OVS tells the flows that look at Ethernet's headers or at what is above."""
    for match in ("in_port=1", "reg0=1", "dl_src=02:00:00:00:00:01", "ip,nw_src=10.0.0.0/24", "arp"):
        switch.ofctl("add-flow", "br0", f"table=1,{match},actions=drop")
    told = switch.ofctl("dump-flows", "br0", "nw_src=10.9.9.9")
    assert told.count("actions=drop") == 3, told
    assert all(word in told for word in ("dl_src=02:00:00:00:00:01", "ip,nw_src=10.0.0.0/24", "arp")), told
    assert "flow_count=3" in switch.ofctl("dump-aggregate", "br0", "tp_src=5")
    assert len(flows(switch)) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_errors(switch, version):
    r = lambda *a: switch.ofctl(*a, version=version)
    with pytest.raises(AssertionError, match="OFPBRC_BAD_PORT"):
        r("packet-out", "br0", f"in_port=65280,packet={UDP},actions=output:1")
    with pytest.raises(AssertionError, match="OFPBAC_BAD_OUT_PORT"):
        r("add-flow", "br0", "actions=output:65290")
    switch.ofctl("add-flow", "br0", "priority=7,ip,actions=output:1", version=version)
    with pytest.raises(AssertionError, match="OFPFMFC_OVERLAP"):
        r("add-flow", "br0", "check_overlap,priority=7,tcp,actions=output:2")


@pytest.mark.parametrize("version", VERSIONS)
def test_packet_out_and_ports(switch, version):
    r = lambda *a: switch.ofctl(*a, version=version)
    for _ in range(3):
        r("packet-out", "br0", f"in_port=CONTROLLER,packet={UDP},actions=output:2")
    out = until(lambda: (lambda o: o if re.search(r"tx pkts=3", o) else None)(r("dump-ports", "br0", "2")),
                what="three packets sent")
    assert re.search(rf"tx pkts=3, bytes={3 * (len(UDP) // 2)}", out), out
    assert re.search(r"tx pkts=0", r("dump-ports", "br0", "1"))
    desc = r("dump-ports-desc", "br0")
    assert re.search(r" 2\(p2\): addr:", desc)
    assert len(re.findall(r"addr:", desc)) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_counters_are_exact(switch, version):
    switch.ofctl("add-flow", "br0", "in_port=1,actions=output:2", version=version)
    for _ in range(20):
        switch.appctl("netdev-dummy/receive", "p1", UDP)
    size = len(UDP) // 2
    until(lambda: f"n_packets=20, n_bytes={20 * size}" in switch.ofctl("dump-flows", "br0", version=version),
          what="20 packets counted")
    assert "packet_count=20" in switch.ofctl("dump-aggregate", "br0", version=version)
    assert "tx pkts=20" in switch.ofctl("dump-ports", "br0", "2", version=version)
    assert "rx pkts=20" in switch.ofctl("dump-ports", "br0", "1", version=version)


def monitor(switch, tmp_path, *args, version="13"):
    log, control = open(tmp_path / "monitor.log", "w+"), tmp_path / "monitor.ctl"
    p = subprocess.Popen(["ovs-ofctl", "-O", f"OpenFlow{version}", "monitor", "br0", *args,
                          f"--unixctl={control}"], env=switch.env,
                         stdout=log, stderr=log)
    # Made when the switch has taken its settings.
    until(control.exists, what="ovs-ofctl monitor listening")
    return p, lambda: (tmp_path / "monitor.log").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_monitor(switch, tmp_path, version):
    p, text = monitor(switch, tmp_path, "65534", version=version)
    try:
        switch.ofctl("add-flow", "br0", "in_port=1,actions=controller", version=version)
        switch.ofctl("add-flow", "br0", "send_flow_rem,in_port=2,actions=drop", version=version)
        switch.appctl("netdev-dummy/receive", "p1", UDP)
        until(lambda: "PACKET_IN" in text(), what="a packet-in")
        assert re.search(r"in_port=(1|p1) ", text()) and "nw_dst=10.0.0.2" in text() and "(via action)" in text()
        switch.ofctl("del-flows", "br0", "in_port=2", version=version)
        until(lambda: "FLOW_REMOVED" in text(), what="a flow-removed")
        assert "reason=delete" in text()
        switch.appctl("netdev-dummy/set-admin-state", "p3", "down")
        until(lambda: "PORT_STATUS" in text(), what="a port-status")
    finally:
        p.terminate()
        p.wait()


@pytest.mark.parametrize("version", VERSIONS)
def test_timeouts(switch, tmp_path, version):
    p, text = monitor(switch, tmp_path, "65534", version=version)
    try:
        switch.ofctl("add-flow", "br0", "send_flow_rem,hard_timeout=1,cookie=0x11,in_port=1,actions=output:2", version=version)
        switch.ofctl("add-flow", "br0", "send_flow_rem,idle_timeout=2,cookie=0x22,in_port=2,actions=output:1", version=version)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            switch.appctl("netdev-dummy/receive", "p2", UDP)
            time.sleep(0.2)
        until(lambda: re.search(r"FLOW_REMOVED.*\n?.*reason=hard.*", text()), what="the flow being removed")
        assert "reason=idle" not in text(), "traffic keeps the flow alive"
        assert len(flows(switch)) == 1
        until(lambda: "reason=idle" in text(), what="the idle flow removed")
    finally:
        p.terminate()
        p.wait()


def test_probe(switch):
    switch.ofctl("probe", "br0")


@pytest.mark.parametrize("version", ["10", "11", "12", "13", "14", "15"])
def test_every_version_is_spoken(switch, version):
    switch.ofctl("add-flow", "br0", "in_port=1,actions=output:2", version=version)
    assert "in_port=1" in switch.ofctl("dump-flows", "br0", version=version)
    assert "(p1)" in switch.ofctl("dump-ports-desc" if version != "10" else "show", "br0", version=version)
