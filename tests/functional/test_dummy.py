"""Dummy ports and the clock: what tests use that run the daemon without any network."""

import re
import struct
import subprocess
import time

import pytest
from conftest import until

PACKET = "aa55aa55000250540000000a08004500001c00000000400166d60a0000010a0000020800f7ff00000000"
ICMP = ("in_port(1),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800),"
        "ipv4(src=10.0.0.2,dst=10.0.0.1,proto=1,tos=0,ttl=64,frag=no),icmp(type=8,code=0)")


@pytest.fixture
def switch(ovs):
    """A bridge br0 of the dummy ports p1 and p2, and a daemon whose clock can be stopped."""
    ovs.start("--enable-dummy=override")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
              *[w for n in (1, 2) for w in ("--", "add-port", "br0", f"p{n}", "--", "set", "interface", f"p{n}",
                                            "type=dummy", f"ofport_request={n}")])
    return ovs


def refusal(ovs, *args):
    """What a command that has to fail says."""
    return ovs.refusal("appctl", *args)


def flows(ovs):
    return re.findall(r"n_packets=(\d+), n_bytes=(\d+).* actions=(\S+)", ovs.ofctl("dump-flows", "br0"))


def links_down(ovs):
    return re.findall(r"\((\w+)\):[^(]*LINK_DOWN", ovs.ofctl("dump-ports-desc", "br0"))


def test_received_packets_are_through_when_the_command_returns(switch):
    switch.ofctl("add-flow", "br0", "in_port=1,actions=2")
    for n in range(1, 6):
        switch.appctl("netdev-dummy/receive", "p1", PACKET)
        assert flows(switch) == [(str(n), str(n * 42), "output:2")]
    # The first one has made the flow, which counts those after it.
    assert "packets:4, bytes:168" in switch.appctl("dpctl/dump-flows")


def test_flows_are_shown_with_the_values_of_their_first_packet(switch):
    """Those that are not matched, too: in dumps, and in the log when a change gives a flow other actions."""
    switch.appctl("vlog/set", "dpif:dbg")
    switch.ofctl("add-flow", "br0", "ip,nw_src=10.0.0.0/8,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", ICMP)
    assert "ipv4(src=10.0.0.2/255.0.0.0,frag=no)" in switch.appctl("dpctl/dump-flows")
    whole = ("ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),recirc_id(0),dp_hash(0/0),in_port({}),"
             "packet_type(ns=0,id=0),eth(src=50:54:00:00:00:09/00:00:00:00:00:00,dst=50:54:00:00:00:0a/00:00:00:00:00:00),"
             "eth_type(0x0800),ipv4(src=10.0.0.2/255.0.0.0,dst=10.0.0.1/0.0.0.0,proto=1/0,tos=0/0,ttl=64/0,frag=no),"
             "icmp(type=8/0,code=0/0)")
    # The second packet has other values, and the same flow.
    switch.appctl("netdev-dummy/receive", "p1", ICMP.replace("10.0.0.2", "10.0.0.3"))
    assert whole.format("p1") in switch.appctl("dpif/dump-flows", "-m", "br0")
    switch.ofctl("mod-flows", "br0", "actions=LOCAL")
    modified = re.search(r"dummy@ovs-dummy: put\[modify\] ufid:\S+ (.*), actions:(\d+)\n", switch.log())
    assert whole.format(1) in modified[1] and f"actions:{modified[2]}\n" in switch.appctl("dpctl/dump-flows")


def test_a_patch_port_counts_packets_and_no_errors(switch):
    switch.vsctl("add-br", "br1", "--", "add-port", "br0", "to1", "--", "set", "interface", "to1", "type=patch",
                 "options:peer=to0", "--", "add-port", "br1", "to0", "--", "set", "interface", "to0", "type=patch",
                 "options:peer=to1")
    switch.ofctl("add-flow", "br0", "actions=output:to1")
    switch.appctl("netdev-dummy/receive", "p1", ICMP)
    counters = switch.ofctl("dump-ports", "br0", "to1")
    assert "tx pkts=1, bytes=106, drop=?, errs=?, coll=?" in counters and "drop=?, errs=?, frame=?" in counters


