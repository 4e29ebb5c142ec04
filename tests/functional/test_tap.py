"""`weir tap`: packets with what becomes of each, as text, as JSON and as a capture file that Wireshark's tools read."""

import json
import os
import signal
import socket
import subprocess
import tempfile

import pytest
from conftest import WEIR, until
from lib.daemon import config
from lib.net import run

#: How many taps there can be at a time.
TAPS = 16


class Tap:
    """`weir tap` in the background. It is in force when this returns."""

    def __init__(self, weir, *args, stdout=None):
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))
        self.proc = subprocess.Popen([WEIR, *map(str, args)], env=weir.env, stdin=subprocess.DEVNULL,
                                     stdout=stdout or self.out, stderr=self.err)
        until(lambda: "looking at packets" in self.said() or self.proc.poll() is not None, what="a tap")

    def read(self, file):
        return os.pread(file.fileno(), 1 << 24, 0).decode()

    def said(self):
        """What is on standard error."""
        return self.read(self.err)

    def lines(self):
        """What has been shown so far."""
        return self.read(self.out).splitlines()

    def shows(self, *words):
        """Waits for a line with all of these words, and returns it."""
        def found():
            return next((line for line in self.lines() if all(word in line for word in words)), None)
        return until(found, what=f"a line with {words} among {self.lines()}")

    def end(self):
        """Ends it as Ctrl-C does, and returns what it has shown, how many it says it has, and how many are lost."""
        self.proc.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self):
        assert self.proc.wait(20) == 0, self.said()
        words = self.said().splitlines()[-1].split()
        assert words[:1] == ["weir:"], self.said()
        return self.lines(), int(words[1]), int(words[4])


@pytest.fixture
def tap(weir):
    """A function that starts a tap, which ends with the test."""
    started = []

    def start(*args, **kw):
        started.append(Tap(*args, **kw))
        return started[-1]

    yield start
    for one in started:
        if one.proc.poll() is None:
            one.proc.kill()
        one.proc.wait()


@pytest.fixture
def dummies(weir):
    """A switch with three dummy ports, p1 to p3, without flows."""
    w = weir(config([(f"p{n}", "dummy", f"ofport = {n}") for n in (1, 2, 3)], more='fail_mode = "secure"'))
    return w


def flows(w, *texts):
    for text in texts:
        w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", text, version=13)


def frame(port, source=1, udp=53):
    """A datagram, as netdev-dummy/receive takes it."""
    return (port, f"in_port({port[1:]}),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),"
                  f"ipv4(src=10.0.0.{source},dst=10.0.0.9,proto=17,tos=0,ttl=64,frag=no),udp(src=7,dst={udp})")


def receive(w, *args, **kw):
    w.appctl("netdev-dummy/receive", *frame(*args, **kw))


def tshark(file, *fields):
    """The packets of a capture file, each as a list of these fields."""
    args = [word for field in fields for word in ("-e", field)]
    text = run("tshark", "-r", file, "-T", "fields", "-E", "separator=|", *args).stdout
    return [line.split("|") for line in text.splitlines()]


