"""Translated addresses between local stacks: who sees which address, and that errors find their way back."""

import socket
import sys
from collections import Counter

import pytest
from conftest import until
from lib.conntrack import NEIGHBOURS, PATIENCE, Lab, connect, exchange, hears, listen, make, refused, stream, udp
from lib.net import run

#: What port 1 opens has another source behind port 2; `{nat}` is the argument of `nat`, `{nat6}` that for IPv6.
SOURCE = """
table=0,priority=10,in_port=1,ip,actions=ct(commit,table=1,zone=1,nat({nat}))
table=0,priority=10,in_port=1,ipv6,actions=ct(commit,table=1,zone=1,nat({nat6}))
table=0,priority=10,in_port=2,ip,actions=ct(table=2,zone=1,nat)
table=0,priority=10,in_port=2,ipv6,actions=ct(table=2,zone=1,nat)
table=1,cookie=1,ct_state=+trk+snat,ip,actions=2
table=1,cookie=1,ct_state=+trk+snat,ipv6,actions=2
table=1,cookie=2,priority=0,actions=drop
table=2,priority=20,cookie=3,ct_state=+trk+rel,ip,actions=1
table=2,priority=20,cookie=3,ct_state=+trk+rel,ipv6,actions=1
table=2,priority=10,cookie=4,ct_state=+trk+est+rpl,ip,actions=1
table=2,priority=10,cookie=4,ct_state=+trk+est+rpl,ipv6,actions=1
table=2,priority=0,cookie=5,actions=drop
"""


def source(nat="src=10.0.0.100", nat6="src=fd00::100"):
    return SOURCE.format(nat=nat, nat6=nat6)


@pytest.fixture
def lab(ovs, net):
    lab = Lab(ovs, net)
    a, b = lab.hosts
    for n in range(100, 110):
        lab.neighbour(b, f"10.0.0.{n}", a.mac)
        lab.neighbour(b, f"fd00::{n}", a.mac)
    return lab


@pytest.mark.parametrize("there, outside", [("10.0.0.2", "10.0.0.100"), ("fd00::2", "fd00::100")], ids=["IPv4", "IPv6"])
def test_a_server_sees_the_translated_source(lab, there, outside):
    a, b = lab.hosts
    lab.flows(NEIGHBOURS, source())
    client, server = stream(a, b, there, 8000, source=5000)
    assert server.getpeername()[:2] == (outside, 5000)
    assert client.getpeername()[:2] == (there, 8000)
    assert a.ping(there) == 3
    question, answer = udp(a, "::" if ":" in there else "0.0.0.0", 5000), udp(b, there, 6000)
    question.sendto(b"?", (there, 6000))
    data, peer = hears(answer)
    assert peer[:2] == (outside, 5000)
    answer.sendto(data, peer)
    assert hears(question)[1][:2] == (there, 6000)
    assert lab.connections("sport=5000", "dport=8000", f"src={there},dst={outside}")
    assert lab.hits(2) == 0
    # Nobody outside gets to the host by its translated address.
    with listen(a, "::" if ":" in there else "0.0.0.0", 8001):
        assert refused(b, outside, 8001)


def test_a_port_that_is_taken_is_translated_as_well(lab):
    """Two hosts behind one address use the same port to the same server."""
    a, b = lab.hosts
    a.run("ip", "addr", "add", "10.0.0.11/24", "dev", "eth0")
    lab.flows(NEIGHBOURS, source())
    seen = set()
    with listen(b, "10.0.0.2", 8000) as server:
        for own in ("10.0.0.1", "10.0.0.11"):
            s = make(a, own, socket.SOCK_STREAM)
            s.bind((own, 5000))
            s.connect(("10.0.0.2", 8000))
            end, peer = server.accept()
            end.settimeout(PATIENCE)
            exchange(s, end)
            seen.add(peer)
    assert {address for address, _ in seen} == {"10.0.0.100"} and len(seen) == 2


def peers(lab, count, to="10.0.0.2", there="10.0.0.2"):
    """Whom the server sees in so many connections, which are all open at once."""
    a, b = lab.hosts[:2]
    with listen(b, there, 8000) as server:
        server.listen(count)
        pairs = [(connect(a, to, 8000), *server.accept()) for _ in range(count)]
    for client, end, _ in pairs:
        end.settimeout(PATIENCE)
        exchange(client, end)
    return [peer[:2] for _, _, peer in pairs]


def test_a_range_of_addresses_is_used(lab):
    lab.flows(NEIGHBOURS, source("src=10.0.0.101-10.0.0.104,random"))
    seen = Counter(address for address, _ in peers(lab, 60))
    assert set(seen) <= {f"10.0.0.{n}" for n in range(101, 105)} and len(seen) > 1


