"""Ports of type dpdk, over DPDK's software devices. No test needs hugepages, and none changes how many there are:
where a machine without any is wanted, the daemon runs in a mount namespace that shows none."""

import os
import re
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import WEIR, until
from lib.daemon import Ovs
from lib.net import run
from lib.pcap import read_pcap, write_pcap

PMDS = Path("/usr/lib/x86_64-linux-gnu/dpdk")
FRAMES = 8


def driver(name):
    """That DPDK's driver is installed."""
    if not list(PMDS.glob(f"pmds-*/librte_net_{name}.so*")):
        pytest.fail(f"librte-net-{name.replace('_', '-')}23 is not installed; run scripts/setup.sh test")


class Switch(Ovs):
    """A daemon with DPDK on ordinary memory, in namespaces of its own: no hugepages, no interfaces."""

    def __init__(self, hugepages=False, **config):
        super().__init__()
        self.net = None
        name = f"weir-dpdk-{os.getpid()}-{self.dir.name[-6:]}"
        run("ip", "netns", "add", name)
        self.net = name
        self.ip("link", "set", "lo", "up")
        self.name.unlink()
        self.real = self.dir / "real" / "ovs-vswitchd"
        self.real.parent.mkdir()
        self.real.symlink_to(WEIR)
        hide = "" if hugepages else "mount -t tmpfs none /sys/kernel/mm/hugepages && "
        self.name.write_text(f"#!/bin/sh\nexec ip netns exec {name} unshare -m sh -c '{hide}exec \"$0\" \"$@\"' "
                             f"{self.real} \"$@\"\n")
        self.name.chmod(self.name.stat().st_mode | stat.S_IXUSR)
        config = {"dpdk-init": "true", "dpdk-extra": "--no-pci --no-telemetry"} | config
        self.configure(**config)

    def configure(self, **config):
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".",
                   *(f'other_config:{key.replace("_", "-")}="{value}"' for key, value in config.items()))

    def bridge(self):
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure")

    def add(self, name, devargs, *settings, check=True):
        args = ["add-port", "br0", name, "--", "set", "interface", name, "type=dpdk", *settings]
        if devargs is not None:
            args.append(f'options:dpdk-devargs="{devargs}"')
        return self.vsctl(*args, check=check)

    def error(self, name):
        """Why a port is not there; then the log says it, too."""
        self.expect(rf"could not open network device {name} \(")
        return self.get("interface", name, "error")

    def flow(self, text):
        run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"unix:{self.dir}/br0.mgmt", text, env=self.env)

    def counters(self, name):
        return super().counters(self.get("interface", name, "ofport"))

    def ip(self, *args):
        return run("ip", "-n", self.net, *args)

    def close(self):
        try:
            super().close()
        finally:
            if self.net:
                run("ip", "netns", "del", self.net, check=False)


@pytest.fixture
def switch():
    started = []

    def start(bridge=True, **config):
        s = Switch(**config)
        started.append(s)
        s.start()
        if bridge:
            s.bridge()
        return s

    yield start
    for s in started:
        s.close()


def udp_frames(count=FRAMES, size=60):
    """UDP from 10.0.0.1 to 198.18.0.N, which differ in their last byte too."""
    head = bytes.fromhex("020000000002" "020000000001" "0800" "4500") + struct.pack(">H", size - 14)
    for n in range(count):
        ip = bytes.fromhex("000000004011") + b"\0\0" + bytes([10, 0, 0, 1, 198, 18, n >> 8, n & 255])
        frame = head + ip + struct.pack(">HHHH", 1000 + n, 2000, size - 34, 0)
        yield frame.ljust(size - 1, b"\xaa") + bytes([n & 255])


# Starting DPDK


