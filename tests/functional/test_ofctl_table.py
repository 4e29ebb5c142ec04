"""Every subcommand of Debian's ovs-ofctl, asked in every version of OpenFlow: docs/ofctl.md says what comes of it.

The page's table is made by this test, and compared by it:

    WRITE_OFCTL_TABLE=1 .venv/bin/pytest tests/functional/test_ofctl_table.py

What "works" means is declared here, for each row: what the command has to print, or what has to be true afterwards. What a
version cannot do is told by the client or refused by the switch; the page has the words.
"""

import os
import re
import socket
import struct
import subprocess
from dataclasses import dataclass, field

import pytest
from conftest import ROOT
from lib.daemon import dummy_bridge
from lib.net import run
from lib.pcap import write_pcap
from lib.wait import until

PAGE = ROOT / "docs/ofctl.md"
VERSIONS = ["10", "11", "12", "13", "14", "15"]
#: Ethernet, 10.0.0.1 -> 10.0.0.2, UDP 1000 -> 53.
UDP = "0200000000020200000000010800450000200000400040 11266b0a0000010a00000203e80035000c0000deadbeef".replace(" ", "")
GROUP = "group_id=7,type=select,bucket=bucket_id:1,weight:1,actions=output:2"
METER = "meter=3,pktps,burst,stats,bands=type=drop,rate=100,burst_size=10"
TLV = "{class=0xffff,type=1,len=4}->tun_metadata0"


@dataclass
class Row:
    """One command line. `{dir}` stands for a directory with files, `{VERSION}` for OpenFlow10 and so on."""

    line: str
    #: What it prints where it works: a pattern.
    shows: str = ""
    #: A command of ovs-ofctl, and what that shows afterwards.
    then: tuple = ()
    #: Commands of ovs-ofctl that come before, in a version that has all of them.
    before: list = field(default_factory=list)
    input: str = None
    #: The page shows this instead.
    title: str = None


def flows(text):
    return ("-O OpenFlow15 --no-stats --no-names dump-flows br0", text)


def groups(text):
    return ("-O OpenFlow15 --no-names dump-groups br0", text)


def meters(text):
    return ("-O OpenFlow15 dump-meters br0", text)


FLOW = "add-flow br0 table=1,cookie=7,in_port=1,actions=output:2"
NO_FLOW = r"\A\Z"
ADD_GROUP = f"-O OpenFlow15 add-group br0 {GROUP}"
ADD_METER = f"-O OpenFlow13 add-meter br0 {METER}"

