"""Frames that no peer ought to send: each is dropped for a reason with a name, and nothing else happens."""

import ipaddress
import random
import re
import struct

import pytest
from conftest import until
from lib.tunnel import drops, send

POP = "datapath_drop_tunnel_pop_error"
CHECKSUM = "datapath_drop_tunnel_checksum"
FRAGMENT = "datapath_drop_tunnel_fragment"
OPTION = "datapath_drop_tunnel_option"
PORT = "datapath_drop_invalid_tnl_port"
CONGESTION = "drop_action_congestion"
#: The peer's own address, and that of the switch.
PEER, OWN = "172.31.0.2", "172.31.0.1"
VXLAN = bytes.fromhex("0800000000000700")
GENEVE = bytes.fromhex("0000655800000700")
GRE = bytes.fromhex("20006558" "00000007")


def checksum(data):
    """Of RFC 1071."""
    data += bytes(len(data) % 2)
    return 0xffff - (sum(struct.unpack(f"!{len(data) // 2}H", data)) % 0xffff or (0xffff if any(data) else 0))


def inner(tos=0, size=30):
    """A frame of IPv4 for a machine that nobody knows."""
    head = struct.pack("!BBHHHBBH", 0x45, tos, 20 + size, 1, 0, 64, 253, 0) + bytes([10, 9, 0, 2, 10, 9, 0, 1])
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return bytes.fromhex("0200000000aa0200000000bb0800") + head + bytes(size)


def udp(payload, port=4789, length=None, sum=0):
    return struct.pack("!HHHH", 50000, port, 8 + len(payload) if length is None else length, sum) + payload


def ipv4(payload, proto=17, src=PEER, dst=OWN, tos=0, length=None, offset=0, version=0x45, wrong=0, options=b""):
    """An outer packet."""
    head = struct.pack("!BBHHHBBH", version + len(options) // 4, tos, 20 + len(options) + len(payload) if length is None else length,
                       1, offset, 64, proto, 0) + ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed + options
    return head[:10] + struct.pack("!H", checksum(head) ^ wrong) + head[12:] + payload


def ipv6(payload, next=17, length=None):
    return struct.pack("!IHBB", 6 << 28, len(payload) if length is None else length, next, 64) + \
        ipaddress.ip_address("fd31::2").packed + ipaddress.ip_address("fd31::1").packed + payload


#: Each with the counter of its reason.
FRAMES = {
    "nothing behind UDP": (ipv4(udp(b"")), POP),
    "half a header": (ipv4(udp(VXLAN[:5])), POP),
    "no inner frame": (ipv4(udp(VXLAN)), POP),
    "half an Ethernet header": (ipv4(udp(VXLAN + inner()[:9])), POP),
    "VXLAN without its flag": (ipv4(udp(b"\0" + VXLAN[1:] + inner())), POP),
    "VXLAN with reserved flags": (ipv4(udp(b"\x0c" + VXLAN[1:] + inner())), POP),
    "VXLAN with a reserved byte": (ipv4(udp(VXLAN[:7] + b"\x01" + inner())), POP),
    "a VNI that nobody has": (ipv4(udp(VXLAN[:4] + b"\x12\x34\x56\0" + inner())), PORT),
    "another host": (ipv4(udp(VXLAN + inner()), src="172.31.0.9"), PORT),
    "a length of UDP beyond the packet": (ipv4(udp(VXLAN + inner(), length=900)), POP),
    "a length of UDP below its header": (ipv4(udp(VXLAN + inner(), length=7)), POP),
    "a wrong checksum of UDP": (ipv4(udp(VXLAN + inner(), sum=0x1234)), CHECKSUM),
    "a first fragment": (ipv4(udp(VXLAN + inner()), offset=0x2000), FRAGMENT),
    "GRE in a later fragment": (ipv4(GRE + inner(), proto=47, offset=0x2010), FRAGMENT),
    "GRE version 1": (ipv4(b"\x20\x01" + GRE[2:] + inner(), proto=47), POP),
    "GRE with routing": (ipv4(b"\x60\x00" + GRE[2:] + inner(), proto=47), POP),
    "half of GRE": (ipv4(GRE[:6], proto=47), POP),
    "GRE of an unknown protocol": (ipv4(b"\x20\x00\x12\x34" + GRE[4:] + inner(), proto=47), PORT),
    "GRE with a wrong checksum": (ipv4(b"\xa0\x00\x65\x58\x12\x34\x00\x00" + GRE[4:] + inner(), proto=47), CHECKSUM),
    "GRE without its key": (ipv4(b"\0\0\x65\x58" + inner(), proto=47), PORT),
    "Geneve version 1": (ipv4(udp(b"\x40" + GENEVE[1:] + inner(), 6081)), POP),
    "Geneve with options beyond its end": (ipv4(udp(b"\x3f" + GENEVE[1:] + b"\1\2\3\4", 6081)), POP),
    "Geneve with half an option": (ipv4(udp(b"\x01" + GENEVE[1:] + b"\1\2\3\x1f" + inner(), 6081)), OPTION),
    "Geneve with an unknown critical option": (ipv4(udp(b"\x01\x40" + GENEVE[2:] + b"\1\2\x83\0" + inner(), 6081)), OPTION),
    "congestion that cannot be told": (ipv4(udp(VXLAN + inner()), tos=3), CONGESTION),
    "VXLAN over IPv6 with nothing": (ipv6(udp(b"", sum=0)), POP),
    "a fragment over IPv6": (ipv6(bytes.fromhex("11000001" "00000001") + udp(VXLAN + inner()), next=44), FRAGMENT),
}