def test_a_capture_file_has_ports_directions_and_verdicts(dummies, tap, tmp_path):
    w, file = dummies, tmp_path / "seen.pcapng"
    flows(w, "cookie=0x11,priority=5,udp,in_port=1,nw_src=10.0.0.1,actions=resubmit(,3)",
          "cookie=0x12,table=3,priority=7,udp,actions=mod_vlan_vid:7,output:2",
          "cookie=0x13,priority=6,udp,nw_src=10.0.0.2,actions=drop")
    one = tap(w, "tap", "-w", file, "-c", 6)
    for source in (1, 1, 2, 2):
        receive(w, "p1", source)
    _, shown, lost = one.ended()
    assert (shown, lost) == (6, 0)
    names = ("frame.interface_name", "frame.packet_flags_direction", "vlan.id", "ip.src", "frame.comment")
    packets = tshark(file, *names)
    assert [packet[:4] for packet in packets] == [
        ["p1", "0x00000001", "", "10.0.0.1"], ["p2", "0x00000002", "7", "10.0.0.1"]] * 2 + [
        ["p1", "0x00000001", "", "10.0.0.2"]] * 2, "as it came, and rewritten as it leaves"
    for packet in packets[0], packets[2]:
        verdict = packet[4]
        assert verdict.startswith("forwarded to p2"), verdict
        assert "ufid:" in verdict and "in_port(p1)" in verdict and "push_vlan(vid=7,pcp=0),p2" in verdict, verdict
        assert "br0 table=0 priority=5 cookie=0x11; table=3 priority=7 cookie=0x12" in verdict, verdict
    for packet in packets[4:]:
        verdict = packet[4]
        assert verdict.startswith("dropped: rule"), verdict
        assert "dropped by br0 table=0 cookie=0x13 priority=6,udp,nw_src=10.0.0.2" in verdict, verdict
    about = run("capinfos", file).stdout
    assert "Weir" in about.replace("weir", "Weir") and "Number of packets:   6" in about, about
    assert "Number of interfaces in file: 3" in about and "Time precision = nanoseconds (9)" in about, about
    # An older reader, and one that reads while it is written.
    assert len(run("tcpdump", "-nr", file).stdout.splitlines()) == 6


def test_tshark_reads_it_live(dummies, tap):
    w = dummies
    flows(w, "priority=5,udp,actions=output:2")
    reader, writer = os.pipe()
    with tempfile.TemporaryFile("w+") as out:
        shark = subprocess.Popen(["tshark", "-l", "-r", "-", "-T", "fields", "-e", "udp.dstport", "-e", "frame.comment"],
                                 stdin=reader, stdout=out, stderr=subprocess.DEVNULL)
        os.close(reader)
        one = tap(w, "tap", "--rx", "-w", "-", "p1", stdout=writer)
        os.close(writer)
        for port in (1001, 1002):
            receive(w, "p1", udp=port)
            line = until(lambda: next((line for line in one.read(out).splitlines() if line.startswith(str(port))), None),
                         20, "tshark")
            assert "forwarded to p2" in line, line
        one.end()
        assert shark.wait(20) == 0


def test_each_drop_has_its_reason_and_its_rule(dummies, tap):
    w = dummies
    w.ofctl("add-meter", f"unix:{w.dir}/br0.mgmt", "meter=1,pktps,burst,bands=type=drop,rate=1,burst_size=1", version=13)
    flows(w, "cookie=0x21,priority=5,udp,nw_src=10.0.0.1,actions=drop",
          "cookie=0x22,priority=5,udp,nw_src=10.0.0.2,actions=meter:1,output:2",
          "cookie=0x23,priority=5,udp,nw_src=10.0.0.3,actions=output:3",
          "cookie=0x24,priority=5,udp,nw_src=10.0.0.4,actions=in_port,output:2")
    log = tap(w, "tap", "--drops")
    receive(w, "p1", 1)
    assert "p1 in 10.0.0.1:7 > 10.0.0.9:53 udp" in log.shows("dropped: rule", "dropped by br0 table=0 cookie=0x21 priority=5")
    receive(w, "p1", 77)
    log.shows("10.0.0.77", "dropped: rule", "br0 table=0: no flow")
    for _ in range(3):
        receive(w, "p1", 2)
    assert "cookie=0x22" in log.shows("p1 in", "dropped: meter")
    w.appctl("netdev-dummy/set-admin-state", "p3", "down")
    receive(w, "p1", 3)
    assert "cookie=0x23" in log.shows("p3 out", "dropped: port_down")
    w.cli("ingress", "p1", "set", "drop src host 10.0.0.4")
    receive(w, "p1", 4)
    log.shows("p1 in", "10.0.0.4", "dropped: ingress_filter")
    seen, shown, lost = log.end()
    assert shown == len(seen) and lost == 0
    dropped = sum(d["packets"] for d in w.json("drops")["drops"])
    assert shown == dropped, "each drop once, and nothing else"


