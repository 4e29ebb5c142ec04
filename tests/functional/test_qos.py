"""QoS of ports of the kernel: its queueing disciplines, set up as the tables QoS and Queue say."""

import re
import socket

import pytest
from conftest import until
from lib.conntrack import NEIGHBOURS, SO_RCVBUFFORCE, Lab, udp
from lib.net import run

HTB = ["type=linux-htb", "other_config:max-rate=80000000"]


@pytest.fixture
def lab(ovs, net):
    lab = Lab(ovs, net)
    lab.flows(NEIGHBOURS, "table=0,priority=1,in_port=2,actions=1", "table=0,in_port=1,udp,tp_dst=7000,actions=2",
              "table=0,in_port=1,udp,tp_dst=7001,actions=set_queue:1,output:2", "table=0,in_port=1,udp,tp_dst=7002,actions=enqueue:2:70")
    return lab


def set_qos(lab, *settings, **queues):
    """QoS on the second port; queues by number as q1=["other_config:..."]."""
    made = [word for name, words in queues.items() for word in ("--", f"--id=@{name}", "create", "queue", *(words or ["other_config={}"]))]
    numbers = ",".join(f"{name[1:]}=@{name}" for name in queues)
    with_queues = [f"queues={numbers}"] if queues else []
    lab.ovs.vsctl("set", "port", port(lab), "qos=@qos", "--", "--id=@qos", "create", "qos", *settings, *with_queues, *made)


def port(lab):
    return lab.hosts[1].port


def root(lab):
    return run("tc", "qdisc", "show", "dev", port(lab), "root").stdout.strip()


def classes(lab):
    """The classes of the port, by number, as tc(8) shows them."""
    found = re.findall(r"^class htb (\S+) (.*)$", run("tc", "class", "show", "dev", port(lab)).stdout, re.M)
    return dict(found)


def send(lab, to, count, size=972):
    a, b = lab.hosts
    with udp(b, "10.0.0.2", to) as server, udp(a, "10.0.0.1") as client:
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        server.settimeout(30)
        for _ in range(count):
            client.sendto(bytes(size), ("10.0.0.2", to))
        for _ in range(count):
            server.recv(size)


def shown(lab, queue):
    """What qos/show says of a queue, by name."""
    text = lab.ovs.appctl("qos/show", port(lab))
    part = re.search(rf"^{queue}:\n((?:  .*\n)+)", text, re.M)
    return {name: int(value) for name, value in re.findall(r"^  (\S+): (\d+)$", part[1], re.M)}


def test_a_class_of_the_kernel_has_what_is_sent_to_a_queue(lab):
    set_qos(lab, *HTB, q1=["other_config:min-rate=8000000", "other_config:max-rate=40000000"],
            q70=["other_config:max-rate=16000000", "other_config:priority=3", "other_config:burst=80000"])
    assert root(lab).startswith("qdisc htb 1: root") and "default 0x1 " in root(lab)
    found = classes(lab)
    assert sorted(found) == ["1:1", "1:2", "1:47", "1:fffe"]
    assert "root" in found["1:fffe"] and "rate 80Mbit ceil 80Mbit" in found["1:fffe"]
    assert "parent 1:fffe" in found["1:1"] and "rate 12Kbit ceil 80Mbit burst 1563b" in found["1:1"]
    assert "prio 0 rate 8Mbit ceil 40Mbit" in found["1:2"]
    assert "prio 3 rate 12Kbit ceil 16Mbit burst 9999b" in found["1:47"]
    assert lab.ovs.appctl("qos/show", port(lab)).startswith(f"QoS: {port(lab)} linux-htb\nmax-rate: 80000000\n\nDefault:\n")
    assert shown(lab, "Queue 70") == {"burst": 80000, "max-rate": 16_000_000, "min-rate": 12000, "priority": 3,
                                      "tx_packets": 0, "tx_bytes": 0, "tx_errors": 0}
    send(lab, 7001, 20)
    send(lab, 7002, 30)
    send(lab, 7000, 10)
    # 14 of Ethernet, 28 of IP and UDP.
    assert shown(lab, "Queue 1")["tx_packets"] == 20 and shown(lab, "Queue 1")["tx_bytes"] == 20 * 1014
    assert shown(lab, "Queue 70")["tx_packets"] == 30
    assert shown(lab, "Default")["tx_packets"] >= 10, "with the resolution of addresses"
    stats = lab.ovs.ofctl("queue-stats", "br0", "2", "70")
    assert "bytes=30420, pkts=30, errors=0" in stats
    assert lab.ovs.ofctl("queue-stats", "br0", "2").count("queue ") == 3
    assert "OFPQOFC_BAD_QUEUE" in lab.ovs.ofctl("queue-stats", "br0", "2", "5")