def test_a_range_of_addresses_is_used_for_ipv6(lab):
    lab.flows(NEIGHBOURS, source(nat6="src=fd00::101-fd00::104"))
    seen = Counter(address for address, _ in peers(lab, 60, "fd00::2", "fd00::2"))
    assert set(seen) <= {f"fd00::{n}" for n in range(101, 105)} and len(seen) >= 1


def test_a_persistent_mapping_keeps_the_address(lab):
    lab.flows(NEIGHBOURS, source("src=10.0.0.101-10.0.0.108,persistent"))
    assert len({address for address, _ in peers(lab, 40)}) == 1


@pytest.mark.parametrize("how", ["", ",random", ",hash"])
def test_a_range_of_ports_is_used_up(lab, how):
    """Four ports carry four connections to a server, and no fifth; nobody but those is seen."""
    a, _ = lab.hosts
    lab.flows(NEIGHBOURS, source(f"src=10.0.0.100:40000-40003{how}"))
    seen = peers(lab, 4)
    assert set(seen) == {("10.0.0.100", port) for port in range(40000, 40004)}
    with listen(lab.hosts[1], "10.0.0.2", 8000):
        # They are still there; what finds no port is not sent, at least not as another.
        assert len(lab.connections("dport=40000-".removesuffix("-"))) == 1
        assert refused(a, "10.0.0.2", 8000)


def test_only_ports_that_are_taken_change_with_zero_addresses(lab):
    """nat(src=0.0.0.0): the addresses stay, and a port changes where the tuple is taken."""
    a, b = lab.hosts
    b.run("ip", "addr", "add", "10.0.0.77/32", "dev", "lo")
    lab.neighbour(a, "10.0.0.77", b.mac)
    lab.flows(NEIGHBOURS, """
        table=0,priority=20,in_port=1,tcp,nw_dst=10.0.0.77,actions=ct(commit,table=1,zone=1,nat(dst=10.0.0.2))
        table=0,priority=10,in_port=1,tcp,actions=ct(commit,table=1,zone=1,nat(src=0.0.0.0))
        table=0,priority=10,in_port=2,tcp,actions=ct(table=2,zone=1,nat)
        table=1,ct_state=+trk-inv,tcp,actions=2
        table=2,ct_state=+trk+est,tcp,actions=1""")
    with listen(b, "10.0.0.2", 8000) as server:
        first = connect(a, "10.0.0.77", 8000, source=5000)
        end1, peer1 = server.accept()
        second = connect(a, "10.0.0.2", 8000, source=5000)
        end2, peer2 = server.accept()
    assert peer1 == ("10.0.0.1", 5000) and peer2[0] == "10.0.0.1" and peer2[1] != 5000
    for pair in ((first, end1), (second, end2)):
        pair[1].settimeout(PATIENCE)
        exchange(*pair)


#: Connections to VIP port 80 go to ports 2 and 3, port 8000; `{vip}`, `{one}` and `{two}` are addresses, `{ip}` ip or ipv6.
BALANCER = """
table=0,in_port=1,{ip},actions=ct(table=1,zone=1,nat)
table=0,in_port=2,{ip},actions=ct(table=3,zone=1,nat)
table=0,in_port=3,{ip},actions=ct(table=3,zone=1,nat)
table=1,priority=20,ct_state=+trk+new,tcp{v},tp_dst=80,{field}_dst={vip},actions=group:1
table=1,priority=10,cookie=1,ct_state=+trk+est+dnat-rpl,{ip},actions=resubmit(,2)
table=2,{ip},{field}_dst={one},actions=mod_dl_dst:02:00:00:00:00:02,2
table=2,{ip},{field}_dst={two},actions=mod_dl_dst:02:00:00:00:00:03,3
table=3,cookie=2,ct_state=+trk+est+rpl+snat,{ip},actions=mod_dl_dst:02:00:00:00:00:01,1
"""


@pytest.mark.parametrize("vip, one, two", [("10.0.0.100", "10.0.0.2", "10.0.0.3"), ("fd00::100", "fd00::2", "fd00::3")],
                         ids=["IPv4", "IPv6"])