def test_off_by_default():
    s = Switch(**{"dpdk-init": "false"})
    try:
        s.start()
        s.bridge()
        s.add("p1", "net_null0")
        assert "DPDK is not initialised; set other_config:dpdk-init=true" in s.error("p1")
        assert s.get("open", ".", "dpdk_initialized") == "false"
        assert s.get("open", ".", "dpdk_version").startswith("DPDK 2")
        assert "dpdk" not in s.get("open", ".", "iface_types")
        maps = Path(f"/proc/{s.pid()}/maps").read_text()
        assert "librte_" not in maps and "libnuma" not in maps, "DPDK is loaded for nothing"
        # It can be asked for while the daemon runs.
        driver("null")
        s.vsctl("set", "Open_vSwitch", ".", "other_config:dpdk-init=true")
        assert s.error("p1") == "[]"
        assert s.get("open", ".", "dpdk_initialized") == "true"
    finally:
        s.close()


def test_without_hugepages_it_works_on_ordinary_memory(switch):
    s = switch(**{"dpdk-socket-mem": "512"})
    assert s.get("open", ".", "dpdk_initialized") == "true"
    assert re.search(r"\bdpdk\b", s.get("open", ".", "iface_types"))
    log = s.log()
    assert "no hugepages are free: working on ordinary memory (--no-huge), which costs" in log
    assert re.search(r"EAL ARGS: ovs-vswitchd --no-pci --no-telemetry --no-huge .*-m 1024", log)
    assert "dpdk-socket-mem has no effect without hugepages" in log


def test_hugepages_that_are_asked_for_and_not_there(switch):
    s = switch(**{"dpdk-extra": "--in-memory --no-pci --no-telemetry"})
    assert s.get("open", ".", "dpdk_initialized") == "false"
    s.add("p1", "net_null0")
    for text in [s.error("p1"), s.log()]:
        assert "no hugepages are free" in text and "sysctl vm.nr_hugepages" in text, text
    assert "dpdk(configurator)|ERR|Unable to initialize DPDK" in s.log()


def test_try_says_no_error(switch):
    s = switch(**{"dpdk-init": "Try", "dpdk-extra": "--in-memory --no-telemetry"})
    assert "|WARN|Unable to initialize DPDK" in s.log() and "|ERR|Unable" not in s.log()
    assert s.get("open", ".", "dpdk_initialized") == "false"


def test_wrong_options_do_not_end_the_daemon(switch):
    s = switch(**{"dpdk-extra": "--no-such-option --no-telemetry", "dpdk-lcore-mask": "0x1"})
    s.add("p1", "net_null0")
    assert "DPDK could not be initialised" in s.error("p1")


