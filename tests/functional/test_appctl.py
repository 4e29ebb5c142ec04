"""The control socket of `weir vswitchd`, driven by Debian's ovs-appctl."""

import os
import re
import time

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.net import run


def refused(ovs, *args):
    """The error of a command that fails."""
    return ovs.refusal("appctl", *args).splitlines()[0]


def level(ovs, module):
    """Levels of a module for console, syslog and file."""
    for line in ovs.appctl("vlog/list").splitlines():
        if line.split()[0] == module:
            return line.split()[1:4]
    raise AssertionError(f"{module} is not listed")


def messages(ovs):
    """(module, level, text) of each line of the log."""
    lines = (line.split("|", 4) for line in ovs.log().splitlines())
    return [(f[2].partition("(")[0], f[3], f[4]) for f in lines if len(f) == 5]


def test_every_module_has_a_level_for_each_destination(ovs):
    ovs.start("-vbridge:file:dbg", "-vsyslog:off", "-vdpif_netdev:warn")
    assert level(ovs, "bridge") == ["OFF", "OFF", "DBG"]
    assert level(ovs, "dpif_netdev") == ["WARN", "WARN", "WARN"]
    assert level(ovs, "vconn") == ["OFF", "OFF", "INFO"]
    ovs.appctl("vlog/set", "vconn:file:err", "ANY:console:emer")
    assert level(ovs, "vconn") == ["EMER", "OFF", "ERR"]
    assert level(ovs, "bridge") == ["EMER", "OFF", "DBG"]
    ovs.appctl("vlog/set")
    assert level(ovs, "vconn") == ["DBG", "DBG", "DBG"]


def test_names_of_modules_are_those_that_operators_know(ovs):
    ovs.start()
    names = [line.split()[0] for line in ovs.appctl("vlog/list").splitlines()[2:]]
    known = {"bridge", "ofproto", "ofproto_dpif", "ofproto_dpif_upcall", "ofproto_dpif_xlate", "netdev_dummy", "vconn",
             "unixctl", "dpif_netdev", "dpif", "reconnect", "ofp_msgs", "rconn", "connmgr", "netdev_linux", "poll_loop"}
    assert known <= set(names)
    assert names == sorted(names)


@pytest.mark.parametrize("spec, error", [
    ("nonsense", 'no destination, level, or module "nonsense"'),
    ("bridge:loud", 'no destination, level, or module "loud"'),
    ("console:file", "cannot specify multiple destinations"),
    ("dbg:info", "cannot specify multiple levels"),
    ("bridge:ofproto", "cannot specify multiple modules"),
    ("PATTERN", "missing destination"),
    ("PATTERN:x:y", 'unknown destination "x"'),
    ("FACILITY:x", "invalid facility"),
])
def test_mistakes_in_levels(ovs, spec, error):
    ovs.start()
    assert refused(ovs, "vlog/set", spec) == error
    r = ovs.start(f"-v{spec}", "--overwrite-pidfile", check=False)
    assert r.returncode != 0 and error in r.stderr


def test_a_level_says_what_reaches_the_file(ovs):
    ovs.start("-vunixctl:file:dbg")
    ovs.appctl("version")
    ovs.appctl("vlog/set", "unixctl:info")
    ovs.appctl("list-commands")
    debug = [text for module, level, text in messages(ovs) if (module, level) == ("unixctl", "DBG")]
    assert debug[0] == "received request version[], id=0"
    assert debug[1].startswith('replying with success, id=0: "ovs-vswitchd (Open vSwitch) 3.1.0')
    assert not any("list-commands" in text for text in debug)


def test_patterns_change_the_form_of_lines(ovs):
    ovs.start()
    ovs.excuse("its log is in a form of its own")
    ovs.appctl("vlog/set", "PATTERN:file:<%c> %-6p %m [%P]")
    ovs.appctl("vlog/set", "unixctl:file:dbg")
    ovs.appctl("version")
    assert f"<unixctl> DBG    received request version[], id=0 [{ovs.pid()}]\n" in ovs.log()
    patterns = ovs.appctl("vlog/list-pattern").splitlines()
    assert patterns[2] == "SYSLOG   <%B> %D{%h %e %T} %E %A:          ovs|%05N|%c%T|%p|%m"
    assert patterns[4].split(None, 2) == ["FILE", "none", "<%c> %-6p %m [%P]"]


