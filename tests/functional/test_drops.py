"""`weir drops`: where packets were dropped, and why, to the rule that said so."""

import json
import random
import subprocess

import pytest
from conftest import WEIR, until
from lib.conntrack import Lab, udp
from lib.net import PAIR, pair, run


@pytest.fixture
def switch(weir, net):
    """A switch that joins two hosts which know each other's address, and these."""
    w, a, b = pair(weir, net)
    assert a.ping("10.0.0.2") == 3
    return w, a, b


def drops(w, *args):
    return w.json("drops", *args)["drops"]


def of_rule(w, cookie):
    """The drops of a flow, as port, table and packets."""
    found = [(d, d["rule"]["flow"]) for d in drops(w) if "flow" in d.get("rule", {})]
    return [(d["in_port"], flow["table"], d["packets"]) for d, flow in found
            if flow["flow"] and flow["flow"]["cookie"] == cookie]


def test_a_dropped_ping_leads_to_the_flow_that_dropped_it(switch):
    w, a, b = switch
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "cookie=0x2a,priority=50,icmp,nw_dst=10.0.0.2,actions=resubmit(,3)")
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "cookie=0x2b,table=3,priority=7,icmp,icmp_type=8,actions=drop")
    assert a.ping("10.0.0.2", wait=1) == 0
    until(lambda: of_rule(w, 0x2b) == [(a.port, 3, 3)])
    row = next(d for d in drops(w) if d.get("rule", {}).get("flow", {}).get("table") == 3)
    assert (row["stage"], row["reason"]) == ("translate", "rule")
    assert row["rule"]["flow"]["flow"] == {"cookie": 0x2b, "priority": 7, "match": "icmp,icmp_type=8"}
    # The same as the flow itself has counted.
    text = w.ofctl("dump-flows", f"unix:{w.dir}/br0.mgmt", "table=3")
    assert "n_packets=3" in text, text
    # What was counted stays when the flow has gone.
    w.ofctl("del-flows", f"unix:{w.dir}/br0.mgmt", "icmp")
    assert a.ping("10.0.0.2") == 3
    assert of_rule(w, 0x2b) == [(a.port, 3, 3)]
    shown = w.cli("drops", "--port", a.port).stdout
    assert "br0 table=3 cookie=0x2b priority=7,icmp,icmp_type=8" in shown, shown
    assert w.json("drops", "--port", "nobody") == {"drops": []}


def test_rows_add_up_to_what_the_workers_count(switch):
    w, a, b = switch
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "priority=50,icmp,actions=drop")
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "priority=60,udp,actions=in_port")
    w.cli("ingress", b.port, "set", "drop udp port 4000; drop udp port 5000")
    assert a.ping("10.0.0.2", wait=1) == 0
    a.run("bash", "-c", "for i in 1 2 3 4; do echo x >/dev/udp/10.0.0.2/9; done")
    b.run("bash", "-c", "for i in 1 2; do echo x >/dev/udp/10.0.0.1/5000; done")

    def counted():
        workers = w.json("stats")["workers"]
        return {reason: sum(of.get("drops", {}).get(reason, 0) for of in workers)
                for reason in {name for of in workers for name in of["drops"]}}

    def by_reason():
        inside = [d for d in drops(w, "--by", "reason") if d["stage"] not in ("device", "transmit")]
        return {d["reason"]: d["packets"] for d in inside}

    until(lambda: counted().get("ingress_filter", 0) >= 2 and counted().get("rule", 0) >= 3)
    until(lambda: by_reason() == counted())
    filtered = [d for d in drops(w) if d["reason"] == "ingress_filter"]
    assert [(d["in_port"], d["rule"], d["packets"]) for d in filtered] == [
        (b.port, {"ingress_filter": "drop udp port 5000"}, 2)]
    assert by_reason()["ingress_filter"] == 2