@pytest.fixture
def weir(lab):
    """Weir with some tunnels, and the peer that sends what it likes; `weir.throw(packet)` sends one."""
    weir, linux = lab.pair("linux")
    weir.flows("actions=drop")
    for name, *options in (("vx", "vxlan", "key=7"), ("gnv", "geneve", "key=7"), ("gre", "gre", "key=7")):
        weir.tunnel(name, options[0], f"remote_ip={PEER}", options[1])
    weir.tunnel("vx6", "vxlan", "remote_ip=fd31::2", "key=7")
    linux.vxlan(weir)
    weir.know(linux)
    weir.direct("vx")
    assert weir.vm.ping(linux.in4) == 3
    mac = bytes.fromhex("0200000002" f"{weir.number:02x}") + bytes.fromhex("020000000099")
    weir.peer = linux
    weir.throw = lambda *packets: send(linux.host, [frame(mac, packet) for packet in packets])
    return weir


def frame(macs, packet):
    return (macs + (b"\x08\0" if packet[0] >> 4 != 6 else b"\x86\xdd") + packet).ljust(60, b"\0")


def test_each_has_its_reason(weir):
    """One after the other, with the account of packets between them: none is counted twice, and none goes on."""
    wrong = {}
    for name, (packet, reason) in FRAMES.items():
        before, received = drops(weir), weir.counter("datapath_received")
        weir.throw(packet)
        until(lambda: weir.counter("datapath_received") > received, what=f"{name} being received")
        try:
            until(lambda: drops(weir) != before, 2)
        except AssertionError:
            pass
        after = drops(weir)
        rise = {counter: n - before.get(counter, 0) for counter, n in after.items() if n != before.get(counter, 0)}
        # As OVS does, one counter counts whatever is wrong with headers.
        also = {POP: 1} if reason in (CHECKSUM, FRAGMENT, OPTION) else {}
        if rise != {reason: 1} | also:
            wrong[name] = rise
    assert not wrong
    assert weir.vm.ping(weir.peer.in4, count=5) == 5


def test_later_fragments_go_to_the_host(weir):
    """They have no ports: the host's stack gets them, and no tunnel."""
    before = drops(weir)
    local = weir.host.sniff("udp or ip[6:2] & 0x1fff != 0", device="br-phy")
    weir.throw(ipv4(bytes(64), offset=0x0010))
    local.sees("172.31.0.2 > 172.31.0.1")
    assert drops(weir) == before


def test_good_neighbours_of_bad_frames_are_not_harmed(weir):
    """A stream goes on while all kinds of bad frames come in between."""
    packets = [packet for packet, _ in FRAMES.values()] * 8
    random.Random(7).shuffle(packets)
    received = weir.vm.received()
    pings = weir.vm.pings(weir.peer.in4, 100, 0.01)
    weir.throw(*packets)
    assert pings.ended() == (100, 100)
    assert weir.vm.received() >= received + 100


def test_a_flood_of_strangers_is_bounded(weir):
    """Ten thousand frames with random keys and senders, twice: memory does not grow with them, and the tunnel goes on."""
    rng = random.Random(17)

    def burst():
        before = weir.counter(PORT)
        for _ in range(40):
            sent = weir.counter("datapath_received")
            weir.throw(*(ipv4(udp(VXLAN[:4] + rng.randbytes(3) + b"\0" + inner()), src=str(ipaddress.ip_address(rng.getrandbits(32) | 1)))
                         for _ in range(250)))
            # Not more at once than the port's ring takes.
            until(lambda: weir.counter("datapath_received") >= sent + 250, what="250 frames")
        until(lambda: weir.counter(PORT) + weir.counter("datapath_drop_upcall_queue_full") >= before + 9_990, 30,
              "each having its reason")

    burst()
    first = weir.memory()
    burst()
    assert weir.memory() < first + 60, "MiB"
    flows = len(weir.appctl("dpctl/dump-flows").splitlines())
    assert flows < 21_000
    assert weir.vm.ping(weir.peer.in4, count=20, interval=0.02) == 20