def test_directions_and_ports(dummies, tap):
    w = dummies
    flows(w, "priority=5,udp,in_port=1,actions=output:2,output:3")
    both, rx, tx, third = (tap(w, "tap", *args) for args in ([], ["--rx"], ["--tx"], ["p3"]))
    receive(w, "p1")
    assert both.shows("p1 in", "forwarded to p2, p3")
    for way in both, tx:
        way.shows("p2 out", "sent"), way.shows("p3 out", "sent")
    third.shows("p3 out")
    assert [len(one.end()[0]) for one in (both, rx, tx, third)] == [3, 1, 2, 1]


def test_filters_of_both_kinds(dummies, tap):
    w = dummies
    flows(w, "priority=5,udp,in_port=1,actions=output:2")
    taps = [tap(w, "tap", "--rx", *words) for words in (
        ["p1", "udp", "port", "1002"], ["udp port 1002"], ["p1", "p2", "flow:udp,tp_dst=1002"],
        ["flow:ip,nw_src=10.0.0.2/31"], ["-i", "p2", "flow:udp"])]
    for source, port in ((1, 1001), (2, 1002), (4, 1003)):
        receive(w, "p1", source, udp=port)
    until(lambda: w.counters("p2")["tx_pkts"] == 3)
    assert [[line.split()[3] for line in one.end()[0]] for one in taps] == [["10.0.0.2:7"]] * 4 + [[]]


def test_what_is_wrong_is_said_and_an_old_file_stays(dummies, tmp_path):
    w, file = dummies, tmp_path / "old.pcapng"
    file.write_text("old")
    for args, words in (
        (["p9"], "p9: can't parse filter expression"), (["-i", "p9"], "p9: no port has this name"),
        (["udp", "port"], "udp port: "), (["flow:tcp,in_port=1"], "in_port is not in a frame"),
        (["flow:nonsense"], "flow:nonsense"), (["x" * 5000], "longer than 4096 bytes"), (["tcp;", "udp"], 'no ";"'),
    ):
        r = w.cli("tap", "-w", file, *args, check=False)
        assert r.returncode == 1 and words in r.stderr, r
    for args in ["-c", "0"], ["-s", "13"], ["-s", "300000"], ["--rate", "-1"], ["--rx", "--tx"]:
        assert w.cli("tap", *args, check=False).returncode == 2
    for full in "/dev/full", tmp_path / "no" / "x.pcapng":
        r = w.cli("tap", "-w", full, check=False)
        assert r.returncode == 1 and f"cannot write the capture file {full}: No s" in r.stderr, r
    assert "--count=x: this takes a number" in w.refusal("appctl", "weir/tap", "--count=x")
    assert file.read_text() == "old"


def test_lengths_and_json(dummies, tap, tmp_path):
    w, file = dummies, tmp_path / "short.pcapng"
    flows(w, "cookie=7,priority=5,udp,actions=output:2")
    one = tap(w, "tap", "--rx", "-s", 20, "-c", 1, "-w", file)
    two = tap(w, "--json", "tap", "-c", 2)
    receive(w, "p1")
    one.ended()
    length, captured = tshark(file, "frame.len", "frame.cap_len")[0]
    assert (int(captured), int(length) > 20) == (20, True)
    came, went = map(json.loads, two.ended()[0])
    assert (came["port"], came["direction"], came["verdict"]) == ("p1", "in", "forwarded to p2")
    assert "cookie=0x7" in came["rules"] and came["flow"].startswith("ufid:") and came["length"] == int(length)
    assert (went["port"], went["direction"]) == ("p2", "out")


