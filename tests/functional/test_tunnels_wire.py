"""What Weir sends into tunnels, as others read it: tcpdump finds nothing to complain of, and scapy computes the same bytes."""

import json
import re
import sys
import time

import pytest
from conftest import ROOT, until
from lib.net import run
from lib.pcap import read_pcap
from lib.tunnel import Capture

#: What tcpdump says where something is wrong.
COMPLAINTS = re.compile(r"\b(bad|trunc\w*|invalid|malformed|unknown|incorrect|wrong|missing)\b|\[\||\(->", re.I)

#: Type and options; the layers before the inner packet, and fields of them.
CASES = {
    "vxlan": ("vxlan", ["key=7"], ["UDP", "VXLAN", "Ether"], {"vni": 7, "flags": "Instance"}),
    "vxlan-csum": ("vxlan", ["key=0xffffff", "csum=true"], ["UDP", "VXLAN", "Ether"], {"vni": 0xffffff}),
    "vxlan-gbp": ("vxlan", ["key=7", "exts=gbp"], ["UDP", "VXLAN", "Ether"], {"vni": 7}),
    "geneve": ("geneve", ["key=7"], ["UDP", "GENEVE", "Ether"], {"vni": 7, "proto": 0x6558, "optionlen": 0}),
    "geneve-csum": ("geneve", ["key=7", "csum=true"], ["UDP", "GENEVE", "Ether"], {"vni": 7, "critical": 0, "oam": 0}),
    "gre": ("gre", [], ["GRE", "Ether"], {"proto": 0x6558, "key_present": 0, "chksum_present": 0, "seqnum_present": 0}),
    "gre-key-csum-seq": ("gre", ["key=7", "csum=true", "seq=true"], ["GRE", "Ether"],
                         {"key": 7, "key_present": 1, "chksum_present": 1, "seqnum_present": 1, "version": 0}),
    "gre-l3": ("gre", ["packet_type=legacy_l3", "key=7"], ["GRE"], {"key": 7}),
    "erspan1": ("erspan", ["key=7", "erspan_ver=1", "erspan_idx=3"], ["GRE", "ERSPAN_II", "Ether"],
                {"ver": 1, "session_id": 7, "index": 3}),
    "erspan2": ("erspan", ["key=7", "erspan_ver=2", "erspan_dir=1", "erspan_hwid=4"], ["GRE", "ERSPAN_III", "Ether"],
                {"ver": 2, "session_id": 7, "d": 1, "hw": 4}),
    "gtpu": ("gtpu", ["key=7"], ["UDP", "GTP_U_Header"], {"teid": 7, "version": 1, "PT": 1, "gtp_type": 255}),
}
#: What tcpdump does not look into.
OPAQUE = ("erspan", "gtpu")
SIX = {"gre": "ip6gre", "erspan": "ip6erspan"}


SENDER = """
import socket, sys
for family, address in zip((socket.AF_INET, socket.AF_INET6), sys.argv[1:]):
    u = socket.socket(family, socket.SOCK_DGRAM)
    u.connect((address, 9))
    u.send(b'odd')
    u.setsockopt(17, 103, 501)
    u.send(bytes(2500))
    t = socket.socket(family, socket.SOCK_STREAM)
    t.setblocking(False)
    t.connect_ex((address, 9))
"""


