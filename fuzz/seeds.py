#!/usr/bin/env python3
"""Writes the seeds of the targets whose inputs are not text: small files of each kind, from frames of scapy.

usage: fuzz/seeds.py    (writes to fuzz/seeds/; the files are committed)
"""
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
FRAMES = {}
for line in (HERE.parent / "tests/scapy/frames.txt").read_text().splitlines():
    if not line.startswith("#"):
        name, frame, _ = (part.strip() for part in line.split("|"))
        FRAMES[name] = bytes.fromhex(frame)


def seed(target, name, content):
    directory = HERE / "seeds" / target
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)


def capture_files():
    frames = [FRAMES["vlan_udp"], FRAMES["llc_only"], b""]
    for order, name in (("<", "little"), (">", "big")):
        for magic, unit in ((0xA1B2C3D4, "micro"), (0xA1B23C4D, "nano")):
            content = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
            for number, frame in enumerate(frames):
                content += struct.pack(order + "IIII", 7, number, len(frame), len(frame)) + frame
            seed("pcap", f"{unit}-{name}", content)

        def block(kind, body):
            body += b"\0" * (-len(body) % 4)
            return struct.pack(order + "II", kind, 12 + len(body)) + body + struct.pack(order + "I", 12 + len(body))

        def option(code, value):
            return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)

        binary = option(9, b"\x8a") + option(14, struct.pack(order + "q", -3)) + option(0, b"")
        content = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
        content += block(1, struct.pack(order + "HHI", 1, 0, 96) + option(2, b"eth0") + option(9, b"\x09"))
        content += block(1, struct.pack(order + "HHI", 1, 0, 0) + binary)
        for interface, frame in enumerate(frames[:2]):
            content += block(6, struct.pack(order + "IIIII", interface, 1, interface, len(frame), len(frame)) + frame)
        content += block(3, struct.pack(order + "I", len(frames[0])) + frames[0])
        content += block(2, struct.pack(order + "HHIIII", 1, 0, 2, 0, len(frames[1]), len(frames[1])) + frames[1])
        content += block(5, struct.pack(order + "III", 0, 1, 2))
        seed("pcap", f"ng-{name}", content)


def ingress():
    frame = FRAMES["vlan_udp"]
    for name, text in {
        "prefixes": "pass src host 10.0.0.1; drop dst net 198.18.0.0/15; drop ip6 net 2001:db8::/32; limit 2",
        "programs": "limit 3k tcp dst port 80 and not src net 10.0.0.0/8; drop ip[6:2] & 8191 != 0; pass vlan and udp",
        "wrong": "drop tcp and; deny udp",
    }.items():
        seed("ingress", name, struct.pack(">BH", 0, len(text)) + text.encode() + frame)
    # ldh [12]; jeq #0x800; ldxb 4*([14]&0xf); ldb [x+14]; st M[3]; div x; ret a; ret #0
    program = [(0x28, 0, 0, 12), (0x15, 0, 5, 0x800), (0xB1, 0, 0, 14), (0x50, 0, 0, 14), (2, 0, 0, 3), (0x3C, 0, 0, 0),
               (0x16, 0, 0, 0), (6, 0, 0, 0)]
    code = b"".join(struct.pack(">HBBI", *instruction) for instruction in program)
    seed("ingress", "bpf", struct.pack(">BH", 1, len(code)) + code + FRAMES["llc_only"])


def ingress_ebpf():
    """Programs of the functional tests, where there is clang, and one of which no compiler knows."""
    sources = HERE.parent / "tests/functional/ebpf"
    if shutil.which("clang"):
        with tempfile.TemporaryDirectory() as directory:
            made = pathlib.Path(directory) / "made.o"
            for name in ("blocklist", "several", "verdict"):
                options = ["-O2", "-g", "-DVERDICT=2", "-I/usr/include/x86_64-linux-gnu", f"-ffile-prefix-map={HERE.parent}=/usr/src/weir"]
                subprocess.run(["clang", "-target", "bpf", *options, "-c", sources / f"{name}.c", "-o", made], check=True)
                subprocess.run(["llvm-objcopy", "-g", "-R.BTF.ext", "-R.rel.BTF.ext", "-R.llvm_addrsig", made], check=True)
                seed("ingress_ebpf", name, b"\0" + made.read_bytes())
    # r6 = data; r7 = data_end; r2 = r6; r2 += 14; if r2 > r7 goto out; r3 = *(u16 *)(r6 + 12); r2 = r10; r2 += -4;
    # *(u32 *)(r10 - 4) = r3; r1 = map 2; call 1; if r0 == 0 goto out; lock *(u64 *)(r0 + 0) += r3; out: r0 = 2; exit
    program = [(0x61, 0x16, 0, 0), (0x61, 0x17, 4, 0), (0xBF, 0x62, 0, 0), (7, 2, 0, 14), (0x2D, 0x72, 9, 0),
               (0x69, 0x63, 12, 0), (0xBF, 0xA2, 0, 0), (7, 2, 0, -4), (0x63, 0x3A, -4, 0), (0x18, 1, 0, 2), (0, 0, 0, 0),
               (0x85, 0, 0, 1), (0x15, 0, 1, 0), (0xDB, 0x30, 0, 0), (0xB7, 0, 0, 2), (0x95, 0, 0, 0)]
    code = b"".join(struct.pack("<BBhi", *word) for word in program)
    seed("ingress_ebpf", "words", bytes([1, len(program)]) + code + FRAMES["vlan_udp"])