def test_a_rate_leaves_out_the_others_and_says_so(dummies, tap):
    w = dummies
    flows(w, "priority=5,udp,actions=drop")
    one = tap(w, "tap", "--rate", 1, "--drops")
    port, text = frame("p1")
    w.appctl("netdev-dummy/receive", port, *[text] * 100)
    one.shows("dropped: rule")
    until(lambda: sum(d["packets"] for d in w.json("drops")["drops"]) == 100)
    _, shown, lost = one.end()
    left_out = int(one.said().split(", ")[-1].split()[0])
    assert shown < 100 and lost == 0 and shown + left_out == 100


@pytest.fixture
def hosts(weir, net):
    """A switch that joins two hosts which know each other's address, and these."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    b.run("ip", "neigh", "add", "10.0.0.1", "lladdr", a.mac, "dev", "eth0")
    w = weir(config([(host.port, "afpacket", "") for host in (a, b)]))
    until(lambda: a.ping("10.0.0.2", count=1) == 1, what="a ping")
    return w, a, b


def flood(a, count):
    """So many pings of a full frame. None may be missing."""
    assert a.ping("10.0.0.2", count, wait=20, size=1400, window=8) == count


def test_a_reader_that_stalls_loses_samples_and_no_packet(hosts, tap):
    w, a, _ = hosts
    one = tap(w, "tap", "-w", "/dev/null", "icmp")
    one.proc.send_signal(signal.SIGSTOP)
    flood(a, 4000)
    one.proc.send_signal(signal.SIGCONT)
    _, shown, lost = one.end()
    # Each ping and each answer, as it comes in and as it goes out.
    assert lost > 0 and shown + lost == 4 * 4000, (shown, lost)
    flood(a, 100)


def test_a_reader_that_is_killed_leaves_nothing(hosts, tap):
    w, a, _ = hosts
    for number in (signal.SIGKILL, signal.SIGTERM):
        taps = [tap(w, "tap", "-w", "/dev/null") for _ in range(TAPS)]
        refused = w.cli("tap", check=False)
        assert refused.returncode == 1 and "there are 16 taps already" in refused.stderr, refused
        # One that does not even read.
        taps[0].proc.send_signal(signal.SIGSTOP)
        flood(a, 500)
        for one in taps:
            one.proc.send_signal(number)
            one.proc.send_signal(signal.SIGCONT)
            one.proc.wait(20)

        def is_free():
            again = tap(w, "tap", "-c", 1)
            return again.proc.poll() is None and again.proc.kill() is None
        until(is_free, 20)
    flood(a, 100)
    # Its threads are gone, too.
    until(lambda: "tap" not in threads(w), 20)


def test_who_is_not_read_any_more_gives_its_place_back_without_a_packet(dummies, tap, tmp_path):
    w, fifo = dummies, tmp_path / "fifo"
    os.mkfifo(fifo)
    goes_on = tap(w, "tap", "-w", tmp_path / "x.pcapng", "-c", 1)
    for words in ["-w", "-"], []:
        reader, writer = os.pipe()
        one = tap(w, "tap", *words, stdout=writer)
        os.close(writer)
        os.close(reader)
        assert one.proc.wait(20) == 0, one.said()
    one = tap(w, "tap", "-w", fifo)
    with open(fifo, "rb", buffering=0) as reader:
        assert reader.read(1)
    assert one.proc.wait(20) == 0, one.said()
    until(lambda: threads(w).count("tap") == 1, what="the end of their threads")
    receive(w, "p1")
    assert goes_on.ended()[1] == 1


def threads(w):
    """The names of the daemon's threads."""
    names = []
    for task in os.listdir(f"/proc/{w.pid()}/task"):
        try:
            names.append(open(f"/proc/{w.pid()}/task/{task}/comm").read().strip())
        except OSError:
            pass
    return names