def test_what_is_changed_and_taken_away(lab):
    set_qos(lab, *HTB, q1=["other_config:max-rate=40000000"], q2=[])
    send(lab, 7001, 5)
    qos = lab.ovs.get("port", port(lab), "qos")
    # The other classes keep what they have counted.
    lab.ovs.vsctl("remove", "qos", qos, "queues", "2", "--", "set", "qos", qos, "other_config:max-rate=20000000")
    until(lambda: sorted(classes(lab)) == ["1:1", "1:2", "1:fffe"], what="one queue less")
    assert "ceil 20Mbit" in classes(lab)["1:2"] and "rate 20Mbit" in classes(lab)["1:fffe"]
    assert shown(lab, "Queue 1")["tx_packets"] == 5
    lab.ovs.vsctl("clear", "port", port(lab), "qos")
    until(lambda: "htb" not in root(lab), what="no discipline")
    assert lab.ovs.appctl("qos/show", port(lab)) == f"QoS not configured on {port(lab)}\n"
    send(lab, 7001, 5)
    assert "linux-htb" in lab.ovs.appctl("qos/show-types", port(lab)) and "linux-fq_codel" in lab.ovs.appctl("qos/show-types", port(lab))


def test_a_discipline_of_others_stays_until_there_is_a_qos(ovs, net):
    host = net.host("10.0.0.1/24")
    run("tc", "qdisc", "add", "dev", host.port, "root", "handle", "7:", "htb")
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "add-port", "br0", host.port)
    assert "qdisc htb 7:" in run("tc", "qdisc", "show", "dev", host.port, "root").stdout
    ovs.vsctl("set", "interface", host.port, "other_config:x=y", "mtu_request=1400")
    until(lambda: ovs.get("interface", host.port, "mtu") == "1400", what="the change")
    assert "qdisc htb 7:" in run("tc", "qdisc", "show", "dev", host.port, "root").stdout
    ovs.vsctl("set", "port", host.port, "qos=@q", "--", "--id=@q", "create", "qos", *HTB)
    until(lambda: "qdisc htb 1:" in run("tc", "qdisc", "show", "dev", host.port, "root").stdout, what="the switch's own")


def test_a_device_that_comes_back_has_its_queues(lab):
    set_qos(lab, *HTB, q1=[])
    lab.ovs.expect("could not|no device|has gone|cannot|device")
    b = lab.hosts[1]
    b.run("ip", "link", "del", "eth0")
    run("ip", "link", "add", b.port, "type", "veth", "peer", "name", "eth0", "netns", b.ns)
    run("ip", "link", "set", b.port, "up")
    until(lambda: "1:2" in classes(lab), what="the class of queue 1")


def test_after_a_restart_the_classes_are_kept(lab):
    set_qos(lab, *HTB, q1=["other_config:max-rate=40000000"], q2=[])
    send(lab, 7001, 5)
    lab.ovs.stop()
    lab.ovs.start()
    until(lambda: "linux-htb" in lab.ovs.appctl("qos/show", port(lab)), what="the QoS")
    assert shown(lab, "Queue 1")["tx_packets"] == 5
    assert sorted(classes(lab)) == ["1:1", "1:2", "1:3", "1:fffe"]


