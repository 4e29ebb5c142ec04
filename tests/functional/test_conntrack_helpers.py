"""Protocols that announce further connections: FTP and TFTP with real clients and servers, plain and translated."""

import sys

import pytest
from conftest import until
from lib.conntrack import NEIGHBOURS, Lab

# Serves a directory by FTP. EPRT and EPSV are there for IPv6.
FTP_SERVER = """
import logging, sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
class Handler(FTPHandler):
    authorizer = DummyAuthorizer()
    # The address in EPRT may be written otherwise than that of the connection.
    permit_foreign_addresses = True
Handler.authorizer.add_anonymous(sys.argv[2], perm='elrw')
FTPServer((sys.argv[1], int(sys.argv[3])), Handler).serve_forever()
"""

# Gets the file `data` as often as told, then puts its reverse; all by active or passive connections, as announced.
FTP_CLIENT = """
import ftplib, io, sys
address, how, count, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ftp = ftplib.FTP(timeout=6)
ftp.trust_server_pasv_ipv4_address = True
ftp.connect(address, port)
ftp.login()
ftp.set_pasv(how == 'passive')
for _ in range(count):
    parts = []
    ftp.retrbinary('RETR data', parts.append)
    got = b''.join(parts)
    print(len(got))
ftp.storbinary('STOR reverse', io.BytesIO(got[::-1]))
ftp.quit()
print('done')
"""

DATA = bytes(range(256)) * 2000

#: Port 1 opens control connections to port 21 and no others; data connections only by way of the helper.
RULES = """
table=0,priority=10,ip,actions=ct(table=1,zone=1)
table=0,priority=10,ipv6,actions=ct(table=1,zone=1)
table=1,in_port=1,ct_state=+new-rel,tcp,tp_dst=21,actions=ct(commit,zone=1{alg}),2
table=1,in_port=1,ct_state=+new-rel,tcp6,tp_dst=21,actions=ct(commit,zone=1{alg}),2
table=1,cookie=1,in_port=1,ct_state=+new+rel,tcp,actions=ct(commit,zone=1),2
table=1,cookie=1,in_port=1,ct_state=+new+rel,tcp6,actions=ct(commit,zone=1),2
table=1,cookie=2,in_port=2,ct_state=+new+rel,tcp,actions=ct(commit,zone=1),1
table=1,cookie=2,in_port=2,ct_state=+new+rel,tcp6,actions=ct(commit,zone=1),1
table=1,in_port=1,ct_state=+est,ip,actions=2
table=1,in_port=1,ct_state=+est,ipv6,actions=2
table=1,in_port=2,ct_state=+est,ip,actions=1
table=1,in_port=2,ct_state=+est,ipv6,actions=1
table=1,cookie=3,priority=0,actions=drop
"""

#: The same with another source behind port 2.
SNAT = """
table=0,priority=10,in_port=1,{ip},actions=ct(table=1,zone=1,nat)
table=0,priority=10,in_port=2,{ip},actions=ct(table=1,zone=1,nat)
table=1,in_port=1,ct_state=+new-rel,{tcp},tp_dst=21,actions=ct(commit,zone=1,alg=ftp,nat(src={nat})),2
table=1,cookie=1,in_port=1,ct_state=+new+rel,{tcp},actions=ct(commit,zone=1,nat),2
table=1,cookie=2,in_port=2,ct_state=+new+rel,{tcp},actions=ct(commit,zone=1,nat),1
table=1,in_port=1,ct_state=+est,{tcp},actions=2
table=1,in_port=2,ct_state=+est,{tcp},actions=1
table=1,cookie=3,priority=0,actions=drop
"""

#: The client asks for {nat}, port {port}, and gets the server's port 21.
DNAT = """
table=0,priority=10,in_port=1,{ip},actions=ct(table=1,zone=1,nat)
table=0,priority=10,in_port=2,{ip},actions=ct(table=1,zone=1,nat)
table=1,in_port=1,ct_state=+new-rel,{tcp},tp_dst={port},actions=ct(commit,zone=1,alg=ftp,nat(dst={to})),2
table=1,cookie=1,in_port=1,ct_state=+new+rel,{tcp},actions=ct(commit,zone=1,nat),2
table=1,cookie=2,in_port=2,ct_state=+new+rel,{tcp},actions=ct(commit,zone=1,nat),1
table=1,in_port=1,ct_state=+est,{tcp},actions=2
table=1,in_port=2,ct_state=+est,{tcp},actions=1
table=1,cookie=3,priority=0,actions=drop
"""

FAMILIES = pytest.mark.parametrize("address", ["10.0.0.2", "fd00::2"], ids=["IPv4", "IPv6"])
WAYS = pytest.mark.parametrize("how", ["active", "passive"])


class Ftp:
    """A server at port 2, and how its client does."""

    def __init__(self, ovs, net, directory):
        self.lab = Lab(ovs, net)
        self.directory = directory
        (directory / "data").write_bytes(DATA)

    def serve(self, address, port=21):
        host = self.lab.hosts[1]
        host.start(sys.executable, "-c", FTP_SERVER, address, self.directory, port)
        until(lambda: f":{port} " in host.run("ss", "-Hltn").stdout, what="the FTP server listening")

    def get(self, address, how, count=2, port=21):
        """Whether the client gets all that it wants."""
        r = self.lab.hosts[0].run(sys.executable, "-c", FTP_CLIENT, address, how, count, port, check=False)
        if r.returncode:
            assert "timed out" in r.stderr or "refused" in r.stderr, r.stderr
            return False
        assert r.stdout.split() == [str(len(DATA))] * count + ["done"]
        return until(lambda: (self.directory / "reverse").read_bytes() == DATA[::-1], what="the file at the server")

    def check_data_connections(self, how, count):
        """So many were opened by the server, or by the client; none is taken for one of the other kind."""
        opened, other = (2, 1) if how == "active" else (1, 2)
        assert self.lab.counts(opened, count) == count
        assert self.lab.hits(other) == 0


