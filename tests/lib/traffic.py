"""Numbered datagrams between hosts: what is lost, comes twice or out of order is seen."""

import subprocess
import sys

# Sends numbered datagrams of SIZE bytes to ADDRESS, with a pause of SECONDS after each, until its input ends, then how many
# there were. With "new" each comes from a port that none has come from before, as long as there are such ports.
SENDER = """
import socket, sys, threading, time
address, pause, ports, size = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
n = 0
while not ended.is_set():
    if ports == 'new':
        s.close()
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind(('', 1024 + n % 64000))
    s.sendto(n.to_bytes(4, 'big').ljust(int(size), b'x'), (address, 9))
    n += 1
    time.sleep(float(pause))
print(n)
"""

# Prints the numbers that came, one by one. Its input says how many there are when no more are sent: then, until so many have come, or none has for
# five seconds.
RECEIVER = """
import select, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
s.bind((sys.argv[1], 9))
print('ready', flush=True)
came, count = 0, None
while came != count:
    sources = [s] if count is not None else [s, sys.stdin]
    ready = select.select(sources, [], [], None if count is None else 5)[0]
    if not ready:
        break
    if s in ready:
        print(int.from_bytes(s.recv(4), 'big'))
        came += 1
    elif sys.stdin in ready:
        count = int(sys.stdin.readline())
# What comes twice comes soon.
s.settimeout(0.2)
try:
    while True:
        print(int.from_bytes(s.recv(4), 'big'))
except TimeoutError:
    pass
"""


class Traffic:
    """Numbered datagrams from one host to another: one connection, or as many as there are datagrams."""

    def __init__(self, a, b, address, new_connections=False, size=4):
        self.to = b
        self.receiver = b.start(sys.executable, "-c", RECEIVER, address, stdin=subprocess.PIPE)
        assert self.receiver.stdout.readline() == "ready\n"
        # The slow path has room for some hundreds that wait.
        how = ["0.002", "new"] if new_connections else ["0.0005", "one"]
        self.sender = a.start(sys.executable, "-c", SENDER, address, *how, size, stdin=subprocess.PIPE)

    def goes_on(self):
        """Returns when some more has arrived."""
        self.to.receives(50)

    def check(self, in_order=True, lost=0):
        """Ends it: all came but so many, each once, in order. Returns how many came. Several handlers keep the order of
        each connection only."""
        sent = int(self.sender.communicate(timeout=60)[0])
        came = [int(line) for line in self.receiver.communicate(f"{sent}\n", timeout=60)[0].split()]
        assert sent > 100
        assert (came if in_order else sorted(came)) == sorted(set(came) & set(range(sent))), "in order, and once"
        assert len(came) >= sent - lost, f"{sent} sent, {len(came)} came"
        return len(came)
