"""`weir top` and `weir stats --interval`: rates, rankings, and the screen on a real terminal."""

import json
import os
import pty
import select
import signal
from pathlib import Path

import pytest
from conftest import WEIR, until
from lib.net import pair, run
from lib.terminal import Terminal

@pytest.fixture
def switch(weir, net):
    """A switch that joins two hosts, one of which sends 200 pings in a second to the other, of which every second one is dropped."""
    w, a, b = pair(weir, net)
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "cookie=0x2a,priority=50,icmp,nw_tos=32,actions=drop")
    a.start("ping", "-q", "-i", "0.01", "10.0.0.2")
    a.start("ping", "-q", "-Q", "32", "-i", "0.01", "10.0.0.2")
    until(lambda: sum(worker["drops"].get("rule", 0) for worker in w.json("stats")["workers"]) > 10)
    return w, a, b


@pytest.fixture
def terminal():
    """A function that starts a program on a terminal."""
    started = []

    def start(*command, **kw):
        started.append(Terminal(*command, **kw))
        return started[-1]

    yield start
    for each in started:
        each.close()


def measurement(w, *args):
    return w.json("top", "--once", *args)


def test_stats_by_interval(switch):
    w, a, b = switch
    text = w.cli("stats", "--interval", "0.5", "--count", "3").stdout.splitlines()
    headings, *lines = [line.split() for line in text]
    assert len(lines) == 3 and headings[0] == "rx/s", text
    rates = [int(line[0]) for line in lines]
    assert all(0 < rate < 1000 for rate in rates), text
    objects = [json.loads(line) for line in w.cli("--json", "stats", "--interval", "0.5", "--count", "2").stdout.splitlines()]
    assert len(objects) == 2
    for rates in objects:
        total = rates["total"]
        assert 0.4 < rates["interval_s"] < 5 and 0 < total["packets"] < 1000 and total["dropped"] > 0, rates
        assert 0 < total["busy_percent"] <= 100 and total["cycles_per_packet"] > 0
        assert abs(sum(each["packets"] for each in rates["workers"]) - total["packets"]) < 1
    assert w.cli("stats", "--count", "2", check=False).returncode == 2
    assert "0.1 to 3600" in w.cli("stats", "--interval", "0", check=False).stderr


def test_one_measurement_has_rates_and_rankings(switch):
    w, a, b = switch
    s = measurement(w, "--rows", "5")
    ports = {port["name"]: port for port in s["ports"]}
    assert 10 < ports[a.port]["rx_packets"] < 400 and ports[a.port]["link"] == "up", ports
    assert 5 < ports[a.port]["drops"]["rule"] < 200 and ports[b.port]["dropped"] == 0, ports
    assert {queue["port"] for queue in s["queues"]} == {a.port, b.port}
    assert s["upcalls"]["now"]["flows"] >= 2 and s["upcalls"]["now"]["handlers"] >= 1
    assert s["connections"]["limit"] > 0
    flow = s["flows"]["rows"][0]
    assert flow["packets_per_s"] > 5 and "actions:" in flow["text"] and flow["port"] in ports, flow
    assert s["flows"]["of"] == s["upcalls"]["now"]["flows"]
    dropping = next(rule for rule in s["rules"]["rows"] if rule["cookie"] == 0x2a)
    assert 5 < dropping["packets_per_s"] < 200 and "priority=50,icmp,nw_tos=32 actions=drop" in dropping["text"]
    drop = s["drops"]["rows"][0]
    assert drop["reason"] == "rule" and drop["in_port"] == a.port and 5 < drop["packets_per_s"] < 200, drop
    assert drop["rule"]["flow"]["flow"]["cookie"] == 0x2a
    text = w.cli("top", "--once").stdout
    for words in ("ports", "workers", "queues", "datapath flows (", "OpenFlow rules (", "drops (", "tracked connections",
                  "slow path", a.port):
        assert words in text, text


def test_a_rule_leads_to_its_datapath_flows(switch):
    w, a, b = switch
    rule = next(rule for rule in measurement(w)["rules"]["rows"] if rule["cookie"] == 0x2a)
    answer = json.loads(w.appctl("weir/top", "flows", f"rule={rule['bridge']}/{rule['id']}", "interval=0.2"))
    assert answer["of"] == 1 and "actions:drop" in answer["rows"][0]["text"], answer
    of_port = json.loads(w.appctl("weir/top", "flows", f"port={b.port}", "interval=0.2"))
    assert of_port["of"] >= 1 and {row["port"] for row in of_port["rows"]} == {b.port}, of_port
    w.ofctl("del-flows", f"unix:{w.dir}/br0.mgmt", "icmp")
    assert "no such rule any more" in w.refusal("appctl", "weir/top", "flows", f"rule=br0/{rule['id']}", "interval=0.2")