def netlink():
    def attribute(kind, value):
        return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    attributes = attribute(3, b"eth0\0") + attribute(1, bytes(6)) + attribute(4, struct.pack("=I", 1500))
    attributes += attribute(51, struct.pack("=I", 9000)) + attribute(31, struct.pack("=I", 2))
    attributes += attribute(0x8012, attribute(1, b"veth\0")) + attribute(23, bytes(200))
    attributes += attribute(0x802B, attribute(2, b"\1") + attribute(4, struct.pack("=I", 9)))
    body = struct.pack("=BBHiII", 0, 0, 1, 5, 0x11043, 0) + attributes
    number = struct.pack("=I", 7)
    link = struct.pack("=IHHII", 16 + len(body), 16, 0, 7, 0) + body
    error = struct.pack("=IHHIIi", 36, 2, 0, 7, 0, -19) + bytes(16)
    seed("netlink", "link", number + link)
    seed("netlink", "body", number + body)
    seed("netlink", "another-answer-first", number + struct.pack("=IHHIIi", 36, 2, 0, 6, 0, 0) + bytes(16) + error)


def tcp_or_udp(tags, ipv6, tcp, size, labels=0):
    """A super-frame with `size` bytes of payload, and where its L4 header is."""
    l4 = struct.pack(">HHIIBBHHH", 1, 80, 9, 8, 5 << 4, 0x18, 99, 0, 0) if tcp else struct.pack(">HHHH", 1, 53, 8 + size, 1)
    length, protocol = len(l4) + size, 6 if tcp else 17
    if ipv6:
        l3 = struct.pack(">IHBB", 6 << 28, length, protocol, 64) + bytes(range(32))
    else:
        l3 = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + length, 7, 0x4000, 64, protocol, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    ethertype = b"\x88\x47" if labels else b"\x86\xdd" if ipv6 else b"\x08\x00"
    head = bytes(12) + b"\x81\x00\x00\x07" * tags + ethertype
    head += b"".join(struct.pack(">I", 16 << 12 | (n == labels - 1) << 8 | 64) for n in range(labels)) + l3
    return head + l4, len(head)


def offloads():
    for tags, ipv6, tcp, labels in ((0, 0, 1, 0), (1, 1, 1, 0), (0, 0, 0, 0), (2, 1, 0, 0), (0, 0, 1, 2)):
        frame, l4 = tcp_or_udp(tags, ipv6, tcp, 3000, labels)
        name = f"{'tcp' if tcp else 'udp'}{6 if ipv6 else 4}-{tags}tags-{labels}labels"
        kind = (4 if ipv6 else 1) if tcp else 5
        pad = struct.pack("<H", 3000)
        for can in (0, 1, 15):
            header = struct.pack("=BBHHHH", 1, kind, len(frame), 1000, l4, 16 if tcp else 6)
            seed("offload", f"{name}-{can}", bytes([can]) + pad + header + frame)
        seed("offload", f"{name}-checksum", bytes([0, 8, 0]) + struct.pack("=BBHHHH", 1, 0, 0, 0, l4, 16 if tcp else 6) + frame)
        for what in (0, 1):
            seed("vhost", f"{name}-{what}", bytes([what]) + struct.pack("<H", 1000) + b"\x0f" + pad + frame)