ROWS = [
    Row("show br0", r"n_tables:254.*\b2\(p2\): addr:.*GET_CONFIG_REPLY"),
    Row("dump-desc br0", r"Manufacturer: .*Hardware: .*Software: "),
    Row("dump-tables br0", r"table 0.*active=1.*tables? [12].*ditto", before=["add-flow br0 actions=drop"]),
    Row("dump-table-features br0", r"table 0.*max_entries=.*instructions.*next tables: 1-253"),
    Row("dump-table-desc br0", r"table 0.*eviction=off.*vacancy=off"),
    Row("mod-port br0 p1 no-flood", then=("-O OpenFlow10 dump-ports-desc br0", "NO_FLOOD")),
    Row("mod-port br0 p1 no-forward", then=("-O OpenFlow13 dump-ports-desc br0 p1", "NO_FWD")),
    Row("mod-port br0 p1 down", then=("-O OpenFlow13 dump-ports-desc br0 p1", "PORT_DOWN")),
    Row("mod-table br0 1 continue", then=("-O OpenFlow11 dump-tables br0", r"table 1:.*?continue")),
    Row("mod-table br0 1 evict", then=("-O OpenFlow14 dump-table-desc br0", r"table 1:\s*eviction=on")),
    Row("mod-table br0 1 vacancy:20,80", then=("-O OpenFlow14 dump-table-desc br0", r"table 1:.*?vacancy=on vacancy_down=20%")),
    Row("mod-table br0 1 name:one", then=("-O OpenFlow13 dump-table-features br0", r'table 1 \("one"\)')),
    Row("get-frags br0", r"^normal$"),
    Row("set-frags br0 drop", then=("get-frags br0", "^drop$")),
    Row("set-frags br0 nx-match", then=("get-frags br0", "^nx-match$")),
    Row("set-frags br0 reassemble", then=("get-frags br0", "^reassemble$")),
    Row("dump-ports br0", r'3 ports.*port +2: rx pkts=0'),
    Row("dump-ports br0 p1", r'1 ports.*port +1: rx pkts=0'),
    Row("dump-ports-desc br0", r"\b1\(p1\): addr:.*\b2\(p2\): addr:"),
    Row("dump-ports-desc br0 p2", r"\b2\(p2\): addr:"),
    Row("dump-flows br0", r"table=1, n_packets=0.*in_port=1 actions=output:2", before=[FLOW]),
    Row("dump-flows br0 in_port=1", r"in_port=1 actions=output:2", before=[FLOW]),
    Row("dump-aggregate br0", r"packet_count=0 byte_count=0 flow_count=1", before=[FLOW]),
    Row("dump-aggregate br0 table=2", r"packet_count=0 byte_count=0 flow_count=0", before=[FLOW]),
    Row("queue-stats br0", r"3 queues.*queue 0: bytes="),
    Row("queue-stats br0 1", r"1 queues.*queue 0: bytes="),
    Row("queue-stats br0 1 0", r"1 queues.*queue 0: bytes="),
    Row("queue-get-config br0", r"(?s)queue 0:.*queue 0:"),
    Row("queue-get-config br0 1", r"queue 0:"),
    Row("add-flow br0 priority=5,ip,nw_dst=10.0.0.0/8,actions=output:2",
        then=flows(r"priority=5,ip,nw_dst=10.0.0.0/8 actions=output:2")),
    Row("--bundle add-flow br0 actions=output:2", then=flows(r"actions=output:2")),
    Row("add-flows br0 -", input="in_port=1,actions=output:2\nin_port=2,actions=output:1\n",
        then=flows(r"in_port=1 actions=output:2.*in_port=2 actions=output:1")),
    Row("mod-flows br0 table=1,in_port=1,actions=output:3", before=[FLOW], then=flows("table=1,.*in_port=1 actions=output:3")),
    Row("--strict mod-flows br0 table=1,in_port=1,actions=drop", before=[FLOW], then=flows("in_port=1 actions=drop")),
    Row("del-flows br0", before=[FLOW], then=flows(NO_FLOW)),
    Row("del-flows br0 in_port=1", before=[FLOW], then=flows(NO_FLOW)),
    Row("--strict del-flows br0 table=1,in_port=1", before=[FLOW], then=flows(NO_FLOW)),
    Row("replace-flows br0 -", input="in_port=2,actions=drop\n", before=[FLOW], then=flows(r"\A(reset_counts )?in_port=2 actions=drop\Z")),
    Row("diff-flows br0 {dir}/none", r"-table=1 in_port=1 cookie=0x7 actions=output:2", before=[FLOW],
        title="diff-flows br0 FILE"),
    Row(f"packet-out br0 in_port=controller,packet={UDP},actions=output:2", title="packet-out br0 in_port=controller,packet=HEX,actions=output:2",
        then=("-O OpenFlow13 dump-ports br0 p2", r"tx pkts={next}, bytes=")),
    Row("monitor br0 65535", title="monitor br0 65535"),
    Row("monitor br0 65535 invalid_ttl"),
    Row("monitor br0 watch:"),
    Row("snoop br0"),
    Row("add-group br0 group_id=8,type=indirect,bucket=actions=output:2",
        then=groups(r"group_id=8,type=indirect,bucket=(bucket_id:\d+,)?actions=output:2")),
    Row("add-groups br0 -", input="group_id=8,type=all,bucket=output:1\ngroup_id=9,type=all,bucket=output:2\n",
        then=groups(r"group_id=8,type=all.*group_id=9,type=all|group_id=9,type=all.*group_id=8,type=all")),
    Row("mod-group br0 group_id=7,type=all,bucket=output:1", before=[ADD_GROUP], then=groups(r"group_id=7,type=all.*output:1")),
    Row("--may-create mod-group br0 group_id=9,type=all,bucket=output:1", then=groups(r"group_id=9,type=all.*output:1")),
    Row("del-groups br0", before=[ADD_GROUP], then=groups(r"\):\s*\Z")),
    Row("del-groups br0 group_id=7", before=[ADD_GROUP], then=groups(r"\):\s*\Z")),
    Row("insert-buckets br0 group_id=7,command_bucket_id=last,bucket=bucket_id:5,weight:1,actions=output:1", before=[ADD_GROUP],
        then=groups(r"bucket_id:1.*bucket_id:5")),
    Row("remove-buckets br0 group_id=7,command_bucket_id=all", before=[ADD_GROUP], then=groups(r"group_id=7,type=select\Z")),
    Row("dump-group-features br0", r"Types:.*0xf.*|all:.*select:"),
    Row("dump-groups br0", r"group_id=7,type=select", before=[ADD_GROUP]),
    Row("dump-groups br0 7", r"group_id=7,type=select", before=[ADD_GROUP]),
    Row("dump-group-stats br0", r"group_id=7,.*ref_count=0,packet_count=0.*bucket0:", before=[ADD_GROUP]),
    Row("dump-group-stats br0 group_id=7", r"group_id=7,.*ref_count=0,packet_count=0.*bucket0:", before=[ADD_GROUP]),
    Row(f"add-meter br0 {METER}", then=meters(r"meter=3 pktps burst stats bands=.*type=drop rate=100 burst_size=10")),
    Row("mod-meter br0 meter=3,kbps,band=type=drop,rate=9", before=[ADD_METER],
        then=meters(r"meter=3 kbps bands=.*type=drop rate=9")),
    Row("del-meters br0", before=[ADD_METER], then=meters(r"\):\s*\Z")),
    Row("del-meters br0 meter=3", before=[ADD_METER], then=meters(r"\):\s*\Z")),
    Row("dump-meters br0", r"meter=3 pktps burst stats bands=", before=[ADD_METER]),
    Row("dump-meters br0 meter=3", r"meter=3 pktps burst stats bands=", before=[ADD_METER]),
    Row("meter-stats br0", r"meter:3 flow_count:0 packet_in_count:0", before=[ADD_METER]),
    Row("meter-stats br0 meter=3", r"meter:3 flow_count:0 packet_in_count:0", before=[ADD_METER]),
    Row("meter-features br0", r"max_meter:\d+ max_bands:.*band_types:.*drop"),
    Row(f"add-tlv-map br0 {TLV}", then=("dump-tlv-map br0", r"0xffff\s+0x1\s+4\s+tun_metadata0")),
    Row("del-tlv-map br0", before=[f"add-tlv-map br0 {TLV}"], then=("dump-tlv-map br0", r"-----\s*\Z")),
    Row(f"del-tlv-map br0 {TLV}", before=[f"add-tlv-map br0 {TLV}"], then=("dump-tlv-map br0", r"-----\s*\Z")),
    Row("dump-tlv-map br0", r"0xffff\s+0x1\s+4\s+tun_metadata0", before=[f"add-tlv-map br0 {TLV}"]),
    Row("dump-ipfix-bridge br0", r"bridge ipfix"),
    Row("dump-ipfix-flow br0", r"flow ipfix"),
    Row("ct-flush-zone br0 5"),
    Row("ct-flush br0"),
    Row("ct-flush br0 zone=5"),
    Row("ct-flush br0 zone=5 ct_nw_src=10.1.1.1,ct_nw_proto=17,ct_tp_src=1"),
    Row("probe br0"),
    Row("ping br0 1000", r"1000 bytes from br0: xid=\w+ time=.*\n.*1000 bytes"),
    Row("benchmark br0 100 10", r"Finished in .*ms"),
    Row("bundle br0 -", input="flow add in_port=1,actions=output:2\nflow add in_port=2,actions=output:1\n",
        then=flows(r"in_port=1 actions=output:2.*in_port=2 actions=output:1")),
    Row("ofp-parse {dir}/spoken{VERSION}", r"OFPT_HELLO.*OFPT_FEATURES_REPLY.*dpid:[0-9a-f]{16}.*OFPT_ECHO_REPLY",
        title="ofp-parse FILE"),
    Row("ofp-parse-pcap {dir}/spoken{VERSION}.pcap", r"OFPT_HELLO.*OFPT_FEATURES_REPLY.*dpid:[0-9a-f]{16}.*OFPT_ECHO_REPLY",
        title="ofp-parse-pcap PCAP"),
]

