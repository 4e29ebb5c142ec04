"""Policers limit what ports receive and are sent, of every type, and count what they drop."""

import re
import socket
import threading
import time

import pytest
from conftest import until
from lib.conntrack import NEIGHBOURS, SO_RCVBUFFORCE, Lab, udp
from lib.daemon import config
from lib.net import inside, run

TO_B = "table=0,in_port=1,udp,actions=2"
RX, TX = "ovs_rx_qos_drops", "ovs_tx_qos_drops"


@pytest.fixture
def lab(ovs, net):
    lab = Lab(ovs, net)
    lab.flows(NEIGHBOURS, TO_B, "table=0,priority=1,in_port=2,actions=1")
    return lab


def burst(lab, count, size=1000, sender=1):
    """So many datagrams from the first host to the second one, or the other way, at once; how many of them came."""
    receiver = 3 - sender
    with udp(lab.hosts[receiver - 1], f"10.0.0.{receiver}", 7000) as server, udp(lab.hosts[sender - 1], f"10.0.0.{sender}") as client:
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        before = received(lab, sender)
        for _ in range(count):
            client.sendto(bytes(size), (f"10.0.0.{receiver}", 7000))
        until(lambda: received(lab, sender) >= before + count, what="the datagrams at the switch")
        server.settimeout(1)
        came = 0
        while True:
            try:
                server.recv(size)
                came += 1
            except TimeoutError:
                return came


def received(lab, number):
    return lab.ovs.counters(number)["rx_pkts"]


def statistic(lab, port, name):
    """A counter of the Interface row; None while it is not there."""
    found = re.search(rf"\b{name}=(\d+)", lab.ovs.get("interface", lab.hosts[port - 1].port, "statistics"))
    return found and int(found[1])


def dropped(lab, reason):
    return int(lab.ovs.appctl("coverage/read-counter", f"datapath_drop_{reason}"))


def set_ingress(lab, **settings):
    lab.ovs.vsctl("set", "interface", lab.hosts[0].port, *(f"ingress_policing_{key}={value}" for key, value in settings.items()))


def test_what_a_port_receives_is_limited_in_bits_and_in_packets(lab):
    assert burst(lab, 200) == 200 and statistic(lab, 1, RX) is None
    # 8 kb/s, and a burst of 50 datagrams of 8.3 kb with their headers.
    set_ingress(lab, rate=8, burst=420)
    came = burst(lab, 200)
    assert 49 <= came < 60
    assert dropped(lab, "ingress_policer") == 200 - came
    lab.ovs.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=1000")
    until(lambda: statistic(lab, 1, RX) == 200 - came, what="the drops in the database")
    drops = lab.ovs.json("drops")["drops"]
    assert [(row["in_port"], row["packets"]) for row in drops if row["reason"] == "ingress_policer"] == [(lab.hosts[0].port, 200 - came)]
    # The other direction is not limited.
    assert burst(lab, 200, sender=2) == 200
    # Packets: a thousand per second, a thousand at once.
    set_ingress(lab, rate=0, burst=0, kpkts_rate=1, kpkts_burst=1)
    begin, came = time.monotonic(), burst(lab, 3000, size=18)
    passed = time.monotonic() - begin
    assert 1000 <= came <= 1010 + 1000 * passed, f"in {passed} s"
    # Without a limit all pass again, at once.
    set_ingress(lab, kpkts_rate=0)
    assert burst(lab, 200) == 200


def test_what_a_port_is_sent_is_limited(lab):
    lab.ovs.expect("needs other_config:cir")
    b = lab.hosts[1].port
    assert lab.ovs.appctl("qos/show", b) == f"QoS not configured on {b}\n"
    assert "QoS type: egress-policer\n" in lab.ovs.appctl("qos/show-types", b)
    assert "no such interface" in lab.ovs.refusal("appctl", "qos/show", "nothing")
    # 1028 bytes of IP each.
    lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=egress-policer", "other_config:cir=1000",
                  f"other_config:cbs={1028 * 50}")
    assert lab.ovs.appctl("qos/show", b) == f"QoS: {b} egress-policer\ncbs: 51400\ncir: 1000\n"
    came = burst(lab, 200)
    # With the resolution of addresses.
    assert 48 <= came < 60 and dropped(lab, "egress_policer") == 200 - came
    drops = lab.ovs.json("drops")["drops"]
    assert [(row["out_port"], row["packets"]) for row in drops if row["reason"] == "egress_policer"] == [(b, 200 - came)]
    # What is wrong limits nothing, and says so.
    lab.ovs.vsctl("clear", "qos", b and lab.ovs.get("port", b, "qos"), "other_config")
    until(lambda: lab.ovs.appctl("qos/show", b) == f"QoS not configured on {b}\n", what="no limit")
    assert "needs other_config:cir" in lab.ovs.log()
    assert burst(lab, 200) == 200


