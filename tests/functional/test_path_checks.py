"""BFD and CFM with real peers: FRR's bfdd, tunnels between two Weirs, and many sessions while flows change."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from lib.net import run
from lib.tunnel import Capture, namespace
from lib.wait import until

#: Where the cables are of one machine, a port's device goes before the daemon does.
EXPECTED = [r"No such device\)?$"]

FRR = Path("/usr/lib/frr")
PEER = "10.0.0.1"

#: A client, and two ways to the same place, of which the first is checked.
TWO_WAYS = """
[[bridge]]
name = "br0"
local = false
[[bridge.port]]
name = "{first.port}"
ofport = 1
{checks}
[[bridge.port]]
name = "{second.port}"
ofport = 2
[[bridge.port]]
name = "{client.port}"
ofport = 3
"""
GROUP = "group_id=1,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:2,output:2"


class Frr:
    """zebra and bfdd in the namespace of a host, with one session to `PEER`."""

    def __init__(self, host, peer_mac, interval=100):
        self.host, self.dir = host, Path(tempfile.mkdtemp(prefix="weir-frr-"))
        # FRR's programs run as a user of their own.
        shutil.chown(self.dir, "frr", "frr")
        common = ["-z", self.dir / "zserv", "--vty_socket", self.dir]
        host.run("ip", "neigh", "replace", PEER, "lladdr", peer_mac, "dev", "eth0", "nud", "permanent")
        self.start("zebra", *common, "-i", self.dir / "zebra.pid")
        until(lambda: (self.dir / "zserv").exists(), what="zebra")
        (self.dir / "bfdd.conf").write_text(
            f"bfd\n peer {PEER} interface eth0\n  receive-interval {interval}\n  transmit-interval {interval}\n")
        self.bfdd = self.start("bfdd", *common, "-i", self.dir / "bfdd.pid", "--bfdctl", self.dir / "bfdd.sock",
                               "-f", self.dir / "bfdd.conf")
        until(lambda: (self.dir / "bfdd.vty").exists(), what="bfdd")

    def start(self, program, *args):
        return self.host.start(FRR / program, *args, "--log", "stdout")

    def signal(self, number):
        """A signal to bfdd itself: it was started by `ip netns exec`, which has become it."""
        self.bfdd.send_signal(number)

    def peer(self):
        """What FRR says of the session."""
        shown = self.host.run("vtysh", "--vty_socket", self.dir, "-d", "bfdd", "-c", "show bfd peers json", check=False)
        peers = json.loads(shown.stdout or "[]")
        return peers[0] if peers else {}


@pytest.fixture
def frr(net):
    """Starts FRR at a host. Its files go after the test; `net` ends its programs."""
    started = []

    def start(*args, **kw):
        started.append(Frr(*args, **kw))
        return started[-1]

    yield start
    for each in started:
        shutil.rmtree(each.dir, ignore_errors=True)


@pytest.fixture
def two_ways(weir, net):
    """A daemon whose port 1 leads to FRR."""
    first, second, client = net.host("10.0.0.2/24", mac="02:00:00:00:00:02"), net.host(), net.host()
    checks = ('bfd = { enable = true, min_rx = 100, min_tx = 100, bfd_src_ip = "10.0.0.1", bfd_dst_ip = "10.0.0.2", '
              'bfd_local_src_mac = "02:00:00:00:00:01", bfd_local_dst_mac = "02:00:00:00:00:02" }')
    daemon = weir(TWO_WAYS.format(first=first, second=second, client=client, checks=checks))
    daemon.ofctl("add-group", "br0", GROUP, version=13)
    daemon.ofctl("add-flow", "br0", "in_port=3,actions=group:1", version=13)
    yield daemon, first, second, client


def status(daemon, *names):
    """Lines of `bfd/show` of a port, by their names."""
    text = daemon.appctl("bfd/show", *names)
    return dict(re.findall(r"^  ([^:\n]+): (.*)$", text, re.M))


def arrives(client, host):
    """Whether a frame of the client's gets to a host."""
    sniffer = host.sniff("-Q", "in", "ether", "proto", "0x0806")
    client.run("python3", "-c", "import socket\ns=socket.socket(socket.AF_PACKET,socket.SOCK_RAW)\ns.bind(('eth0',0))\n"
               "s.send(bytes.fromhex('ffffffffffff0200000000aa0806')+bytes(46))")
    try:
        until(lambda: "0200000000aa" in sniffer.seen().replace(":", ""), 5)
    except AssertionError:
        return False
    return True


