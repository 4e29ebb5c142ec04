"""Neighbours and routes below tunnels: what becomes of packets while they are not known, and when they change."""

import re

from conftest import until
from lib.tunnel import Linux, cable, namespace, send

ROUTING = "drop_action_tunnel_routing_failed"
NEIGHBOUR = "drop_action_tunnel_neigh_cache_miss"


def goes(weir, linux):
    """That pings pass now, soon after a change."""
    until(lambda: weir.vm.ping(linux.in4, count=1, wait=1) == 1, what="a ping that passes")
    assert weir.vm.ping(linux.in4, count=10, interval=0.02) == 10


def flush(weir):
    """Neither Weir nor its kernel knows a neighbour. One that asks meanwhile is known again, so it may take several times."""
    def is_empty():
        weir.host.run("ip", "neigh", "flush", "dev", "br-phy")
        weir.appctl("tnl/neigh/flush")
        return len(weir.appctl("tnl/neigh/show").splitlines()) == 2
    until(is_empty, what="no neighbours")


def test_the_first_packets_are_not_lost(lab):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    weir.know(linux)
    for _ in range(3):
        flush(weir)
        linux.host.run("ip", "neigh", "flush", "dev", "eth0")
        before = weir.counter(NEIGHBOUR)
        # So fast that some come before the answer.
        assert weir.vm.ping(linux.in4, count=5, interval=0.002) == 5
        assert weir.counter(NEIGHBOUR) == before
    # Over IPv6, by neighbour discovery.
    weir.vsctl("set", "interface", "vx", f"options:remote_ip={linux.out6}")
    linux.host.run("ip", "link", "del", "tun0")
    linux.vxlan(weir, six=True)
    weir.know(linux)
    flush(weir)
    assert weir.vm.ping(linux.in4, count=5, interval=0.002) == 5
    assert weir.counter(NEIGHBOUR) == before


def test_a_neighbour_that_gets_another_address_is_found(lab):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    goes(weir, linux)
    for mac, operation in (("02:00:00:00:0a:01", 1), ("02:00:00:00:0a:02", 2)):
        linux.host.run("ip", "link", "set", "eth0", "address", mac)
        raw = bytes.fromhex(mac.replace(":", ""))
        ip = bytes([172, 31, 0, linux.number])
        announcement = b"\xff" * 6 + raw + bytes.fromhex("0806" "0001" "0800" "0604") + bytes([0, operation]) + raw + ip + raw + ip
        send(linux.host, [announcement.ljust(60, b"\0")])
        until(lambda: re.search(rf"{linux.out4} +{mac}", weir.appctl("tnl/neigh/show")), what="the new address")
        goes(weir, linux)


def test_a_gateway_lies_between(lab, net):
    weir = lab.weir()
    linux = Linux(net, 2)
    router = namespace(net)
    router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    cable(weir.host, "eth0", router, "eth0")
    cable(router, "eth1", linux.host, "eth0")
    router.run("ip", "addr", "add", "172.31.0.254/24", "dev", "eth0")
    router.run("ip", "addr", "add", "172.30.0.254/24", "dev", "eth1")
    linux.host.run("ip", "addr", "add", "172.30.0.2/24", "dev", "eth0")
    linux.host.run("ip", "route", "add", "default", "via", "172.30.0.254")
    weir.attach()
    linux.out4 = "172.30.0.2"
    weir.tunnel("vx", "vxlan", "remote_ip=172.30.0.2", "key=7")
    linux.vxlan(weir)
    weir.know(linux)
    weir.direct("vx", "icmp")
    before = weir.counter(ROUTING)
    assert weir.vm.ping(linux.in4, count=2, wait=1) == 0
    until(lambda: weir.counter(ROUTING) == before + 2, what="the drops")
    weir.host.run("ip", "route", "add", "172.30.0.0/24", "via", "172.31.0.254")
    goes(weir, linux)
    assert "172.31.0.254" in weir.appctl("tnl/neigh/show") and "172.30.0.2" not in weir.appctl("tnl/neigh/show")


