"""`weir diff`: what changes of flows would do to the traffic that there is, and that nothing changes by asking."""

import json
import re
import threading

import pytest
from conftest import until
from lib.daemon import config


@pytest.fixture
def switch(weir):
    """Three dummy ports, p1 to p3."""
    w = weir(config([(f"p{n}", "dummy", f"ofport = {n}") for n in (1, 2, 3)], more='fail_mode = "secure"'))
    w.mgmt = f"unix:{w.dir}/br0.mgmt"
    return w


def flows(w, *texts):
    for text in texts:
        w.ofctl("add-flow", w.mgmt, text, version=13)


def dump(w):
    """The flows, without what changes by itself."""
    return sorted(re.sub(r" (duration|n_packets|n_bytes|idle_age|hard_age)=[^ ]*", "", line).strip()
                  for line in w.ofctl("dump-flows", w.mgmt, version=13).splitlines()[1:])


def receive(w, port="p1", source=1, udp=53):
    w.appctl("netdev-dummy/receive", port, f"in_port({port[1:]}),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),"
             f"eth_type(0x0800),ipv4(src=10.0.0.{source},dst=10.0.0.9,proto=17,tos=0,ttl=64,frag=no),udp(src=7,dst={udp})")


@pytest.fixture
def ask(switch, tmp_path):
    """A function that asks what lines of a file would do, and returns the exit status and the answer."""
    def ask(lines, *args):
        file = tmp_path / "flows"
        file.write_text(lines)
        r = switch.cli("diff", "br0", "--flows", file, *args, "--json", check=False)
        return r.returncode, json.loads(r.stdout) if r.stdout else r.stderr
    return ask


def sources(answer):
    """The source addresses of the listed flows, in order."""
    return [re.search(r"src=10.0.0.(\d)", flow["match"])[1] for flow in answer["listed"]]


def test_flows_that_would_change_are_listed_by_their_rate(switch, ask):
    w = switch
    flows(w, *(f"priority=5,udp,nw_src=10.0.0.{n},actions=output:2" for n in (1, 2, 3)))
    for source in (1, 2, 3):
        receive(w, source=source)
    until(lambda: w.counters("p2")["tx_pkts"] == 3)
    stop = threading.Event()

    def traffic():
        while not stop.wait(0.02):
            receive(w, source=2)

    sender = threading.Thread(target=traffic)
    sender.start()
    try:
        status, answer = ask("priority=9,udp,nw_src=10.0.0.0/30,tp_dst=53,actions=output:3\ndelete udp,nw_src=10.0.0.3\n"
                             "priority=8,udp,nw_src=10.0.0.3,actions=output:2\n")
    finally:
        stop.set()
        sender.join()
    assert status == 1 and (answer["flows"], answer["changed"], answer["undecided"]) == (3, 3, 0), answer
    assert sources(answer)[0] == "2" and answer["listed"][0]["pps"] > 1 and answer["listed"][1]["pps"] == 0
    assert answer["rules"] == {"added": 2, "modified": 0, "removed": 1}
    first = answer["listed"][0]
    assert first["before"]["outcome"] == "forwarded to p2" and first["after"]["outcome"] == "forwarded to p3"
    assert not first["is_whole"] and "dst=53" in first["packets_like"], first
    assert not answer["committed"] and not answer["tables_changed"]


def test_nothing_changes_by_asking(switch, ask):
    w = switch
    flows(w, "priority=5,udp,actions=learn(table=7,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),NORMAL",
          "priority=4,ip,actions=ct(commit,table=1)", "table=1,actions=CONTROLLER")
    receive(w)
    until(lambda: "table=7" in w.ofctl("dump-flows", w.mgmt, version=13))

    def state():
        return (dump(w), w.appctl("fdb/show", "br0").count("\n"), w.appctl("dpctl/dump-conntrack"), w.counters("p2"),
                w.json("stats")["flows"], sorted(re.sub(r"used:\S+", "", flow["text"]) for flow in w.json("flows")["datapath"]))

    before = state()
    status, answer = ask("delete table=7\npriority=99,udp,actions=ct(commit,table=1),CONTROLLER\nmodify ip,actions=drop\n")
    assert status == 1 and answer["changed"] == 1, answer
    assert state() == before
    # What is asked for is what there is: exit status 0.
    flow_file = "".join(f"{line}\n" for line in w.ofctl("--no-stats", "dump-flows", w.mgmt).splitlines() if "actions" in line)
    status, answer = ask(flow_file, "--replace")
    assert (status, answer["changed"], answer["rules"]) == (0, 0, {"added": 0, "modified": 0, "removed": 0}), answer


