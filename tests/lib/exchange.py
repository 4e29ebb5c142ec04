"""Two stacks that talk at length: all that comes is what was sent, and no stack sees a wrong checksum."""

import sys

from .wait import until

# Answers a connection with the hash of what comes, and what came; and datagrams with themselves.
SERVER = """
import hashlib, socket, sys, threading
address = sys.argv[1]
family = socket.AF_INET6 if ':' in address else socket.AF_INET
udp = socket.socket(family, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
udp.bind((address, 9000))
def echo():
    while True:
        data, peer = udp.recvfrom(65536)
        udp.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
tcp = socket.create_server((address, 9000), family=family)
print('ready', flush=True)
connection, _ = tcp.accept()
data = b''.join(iter(lambda: connection.recv(1 << 16), b''))
connection.sendall(hashlib.sha256(data).digest() + data)
connection.close()
tcp.accept()
"""

# A million bytes there and back, then datagrams cut by the device (UDP_SEGMENT) and echoed.
CLIENT = """
import hashlib, os, socket, sys
address, port, datagrams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
family = socket.AF_INET6 if ':' in address else socket.AF_INET
data = os.urandom(1_000_000)
s = socket.socket(family, socket.SOCK_STREAM)
s.settimeout(20)
s.connect((address, port))
s.sendall(data)
s.shutdown(socket.SHUT_WR)
back = b''.join(iter(lambda: s.recv(1 << 16), b''))
assert back == hashlib.sha256(data).digest() + data, f'{len(back)} bytes came back'
u = socket.socket(family, socket.SOCK_DGRAM)
u.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
u.settimeout(20)
u.connect((address, port))
for size in (18, 1000, 1001):
    parts = [bytes([n]) * size for n in range(datagrams)]
    u.setsockopt(17, 103, size)
    u.send(b''.join(parts))
    came = sorted(u.recv(65536) for _ in parts)
    assert came == parts, [len(part) for part in came]
print('done')
"""


def exchange(a, b, listen, to=None, port=9000, datagrams=20):
    """Host `a` talks to host `b`, whose address is `listen`; `to` and `port` are what `a` believes them to be. So many datagrams
    come at once, of which none may be lost."""
    # The switch has to have noticed that a device is up again.
    until(lambda: a.ping(listen, count=1, wait=1), what="ping")
    server = b.start(sys.executable, "-c", SERVER, listen)
    assert server.stdout.readline() == "ready\n", server.stderr.read()
    result = a.run(sys.executable, "-c", CLIENT, to or listen, port, datagrams, check=False)
    server.kill()
    server.communicate()
    assert result.stdout == "done\n", result.stderr
    for host in (a, b):
        assert not checksum_errors(host), host.ns


def checksum_errors(host):
    """How many wrong checksums the host's stack has seen."""
    lines = host.run("nstat", "-asz").stdout.splitlines()
    return sum(int(line.split()[1]) for line in lines if "CsumErrors" in line)