@pytest.fixture
def ftp(ovs, net, tmp_path):
    return Ftp(ovs, net, tmp_path)


@FAMILIES
@WAYS
def test_data_connections_of_ftp_are_related(ftp, address, how):
    ftp.lab.flows(NEIGHBOURS, RULES.format(alg=",alg=ftp"))
    ftp.serve(address)
    assert ftp.get(address, how)
    ftp.check_data_connections(how, 3)


@FAMILIES
@WAYS
def test_without_the_helper_there_are_no_data_connections(ftp, address, how):
    ftp.lab.flows(NEIGHBOURS, RULES.format(alg=""))
    ftp.serve(address)
    assert not ftp.get(address, how)
    assert ftp.lab.hits(1) == ftp.lab.hits(2) == 0 and ftp.lab.counts(3)


def family(address):
    return {"ip": "ipv6", "tcp": "tcp6"} if ":" in address else {"ip": "ip", "tcp": "tcp"}


# Translated addresses of the same length in text as the host's own, longer and shorter ones: the control connection's
# sequence numbers shift.
@pytest.mark.parametrize("address, nat", [
    ("10.0.0.2", "10.0.0.9"), ("10.0.0.2", "10.0.0.240"), ("10.0.0.2", "9.9.9.9"),
    ("fd00::2", "fd00::9"), ("fd00::2", "fd00:0:0:0:1234:5678:9abc:def0"),
])
@WAYS
def test_ftp_passes_a_translated_source(ftp, address, nat, how):
    a, b = ftp.lab.hosts
    ftp.lab.neighbour(b, nat, a.mac)
    if nat == "9.9.9.9":
        b.run("ip", "route", "add", "9.9.9.9/32", "dev", "eth0")
    ftp.lab.flows(NEIGHBOURS, SNAT.format(nat=nat, **family(address)))
    ftp.serve(address)
    assert ftp.get(address, how, count=5)
    ftp.check_data_connections(how, 6)
    assert b.run("ss", "-Htan").stdout.count(a_text(nat)) >= 1 and a_text(own(address)) not in b.run("ss", "-Htan").stdout


def own(address):
    return "fd00::1" if ":" in address else "10.0.0.1"


def a_text(address):
    """As `ss` writes an address before its port."""
    return f"[{address.replace(':0:0:0:', '::')}]:" if ":" in address else f"{address}:"


@pytest.mark.parametrize("address, nat", [("10.0.0.2", "10.0.0.240"), ("10.0.0.2", "10.0.0.9"), ("fd00::2", "fd00::240")])
@pytest.mark.parametrize("port", [21, 2121])
@WAYS
def test_ftp_passes_a_translated_destination(ftp, address, nat, port, how):
    a, b = ftp.lab.hosts
    ftp.lab.neighbour(a, nat, b.mac)
    to = f"[{address}]:21" if ":" in address else f"{address}:21"
    ftp.lab.flows(NEIGHBOURS, DNAT.format(to=to, port=port, **family(address)))
    ftp.serve(address)
    assert ftp.get(nat, how, count=5, port=port)
    ftp.check_data_connections(how, 6)


TFTP = """
table=0,priority=10,{ip},actions=ct(table=1,zone=1,nat)
table=1,in_port=1,ct_state=+new-rel,{udp},tp_dst=69,actions=ct(commit,zone=1{alg}{nat}),2
table=1,cookie=2,in_port=2,ct_state=+new+rel,{udp},actions=ct(commit,zone=1,nat),1
table=1,in_port=1,ct_state=+est,{ip},actions=2
table=1,cookie=4,in_port=2,ct_state=+est,{ip},actions=1
table=1,cookie=3,priority=0,actions=drop
"""


@pytest.mark.parametrize("nat", [False, True], ids=["plain", "translated"])
@pytest.mark.parametrize("alg", [True, False], ids=["helper", "none"])
@FAMILIES
def test_tftp(ovs, net, tmp_path, address, alg, nat):
    lab = Lab(ovs, net)
    a, b = lab.hosts
    six = ":" in address
    outside = "fd00::240" if six else "10.0.0.240"
    lab.neighbour(b, outside, a.mac)
    lab.flows(NEIGHBOURS, TFTP.format(ip="ipv6" if six else "ip", udp="udp6" if six else "udp", alg=",alg=tftp" if alg else "",
                                      nat=f",nat(src={outside})" if nat else ""))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.is_relative_to("/tmp") and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o011)
    (tmp_path / "data").write_bytes(DATA)
    (tmp_path / "data").chmod(0o644)
    bracketed = f"[{address}]" if six else address
    b.start("in.tftpd", "--foreground", "--address", f"{bracketed}:69", "--secure", tmp_path)
    until(lambda: ":69 " in b.run("ss", "-Hlun").stdout, what="the TFTP server listening")
    got = tmp_path / "got"
    r = a.run("curl", "-gsS", "--tftp-blksize", "1400", "--max-time", "10" if alg else "3", "-o", got,
              f"tftp://{bracketed}/data", check=False)
    if alg:
        assert r.returncode == 0, r.stderr
        assert got.read_bytes() == DATA
        assert lab.counts(2) == 1, "the server's answers come from another port; the first of them opens a connection"
    else:
        assert r.returncode == 28, r.stderr
        assert lab.hits(2) == 0 and lab.counts(3)