def test_a_packet_whose_resubmits_have_no_end_is_traced_in_the_log(switch):
    switch.expect("over max translation depth|ofproto_dpif_upcall.*Flow: icmp")
    switch.ofctl("add-flow", "br0", "in_port=1,actions=resubmit:1")
    for n in range(3):
        switch.appctl("netdev-dummy/receive", "p1", ICMP)
        switch.appctl("revalidator/purge")
    log = switch.log()
    assert log.count("(Recursion too deep), packet is dropped.") == 1 and "ofproto_dpif_upcall" in log
    assert len(re.findall("^ *resubmit", log, re.M)) >= 60


def test_packets_made_from_flows(switch):
    switch.ofctl("add-flow", "br0", "icmp,actions=2")
    switch.ofctl("add-flow", "br0", "udp,actions=LOCAL")
    switch.appctl("netdev-dummy/receive", "p1", ICMP)
    udp = ICMP.replace("proto=1", "proto=17").replace("icmp(type=8,code=0)", "udp(src=1,dst=2)")
    switch.appctl("netdev-dummy/receive", "p1", udp, "--len", "100", udp)
    assert sorted(flows(switch)) == [("1", "106", "output:2"), ("2", "206", "LOCAL")]


@pytest.mark.parametrize("args, problem", [
    (["nosuch", PACKET], "no such dummy netdev"),
    (["p1", "--qid", "1", PACKET], "bad rx queue id."),
    (["p1", ICMP, "--len", "20"], "too small packet len"),
    (["p1", "nonsense(5)"], "nonsense"),
    (["p1", PACKET, "nonsense(5)"], "nonsense"),
])
def test_what_cannot_be_received_is_refused(switch, args, problem):
    switch.ofctl("add-flow", "br0", "actions=2")
    assert problem in refusal(switch, "netdev-dummy/receive", *args)
    assert flows(switch) == [("0", "0", "output:2")], "none of the packets has come in"


def test_captures_are_written_when_the_command_returns(switch, tmp_path):
    switch.vsctl("set", "interface", "p1", f"options:rxq_pcap={tmp_path}/rx.pcap")
    switch.vsctl("set", "interface", "p2", f"options:tx_pcap={tmp_path}/tx.pcap")
    switch.ofctl("add-flow", "br0", "in_port=1,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    for name in ("rx", "tx"):
        assert (tmp_path / f"{name}.pcap").read_bytes()[40:] == bytes.fromhex(PACKET)


def test_rules_expire_when_the_clock_is_warped(switch):
    switch.appctl("time/stop")
    switch.ofctl("add-flow", "br0", "in_port=1,idle_timeout=10,actions=2")
    switch.ofctl("add-flow", "br0", "in_port=2,hard_timeout=30,actions=1")
    assert switch.appctl("time/warp", "8000") == "warped\n"
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    switch.appctl("time/warp", "9000", "1000")
    assert sorted(actions for _, _, actions in flows(switch)) == ["output:1", "output:2"], "used 9 s ago"
    assert "duration=17" in switch.ofctl("dump-flows", "br0")
    switch.appctl("time/warp", "2000", "500")
    assert [actions for _, _, actions in flows(switch)] == ["output:1"]
    switch.appctl("time/warp", "12000")
    assert flows(switch) == []


def test_addresses_age_by_the_warped_clock(switch):
    switch.ofctl("add-flow", "br0", "actions=NORMAL")
    switch.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=20")
    switch.appctl("time/stop")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    switch.appctl("time/warp", "5000")
    assert switch.appctl("fdb/show", "br0").split()[-4:] == ["1", "0", "50:54:00:00:00:0a", "5"]
    switch.appctl("time/warp", "16000", "1000")
    assert len(switch.appctl("fdb/show", "br0").splitlines()) == 1


def test_a_stopped_clock_keeps_everything(switch):
    switch.appctl("time/stop")
    switch.ofctl("add-flow", "br0", "idle_timeout=1,actions=2")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    before = switch.appctl("dpctl/dump-flows")
    # By the system's clock this takes longer than the timeout: revalidation goes on meanwhile.
    for _ in range(15):
        switch.vsctl("set", "bridge", "br0", "external_ids:x=1", "--", "set", "bridge", "br0", "external_ids:x=2")
        switch.appctl("revalidator/wait")
        time.sleep(0.1)
    assert len(flows(switch)) == 1 and switch.appctl("dpctl/dump-flows") == before


def test_the_systems_clock_cannot_be_stopped(ovs):
    ovs.start()
    for command in (["time/stop"], ["time/warp", "1000"]):
        assert "--enable-dummy" in refusal(ovs, *command)


@pytest.mark.parametrize("args", [["0"], ["x"], ["100", "0"]])
def test_warps_that_make_no_sense(switch, args):
    assert "invalid MSECS" in refusal(switch, "time/warp", *args)


def test_admin_state_is_seen_at_once(switch):
    switch.ofctl("add-flow", "br0", "in_port=1,actions=2")
    assert switch.appctl("netdev-dummy/set-admin-state", "p2", "down") == "OK\n"
    assert links_down(switch) == ["p2"]
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    assert "tx pkts=0" in switch.ofctl("dump-ports", "br0", "2")
    assert switch.appctl("netdev-dummy/set-admin-state", "UP") == "OK\n"
    assert links_down(switch) == []
    for args in (["nosuch", "up"], ["p1", "sideways"]):
        refusal(switch, "netdev-dummy/set-admin-state", *args)


def test_patch_sockets_join_ports_and_join_them_again(switch):
    socket = switch.dir / "patch.sock"
    switch.vsctl("set", "interface", "p1", f"options:stream=unix:{socket}")
    assert switch.appctl("netdev-dummy/conn-state", "p1") == "p1: disconnected\n"
    switch.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath-type=dummy", "--", "add-port", "br1", "q1",
                 "--", "set", "interface", "q1", "type=dummy", f"options:pstream=punix:{socket}")
    until(lambda: switch.appctl("netdev-dummy/conn-state") == "p1: connected\n", what="the connection")
    assert switch.appctl("netdev-dummy/conn-state", "p2") == "p2: unknown\n"
    switch.ofctl("add-flow", "br0", "in_port=2,actions=1")
    switch.appctl("netdev-dummy/receive", "p2", PACKET)
    until(lambda: "n_packets=1, n_bytes=42" in switch.ofctl("dump-flows", "br1"), what="the packet in br1")
    switch.vsctl("del-port", "q1")
    until(lambda: "disconnected" in switch.appctl("netdev-dummy/conn-state", "p1"), what="the end of the connection")
    assert not socket.exists()


