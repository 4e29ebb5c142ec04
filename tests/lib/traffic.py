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

# Prints the numbers that came, one by one, until none has come for two seconds.
RECEIVER = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind((sys.argv[1], 9))
print('ready', flush=True)
while True:
    try:
        print(int.from_bytes(s.recv(4), 'big'))
    except TimeoutError:
        break
    s.settimeout(2)
"""


class Traffic:
    """Numbered datagrams from one host to another: one connection, or as many as there are datagrams."""

    def __init__(self, a, b, address, new_connections=False, size=4):
        self.to = b
        self.receiver = b.start(sys.executable, "-c", RECEIVER, address)
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
        sent = int(self.sender.communicate(timeout=20)[0])
        came = [int(line) for line in self.receiver.communicate(timeout=30)[0].split()]
        assert sent > 100
        assert (came if in_order else sorted(came)) == sorted(set(came) & set(range(sent))), "in order, and once"
        assert len(came) >= sent - lost, f"{sent} sent, {len(came)} came"
        return len(came)
