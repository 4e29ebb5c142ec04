"""docs/deviations/configuration.md says of every column of the database what the program does with it: the columns that
the daemon asks the server for, and what its log says to have no effect, are compared with the page, both ways."""

import json
import re
import socket
import threading

import pytest
from conftest import ROOT
from lib.daemon import SCHEMA, dummy_bridge
from lib.net import run

TABLES = json.load(open(SCHEMA))["tables"]
#: What the page says of a column or key that can be set in vain. "Not read" may be silent: it is for other programs.
IN_VAIN = ("No effect", "Not built", "Not read")
#: What the database is made of: not to be set at random.
STRUCTURE = {"name", "bridges", "ports", "interfaces", "controller", "mirrors", "target", "next_cfg", "type", "options",
             "external_ids", "other_config", "flow_tables", "output_port", "select_dst_port", "select_src_port"}


def sections():
    text = (ROOT / "docs/deviations/configuration.md").read_text()
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def rows(section):
    """(what a row is about, what it says)."""
    for line in sections()[section].splitlines():
        if line.startswith("| `"):
            cells = line.split(" | ")
            yield cells[0].removeprefix("| "), cells[1]


def named(table):
    """What the page says of each column of a table, and of each key of its `other_config`, a * at their end."""
    columns, keys = {}, {}
    for about, text in rows(table):
        if "`=`" in about:  # one value of a column
            continue
        into = columns
        for prefix, name in re.findall(r"`(other_config:)?([\w*-]+)`", about):
            # After the first key of a row come others.
            into = keys if prefix or into is keys or "-" in name else columns
            into[name] = text
    return columns, keys


class Listener(threading.Thread):
    """Stands between the daemon and its database, and keeps what the daemon says."""

    def __init__(self, path, server):
        super().__init__(daemon=True)
        self.server, self.heard = server, b""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.start()

    def run(self):
        while True:
            try:
                daemon, _ = self.listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(self.server))
            threading.Thread(target=self.pass_on, args=(upstream, daemon, False), daemon=True).start()
            self.pass_on(daemon, upstream, True)

    def pass_on(self, source, sink, keep):
        try:
            while data := source.recv(65536):
                if keep:
                    self.heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def requests(self):
        text, at, decoder = self.heard.decode(), 0, json.JSONDecoder()
        while at < len(text):
            request, at = decoder.raw_decode(text, at)
            yield request


@pytest.fixture
def asked(ovs):
    """The columns of each table that the daemon asks its database for."""
    listener = Listener(ovs.dir / "between.sock", ovs.dir / "db.sock")
    server, ovs.db = ovs.db, f"unix:{ovs.dir}/between.sock"
    ovs.start("--enable-dummy")
    ovs.db = server
    monitors = [r["params"] for r in listener.requests() if str(r.get("method")).startswith("monitor")]
    [wanted] = [params[2] for params in monitors if params[0] == "Open_vSwitch"]
    return {table: {column for request in requests for column in request["columns"]}
            for table, requests in wanted.items()}


def test_what_the_daemon_does_not_ask_for_is_on_the_page(asked):
    missing = [table for table in TABLES if table not in asked and not re.search(rf"\b{table}\b", sections()["Whole tables"])]
    for table, columns in asked.items():
        if table in sections():
            on_page = set(named(table)[0])
        else:
            [row] = re.findall(rf"^\| {table} \|.*", sections()["Whole tables"], re.M)
            on_page = set(re.findall(r"`(\w+)`", row))
        missing += [f"{table}.{column}" for column in TABLES[table]["columns"] if column not in columns | on_page]
    assert missing == []


def test_what_is_on_the_page_exists():
    for table in set(sections()) & set(TABLES):
        wrong = [name for name in named(table)[0] if name not in TABLES[table]["columns"]]
        assert wrong == [], table