def test_a_route_goes_and_comes_back(lab):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    weir.know(linux)
    weir.direct("vx", "icmp")
    goes(weir, linux)
    before = weir.counter(ROUTING)
    weir.host.run("ip", "route", "del", "172.31.0.0/24", "dev", "br-phy")
    until(lambda: "172.31.0.0/24" not in weir.appctl("ovs/route/show"), what="the route being gone")
    assert weir.vm.ping(linux.in4, count=2, wait=1) == 0
    until(lambda: weir.counter(ROUTING) == before + 2, what="the drops")
    until(lambda: "tunnel_egress_iface" not in weir.vsctl("get", "interface", "vx", "status"), 15, "no egress interface")
    weir.host.run("ip", "route", "add", "172.31.0.0/24", "dev", "br-phy")
    goes(weir, linux)
    until(lambda: "tunnel_egress_iface=br-phy" in weir.vsctl("get", "interface", "vx", "status"), 15, "the egress interface")


def test_the_underlay_goes_and_comes_back(lab):
    weir, linux = lab.pair("linux")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    linux.vxlan(weir)
    weir.know(linux)
    weir.direct("vx", "icmp")
    goes(weir, linux)

    def status(words):
        until(lambda: words in weir.vsctl("get", "interface", "vx", "status"), 15, f"{words!r} in the status")

    status("tunnel_egress_iface_carrier=up")
    weir.host.run("ip", "link", "set", "br-phy", "down")
    until(lambda: "tunnel_egress_iface_carrier=up" not in weir.vsctl("get", "interface", "vx", "status"), 15, "no carrier")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.host.run("ip", "link", "set", "br-phy", "up")
    goes(weir, linux)
    status("tunnel_egress_iface_carrier=up")
    # The port by which packets leave, and the device itself.
    weir.vsctl("del-port", "eth0")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    weir.attach_port("eth0")
    goes(weir, linux)
    weir.expect("eth0")
    weir.host.run("ip", "link", "del", "eth0")
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    cable(weir.host, "eth0", linux.host, "eth0")
    linux.host.run("ip", "link", "del", "tun0", check=False)
    linux.attach()
    linux.vxlan(weir)
    weir.know(linux)
    goes(weir, linux)
    # With the bridge goes the route's device.
    weir.vsctl("del-br", "br-phy")
    before = weir.counter(ROUTING)
    assert weir.vm.ping(linux.in4, count=1, wait=1) == 0
    assert weir.counter(ROUTING) > before


def test_a_peer_that_does_not_answer_costs_only_its_own_packets(lab):
    weir, linux = lab.pair("linux")
    weir.flows("actions=drop")
    weir.tunnel("vx", "vxlan", f"remote_ip={linux.out4}", "key=7")
    weir.tunnel("silent", "vxlan", "remote_ip=172.31.0.66", "key=9")
    linux.vxlan(weir)
    weir.know(linux)
    vm, vx, silent = (weir.vsctl("get", "interface", name, "ofport") for name in ("vm0", "vx", "silent"))
    weir.flows(f"in_port={vm},icmp,actions={vx}", f"in_port={vm},udp,actions={silent}", f"in_port={vx},actions={vm}")
    assert weir.vm.ping(linux.in4) == 3
    before = weir.counter(NEIGHBOUR)
    questions = linux.host.sniff("arp and arp[7] = 1 and dst host 172.31.0.66")
    weir.vm.run("python3", "-c", f"""if True:
        import socket
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for n in range(500):
            u.sendto(b'x', ('{linux.in4}', 1000 + n))
        """)
    # Those that have no room to wait go at once, and the others when nobody has answered three times.
    until(lambda: weir.counter(NEIGHBOUR) >= before + 436, what="more than may wait")
    assert weir.vm.ping(linux.in4, count=20, interval=0.02) == 20
    until(lambda: weir.counter(NEIGHBOUR) >= before + 500, what="all packets given up")
    assert weir.counter(NEIGHBOUR) == before + 500
    assert 1 <= questions.seen().count("who-has 172.31.0.66") <= 4, questions.seen()