def test_clients_that_come_and_go_have_no_more_threads_than_there_can_be_taps(dummies):
    w, most = dummies, 0
    control = next(w.dir.glob("*.ctl"))
    for number in range(500):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(control))
            client.sendall(b'{"method":"weir/tap","params":[],"id":1}')
        if number % 10 == 0:
            most = max(most, threads(w).count("tap"))
    # And those that have given their places back, and have yet to end.
    assert most < 3 * TAPS, most
    until(lambda: "tap" not in threads(w), what="the end of their threads")


def test_a_port_that_goes_and_comes_back_is_seen_again(hosts, tap):
    w, a, b = hosts
    w.expect("afpacket|device|cannot be opened|No such device")
    one = tap(w, "tap", "--rx", a.port, "icmp")
    assert a.ping("10.0.0.2", count=1) == 1
    one.shows(f"{a.port} in", "10.0.0.1 > 10.0.0.2 icmp")
    run("ip", "link", "del", a.port)
    run("ip", "link", "add", a.port, "type", "veth", "peer", "name", "eth0", "netns", a.ns)
    run("ip", "link", "set", a.port, "up")
    a.run("ip", "link", "set", "eth0", "up")
    a.run("ip", "addr", "add", "10.0.0.1/24", "dev", "eth0")
    a.run("ip", "neigh", "add", "10.0.0.2", "lladdr", b.mac, "dev", "eth0")
    b.run("ip", "neigh", "replace", "10.0.0.1", "lladdr", a.mac, "dev", "eth0")
    until(lambda: a.ping("10.0.0.2", count=1, wait=1) == 1, 30, "the port again")
    before = len(one.lines())
    until(lambda: a.ping("10.0.0.2", count=1, wait=1) == 1 and len(one.lines()) > before, 20, "its packets")
    assert all(f"{a.port} in" in line for line in one.lines())


def test_a_port_that_gets_the_number_of_another_is_another_interface(dummies, tap, tmp_path):
    w, file = dummies, tmp_path / "x.pcapng"
    flows(w, "in_port=2,actions=drop")
    number = lambda name: next(line.split()[1].partition("/")[2].rstrip(":") for line in w.appctl("dpif/show").splitlines()
                               if line.split()[:1] == [name])
    lines, captured = tap(w, "tap", "--rx"), tap(w, "tap", "--rx", "-w", file)
    receive(w, "p2")
    lines.shows("p2 in")
    was = number("p2")
    w.configure(w.config.read_text().replace('"p2"', '"q2"'))
    w.cli("reload")
    assert number("q2") == was
    # Taps learn of it some tenths of a second later.
    until(lambda: (receive(w, "q2"), any("q2 in" in line for line in lines.lines()))[1], what="the new name")
    until(lambda: (receive(w, "q2"), b"q2" in file.read_bytes())[1], what="the new name in the capture file")
    receive(w, "q2")
    _, shown, lost = captured.end()
    assert lost == 0
    names = tshark(file, "frame.interface_name")
    assert len(names) == shown and names[0] == ["p2"] and names[-1] == ["q2"]