def test_a_rotated_log_is_opened_anew(ovs):
    ovs.start()
    log, old = ovs.dir / "ovs-vswitchd.log", ovs.dir / "old"
    log.rename(old)
    ovs.appctl("vlog/reopen")
    assert "|vlog|INFO|closing log file\n" in old.read_text()
    assert f"|vlog|INFO|opened log file {log}\n" in log.read_text()
    ovs.appctl("vlog/close")
    ovs.appctl("vlog/set", "dbg")
    size = log.stat().st_size
    ovs.appctl("version")
    assert log.stat().st_size == size
    ovs.appctl("vlog/reopen")
    assert log.stat().st_size > size


def test_what_happens_to_interfaces_is_logged(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("del-port", "p1")
    texts = [text for module, level, text in messages(ovs) if (module, level) == ("bridge", "INFO")]
    assert "bridge br0: added interface br0 on port 65534" in texts
    assert any(re.fullmatch("bridge br0: using datapath ID [0-9a-f]{16}", text) for text in texts)
    assert texts.index("bridge br0: added interface p1 on port 1") \
        < texts.index("bridge br0: deleted interface p1 on port 1")


def test_there_may_be_no_log_file(ovs):
    p = ovs.foreground("--pidfile")
    until(lambda: run("ovs-appctl", "-t", "ovs-vswitchd", "version", env=ovs.env, check=False).returncode == 0)
    assert refused(ovs, "vlog/reopen") == "Logging to file not configured"
    ovs.appctl("exit")
    assert p.wait(30) == 0


def test_a_full_disk_loses_messages_and_nothing_else(ovs):
    ovs.start("--log-file=/dev/full", "-vdbg")
    ovs.excuse("it has no log")
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    assert "n_packets=0" in ovs.ofctl("dump-flows", "br0")
    assert ovs.appctl("ofproto/list") == "br0\n"
    # And where there is room again, messages arrive.
    ovs.appctl("vlog/reopen")


def test_a_log_that_cannot_be_opened_is_no_reason_not_to_start(ovs):
    directory = ovs.dir / "later"
    r = ovs.start(f"--log-file={directory}/log")
    ovs.excuse("its log is elsewhere")
    assert "failed to open" not in r.stdout
    dummy_bridge(ovs, "p1")
    assert refused(ovs, "vlog/reopen").startswith("No such file or directory")
    directory.mkdir()
    ovs.appctl("vlog/reopen")
    assert "opened log file" in (directory / "log").read_text()


def test_rate_limits_are_listed(ovs):
    ovs.start()
    ovs.appctl("vlog/disable-rate-limit", "bridge", "vconn")
    limited = [line.split()[0] for line in ovs.appctl("vlog/list").splitlines() if "rate limiting disabled" in line]
    assert limited == ["bridge", "vconn"]
    ovs.appctl("vlog/enable-rate-limit")
    assert "rate limiting disabled" not in ovs.appctl("vlog/list")
    assert refused(ovs, "vlog/enable-rate-limit", "nonsense") == "unknown module"


def test_logging_is_there_before_the_database(ovs):
    ovs.stop_server()
    p = ovs.foreground("--pidfile", "--log-file", "-vconsole:off")
    until(lambda: run("ovs-appctl", "-t", "ovs-vswitchd", "version", env=ovs.env, check=False).returncode == 0)
    (ovs.dir / "ovs-vswitchd.log").rename(ovs.dir / "old")
    ovs.appctl("vlog/reopen")
    ovs.appctl("vlog/set", "bridge:warn")
    assert level(ovs, "bridge") == ["WARN", "WARN", "WARN"]
    ovs.appctl("exit")
    assert p.wait(30) == 0
    ovs.start_server()


def test_the_system_log_gets_its_messages(ovs):
    import socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(ovs.dir / "syslog"))
        log.settimeout(30)
        ovs.start(f"--syslog-method=unix:{ovs.dir}/syslog", "-vsyslog:off", "-vunixctl:syslog:dbg")
        ovs.appctl("vlog/set", "FACILITY:local3")
        log.recv(65536)
        ovs.appctl("version")
        received = [log.recv(65536).decode() for _ in range(3)]
    text = next(line for line in received if "received request version" in line)
    assert re.fullmatch(r"<159>ovs\|\d{5}\|unixctl\|DBG\|received request version\[\], id=0", text), text


