"""A real terminal: a program on a screen of tmux(1), whose text a test looks at."""

import shlex
import shutil
import tempfile
from pathlib import Path

from .net import run
from .wait import until


class Terminal:
    """A program in a terminal of its own. What it leaves behind when it ends can be seen until `close`."""

    def __init__(self, *command, env, width=80, height=24):
        self.dir = Path(tempfile.mkdtemp(prefix="terminal-"))
        self.env = dict(env, TERM="xterm-256color", LC_ALL="C.UTF-8")
        self.env.pop("TMUX", None)
        # After the program, a shell says with what status it has ended, and waits.
        shell = f"{shlex.join(map(str, command))}; echo ended $?; read line"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "it", "-x", width, "-y", height, "sh", "-c", shell)

    def tmux(self, *args):
        return run("tmux", "-u", "-S", self.dir / "socket", *args, env=self.env).stdout

    def text(self):
        return self.tmux("capture-pane", "-p", "-t", "it")

    def lines(self):
        return self.text().splitlines()

    def press(self, *keys):
        """Keys by their names in tmux: "q", "Enter", "Down", "C-c"."""
        self.tmux("send-keys", "-t", "it", *keys)

    def resize(self, width, height):
        self.tmux("resize-window", "-t", "it", "-x", width, "-y", height)

    def shows(self, *words, seconds=10):
        """Waits until all of these are on the screen; its text."""
        seen = []

        def all_there():
            seen[:] = [self.text()]
            return all(word in seen[0] for word in words)

        try:
            until(all_there, seconds, f"{words} on the screen")
        except AssertionError as e:
            raise AssertionError(f"{e}:\n{seen[0]}") from None
        return seen[0]

    def close(self):
        self.tmux("kill-server")
        shutil.rmtree(self.dir, ignore_errors=True)
