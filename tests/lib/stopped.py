"""A thread of a daemon that stands still while all others run, as one does that waits for a page or a disk."""

import ctypes
import os
from pathlib import Path

from .wait import until

# ptrace(2): requests, and the option of waitpid(2) that makes it wait for a thread, too.
DETACH, SEIZE, INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid):
    if _libc.ptrace(request, tid, None, None) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")


class Stopped:
    """`with Stopped(pid, "handler0"):` - the thread does nothing within. `idle`: it is stopped in its sleep, where it holds
    no lock; otherwise wherever it is."""

    def __init__(self, pid, name, idle=True):
        found = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == name]
        assert len(found) == 1, f"{len(found)} threads are called {name}"
        self.task, self.idle = found[0], idle

    def sleeps(self):
        return (self.task / "stat").read_text().rpartition(")")[2].split()[0] == "S"

    def __enter__(self):
        self.tid = int(self.task.name)
        ptrace(SEIZE, self.tid)
        if self.idle:
            until(self.sleeps, what="a moment without work")
        ptrace(INTERRUPT, self.tid)
        os.waitpid(self.tid, WALL)
        return self

    def __exit__(self, *_):
        self.go()

    def go(self):
        """Lets it go on. It may have been let go before."""
        tid, self.tid = self.tid, None
        if tid is not None:
            ptrace(DETACH, tid)