def test_wireshark_finds_ports_as_interfaces(dummies, tmp_path):
    w = dummies
    flows(w, "priority=5,udp,actions=output:2")
    link = tmp_path / "extcap" / "weir"
    link.parent.mkdir()
    link.symlink_to(WEIR)

    def ask(*args, **kw):
        return run(link, *args, env=w.env, **kw).stdout

    listed = ask("--extcap-interfaces", "--extcap-version=4.0")
    assert "extcap {version=" in listed and all(f"{{value=weir{p}}}" in listed for p in ("", "-p1", "-p2", "-p3")), listed
    assert "{number=1}{name=EN10MB}" in ask("--extcap-interface", "weir", "--extcap-dlts")
    assert "{call=--drops}" in ask("--extcap-interface", "weir", "--extcap-config")
    assert ask("--extcap-interface", "weir", "--extcap-capture-filter", "udp port 53") .strip() == ""
    assert "syntax error" in ask("--extcap-interface", "weir", "--extcap-capture-filter", "udp prt 53")
    # Where no daemon runs, there is still something to choose, which then says what is wrong.
    assert "{value=weir}" in run(link, "--extcap-interfaces", env=dict(w.env, OVS_RUNDIR=str(tmp_path))).stdout

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    capture = subprocess.Popen([link, "--capture", "--extcap-interface", "weir-p1", "--fifo", fifo, "--drops=false",
                                "--direction", "rx", "--extcap-capture-filter", "udp port 1002"],
                               env=w.env, stderr=subprocess.PIPE, text=True)
    with tempfile.TemporaryFile("w+") as out:
        shark = subprocess.Popen(["tshark", "-l", "-i", fifo, "-T", "fields", "-e", "udp.dstport", "-e", "frame.comment"],
                                 stdout=out, stderr=subprocess.DEVNULL)
        try:
            assert "looking at packets" in capture.stderr.readline()

            def seen():
                receive(w, "p1", udp=1001)
                receive(w, "p1", udp=1002)
                return os.pread(out.fileno(), 1 << 16, 0).decode()
            text = until(seen, 30, "dumpcap reading the pipe")
            assert all(line.startswith("1002\tforwarded to p2") for line in text.splitlines()), text
        finally:
            shark.terminate()
            shark.wait(20)
            capture.terminate()
            capture.wait(20)
            capture.stderr.close()


def test_established_connections_are_seen_step_by_step(dummies, tap):
    """Without a tap, one look-up stands for their whole way."""
    w = dummies
    flows(w, "priority=5,udp,actions=ct(table=1)", "table=1,priority=6,ct_state=+trk+new,udp,in_port=1,actions=ct(commit),output:2",
          "table=1,priority=5,ct_state=+trk+est,udp,in_port=1,actions=output:2",
          "table=1,priority=5,ct_state=+trk+est,udp,in_port=2,actions=output:1")
    there = frame("p1")[1]
    back = there.replace("in_port(1)", "in_port(2)").replace("src=10.0.0.1,dst=10.0.0.9", "src=10.0.0.9,dst=10.0.0.1")
    back = back.replace("udp(src=7,dst=53)", "udp(src=53,dst=7)")

    def talk(times):
        for _ in range(times):
            w.appctl("netdev-dummy/receive", "p1", there)
            w.appctl("netdev-dummy/receive", "p2", back)

    talk(5)
    one = tap(w, "tap")
    talk(5)
    one.shows("p1 out")
    seen, _, _ = one.end()
    ways = [line.split()[1:3] for line in seen]
    assert sorted(ways) == sorted([["p1", "in"], ["p2", "out"], ["p2", "in"], ["p1", "out"]] * 5), seen
    assert all("recirculated (0x" in line for line in seen if line.split()[2] == "in"), seen
    flows(w, "cookie=0x66,table=1,priority=9,udp,in_port=1,actions=drop")
    # What is dropped in a later pass goes one way, too, by now.
    talk(5)
    one = tap(w, "tap", "--drops")
    talk(2)
    one.shows("p1 in", "dropped: rule", "cookie=0x66")
    assert len(one.end()[0]) == 2
    talk(3)


def test_what_misses_and_what_controllers_get(dummies, tap):
    w = dummies
    flows(w, "priority=5,udp,nw_src=10.0.0.1,actions=controller", "priority=5,udp,nw_src=10.0.0.2,actions=ct(table=2)",
          "cookie=0x77,priority=1,table=2,actions=drop")
    one = tap(w, "tap", "--rx")
    receive(w, "p1", 1)
    one.shows("10.0.0.1:7", "sent to controllers")
    for _ in range(2):
        receive(w, "p1", 2)
    one.shows("10.0.0.2:7", "recirculated (0x")
    assert "10.0.0.2" in one.shows("dropped: rule", "dropped by br0 table=2 cookie=0x77")
    seen, shown, _ = one.end()
    assert shown == len(seen) == 5, seen