def queue_counters(lab, port, queue):
    """(packets, bytes, errors) of a queue, as `ovs-ofctl queue-stats` has them."""
    said = lab.ovs.ofctl("queue-stats", "br0", str(port), str(queue), version=13)
    return tuple(int(n) for n in re.search(r"bytes=(\d+), pkts=(\d+), errors=(\d+)", said).groups())


def test_what_a_port_is_sent_is_limited_by_queue_and_as_a_whole(lab):
    """In bursts, at rates of a byte per second: 1028 bytes of IP for each datagram."""
    b, size = lab.hosts[1].port, 1028
    assert "QoS type: trtcm-policer\n" in lab.ovs.appctl("qos/show-types", b)
    send = lambda flow: lab.flows(NEIGHBOURS, f"table=0,priority=9,{flow}")
    rates = lambda cbs, ebs: [f"other_config:{key}={value}" for key, value in [("cir", 1), ("cbs", cbs), ("eir", 1), ("ebs", ebs)]]
    lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=trtcm-policer", *rates(size * 100, size * 20),
                  "queues:5=@five", "queues:6=@six", "--", "--id=@five", "create", "queue", *rates(size * 10, size * 30),
                  "--", "--id=@six", "create", "queue", "other_config:cir=0")
    shown = lab.ovs.appctl("qos/show", b)
    assert shown.startswith(f"QoS: {b} trtcm-policer\ncbs: {size * 100}\ncir: 1\nebs: {size * 20}\neir: 1\n\nDefault:\n  cbs: {size * 100}\n")
    assert f"\nQueue 5:\n  cbs: {size * 10}\n" in shown
    send("in_port=1,udp,actions=set_queue:5,output:2")
    # The queue has 10 green ones and 30 yellow ones, of which the port lets 20 pass.
    assert burst(lab, 100) == 30
    assert queue_counters(lab, 2, 5) == (40 * size, 40, 60)
    assert dropped(lab, "egress_policer") == 70
    # Nothing goes by a queue without rates.
    send("in_port=1,udp,actions=set_queue:6,output:2")
    assert burst(lab, 10) == 0 and queue_counters(lab, 2, 6) == (0, 0, 10)
    # A queue that is not there is the default one: it takes what the port has left, less what resolves addresses.
    send("in_port=1,udp,actions=set_queue:7,output:2")
    came = burst(lab, 200)
    assert 85 <= came <= 90
    assert "OFPQOFC_BAD_QUEUE" in lab.ovs.ofctl("queue-stats", "br0", "2", "7")
    # Other limits of the port take effect at once; those of a queue that stay as they are do not begin anew.
    uuid = lab.ovs.get("port", b, "qos")
    lab.ovs.vsctl("set", "qos", uuid, *rates(size * 1000, size * 1000))
    send("in_port=1,udp,actions=set_queue:5,output:2")
    until(lambda: f"cbs: {size * 1000}" in lab.ovs.appctl("qos/show", b), what="the new limits")
    assert burst(lab, 10) == 0
    send("in_port=1,udp,actions=output:2")
    assert burst(lab, 300) == 300


def test_limits_of_two_rates_that_are_wrong_limit_nothing(lab):
    b = lab.hosts[1].port
    for problem in ("a port needs other_config:cir or eir", "a rate needs a burst"):
        lab.ovs.expect(problem)
    lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=trtcm-policer")
    assert lab.ovs.appctl("qos/show", b) == f"QoS not configured on {b}\n"
    uuid = lab.ovs.get("port", b, "qos")
    lab.ovs.vsctl("set", "qos", uuid, "other_config:cir=1000")
    assert lab.ovs.appctl("qos/show", b) == f"QoS not configured on {b}\n"
    assert burst(lab, 50) == 50
    # A queue with mistakes is not there.
    lab.ovs.vsctl("set", "qos", uuid, "other_config:cbs=100000", "queues:3=@q", "--", "--id=@q", "create", "queue", "other_config:eir=7")
    shown = lab.ovs.appctl("qos/show", b)
    assert "trtcm-policer" in shown and "Queue 3" not in shown and "Default:" in shown
    assert "queue 3 is not there: a rate needs a burst" in lab.ovs.log()


