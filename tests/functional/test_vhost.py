"""vhost-user ports, with dpdk-testpmd's virtio-user as the guest."""

import os
import re
import socket
import stat

import pytest
from conftest import until
from lib.dpdk import HugePages, Testpmd, missing

CLIENT = "dpdkvhostuserclient"
SERVER = "dpdkvhostuser"


@pytest.fixture(scope="module")
def pages():
    """Huge pages for the guests; returned after the last test."""
    if os.geteuid():
        pytest.fail("huge pages need root")
    if problem := missing():
        pytest.fail(problem)
    reserved = HugePages()
    if reserved.missing:
        pytest.skip(reserved.missing)
    yield
    reserved.close()


@pytest.fixture
def testpmd(pages, tmp_path):
    """A function that starts a guest; what it started ends with the test."""
    started = []

    def start(vdevs, *args, **kw):
        guest = Testpmd(vdevs, args=args, **kw)
        started.append(guest)
        return guest

    yield start
    for guest in started:
        guest.close()


def config(ports, dpdk="init = true", flows=(), more=""):
    """A configuration with one bridge; ports are (name, type, options)."""
    text = f'[dpdk]\n{dpdk}\n{more}\n[[bridge]]\nname = "br0"\nlocal = false\n'
    if flows:
        text += "flows = [{}]\n".format(", ".join(f'"{flow}"' for flow in flows))
    for name, kind, options in ports:
        given = ", ".join(f'"{k}" = "{v}"' for k, v in options.items())
        text += f'[[bridge.port]]\nname = "{name}"\ntype = "{kind}"\noptions = {{ {given} }}\n'
    return text


def client(name, path, **options):
    return name, CLIENT, {"vhost-server-path": path, **{k.replace("_", "-"): v for k, v in options.items()}}


def virtio(path, number=0, **more):
    """A virtio-user device that makes the socket."""
    more = "".join(f",{k}={v}" for k, v in {"server": 1, **more}.items())
    return f"net_virtio_user{number},path={path}{more}"


def port(w, name):
    """What `weir show` knows of a port."""
    (found,) = [p for b in w.json("show")["bridges"] for p in b["ports"] if p["name"] == name]
    return found


def connected(w, name):
    until(lambda: port(w, name)["status"].get("status") == "connected", 20, f"{name} being connected")


def answers(host, count=3):
    """Whether the guest answers pings, once its forwarding has started."""
    until(lambda: host.ping("10.0.0.9", count=1, wait=1) == 1, 20, "the guest answering")
    return host.ping("10.0.0.9", count=count) == count


def counter(w, number, name):
    """One of a port's own counters, by OpenFlow."""
    text = w.ofctl("dump-ports", "br0", number, version="14")
    for word in text.replace(",", " ").split():
        if word.startswith(f"{name}="):
            return int(word.split("=")[1])
    raise AssertionError(f"no {name} in {text}")


def statistics(w, name):
    return port(w, name)["statistics"]


def circulates(guest, command, condition, what):
    """Has the guest begin to send frames round, until a condition holds. Those that come while a ring is not there yet are dropped, and
    none goes round then: it is told again."""
    def begins():
        guest.run(command)
        try:
            until(condition, 5)
        except AssertionError:
            guest.run("stop")
            return False
        return True

    until(begins, 60, what)