def test_a_load_balancer_spreads_connections(ovs, net, vip, one, two):
    lab = Lab(ovs, net, 3)
    a, b, c = lab.hosts
    lab.neighbour(a, vip, "02:00:00:00:00:99")
    six = ":" in vip
    names = {"ip": "ipv6" if six else "ip", "v": "6" if six else "", "field": "ipv6" if six else "nw"}
    brackets = "[{}]" if six else "{}"
    buckets = ",".join("bucket=weight:1,actions=ct(commit,table=2,zone=1,nat(dst={}:8000))".format(brackets.format(server))
                       for server in (one, two))
    ovs.ofctl("add-group", "br0", f"group_id=1,type=select,{buckets}", version=13)
    lab.flows(NEIGHBOURS, BALANCER.format(vip=vip, one=one, two=two, **names))
    used = Counter()
    with listen(b, one, 8000) as first, listen(c, two, 8000) as second:
        for server in (first, second):
            server.setblocking(False)
        for _ in range(40):
            client = connect(a, vip, 80)
            server, end, peer = until(lambda: accepted(first, second), what="the connection at one of the servers")
            end.settimeout(PATIENCE)
            used[server] += 1
            # The servers see the client as it is, and the client nobody but the balancer.
            assert peer[:2] == client.getsockname()[:2] and client.getpeername()[:2] == (vip, 80)
            exchange(client, end)
            client.close(), end.close()
    assert len(used) == 2 and min(used.values()) >= 5, used
    assert lab.counts(1) and lab.counts(2)


def accepted(*servers):
    for server in servers:
        try:
            return server, *server.accept()
        except BlockingIOError:
            pass
    return None


def test_a_host_reaches_itself_by_the_balancer(ovs, net):
    """A hairpin: both ends are one host, which sees the balancer's addresses on both."""
    lab = Lab(ovs, net, 1)
    [a] = lab.hosts
    for address in ("10.0.0.100", "10.0.0.200"):
        lab.neighbour(a, address, "02:00:00:00:00:99")
    back = "mod_dl_src:02:00:00:00:00:99,mod_dl_dst:02:00:00:00:00:01,IN_PORT"
    lab.flows(NEIGHBOURS, f"""
        table=0,ip,nw_dst=10.0.0.100,actions=ct(commit,table=1,zone=1,nat(dst=10.0.0.1))
        table=1,ip,nw_dst=10.0.0.1,actions=ct(commit,table=2,zone=2,nat(src=10.0.0.200))
        table=2,cookie=1,ip,nw_src=10.0.0.200,nw_dst=10.0.0.1,actions={back}
        table=0,ip,nw_dst=10.0.0.200,actions=ct(table=3,zone=2,nat)
        table=3,ip,nw_dst=10.0.0.1,actions=ct(table=4,zone=1,nat)
        table=4,cookie=2,ip,nw_src=10.0.0.100,nw_dst=10.0.0.1,actions={back}""")
    client, server = stream(a, a, "10.0.0.1", 8000, to="10.0.0.100", source=5000)
    assert client.getpeername() == ("10.0.0.100", 8000)
    assert server.getpeername() == ("10.0.0.200", 5000)
    client.sendall(b"x" * 100000)
    assert len(b"".join(iter(lambda: server.recv(65536), b"")) if client.shutdown(socket.SHUT_WR) is None else b"") == 100000
    assert a.ping("10.0.0.100") == 3
    assert lab.counts(1) and lab.counts(2)


def behind_router(lab, mtu=1500):
    """A network behind host 2, which becomes a router: host 3 at the end of a link with this MTU, as 10.1.0.3 and fd01::3."""
    a, router = lab.hosts
    far = lab.net.host()
    for host in (router, far):
        host.run("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
    run("ip", "link", "add", "eth1", "netns", router.ns, "mtu", mtu, "type", "veth", "peer", "name", "eth1", "netns", far.ns,
        "mtu", mtu)
    for host, n in ((router, 2), (far, 3)):
        host.run("ip", "addr", "add", f"10.1.0.{n}/24", "dev", "eth1")
        host.run("ip", "addr", "add", f"fd01::{n}/64", "dev", "eth1", "nodad")
        host.run("ip", "link", "set", "eth1", "up")
    router.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.icmp_ratelimit=0",
               "net.ipv6.icmp.ratelimit=0")
    far.run("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")
    # The network of the translated address only: none of the host's own is known there.
    far.run("ip", "route", "add", "10.0.0.100/32", "via", "10.1.0.2")
    far.run("ip", "route", "add", "fd00::100/128", "via", "fd01::2")
    a.run("ip", "route", "add", "10.1.0.0/24", "via", "10.0.0.2")
    a.run("ip", "route", "add", "fd01::/64", "via", "fd00::2")
    return far