def test_a_port_with_an_address_answers_arp(switch):
    assert switch.appctl("netdev-dummy/ip4addr", "p2", "10.0.0.1/24") == "OK\n"
    switch.ofctl("add-flow", "br0", "in_port=1,arp,actions=2")
    switch.ofctl("add-flow", "br0", "in_port=2,arp,arp_op=2,arp_spa=10.0.0.1,actions=1")
    switch.appctl("netdev-dummy/receive", "p1",
                  "in_port(1),eth(src=50:54:00:00:00:09,dst=ff:ff:ff:ff:ff:ff),eth_type(0x0806),"
                  "arp(sip=10.0.0.2,tip=10.0.0.1,op=1,sha=50:54:00:00:00:09,tha=00:00:00:00:00:00)")
    assert sorted(flows(switch)) == [("1", "42", "output:1"), ("1", "42", "output:2")]
    for args in (["nosuch", "10.0.0.1/24"], ["p1", "10.0.0/24"], ["p1", "10.0.0.1/33"]):
        refusal(switch, "netdev-dummy/ip4addr", *args)


def test_a_local_port_keeps_its_address_with_other_options(switch, tmp_path):
    """Tests of OVN change where it records to, and go on."""
    switch.ofctl("add-flow", "br0", "actions=normal")
    switch.appctl("netdev-dummy/ip4addr", "br0", "10.0.0.1/24")
    question = "ffffffffffff020000000009" + "08060001080006040001" + "0200000000090a000009" + "0000000000000a000001"
    for name in ("a", "b"):
        capture = tmp_path / name
        switch.vsctl("set", "interface", "br0", f"options:rxq_pcap={capture}")
        assert capture.stat().st_size == 24
        # A recording that is taken away begins anew at the next change, whatever that is about.
        capture.unlink()
        switch.vsctl("set", "interface", "p2", f"options:tx_pcap={tmp_path / 'p2'}{name}")
        switch.appctl("netdev-dummy/receive", "p1", question)
        until(lambda: capture.stat().st_size == 24 + 16 + 42, what="the answer")