def test_watching_shows_what_was_dropped_meanwhile(switch):
    w, a, b = switch
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "cookie=5,priority=50,icmp,actions=drop")
    assert a.ping("10.0.0.2", wait=1) == 0
    socket = w.dir / f"weir.{w.pid()}.ctl"
    watcher = subprocess.Popen([WEIR, "--socket", socket, "--json", "drops", "--watch", "--by", "reason"],
                               stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(watcher.stdout.readline()) is not None
        assert a.ping("10.0.0.2", wait=1) == 0
        seen = 0
        for line in watcher.stdout:
            seen += sum(d["packets"] for d in json.loads(line)["drops"] if d["reason"] == "rule")
            if seen >= 3:
                break
        assert seen == 3, "and none of those before"
    finally:
        watcher.kill()
        watcher.wait()
        watcher.stdout.close()


def test_what_no_flow_matches_has_its_table(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(PAIR.format(a=a, b=b).replace('local = false', 'local = false\nfail_mode = "secure"'))
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    assert a.ping("10.0.0.2", wait=1) == 0

    def missed():
        return sum(d["packets"] for d in drops(w, "--port", a.port)
                   if d.get("rule") == {"flow": {"bridge": "br0", "table": 0, "flow": None}})
    until(lambda: missed() >= 3)


def test_rows_add_up_when_a_port_has_gone(switch):
    w, a, b = switch
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "cookie=5,priority=50,icmp,actions=drop")
    assert a.ping("10.0.0.2", wait=1) == 0 and b.ping("10.0.0.1", wait=1) == 0

    def counted():
        return sum(of["drops"].get("rule", 0) for of in w.json("stats")["workers"])

    def rows():
        return sum(d["packets"] for d in drops(w) if d["reason"] == "rule")

    until(lambda: counted() >= 6 and rows() == counted())
    w.configure(PAIR.format(a=a, b=b).rpartition("[[bridge.port]]")[0])
    w.cli("reload")
    until(lambda: rows() == counted())
    assert not [d for d in drops(w) if d.get("in_port") == b.port]
    # What the other port drops has its flow still.
    assert of_rule(w, 5) == [(a.port, 0, 3)]
    w.configure(PAIR.format(a=a, b=b))
    w.cli("reload")
    until(lambda: b.ping("10.0.0.1", wait=1) == 0 and b.port in [port for port, _, _ in of_rule(w, 5)])
    assert (a.port, 0, 3) in of_rule(w, 5)
    until(lambda: rows() == counted())


#: What becomes of datagrams that come in at `{a}`, by their destination port; `{b}` is the only port that they may leave by.
WAYS = """
table=0,in_port={a},udp,tp_dst=1,actions={b}
table=0,in_port={a},udp,tp_dst=2,actions=drop
table=0,in_port={a},udp,tp_dst=4,actions=resubmit(,3)
table=0,in_port={a},udp,tp_dst=5,actions=meter:1,output:{b}
table=0,in_port={a},udp,tp_dst=6,actions={b}
table=0,in_port={a},udp,tp_dst=7,actions=ct(table=4)
table=0,in_port={a},udp,tp_dst=8,actions=ct(commit,table=5)
table=4,in_port={a},actions=drop
table=5,in_port={a},actions={b}
"""
#: Why some of them are dropped; what is sent to port 6 is larger than the other port's MTU.
REASONS = {"rule", "ingress_filter", "meter", "too_big"}


@pytest.mark.parametrize("seed", [1, 2])
def test_each_port_accounts_for_what_it_has_received(ovs, net, seed):
    """At rest, what came in at a port has been offered to the port that it is for, or has a row that names the one or the other."""
    rng = random.Random(seed)
    lab = Lab(ovs, net, count=6, offloads=False)
    lab.ovs.ofctl("add-meter", "br0", "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=5", version=13)
    lab.flows(*(WAYS.format(a=a, b=a + 1) for a in (1, 3, 5)))
    for a in 1, 3, 5:
        here, there = lab.hosts[a - 1], lab.hosts[a]
        lab.neighbour(here, f"10.0.0.{a + 1}", there.mac)
        run("ip", "link", "set", there.port, "mtu", 600)
        lab.ovs.cli("ingress", here.port, "set", "drop udp dst port 3")
    narrow = {lab.hosts[n].port for n in (1, 3, 5)}
    until(lambda: all(port["mtu"] == 600 for bridge in lab.ovs.json("show")["bridges"] for port in bridge["ports"]
                      if port["name"] in narrow), what="the ports' MTU")
    sent = {a: 0 for a in (1, 3, 5)}
    with udp(lab.hosts[0], "10.0.0.1") as one, udp(lab.hosts[2], "10.0.0.3") as two, udp(lab.hosts[4], "10.0.0.5") as three:
        sockets = {1: one, 3: two, 5: three}
        for _ in range(1500):
            a = rng.choice([1, 3, 3, 5])
            to = rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8])
            sockets[a].sendto(bytes(900 if to == 6 else rng.randrange(400)), (f"10.0.0.{a + 1}", to))
            sent[a] += 1

    def balance(a):
        here, there = (lab.hosts[n].port for n in (a - 1, a))
        by_name = {port["name"]: port["statistics"] for port in lab.ovs.json("ports")["ports"]}
        # What a port was offered and did not take is in its rows of the stage "transmit".
        lost = [row for row in drops(lab.ovs) if row["stage"] != "device" and (row.get("in_port") == here or row.get("out_port") == there)]
        return by_name[here]["rx_packets"], by_name[there]["tx_packets"], lost

    def is_even(a):
        came, went, lost = balance(a)
        return came >= sent[a] and came == went + sum(row["packets"] for row in lost)

    for a in sent:
        try:
            until(lambda: is_even(a), what=f"port {a} accounting for its packets")
        except AssertionError as e:
            raise AssertionError(f"{e}: {balance(a)}") from None
        assert {row["reason"] for row in balance(a)[2]} >= REASONS


def test_what_was_not_given_to_a_port_is_in_its_counters(ovs, net):
    """In OVS's: of the database, by OpenFlow, and of the datapath."""
    lab = Lab(ovs, net, offloads=False)
    lab.ovs.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=1000")
    here, there = lab.hosts
    lab.flows("in_port=1,udp,actions=2")
    lab.neighbour(here, "10.0.0.2", there.mac)
    run("ip", "link", "set", there.port, "mtu", 600)
    until(lambda: lab.ovs.get("interface", there.port, "mtu") == "600")

    def send(size, count):
        with udp(here, "10.0.0.1") as s:
            for _ in range(count):
                s.sendto(bytes(size), ("10.0.0.2", 9))

    def shown():
        row = dict(pair.split("=") for pair in lab.ovs.get("interface", there.port, "statistics").strip("{}").split(", "))
        text = lab.ovs.appctl("dpctl/show", "-s").partition(f": {there.port}")[2]
        return (int(row["tx_dropped"]), int(row.get("ovs_tx_mtu_exceeded_drops", 0)), lab.ovs.counters(2)["tx_drop"],
                int(text.partition("TX packets:")[2].partition("dropped:")[2].split()[0]))

    assert shown() == (0, 0, 0, 0)
    send(900, 5)
    until(lambda: shown() == (5, 5, 5, 5), what="the counters of what is too long")
    run("ip", "link", "set", there.port, "down")
    until(lambda: lab.ovs.get("interface", there.port, "admin_state") == "down")
    send(10, 3)
    until(lambda: shown() == (8, 5, 8, 8), what="the counters of what was for a port that is down")
