"""What one packet may cost, with the daemon as it is installed."""

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
"""
# Ethernet, 10.0.0.1 -> 10.0.0.2, UDP 1000 -> 53.
UDP = ("020000000002020000000001080045000020000040004011266b0a0000010a000002"
       "03e80035000c0000deadbeef")

EXPECTED = [r"\|ofproto_dpif_xlate\([\w-]+\)\|WARN\|over ", r"\|ofproto_dpif_upcall\([\w-]+\)\|WARN\|Flow: "]


def peak(switch):
    """Most memory that the daemon has had, in MB."""
    with open(f"/proc/{switch.pid()}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


def add(switch, tmp_path, flows):
    file = tmp_path / "flows"
    file.write_text("\n".join(flows) + "\n")
    switch.ofctl("add-flows", "br0", str(file))


def counters(switch):
    lines = switch.appctl("coverage/show").splitlines()
    return {line.split()[0]: int(line.split()[-1]) for line in lines if "total:" in line}


def receive(switch, port="p1"):
    """All that becomes of a packet has become of it when this returns."""
    switch.appctl("netdev-dummy/receive", port, UDP)


def test_one_packet_ended_the_daemon(weir, tmp_path):
    switch = weir(CONFIG)
    for action in ["clone(resubmit(,{}))", "resubmit(,{})", "goto_table:{}"]:
        chain = [f"table={table},actions={action.format(table + 1)}" for table in range(252)]
        add(switch, tmp_path, ["table=252,actions=output:2", *chain])
        receive(switch)
        trace = switch.appctl("ofproto/trace", "br0", "in_port=1,udp")
        assert trace.splitlines()[-1] == "Datapath actions: 2" and trace.count("\n") > 2 * 252
        switch.ofctl("packet-out", "br0", f"in_port=1 packet={UDP} actions=resubmit(,0)")
    # A loop is a drop with a name, and tells what it is.
    switch.ofctl("add-flow", "br0", "table=0,actions=clone(resubmit(,0))")
    receive(switch, "p2")
    assert counters(switch)["drop_action_recursion_too_deep"] == 1
    trace = switch.appctl("ofproto/trace", "br0", "in_port=1,udp")
    assert " >>>> over max translation depth 64 <<<<" in trace and "Recursion too deep" in trace
    assert "over max translation depth 64 on bridge br0 while processing udp,in_port=2" in switch.log()


def test_one_packet_took_all_memory(weir):
    switch = weir(CONFIG)
    before = peak(switch)
    ask = "check_pkt_larger(100)->NXM_NX_REG0[0]"
    ask = f"push_vlan:0x8100,{ask},strip_vlan,{ask}"
    for actions, counter in [(["clone(debug_recirc,resubmit(,0))"] * 2, "datapath_drop_recirc_error"),
                             (["clone(debug_recirc,resubmit(,0))"] * 10, "datapath_drop_recirculation_storm"),
                             ([ask] * 15, "drop_action_too_much_work")]:
        switch.ofctl("-OOpenFlow13", "add-flow", "br0", f"actions={','.join(actions)},output:2")
        receive(switch)
        assert counters(switch).get(counter), counters(switch)
    assert peak(switch) - before < 150, "MB"


def test_a_packet_comes_round_eight_times(weir, tmp_path):
    """As OVN asks for where the router of two networks translates both addresses of what goes between them."""
    switch = weir(CONFIG)

    def rounds(count):
        steps = [f"table={n},ip,actions=ct(table={n + 1},zone={n + 1})" for n in range(count)]
        switch.ofctl("del-flows", "br0")
        add(switch, tmp_path, [*steps, f"table={count},actions=output:2"])
        receive(switch)
        return counters(switch).get("datapath_drop_recirc_error", 0)
    assert rounds(8) == 0
    assert rounds(9) == 1