@pytest.mark.parametrize("far, hop", [("10.1.0.3", "10.0.0.2"), ("fd01::3", "fd00::2")], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("how", [["-U"], ["-I"], ["-T", "-p", "8000"]], ids=["udp", "icmp", "tcp"])
def test_traceroute_sees_the_way_through_a_translation(lab, far, hop, how):
    """The errors on the way quote the translated packet; the sender gets its own back."""
    behind_router(lab)
    lab.flows(NEIGHBOURS, source())
    out = lab.hosts[0].run("traceroute", "-n", "-q", "1", "-w", "2", "-m", "4", *how, far).stdout
    hops = [line.split()[1] for line in out.splitlines()[1:]]
    assert hops == [hop, far], out
    assert lab.counts(3)


def test_the_hosts_of_a_translated_destination_seem_to_be_one(ovs, net):
    """An error of the server behind a translated destination comes from the address that was asked."""
    lab = Lab(ovs, net)
    a, b = lab.hosts
    lab.neighbour(a, "10.0.0.100", b.mac)
    lab.flows(NEIGHBOURS, """
        table=0,in_port=1,udp,nw_dst=10.0.0.100,actions=ct(commit,table=1,zone=1,nat(dst=10.0.0.2:6000))
        table=1,ct_state=+dnat,udp,actions=2
        table=0,in_port=2,ip,actions=ct(table=2,zone=1,nat)
        table=2,cookie=3,ct_state=+rel,icmp,actions=1
        table=2,ct_state=+est,ip,actions=1""")
    sniffer = a.sniff("-v", "icmp")
    s = udp(a, "10.0.0.1", 5000)
    s.connect(("10.0.0.100", 53))
    s.send(b"nobody listens")
    with pytest.raises(ConnectionRefusedError):
        s.recv(100)
    [seen] = sniffer.sees("unreachable")
    assert lab.counts(3) == 1
    assert "10.0.0.100 > 10.0.0.1" in seen and "10.0.0.100 udp port 53 unreachable" in seen


@pytest.mark.parametrize("far", ["10.1.0.3", "fd01::3"], ids=["IPv4", "IPv6"])
def test_the_mtu_of_the_path_is_found_through_a_translation(lab, far):
    """Behind the router frames may have 1300 bytes: its errors tell the sender so."""
    end = behind_router(lab, mtu=1300)
    a, _ = lab.hosts
    lab.flows(NEIGHBOURS, source())
    six = ":" in far
    s = udp(a, "::" if six else "0.0.0.0", 5000)
    level, discover, mtu = (socket.IPPROTO_IPV6, 23, 24) if six else (socket.IPPROTO_IP, 10, 14)
    s.setsockopt(level, discover, 2)
    s.connect((far, 6000))
    receiver = udp(end, far, 6000)
    assert s.getsockopt(level, mtu) == 1500
    s.send(bytes(1400))
    until(lambda: path_mtu(s, level, mtu) == 1300, what="the path's MTU being known")
    s.send(bytes(1200))
    assert len(hears(receiver)[0]) == 1200, "the larger one never arrived"
    # A stream takes no notice of it.
    with listen(end, far, 8000) as server:
        client = connect(a, far, 8000)
        other = server.accept()[0]
    client.sendall(bytes(300_000))
    client.shutdown(socket.SHUT_WR)
    other.settimeout(5)
    assert len(b"".join(iter(lambda: other.recv(65536), b""))) == 300_000
    assert lab.counts(3)


def path_mtu(s, level, option):
    """What the stack believes; an error that waits at the socket is fetched by the look."""
    s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return s.getsockopt(level, option)


def test_curl_gets_a_file_through_two_translations(lab, tmp_path):
    """Source and destination of one connection are translated, each in a zone of its own."""
    a, b = lab.hosts
    lab.neighbour(a, "10.0.0.50", b.mac)
    lab.flows(NEIGHBOURS, """
        table=0,in_port=1,tcp,actions=ct(commit,table=1,zone=1,nat(dst=10.0.0.2:8000))
        table=1,tcp,actions=ct(commit,table=2,zone=2,nat(src=10.0.0.100))
        table=2,tcp,nw_src=10.0.0.100,nw_dst=10.0.0.2,actions=2
        table=0,in_port=2,tcp,actions=ct(table=3,zone=2,nat)
        table=3,tcp,actions=ct(table=4,zone=1,nat)
        table=4,tcp,nw_src=10.0.0.50,nw_dst=10.0.0.1,actions=1""")
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4000)
    server = b.start(sys.executable, "-um", "http.server", "--bind", "10.0.0.2", "--directory", tmp_path, "8000")
    got = tmp_path / "got"
    a.run("curl", "-sS", "--retry-connrefused", "--retry", "20", "--retry-delay", "1", "--max-time", "30", "-o", got,
          "http://10.0.0.50/file")
    assert got.read_bytes() == (tmp_path / "file").read_bytes()
    server.terminate()
    assert server.communicate()[1].startswith("10.0.0.100 ")
