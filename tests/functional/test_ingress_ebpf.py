"""XDP programs as ingress filters (docs/ingress.md): object files that clang makes, real frames, maps."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import WEIR, until
from lib.ingress import SENDER, rules
from lib.net import run
from test_ingress import CONFIG, hosts, refusal, switch  # noqa: F401

SOURCES = Path(__file__).parent / "ebpf"
#: Programs that libxdp brings, which XDP tools load into the kernel.
LIBXDP = Path("/usr/lib/x86_64-linux-gnu/bpf")


@pytest.fixture(scope="session")
def compile(tmp_path_factory):
    """A function that compiles a source by its name, with clang."""
    clang = os.environ.get("CLANG", "clang")
    assert shutil.which(clang), f"{clang} is missing: scripts/setup.sh test installs it"
    made = {}

    def compile(name, *options):
        if (name, options) not in made:
            out = tmp_path_factory.mktemp("bpf") / f"{name}.o"
            run(clang, "-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-I/usr/include/x86_64-linux-gnu", *options,
                "-c", SOURCES / f"{name}.c", "-o", out)
            made[name, options] = str(out)
        return made[name, options]

    return compile


def program(w, port):
    ports = w.json("ingress", port, "show")["ports"]
    return next((p.get("program") for p in ports), None)


class AtLeast(int):
    """Equals as many and more: hosts also send frames of IPv6 when they like."""

    def __eq__(self, other):
        return other >= int(self)


def counts(w, port):
    p = program(w, port)
    return p["passed"], p["dropped"], p["aborted"], p["unsupported"], p["faults"]


def map_of(w, port, name, *key):
    return dict(json.loads(w.cli("--json", "ingress", port, "map", name, *key).stdout)["elements"])


@pytest.mark.parametrize("cpu", ["v1", "v2", "v3"])
def test_a_program_decides_and_its_maps_are_read_and_set(switch, compile, cpu):
    w, a, b = switch
    w.cli("ingress", a.port, "load", compile("blocklist", f"-mcpu={cpu}"))
    assert a.ping("10.0.0.2") == 3
    assert counts(w, a.port) == (AtLeast(3), 0, 0, 0, 0)
    verdicts = map_of(w, a.port, "verdicts")
    assert int(verdicts.pop("2")) >= 3 and verdicts == {"0": "0", "1": "0", "3": "0", "4": "0"}
    senders = map_of(w, a.port, "senders")
    assert list(senders) == ["hex:0a000001"]
    packets = int.from_bytes(bytes.fromhex(senders["hex:0a000001"].removeprefix("hex:"))[:8], "little")
    assert packets == 3

    # A prefix that an operator blocks, and what the program does then.
    w.cli("ingress", a.port, "map", "blocked", "10.0.0.0/30", "1")
    assert map_of(w, a.port, "blocked") == {"10.0.0.0/30": "1"}
    assert a.ping("10.0.0.2", wait=1) == 0 and b.ping("10.0.0.1", wait=1) == 0
    assert counts(w, a.port) == (AtLeast(3), 6, 0, 0, 0), "requests of a, and answers of a to b"
    assert map_of(w, a.port, "verdicts", "1") == {"1": "6"}
    w.cli("ingress", a.port, "unmap", "blocked", "10.0.0.0/30")
    assert map_of(w, a.port, "blocked") == {} and a.ping("10.0.0.2") == 3

    # Global variables are maps, too.
    assert map_of(w, a.port, ".data") == {"0": "9"} and map_of(w, a.port, ".bss") == {"0": "0"}
    sniffer = b.sniff("udp")
    a.run("python3", "-c", SENDER.replace("while True", "for _ in range(5)"))
    assert map_of(w, a.port, ".bss") == {"0": "5"}
    w.cli("ingress", a.port, "map", ".data", "0", "10")
    a.run("python3", "-c", SENDER.replace("while True", "for _ in range(5)").replace("x", "y"))
    sniffer.sees("10.0.0.2.9")
    assert counts(w, a.port) == (AtLeast(3 + 3 + 5), 6 + 5, 0, 0, 0)

    shown = w.cli("ingress", a.port, "show").stdout
    assert f"program blocklist of {compile('blocklist', f'-mcpu={cpu}')}" in shown
    assert "map blocked: lpm_trie, key 8 B, value 1 B, 64 entries" in shown
    assert "n_drop=11, n_aborted=0, n_unsupported=0, n_fault=0" in w.cli("ingress", a.port, "stats").stdout
    w.cli("ingress", a.port, "unload")
    assert w.cli("ingress", a.port, "show").stdout == ""
    assert "no ingress program" in refusal(w, a.port, "unload")


def test_rules_come_before_the_program(switch, compile):
    w, a, _ = switch
    w.cli("ingress", a.port, "set", "drop icmp")
    w.cli("ingress", a.port, "load", compile("verdict", "-DVERDICT=2"))
    assert a.ping("10.0.0.2", wait=1) == 0
    assert [r[1:] for r in rules(w, a.port)] == [(3, 294, 3)]
    # The rules go, the program stays; then the other way round.
    w.cli("ingress", a.port, "del")
    assert a.ping("10.0.0.2") == 3 and counts(w, a.port)[0] >= 3
    w.cli("ingress", a.port, "set", "drop icmp")
    w.cli("ingress", a.port, "unload")
    assert a.ping("10.0.0.2", wait=1) == 0 and [r[0] for r in rules(w, a.port)] == ["drop icmp"]


@pytest.mark.parametrize("verdict, place", [(0, 2), (1, 1), (3, 3), (4, 3), (17, 3)])
def test_what_is_not_passed_is_dropped_and_counted(switch, compile, verdict, place):
    w, a, _ = switch
    w.cli("ingress", a.port, "load", compile("verdict", f"-DVERDICT={verdict}"))
    assert a.ping("10.0.0.2", wait=1) == 0
    expected = [0] * 5
    expected[place] = AtLeast(3)
    assert list(counts(w, a.port)) == expected
    dropped = next(p["drops"] for p in w.json("ports")["ports"] if p["name"] == a.port)
    assert dropped["ingress_filter"] >= 3


def test_programs_are_replaced_while_packets_flow(switch, compile):
    w, a, b = switch
    files = [compile("blocklist"), compile("blocklist", "-mcpu=v3")]
    w.cli("ingress", a.port, "load", files[0])
    sniffer = b.sniff("udp", "port", "9")
    a.start("python3", "-c", SENDER)
    until(lambda: counts(w, a.port)[1] > 10, what="datagrams that are dropped")
    pings = a.pings("10.0.0.2", interval=0.01)
    for replaced in range(1, 30):
        w.cli("ingress", a.port, "load", files[replaced % 2])
    sent, answered = pings.stop()
    assert sent == answered > 10
    assert "10.0.0.2.9" not in sniffer.seen()
    w.cli("ingress", a.port, "unload")
    sniffer.sees("10.0.0.2.9")


def test_what_is_wrong_is_said_and_changes_nothing(switch, compile, tmp_path):
    w, a, _ = switch
    w.cli("ingress", a.port, "load", compile("verdict", "-DVERDICT=1"))
    text = tmp_path / "text.o"
    text.write_text("no object file")
    cut = tmp_path / "cut.o"
    cut.write_bytes(Path(compile("blocklist")).read_bytes()[:700])
    for file, says in [
        (tmp_path / "none.o", "No such file"),
        (tmp_path, "it is not a file"),
        (text, "not an object file of BPF"),
        (cut, "cut.o: "),
        ("/bin/sh", "not of BPF"),
        (compile("refused", "-DOUTSIDE"), "bytes of the frame at"),
        (compile("refused", "-DUNCHECKED"), "may be null"),
        (compile("refused", "-DHELPER"), "helper bpf_redirect, which Weir does not have"),
        (compile("refused", "-DENDLESS"), "too many ways"),
        (compile("refused", "-DWRITE"), "a filter cannot change frames"),
        (compile("refused", "-DMAP"), "map others: its type devmap does not exist here"),
        (compile("refused", "-DFUNCTION"), "always_inline"),
    ]:
        assert says in refusal(w, a.port, "load", str(file)), file
    several = compile("several")
    assert "several XDP programs in it, so one has to be named: first, second" in refusal(w, a.port, "load", several)
    assert 'no XDP program "third"' in refusal(w, a.port, "load", several, "third")
    assert program(w, a.port)["name"] == "verdict" and a.ping("10.0.0.2", wait=1) == 0
    w.cli("ingress", a.port, "load", several, "second")
    assert program(w, a.port)["name"] == "second" and a.ping("10.0.0.2") == 3
    w.cli("ingress", a.port, "load", several, "xdp/first")
    assert program(w, a.port)["name"] == "first" and a.ping("10.0.0.2", wait=1) == 0

    w.cli("ingress", a.port, "load", compile("blocklist"))
    for arguments, says in [
        (("map", "none"), "no map none; its maps: "),
        (("map", "blocked", "10.0.0.0/33"), "is not a key of 8 bytes"),
        (("map", "blocked", "10.0.0.0/8", "300"), "is not a value of 1 bytes"),
        (("map", "blocked", "10.0.0.0/8"), "no such key"),
        (("map", "verdicts", "5"), "no such key"),
        (("map", "verdicts", "5", "1"), "beyond its end"),
        (("unmap", "blocked", "10.0.0.0/8"), "no such key"),
        (("unmap", "verdicts", "1"), "does not take this"),
    ]:
        assert says in refusal(w, a.port, *arguments), arguments


def test_a_program_in_the_file(weir, hosts, compile):
    a, b = hosts
    more = f'ingress-ebpf = "{compile("several")}"\ningress-ebpf-program = "first"'
    w = weir(CONFIG.format(a=a, b=b, more=more))
    assert a.ping("10.0.0.2", wait=1) == 0 and counts(w, a.port)[1] >= 3
    w.configure(CONFIG.format(a=a, b=b, more=more.replace("first", "second")))
    w.cli("reload")
    assert a.ping("10.0.0.2") == 3
    w.configure(CONFIG.format(a=a, b=b, more=""))
    w.cli("reload")
    assert a.ping("10.0.0.2") == 3 and program(w, a.port) is None


def test_mistakes_in_a_file_have_a_line(tmp_path, compile):
    def check(port):
        f = tmp_path / "c.toml"
        f.write_text('[[bridge]]\nname = "br0"\nlocal = false\n[[bridge.port]]\nname = "p1"\n' + port)
        return run(WEIR, "check", f, check=False).stderr

    dummy = 'type = "dummy"\n'
    assert check(dummy + f'ingress-ebpf = "{compile("verdict", "-DVERDICT=2")}"') == ""
    refused = check(dummy + f'ingress-ebpf = "{compile("refused", "-DWRITE")}"')
    assert "c.toml:7: bridge.br0.port.p1.ingress-ebpf: " in refused and "cannot change frames" in refused
    assert "the path has to begin with /" in check(dummy + 'ingress-ebpf = "prog.o"')
    assert "which is not set" in check(dummy + 'ingress-ebpf-program = "first"')
    patch = 'type = "patch"\noptions = { peer = "p2" }\ningress-ebpf = "/prog.o"'
    assert "a patch port receives no frames of its own" in check(patch)


def test_a_program_in_the_database(ovs, hosts, compile):
    a, b = hosts
    ovs.expect("ingress-ebpf")
    ovs.start()
    key = "other_config:ingress-ebpf"
    ovs.vsctl("add-br", "br0", "--", "add-port", "br0", b.port, "--", "add-port", "br0", a.port, "--",
              "set", "interface", a.port, f'{key}="{compile("several")}"', f"{key}-program=first")
    assert a.ping("10.0.0.2", wait=1) == 0
    # A wrong one is reported, and the old one stays in force.
    ovs.vsctl("set", "interface", a.port, f"{key}-program=third")
    until(lambda: "no XDP program" in ovs.get("interface", a.port, "error"), what="the error in the database")
    assert "ingress-ebpf: " in ovs.get("interface", a.port, "error") and a.ping("10.0.0.2", wait=1) == 0
    assert "program first: n_pass=0, n_drop=" in ovs.appctl("ingress/stats", a.port)
    ovs.vsctl("set", "interface", a.port, f"{key}-program=second")
    until(lambda: ovs.get("interface", a.port, "error") == "[]", what="the end of the error")
    assert a.ping("10.0.0.2") == 3
    ovs.appctl("ingress/load", a.port, compile("blocklist"))
    assert a.ping("10.0.0.2") == 3 and "\n1 0\n" in ovs.appctl("ingress/map", a.port, "verdicts")
    ovs.vsctl("remove", "interface", a.port, "other_config", "ingress-ebpf", "--",
              "remove", "interface", a.port, "other_config", "ingress-ebpf-program")
    assert ovs.appctl("ingress/show") == "" and a.ping("10.0.0.2") == 3


@pytest.mark.parametrize("file", ["xdpfilt_alw_ip.o", "xdpfilt_alw_tcp.o", "xdpfilt_alw_eth.o", "xdpfilt_alw_all.o"])
def test_programs_that_others_made_are_loaded(switch, file):
    """What xdp-filter(8) loads into the kernel, with its policy to allow: drops what its maps name."""
    w, a, _ = switch
    w.cli("ingress", a.port, "load", LIBXDP / file)
    assert a.ping("10.0.0.2") == 3
    if file == "xdpfilt_alw_ip.o":
        # A flag for destinations, and a counter of them.
        w.cli("ingress", a.port, "map", "filter_ipv4", "10.0.0.2", "2")
        assert a.ping("10.0.0.2", wait=1) == 0
        assert counts(w, a.port) == (AtLeast(3), 3, 0, 0, 0)
        assert int(map_of(w, a.port, "filter_ipv4")["hex:0a000002"]) >> 6 == 3
