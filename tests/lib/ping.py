"""Echo requests and their answers.

ping(8) waits for the last answers only as long as the interval, or twice the longest round trip; on a busy machine they come later than
that. This waits as long as it is told to, but no longer than until all are there.
"""

import argparse
import itertools
import random
import select
import signal
import socket
import struct
import time

#: Of ICMP and ICMPv6: the protocol, the types of a request and an answer, and what keeps all but answers away.
FAMILIES = {
    socket.AF_INET: (socket.IPPROTO_ICMP, 8, 0, (255, 1, struct.pack("=I", 0xffffffff & ~1))),
    socket.AF_INET6: (socket.IPPROTO_ICMPV6, 128, 129, (58, 1, b"\xff" * 16 + b"\xfd\xff\xff\xff" + b"\xff" * 12)),
}
_identifiers = itertools.count(random.getrandbits(16))


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return 0xffff & ~(total + (total >> 16))


def request(kind, identifier, number, size):
    # The kernel computes the checksum of ICMPv6.
    head = struct.pack("!BBHHH", kind, 0, 0, identifier, number)
    body = bytes(n & 0xff for n in range(size))
    return head[:2] + struct.pack("!H", checksum(head + body)) + head[4:] + body


class Ping:
    """Requests to `address`, one each `interval` seconds, or with a `window` whenever fewer than that wait for an answer. `fragments`: they
    may be fragmented; or they may not; None: the sender may do so."""

    def __init__(self, address, count=None, interval=0.2, wait=4, size=56, window=None, fragments=None):
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.protocol, self.asks, self.answers, self.only_answers = FAMILIES[self.family]
        self.address, self.count, self.interval, self.wait, self.size, self.window = address, count, interval, wait, size, window
        self.fragments = fragments
        self.identifier = next(_identifiers) & 0xffff
        self.sent, self.answered, self.is_stopped = 0, set(), False

    def run(self):
        """Returns when `count` are answered, or `wait` seconds after the last one; of how many that were sent are how many answered."""
        to = socket.getaddrinfo(self.address, None, self.family)[0][4]
        last_one = time.monotonic() - self.interval
        with socket.socket(self.family, socket.SOCK_RAW, self.protocol) as s:
            s.setsockopt(*self.only_answers)
            s.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
            if self.fragments is not None:
                # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER: IP_PMTUDISC_DONT, IP_PMTUDISC_DO.
                s.setsockopt(*((socket.IPPROTO_IP, 10) if self.family == socket.AF_INET else (socket.IPPROTO_IPV6, 23)), 0 if self.fragments else 2)
            s.setblocking(False)
            while self.is_sending() or len(self.answered) < self.sent:
                now = time.monotonic()
                if self.is_due(now - last_one):
                    last_one = now
                    self.send(s, to)
                is_over = now >= last_one + self.wait and not (self.is_sending() and self.window is None)
                # What stops it from outside is noticed soon.
                pause = 0.1
                if is_over or self.is_due(0):
                    pause = 0
                elif self.is_sending() and self.window is None:
                    pause = min(pause, max(last_one + self.interval - now, 0))
                if select.select([s], [], [], pause)[0]:
                    self.receive(s)
                elif is_over:
                    break
        return self.sent, len(self.answered)

    def stop(self):
        """Has it send no more. It may be called at any time."""
        self.is_stopped = True

    def is_sending(self):
        return not self.is_stopped and self.sent != self.count

    def is_due(self, since_last):
        """Whether one more is to be sent."""
        is_time = since_last >= self.interval if self.window is None else self.sent - len(self.answered) < self.window
        return is_time and self.is_sending()

    def send(self, s, to):
        # The first one has number 1, as with ping(8).
        self.sent += 1
        try:
            s.sendto(request(self.asks, self.identifier, self.sent & 0xffff, self.size), to)
        except OSError:
            pass  # Nobody will answer.

    def receive(self, s):
        try:
            data = s.recv(65536)
        except OSError:
            return
        icmp = data[(data[0] & 15) * 4 if self.family == socket.AF_INET else 0:]
        kind, _, _, identifier, number = struct.unpack("!BBHHH", icmp[:8].ljust(8, b"\xff"))
        if (kind, identifier) == (self.answers, self.identifier) and number <= self.sent:
            self.answered.add(number)


def main():
    """As a program: in the background, until `count` are sent or SIGINT comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", dest="count", type=int)
    parser.add_argument("-i", dest="interval", type=float)
    parser.add_argument("-W", dest="wait", type=float)
    parser.add_argument("address")
    args = parser.parse_args()
    ping = Ping(args.address, args.count, args.interval, args.wait)
    signal.signal(signal.SIGINT, lambda *_: ping.stop())
    print("begins", flush=True)
    print(*ping.run())


if __name__ == "__main__":
    main()