def test_commands_are_listed_and_checked(ovs):
    ovs.start()
    lines = ovs.appctl("list-commands").splitlines()
    assert lines[0] == "The available commands are:"
    assert "  vlog/set                {spec | PATTERN:destination:pattern}" in lines
    assert "  exit                    [--cleanup]" in lines
    assert lines[1:] == sorted(lines[1:])
    bad = '"bogus" is not a valid command (use "list-commands" to see a list of valid commands)'
    assert refused(ovs, "bogus") == bad
    assert refused(ovs, "fdb/show") == '"fdb/show" command requires at least 1 arguments'
    assert refused(ovs, "version", "x") == '"version" command takes at most 0 arguments'


def test_normal_life_is_no_warning(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    ovs.vsctl("del-port", "p2")
    ovs.vsctl("del-br", "br0")
    ovs.appctl("exit", "--cleanup")
    until(lambda: not os.path.exists(ovs.dir / "ovs-vswitchd.pid"))
    assert [m for m in messages(ovs) if m[1] in ("WARN", "ERR", "EMER")] == []


FLOW = "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x0800)," \
       "ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst={})"


def receive(ovs, port, *udp_ports):
    for number in udp_ports:
        ovs.appctl("netdev-dummy/receive", port, FLOW.format(number))


def dump(ovs, *args):
    """Datapath flows without their heading, sorted."""
    lines = ovs.appctl("dpctl/dump-flows", *args).splitlines()
    if lines:
        assert lines[0] == "flow-dump from the main thread:"
    return sorted(re.sub(r"used:[\d.]+s", "used:0s", line) for line in lines[1:])


@pytest.fixture
def switch(ovs):
    """br0 with p1 and p2, which forward to each other."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    return ovs


def test_flows_of_the_datapath_are_dumped_filtered_and_found(switch):
    receive(switch, "p1", 1)
    flows = dump(switch)
    assert flows == ["recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(frag=no), "
                     "packets:0, bytes:0, used:never, actions:2"]
    receive(switch, "p1", 2)
    assert "packets:1, bytes:106" in dump(switch)[0]
    assert dump(switch, "filter=in_port(p1),ip") == dump(switch, "filter=in_port=1") == dump(switch)
    assert dump(switch, "filter=in_port=2") == dump(switch, "filter=arp") == []
    # A filter on what the flow leaves out lets it pass.
    assert dump(switch, "filter=udp,tp_dst=77") == dump(switch)
    assert dump(switch, "type=ovs") and dump(switch, "type=offloaded") == []
    assert refused(switch, "dpctl/dump-flows", "type=x") == \
        "ovs-vswitchd: Failed to parse type (x) (Invalid argument)"
    assert refused(switch, "dpctl/dump-flows", "filter=foo").startswith("ovs-vswitchd: Failed to parse filter (")
    assert refused(switch, "dpctl/dump-flows", "nosuch") == "ovs-vswitchd: datapath not found (Invalid argument)"
    more = dump(switch, "-m")[0]
    assert more.startswith("ufid:") and "in_port(p1)" in more and ", dp:ovs, actions:p2" in more
    ufid = more.split(",")[0]
    assert re.sub(r"used:[\d.]+s", "used:0s", switch.appctl("dpctl/get-flow", ufid)).splitlines() == dump(switch)
    assert refused(switch, "dpctl/get-flow", ufid[:-4] + "ffff") == \
        "ovs-vswitchd: getting flow (No such file or directory)"
    assert refused(switch, "dpctl/get-flow", "x") == "ovs-vswitchd: parsing flow ufid"


def test_what_goes_to_controllers_is_shown_as_such(switch):
    switch.ofctl("add-flow", "br0", "in_port=1,cookie=0x55,actions=controller(max_len=99)")
    receive(switch, "p1", 1)
    assert re.search(r"actions:userspace\(pid=0,controller\(reason=1,dont_send=0,continuation=0,recirc_id=\d+,"
                     r"rule_cookie=0x55,controller_id=0,max_len=99\)\)$", dump(switch)[0])


def test_flows_can_be_added_to_the_datapath_and_changed(switch):
    switch.expect("flow: in_port is not an exact match")
    key = "in_port(2),eth(),eth_type(0x1234)"
    shown = "recirc_id(0),in_port(2),eth(),eth_type(0x1234), packets:0, bytes:0, used:never, actions:"
    switch.appctl("dpctl/add-flow", key, "1")
    assert dump(switch) == [shown + "1"]
    assert refused(switch, "dpctl/add-flow", key, "1") == "ovs-vswitchd: updating flow table (File exists)"
    switch.appctl("dpctl/mod-flow", "dummy@ovs-dummy", key, "p1,100")
    assert dump(switch) == [shown + "1,100"]
    # Revalidation leaves it alone.
    switch.appctl("revalidator/wait")
    assert dump(switch) == [shown + "1,100"]
    switch.appctl("dpctl/del-flow", key)
    assert dump(switch) == []
    missing = "(No such file or directory)"
    assert refused(switch, "dpctl/del-flow", key) == f"ovs-vswitchd: deleting flow {missing}"
    assert refused(switch, "dpctl/mod-flow", key, "1") == f"ovs-vswitchd: updating flow table {missing}"
    assert refused(switch, "dpctl/add-flow", "eth(),eth_type(0x0800)", "3") == \
        "ovs-vswitchd: updating flow table (Invalid argument)"
    assert refused(switch, "dpctl/add-flow", "garbage(", "3").startswith("ovs-vswitchd: parsing flow key (")
    assert refused(switch, "dpctl/add-flow", key, "nosuch").startswith("ovs-vswitchd: parsing actions (")


def test_flows_come_from_a_file(switch):
    file = switch.dir / "flows"
    flow = "in_port(1),eth(dst=00:00:00:00:00:0{}),eth_type(0x1234)"
    file.write_text("# three\n" + "".join(f"{flow.format(n)} 2\n" for n in (1, 2, 3)))
    switch.appctl("dpctl/add-flows", str(file))
    assert len(dump(switch)) == 3
    file.write_text(f"modify {flow.format(1)} 7\ndelete {flow.format(2)}\nadd {flow.format(4)} 8\n")
    switch.appctl("dpctl/mod-flows", str(file))
    assert sorted(line.partition("actions:")[2] for line in dump(switch)) == ["2", "7", "8"]
    file.write_text(flow.format(4))
    switch.appctl("dpctl/del-flows", str(file))
    assert len(dump(switch)) == 2
    switch.appctl("dpctl/del-flows")
    assert dump(switch) == []
    assert refused(switch, "dpctl/add-flows", "/nonexistent").startswith("ovs-vswitchd: Opening file '/nonexistent'")


def test_ports_and_connections_of_the_datapath(switch):
    receive(switch, "p1", 1, 2)
    lines = switch.appctl("dpctl/show", "-s").splitlines()
    assert lines[:3] == ["dummy@ovs-dummy:", "  lookups: hit:1 missed:1 lost:0", "  flows: 1"]
    assert "  port 100: br0 (dummy-internal)" in lines
    at = lines.index("  port 1: p1 (dummy)")
    assert lines[at + 1] == "    RX packets:2 errors:? dropped:? overruns:? frame:?"
    assert lines[at + 4] == "    RX bytes:212  TX bytes:0"
    assert refused(switch, "dpctl/show", "x") == "ovs-vswitchd: opening datapath x failed (No such device)"
    assert switch.appctl("dpctl/dump-conntrack") == ""
    assert refused(switch, "dpctl/add-dp", "dummy@ovs-dummy") == "ovs-vswitchd: add_dp (File exists)"
    assert refused(switch, "dpctl/del-if", "ovs-dummy", "nosuch") == "ovs-vswitchd: no port named nosuch"


def test_actions_are_normalized(ovs):
    ovs.start()
    out = ovs.appctl("dpctl/normalize-actions", "in_port(1),eth(),eth_type(0x0800)", "3,2,push_vlan(vid=9,pcp=0),5,4")
    assert out.splitlines()[1:] == ["no vlan: no mpls: 2,3", "vlan(vid=9,pcp=0): no mpls: 4,5"]
    assert ovs.appctl("dpctl/parse-actions", "1,pop_vlan") == "1,pop_vlan\n"


def test_without_megaflows_each_connection_has_its_flow(switch):
    receive(switch, "p1", 1, 2, 3)
    assert len(dump(switch)) == 1
    assert switch.appctl("upcall/disable-megaflows") == "megaflows disabled\n"
    assert dump(switch) == []
    receive(switch, "p1", 1, 2, 3)
    switch.appctl("revalidator/wait")
    flows = dump(switch)
    assert len(flows) == 3
    assert "ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=1)" in flows[0]
    assert switch.appctl("upcall/enable-megaflows") == "megaflows enabled\n"
    receive(switch, "p1", 1, 2, 3)
    assert len(dump(switch)) == 1


def test_the_flow_limit_holds(switch):
    switch.appctl("upcall/disable-megaflows")
    assert switch.appctl("upcall/set-flow-limit", "2") == "set flow_limit to 2\n"
    receive(switch, "p1", *range(1, 6))
    assert len(dump(switch)) == 2
    assert "(limit 2)" in switch.appctl("upcall/show")
    # What has no flow is forwarded and counted all the same.
    assert "n_packets=5" in switch.ofctl("dump-flows", "br0")
    assert "not a number" in refused(switch, "upcall/set-flow-limit", "many")


def test_a_paused_revalidator_leaves_flows_as_they_are(switch):
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=500")
    switch.appctl("revalidator/pause")
    receive(switch, "p1", 1)
    time.sleep(1.5)
    assert len(dump(switch)) == 1
    switch.appctl("revalidator/resume")
    until(lambda: dump(switch) == [])
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=60000")
    receive(switch, "p1", 1)
    until(lambda: len(dump(switch)) == 1, what="a flow again")
    switch.appctl("revalidator/purge")
    assert dump(switch) == []


def test_what_takes_memory_is_counted(switch):
    receive(switch, "p1", 1)
    counts = dict(part.rsplit(":", 1) for part in re.findall(r"[^ :]+(?: keys)?:\d+", switch.appctl("memory/show")))
    assert counts == {"handlers": "1", "ports": "3", "revalidators": "1", "rules": counts["rules"], "udpif keys": "1"}
    before = int(counts["rules"])
    switch.ofctl("add-flow", "br0", "in_port=2,actions=1")
    assert f"rules:{before + 1} " in switch.appctl("memory/show")


def test_events_are_counted(switch):
    switch.ofctl("add-flow", "br0", "in_port=2,actions=drop")
    receive(switch, "p2", 1, 2)
    assert switch.appctl("coverage/read-counter", "drop_action_of_pipeline").strip() == "2"
    assert switch.appctl("coverage/read-counter", "datapath_upcall").strip() == "1"
    assert refused(switch, "coverage/read-counter", "nonsense") == "No such counter"
    lines = switch.appctl("coverage/show").splitlines()
    assert lines[0].startswith("Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=")
    assert any(re.fullmatch(r"drop_action_of_pipeline +[\d.]+/sec +[\d.]+/sec +[\d.]+/sec +total: 2", x) for x in lines)
    assert re.fullmatch(r"\d+ events never hit", lines[-1])


def test_features_of_the_datapath(switch):
    lines = switch.appctl("dpif/show-dp-features", "br0").splitlines()
    for line in ("Recirc: Yes", "CT state: Yes", "Max VLAN headers: 2", "Check pkt length action: Yes"):
        assert line in lines
    assert "ufid (Ufid) : [run time]:true, [boot time]:true" in switch.appctl("dpif/set-dp-features", "br0")
    switch.appctl("dpif/set-dp-features", "br0", "ct_state", "true")
    assert refused(switch, "dpif/set-dp-features", "br0", "nonsense", "true") == "Unexpected support field"
    assert "cannot be turned off" in refused(switch, "dpif/set-dp-features", "br0", "recirc", "false")
    assert "cannot be turned off" in refused(switch, "dpif/set-dp-features", "br0", "ct_state", "false")


def test_without_a_datapath_that_knows_lengths_packets_are_told_apart_one_by_one(switch):
    switch.ofctl("add-flow", "br0", "in_port=1,actions=check_pkt_larger(200)->NXM_NX_REG0[0],resubmit(,1)")
    switch.ofctl("add-flow", "br0", "table=1,reg0=1,actions=2")
    switch.ofctl("add-flow", "br0", "table=1,reg0=0,actions=LOCAL")
    long = [FLOW.format(1), "--len", "300"]
    for changed, actions in (("true", "check_pkt_len(size=200,gt(2),le(100))"),
                             ("false", "userspace(pid=0,slow_path(action))"),
                             ("true", "check_pkt_len(size=200,gt(2),le(100))")):
        switch.appctl("dpif/set-dp-features", "br0", "check_pkt_len", changed)
        assert f"[run time]:{changed}" in switch.appctl("dpif/set-dp-features", "br0", "check_pkt_len")
        switch.appctl("revalidator/wait")
        before = switch.counters("p2")["tx_pkts"], switch.counters("LOCAL")["tx_pkts"]
        switch.appctl("netdev-dummy/receive", "p1", *long)
        switch.appctl("netdev-dummy/receive", "p1", FLOW.format(1))
        switch.appctl("netdev-dummy/receive", "p1", *long)
        assert (switch.counters("p2")["tx_pkts"], switch.counters("LOCAL")["tx_pkts"]) == (before[0] + 2, before[1] + 1)
        assert [line.partition("actions:")[2] for line in dump(switch)] == [actions]


def test_each_thread_has_its_own_view_of_the_flows(ovs):
    """Workers share the flows, but each counts what it has forwarded."""
    ovs.start("--dummy-numa", "0,0")
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=3")
    ovs.vsctl("set", "Interface", "p1", "type=dummy-pmd", "options:n_rxq=2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    until(lambda: ovs.appctl("dpif-netdev/pmd-rxq-show").count("port: p1") == 2)

    def packets(*args):
        return [int(re.search(r"packets:(\d+)", line)[1]) for line in ovs.appctl("dpctl/dump-flows", *args).splitlines()]

    for queue in (0, 1, 1, 1):
        ovs.appctl("netdev-dummy/receive", "p1", "--qid", str(queue), FLOW.format(1))
        if queue == 0:
            until(lambda: packets("pmd=-1") == [0])
            assert packets("pmd=0") == packets("pmd=1") == [0], "nobody has used it, so it is there for both"
    until(lambda: packets("pmd=-1") == [3])
    assert sorted([packets("pmd=0"), packets("pmd=1")]) == [[], [3]]
    ovs.appctl("netdev-dummy/receive", "p1", "--qid", "0", FLOW.format(1))
    until(lambda: packets("pmd=-1") == [4])
    assert sorted([packets("pmd=0"), packets("pmd=1")]) == [[1], [3]]
    assert packets("pmd=7") == []
    assert refused(ovs, "dpctl/dump-flows", "pmd=x") == "ovs-vswitchd: Invalid argument"


def test_transmit_queues_are_chosen_by_thread_or_by_hash(ovs):
    """other_config:tx-steering, which changes while the port stays."""
    ovs.start()
    dummy_bridge(ovs, "p1", "p2")
    ovs.vsctl("set", "Interface", "p2", "type=dummy-pmd", "options:n_txq=2")
    ovs.ofctl("add-flow", "br0", "in_port=1,actions=2")
    seen = [0, 0]

    def sent():
        """Packets for each queue since the last time."""
        for number in range(1, 65):
            ovs.appctl("netdev-dummy/receive", "p1", FLOW.format(number))
        total = sum(seen) + 64
        names = ("statistics:tx_packets", "statistics:tx_q0_packets", "statistics:tx_q1_packets")
        now = until(lambda: [n for n in [[int(x) for x in ovs.vsctl("--if-exists", "get", "Interface", "p2", *names).split()]]
                             if len(n) == 3 and n[0] == n[1] + n[2] == total])[0][1:]
        since = [now[0] - seen[0], now[1] - seen[1]]
        seen[:] = now
        return since

    assert sent() == [64, 0], "there is one worker"
    ovs.vsctl("set", "Interface", "p2", "other_config:tx-steering=hash")
    assert min(sent()) > 8
    # Each connection has its queue.
    assert sent() == sent()
    ovs.vsctl("set", "Interface", "p2", "other_config:tx-steering=thread")
    assert sent() == [64, 0]
    ovs.expect("tx-steering")
    ovs.vsctl("set", "Interface", "p2", "other_config:tx-steering=nonsense")
    assert sent() == [64, 0]


def test_a_change_of_features_leaves_no_flow_that_was_made_before(switch):
    switch.ofctl("del-flows", "br0")
    switch.ofctl("add-flow", "br0", "in_port=1,ip,actions=ct(table=1)")
    switch.ofctl("add-flow", "br0", "table=1,ip,actions=2")

    def stages():
        receive(switch, "p1", 1)
        until(lambda: len(dump(switch)) == 2, what="a flow for each pass")
        return sorted(re.search(r"recirc_id\((\w+)\)", line)[1] for line in dump(switch))

    assert stages() == ["0", "0x1"]
    switch.appctl("dpif/set-dp-features", "br0", "check_pkt_len", "true")
    assert len(dump(switch)) == 2, "nothing has changed"
    switch.appctl("dpif/set-dp-features", "br0", "check_pkt_len", "false")
    assert dump(switch) == []
    # The number of the old ones is left to packets on their way.
    assert stages() == ["0", "0x2"]


def test_new_flows_are_logged_for_who_wants_it(switch):
    receive(switch, "p1", 1)
    assert "flow_add" not in switch.log()
    switch.appctl("revalidator/purge")
    switch.appctl("vlog/set", "dpif_netdev:file:dbg")
    receive(switch, "p1", 1)
    added = [text for module, level, text in messages(switch) if (module, level) == ("dpif_netdev", "DBG")]
    assert added.pop(0).endswith("miss upcall:")
    assert len(added) == 1
    assert re.fullmatch(r"flow_add: ufid:[-0-9a-f]{36} mega_ufid:[-0-9a-f]{36} recirc_id\(0\),in_port\(1\),"
                        r"packet_type\(ns=0,id=0\),eth_type\(0x0800\),ipv4\(frag=no\), actions:2", added[0]), added[0]


def test_connections_to_controllers_are_made_anew(ovs):
    import socket
    ovs.start()
    dummy_bridge(ovs)
    with socket.create_server(("127.0.0.1", 0)) as controller:
        controller.settimeout(20)
        ovs.vsctl("--no-wait", "set-controller", "br0", f"tcp:127.0.0.1:{controller.getsockname()[1]}")
        first, _ = controller.accept()
        ovs.appctl("bridge/reconnect", "br0")
        second, _ = controller.accept()
        first.settimeout(30)
        while first.recv(4096):
            pass
        first.close()
        second.close()
    assert refused(ovs, "bridge/reconnect", "nosuch") == "Unknown bridge"