@pytest.mark.parametrize("packed", [0, 1], ids=["split", "packed"])
@pytest.mark.parametrize("kind", ["afpacket", "afxdp"])
def test_a_guest_answers_pings(weir, net, testpmd, tmp_path, kind, packed):
    h = net.host("10.0.0.1/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, kind, {})]))
    assert port(w, "vhost0")["link_up"] is False
    guest = testpmd([virtio(tmp_path / "s", packed_vq=packed)], "--forward-mode=icmpecho", "--auto-start")
    connected(w, "vhost0")
    assert answers(h, 10)
    shown = port(w, "vhost0")
    assert shown["link_up"] is True
    status = shown["status"]
    assert status["mode"] == "client" and status["socket"] == str(tmp_path / "s")
    assert status["num_of_vrings"] == "2" and status["vring_0_size"] == status["vring_1_size"] == "256"
    ring_packed = 1 << 34
    assert bool(int(status["features"], 16) & ring_packed) == bool(packed)
    assert statistics(w, "vhost0")["rx_packets"] >= 11, "pongs and an ARP reply"
    until(lambda: guest.stats()["RX-packets"] == statistics(w, "vhost0")["tx_packets"], what="counters agreeing")


def test_weir_makes_the_socket(weir, net, testpmd, tmp_path):
    h = net.host("10.0.0.1/24")
    w = weir(config([("vhost0", SERVER, {}), (h.port, "afpacket", {})]))
    path = w.dir / "vhost0"
    assert stat.S_ISSOCK(path.stat().st_mode)
    guest = testpmd([virtio(path, server=0)], "--forward-mode=icmpecho", "--auto-start")
    connected(w, "vhost0")
    assert port(w, "vhost0")["status"]["mode"] == "server"
    assert answers(h)
    guest.kill()
    until(lambda: not port(w, "vhost0")["link_up"], what="the link going down")
    testpmd([virtio(path, server=0)], "--forward-mode=icmpecho", "--auto-start")
    connected(w, "vhost0")
    assert answers(h)
    w.stop()
    assert not path.exists(), "it is removed with the port"


def test_the_directory_of_sockets(weir, pages):
    w = weir(config([], 'init = true\nvhost-sock-dir = "vms"'), start=False)
    (w.dir / "vms").mkdir()
    w.start()
    w.configure(config([("vhost0", SERVER, {})], 'init = true\nvhost-sock-dir = "vms"'))
    w.cli("reload")
    assert (w.dir / "vms" / "vhost0").exists()


def test_a_guest_that_is_killed_comes_back(weir, net, testpmd, tmp_path):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (a.port, "afpacket", {}), (b.port, "afpacket", {})]))
    for _ in range(2):
        guest = testpmd([virtio(tmp_path / "s")], "--forward-mode=icmpecho", "--auto-start")
        connected(w, "vhost0")
        assert answers(a)
        before = statistics(w, "vhost0")["rx_packets"]
        flood = a.start("ping", "-f", "-n", "-w", 3, "10.0.0.9")
        until(lambda: statistics(w, "vhost0")["rx_packets"] > before + 100, what="the flood reaching the guest")
        guest.kill()
        # QEMU does that by itself when it starts.
        (tmp_path / "s").unlink()
        until(lambda: not port(w, "vhost0")["link_up"], what="the link going down")
        assert a.ping("10.0.0.2") == 3, "others are not affected"
        assert statistics(w, "vhost0")["rx_packets"] > before, "counters stay"
        flood.wait(30)
        assert port(w, "vhost0")["status"] == {"mode": "client", "status": "disconnected"}