def forward():
    """Programs: see crates/ofproto/src/reference/fuzz.rs."""
    for number in range(8):
        rng = random.Random(number)

        def instruction(what, length):
            return bytes([what, length]) + rng.randbytes(length)

        program = bytes([number & 1])
        for _ in range(6):
            program += instruction(0, 4)
        for _ in range(5):
            program += instruction(9, 1) + instruction(7, 4) + instruction(10, 7)
            program += instruction(14, 16) + instruction(12, 40) + instruction(13, 3) + instruction(3, 4)
        seed("forward", f"program-{number}", program + instruction(12, 40))


def vlog():
    for name, text in (
        ("pattern", "PATTERN:file:%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%-20c%T|%p|%m%n%E"),
        ("level", "bridge:console:warn"),
        ("facility", "FACILITY:local3"),
        ("filter", "info,bridge=debug,ofproto=off"),
    ):
        seed("vlog", name, text.encode())


def tunnels():
    """The number of the protocol, and a packet that begins with its outer IP header."""
    for name, protocol, headers in (
        ("vxlan", 0, "45000046000100004011f6a2c0000201c0000202c35012b50032f3de0800000012345600"),
        ("gbp", 1, "45000046000100004011f6a2c0000201c0000202c35012b5003200008848123400000700"),
        ("geneve", 3, "4500004e000100004011f69ac0000201c0000202c35017c1003a0a2102406558123456000102800101020304"),
        ("gre", 4, "4500004600010000402ff684c0000201c0000202b0006558a52a00000102030400000009"),
        ("erspan2", 5, "4500004600010000402ff684c0000201c0000202100088be00000009100000050000004d"),
        ("erspan3", 5, "4500004a00010000402ff680c0000201c0000202100022eb00000009200000050102030400000098"),
        ("gtpu", 6, "45000050000100004011f698c0000201c000020208680868003c7eb732ff002c01020304000500004500002800010000400066d30a0000010a000002"),
    ):
        seed("tunnel", name, bytes([protocol]) + bytes.fromhex(headers) + FRAMES["vlan_udp"])
    for name, protocol, packet in (
        ("lisp", 7, "4500004c000100004011f69cc0000201c0000202c35010f50038424a48000000123456014500002800010000400066d30a0000010a000002abababababababababababababababababababab"),
        ("bareudp_ip", 8, "45000044000100004011f6a4c0000201c0000202c35019eb0030e9994500002800010000400066d30a0000010a000002abababababababababababababababababababab"),
        ("bareudp_mpls", 9, "45000048000100004011d899c0000201e0000009c35019eb0034fa7c0004d1094500002800010000400066d30a0000010a000002abababababababababababababababababababab"),
        ("srv6", 11, "61212345008c2b4020010db800000000000000000000000120010db8000000000000000000000004290904000200000020010db800000000000000000000000420010db800000000000000000000000320010db80000000000000000000000020212000000000000000000000000000000000001040200006001234500143b40fd000000000000000000000000000001fd000000000000000000000000000002abababababababababababababababababababab"),
        ("srv6_options", 12, "612000000048004020010db800000000000000000000000120010db80000000000000000000000022b00010400000000040204000000000020010db80000000000000000000000024500002800010000400066d30a0000010a000002abababababababababababababababababababab"),
    ):
        seed("tunnel", name, bytes([protocol]) + bytes.fromhex(packet))


def neighbours():
    """An ARP reply and a neighbour advertisement."""
    arp = "020000000001020000000009" "0806" "0001080006040002" "020000000009c0000209" "020000000001c0000201"
    address = "20010db8000000000000000000000009"
    advertisement = "88000000" "60000000" + address + "0201020000000009"
    body = bytes.fromhex(advertisement)
    pseudo = bytes.fromhex(address + address[:-1] + "1") + struct.pack(">II", len(body), 58)
    total = sum(struct.unpack(f">{(len(pseudo) + len(body)) // 2}H", pseudo + body))
    total = (total >> 16) + (total & 0xFFFF)
    body = body[:2] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + body[4:]
    header = bytes.fromhex("020000000001020000000009" "86dd" "60000000") + struct.pack(">HBB", len(body), 58, 255)
    seed("neighbours", "arp", bytes.fromhex(arp))
    seed("neighbours", "advertisement", header + bytes.fromhex(address + address[:-1] + "1") + body)