def test_frr_comes_up_and_is_missed(two_ways, frr, tmp_path):
    daemon, first, second, client = two_ways
    assert status(daemon, first.port)["Forwarding"] == "false"
    capture = Capture(first, tmp_path / "bfd.pcap", "udp", "port", 3784)
    bfdd = frr(first, "02:00:00:00:00:01")
    until(lambda: status(daemon, first.port)["Local Session State"] == "up", 20, "the session")
    until(lambda: bfdd.peer().get("status") == "up", what="the session at FRR")
    until(lambda: bfdd.peer().get("remote-transmit-interval") == 100, what="the interval at FRR")
    assert status(daemon, first.port)["Remote Detect Multiplier"] == "3"
    until(lambda: arrives(client, first), what="the first way")
    # The peer stops without a word. Three intervals of 100 ms, and no more than some seconds on a busy machine.
    bfdd.signal(signal.SIGSTOP)
    until(lambda: status(daemon, first.port)["Local Diagnostic"] == "Control Detection Time Expired", what="the detection")
    until(lambda: arrives(client, second), what="the other way")
    assert not arrives(client, first)
    assert "LIVE" not in daemon.ofctl("dump-ports-desc", "br0", "1", version=15).split("speed")[0]
    bfdd.signal(signal.SIGCONT)
    until(lambda: status(daemon, first.port)["Local Session State"] == "up", 20, "the session again")
    until(lambda: arrives(client, first), what="the first way again")
    # What Weir has sent is as it should be.
    capture.stop()
    shark = ["tshark", "-r", capture.path]
    assert "BFD Control" in run(*shark).stdout
    assert run(*shark, "-Y", "_ws.malformed || _ws.short || _ws.expert.severity >= 0x600000").stdout == ""
    ttls = run(*shark, "-Y", f"ip.src == {PEER}", "-T", "fields", "-e", "ip.ttl", "-e", "udp.checksum.status").stdout
    assert set(ttls.split("\n")) <= {"255\t2", "255\t1", ""}, ttls


def test_frr_closes_the_session(two_ways, frr):
    """An operator of the peer takes the session down; that is told by a packet, and nobody waits for the detection time."""
    daemon, first, second, client = two_ways
    bfdd = frr(first, "02:00:00:00:00:01")
    until(lambda: status(daemon, first.port)["Local Session State"] == "up", 20, "the session")
    bfdd.host.run("vtysh", "--vty_socket", bfdd.dir, "-d", "bfdd", "-c", "configure terminal", "-c", "bfd", "-c",
                 f"peer {PEER} interface eth0", "-c", "shutdown")
    until(lambda: status(daemon, first.port)["Local Diagnostic"] == "Neighbor Signaled Session Down", what="the news")
    assert status(daemon, first.port)["Remote Session State"] in ("admin_down", "down")
    until(lambda: arrives(client, second), what="the other way")


