"""OpenFlow over TLS, with certificates of ovs-pki and Debian's tools at the other end."""

import shutil
import socket
import ssl
import struct
import subprocess

import pytest
from conftest import until
from lib.daemon import dummy_bridge
from lib.net import run
from test_controllers import free_port

# Peers that are to be refused.
EXPECTED = [r"\|stream_ssl(\(tls-files\))?\|WARN\|", r"\|rconn\|WARN\|OpenFlow connection closed: "]


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A folder with keys and certificates of a switch and a controller, each signed by a CA of its own."""
    folder = tmp_path_factory.mktemp("pki")
    call = lambda *args: run("ovs-pki", f"--dir={folder}/pki", f"--log={folder}/log", "-b", *args, cwd=folder, timeout=60)
    call("init")
    call("-u", "req+sign", "sc", "switch")
    call("-u", "req+sign", "renewed", "switch")
    call("-u", "req+sign", "ctl", "controller")
    for ca in ("switchca", "controllerca"):
        shutil.copy(folder / "pki" / ca / "cacert.pem", folder / f"{ca}.pem")
    return folder


def options(pki, name, ca):
    return [f"--private-key={pki}/{name}-privkey.pem", f"--certificate={pki}/{name}-cert.pem", f"--ca-cert={ca}"]


def set_ssl(ovs, pki, ca, bootstrap=False, name="sc"):
    flag = ["--", "--bootstrap"] if bootstrap else ["--"]
    ovs.vsctl(*flag, "set-ssl", pki / f"{name}-privkey.pem", pki / f"{name}-cert.pem", ca)


def listener(ovs, pki):
    """br0 with a listener for TLS; the address to connect to."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    port = free_port()
    set_ssl(ovs, pki, pki / "controllerca.pem")
    ovs.vsctl("set-controller", "br0", f"pssl:{port}:127.0.0.1", "--", "set", "controller", "br0", "inactivity_probe=0")
    return ("127.0.0.1", port)


def show(ovs, pki, address, name="ctl", ca=None):
    """ovs-ofctl, which verifies the switch."""
    return run("ovs-ofctl", *options(pki, name, ca or pki / "switchca.pem"), "show", f"ssl:127.0.0.1:{address[1]}",
               env=ovs.env, check=False, timeout=20)


def last_error(ovs):
    return ovs.vsctl("--if-exists", "get", "controller", "br0", "status:last_error")


def context(pki, version, name="ctl"):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.minimum_version = c.maximum_version = version
    c.load_verify_locations(pki / "switchca.pem")
    if name:
        c.load_cert_chain(pki / f"{name}-cert.pem", pki / f"{name}-privkey.pem")
    return c


HELLO = struct.pack("!BBHI", 4, 0, 8, 1)


def message(peer):
    """The next OpenFlow message: (type, xid, body)."""
    data = b""
    while len(data) < 8 or len(data) < struct.unpack_from("!H", data, 2)[0]:
        piece = peer.recv(8 - len(data) if len(data) < 8 else struct.unpack_from("!H", data, 2)[0] - len(data))
        assert piece, "the switch closed the connection"
        data += piece
    return data[1], struct.unpack_from("!I", data, 4)[0], data[8:]


def test_clients_of_a_listener(ovs, pki):
    """Those whose certificate the CA has signed, and no others. Both versions of TLS; a dump of many records."""
    address = listener(ovs, pki)
    until(lambda: "(p1)" in show(ovs, pki, address).stdout, what="an answer over TLS")
    # The switch's CA has not signed for controllers.
    refused = show(ovs, pki, address, name="renewed")
    assert refused.returncode != 0 and "(p1)" not in refused.stdout
    until(lambda: "not signed by a CA in" in ovs.log(), what="the reason in the log")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with context(pki, version).wrap_socket(socket.create_connection(address, 20)) as peer:
            peer.sendall(HELLO)
            assert message(peer)[0] == 0
            peer.sendall(struct.pack("!BBHI", 4, 5, 8, 7))
            assert message(peer)[:2] == (6, 7)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            with context(pki, version, name=None).wrap_socket(socket.create_connection(address, 20)) as peer:
                peer.sendall(HELLO)
                assert not peer.recv(1), "nothing is said to a peer without a certificate"
                raise ConnectionError
    until(lambda: "presents no certificate" in ovs.log(), what="the reason in the log")
    ovs.ofctl("del-flows", "br0")
    flows = "".join(f"priority={n},actions=drop\n" for n in range(1, 5001))
    target = f"ssl:127.0.0.1:{address[1]}"
    run("ovs-ofctl", *options(pki, "ctl", pki / "switchca.pem"), "add-flows", target, "-", input=flows, env=ovs.env)
    dump = run("ovs-ofctl", *options(pki, "ctl", pki / "switchca.pem"), "dump-flows", target, env=ovs.env).stdout
    assert dump.count("actions=drop") == 5000


@pytest.mark.parametrize("what", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x01\x40\x00" + bytes(10_000), HELLO,
                                  b"garbage " * 1250],
                         ids=["nothing", "half a handshake", "a long message", "OpenFlow without TLS", "garbage"])