def kernel_routes():
    """A device with an address, routes over it, and a neighbour; then the device has another name, and goes."""
    def attribute(kind, value):
        return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    def message(kind, body, tell=False, replaces=False):
        return bytes([kind, tell << 7 | replaces, len(body)]) + body

    def link(name):
        return struct.pack("=BBHiII", 0, 0, 1, 5, 1, 0) + attribute(3, name + b"\0")

    def route(kind, prefix, *attributes):
        return bytes([2, prefix, 0, 0, 254, 3, 0, kind, 0, 0, 0, 0]) + b"".join(attributes)

    device, own, other = attribute(4, struct.pack("=I", 5)), bytes([192, 0, 2, 1]), bytes([192, 0, 2, 9])
    path = struct.pack("=HBBI", 16, 0, 0, 5) + attribute(5, other)
    address = struct.pack("=BBBBI", 2, 24, 0, 0, 5) + attribute(1, own) + attribute(2, own)
    neighbour = struct.pack("=BBHIHBB", 2, 0, 0, 5, 2, 0, 1) + attribute(1, other) + attribute(2, bytes([2, 0, 0, 0, 0, 9]))
    start = message(16, link(b"eth0")) + message(20, address)
    connected = message(24, route(1, 24, attribute(1, bytes([192, 0, 2, 0])), device, attribute(7, own)), tell=True)
    default = route(1, 0, device, attribute(5, other), attribute(6, struct.pack("=I", 100)))
    several = route(1, 0, attribute(9, path + path), attribute(6, struct.pack("=I", 100)))
    end = message(16, link(b"eth1"), tell=True) + message(17, link(b"eth1"))
    seed("kernel_routes", "routes", start + connected + message(24, default, tell=True)
         + message(24, several, replaces=True) + message(25, several) + end)
    seed("kernel_routes", "neighbour", start + message(28, neighbour, tell=True) + end + message(29, neighbour))
    seed("kernel_routes", "dump", start + connected + bytes([255, 128, 0]))


def exports():
    """Sampled packets of every protocol, of tunnels of every kind, and seconds between them."""
    frames = list(FRAMES.values())
    for n, settings in enumerate(((1, 16, 2, 3), (3, 128, 200, 0x0d), (0, 1, 0, 0xff))):
        packets = b""
        for number, frame in enumerate(frames[n::3]):
            frame = frame[:255]
            packets += bytes([number % 2, number, number % 8, number * 7 % 256, number % 4, number * 5 % 64, len(frame)]) + frame
        seed("export", f"packets{n}", bytes(settings) + packets[:4000])


def arguments():
    for name, text in (
            ("filter", "-m zone=1 mark=0x1/0xff labels=0x1/0x3 ct_nw_src=10.0.0.1,ct_nw_proto=6,ct_tp_src=1"),
            ("limits", "default=10 zone=3,limit=5 zone=3,4"), ("port", "p1,type=dummy,port_no=3 10.0.0.0/8 fe80::/10 02:00:00:00:00:01"),
            ("trace", "--ct-next trk,est --l7-len 9 br0 in_port=1 020000000001"), ("daemon", "unix:/db.sock --pidfile --detach -vconsole:off"),
            ("geneve", "geneve remote_ip=10.0.0.1 key=flow csum=true dst_port=6081"), ("erspan", "erspan remote_ip=flow erspan_ver=2 erspan_dir=0"),
            ("srv6", "srv6 remote_ip=fd00::1 srv6_segs=fd00::1,fd00::2 srv6_flowlabel=copy"), ("collector", "[fe80::1%2]:6343 10.0.0.1:2055")):
        seed("arguments", name, text.encode())