def test_commands(two_ways):
    daemon, first, second, client = two_ways
    assert daemon.appctl("bfd/set-forwarding", first.port, "true") == "OK\n"
    assert arrives(client, first)
    assert daemon.appctl("bfd/set-forwarding", "normal") == "OK\n"
    assert arrives(client, second)
    assert daemon.appctl("cfm/show") == "\n" or daemon.appctl("cfm/show") == ""
    for words, refusal in [(("bfd/show", "no"), "no such bfd object"), (("bfd/set-forwarding", "no", "true"), "no such BFD object"),
                           (("bfd/set-forwarding", "perhaps"), "unknown fault string"), (("cfm/show", "no"), "no such CFM object"),
                           (("cfm/set-fault", "no", "true"), "no such CFM object")]:
        assert refusal in daemon.refusal("appctl", *words)


def test_mistakes_in_a_file_are_named(weir, net):
    host = net.host()
    text = TWO_WAYS.format(first=host, second=net.host(), client=net.host(),
                           checks="bfd = { enable = true, min-rx = 5 }\ncfm-mpid = 99\ncfm = { cfm_opstate = \"sideways\" }")
    daemon = weir(text, start=False)
    refused = daemon.cli("check", daemon.config, check=False)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    for words in ("min-rx", "no option of this name", "cfm_opstate", "sideways", "up or down"):
        assert words in said, said


#: Two bridges joined by cables, whose ends check each other. They forward nothing, for that would be a loop.
MANY = """
[[bridge]]
name = "br0"
local = false
fail-mode = "secure"
{lefts}
[[bridge]]
name = "br1"
local = false
fail-mode = "secure"
{rights}
"""


#: Of their sessions, in milliseconds: three of them are more than a thread waits for a core on a busy machine.
INTERVAL = 500


def many(ends, peers=None):
    kind = (lambda name: f'type = "patch"\noptions = {{ peer = "{peers[name]}" }}') if peers else lambda name: ""
    return "".join(f'[[bridge.port]]\nname = "{name}"\n{kind(name)}\n'
                   f"bfd = {{ enable = true, min_rx = {INTERVAL}, min_tx = {INTERVAL} }}\n" for name in ends)


@pytest.mark.parametrize("sessions, patch", [(16, False), (100, True)], ids=["veth", "patch"])
def test_sessions_do_not_flap_while_flows_change(weir, net, sessions, patch):
    """All of one daemon, so each session is there twice. Ten seconds of changes, as fast as one client makes them."""
    links = [(f"{net.tag}l{n}", f"{net.tag}r{n}") for n in range(sessions)]
    if not patch:
        for left, right in links:
            run("ip", "link", "add", left, "type", "veth", "peer", "name", right)
            run("ip", "link", "set", left, "up")
            run("ip", "link", "set", right, "up")
    try:
        lefts, rights = zip(*links)
        there = dict(links) | {right: left for left, right in links} if patch else None
        daemon = weir(MANY.format(lefts=many(lefts, there), rights=many(rights, there)))
        until(lambda: daemon.appctl("bfd/show").count("Local Session State: up") == 2 * sessions, 30, "all sessions")
        changes = "".join(f"table={n % 8},priority={n},udp,tp_dst={n},actions=drop\n" for n in range(1000))
        stop = threading.Event()

        def change():
            while not stop.is_set():
                daemon.ofctl("add-flows", "br0", "-", input=changes)
                daemon.ofctl("del-flows", "br0", "udp")

        changer = threading.Thread(target=change)
        changer.start()
        stop.wait(10)
        stop.set()
        changer.join()
        text = daemon.appctl("bfd/show")
        assert text.count("Local Session State: up") == 2 * sessions
        assert text.count("Local Diagnostic: No Diagnostic") == 2 * sessions, "none was down since it came up"
    finally:
        for left, _ in links if not patch else []:
            run("ip", "link", "del", left, check=False)