def some_value(table, column):
    """A value that a column can have and does not have by default, and operations that make what it refers to."""
    kind = TABLES[table]["columns"][column]["type"]
    if isinstance(kind, str):
        kind = {"key": kind}
    operations = []

    def atom(base):
        base = {"type": base} if isinstance(base, str) else base
        if "enum" in base:
            return base["enum"][1][-1]
        match base["type"]:
            case "uuid":
                operations.append({"op": "insert", "table": base["refTable"], "row": {}, "uuid-name": "other"})
                return ["named-uuid", "other"]
            case "integer":
                return max(base.get("minInteger", 1), 1)
            case "boolean":
                return True
            case _:
                return "x"

    if "value" in kind:
        return ["map", [[atom(kind["key"]), atom(kind["value"])]]], operations
    return atom(kind["key"]), operations


def without_effect(ovs):
    """(table, column or key) of each note in the log."""
    found = re.findall(r"\|(\w+) \S+: (?:other_config:)?([\w-]+) has no effect", ovs.log())
    return {(next(t for t in TABLES if t.lower() == table), name) for table, name in found}


@pytest.fixture
def full(asked, ovs):
    """A daemon with a row in each table that it asks for."""
    ovs.appctl("vlog/disable-rate-limit")
    ovs.expect("bridge.*(WARN|ERR).*(mirror m|STP are mutually exclusive|Flow_Table|option mtu|is none of|is no address for HTTP|is not an Ethernet address|collector|tx-steering)")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set-controller", "br0", f"unix:{ovs.dir}/nobody", "--", "--id=@m", "create", "mirror", "name=m", "--",
              "--id=@t", "create", "Flow_Table", "name=t", "--", "set", "bridge", "br0", "mirrors=@m", "flow_tables:1=@t")
    return ovs


def everything_is_in_force(ovs):
    ovs.vsctl("set", "bridge", "br0", "external_ids:a=b")


def test_what_is_set_in_vain_is_in_the_log_and_on_the_page(asked, full):
    full.expect('local_(ip|netmask|gateway) "x" is not an address of IPv4')
    for table in asked:
        for column in sorted(set(TABLES[table]["columns"]) - STRUCTURE):
            value, operations = some_value(table, column)
            operations.append({"op": "update", "table": table, "where": [], "row": {column: value}})
            answer = run("ovsdb-client", "transact", full.db, json.dumps(["Open_vSwitch", *operations])).stdout
            assert "error" not in answer, (table, column, answer)
    everything_is_in_force(full)
    noted = without_effect(full)
    on_page = {(table, column) for table in asked if table in sections()
               for column, text in named(table)[0].items() if text.startswith(IN_VAIN)}
    assert noted - on_page == set(), "in the log and not on the page"
    # What daemons write can be set only for them to write it again, or to lie there.
    output = {(table, column) for table in asked for column, c in TABLES[table]["columns"].items()
              if c.get("ephemeral") or re.search("status|statistics|_count$", column)}
    silent = {(table, column) for table, column in on_page - noted - output if column not in STRUCTURE}
    assert silent == set(), "on the page and not in the log"


def test_keys_that_are_set_in_vain_are_in_the_log_and_on_the_page(asked, full):
    for table in set(asked) & set(sections()):
        for key in named(table)[1]:
            full.vsctl("set", table, "." if table == "Open_vSwitch" else {"Controller": "br0", "Mirror": "m", "Bridge": "br0"}.get(
                table, "p1"), f"other_config:{key.replace('*', 'x')}=0")
    full.vsctl("set", "bridge", "br0", "other_config:nonsense=0")
    everything_is_in_force(full)
    noted = without_effect(full)
    assert ("Bridge", "nonsense") in noted, "a key that nobody knows"
    for table in set(asked) & set(sections()):
        for key, text in named(table)[1].items():
            in_vain = text.startswith(IN_VAIN) or text.startswith("Not written")
            if "*" in key and not in_vain:
                continue  # there is no key of this name
            assert ((table, key.replace("*", "x")) in noted) == in_vain, (table, key, text)