def test_weir_restarts_under_a_guest(weir, net, testpmd, tmp_path):
    h = net.host("10.0.0.1/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, "afpacket", {})]))
    testpmd([virtio(tmp_path / "s")], "--forward-mode=icmpecho", "--auto-start")
    connected(w, "vhost0")
    assert answers(h)
    w.kill()
    w.start()
    connected(w, "vhost0")
    assert answers(h)
    w.stop()
    w.start()
    connected(w, "vhost0")
    assert answers(h)


def test_a_port_is_removed_under_traffic(weir, testpmd, tmp_path):
    """Frames circulate between two ports of the guest while one of them is taken away and added again."""
    ports = [client(f"vhost{n}", tmp_path / f"s{n}") for n in (0, 1)]
    whole = config(ports, flows=["in_port=1,actions=2", "in_port=2,actions=1"])
    w = weir(whole)
    guest = testpmd([virtio(tmp_path / f"s{n}", n) for n in (0, 1)], "--forward-mode=io")
    for name in ("vhost0", "vhost1"):
        connected(w, name)
    circulates(guest, "start tx_first 4", lambda: statistics(w, "vhost0")["rx_packets"] > 1000, "frames circulating")
    w.configure(config(ports[:1]))
    w.cli("reload")
    assert [p["name"] for p in w.json("show")["bridges"][0]["ports"]] == ["vhost0"]
    w.configure(whole)
    w.cli("reload")
    connected(w, "vhost1")
    guest.run("stop")
    circulates(guest, "start tx_first 4", lambda: statistics(w, "vhost1")["tx_packets"] > 1000, "frames circulating again")


@pytest.mark.parametrize("packed", [0, 1], ids=["split", "packed"])
def test_a_guest_has_several_queues(weir, testpmd, tmp_path, packed):
    ports = [client(f"vhost{n}", tmp_path / f"s{n}") for n in (0, 1)]
    w = weir(config(ports, flows=["in_port=1,actions=2", "in_port=2,actions=1"]))
    vdevs = [virtio(tmp_path / f"s{n}", n, queues=4, packed_vq=packed) for n in (0, 1)]
    guest = testpmd(vdevs, "--forward-mode=io", "--rxq=4", "--txq=4")
    for name in ("vhost0", "vhost1"):
        connected(w, name)

    def enabled():
        """How many queues of each port are polled. A guest enables them one by one."""
        lines = w.appctl("dpif-netdev/pmd-rxq-show").splitlines()
        return [sum(name in line and "(enabled)" in line for line in lines) for name in ("vhost0", "vhost1")]

    until(lambda: enabled() == [4, 4], what="four queues being polled")
    assert port(w, "vhost0")["status"]["num_of_vrings"] == "8"
    in_all = lambda: all(counter(w, 1, f"rx_q{q}_good_packets") > 100 for q in range(4))  # noqa: E731
    circulates(guest, "start tx_first 8", in_all, "traffic in every queue")
    guest.run("stop")
    # Fewer queues from now on: the guest takes the device down and up.
    guest.run("port stop all")
    guest.run("port config all rxq 2")
    guest.run("port config all txq 2")
    guest.run("port start all")
    until(lambda: enabled() == [2, 2], what="two queues being left")
    before = statistics(w, "vhost0")["rx_packets"]
    circulates(guest, "start tx_first", lambda: statistics(w, "vhost0")["rx_packets"] > before + 1000, "traffic in two queues")


def test_a_full_ring_is_counted_and_harms_nobody(weir, net, testpmd, tmp_path):
    """A guest that takes nothing out of its ring, beside others."""
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(config([client("vhost0", tmp_path / "s"), (a.port, "afpacket", {}), (b.port, "afpacket", {})],
                    flows=["in_port=2,arp,actions=3,1", "in_port=2,ip,actions=1,3", "in_port=3,actions=2"]))
    testpmd([virtio(tmp_path / "s", queue_size=256)], "--forward-mode=icmpecho")
    connected(w, "vhost0")
    assert a.ping("10.0.0.2", count=600, interval=0.002) == 600
    sent = statistics(w, "vhost0")
    assert 256 <= sent["tx_packets"] < 600, "what the ring holds"
    assert sent["tx_packets"] + sent["tx_dropped"] >= 600
    failed = counter(w, 1, "ovs_tx_failure_drops")
    assert 600 - sent["tx_packets"] <= failed <= sent["tx_dropped"], "frames from before there was a guest aside"
    full = [d for d in w.json("drops")["drops"] if d["reason"] == "ovs_tx_failure_drops"]
    assert [(d["stage"], d["out_port"], d["queue"]) for d in full] == [("transmit", "vhost0", 0)]
    assert full[0]["packets"] >= failed


def test_how_often_a_burst_is_tried_again(weir, testpmd, tmp_path):
    """A small ring, emptied all the time, takes parts of bursts."""
    retries = {}
    for most in (0, 8):
        ports = [client("vhost0", tmp_path / "s0"), client("vhost1", tmp_path / "s1", tx_retries_max=most)]
        w = weir(config(ports, flows=["in_port=1,actions=2"]))
        guest = testpmd([virtio(tmp_path / "s0", 0, queue_size=1024), virtio(tmp_path / "s1", 1, queue_size=64)],
                        "--forward-mode=io", "--burst=64", "--txd=1024", "--rxd=64")
        for name in ("vhost0", "vhost1"):
            connected(w, name)
        guest.run("set fwd txonly")
        guest.run("start")
        until(lambda: statistics(w, "vhost1")["tx_dropped"] > 0, what="the ring being full")
        guest.run("stop")
        retries[most] = counter(w, 2, "ovs_tx_retries")
        assert counter(w, 2, "ovs_tx_failure_drops") > 0
        guest.close()
        w.stop()
    assert retries[0] == 0, "none is allowed"


def test_mtu(weir, net, testpmd, tmp_path):
    h = net.host("10.0.0.1/24", mtu=9000)
    w = weir(config([client("vhost0", tmp_path / "s"), (h.port, "afpacket", {})],
                    flows=["in_port=1,actions=2", "in_port=2,actions=1"]))
    testpmd([virtio(tmp_path / "s")], "--forward-mode=icmpecho", "--auto-start", "--mbuf-size=9600")
    connected(w, "vhost0")
    ping = lambda size, wait=4: h.ping("10.0.0.9", 2, wait=wait, size=size, fragments=False)  # noqa: E731
    until(lambda: ping(1472) == 2, what="the guest answering")
    assert ping(4000, wait=1) == 0
    text = (w.dir / "weir.toml").read_text().replace('name = "vhost0"', 'name = "vhost0"\nmtu = 9000')
    w.configure(text)
    w.cli("reload")
    assert port(w, "vhost0")["mtu"] == 9000
    assert ping(4000) == 2
    assert port(w, "vhost0")["link_up"], "without a new connection"


@pytest.mark.parametrize("packed", [0, 1], ids=["split", "packed"])
def test_how_full_the_queues_of_guests_are(weir, testpmd, tmp_path, packed):
    """`max vhost qlen`, where the rings are split: of packed ones, librte_vhost does not know it."""
    w = weir(config([client("vhost0", tmp_path / "s")], more="[workers]\nperf-metrics = true"))
    w.expect("uspicious iteration|excessive rate")
    shown = lambda *args: w.cli("ctl", "dpif-netdev/pmd-perf-show", *args).stdout  # noqa: E731

    def fullest():
        """By the walls of the bins: in how many turns the fullest queue had so many frames."""
        rows = [line.split() for line in shown().split("Histograms\n")[1].splitlines()[1:33]]
        return {row[8]: int(row[9]) for row in rows if int(row[9])}

    assert set(fullest()) == {"0"}, "no guest"
    guest = testpmd([virtio(tmp_path / "s", packed_vq=packed)], "--forward-mode=txonly", "--auto-start")
    connected(w, "vhost0")
    until(lambda: statistics(w, "vhost0")["rx_packets"] > 10_000, 20, "frames of the guest")
    if packed:
        assert set(fullest()) == {"0"}
        return
    # Its ring of 256 is full whenever it is looked at.
    until(lambda: any(wall == ">" or int(wall) > 128 for wall in fullest()), 20, "a full queue")

    def has_full_turn():
        """Among the last ones: there may be that many in which the guest did nothing."""
        turns = shown("-nh", "-it", "1000").splitlines()
        return any(128 < int(line.split()[5]) <= 256 for line in turns if re.match(r"   \d", line))

    until(has_full_turn, 20, "a turn with a full queue")
    # A turn that finds so many is suspicious, however short it is.
    w.cli("ctl", "dpif-netdev/pmd-perf-log-set", "on", "-us", "100000000", "-q", "129")
    until(lambda: "Suspicious iteration (Vhost RX queue full)" in w.log(), 20, "the log")
    w.cli("ctl", "dpif-netdev/pmd-perf-log-set", "off")
    guest.close()


def refused(w, name="vhost0"):
    """Why a port could not be added."""
    return " ".join(line for line in w.cli("show").stdout.splitlines() if name in line)


def test_errors_in_words(weir, pages, tmp_path):
    cases = [
        ({}, CLIENT, "vhost-server-path: missing"),
        ({"vhost-server-path": "/tmp/" + "x" * 120}, CLIENT, "has 125 bytes; at most 107"),
        ({"vhost-server-path": "relative"}, CLIENT, "should begin with /"),
    ]
    ports = [(f"vhost{n}", kind, options) for n, (options, kind, _) in enumerate(cases)]
    w = weir(config([*ports, client("first", tmp_path / "s"), client("second", tmp_path / "s")]))
    w.expect("option vhost-server-path: ")
    for n, (_, _, wanted) in enumerate(cases):
        assert wanted in refused(w, f"vhost{n}")
    assert f"the socket {tmp_path}/s is used by port first" in refused(w, "second")


def test_sockets_in_use(weir, pages):
    w = weir(config([]))
    w.expect("is in use by another process|exists and is no socket")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(w.dir / "vhost0"))
        other.listen()
        (w.dir / "vhost1").write_text("")
        w.configure(config([(f"vhost{n}", SERVER, {}) for n in (0, 1, 2)]))
        w.cli("reload", check=False)
        assert "is in use by another process" in refused(w, "vhost0")
        assert "exists and is no socket; remove it" in refused(w, "vhost1")
    # Nobody listens any more: what is left is removed.
    w.configure(config([("vhost0", SERVER, {})]))
    w.cli("reload")
    assert port(w, "vhost0")["status"]["status"] == "disconnected"


def test_without_dpdk_being_started(weir, tmp_path):
    w = weir(config([client("vhost0", tmp_path / "s")], dpdk="init = false"))
    w.expect("vhost0: .*DPDK")
    assert "DPDK" in refused(w) and "init" in refused(w)