#: What the page says where a command succeeds and changes nothing: its version cannot say it.
NO_EFFECT = "no effect"

#: What takes away what a command line with such words has made.
UNDO = {"flow": "del-flows br0", "bundle": "del-flows br0", "group": "-O OpenFlow15 del-groups br0",
        "meter": "-O OpenFlow15 del-meters br0", "tlv": "del-tlv-map br0", "p1 down": "mod-port br0 p1 up",
        "no-flood": "mod-port br0 p1 flood", "no-forward": "mod-port br0 p1 forward", "set-frags": "set-frags br0 normal",
        "1 continue": "-O OpenFlow11 mod-table br0 1 controller", "1 evict": "-O OpenFlow14 mod-table br0 1 noevict",
        "1 vacancy": "-O OpenFlow14 mod-table br0 1 novacancy", "1 name:": "-O OpenFlow13 mod-table br0 1 name:"}

#: What each command that does not end of itself has to show of a packet that comes to a controller.
ENDLESS = {"monitor br0 watch:": r"FLOW_MONITOR.*event=ADDED.*actions=controller|FLOW_MONITOR.*event=ADDED.*CONTROLLER",
           "monitor": r"PACKET_IN.*in_port=", "snoop": r"PACKET_IN.*in_port="}


class Page:
    """docs/ofctl.md: a row for each command line, a mark for each way to fail, and its words below."""

    BEGIN, END = "<!-- made by tests/functional/test_ofctl_table.py -->\n", "<!-- end -->\n"

    def __init__(self, cells):
        #: {title: {version: "" where it works, otherwise what the client says}}
        self.cells = cells

    @classmethod
    def read(cls, path):
        text = path.read_text().partition(cls.BEGIN)[2].partition(cls.END)[0]
        words = dict(re.findall(r"^- \*\*(\w+)\*\*: `(.*)`$", text, flags=re.M))
        cells = {}
        for title, marks in re.findall(r"^\| `(.*?)` \| (.*) \|$", text, flags=re.M):
            if title == "ovs-ofctl":
                continue
            marks = [mark.strip() for mark in marks.split(" | ")]
            cells[title.replace("\\|", "|")] = {v: "" if m == "yes" else words[m] for v, m in zip(VERSIONS, marks, strict=True)}
        return cls(cells)

    def write(self, path):
        marks = {}
        for row in self.cells.values():
            for words in row.values():
                if words and words not in marks:
                    marks[words] = "abcdefghijklmnopqrstuvwxyz"[len(marks)]
        lines = ["| `ovs-ofctl` | " + " | ".join(f"{v[0]}.{v[1]}" for v in VERSIONS) + " |", "|---" * 7 + "|"]
        for title, row in self.cells.items():
            row = [marks[row[v]] if row[v] else "yes" for v in VERSIONS]
            lines.append("| `" + title.replace("|", "\\|") + "` | " + " | ".join(row) + " |")
        lines += ["", *(f"- **{mark}**: `{words}`" for words, mark in marks.items()), ""]
        before, _, rest = path.read_text().partition(self.BEGIN)
        path.write_text(before + self.BEGIN + "\n".join(lines) + self.END + rest.partition(self.END)[2])


