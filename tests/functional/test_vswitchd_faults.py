"""`weir vswitchd` when things go wrong around it, and a client that nobody here wrote: the IDL of OVS."""

import json
import re
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import until
from lib.daemon import SCHEMA, alive, dummy_bridge
from lib.net import run
from lib.traffic import Traffic


def test_the_idl_of_ovs_is_a_client(ovs):  # noqa: F811
    # Comes with openvswitch-switch.
    import ovs.db.idl as idl_module
    ovs.start()
    helper = idl_module.SchemaHelper(SCHEMA)
    for table in ["Open_vSwitch", "Bridge", "Port", "Interface"]:
        helper.register_table(table)
    idl = idl_module.Idl(ovs.db, helper)

    def pump(condition, what):
        until(lambda: (idl.run(), condition())[1], what=what)

    pump(lambda: idl.tables["Open_vSwitch"].rows, "the database")
    root = next(iter(idl.tables["Open_vSwitch"].rows.values()))
    txn = idl_module.Transaction(idl)
    row = {}
    for table in ["Interface", "Port", "Bridge"]:
        row[table] = txn.insert(idl.tables[table])
        row[table].name = "br0"
    row["Interface"].type = "internal"
    row["Port"].interfaces = [row["Interface"]]
    row["Bridge"].ports = [row["Port"]]
    row["Bridge"].datapath_type = "dummy"
    root.bridges = [row["Bridge"]]
    root.increment("next_cfg")
    assert txn.commit_block() == idl_module.Transaction.SUCCESS
    wanted = txn.get_increment_new_value()
    pump(lambda: root.cur_cfg >= wanted, "cur_cfg")
    interface = next(iter(idl.tables["Interface"].rows.values()))
    pump(lambda: interface.ofport == [65534], "the port's number")
    assert interface.admin_state in (["up"], ["down"]) and interface.mac_in_use and interface.mtu == [1500]
    assert f"addr:{interface.mac_in_use[0]}" in ovs.ofctl("show", "br0")
    idl.close()


def test_the_server_restarts_under_traffic(ovs, net):  # noqa: F811
    hosts = [net.host("10.0.0.1/24"), net.host("10.0.0.2/24")]
    # The second one is what it is told where it is about to write.
    lost = r"database: (connection closed by the server|Connection reset by peer|Broken pipe)"
    ovs.expect(f"{lost}|database: (lock lost|.*/db.sock: )|cannot write to the database: connection lost")
    ovs.start()
    dummy_bridge(ovs)
    for host in hosts:
        ovs.vsctl("add-port", "br0", host.port)
    assert hosts[0].ping("10.0.0.2") == 3
    traffic = Traffic(*hosts, "10.0.0.2")
    for n in range(2):
        ovs.stop_server()
        until(lambda: len(re.findall(lost, ovs.log())) > n, what="the daemon noticing")
        # What changes while the server is not followed is made up for.
        run("ovsdb-tool", "transact", ovs.dir / "conf.db", json.dumps(
            ["Open_vSwitch", {"op": "update", "table": "Bridge", "where": [["name", "==", "br0"]],
                              "row": {"other_config": ["map", [["datapath-id", f"{n + 1:016x}"]]]}}]))
        ovs.start_server()
        until(lambda: f"dpid:{n + 1:016x}" in ovs.ofctl("show", "br0"), what="the configuration reconciled")
    traffic.check()
    assert ovs.vsctl("get", "open", ".", "cur_cfg") == ovs.vsctl("get", "open", ".", "next_cfg")