def test_thousands_of_queues_are_limited_and_more_are_refused(lab):
    lab.ovs.expect("a port has 4096 queues at most")
    b = lab.hosts[1].port
    queues = range(1, 5001)
    lab.ovs.vsctl("set", "port", b, "qos=@q", "--", "--id=@q", "create", "qos", "type=trtcm-policer", "other_config:cir=1",
                  "other_config:cbs=10280000", *(f"queues:{3 * n}=@queue{n}" for n in queues),
                  *(word for n in queues for word in ("--", f"--id=@queue{n}", "create", "queue", "other_config:cir=1",
                                                      "other_config:cbs=1028")))
    until(lambda: lab.ovs.appctl("qos/show", b).count("\nQueue ") == 4095, what="as many queues as a port can have")
    lab.flows(NEIGHBOURS, "table=0,priority=9,in_port=1,udp,actions=set_queue:3000,output:2")
    assert burst(lab, 20) == 1 and queue_counters(lab, 2, 3000) == (1028, 1, 19)
    lab.ovs.vsctl("clear", "port", b, "qos")
    until(lambda: "not configured" in lab.ovs.appctl("qos/show", b), what="no limits")
    assert burst(lab, 20) == 20


def test_a_device_that_comes_back_is_limited_again(ovs, net):
    lab = Lab(ovs, net, offloads=False)
    lab.flows(NEIGHBOURS, TO_B)
    set_ingress(lab, rate=8, burst=420)
    a = lab.hosts[0]
    mac = a.mac
    a.run("ip", "link", "del", "eth0")
    ovs.expect("could not|no device|has gone|cannot|device")
    run("ip", "link", "add", a.port, "type", "veth", "peer", "name", "eth0", "netns", a.ns)
    a.run("ip", "link", "set", "eth0", "address", mac)
    run("ip", "link", "set", a.port, "up")
    for words in (["link", "set", "eth0", "up"], ["addr", "add", "10.0.0.1/24", "dev", "eth0"]):
        a.run("ip", *words)
    until(lambda: lab.ovs.get("interface", a.port, "error") == "[]", what="the port in use again")
    assert 49 <= burst(lab, 200) < 60


def seconds_of_tcp(a, b, size):
    """How long so many bytes take from one host to the other by TCP; all of them come."""
    with inside(b):
        listener = socket.create_server(("10.0.0.2", 7000))
    with inside(a):
        client = socket.create_connection(("10.0.0.2", 7000), 10)
    server, _ = listener.accept()
    begin = time.monotonic()
    sender = threading.Thread(target=lambda: (client.sendall(bytes(size)), client.close()))
    sender.start()
    server.settimeout(60)
    came = 0
    while data := server.recv(1 << 16):
        came += len(data)
    sender.join()
    listener.close()
    server.close()
    assert came == size
    return time.monotonic() - begin


@pytest.mark.parametrize("kind", ["afpacket", "afxdp", "tap"])
def test_tcp_passes_the_policers_of_every_type_of_port(weir, net, kind):
    """With super-frames, and the bytes are all there."""
    if kind == "tap":
        a, b = net.host(), net.host()
        names = ["tapa", "tapb"]
    else:
        a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
        names = [a.port, b.port]
    limits = ["ingress-policing-rate = 40000\ningress-policing-burst = 2000", "egress-policer-cir = 5000000\negress-policer-cbs = 250000"]
    w = weir(config([(name, kind, limit) for name, limit in zip(names, limits)]))
    if kind == "tap":
        for n, (host, name) in enumerate(zip((a, b), names), 1):
            run("ip", "link", "set", name, "netns", host.ns)
            host.run("ip", "addr", "add", f"10.0.0.{n}/24", "dev", name)
            host.run("ip", "link", "set", name, "up")
    # Without what both bursts let pass at once.
    assert seconds_of_tcp(a, b, 3_000_000) >= 0.5, "more than 40 Mb/s"
    assert w.appctl("qos/show", names[1]) == f"QoS: {names[1]} egress-policer\ncbs: 250000\ncir: 5000000\n"