class Bench:
    """A switch in the state from which each cell of the table starts."""

    def __init__(self, ovs, dir):
        self.ovs, self.dir, self.sent = ovs, dir, 0
        ovs.start("--enable-dummy")
        dummy_bridge(ovs, "p1", "p2")
        (dir / "none").write_text("")
        ovs.vsctl("set", "bridge", "br0", "fail-mode=secure", "--", "set", "interface", "p1", "ofport_request=1", "--",
                  "set", "interface", "p2", "ofport_request=2")
        for version in VERSIONS:
            self.speak(version)

    def speak(self, version):
        """Keeps what the switch says to a hello, a features request and an echo request, for the commands that read files."""
        number = int(version) - 9
        ask = b"".join(struct.pack("!BBHI", number, kind, 8, n) for n, kind in enumerate((0, 5, 2), 1))
        said = b""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(str(self.ovs.dir / "br0.mgmt"))
            s.sendall(ask)
            while not said.endswith(struct.pack("!BBHI", number, 3, 8, 3)):
                piece = s.recv(4096)
                assert piece, said
                said += piece
        (self.dir / f"spokenOpenFlow{version}").write_bytes(said)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + len(said), 0, 0, 64, 6, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
        tcp = struct.pack("!HHIIBBHHH", 6653, 40000, 1, 1, 0x50, 0x18, 65535, 0, 0)
        write_pcap(self.dir / f"spokenOpenFlow{version}.pcap", [bytes(range(12)) + b"\x08\x00" + ip + tcp + said])

    def ofctl(self, line, version=None, input=None):
        words = line.format(dir=self.dir, VERSION=f"OpenFlow{version}") if "{dir}" in line else line
        flag = ["-O", f"OpenFlow{version}"] if version else []
        return run("ovs-ofctl", *flag, *words.split(" "), env=self.ovs.env, input=input, check=False)

    def undo(self, row):
        """Takes away what a row has made, and what came before it."""
        words = " ".join([row.line, *row.before])
        for word, line in UNDO.items():
            if word in words:
                r = self.ofctl(line)
                assert r.returncode == 0, (line, r.stderr)

    def cell(self, row, version):
        """"" where the command works, otherwise what it says."""
        for line in row.before:
            r = self.ofctl(line)
            assert r.returncode == 0, (line, r.stderr)
        if row.line.startswith(("monitor", "snoop")):
            return self.endless(row, version)
        r = self.ofctl(row.line, version, row.input)
        # diff-flows tells a difference by its exit status.
        if r.returncode != (2 if row.line.startswith("diff-flows") else 0) or "OFPT_ERROR" in r.stdout:
            return refusal(r.stderr or r.stdout)
        if not re.search(row.shows, r.stdout.strip(), flags=re.S):
            raise AssertionError(f"{row.line}, {version}: {row.shows} is not in {r.stdout}{r.stderr}")
        if row.then:
            line, shows = row.then

            def shown():
                return re.search(shows, self.ofctl(line).stdout.strip(), flags=re.S)

            if "{next}" in shows:
                # A packet-out is carried out by a worker.
                self.sent += 1
                shows = shows.format(next=self.sent)
                until(shown, what=f"{row.line}, {version}: {shows}")
            elif not shown():
                return NO_EFFECT
        return ""

    def endless(self, row, version):
        """Of a command that runs until it is ended: what it shows of a packet to a controller, or says at its end."""
        command = row.line.split()[0]
        if command == "snoop":
            # Active Unix sockets have to be in the run directory.
            path = self.ovs.dir / "snooped"
            controller = subprocess.Popen(["ovs-testcontroller", "-O", f"OpenFlow{version}", f"punix:{path}", "-vconsole:off"],
                                          env=self.ovs.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            try:
                self.ovs.vsctl("set-controller", "br0", f"unix:{path}")
                until(lambda: self.ovs.vsctl("get", "controller", "br0", "is_connected") == "true", what="the controller")
                return self.until_ended(row, version, command)
            finally:
                self.ovs.vsctl("del-controller", "br0")
                controller.terminate()
                controller.wait()
        return self.until_ended(row, version, command)

    def until_ended(self, row, version, command):
        control, out = self.dir / "endless.ctl", self.dir / "endless.out"
        with open(out, "w") as file:
            client = subprocess.Popen(["ovs-ofctl", "-O", f"OpenFlow{version}", f"--unixctl={control}", *row.line.split()],
                                      env=self.ovs.env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            until(lambda: client.poll() is not None or control.exists(), what="the client's control socket")
            shows = ENDLESS.get(row.line) or ENDLESS[command]

            def shown():
                # A packet comes again and again, since nothing tells when the client is ready.
                self.ofctl("del-flows br0")
                self.ofctl("add-flow br0 actions=controller")
                self.ovs.appctl("netdev-dummy/receive", "p1", UDP)
                return client.poll() is not None or re.search(shows, out.read_text(), flags=re.S)

            until(shown, 10, f"{row.line}, {version}: {shows} in {out.read_text()}")
            if client.poll() is not None:
                return refusal(out.read_text())
            run("ovs-appctl", "-t", control, "exit", env=self.ovs.env)
            assert client.wait(30) == 0
            return ""
        finally:
            if client.poll() is None:
                client.kill()
            client.wait()
            control.unlink(missing_ok=True)


def refusal(said):
    """An error of the client without what differs each time."""
    line = next(line for line in said.splitlines() if "ovs-ofctl: " in line or "OFPT_ERROR" in line)
    line = line.removeprefix("ovs-ofctl: ").partition(" is among the allowed flow formats")[0]
    return re.sub(r"( \(OF1\.\d\))? \(xid=0x[0-9a-f]+\)", "", line).strip().rstrip(":")


def test_every_subcommand_has_a_row():
    said = run("ovs-ofctl", "--help").stdout
    commands = set(re.findall(r"^  (?:\[--[\w-]+\] )?([a-z][\w-]+) (?:SWITCH|TARGET|SOURCE1|FILE|PCAP)\b", said, flags=re.M))
    assert len(commands) >= 50, commands
    rows = {next(word for word in row.line.split() if not word.startswith("-")) for row in ROWS}
    assert commands - rows == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_subcommand(ovs, tmp_path, version):
    bench = Bench(ovs, tmp_path)
    ovs.expect("connection dropped|connection attempt failed|will wait|unix:")
    cells, wrong = {}, []
    for row in ROWS:
        try:
            cells[row.title or row.line] = bench.cell(row, version)
        except AssertionError as e:
            wrong.append(str(e))
        bench.undo(row)
    assert not wrong, "\n".join(wrong)
    page = Page.read(PAGE)
    if os.environ.get("WRITE_OFCTL_TABLE"):
        page.cells = {title: page.cells.get(title, dict.fromkeys(VERSIONS, "")) | {version: cell} for title, cell in cells.items()}
        page.write(PAGE)
    assert {title: row[version] for title, row in page.cells.items()} == cells, "docs/ofctl.md is out of date"