class Garbage(threading.Thread):
    """A database server that answers each connection with something else that is wrong, and counts them."""

    ANSWERS = [b"\x00\xff\xfe not JSON", b"{" * 5000, b'{"id":0,"result":[],"error":null}' * 50,
               b'{"method":"update3","params":[1,2,3],"id":null}', b'[1,2,3]', b"",
               b'{"id":"x","result":{"name":"Open_vSwitch","tables":{"Bridge":7}},"error":null}']

    def __init__(self, path):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.served = 0
        self.start()

    def run(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.recv(4096)
                    peer.sendall(self.ANSWERS[self.served % len(self.ANSWERS)])
                    time.sleep(0.05)
                except OSError:
                    pass
            self.served += 1

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join(5)


def test_a_database_that_sends_garbage(ovs):  # noqa: F811
    ovs.expect("reconnect.*database: ")
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.ofctl("add-flow", "br0", "priority=77,actions=drop")
    pid = ovs.pid()
    ovs.stop_server()
    (ovs.dir / "db.sock").unlink(missing_ok=True)
    garbage = Garbage(ovs.dir / "db.sock")
    try:
        until(lambda: garbage.served >= 4, 40, "four connections")
        assert alive(pid) and "priority=77" in ovs.ofctl("dump-flows", "br0")
        assert "3.1.0" in ovs.appctl("version")
    finally:
        garbage.close()
        (ovs.dir / "db.sock").unlink(missing_ok=True)
    ovs.start_server()
    ovs.vsctl("--timeout=30", "add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
    shown = ovs.ofctl("show", "br0")
    assert "(p1)" in shown and "(p2)" in shown
    assert "priority=77" in ovs.ofctl("dump-flows", "br0")


class Slow(threading.Thread):
    """Between the daemon and its server: while `holds` is set, the server gets none of the daemon's transactions, as one does
    not write whose disk is slow, or whose cluster has no majority. All else passes."""

    def __init__(self, path, server):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.server = str(server)
        self.holds, self.held = threading.Event(), []
        self.start()

    def run(self):
        near, _ = self.listener.accept()
        self.far = socket.socket(socket.AF_UNIX)
        self.far.connect(self.server)
        threading.Thread(target=self.back, args=(near,), daemon=True).start()
        decoder, text = json.JSONDecoder(), ""
        while data := near.recv(1 << 16):
            text += data.decode()
            while text:
                try:
                    message, end = decoder.raw_decode(text)
                except ValueError:
                    break
                held = self.holds.is_set() and message.get("method") == "transact"
                (self.held.append if held else self.pass_on)(text[:end])
                text = text[end:].lstrip()
        self.far.shutdown(socket.SHUT_RDWR)

    def pass_on(self, message):
        self.far.sendall(message.encode())

    def back(self, near):
        while data := self.far.recv(1 << 16):
            near.sendall(data)

    def release(self):
        self.holds.clear()
        for message in self.held:
            self.pass_on(message)


def test_a_server_that_does_not_write_is_followed(ovs):
    slow = Slow(ovs.dir / "slow.sock", ovs.dir / "db.sock")
    real, ovs.db = ovs.db, f"unix:{ovs.dir}/slow.sock"
    ovs.start()
    ovs.db = real
    dummy_bridge(ovs, "p1")
    slow.holds.set()
    for port in ("p2", "p3"):
        ovs.vsctl("--no-wait", "add-port", "br0", port, "--", "set", "interface", port, "type=dummy")
        until(lambda: f"({port})" in ovs.ofctl("show", "br0"), what=f"{port} in force")
    assert len(slow.held) == 1, "one transaction at a time"
    assert ovs.get("interface", "p3", "ofport") == "[]"
    # What has waited is told at last.
    slow.release()
    until(lambda: ovs.get("interface", "p3", "ofport") == "3", what="the number in the database")
    ovs.vsctl("add-port", "br0", "p4", "--", "set", "interface", "p4", "type=dummy")


def test_garbage_in_the_database(ovs):  # noqa: F811
    """Values that the schema allows and that mean nothing."""
    ovs.expect("the default is used|is not an? |is not of the form")
    ovs.start()
    dummy_bridge(ovs, "p1")
    bad = {"pmd-cpu-mask": "zz", "flow-limit": "-3", "max-idle": "soon", "pmd-rxq-assign": "best",
           "pmd-sleep-max": "1e99", "tx-flush-interval": "99999999999999999999", "max-revalidator": "0"}
    ovs.vsctl("set", "open", ".", *[f"other_config:{key}={value}" for key, value in bad.items()])
    ovs.vsctl("set", "bridge", "br0", "other_config:datapath-id=xyz", "other_config:hwaddr=ff:ff:ff:ff:ff:ff",
              "other_config:mac-aging-time=never")
    ovs.vsctl("set", "interface", "p1", "other_config:pmd-rxq-affinity=a:b", "options:nonsense=1")
    ovs.vsctl("set-controller", "br0", "nonsense:1:2:3")
    ovs.vsctl("--no-wait", "--", "--id=@c", "create", "Controller", 'target="tcp:"', "--", "set", "bridge", "br0",
              "controller=@c")
    ovs.vsctl("del-controller", "br0")
    assert "1(p1)" in ovs.ofctl("show", "br0")
    log = ovs.log()
    for word in ["pmd-cpu-mask", "flow-limit", "pmd-rxq-assign", "hwaddr", "datapath-id", "pmd-rxq-affinity"]:
        assert word in log, word


def test_a_patch_port_that_is_its_own_peer_is_refused(ovs):  # noqa: F811
    """What it sent came in again by it, and had the addresses of others move there."""
    ovs.expect("a patch port cannot be its own peer")
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    ovs.vsctl("add-port", "br0", "loop", "--", "set", "interface", "loop", "type=patch", "options:peer=loop")
    assert "a patch port cannot be its own peer" in ovs.get("Interface", "loop", "error")
    assert "(loop)" not in ovs.ofctl("show", "br0")
    ovs.vsctl("set", "interface", "loop", "options:peer=other")
    assert ovs.get("Interface", "loop", "error") == "No usable peer 'other' exists in 'dummy' datapath."
    assert "(loop)" in ovs.ofctl("show", "br0")
    ovs.vsctl("set", "interface", "loop", "options:peer=loop")
    assert "a patch port cannot be its own peer" in ovs.get("Interface", "loop", "error")


def test_what_has_no_effect_is_named_once(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set", "open", ".", "other_config:smc-enable=true")
    ovs.vsctl("set", "port", "p1", "other_config:transient=true")
    ovs.vsctl("set", "bridge", "br0", "external_ids:a=b")
    # As ovn-controller does for itself: it has an index of its own, and sets the queues of this port.
    ovs.vsctl("set", "open", ".", 'other_config:ovn-chassis-idx-h1=""')
    ovs.vsctl("set", "port", "br0", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-noop")
    for note in ["other_config:smc-enable has no effect", "port p1: other_config:transient has no effect"]:
        assert ovs.log().count(note) == 1, note
    assert ovs.log().count("has no effect") == 2


def test_killed_while_it_is_configured(ovs):  # noqa: F811
    # The database server may see a moment later than the next daemon that the one before has gone.
    ovs.expect("another ovs-vswitchd process is running")
    ovs.start()
    dummy_bridge(ovs)
    for n in range(3):
        for port in range(4):
            name = f"p{n}{port}"
            ovs.vsctl("--no-wait", "add-port", "br0", name, "--", "set", "interface", name, "type=dummy")
        ovs.kill(9)
        ovs.start()
    shown = ovs.ofctl("show", "br0")
    assert all(f"(p{n}{port})" in shown for n in range(3) for port in range(4))
    numbers = [ovs.get("interface", f"p{n}{port}", "ofport") for n in range(3) for port in range(4)]
    assert len(set(numbers)) == len(numbers)
    assert ovs.vsctl("get", "open", ".", "cur_cfg") == ovs.vsctl("get", "open", ".", "next_cfg")


# Locks a pidfile as a daemon does, and ends its first thread; another one holds the lock for the seconds given.
ENDING = """
import ctypes, fcntl, os, sys, threading, time
f = open(sys.argv[1], "w")
fcntl.lockf(f, fcntl.LOCK_EX)
print(os.getpid(), file=f, flush=True)
def end():
    time.sleep(float(sys.argv[2]))
    os._exit(0)
threading.Thread(target=end).start()
print("locked", flush=True)
ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))
"""


def test_a_daemon_that_was_killed_is_still_giving_back_its_memory(ovs):  # noqa: F811
    """Then its first thread has ended, and its files are open."""
    pidfile = ovs.dir / "ovs-vswitchd.pid"
    held = subprocess.Popen([sys.executable, "-c", ENDING, str(pidfile), "0.5"], stdout=subprocess.PIPE, text=True)
    try:
        assert held.stdout.readline() == "locked\n"
        ovs.start()
        assert held.wait(30) == 0
        assert int(pidfile.read_text()) != held.pid
    finally:
        held.kill()
        held.wait()


def test_a_full_disk_for_the_log(ovs):  # noqa: F811
    logs = ovs.dir / "small"
    logs.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", logs)
    try:
        ovs.start(f"--log-file={logs}/v.log", "-vfile:dbg")
        ovs.excuse("its log ends with a full disk")
        subprocess.run(["dd", "if=/dev/zero", f"of={logs}/fill", "bs=4k"], stderr=subprocess.DEVNULL)
        dummy_bridge(ovs, "p1")
        for n in range(20):
            ovs.vsctl("set", "bridge", "br0", f"other_config:datapath-id={n + 1:016x}")
        assert "dpid:0000000000000014" in ovs.ofctl("show", "br0")
        assert "1(p1)" in ovs.ofctl("show", "br0")
        # With room again, and a log that was rotated, it goes on.
        (logs / "fill").unlink()
        (logs / "v.log").rename(logs / "v.log.1")
        (logs / "v.log.1").unlink()
        ovs.appctl("vlog/reopen")
        ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")
        until(lambda: (logs / "v.log").exists() and (logs / "v.log").read_text(), what="a log")
    finally:
        for pid in ovs.daemons:
            if alive(pid):
                os.kill(pid, 15)
        until(lambda: not any(alive(pid) for pid in ovs.daemons), what="the daemon's end")
        run("umount", logs)


def test_nothing_is_forwarded_while_flows_are_restored(ovs):  # noqa: F811
    ovs.vsctl("--no-wait", "set", "open", ".", "other_config:flow-restore-wait=true")
    ovs.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "--", "set-controller",
              "br0", f"punix:{ovs.dir}/br0.c")
    for port in ["p1", "p2"]:
        ovs.vsctl("--no-wait", "add-port", "br0", port, "--", "set", "interface", port, "type=dummy")
    ovs.start()
    frame = "ff" * 6 + "020000000001" + "88b5" + "00" * 46
    sent = lambda: "tx pkts=1," in ovs.ofctl("dump-ports", "br0", "p2")
    ovs.ofctl("add-flow", "br0", "actions=FLOOD")
    ovs.appctl("netdev-dummy/receive", "p1", frame)
    assert not sent() and not (ovs.dir / "br0.c").exists()
    ovs.vsctl("remove", "open", ".", "other_config", "flow-restore-wait")
    assert (ovs.dir / "br0.c").exists()
    ovs.ofctl("add-flow", "br0", "actions=FLOOD")
    ovs.appctl("netdev-dummy/receive", "p1", frame)
    assert sent()
    # It counts at the start only.
    ovs.vsctl("set", "open", ".", "other_config:flow-restore-wait=true")
    assert (ovs.dir / "br0.c").exists()


def test_a_controllers_role_is_written(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs)
    ovs.vsctl("set-controller", "br0", f"punix:{ovs.dir}/br0.c")
    uuid = ovs.vsctl("get", "bridge", "br0", "controller").strip("[]")
    assert ovs.get("controller", uuid, "role") == "[]"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(ovs.dir / "br0.c"))
        peer.sendall(bytes.fromhex("0400000800000001"))
        until(lambda: ovs.get("controller", uuid, "role") == "other", what="the role at first")
        # OFPT_ROLE_REQUEST, primary, generation 1.
        peer.sendall(bytes.fromhex("0418001800000002" "00000002" "00000000" "0000000000000001"))
        until(lambda: ovs.get("controller", uuid, "role") == "master", what="the new role")
    until(lambda: ovs.get("controller", uuid, "role") == "[]", what="the connection's end")


def test_fake_bridges(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs, "trunk")
    ovs.vsctl("add-br", "fake5", "br0", "5")
    ovs.vsctl("add-port", "fake5", "p5", "--", "set", "interface", "p5", "type=dummy")
    assert ovs.vsctl("br-to-parent", "fake5") == "br0" and ovs.vsctl("br-to-vlan", "fake5") == "5"
    assert ovs.vsctl("list-ports", "fake5") == "p5"
    shown = ovs.ofctl("show", "br0")
    assert "(fake5)" in shown and "(p5)" in shown
    ovs.appctl("netdev-dummy/receive", "p5", "ff" * 6 + "020000000001" + "88b5" + "00" * 46)
    until(lambda: "tx pkts=1," in ovs.ofctl("dump-ports", "br0", "trunk"), what="the frame, tagged")
    until(lambda: "tx pkts=1," in ovs.ofctl("dump-ports", "br0", "fake5"), what="the frame in its VLAN's bridge")
    ovs.vsctl("del-br", "fake5")
    assert "fake5" not in ovs.ofctl("show", "br0")


def test_protocols_of_a_bridge(ovs):  # noqa: F811
    ovs.start()
    dummy_bridge(ovs)
    ovs.vsctl("set", "bridge", "br0", "protocols=OpenFlow13")
    refused = run("ovs-ofctl", "-O", "OpenFlow10", "show", "br0", env=ovs.env, check=False)
    assert refused.returncode != 0 and "version negotiation failed" in refused.stderr
    run("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "br0", env=ovs.env)
    ovs.vsctl("clear", "bridge", "br0", "protocols")
    ovs.ofctl("show", "br0")
