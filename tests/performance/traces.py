"""Captures that the measurements replay. Each is made once and kept in a folder."""
import random
import struct

ETHERNET = bytes.fromhex("0200000000020200000000010800")
TARGET = 0xC6120001  # 198.18.0.1


def udp(source, sport, dport=53, target=TARGET):
    """60 bytes: Ethernet, IPv4, UDP."""
    return ETHERNET + ipv4(source, datagram(sport, dport, 18), target)


def ipv4(source, payload, target=TARGET, protocol=17, fragment=0x4000, options=b""):
    length = 20 + len(options) + len(payload)
    ip = struct.pack("!BBHHHBBHII", 0x45 + len(options) // 4, 0, length, 0, fragment, 64, protocol, 0, source, target) + options
    total = sum(struct.unpack(f"!{len(ip) // 2}H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    return ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:] + payload


def datagram(sport, dport=53, payload=8):
    return struct.pack("!HHHH", sport, dport, 8 + payload, 0) + bytes(payload)


def flow(i):
    """Source address and port of flow i."""
    return 0x0A000000 | i & 0xFFFFFF, 1024 + i % 50000


def address(source):
    return ".".join(str(source >> shift & 255) for shift in (24, 16, 8, 0))


def write(path, frames):
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb", buffering=1 << 20) as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for data in frames:
            f.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)
    unfinished.rename(path)
    return path


def shuffled(count, seed=7):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def flows(folder, count, run=1):
    """`count` flows in random order, `run` packets of one before the next comes."""
    repeat = max(1, 1024 // count)
    frames = (udp(*flow(i)) for _ in range(repeat) for i in shuffled(count) for _ in range(run))
    return write(folder / f"flows-{count}-{run}.pcap", frames)


def protocols(folder, count):
    """`count` flows in random order: TCP and UDP, over IPv4 and IPv6, with and without a VLAN tag."""
    def frame(i):
        tcp, six, tag, (source, sport) = i & 1, i & 2, i & 4, flow(i)
        inner = struct.pack("!HH", sport, 53)
        inner += struct.pack("!IIHHHH", 1, 1, 0x5010, 512, 0, 0) if tcp else struct.pack("!HH", 26, 0)
        inner += bytes(26 - len(inner))
        if six:
            addresses = [0x20010DB8 << 96 | source, 0x20010DB8 << 96 | TARGET]
            ip = struct.pack("!IHBB", 6 << 28, 26, 6 if tcp else 17, 64) + b"".join(a.to_bytes(16, "big") for a in addresses)
        else:
            ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0x4000, 64, 6 if tcp else 17, 0, source, TARGET)
        vlan = struct.pack("!HH", 0x8100, 10) if tag else b""
        return ETHERNET[:12] + vlan + (b"\x86\xdd" if six else b"\x08\x00") + ip + inner

    repeat = max(1, 1024 // count)
    frames = (frame(i) for _ in range(repeat) for i in shuffled(count))
    return write(folder / f"protocols-{count}.pcap", frames)


def networks(folder, count):
    """`count` flows in random order to 256 networks."""
    def frame(i):
        source, sport = flow(i)
        return udp(source, sport, target=TARGET + (i % 256 << 8))

    return write(folder / f"networks-{count}.pcap", repeated(frame, count))


def tagged(folder, count, tags=1):
    """`count` flows in random order with one VLAN tag or two."""
    tag = {1: bytes.fromhex("8100000a"), 2: bytes.fromhex("88a800148100000a")}[tags]

    def frame(i):
        plain = udp(*flow(i))
        return plain[:12] + tag + plain[12:]

    return write(folder / f"tagged-{tags}-{count}.pcap", repeated(frame, count))


def kinds(folder, count):
    """`count` flows in random order, of eight kinds: IPv4 options, a first and a later fragment, ARP, ICMP, IPv6 with
    hop-by-hop options, an IPv6 fragment, two VLAN tags."""
    def frame(i):
        source, sport = flow(i)
        data = datagram(sport)
        if i % 8 == 3:
            body = ETHERNET[6:12] + struct.pack("!I6sI", source, bytes(6), TARGET)
            return ETHERNET[:12] + bytes.fromhex("08060001080006040001") + body + bytes(18)
        if i % 8 in (5, 6):
            extension = bytes.fromhex("1100010400000000" if i % 8 == 5 else "1100000100000007")
            ip = struct.pack("!IHBB", 6 << 28, 8 + len(data), 0 if i % 8 == 5 else 44, 64)
            ip += b"".join((0x20010DB8 << 96 | host).to_bytes(16, "big") for host in (source, TARGET))
            return ETHERNET[:12] + b"\x86\xdd" + ip + extension + data
        if i % 8 == 7:
            return ETHERNET[:12] + bytes.fromhex("88a800148100000a0800") + ipv4(source, data)
        special = [{"options": bytes.fromhex("01010100")}, {"fragment": 0x2000}, {"fragment": 5}, {}, {"protocol": 1}][i % 8]
        frame = ETHERNET + ipv4(source, data, **special)
        return frame + bytes(60 - len(frame))

    return write(folder / f"kinds-{count}.pcap", repeated(frame, count))


def repeated(frame, count):
    """The frames of `count` flows in random order, often enough for a long trace."""
    return (frame(i) for _ in range(max(1, 1024 // count)) for i in shuffled(count))


def rules(folder, count):
    """One OpenFlow rule for each of `count` flows."""
    path = folder / f"rules-{count}.txt"
    if not path.exists():
        path.write_text("".join(f"in_port=1,ip,nw_src={address(flow(i)[0])},actions=output:2\n" for i in range(count)))
    return path


# "Allow a few, deny the rest": the access list that the crafted packets are for.
ACCESS_LIST = [
    "priority=100,in_port=1,udp,tp_dst=80,actions=output:2",
    "priority=90,in_port=1,udp,nw_src=10.9.9.9,actions=output:2",
    "priority=80,in_port=1,udp,tp_src=12345,actions=output:2",
    "priority=1,in_port=1,actions=drop",
]


def crafted(folder):
    """A packet for each combination of the first bits in which it differs from the access list's rules: each
    asks for a mask of its own (CVE-2019-25076)."""
    frames = [
        udp(0x0A090909 ^ 1 << 31 - a, 12345 ^ 1 << 15 - b, 80 ^ 1 << 15 - c)
        for a in range(32) for b in range(16) for c in range(16)
    ]
    random.Random(3).shuffle(frames)
    return write(folder / "crafted.pcap", frames)


def both_ways(count):
    """Frames of UDP connections in both directions, in an order without a pattern; the first one of each is its client's."""
    draw = random.Random(12)
    client = lambda i: (0x0A000000 + i, 1024 + i % 50_000)
    ways = [(i, reply) for i in range(count) for reply in (False, True)]
    draw.shuffle(ways)
    ways = [(i, False) for i in draw.sample(range(count), count)] + ways
    return (udp(TARGET, 53, client(i)[1], client(i)[0]) if reply else udp(*client(i)) for i, reply in ways)


def conversations(folder, count):
    """Packets of UDP connections: see `both_ways`."""
    return write(folder / f"conversations-{count}.pcap", both_ways(count))


def tunnelled(folder, kind, count, remotes, conversations=False):
    """What `remotes` other ends of tunnels send to 172.31.0.1: the frames of `count` flows, or conversations, each from the end that `remote` names."""
    inner = list(both_ways(count)) if conversations else [udp(*flow(i)) for i in range(count)]
    vxlan, geneve = bytes([8, 0, 0, 0, 0, 0, 7, 0]), bytes([0, 0, 0x65, 0x58, 0, 0, 7, 0])
    header, port = {"vxlan": (vxlan, 4789), "vxlan6": (vxlan, 4789), "vxlan-csum": (vxlan, 4789), "geneve": (geneve, 6081),
                    "geneve-options": (bytes([2, *geneve[1:], 1, 2, 0x80, 1, 0, 1, 0, 2]), 6081)}[kind]
    to, at = bytes.fromhex("020000003101020000003102"), bytes.fromhex("fd31" + "00" * 13 + "01")

    def frame(i):
        payload, source = header + inner[i], remote(i % remotes)
        ports = struct.pack("!HHHH", 49152 + i % 16384, port, 8 + len(payload), 0) + payload
        if kind == "vxlan6":
            ends = bytes.fromhex("fd31" + "00" * 10) + struct.pack("!I", source) + at
            pseudo = ends + struct.pack("!II", len(ports), 17)
            return to + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(ports), 17, 64) + ends + summed(pseudo, ports)
        if kind == "vxlan-csum":
            ports = summed(struct.pack("!IIHH", source, LOCAL, 17, len(ports)), ports)
        return to + b"\x08\x00" + ipv4(source, ports, LOCAL)

    name = f"{kind}-{count}-{remotes}{'-conversations' if conversations else ''}.pcap"
    return write(folder / name, repeated(frame, len(inner)))


LOCAL = 0xAC1F0001  # 172.31.0.1


def remote(i):
    """The other end of tunnel i."""
    return 0xAC1F0102 + i


def summed(pseudo, datagram):
    """With its checksum."""
    words = pseudo + datagram + bytes(len(datagram) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return datagram[:6] + struct.pack("!H", ~total & 0xFFFF or 0xFFFF) + datagram[8:]


def noise(folder, count=1_000_000):
    """Packets whose addresses and ports are random: no two alike."""
    draw = random.Random(11)
    frames = (
        udp(draw.getrandbits(32), draw.getrandbits(16), draw.getrandbits(16), draw.getrandbits(32))
        for _ in range(count)
    )
    return write(folder / f"noise-{count}.pcap", frames)
