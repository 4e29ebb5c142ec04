"""Frames into one dummy port and out of another, through their patch sockets: counted to the last one, without a clock."""

import socket
import struct
import threading

from .wait import until

#: Frames under way at most: less than either port's queues hold, so whatever is missing was lost by the switch.
WINDOW = 64


class Wire:
    """The far end of a dummy port that has `options:pstream=punix:PATH`."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.data = b""

    def send(self, frame):
        self.socket.sendall(struct.pack(">H", len(frame)) + frame)

    def receive(self):
        """The next frame; None at the end."""
        while len(self.data) < 2 or len(self.data) < 2 + struct.unpack_from(">H", self.data)[0]:
            try:
                piece = self.socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                piece = b""
            if not piece:
                return None
            self.data += piece
        end = 2 + struct.unpack_from(">H", self.data)[0]
        frame, self.data = self.data[2:end], self.data[end:]
        return frame

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class Stream:
    """Numbered frames of one connection that go in at one wire and have to come out of another: each once, in order. A new
    one is sent when an old one has come, so it goes on for as long as nothing is lost."""

    def __init__(self, into, out, head, size=64):
        self.into, self.out, self.head, self.size = Wire(into), Wire(out), head, size
        self.sent = self.came = 0
        self.wrong = None
        self.ending = False
        self.change = threading.Condition()
        self.connect()
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.send, self.receive)]
        for thread in self.threads:
            thread.start()

    def connect(self):
        """Returns when a frame that goes in comes out: before, the port may not have accepted the wire."""
        self.probes = 0
        self.out.socket.settimeout(0.05)
        while True:
            self.into.send(self.frame(self.probes))
            self.probes += 1
            try:
                frame = self.out.receive()
                break
            except TimeoutError:
                assert self.probes < 400, "nothing comes out"
        # Those that were sent meanwhile.
        self.out.socket.settimeout(30)
        while frame != self.frame(self.probes - 1):
            frame = self.out.receive()
        self.out.socket.settimeout(None)

    def frame(self, number):
        return (self.head + struct.pack(">Q", number)).ljust(self.size, b"\0")

    def send(self):
        while True:
            with self.change:
                self.change.wait_for(lambda: self.ending or self.sent - self.came < WINDOW)
                if self.ending:
                    return
                number = self.sent
                self.sent += 1
            try:
                self.into.send(self.frame(number))
            except OSError:
                return

    def receive(self):
        while (frame := self.out.receive()) is not None:
            with self.change:
                if frame != self.frame(self.came):
                    self.wrong = self.wrong or f"{frame.hex()} came as frame {self.came}"
                self.came += 1
                self.change.notify_all()

    def goes_on(self, more=500):
        """Returns when so many more have come."""
        end = self.came + more
        until(lambda: self.came >= end or self.wrong, 30, f"frame {end} (of {self.sent} sent, {self.came} came)")
        assert not self.wrong, self.wrong

    def check(self):
        """Ends it: all came, each once, in order. Returns how many there were, with those before the first one."""
        with self.change:
            self.ending = True
            self.change.notify_all()
        self.threads[0].join()
        until(lambda: self.came >= self.sent or self.wrong, 30, f"the last of {self.sent} frames ({self.came} came)")
        self.close()
        assert not self.wrong, self.wrong
        assert self.came == self.sent > 0
        return self.probes + self.sent

    def close(self):
        with self.change:
            self.ending = True
            self.change.notify_all()
        for wire in (self.into, self.out):
            wire.close()
        for thread in self.threads:
            thread.join(10)