@pytest.mark.parametrize("words, says", [
    (["ports"], "neither flows, rules, drops nor pairs"),
    (["flows", "most=100000"], "from 1 to 1000"),
    (["flows", "interval=0"], "0.1 to 60"),
    (["flows", "port=nobody", "interval=0.1"], "no such port in the datapath: nobody"),
    (["rules", "bridge=nobody", "interval=0.1"], "no such bridge: nobody"),
    (["flows", "rule=br0/0:1:1", "interval=0.1"], "no such rule any more"),
])
def test_what_cannot_be_ranked_is_said(switch, words, says):
    assert says in switch[0].refusal("appctl", "weir/top", *words)


def test_of_many_rules_the_answer_has_only_the_first(switch, tmp_path):
    w, a, b = switch
    many = tmp_path / "flows"
    many.write_text("".join(f"table=7,priority={n % 100},ip,nw_dst=10.{n >> 16}.{n >> 8 & 255}.{n & 255},actions=drop\n"
                            for n in range(3_000)))
    w.ofctl("add-flows", f"unix:{w.dir}/br0.mgmt", many)
    text = w.appctl("weir/top", "rules", "most=3", "interval=0.2")
    answer = json.loads(text)
    assert answer["of"] >= 3_000 and len(answer["rows"]) == 3 and len(text) < 5_000
    assert answer["rows"][0]["packets_per_s"] >= answer["rows"][1]["packets_per_s"] > 0
    assert {rule["table"] for rule in answer["rows"][:2]} == {0}

    # Nothing is kept, and no thread is left, when nobody has asked for a while.
    def threads():
        return {(task / "comm").read_text().strip() for task in Path(f"/proc/{w.pid()}/task").iterdir()}
    assert "top" in threads()
    until(lambda: "top" not in threads(), 40, "the end of the thread")
    assert json.loads(w.appctl("weir/top", "rules", "most=1", "interval=0.1"))["rows"]


def test_clients_that_ask_together_are_all_answered(switch):
    import threading
    w, a, b = switch
    answers = []
    asking = [threading.Thread(target=lambda n=n: answers.append(json.loads(
        w.appctl("weir/top", ("flows", "rules", "drops")[n % 3], f"most={n + 1}", "interval=0.5")))) for n in range(12)]
    for each in asking:
        each.start()
    # Who only counts is not held up by those who wait.
    assert w.json("stats")["workers"]
    for each in asking:
        each.join()
    assert len(answers) == 12 and all(answer["rows"] and answer["interval_s"] > 0.05 for answer in answers)


def test_the_screen_in_80_columns(switch, terminal):
    w, a, b = switch
    t = terminal(WEIR, "top", "--interval", "0.5", env=w.env)
    text = t.shows("weir top - weir", f"process {w.pid()}", "rx bit/s", a.port, b.port, "q:end")
    assert len(text.splitlines()) <= 24 and all(len(line) <= 80 for line in text.splitlines())

    def rate(port):
        line = next((line for line in t.lines() if line.startswith(port)), "")
        return line.split()[2:3]
    until(lambda: rate(a.port) not in ([], ["0"]), what="a rate")
    t.press("2")
    t.shows("busy %", "tier1%", "all")
    t.press("3")
    t.shows("queue", "worker", "enabled")
    t.press("4")
    t.shows("datapath flows (", "eth_type(0x0800)", a.port)
    t.press("5")
    t.shows("OpenFlow rules (", "priority=50,icmp,nw_tos=32 actions=drop")
    t.press("6")
    t.shows("drops (", "rule", "cookie=0x2a")
    t.press("7")
    t.shows("tracked connections", "dpctl/ct-set-maxconns")
    t.press("8")
    t.shows("slow path", "flow-limit", "handler threads")
    t.press("?")
    t.shows("Keys", "choose a view", "docs/top.md")
    t.press("x")
    # A port leads to what belongs to it.
    t.press("1")
    t.shows("rx bit/s")
    t.press("/", *a.port, "Enter")
    until(lambda: b.port not in t.text(), what="the filter")
    t.press("Enter")
    t.shows(f"port {a.port}", "receive queues", "drops (1 of 1)", "datapath flows (", "cookie=0x2a")
    t.press("Escape")
    t.shows(b.port)
    # A rule leads to its datapath flows.
    t.press("5")
    t.shows("nw_tos=32 actions=drop")
    t.press("/", *"0x2a", "BSpace", "BSpace", "BSpace", "BSpace", *"nw_tos", "Enter")
    until(lambda: "NORMAL" not in t.text(), what="the filter")
    t.press("Enter")
    t.shows("datapath flows (1 of 1)", "tos=0x20", "rule cookie=0x2a priority=50,icmp,nw_tos=32 actions=drop")
    t.press("Enter")
    t.shows("ufid:", "actions:drop")
    t.press("q")
    t.shows("ended 0")


