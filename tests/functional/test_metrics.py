"""Metrics: `weir metrics`, and the HTTP server's /metrics with those whom it answers, and those who would wear it out."""

import json
import re
import socket
import subprocess
from http.client import HTTPConnection

import pytest
from conftest import ROOT, until
from lib.daemon import config, dummy_bridge
from test_controllers import free_port
from test_silent_peers import closed, connect, crowd, say  # noqa: F401

SAMPLE = re.compile(r'([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+|NaN|\+Inf)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def samples(text):
    """{(name, (label, value), ...): number}, each of which is there once."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, number = SAMPLE.fullmatch(line).groups()
            key = (name, *LABEL.findall(labels or ""))
            assert key not in found, line
            found[key] = float(number)
    return found


def metrics(w):
    return samples(w.cli("metrics").stdout)


def promtool(*args, text=None):
    return subprocess.run(["promtool", *map(str, args)], input=text, capture_output=True, text=True, timeout=60)


def bridge_of(a, b, more=""):
    return more + config([(a.port, "afpacket", ""), (b.port, "afpacket", "")])


def get(address, path="/metrics", method="GET", headers=None, timeout=30):
    """(status, headers, body) of one request."""
    http = HTTPConnection("127.0.0.1", 1, timeout=timeout)
    http.sock = connect(address)
    http.request(method, path, headers=headers or {})
    response = http.getresponse()
    body = response.read().decode()
    http.close()
    return response.status, response.headers, body


def test_metrics_are_what_prometheus_reads_and_the_documentation_says(weir, net):
    a, b = net.host("10.0.0.1/24"), net.host("10.0.0.2/24")
    w = weir(bridge_of(a, b))
    w.ofctl("add-flow", f"unix:{w.dir}/br0.mgmt", "priority=50,udp,actions=drop")
    assert a.ping("10.0.0.2") == 3
    a.run("bash", "-c", "for i in 1 2 3 4; do echo x >/dev/udp/10.0.0.2/9; done")
    until(lambda: metrics(w)["weir_drop_packets_total", ("stage", "translate"), ("reason", "rule")] >= 4)
    text = w.cli("metrics").stdout
    checked = promtool("check", "metrics", text=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), checked
    documented = set(re.findall(r"^\| `([a-z_]+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
    assert set(re.findall(r"^# TYPE (\S+) ", text, re.M)) == documented
    assert {key[0] for key in samples(text)} <= documented
    # They say what the other reports say.
    found, stats = metrics(w), w.json("stats")
    of_port = lambda name, port: found[name, ("bridge", "br0"), ("port", port)]
    for port in w.json("ports")["ports"]:
        assert of_port("weir_port_mtu_bytes", port["name"]) == port["mtu"]
        assert 3 <= of_port("weir_port_receive_packets_total", port["name"]) <= port["statistics"]["rx_packets"]
    assert found["weir_port_drop_packets_total", ("port", a.port), ("stage", "translate"), ("reason", "rule")] >= 4
    assert found["weir_bridge_flows", ("bridge", "br0")] == 2
    assert found["weir_table_flows", ("bridge", "br0"), ("table", "0")] == 2
    [worker] = stats["workers"]
    of_worker = {key[0]: n for key, n in found.items() if key[1:] == (("worker", "0"),)}
    assert 0 < of_worker["weir_worker_receive_packets_total"] <= worker["packets"]
    assert found["weir_flows_limit",] == 2_000_000
    assert found["weir_conntrack_connections_limit",] == 3_000_000
    assert found["process_resident_memory_bytes",] > 1 << 20
    assert json.loads(w.cli("metrics", "--json").stdout)["result"].startswith("# HELP ")


PROTOCOLS = """
[[bridge]]
name = "br0"
local = false
spanning-tree = "rstp"
[[bridge.port]]
name = "bond0"
[[bridge.port.interface]]
name = "{a.port}"
[[bridge.port.interface]]
name = "{b.port}"
[[bridge.port]]
name = "{c.port}"
bfd = {{ enable = true }}
cfm-mpid = 7
"""


def test_what_protocols_say_of_ports_is_there(weir, net):
    a, b, c = (net.host() for _ in range(3))
    w = weir(PROTOCOLS.format(a=a, b=b, c=c))

    def says(what):
        return {key[2][1]: number for key, number in metrics(w).items() if key[0] == f"weir_port_{what}"}

    until(lambda: says("bond_enabled") == {a.port: 1, b.port: 1}, what="both members")
    b.run("ip", "link", "set", "eth0", "down")
    until(lambda: says("bond_enabled") == {a.port: 1, b.port: 0}, what="one member")
    assert says("bfd_up") == {c.port: 0}
    until(lambda: says("spanning_tree_forwarding") == {c.port: 1}, what="RSTP, which hears no other bridge")
    until(lambda: says("cfm_fault") == {c.port: 1}, what="CFM, which hears nobody")


def test_the_controller_that_is_not_there_is_seen(weir, net):
    port = free_port()
    w = weir(config([("p1", "null", "")], more=f'controllers = ["tcp:127.0.0.1:{port}"]'))
    key = ("weir_controller_connections", ("bridge", "br0"), ("target", f"tcp:127.0.0.1:{port}"))
    assert metrics(w)[key] == 0


def test_http_answers_the_same(weir, net):
    port = free_port()
    w = weir(f'http = "127.0.0.1:{port}"\n' + config([("p1", "null", "")]))
    address = ("127.0.0.1", port)
    until(lambda: "http: listening on" in w.log())
    status, headers, body = get(address)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert samples(body).keys() == metrics(w).keys()
    # Several requests by one connection, and one that wants no body.
    http = HTTPConnection(*address, timeout=30)
    for method in ("GET", "HEAD", "GET"):
        http.request(method, "/metrics?ignored=1")
        text = http.getresponse().read().decode()
        assert (text == "") == (method == "HEAD") and ("weir_build_info" in text) == (method == "GET")
    http.close()
    # An old client, without a Host of HTTP/1.1.
    with connect(address) as s:
        s.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        old = s.makefile().read()
        assert "200 OK" in old and "weir_build_info" in old and "transfer-encoding" not in old
    for path in ("/nothing", "/metrics/", "/../metrics", "/metric"):
        status, _, body = get(address, path)
        assert status == 404 and "/metrics" in body, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
        status, headers, body = get(address, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method


def test_pages_of_other_sites_get_no_answer(weir, net):
    port = free_port()
    w = weir(f'http = "127.0.0.1:{port}"\n' + config([("p1", "null", "")]))
    until(lambda: "http: listening on" in w.log())
    address = ("127.0.0.1", port)
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1"):
        status, _, body = get(address, headers={"Host": host})
        assert status == 403 and "weir_" not in body, host
    for host in ("localhost", f"127.0.0.1:{port}", "[::1]:80"):
        assert get(address, headers={"Host": host})[0] == 200, host
    with connect(address) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert " 403 " in s.makefile().readline()


def test_only_who_bears_the_token(weir, net, tmp_path):
    port, token = free_port(), tmp_path / "token"
    token.write_text("s3cret\n")
    w = weir(f'http = "127.0.0.1:{port}"\nhttp-token-file = "{token}"\n' + config([("p1", "null", "")]))
    until(lambda: "http: listening on" in w.log())
    ask = lambda **headers: get(("127.0.0.1", port), headers=headers)
    # Who bears it may call the machine what he wants.
    assert ask(Authorization="Bearer s3cret", Host="switch.example")[0] == 200
    for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Bearer s3crets"},
                  {"Authorization": "Basic s3cret"}, {"Authorization": "Bearer "}):
        status, headers, body = ask(**wrong)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer") and "weir_" not in body, wrong
    # Another token counts at once; without one, nobody is answered.
    token.write_text("another")
    assert ask(Authorization="Bearer s3cret")[0] == 401
    assert ask(Authorization="Bearer another")[0] == 200
    w.expect(r"http: cannot read the token in ")
    token.write_text("")
    assert ask(Authorization="Bearer ")[0] == 503
    token.unlink()
    assert ask(Authorization="Bearer another")[0] == 503


@pytest.mark.parametrize("what", [
    b"", b"GET /metrics HTT", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n", b"\r\n" * 50,
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\nx",
], ids=["nothing", "half a line", "half a head", "blanks", "requests, and does not read", "half a body"])
def test_peers_that_stall_lock_nobody_out(weir, net, crowd, what):  # noqa: F811
    port = free_port()
    ports = [(f"p{n}", "dummy", "") for n in range(100)]
    w = weir(f'http = "127.0.0.1:{port}"\n' + config(ports))
    until(lambda: "http: listening on" in w.log())
    memory = lambda: metrics(w)["process_resident_memory_bytes",]
    before = memory()
    crowd(("127.0.0.1", port), what, many=100)
    for _ in range(3):
        assert get(("127.0.0.1", port))[0] == 200
        assert w.cli("show", timeout=30).returncode == 0
    assert memory() < before + (32 << 20)


def test_heads_have_bounds(weir, net):
    port = free_port()
    w = weir(f'http = "127.0.0.1:{port}"\n' + config([("p1", "null", "")]))
    until(lambda: "http: listening on" in w.log())
    for head in (b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
                 b"GET / HTTP/1.1\r\nx: " + b"y" * (1 << 20), b"\0" * 100, b"{}\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        peer = connect(("127.0.0.1", port))
        say(peer, head)
        say(peer, head)
        answer = b""
        peer.settimeout(30)
        try:
            while more := peer.recv(4096):
                answer += more
        except ConnectionResetError:
            pass
        assert b" 200 " not in answer
        peer.close()
        assert get(("127.0.0.1", port))[0] == 200


def test_it_listens_where_the_configuration_says_now(weir, net):
    first, second = free_port(), free_port()
    bridge = config([("p1", "null", "")])
    w = weir(bridge)
    with pytest.raises(ConnectionRefusedError):
        connect(("127.0.0.1", first))
    w.configure(f'http = "127.0.0.1:{first}"\n' + bridge)
    w.cli("reload")
    until(lambda: f"listening on 127.0.0.1:{first}" in w.log())
    idle = connect(("127.0.0.1", first))
    assert get(("127.0.0.1", first))[0] == 200
    # Elsewhere, where somebody else is.
    w.expect(r"http: cannot listen on ")
    with socket.socket() as other:
        other.bind(("127.0.0.1", second))
        other.listen()
        w.configure(f'http = "127.0.0.1:{second}"\n' + bridge)
        w.cli("reload")
        until(lambda: any("Address already in use" in error for error in w.json("show")["errors"]))
        assert metrics(w)["weir_configuration_unapplied",] == 1
        until(lambda: closed(idle))
        with pytest.raises(ConnectionRefusedError):
            connect(("127.0.0.1", first))
    until(lambda: f"listening on 127.0.0.1:{second}" in w.log())
    assert get(("127.0.0.1", second))[0] == 200
    assert w.json("show")["errors"] == []
    assert w.log().count("cannot listen on") == 1
    # A socket in the run directory, which goes with it.
    w.configure('http = "unix:weir.http"\n' + bridge)
    w.cli("reload")
    path = w.dir / "weir.http"
    until(path.exists)
    assert get(str(path), headers={"Host": "any.example"})[0] == 200
    w.configure(bridge)
    w.cli("reload")
    until(lambda: not path.exists())


def test_a_wrong_address_is_a_mistake(weir, net):
    bridge = config([("p1", "null", "")])
    w = weir(bridge)
    for address, problem in [("0.0.0.0:6640", "http-allow-remote"), ("6640", "expected IP:PORT"),
                             ("localhost:6640", "expected IP:PORT")]:
        w.configure(f'http = "{address}"\n' + bridge)
        refused = w.cli("reload", check=False)
        assert refused.returncode == 1 and problem in refused.stderr, refused
    port = free_port()
    w.expect(r"http: other machines can read everything on ")
    w.configure(f'http = "0.0.0.0:{port}"\nhttp-allow-remote = true\n' + bridge)
    w.cli("reload")
    until(lambda: "other machines can read everything" in w.log())
    assert get(("127.0.0.1", port))[0] == 200


def test_the_drops_of_every_port_are_there(ovs):
    """More ports than are looked at in one piece."""
    ovs.start("--enable-dummy")
    names = [f"p{n}" for n in range(1, 40)]
    dummy_bridge(ovs, *names)
    ovs.ofctl("add-flow", "br0", "priority=9,actions=drop")
    for n in range(1, 40):
        for _ in range(n):
            ovs.appctl("netdev-dummy/receive", f"p{n}", "ffffffffffff0200000000010800" + "00" * 46)
    dropped = lambda: {key[1][1]: number for key, number in metrics(ovs).items()
                       if key[0] == "weir_port_drop_packets_total" and key[2:] == (("stage", "translate"), ("reason", "rule"))}
    until(lambda: dropped() == {f"p{n}": n for n in range(1, 40)})
    total = metrics(ovs)["weir_drop_packets_total", ("stage", "translate"), ("reason", "rule")]
    assert total == sum(range(1, 40))


def test_a_database_has_it_on_and_off(ovs):
    ovs.start("--enable-dummy")
    dummy_bridge(ovs, "p1")
    port = free_port()
    setting = lambda *values: ovs.vsctl("set", "Open_vSwitch", ".", *(f"other_config:{value}" for value in values))
    setting(f'http="127.0.0.1:{port}"')
    until(lambda: f"http: listening on 127.0.0.1:{port}" in ovs.log())
    found = samples(get(("127.0.0.1", port))[2])
    assert found["weir_port_info", ("bridge", "br0"), ("port", "p1"), ("type", "dummy"), ("ofport", "1")] == 1
    setting('http="unix:weir.http"')
    until((ovs.dir / "weir.http").exists)
    assert get(str(ovs.dir / "weir.http"))[0] == 200
    # What could harm others is refused, and nothing listens.
    ovs.expect(r"other_config:http")
    for values in (['http="unix:/tmp/evil.http"'], ['http="unix:br0.mgmt"'], ['http="0.0.0.0:6640"'],
                   [f'http="127.0.0.1:{port}"', "http-token-file=/etc/shadow"]):
        before = ovs.log().count("other_config:http")
        setting(*values)
        until(lambda: ovs.log().count("other_config:http") > before, what=f"{values} in {ovs.log()[-1500:]}")
        assert not (ovs.dir / "weir.http").exists()
        with pytest.raises(ConnectionRefusedError):
            connect(("127.0.0.1", port))
    (ovs.dir / "token").write_text("s3cret")
    setting(f'http="127.0.0.1:{port}"', "http-token-file=token")
    until(lambda: ovs.log().count(f"http: listening on 127.0.0.1:{port}") == 2)
    assert get(("127.0.0.1", port))[0] == 401
    assert get(("127.0.0.1", port), headers={"Authorization": "Bearer s3cret"})[0] == 200
    ovs.vsctl("remove", "Open_vSwitch", ".", "other_config", "http")
    with pytest.raises(ConnectionRefusedError):
        until(lambda: connect(("127.0.0.1", port)).close())