def test_what_cannot_be_had_is_in_the_log(lab):
    lab.ovs.expect("QoS|queue|qdisc")
    set_qos(lab, "type=linux-htp")
    until(lambda: 'there is no QoS of type "linux-htp"; known types: linux-htb' in lab.ovs.log(), what="the types")
    set_qos(lab, *HTB, q70000=[], q1=["other_config:min-rate=99999999999999999999", "other_config:max-rate=0"])
    until(lambda: "1:2" in classes(lab), what="the other queue")
    assert "queue 70000: queues of type linux-htb have numbers below 61440" in lab.ovs.log()
    assert "rate 12Kbit ceil 80Mbit" in classes(lab)["1:2"]
    # As if there were none.
    lab.ovs.vsctl("add-port", "br0", "tap7", "--", "set", "interface", "tap7", "type=tap", "--", "set", "port", "tap7", "qos=@q",
                  "--", "--id=@q", "create", "qos", "type=linux-sfq")
    until(lambda: "tap7: QoS of type linux-sfq has no effect on a port of type tap, which has linux-htb, linux-hfsc" in lab.ovs.log(),
          what="the reason")


def test_many_queues_and_absurd_rates(lab):
    lab.ovs.expect("queue")
    set_qos(lab, "type=linux-htb", "other_config:max-rate=18446744073709551615",
            **{f"q{n}": ["other_config:max-rate=400000000000"] for n in range(1, 301)})
    until(lambda: len(classes(lab)) == 302, what="all classes")
    assert "ceil 400Gbit" in classes(lab)["1:2"]
    send(lab, 7002, 3)
    assert shown(lab, "Queue 70")["tx_packets"] == 3


QOS = """
[[bridge]]
name = "br0"
flows = ["in_port=1,udp,actions=set_queue:1,output:2", "priority=1,actions=NORMAL"]
[[bridge.port]]
name = "{a}"
ofport = 1
[[bridge.port]]
name = "{b}"
ofport = 2
{qos}
"""
TWO = """[bridge.port.qos]
type = "linux-htb"
options = {{ max-rate = 80_000_000 }}
[[bridge.port.qos.queue]]
number = 1
options = {{ min-rate = 8_000_000, max-rate = {most} }}
"""


def test_a_file_says_which_queues_a_port_has(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    config = lambda qos: QOS.format(a=a.port, b=b.port, qos=qos)
    daemon = weir(config(TWO.format(most=40_000_000)))
    until(lambda: "max-rate: 40000000" in daemon.appctl("qos/show", b.port), what="the queue")
    with udp(b, "10.0.0.2", 5000) as server, udp(a, "10.0.0.1") as client:
        server.settimeout(30)
        client.sendto(b"to queue 1", ("10.0.0.2", 5000))
        assert server.recv(100) == b"to queue 1"
    # Traffic is counted by the kernel's class.
    until(lambda: int(re.search(r"^Queue 1:\n(?:  .*\n)*?  tx_packets: (\d+)", daemon.appctl("qos/show", b.port), re.M)[1]) == 1, what="a count")
    for qos, expected in [(TWO.format(most=16_000_000), "max-rate: 16000000"), ("", f"QoS not configured on {b.port}")]:
        daemon.configure(config(qos))
        daemon.cli("reload")
        until(lambda: expected in daemon.appctl("qos/show", b.port), what=expected)


def test_patch_ports_and_tunnels_have_none_and_the_log_says_so(ovs):
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    for name, kind, option in [("pa", "patch", "peer=pb"), ("vx", "vxlan", "remote_ip=192.0.2.1")]:
        ovs.vsctl("add-port", "br0", name, "--", "set", "interface", name, f"type={kind}", f"options:{option}", "--",
                  "set", "port", name, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb")
        until(lambda: f"port {name}: QoS of type linux-htb has no effect" in ovs.log(), what=f"a word on {name}")