def test_the_screen_follows_the_size_of_the_terminal(switch, terminal):
    w, a, b = switch
    t = terminal(WEIR, "top", env=w.env)
    t.shows(a.port, "q:end")
    t.resize(40, 10)
    until(lambda: len(t.lines()) <= 10 and "q:end" in t.lines()[-1] and a.port in t.text(), what="a small screen")
    t.resize(10, 3)
    t.shows("too small")
    t.resize(160, 50)
    until(lambda: "q:end" in (t.lines() or [""])[-1] and "bridge" in t.text(), what="a large screen")
    t.press("C-c")
    t.shows("ended 0")


def test_the_screen_outlives_the_switch(switch, terminal):
    w, a, b = switch
    t = terminal(WEIR, "top", "--interval", "0.5", env=w.env)
    t.shows(f"process {w.pid()}", a.port)
    w.kill()
    t.shows("no answer: ", a.port)
    t.press("2")
    t.shows("tier1%")
    w.start()
    t.shows(f"process {w.pid()}", "q:end")
    t.press("1")
    t.shows(a.port, "q:end")
    # A switch that stalls is waited for, and keys work.
    os.kill(w.pid(), signal.SIGSTOP)
    try:
        t.shows("no answer for", seconds=20)
        t.press("?")
        t.shows("Keys")
        t.press("q", "q")
        t.shows("ended 0")
    finally:
        os.kill(w.pid(), signal.SIGCONT)


def test_a_signal_leaves_the_terminal_as_it_was(switch, terminal):
    w, a, b = switch
    pid_file = w.dir / "top.pid"
    t = terminal("sh", "-c", f"stty -a > {w.dir}/before; sh -c 'echo $$ > {pid_file}; exec {WEIR} top'; stty -a > {w.dir}/after",
                 env=w.env)
    t.shows(a.port)
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    t.shows("ended 0")
    assert (w.dir / "after").read_text() == (w.dir / "before").read_text()
    assert "rx bit/s" not in t.text(), "the screen is the one of before"


@pytest.mark.parametrize("hears", [True, False], ids=["told", "not told"])
def test_it_ends_with_its_terminal(switch, hears):
    """As when a connection by ssh is lost: whether a signal tells of it or not, the program does not stay behind, and busy."""
    pid, terminal = pty.fork()
    if pid == 0:
        if not hears:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve(str(WEIR), [str(WEIR), "top", "--interval", "0.2"], dict(switch[0].env, TERM="xterm"))
    ended = False
    try:
        # Something is drawn.
        assert select.select([terminal], [], [], 10)[0]
        os.close(terminal)
        until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, 10, "its end")
        ended = True
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_text_of_the_switch_is_no_command_for_the_terminal(ovs, terminal):
    """Names come from a database that others may write."""
    ovs.start()
    ovs.expect("evil")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    ovs.vsctl("--no-wait", "--", "--id=@i", "create", "interface", 'name="evil\\u001b[2J\\u009b"', "type=dummy", "--",
              "--id=@p", "create", "port", 'name="evil\\u001b[2J\\u009b"', "interfaces=@i", "--", "add", "bridge", "br0", "ports", "@p")
    until(lambda: any("evil" in port["name"] for port in ovs.json("ports")["ports"]))
    for args in (["top", "--once"], ["--json", "top", "--once"]):
        text = ovs.cli(*args).stdout
        assert "evil" in text and not any(c != "\n" and (c < " " or "\x7f" <= c <= "\x9f") for c in text), repr(text)
    t = terminal(WEIR, "--socket", ovs.dir / f"ovs-vswitchd.{ovs.pid()}.ctl", "top", env=ovs.env)
    t.shows("evil?[2J?", "br0")


def test_top_needs_a_terminal_or_once(switch):
    w = switch[0]
    r = w.cli("top", check=False)
    assert r.returncode == 1 and "--once" in r.stderr, r


def test_top_without_a_daemon(tmp_path):
    r = run(WEIR, "top", "--once", check=False, env=dict(os.environ, OVS_RUNDIR=str(tmp_path)))
    assert r.returncode == 1 and "weir run" in r.stderr, r.stderr