def test_a_paused_pipeline_goes_on_when_the_controller_says_so(switch):
    """ovs-ofctl gives each continuation back; what was left of the actions is done then, and only then."""
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0",
                 "in_port=1,actions=set_field:7->reg1,push:NXM_NX_REG1[],controller(pause),resubmit(,1),2")
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=1,reg1=7,actions=pop:NXM_NX_REG2[],resubmit(,2)")
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=2,reg2=7,actions=LOCAL")
    switch.appctl("netdev-dummy/receive", "p1", PACKET)
    assert "tx pkts=0" in switch.ofctl("dump-ports", "br0", "2"), "nobody has let it go on"
    log = open(switch.dir / "monitor.log", "w")
    monitor = subprocess.Popen(["ovs-ofctl", "monitor", "br0", "resume"], env=switch.env, stdout=log, stderr=log)
    try:
        def resumed():
            switch.appctl("netdev-dummy/receive", "p1", PACKET)
            return "tx pkts=0" not in switch.ofctl("dump-ports", "br0", "2")
        until(resumed, what="a packet that goes on")
        assert ("LOCAL", "0") not in [(actions, n) for n, _, actions in flows(switch)]
        text = (switch.dir / "monitor.log").read_text()
        assert "NXT_RESUME" in text and "reg1=0x7" in text and "decode error" not in text, text
    finally:
        monitor.terminate()
        monitor.wait(30)
        log.close()


def test_a_change_of_an_address_touches_the_flows_of_that_address(switch):
    a, b, c = ("02000000000a", "02000000000b", "02000000000c")
    receive = lambda port, source, target: switch.appctl("netdev-dummy/receive", port, f"{target}{source}88b5" + "00" * 46)  # noqa: E731
    touched = lambda: int(switch.appctl("coverage/read-counter", "mac_learning_revalidated"))  # noqa: E731
    actions = lambda source: re.findall(rf"src=02:00:00:00:00:{source[-2:]}.*actions:(\S+)", switch.appctl("dpctl/dump-flows"))  # noqa: E731
    switch.ofctl("add-flow", "br0", "actions=NORMAL")
    for n in range(0x10, 0x20):
        receive("p1", f"0200000000{n:x}", c)
    receive("p1", a, b)
    before = touched()
    receive("p2", b, a)
    until(lambda: touched() == before + 1, what="a flow to the address that was learnt")
    assert actions(b) == ["1"], "where the other is"
    # What a packet teaches is looked at before or after its own flow is there.
    receive("p2", a, b)
    until(lambda: actions(b) == ["drop"], what="both being at one port")
    moved = touched() - before
    assert moved in (3, 4), "the flows from and to the address that moved, perhaps the one that has taught it, and no other"
    receive("p2", c, a)
    until(lambda: touched() == before + moved + 16, what="the flows that were flooded for an address that is known now")
    assert len(set(re.findall(r"02:00:00:00:00:\w\w", switch.appctl("fdb/show", "br0")))) == 19


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff


def frame(source, ttl, proto, head, at):
    """An IPv4 packet with right checksums; that of what it carries is at this place there."""
    addresses = bytes(source) + bytes([10, 0, 0, 2])
    covered = head if proto == 1 else addresses + struct.pack("!HH", proto, len(head)) + head
    carried = head[:at] + struct.pack("!H", checksum(covered)) + head[at + 2:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(head), 0, 0, ttl, proto, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return bytes.fromhex("0000000000020000000000010800") + ip + carried


def test_one_flow_that_rewrites_addresses_serves_all_protocols(switch, tmp_path):
    """As docs/deviations/openflow.md has it: OVS makes a flow for each protocol."""
    switch.vsctl("set", "interface", "p2", f"options:tx_pcap={tmp_path}/tx.pcap")
    switch.ofctl("add-flow", "br0", "in_port=1,ip,actions=mod_nw_src:9.8.7.6,dec_ttl,output:2")
    carried = [(1, struct.pack("!BBHHH", 8, 0, 0, 1, 1), 2),
               (6, struct.pack("!HHIIBBHHH", 5, 6, 0, 0, 0x50, 2, 8192, 0, 0), 16),
               (17, struct.pack("!HHHH", 5, 6, 8, 0), 6)]
    for proto, head, at in carried:
        switch.appctl("netdev-dummy/receive", "p1", frame([10, 0, 0, 1], 64, proto, head, at).hex())
    sent = b"".join(frame([9, 8, 7, 6], 63, proto, head, at) for proto, head, at in carried)
    capture, at, out = (tmp_path / "tx.pcap").read_bytes(), 24, b""
    while at < len(capture):
        length = struct.unpack("<I", capture[at + 8:at + 12])[0]
        out += capture[at + 16:at + 16 + length]
        at += 16 + length
    assert out == sent
    flow, = [line for line in switch.appctl("dpctl/dump-flows").splitlines() if "recirc_id" in line]
    assert "proto=" not in flow and "packets:2" in flow
