"""In-band control: a controller behind the switch itself."""

import sys

from conftest import until
from lib.net import run

EXPECTED = []

LISTENER = """
import socket, struct
server = socket.create_server(("10.77.0.2", 6653))
server.settimeout(20)
while True:
    s, _ = server.accept()
    server.settimeout(None)
    s.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
    print("hello" if s.recv(8)[1] == 0 else "something else", flush=True)
"""


def test_a_controller_behind_a_secure_bridge_without_flows(ovs, net):
    ovs.start()
    host = net.host("10.77.0.2/24")
    ovs.vsctl("add-br", "br0", "--", "set-fail-mode", "br0", "secure", "--", "add-port", "br0", host.port)
    run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    listener = host.start(sys.executable, "-c", LISTENER)
    assert host.ping("10.77.0.1", count=1, wait=1) == 0, "there are no flows"
    ovs.vsctl("set-controller", "br0", "tcp:10.77.0.2:6653")
    assert listener.stdout.readline() == "hello\n"
    assert ovs.ofctl("dump-flows", "br0").count("actions") == 0
    hidden = lambda: ovs.appctl("bridge/dump-flows", "br0")
    assert "priority=180007,tcp,nw_dst=10.77.0.2,tp_dst=6653,actions=NORMAL" in hidden()
    # The next hop's address is known by now, to the kernel.
    until(lambda: f"priority=180004,arp,dl_src={host.mac},arp_op=1,actions=NORMAL" in hidden(), what="the next hop")
    assert host.ping("10.77.0.1", count=1, wait=1) == 0, "nothing else goes through"
    ovs.vsctl("set", "bridge", "br0", "other_config:in-band-queue=5")
    until(lambda: "tp_dst=6653,actions=set_queue:5,NORMAL" in hidden(), what="the queue")
    ovs.vsctl("set", "controller", "br0", "connection_mode=out-of-band")
    until(lambda: "180007" not in hidden(), what="the end of in-band control")
    ovs.vsctl("set", "controller", "br0", "connection_mode=in-band")
    until(lambda: "180007" in hidden(), what="in-band control")
    ovs.vsctl("set", "bridge", "br0", "other_config:disable-in-band=true")
    until(lambda: "180007" not in hidden(), what="the end of in-band control")