def test_peers_that_do_not_shake_hands_lock_nobody_out(ovs, pki, what):
    address = listener(ovs, pki)
    peers = []
    try:
        for _ in range(200):
            peers.append(socket.create_connection(address, 20))
            if what:
                peers[-1].send(what)
        until(lambda: "(p1)" in show(ovs, pki, address).stdout, 30, what="an answer over TLS")
    finally:
        for peer in peers:
            peer.close()
    assert "3.1.0" in ovs.appctl("version")


def test_certificates_are_exchanged_at_run_time(ovs, pki, tmp_path):
    """The files are read again, and so are other files that the database names."""
    for file in ("privkey", "cert"):
        shutil.copy(pki / f"sc-{file}.pem", tmp_path / f"own-{file}.pem")
    address = listener(ovs, pki)
    ovs.vsctl("set-ssl", tmp_path / "own-privkey.pem", tmp_path / "own-cert.pem", pki / "controllerca.pem")

    def presented():
        try:
            with context(pki, ssl.TLSVersion.TLSv1_3).wrap_socket(socket.create_connection(address, 20)) as peer:
                return dict(pair for part in peer.getpeercert()["subject"] for pair in part)["commonName"]
        except OSError:
            return None

    until(lambda: (presented() or "").startswith("sc"), what="the first certificate")
    # Key and certificate do not fit each other for a while; those from before are in use.
    shutil.copy(pki / "renewed-cert.pem", tmp_path / "own-cert.pem")
    until(lambda: "it is not the key of" in ovs.log() or not presented(), what="the reason in the log")
    assert presented().startswith("sc")
    shutil.copy(pki / "renewed-privkey.pem", tmp_path / "own-privkey.pem")
    until(lambda: (presented() or "").startswith("renewed"), what="the second certificate")
    set_ssl(ovs, pki, pki / "controllerca.pem")
    until(lambda: (presented() or "").startswith("sc"), what="the first certificate again")


@pytest.fixture
def controller(ovs, pki):
    """A function that starts ovs-testcontroller, which listens for TLS and sends its CA's certificate; it gives the
    target to connect to."""
    started = []

    def start(name="ctl"):
        port = free_port()
        started.append(subprocess.Popen(
            ["ovs-testcontroller", *options(pki, name, pki / "switchca.pem"), f"--peer-ca-cert={pki}/controllerca.pem",
             f"--unixctl={ovs.dir}/testcontroller.{port}.ctl", f"pssl:{port}:127.0.0.1"], env=ovs.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return f"ssl:127.0.0.1:{port}"

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def connected(ovs):
    return ovs.get("controller", "br0", "is_connected") == "true"


def test_a_controller_over_tls(ovs, pki, controller):
    """With the options of the command line; a wrong CA in the database is named, and taking the row away ends it."""
    ovs.start(*options(pki, "sc", pki / "controllerca.pem"))
    dummy_bridge(ovs, "p1")
    ovs.vsctl("set-controller", "br0", controller(), "--", "set", "controller", "br0", "max_backoff=1000")
    until(lambda: connected(ovs), 20, what="the connection")
    until(lambda: "CONTROLLER" in ovs.ofctl("dump-flows", "br0") or "NORMAL" in ovs.ofctl("dump-flows", "br0"), 20,
          what="a flow of the controller")
    set_ssl(ovs, pki, pki / "switchca.pem")
    ovs.vsctl("set-controller", "br0", controller(), "--", "set", "controller", "br0", "max_backoff=1000")
    until(lambda: "not signed by a CA in" in last_error(ovs), 20, what="the reason in the database")
    assert not connected(ovs)
    ovs.vsctl("del-ssl")
    until(lambda: connected(ovs), 20, what="the connection again")


def test_the_ca_is_obtained_from_the_first_controller(ovs, pki, controller, tmp_path):
    ovs.start()
    dummy_bridge(ovs, "p1")
    ca = tmp_path / "ca.pem"
    set_ssl(ovs, pki, ca, bootstrap=True)
    ovs.vsctl("set-controller", "br0", controller(), "--", "set", "controller", "br0", "max_backoff=1000")
    until(lambda: connected(ovs), 20, what="the connection")
    der = ssl.PEM_cert_to_DER_cert
    pem = (pki / "controllerca.pem").read_text()
    assert der(ca.read_text()) == der(pem[pem.index("-----BEGIN"):])
    assert "successfully bootstrapped CA cert to" in ovs.log()
    # From now on it is what others are verified by: one of another CA is refused.
    ovs.vsctl("del-controller", "br0")
    ovs.vsctl("set-controller", "br0", controller("renewed"), "--", "set", "controller", "br0", "max_backoff=1000")
    until(lambda: "not signed by a CA in" in last_error(ovs), 20, what="the reason in the database")


def test_a_file_configures_tls(weir, pki):
    port = free_port()
    w = weir(f"""
[tls]
private-key = "{pki}/sc-privkey.pem"
certificate = "{pki}/sc-cert.pem"
ca-cert = "{pki}/controllerca.pem"
[[bridge]]
name = "br0"
local = false
controllers = ["pssl:{port}:127.0.0.1"]
[[bridge.port]]
name = "p1"
type = "dummy"
""")
    until(lambda: "(p1)" in show(w, pki, ("127.0.0.1", port)).stdout, what="an answer over TLS")