def test_a_commit_makes_the_changes_at_once_and_they_do_what_was_said(switch, ask):
    w = switch
    flows(w, "priority=5,udp,actions=output:2", "priority=1,actions=drop")
    receive(w)
    until(lambda: w.counters("p2")["tx_pkts"] == 1)
    status, answer = ask("priority=5,udp,actions=output:3\nadd priority=2,tcp,actions=output:2\n", "--replace", "--commit")
    assert status == 1 and answer["committed"], answer
    assert answer["rules"] == {"added": 1, "modified": 1, "removed": 1}
    assert [flow["after"]["outcome"] for flow in answer["listed"]] == ["forwarded to p3"]
    assert len(dump(w)) == 2 and not any("priority=1 " in line for line in dump(w))
    before = w.counters("p3")["tx_pkts"]
    w.ofctl("add-flow", w.mgmt, "table=9,actions=drop")
    receive(w)
    until(lambda: w.counters("p3")["tx_pkts"] == before + 1)


def test_expectations_say_whether_packets_still_arrive(switch, ask, tmp_path):
    w, reach = switch, tmp_path / "reach"
    flows(w, "priority=5,ip,actions=ct(table=1)", "table=1,priority=9,udp,tp_dst=53,actions=output:2,output:3",
          "table=1,priority=1,actions=drop")
    reach.write_text("# what has to go on\nin_port=p1,udp,tp_dst=53 -> output:2,output:p3\nin_port=p1,tcp,tp_dst=23 -> drop\n")
    status, answer = ask("", "--expect", reach)
    assert (status, answer["expectations"]) == (0, {"total": 2, "unmet": []}), answer
    closing = "table=1,cookie=0x77,priority=20,udp,actions=output:2\n"
    status, answer = ask(closing, "--expect", reach, "--commit")
    (unmet,) = answer["expectations"]["unmet"]
    assert status == 1 and not answer["committed"], answer
    assert (unmet["line"], unmet["expected"], unmet["found"]) == (2, "output:p2,output:p3", "output:p2")
    assert "table 1: priority=20,cookie=0x77,udp actions=output:p2" in unmet["rules"]
    assert len(dump(w)) == 3, "nothing is done that would surprise"
    reach.write_text("in_port=p1,udp,tp_dst=53 -> output:p2\n")
    status, answer = ask(closing, "--expect", reach, "--commit")
    assert status == 0 and answer["committed"] and len(dump(w)) == 4, answer
    r = w.cli("diff", "br0", "--expect", reach)
    assert "1 of 1 expectations are met." in r.stdout, r.stdout
    reach.write_text("in_port=p1,udp -> output:p9\n")
    status, said = ask("", "--expect", reach)
    assert status == 2 and "reach:1: p9: the bridge has no such port" in said, said


@pytest.mark.parametrize("lines, args, error", [
    ("udp,actions=drop\nnonsense\n", [], "flows:2: "),
    ("delete udp\n", ["--replace"], "flows:1: with --replace, a line is a flow that is to be there"),
    ("udp,actions=drop\nudp,actions=group:9\n", [], "change 2: "),
])
def test_mistakes_are_named_with_status_2(switch, ask, lines, args, error):
    status, said = ask(lines, *args)
    assert status == 2 and error in said, said
    assert dump(switch) == []


def test_what_is_no_bridge_and_no_file(switch, tmp_path):
    for args, error in ((["br9", "--flows", tmp_path], "no such bridge: br9"), (["br0", "--flows", tmp_path], "not a regular file"),
                        (["br0", "--flows", tmp_path / "none"], "No such file")):
        r = switch.cli("diff", *args, check=False)
        assert r.returncode == 2 and error in r.stderr, r