def test_a_tunnel_that_leads_into_itself_ends(lab):
    weir = lab.weir()
    weir.local()
    # Its way to the other end is the bridge that it belongs to.
    weir.tunnel("loop", "vxlan", "remote_ip=172.31.0.2", "key=7", bridge="br-phy")
    weir.appctl("tnl/neigh/set", "br-phy", "172.31.0.2", "02:00:00:00:00:99")
    weir.tunnel("vx", "vxlan", "remote_ip=172.31.0.2", "key=8")
    weir.direct("vx")
    weir.expect("over 4 tunnels inside each other|over .* tunnels")
    weir.vm.run("ip", "neigh", "replace", "10.9.0.2", "lladdr", "02:00:00:00:00:98", "dev", "eth0", "nud", "permanent")
    assert weir.vm.ping("10.9.0.2", count=5, wait=1) == 0
    assert weir.counter("drop_action_recursion_too_deep") >= 5
    # It still works for others.
    assert "172.31.0.2" in weir.appctl("tnl/neigh/show")


def test_a_thousand_ports_come_and_go(lab):
    weir, linux = lab.pair("linux")
    linux.vxlan(weir, 500)
    ports = [f"t{n}" for n in range(1000)]
    weir.flows("actions=drop")
    add = [word for n, port in enumerate(ports) for word in (
        "--", "add-port", "br-int", port, "--", "set", "interface", port, "type=vxlan", f"options:remote_ip={linux.out4}",
        f"options:key={n}")][1:]
    memory = []
    for _ in range(2):
        weir.vsctl(*add, timeout=60)
        assert len(re.findall(r"\(vxlan: ", weir.appctl("ofproto/list-tunnels"))) == 1000
        weir.know(linux)
        weir.direct("t500")
        assert weir.vm.ping(linux.in4) == 3
        assert "ref_cnt=1000" in weir.appctl("tnl/ports/show")
        weir.vsctl(*[word for port in ports for word in ("--", "del-port", port)][1:], timeout=60)
        assert weir.appctl("ofproto/list-tunnels") == ""
        assert "vxlan_sys" not in weir.appctl("tnl/ports/show")
        memory.append(weir.memory())
    # The first thousand have the allocator keep memory, which does for the second.
    assert memory[1] < memory[0] + 30, memory
    weir.tunnel("t500", "vxlan", f"remote_ip={linux.out4}", "key=500")
    weir.direct("t500")
    assert weir.vm.ping(linux.in4) == 3


def test_a_thousand_remotes_through_one_port(lab):
    """One port of flows; the peer has a thousand addresses, and answers from each."""
    weir, linux = lab.pair("linux")
    weir.host.run("ip", "route", "add", "172.29.0.0/16", "dev", "br-phy")
    linux.host.run("ip", "route", "add", "local", "172.29.0.0/16", "dev", "lo")
    t = weir.tunnel("vx", "vxlan", "remote_ip=flow", "key=flow")
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    linux.vxlan(weir)
    weir.know(linux)
    remotes = [f"172.29.{n // 250}.{n % 250 + 1}" for n in range(1000)]
    # The machine names the remote by the source port of its datagrams.
    flows = [f"in_port={vm},udp,tp_src={10000 + n},actions=set_field:7->tun_id,set_field:{remote}->tun_dst,{t}"
             for n, remote in enumerate(remotes)]
    weir.flows(*flows, f"in_port={t},actions={vm}")
    before = int(linux.host.run("cat", "/sys/class/net/tun0/statistics/rx_packets").stdout)
    weir.vm.run("python3", "-c", f"""if True:
        import socket, time
        for n in range(1000):
            u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            u.bind(('', 10000 + n))
            u.sendto(b'x', ('{linux.in4}', 9))
            time.sleep(0.001)
        """)

    def came():
        return int(linux.host.run("cat", "/sys/class/net/tun0/statistics/rx_packets").stdout) - before

    until(lambda: came() >= 1000, what="a datagram by each remote")
    neighbours = weir.appctl("tnl/neigh/show")
    assert sum(f"{remote} " in neighbours for remote in remotes) == 1000
    assert weir.counter("drop_action_tunnel_neigh_cache_miss") == 0
