"""Hosts at a switch whose flows track connections, and sockets in them."""

import re
import socket

from .net import inside, run
from .wait import until

#: Resolution of addresses goes as it would without a switch, reports of multicast listeners go nowhere; all else is up to the
#: test.
NEIGHBOURS = """
table=0,priority=60000,arp,actions=NORMAL
table=0,priority=60000,icmp6,icmp_type=135,actions=NORMAL
table=0,priority=60000,icmp6,icmp_type=136,actions=NORMAL
table=0,priority=59999,ipv6,ipv6_dst=ff00::/8,actions=drop
"""

#: Port 1 may open connections and port 2 answer them; what belongs to them passes, and all else is dropped and counted.
FIREWALL = """
table=0,priority=10,ip,actions=ct(table=1,zone=1)
table=0,priority=10,ipv6,actions=ct(table=1,zone=1)
table=1,priority=60,cookie=0x10,ct_state=+trk+inv,actions=drop
table=1,priority=50,cookie=0x11,in_port=1,ct_state=+trk+rel,ip,actions=2
table=1,priority=50,cookie=0x11,in_port=1,ct_state=+trk+rel,ipv6,actions=2
table=1,priority=50,cookie=0x12,in_port=2,ct_state=+trk+rel,ip,actions=1
table=1,priority=50,cookie=0x12,in_port=2,ct_state=+trk+rel,ipv6,actions=1
table=1,priority=40,cookie=0x13,in_port=1,ct_state=+trk+new,ip,actions=ct(commit,zone=1),2
table=1,priority=40,cookie=0x13,in_port=1,ct_state=+trk+new,ipv6,actions=ct(commit,zone=1),2
table=1,priority=40,cookie=0x14,in_port=2,ct_state=+trk+new,actions=drop
table=1,priority=30,cookie=0x15,in_port=1,ct_state=+trk+est-rpl,ip,actions=2
table=1,priority=30,cookie=0x15,in_port=1,ct_state=+trk+est-rpl,ipv6,actions=2
table=1,priority=30,cookie=0x16,in_port=2,ct_state=+trk+est+rpl,ip,actions=1
table=1,priority=30,cookie=0x16,in_port=2,ct_state=+trk+est+rpl,ipv6,actions=1
table=1,priority=0,cookie=0x17,actions=drop
"""
INVALID, RELATED_OUT, RELATED_IN, NEW_OUT, NEW_IN, EST_OUT, EST_IN, OTHER = range(0x10, 0x18)


#: SO_RCVBUF without the kernel's limit.
SO_RCVBUFFORCE = 33

#: For how long something is waited for that has to come, in seconds. Tests that wait in vain set less.
PATIENCE = 20


class Lab:
    """br0 with a host at each of ports 1, 2, ...: 10.0.0.1 and fd00::1, 10.0.0.2 and fd00::2, ..."""

    def __init__(self, ovs, net, count=2, offloads=True):
        self.ovs, self.net = ovs, net
        ovs.start()
        ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail-mode=secure")
        self.hosts = [net.host(f"10.0.0.{n}/24", mac=f"02:00:00:00:00:0{n}", address6=f"fd00::{n}/64")
                      for n in range(1, count + 1)]
        for n, host in enumerate(self.hosts, 1):
            if not offloads:
                host.run("ethtool", "-K", "eth0", "tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off")
                run("ethtool", "-K", host.port, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
            ovs.vsctl("add-port", "br0", host.port, "--", "set", "interface", host.port, f"ofport_request={n}")

    def flows(self, *texts):
        """Replaces all flows."""
        self.ovs.ofctl("del-flows", "br0")
        self.ovs.ofctl("add-flows", "br0", "-", version=13, input="\n".join(texts))

    def count(self, cookie):
        """Packets and bytes that the flows with this cookie have matched."""
        text = self.ovs.ofctl("dump-flows", "br0", f"cookie={cookie:#x}/-1")
        found = re.findall(r"n_packets=(\d+), n_bytes=(\d+)", text)
        assert found, f"no flow has the cookie {cookie:#x}"
        return sum(int(packets) for packets, _ in found), sum(int(size) for _, size in found)

    def hits(self, cookie):
        return self.count(cookie)[0]

    def counts(self, cookie, at_least=1):
        """Waits until a flow has counted so many packets; how many it has."""
        until(lambda: self.hits(cookie) >= at_least, what=f"{at_least} packets at the flow {cookie:#x}")
        return self.hits(cookie)

    def connections(self, *words):
        """Lines of `dpctl/dump-conntrack` that have all these words."""
        lines = self.ovs.appctl("dpctl/dump-conntrack").splitlines()
        return [line for line in lines if all(word in line for word in words)]

    def neighbour(self, host, address, mac):
        """Tells a host the Ethernet address of an address that nobody has."""
        host.run("ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent")


def make(host, address, kind, protocol=0):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with inside(host):
        s = socket.socket(family, kind, protocol)
    s.settimeout(PATIENCE)
    return s


def udp(host, address, port=0):
    """A datagram socket of a host."""
    s = make(host, address, socket.SOCK_DGRAM)
    s.bind((address, port))
    return s


def raw(host, address, protocol):
    """A raw socket: what it sends gets an IP header."""
    return make(host, address, socket.SOCK_RAW, protocol)


def listen(host, address, port):
    s = make(host, address, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen()
    return s


def connect(host, address, port, source=None, timeout=PATIENCE):
    """A stream from a host; raises OSError where it does not come about."""
    s = make(host, address, socket.SOCK_STREAM)
    s.settimeout(timeout)
    if source:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("::" if ":" in address else "0.0.0.0", source))
    s.connect((address, port))
    return s


def stream(a, b, address, port, to=None, source=None):
    """A connection from one host to another, both ends; `address` is that of the server, `to` the one that the client uses."""
    with listen(b, address, port) as server:
        client = connect(a, to or address, port, source)
        end = server.accept()[0]
    end.settimeout(PATIENCE)
    exchange(client, end)
    return client, end


def exchange(client, server):
    """Both ends hear each other; no acknowledgement is left for later."""
    for one, other, words in ((client, server, b"to the server"), (server, client, b"to the client")):
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        one.sendall(words)
        assert other.recv(100) == words


def refused(host, address, port):
    """Whether a connection does not come about."""
    try:
        connect(host, address, port, timeout=1.5).close()
    except TimeoutError:
        return True
    return False


def hears(s):
    """What comes to a datagram socket, and from where; None where nothing does within its timeout."""
    try:
        return s.recvfrom(65536)
    except TimeoutError:
        return None