def test_extra_wins_and_no_thread_changes_its_cores(switch):
    s = switch(**{"dpdk-extra": "-l 0 --no-pci --no-telemetry -m 300", "dpdk-lcore-mask": "0x2", "dpdk-alloc-mem": "64"})
    assert re.search(r"EAL ARGS: ovs-vswitchd -l 0 --no-pci --no-telemetry -m 300 --no-huge --no-shconf$", s.log(), re.M)
    assert "dpdk-lcore-mask has no effect: -l is given already" in s.log()
    assert "dpdk-alloc-mem has no effect: -m is given already" in s.log()
    cores = len(os.sched_getaffinity(0))
    for task in Path(f"/proc/{s.pid()}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name in ("ovs-vswitchd", "configurator", "revalidator"):
            assert len(os.sched_getaffinity(int(task.name))) == cores, name


def test_hugepages_are_used_where_they_are_free():
    driver("null")
    free = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    if not free.exists() or int(free.read_text()) < 128:
        pytest.skip("fewer than 128 hugepages are free")
    s = Switch(hugepages=True)
    try:
        s.start()
        s.bridge()
        s.add("p1", "net_null0,no-rx=1")
        assert s.error("p1") == "[]"
        assert "--in-memory" in s.log() and "--no-huge" not in s.log()
        rollup = Path(f"/proc/{s.pid()}/smaps_rollup").read_text()
        assert any(int(n) > 0 for n in re.findall(r"(?:Private|Shared)_Hugetlb:\s+(\d+)", rollup))
    finally:
        s.close()


def test_toml_starts_it_too(weir):
    driver("null")
    w = weir("""
[dpdk]
init = true
extra = "--no-huge --no-pci --no-telemetry"
alloc_mem = 128

[[bridge]]
name = "br0"
local = false

[[bridge.port]]
name = "p1"
type = "dpdk"
[bridge.port.options]
dpdk-devargs = "net_null0,no-rx=1"
""")
    assert "-m 128" in w.log()
    assert [p["name"] for p in w.json("ports")["ports"]] == ["p1"] if "ports" in w.json("ports") else w.json("ports")
    w.configure('[dpdk]\ninit = "perhaps"\n')
    assert 'expected true, false or "try"' in w.cli("check", w.config, check=False).stderr


# Devices


def test_frames_go_from_file_to_file(switch):
    driver("pcap")
    s = switch()
    frames = list(udp_frames()) + list(udp_frames(size=1500))
    write_pcap(s.dir / "in.pcap", frames)
    s.flow("in_port=1,actions=output:2")
    s.add("p2", f"net_pcap1,tx_pcap={s.dir}/out.pcap", "ofport_request=2")
    s.add("p1", f"net_pcap0,rx_pcap={s.dir}/in.pcap", "ofport_request=1")
    until(lambda: s.counters("p2")["tx_pkts"] == len(frames), what="all frames sent")
    assert s.counters("p1")["rx_pkts"] == len(frames)
    s.vsctl("del-port", "p2")
    assert read_pcap(s.dir / "out.pcap") == frames
    assert (s.counters("p1")["rx_drop"], s.counters("p1")["rx_errs"]) == (0, 0)


def test_frames_change_on_their_way(switch):
    """Headers are pushed and popped within the mbuf."""
    driver("pcap")
    s = switch()
    frames = list(udp_frames())
    write_pcap(s.dir / "in.pcap", frames)
    s.flow("in_port=1,nw_dst=198.18.0.1,udp,actions=push_vlan:0x8100,set_field:4103->vlan_vid,output:2")
    s.flow("in_port=1,priority=1,actions=output:2,output:3")
    s.add("p2", f"net_pcap1,tx_pcap={s.dir}/a.pcap", "ofport_request=2")
    s.add("p3", f"net_pcap2,tx_pcap={s.dir}/b.pcap", "ofport_request=3")
    s.add("p1", f"net_pcap0,rx_pcap={s.dir}/in.pcap", "ofport_request=1")
    until(lambda: s.counters("p2")["tx_pkts"] == FRAMES, what="all frames sent")
    s.vsctl("del-port", "p2", "--", "del-port", "p3")
    tagged = frames[1][:12] + bytes.fromhex("81000007") + frames[1][12:]
    assert sorted(read_pcap(s.dir / "a.pcap")) == sorted([tagged] + [f for f in frames if f != frames[1]])
    assert sorted(read_pcap(s.dir / "b.pcap")) == sorted(f for f in frames if f != frames[1])


def test_endless_replay_and_mbufs_that_come_back(switch):
    """Two sources that never end, of which one is dropped: no mbuf is lost on either way."""
    driver("pcap"), driver("null")
    s = switch()
    write_pcap(s.dir / "in.pcap", udp_frames(1000))
    s.flow("in_port=1,actions=output:3")
    s.flow("in_port=2,actions=drop")
    s.add("p3", "net_null0,no-rx=1", "ofport_request=3")
    for n in (1, 2):
        s.add(f"p{n}", f"net_pcap{n},rx_pcap={s.dir}/in.pcap,infinite_rx=1", f"ofport_request={n}")
    # Far more frames than there are mbufs.
    until(lambda: s.counters("p1")["rx_pkts"] > 100_000 and s.counters("p2")["rx_pkts"] > 100_000, 60, "many frames")
    assert s.counters("p3")["tx_pkts"] > 90_000
    s.vsctl("del-port", "p1", "--", "del-port", "p2", "--", "del-port", "p3")
    s.add("p4", "net_null1,no-rx=1")

    def all_back():
        info = s.appctl("netdev-dpdk/get-mempool-info", "p4")
        return re.search(r"in use \((\d+)\)", info)[1] == "0"

    until(all_back, what="every mbuf back in its pool")


def test_devices_come_and_go_while_others_forward(switch):
    driver("pcap"), driver("null")
    s = switch()
    write_pcap(s.dir / "in.pcap", udp_frames(100))
    s.flow("in_port=1,actions=output:2")
    s.add("p2", "net_null0,no-rx=1", "ofport_request=2")
    s.add("p1", f"net_pcap0,rx_pcap={s.dir}/in.pcap,infinite_rx=1", "ofport_request=1")
    for _ in range(5):
        before = s.counters("p2")["tx_pkts"]
        # A source of its own, whose frames go to the same port.
        s.add("p3", "net_null1,size=64", "ofport_request=3")
        s.flow("in_port=3,actions=output:2")
        until(lambda: s.counters("p3")["rx_pkts"] > 1000, what="frames of p3")
        s.vsctl("del-port", "p3")
        s.vsctl("del-port", "p2")
        s.add("p2", "net_null0,no-rx=1", "ofport_request=2")
        until(lambda: s.counters("p2")["tx_pkts"] > 0, what="frames go on")
        assert before >= 0
    assert s.log().count("has been removed and detached") == 10
    assert "panicked" not in s.log()


def test_ring_gives_back_what_it_gets(switch):
    driver("ring"), driver("pcap")
    s = switch()
    frames = list(udp_frames())
    write_pcap(s.dir / "in.pcap", frames)
    s.flow("in_port=1,actions=output:2")
    s.flow("in_port=2,actions=output:3")
    s.add("p3", f"net_pcap1,tx_pcap={s.dir}/out.pcap", "ofport_request=3")
    s.add("p2", "net_ring0", "ofport_request=2")
    s.add("p1", f"net_pcap0,rx_pcap={s.dir}/in.pcap", "ofport_request=1")
    until(lambda: s.counters("p3")["tx_pkts"] == FRAMES, what="frames through the ring")
    s.vsctl("del-port", "p3")
    assert sorted(read_pcap(s.dir / "out.pcap")) == sorted(frames)


def hosts(s, *names):
    """Moves interfaces into namespaces of their own; what runs a command there."""
    out = []
    for n, name in enumerate(names, 1):
        ns = f"{s.net}-{n}"
        run("ip", "netns", "add", ns)
        s.ip("link", "set", name, "netns", ns)
        run("ip", "-n", ns, "addr", "add", f"10.9.0.{n}/24", "dev", name)
        run("ip", "-n", ns, "link", "set", name, "up")
        out.append(ns)
    return out


def ping(ns, address):
    r = run("ip", "netns", "exec", ns, "ping", "-n", "-c", "3", "-i", "0.1", "-W", "2", address, check=False)
    return int(re.search(r"(\d+) received", r.stdout)[1])


def test_af_xdp_carries_between_kernel_stacks(switch):
    driver("af_xdp")
    s = switch()
    for n in (1, 2):
        s.ip("link", "add", f"sw{n}", "type", "veth", "peer", "name", f"h{n}")
        s.ip("link", "set", f"sw{n}", "up")
    spaces = hosts(s, "h1", "h2")
    try:
        for n in (1, 2):
            s.add(f"p{n}", f"net_af_xdp{n},iface=sw{n}", f"ofport_request={n}")
            assert s.error(f"p{n}") == "[]"
        s.flow("in_port=1,actions=output:2")
        s.flow("in_port=2,actions=output:1")
        assert ping(spaces[0], "10.9.0.2") == 3
    finally:
        for ns in spaces:
            run("ip", "netns", "del", ns, check=False)


def test_tap_carries_between_kernel_stacks(switch):
    driver("tap")
    s = switch()
    s.add("p1", "net_tap1,iface=h1", "ofport_request=1")
    s.add("p2", "net_tap2,iface=h2", "ofport_request=2")
    assert (s.error("p1"), s.error("p2")) == ("[]", "[]")
    s.flow("in_port=1,actions=output:2")
    s.flow("in_port=2,actions=output:1")
    spaces = hosts(s, "h1", "h2")
    try:
        assert ping(spaces[0], "10.9.0.2") == 3
    finally:
        for ns in spaces:
            run("ip", "netns", "del", ns, check=False)


def test_memif_joins_two_switches(switch):
    driver("memif"), driver("pcap")
    a, b = switch(), switch()
    frames = list(udp_frames())
    socket = a.dir / "memif.sock"
    a.add("m", f"net_memif0,role=server,socket={socket},socket-abstract=no", "ofport_request=2")
    b.add("m", f"net_memif0,role=client,socket={socket},socket-abstract=no", "ofport_request=1")
    until(lambda: a.get("interface", "m", "link_state") == b.get("interface", "m", "link_state") == "up",
          what="the link between them")
    b.flow("in_port=1,actions=output:2")
    a.flow("in_port=1,actions=output:2")
    b.add("out", f"net_pcap0,tx_pcap={b.dir}/out.pcap", "ofport_request=2")
    write_pcap(a.dir / "in.pcap", frames)
    a.add("in", f"net_pcap0,rx_pcap={a.dir}/in.pcap", "ofport_request=1")
    until(lambda: b.counters("out")["tx_pkts"] == FRAMES, what="frames in the other switch")
    b.vsctl("del-port", "out")
    assert read_pcap(b.dir / "out.pcap") == frames


def test_frames_move_between_memories(switch):
    """From a socket of Weir's own to DPDK and back, with a kernel that leaves checksums and cutting to others."""
    driver("tap")
    s = switch()
    s.expect("sw1.*No such device")  # it goes with its other end
    s.ip("link", "add", "sw1", "type", "veth", "peer", "name", "h1")
    s.ip("link", "set", "sw1", "up")
    s.vsctl("add-port", "br0", "sw1", "--", "set", "interface", "sw1", "ofport_request=1")
    s.add("p2", "net_tap2,iface=h2", "ofport_request=2")
    s.flow("in_port=1,actions=output:2")
    s.flow("in_port=2,actions=output:1")
    spaces = hosts(s, "h1", "h2")
    try:
        assert ping(spaces[0], "10.9.0.2") == 3
        for client, server, address in [(*spaces, "10.9.0.2"), (*reversed(spaces), "10.9.0.1")]:
            assert transfer(client, server, address) == 3_000_000
    finally:
        for ns in spaces:
            run("ip", "netns", "del", ns, check=False)


def transfer(client, server, address, count=3_000_000):
    """Bytes that arrive of so many sent by TCP."""
    listen = (f"import socket; s = socket.create_server(('{address}', 5001)); print('ready', flush=True); c, _ = s.accept()\n"
              "n = 0\nwhile d := c.recv(65536): n += len(d)\nprint(n)")
    p = subprocess.Popen(["ip", "netns", "exec", server, "python3", "-c", listen], stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "ready\n"
        send = f"import socket; s = socket.create_connection(('{address}', 5001), 5); s.sendall(b'x' * {count})"
        run("ip", "netns", "exec", client, "python3", "-c", send, check=False)
        return int(p.communicate(timeout=20)[0])
    finally:
        p.kill()
        p.wait()


# What is said about devices


@pytest.mark.parametrize(("devargs", "settings", "said"), [
    (None, [], "is missing 'options:dpdk-devargs'"),
    ("nonsense0", [], "neither a PCI address"),
    ("0000:77:1f.7", [], "no PCI device 0000:77:1f.7"),
    ("class=eth,mac=02:00:00:00:00:99", [], "no device that DPDK knows has this address"),
    ("class=eth,mac=x", [], "is not an Ethernet address"),
    ("net_pcap0,rx_pcap=/nonexistent", [], "No such file"),
    ("net_null0", ["mtu_request=20000"], "MTU 20000 is more than"),
    ("net_null0", ["options:n_rxq=none"], "should be number 1..1024"),
])
def test_errors_say_what_is_wrong(switch, devargs, settings, said):
    driver("pcap"), driver("null")
    s = switch()
    s.add("p1", devargs, *settings)
    assert said in s.error("p1"), s.error("p1")
    # The same name works once the mistake is mended.
    s.vsctl("clear", "interface", "p1", "options", "mtu_request", "--", "set", "interface", "p1",
            "options:dpdk-devargs=net_null0")
    assert s.error("p1") == "[]"


def test_missing_driver_names_its_package():
    """With a directory of drivers that has only one."""
    driver("null")
    s = Switch()
    try:
        some = s.dir / "pmds"
        some.mkdir()
        for pattern in ["librte_net_null.so*", "librte_bus_vdev.so*", "librte_mempool_ring.so*", "librte_bus_pci.so*"]:
            for file in next(PMDS.glob("pmds-*")).glob(pattern):
                shutil.copy(file, some, follow_symlinks=False)
        hide = s.name.read_text().replace("exec \"$0\"", f"mount --bind {some} {next(PMDS.glob('pmds-*'))} && exec \"$0\"")
        s.name.write_text(hide)
        s.start()
        s.bridge()
        s.add("p1", "net_memif0")
        assert "install the Debian package librte-net-memif23" in s.error("p1")
        s.add("p2", "net_null0")
        assert s.error("p2") == "[]"
    finally:
        s.close()


def test_device_in_use(switch):
    driver("null")
    s = switch()
    s.add("p1", "net_null0")
    s.add("p2", "net_null0")
    assert "which is already in use by 'p1'" in s.error("p2")
    s.vsctl("del-port", "p1")
    until(lambda: s.error("p2") == "[]", what="p2 has the device")


def test_columns_are_those_of_ovs(switch):
    driver("null")
    s = switch()
    s.add("p1", "net_null0,size=100", "options:n_rxq=2", "options:n_rxq_desc=512", "mtu_request=9000")
    status = s.get("interface", "p1", "status")
    for fact in ["port_no=\"0\"", "driver_name=net_null", "max_rx_queues=\"1024\"", "bus_info=\"bus_name=vdev\"",
                 "if_type=\"6\"", "max_rx_pktlen=\"9018\"", "link_speed=\"10Gbps\"", "numa_id=", "if_descr=\"DPDK 22",
                 "n_rxq_desc=\"512\""]:
        assert fact in status, (fact, status)
    assert [s.get("interface", "p1", c) for c in ("mtu", "link_state", "admin_state", "link_speed", "duplex")] == [
        "9000", "up", "up", "10000000000", "full"]
    until(lambda: "rx_packets" in s.get("interface", "p1", "statistics"), 15, "statistics")


def test_mtu_changes_and_keeps_the_number(switch):
    driver("null")
    s = switch()
    s.add("p1", "net_null0")
    s.add("p2", "net_null1")
    number = s.get("interface", "p1", "ofport")
    s.vsctl("set", "interface", "p1", "mtu_request=9000")
    assert (s.get("interface", "p1", "mtu"), s.get("interface", "p1", "ofport")) == ("9000", number)
    assert s.appctl("netdev-dpdk/get-mempool-info", "p1") != s.appctl("netdev-dpdk/get-mempool-info", "p2")
    s.vsctl("clear", "interface", "p1", "mtu_request")
    assert s.get("interface", "p1", "mtu") == "1500"


def test_queues_are_spread_over_workers(switch):
    driver("null")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    s = switch(**{"pmd-cpu-mask": "0x3"})
    s.flow("in_port=1,actions=output:2")
    s.add("p2", "net_null0,no-rx=1", "ofport_request=2")
    s.add("p1", "net_null1,size=64", "ofport_request=1", "options:n_rxq=2")

    def cores():
        """The core of each of p1's queues."""
        core, found = None, {}
        for line in s.appctl("dpif-netdev/pmd-rxq-show").splitlines():
            if m := re.search(r"core_id (\d+)", line):
                core = int(m[1])
            if m := re.search(r"port: p1 +queue-id: +(\d+)", line):
                found[int(m[1])] = core
        return found

    assert sorted(cores().values()) == [0, 1], s.appctl("dpif-netdev/pmd-rxq-show")
    until(lambda: all(n > 1000 for n in queue_counts(s, "p1")), what="frames from both queues")
    # The other worker's end takes nothing with it.
    s.configure(pmd_cpu_mask="0x1")
    until(lambda: set(cores().values()) == {0}, what="one worker left")
    before = s.counters("p2")["tx_pkts"]
    until(lambda: s.counters("p2")["tx_pkts"] > before + 1000, what="forwarding goes on")


def queue_counts(s, name):
    """Packets by receive queue, from the extended statistics."""
    port = s.get("interface", name, "ofport")
    out = run("ovs-ofctl", "-O", "OpenFlow14", "dump-ports", f"unix:{s.dir}/br0.mgmt", port, env=s.env).stdout
    return [int(n) for n in re.findall(r"rx_q\d+_packets=(\d+)", out)]


def test_commands(switch):
    driver("null")
    s = switch()
    s.add("p1", "net_null0,no-rx=1")
    assert "Heap_size:" in s.appctl("dpdk/get-malloc-stats")
    assert "global log level is" in s.appctl("dpdk/log-list")
    s.appctl("dpdk/log-set", "lib.eal:debug", "warning")
    assert re.search(r"lib.eal, level is warning", s.appctl("dpdk/log-list"))
    assert "invalid log level: 'loud'" in run("ovs-appctl", "-t", "ovs-vswitchd", "dpdk/log-set", "loud", env=s.env,
                                              check=False).stderr
    assert "role RTE" in s.appctl("dpdk/lcore-list")
    assert re.search(r"mempool <.*count: avail \(\d+\), in use \(\d+\)", s.appctl("netdev-dpdk/get-mempool-info", "p1"),
                     re.S)
    s.appctl("netdev-dpdk/set-admin-state", "p1", "down")
    until(lambda: s.get("interface", "p1", "admin_state") == "down", what="p1 down")
    s.appctl("netdev-dpdk/set-admin-state", "up")
    until(lambda: s.get("interface", "p1", "admin_state") == "up", what="p1 up")
    failed = run("ovs-appctl", "-t", "ovs-vswitchd", "netdev-dpdk/detach", "net_null0", env=s.env, check=False).stderr
    assert "Device 'net_null0' is being used by the following interfaces: p1. Remove them before detaching." in failed
    failed = run("ovs-appctl", "-t", "ovs-vswitchd", "netdev-dpdk/detach", "net_null7", env=s.env, check=False).stderr
    assert "Device 'net_null7' not found in DPDK" in failed


def test_commands_to_a_daemon_that_has_not_started_dpdk():
    """They say what is missing: none reaches into what is not there."""
    s = Switch(**{"dpdk-init": "false"})
    try:
        s.start()
        for command in [["dpdk/log-list"], ["dpdk/log-set", "debug"], ["dpdk/lcore-list"], ["dpdk/get-malloc-stats"],
                        ["netdev-dpdk/get-mempool-info"], ["netdev-dpdk/detach", "net_null0"]]:
            assert "DPDK is not initialised" in s.refusal("appctl", *command), command
        assert "Not a DPDK Interface" in s.refusal("appctl", "netdev-dpdk/get-mempool-info", "p1")
    finally:
        s.close()