@pytest.fixture
def site(lab):
    """Weir, and a host that only has the addresses: it gets what would be on a real wire, and takes nothing."""
    weir, weir.peer = lab.weir(), lab.linux()
    lab.wire(weir, weir.peer)
    weir.attach(), weir.peer.attach()
    for address in (weir.peer.in4, weir.peer.in6):
        weir.vm.run("ip", "neigh", "add", address, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    return weir


def sent(weir, path, kind, options, six, write):
    """What the machine sends through such a tunnel, of each kind of packet some: captured in a file."""
    peer, name = weir.peer, f"t{six}"
    t = weir.tunnel(name, kind, f"remote_ip={peer.outside(six)}", *options)
    vm = weir.vsctl("get", "interface", "vm0", "ofport")
    own = "actions=drop"
    weir.flows(f"in_port={vm},arp,{own}", f"in_port={vm},icmp6,icmp_type=143,{own}", f"in_port={vm},icmp6,icmp_type=133,{own}",
               f"in_port={vm},actions={write}{t}")
    capture = Capture(peer.host, path, f"src host {weir.outside(six)} and not arp and not icmp and not icmp6")
    for address in (peer.in4, peer.in6):
        weir.vm.run("ping", "-c", 2, "-i", "0.05", "-s", 57, "-W", "0.05", address, check=False)
    weir.vm.run(sys.executable, "-c", SENDER, peer.in4, peer.in6)
    # Two echo requests, a datagram, five of another one, and one segment, of IPv4 and of IPv6.
    until(lambda: len(read_pcap(path)) >= 18, what="18 packets")
    capture.stop()
    return path


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_sent_is_what_others_read(site, tmp_path, case):
    kind, options, layers, fields = CASES[case]
    write = "set_field:9->tun_gbp_id," if "gbp" in case else ""
    captures = []
    for six in (False, True):
        one = SIX.get(kind, kind) if six and "l3" not in case else kind
        captures.append(sent(site, tmp_path / f"{six}.pcap", one, options, six, write))
        said = run("tcpdump", "-nvvr", captures[-1]).stdout
        complaints = [line for line in said.splitlines() if COMPLAINTS.search(line)]
        assert not complaints
        if kind not in OPAQUE:
            sums = said.count("udp sum ok"), len(re.findall(r"cksum 0x\w+ \(correct\)", said))
            assert sums >= (12, 2), said
    decoded = run("/usr/bin/python3", ROOT / "tests/scapy/decode_tunnels.py", *captures).stdout.splitlines()
    for six, packets in zip((False, True), decoded, strict=True):
        check(site, json.loads(packets), case, kind, layers, fields, six)


def check(site, packets, case, kind, layers, fields, six):
    """That these are the layers, with the fields that were configured."""
    inner, ports = set(), {}
    for packet in packets:
        names = [name for name, _ in packet]
        assert names[:2 + len(layers)] == ["Ether", "IPv6" if six else "IP", *layers], names
        outer = packet[1][1]
        assert (outer["src"], outer["dst"]) == (site.outside(six), site.peer.outside(six))
        header = {field: value for _, values in packet[2:2 + len(layers)] for field, value in values.items()}
        assert {field: header[field] for field in fields} == fields
        if "gbp" in case:
            assert (header["gpid"], header["flags"]) == (9, "Instance+G")
        ip, above = packet[2 + len(layers)], packet[3 + len(layers)]
        inner.add(f"{ip[0]}-{above[0]}")
        if layers[0] == "UDP":
            # What was a super-frame is cut by the kernel as one of UDP, which has checksums.
            was_cut = above[0] == "UDP" and above[1]["len"] > 100
            is_asked, is_there = six or "csum" in case or kind == "gtpu", packet[2][1]["chksum"] != 0
            assert is_there == is_asked or was_cut and is_there
            connection = ip[1]["src"], above[0], above[1].get("sport"), above[1].get("dport")
            ports.setdefault(connection, set()).add(packet[2][1]["sport"])
    assert {"IP-ICMP", "IP-UDP", "IP-TCP", "IPv6-UDP", "IPv6-TCP"} <= inner
    if "seq" in case or kind == "erspan":
        numbers = [packet[2][1]["sequence_number"] for packet in packets]
        # A veth pair may reorder them.
        assert sorted(numbers) == list(range(min(numbers), min(numbers) + len(numbers))), "each has a number of its own"
    if "ERSPAN_III" in layers:
        # Hundreds of microseconds, which wrap (granularity 0).
        now = int(time.time() * 10_000)
        ages = [(now - packet[3][1]["timestamp"]) % 2**32 for packet in packets]
        assert all(packet[3][1]["gra"] == 0 for packet in packets) and max(ages) < 600 * 10_000 and len(set(ages)) > 1, ages
    if layers[0] == "UDP":
        assert all(len(found) == 1 for found in ports.values()), f"one connection, one source port: {ports}"
        every = set.union(*ports.values())
        assert len(every) >= 4 and all(32768 <= port < 61000 for port in every)