def test_a_daemon_that_stood_still_does_not_blame_its_peers(weir, net):
    """For longer than the detection time: what came meanwhile is taken first, as is what its own sessions have to say."""
    lefts, rights = zip(*((f"{net.tag}l{n}", f"{net.tag}r{n}") for n in range(20)))
    there = {**dict(zip(lefts, rights)), **dict(zip(rights, lefts))}
    daemon = weir(MANY.format(lefts=many(lefts, there), rights=many(rights, there)))
    until(lambda: daemon.appctl("bfd/show").count("Local Session State: up") == 40, what="all sessions")
    for _ in range(2):
        daemon.signal(signal.SIGSTOP)
        time.sleep(4 * INTERVAL / 1000)
        daemon.signal(signal.SIGCONT)
        time.sleep(INTERVAL / 1000)
    text = daemon.appctl("bfd/show")
    assert text.count("Local Session State: up") == text.count("Local Diagnostic: No Diagnostic") == 40, text


def test_a_tunnel_is_checked(lab):
    """Between two Weirs: the control packets are in Geneve, with the OAM bit where it is asked for."""
    one, other = lab.pair("weir")
    for here, there in ((one, other), (other, one)):
        here.tunnel("t", "geneve", f"remote_ip={there.out4}", "key=7",
                    settings=("--", "set", "interface", "t", "bfd:enable=true", "bfd:min_rx=200", "bfd:oam=true"))
    capture = Capture(other.host, other.host.run("mktemp", "/tmp/weir-XXXXXX.pcap").stdout.strip(), "udp", "port", 6081)
    for site in (one, other):
        until(lambda: "forwarding=\"true\"" in site.vsctl("get", "interface", "t", "bfd_status"), 20, "the tunnel")
    capture.stop()
    oam = run("tshark", "-r", capture.path, "-Y", "bfd", "-T", "fields", "-e", "geneve.flags.oam").stdout.split()
    assert oam and set(oam) == {"1"}, oam
    Path(capture.path).unlink()
    # The underlay fails: both ends find out.
    one.vsctl("del-port", "br-phy", "eth0")
    until(lambda: "forwarding=\"false\"" in other.vsctl("get", "interface", "t", "bfd_status"), what="the loss")
    assert "Control Detection Time Expired" in other.vsctl("get", "interface", "t", "bfd_status")


def test_maintenance_points(ovs, net):
    """CFM over a real cable, by the database, and what tshark thinks of it."""
    left, right = f"{net.tag}l", f"{net.tag}r"
    host = namespace(net)
    run("ip", "link", "add", left, "type", "veth", "peer", "name", right)
    try:
        for end in (left, right):
            run("ip", "link", "set", end, "up")
        ovs.start()
        capture = Capture(_Here(host), "/tmp/" + left + ".pcap", "ether", "proto", "0x8902", device=right)
        for bridge, end, mpid in (("br0", left, 1), ("br1", right, 2)):
            ovs.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "--", "add-port", bridge, end,
                      "--", "set", "interface", end, f"cfm_mpid={mpid}", "other_config:cfm_interval=100")
        until(lambda: ovs.vsctl("get", "interface", left, "cfm_remote_mpids") == "[2]", what="the other point")
        until(lambda: ovs.vsctl("get", "interface", left, "cfm_health") == "100", 20, what="health")
        assert ovs.vsctl("get", "interface", left, "cfm_fault") == "false"
        ovs.vsctl("clear", "interface", right, "cfm_mpid")
        until(lambda: ovs.vsctl("get", "interface", left, "cfm_fault_status") == "[recv]", what="the fault")
        assert ovs.vsctl("get", "interface", right, "cfm_fault") == "[]"
        capture.stop()
        shown = run("tshark", "-r", capture.path).stdout
        assert "Continuity Check Message" in shown or "CFM" in shown, shown
        assert run("tshark", "-r", capture.path, "-Y", "_ws.malformed || _ws.short").stdout == ""
        Path(capture.path).unlink()
    finally:
        run("ip", "link", "del", left, check=False)


class _Here:
    """What is not in a namespace of its own; programs end with a host's."""

    def __init__(self, host):
        self.host = host

    def start(self, *cmd):
        process = subprocess.Popen([str(word) for word in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.host.procs.append(process)
        return process