def link_protocols():
    """For each protocol: settings, and frames after a pause and a length."""
    end = lambda priority, mac, key, port, state: struct.pack(">H6sHHHB3x", priority, mac, key, 65535, port, state)
    ethernet = lambda dst, kind: bytes.fromhex(dst) + b"\x02\0\0\0\0\x09" + struct.pack(">H", kind)
    lacp = ethernet("0180c2000002", 0x8809) + b"\1\1\1\x14" + end(1, b"\x06" * 6, 4, 3, 0x3F) + b"\2\x14"
    lacp += end(65534, b"\x02" * 6, 1, 0, 0x47) + b"\3\x10" + bytes(64)
    marker = ethernet("0180c2000002", 0x8809) + b"\2\1\1\x16" + bytes(106)
    frames = (lacp, lacp, marker, b"")
    seed("lacp", "bond", b"\x0b" + b"".join(bytes([n, 9, len(frame)]) + frame for n, frame in enumerate(frames)))

    ipv4 = lambda kind, rest: struct.pack(">BBHHHBBH4s4sBBH", 0x46, 0xC0, 28 + len(rest), 0, 0, 1, 2, 0, b"\x0a\0\0\7", b"\xe0\0\0\x16",
                                          0x94, 4, 0) + bytes([kind, 0, 0, 0]) + rest
    reports = (ipv4(0x16, b"\xef\0\1\1"), ipv4(0x11, bytes(4)), ipv4(0x22, b"\0\0\0\1\4\0\0\0\xef\0\1\2"), ipv4(0x17, b"\xef\0\1\1"))

    def with_checksums(packet):
        """Of the header of IPv4, and of IGMP."""
        def fill(data, at):
            total = sum(struct.unpack(f">{len(data) // 2}H", data))
            return data[:at] + struct.pack(">H", ~(total % 0xFFFF) & 0xFFFF) + data[at + 2:]
        return fill(packet[:24], 10) + fill(packet[24:], 2)

    reports = [with_checksums(report) for report in reports]
    seed("mcast", "igmp", b"".join(bytes([n, 5, len(report)]) + report for n, report in enumerate(reports)))

    frames = b""
    for number, (state, yours) in enumerate(((0x40, 0), (0x80, 1), (0xC0, 1), (0xE0, 1), (0xD0, 1))):
        control = struct.pack(">BBBBIIIII", 0x20, state, 3, 24, 7, yours, 100000, 100000, 0)
        udp = struct.pack(">HHHH", 49152, 3784, 32, 0) + control
        ip = struct.pack(">BBHHHBBH", 0x45, 0xC0, 52, 0, 0, 255, 17, 0) + b"\xa9\xfe\1\1\xa9\xfe\1\0"
        frame = ethernet("002320000001", 0x0800) + ip + udp
        frames += bytes([10 + number, len(frame)]) + frame
    seed("bfd", "session", b"\x36" + frames + bytes([40, 0]))

    for name, first, dst in (("standard", 0x0C, "0180c2000030"), ("extended", 0x0B, "012320000030")):
        frames = b""
        for number in range(1, 4):
            ccm = struct.pack(">BBBBIH", 0, 1, 3 if first & 4 else 0, 70, number, 2) + b"\4\3ovs\2\3ovs" + bytes(38)
            frame = ethernet(dst, 0x8902) + ccm + struct.pack(">HQB6x", 130, 2, 0)
            frames += bytes([26, len(frame)]) + frame
        seed("cfm", name, bytes([first]) + frames)

    # Steps of a port, milliseconds and a frame: a hello, a proposal, an agreement, a notification.
    bpdu = lambda version, kind, flags, root, cost: struct.pack(
        ">HBBBQIQHHHHH", 0, version, kind, flags, root, cost, 1 << 63 | 9, 0x8001, 0, 20 << 8, 2 << 8, 15 << 8)
    bpdus = (bpdu(0, 0, 0, 1, 7), bpdu(2, 2, 0x0E, 1, 7) + b"\0", bpdu(2, 2, 0x78, 1 << 63 | 0x020202020202, 9) + b"\0",
             b"\0\0\0\x80")
    frames = (bytes.fromhex("0180c2000000") + b"\x02\0\0\0\0\x09" + struct.pack(">H", 3 + len(bpdu)) + b"\x42\x42\x03" + bpdu
              for bpdu in bpdus)
    seed("bpdu", "bridge", b"".join(struct.pack(">BH", 8 + n % 3 + 1, 900) + frame.ljust(60, b"\0") for n, frame in enumerate(frames)))


def segments():
    # Which connection, nothing wrong, six times as many bytes, no byte changed, no more flags: 3 connections of IPv4 and IPv6 in turns.
    row = b"".join(bytes([n % 3, 64, 240, 0, 0, 0, 0]) for n in range(60))
    seed("segments", "in_turns", row)
    # The same with frames of another kind between, changed ones, padded ones, and the last of a row.
    odd = {7: (0, 64 + 2), 11: (40, 0), 19: (3, 16), 23: (0, 8), 31: (0, 64 + 4)}
    row = b""
    for n in range(60):
        change, wrong = odd.get(n, (0, 64))
        row += bytes([n // 9 % 3, wrong, 200 if n % 9 < 8 else 20, 90, 0, change, 8 * (n % 9 == 8)])
    seed("segments", "odd_ones", row)


if __name__ == "__main__":
    capture_files()
    ingress()
    ingress_ebpf()
    netlink()
    offloads()
    forward()
    vlog()
    tunnels()
    neighbours()
    kernel_routes()
    exports()
    arguments()
    link_protocols()
    segments()
